# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The options of the group [os_acc_bitstreams]."""

from __future__ import annotations

import os

from oslo_config import cfg

GROUP = 'os_acc_bitstreams'

_MIB = 1024 * 1024

OPTS = [
    cfg.ListOpt(
        'allowed_folders',
        default=[],
        help='Folders from which bitstreams may be taken by path or file '
        'URL; what a symbolic link in them leads to must be in them too.',
    ),
    cfg.StrOpt(
        'cache_path',
        default='',
        sample_default='<state_path>/bitstreams',
        help='Folder of what was downloaded; nobody else may read it.',
    ),
    cfg.IntOpt(
        'cache_size',
        default=4096,
        min=1,
        help='MiB that the cache may hold; what was not used for longest is '
        'removed first.',
    ),
    cfg.IntOpt(
        'max_size',
        default=1024,
        min=1,
        help='MiB that one bitstream may have.',
    ),
    cfg.BoolOpt(
        'allow_http',
        default=False,
        help='Take bitstreams by http too. Everyone between here and there '
        'can then change them, and their checksum file.',
    ),
    cfg.StrOpt(
        'cafile',
        default='',
        help='File with the certificates to trust for https; empty: those '
        'of the system.',
    ),
    cfg.IntOpt(
        'download_attempts',
        default=5,
        min=1,
        help='How often a download is begun or resumed.',
    ),
    cfg.FloatOpt(
        'download_timeout',
        default=1800.0,
        min=0.1,
        help='Seconds for a whole download.',
    ),
    cfg.FloatOpt(
        'stall_timeout',
        default=30.0,
        min=0.1,
        help='Seconds without a byte after which a connection counts as '
        'dropped.',
    ),
    cfg.FloatOpt(
        'retry_interval',
        default=1.0,
        min=0,
        help='Seconds before a dropped download is resumed; twice as long '
        'each time.',
    ),
    cfg.StrOpt(
        'cloud',
        default='',
        help='Name of the cloud in clouds.yaml whose Glance has the images; '
        'empty: as the environment says.',
    ),
    cfg.StrOpt(
        'function_property',
        default='accel:function_id',
        help="The property of a bitstream's image that names its function.",
    ),
    cfg.StrOpt(
        'region_type_property',
        default='accel:region_type_id',
        help="The property of a bitstream's image that names the type of "
        'region it is for.',
    ),
]


def cache_path(conf: cfg.ConfigOpts) -> str:
    """The folder of the cache."""
    chosen: str = conf[GROUP].cache_path
    return chosen or os.path.join(conf.os_acc.state_path, 'bitstreams')


def max_bytes(conf: cfg.ConfigOpts) -> int:
    """How large a bitstream may be."""
    size: int = conf[GROUP].max_size
    return size * _MIB


def cache_bytes(conf: cfg.ConfigOpts) -> int:
    """How much the cache may hold."""
    size: int = conf[GROUP].cache_size
    return size * _MIB
