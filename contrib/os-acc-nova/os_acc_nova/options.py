# SPDX-License-Identifier: Apache-2.0

"""The options of the group [os_acc_nova]. Nothing here imports Nova."""

from __future__ import annotations

from oslo_config import cfg
from oslo_config import types

import os_acc

GROUP = 'os_acc_nova'
OPTS: list[cfg.Opt] = [
    cfg.BoolOpt(
        'program',
        default=True,
        help='Whether os-acc programs the functions and bitstreams that '
        'device profiles name (accel:function_id and accel:bitstream_id). Set '
        'it to False if Cyborg programs them, or if the drivers of this '
        'host do not program devices: they refuse a function.',
    ),
    cfg.ListOpt(
        'resource_classes',
        default=[],
        # oslo.config uses re.search(), so the pattern has anchors.
        item_type=types.String(regex=r'^(\*|CUSTOM_[A-Z0-9_]+)$'),
        help='The resource classes whose devices nova-compute reports to '
        'Placement, each device as a resource provider below the compute '
        'node. Flavors can request them (resources:CUSTOM_...). Each begins '
        'with CUSTOM_, as resource_class in [os_acc] device_spec; * stands '
        'for all such classes of this host. Leave out those that Cyborg or '
        'Nova itself reports. If this is empty, none is reported.',
    ),
    cfg.FloatOpt(
        'function_weight_multiplier',
        default=20.0,
        help='For nova-scheduler with os_acc_nova.scheduling.FunctionWeigher: '
        'the multiplier of its weights. A device that already has the '
        'function of the flavor weighs 1, and one without a function 0.5. '
        "Nova's weighers of memory, CPUs, disk and so on have the multiplier "
        '1 each, so that 20 outweighs all of them together.',
    ),
    cfg.StrOpt(
        'demand_topic',
        default='os_acc_demand',
        help='For os-acc-nova-demand: the topic to which Nova sends its '
        'versioned notifications for this service. No other program may '
        'listen to it.',
    ),
]
os_acc.CONF.register_group(
    cfg.OptGroup(GROUP, title='os-acc: the compute driver of Nova')
)
os_acc.CONF.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """List the options of this package, for oslo-config-generator."""
    return [(GROUP, OPTS)]
