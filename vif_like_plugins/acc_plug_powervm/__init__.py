# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The PowerVM plugin: an I/O slot into a logical partition, and out."""

from __future__ import annotations

from collections.abc import Iterable
import json
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc import objects
from os_acc import plugin
from os_acc import powervm

OPTS = (
    *powervm.OPTS,
    cfg.IntOpt(
        'update_tries',
        default=10,
        min=1,
        help='How often an update of an LPAR is tried when somebody else '
        'changes it at the same time.',
    ),
    cfg.FloatOpt(
        'update_timeout',
        default=120.0,
        min=0,
        help='Seconds after which no further try of an update begins.',
    ),
)


class PowerVMPlugin(plugin.PluginBase):
    """guest_config is JSON: the slot, and the LPAR that it is for.

    Cold: the caller makes the LPAR with to_io_slots(). Live: the slot is
    added to the LPAR (DLPAR), which needs RMC if it runs.
    """

    CONFIG_OPTS = OPTS

    def describe(self) -> objects.HostPluginInfo:
        return objects.HostPluginInfo(
            plugin_name=self.name,
            handle_info=[objects.HostHandleInfo.of('DRCHandle')],
        )

    def plug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        handle, lpar = van.handle, powervm.lpar_uuid(instance_info)
        if not isinstance(handle, objects.DRCHandle):
            raise exception.UnsupportedHandle(
                taker=f'plugin {self.name!r}',
                handle=handle.obj_name() if handle is not None else None,
                takes='DRCHandle',
            )
        if live:
            # pypowervm loads only here.
            from acc_plug_powervm import dlpar

            dlpar.attach(lpar, handle, self.config)
        van.guest_config = json.dumps(
            {
                'lpar_uuid': lpar,
                'drc_index': handle.drc_index,
                'drc_name': handle.drc_name,
                'bus_grp_required': bool(handle.bus_grp_required),
            }
        )

    def unplug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        """Cold: nothing to do, the caller deletes or rebuilds the LPAR."""
        if live and isinstance(van.handle, objects.DRCHandle):
            from acc_plug_powervm import dlpar

            lpar = powervm.lpar_uuid(instance_info)
            dlpar.detach(lpar, van.handle, self.config)


def to_io_slots(vans: Iterable[objects.VAN], adapter: Any = None) -> list[Any]:
    """The slots of VANs, for LPARBuilder's attribute phys_io_slots.

    LPARBuilder.rebuild() drops the slots that it is not given: a resize must
    give them too.

    :param vans: an instance's; those without a DRCHandle are left out
    :param adapter: a pypowervm Adapter; None: our own, by the options
    :returns: pypowervm.wrappers.base_partition.IOSlot, in the VANs' order
    :raises HypervisorError: pypowervm is missing, or the log-on failed
    """
    if adapter is None:
        adapter = powervm.adapter()
    from acc_plug_powervm import dlpar

    return [
        dlpar.io_slot(adapter, van.handle)
        for van in vans
        if isinstance(van.handle, objects.DRCHandle)
    ]
