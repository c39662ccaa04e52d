# SPDX-License-Identifier: Apache-2.0
"""The options of the group [os_acc_placement]."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'os_acc_placement'

OPTS = [
    cfg.BoolOpt(
        'update_traits',
        default=False,
        help='Change the function traits of a device in Placement as soon as '
        'os-acc has programmed it. Otherwise they change the next time the '
        'Cyborg agent reports its devices. This applies only to devices that '
        "the agent reports through os-acc's driver.",
    ),
    cfg.StrOpt(
        'host',
        default='',
        sample_default='<[os_acc] host>',
        help="Name of this host in Cyborg: [DEFAULT] host of the agent's "
        'configuration. The names of the resource providers begin with it. '
        'If this is empty, it is the name that [os_acc] host stands for.',
    ),
    cfg.StrOpt(
        'auth_section',
        default='placement',
        help='The group of this configuration that says how to reach '
        'Placement, with the options of keystoneauth: auth_type, auth_url, '
        'username, and so on. nova.conf and cyborg.conf have it.',
    ),
]
