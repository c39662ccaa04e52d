# SPDX-License-Identifier: Apache-2.0

"""The options of the driver cyborg."""

from __future__ import annotations

from oslo_config import cfg

from os_acc.kernel import reset

OPTS = (
    cfg.ListOpt(
        'enabled_drivers',
        default=[],
        help="Names of Cyborg's drivers to use: entry points of the group "
        'cyborg.accelerator.driver, such as intel_fpga_driver. If the list '
        'is empty, os-acc uses none of them and starts no process.',
    ),
    cfg.StrOpt(
        'python',
        default='',
        sample_default='<the one that os-acc runs in>',
        help='Path of the Python interpreter of the environment in which '
        'Cyborg is installed.',
    ),
    cfg.ListOpt(
        'config_files',
        default=[],
        help="Cyborg's configuration files, such as "
        '/etc/cyborg/cyborg.conf. Some of its drivers have options there.',
    ),
    cfg.FloatOpt(
        'timeout',
        default=60.0,
        min=0.1,
        help="Time limit in seconds for Cyborg's drivers to discover their "
        'devices or to create a mediated device. At the limit they are '
        'killed, with all processes that they have started.',
    ),
    cfg.FloatOpt(
        'program_timeout',
        default=1800.0,
        min=0.1,
        help="Time limit in seconds for Cyborg's drivers to program a device. "
        'At the limit they are killed, as for timeout.',
    ),
    cfg.FloatOpt(
        'discovery_interval',
        default=60.0,
        min=0,
        help="Seconds for which the devices that Cyborg's drivers discovered "
        'are remembered, to decide whether a request is for one of them.',
    ),
    cfg.StrOpt(
        'reset',
        default=reset.AUTO,
        choices=reset.CHOICES,
        help='Whether a PCI function is reset between two instances.',
    ),
)
