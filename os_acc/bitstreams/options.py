# SPDX-License-Identifier: Apache-2.0

"""The options of the group [os_acc_bitstreams]."""

from __future__ import annotations

import os

from oslo_config import cfg

GROUP = 'os_acc_bitstreams'

#: The suffix of the file with the SHA-256 of the file beside it.
SIDECAR = '.sha256'

# The values of verify_signatures.
OFF = 'off'
IF_PRESENT = 'if_present'
REQUIRED = 'required'

_MIB = 1024 * 1024

OPTS = [
    cfg.ListOpt(
        'allowed_folders',
        default=[],
        help='Directories in which bitstreams named by a path or a file URL '
        'must be. The target of a symbolic link must be in one of them too.',
    ),
    cfg.StrOpt(
        'cache_path',
        default='',
        sample_default='<state_path>/bitstreams',
        help='Directory of downloaded bitstreams. It must belong to the user '
        'that runs os-acc and have mode 0700, or have mode 2770 and a group '
        'that this user is in.',
    ),
    cfg.IntOpt(
        'cache_size',
        default=4096,
        min=1,
        help='Size limit of the cache in MiB. The least recently used files '
        'are removed first.',
    ),
    cfg.IntOpt(
        'max_size',
        default=1024,
        min=1,
        help='Size limit of one bitstream in MiB.',
    ),
    cfg.BoolOpt(
        'allow_http',
        default=False,
        help='Allow http URLs too. Anyone on the network path can then change '
        'a bitstream and the checksum file beside it.',
    ),
    cfg.StrOpt(
        'cafile',
        default='',
        help='File with the CA certificates to trust for https. Empty: those '
        'of the system.',
    ),
    cfg.IntOpt(
        'download_attempts',
        default=5,
        min=1,
        help='How often a download is tried in total. A repeated attempt '
        'resumes the download if the server allows that.',
    ),
    cfg.FloatOpt(
        'download_timeout',
        default=1800.0,
        min=0.1,
        help='Time limit in seconds for a whole download.',
    ),
    cfg.FloatOpt(
        'stall_timeout',
        default=30.0,
        min=0.1,
        help='Seconds without data after which a connection counts as '
        'dropped.',
    ),
    cfg.FloatOpt(
        'retry_interval',
        default=1.0,
        min=0,
        help='Seconds to wait before a dropped download is resumed. The wait '
        'doubles with each attempt.',
    ),
    cfg.StrOpt(
        'cloud',
        default='',
        help='Name of the cloud in clouds.yaml whose Glance has the images. '
        'Empty: the one that the environment selects.',
    ),
    cfg.ListOpt(
        'image_owners',
        default=[],
        help='IDs of the projects whose Glance images are used as bitstreams, '
        'whatever the visibility of the image is. For all other projects, '
        'only public images are used. Private, shared and community images of '
        'other projects are refused, because any tenant can upload one.',
    ),
    cfg.StrOpt(
        'verify_signatures',
        default=OFF,
        choices=[
            (OFF, 'No signature is verified.'),
            (
                IF_PRESENT,
                'The signature of a Glance image that has one is verified.',
            ),
            (REQUIRED, 'Also, a Glance image without a signature is refused.'),
        ],
        help='Whether the signatures of Glance images are verified (the '
        'properties img_signature, img_signature_hash_method, '
        'img_signature_key_type and img_signature_certificate_uuid). This '
        'needs os-acc[signatures] and trusted_certificates. The certificates '
        'are read from the key manager of the option [key_manager] backend, '
        'with the credentials of the option cloud; it must answer within '
        'stall_timeout. Bitstreams from paths and URLs have no signature.',
    ),
    cfg.ListOpt(
        'trusted_certificates',
        default=[],
        help='IDs of certificates in the key manager. The certificate of an '
        "image's signature must be issued by one of them, directly or through "
        'others of them. Each must be the certificate of a certificate '
        'authority.',
    ),
    cfg.StrOpt(
        'function_property',
        default='accel:function_id',
        help='Property of a Glance image that names the function of the '
        'bitstream.',
    ),
    cfg.StrOpt(
        'region_type_property',
        default='accel:region_type_id',
        help='Property of a Glance image that names the type of region that '
        'the bitstream is for.',
    ),
]


def cache_path(conf: cfg.ConfigOpts) -> str:
    """The path of the cache's directory."""
    chosen: str = conf[GROUP].cache_path
    return chosen or os.path.join(conf.os_acc.state_path, 'bitstreams')


def max_bytes(conf: cfg.ConfigOpts) -> int:
    """The size limit of one bitstream, in bytes."""
    size: int = conf[GROUP].max_size
    return size * _MIB


def cache_bytes(conf: cfg.ConfigOpts) -> int:
    """The size limit of the cache, in bytes."""
    size: int = conf[GROUP].cache_size
    return size * _MIB
