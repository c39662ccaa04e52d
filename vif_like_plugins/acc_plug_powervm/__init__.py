# SPDX-License-Identifier: Apache-2.0

"""The PowerVM plugin: attaches I/O slots to logical partitions (LPARs)."""

from __future__ import annotations

from collections.abc import Iterable
import json
from typing import Any

from oslo_config import cfg

from acc_plug_powervm import operation
from os_acc import objects
from os_acc import plugin
from os_acc import powervm

OPTS = (
    *powervm.OPTS,
    cfg.IntOpt(
        'update_tries',
        default=10,
        min=1,
        help='How many times to try an update of an LPAR that another '
        'client changes at the same time, or whose server is busy.',
    ),
    cfg.FloatOpt(
        'update_timeout',
        default=120.0,
        min=0,
        help='Seconds after which a failed update of an LPAR is not tried '
        'again.',
    ),
    cfg.FloatOpt(
        'operation_timeout',
        default=300.0,
        min=1,
        help='Seconds that a live plug or unplug waits for the server to add '
        'a slot to an LPAR or to remove it. This takes longer than other '
        'requests, because the server asks the operating system of the LPAR. '
        'The undo of a plug that has waited in vain waits as long again.',
    ),
    cfg.FloatOpt(
        'operation_limit',
        default=3600.0,
        min=0,
        help='Seconds for which the server may go on with such an operation '
        'after operation_timeout. If its answer is lost, os-acc keeps the '
        'slot until the LPAR has it or this time has passed. pypowervm gives '
        'the server the same hour.',
    ),
    cfg.FloatOpt(
        'rmc_timeout',
        default=120.0,
        min=0,
        help='Seconds to wait for the RMC connection of an LPAR that is '
        'running or starting, before a live plug or unplug fails.',
    ),
)


class PowerVMPlugin(plugin.PluginBase):
    """The plugin for PowerVM. guest_config is JSON: the slot and its LPAR.

    With live=False the caller builds the LPAR with the slots from
    to_io_slots(). With live=True the plugin adds the slot to the LPAR (DLPAR);
    a running LPAR needs RMC for that. While the server has not ended a change
    of the LPAR, driver_data has a note of it: see the module operation.
    """

    CONFIG_OPTS = OPTS

    def describe(self) -> objects.HostPluginInfo:
        return objects.HostPluginInfo(
            plugin_name=self.name,
            guest_config_format='powervm-json',
            handle_info=[objects.HostHandleInfo.of('DRCHandle')],
        )

    def plug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        lpar = powervm.lpar_uuid(instance_info)
        handle = objects.DRCHandle.cast(van.handle, f'plugin {self.name!r}')
        if live:
            # The import is here because it loads pypowervm.
            from acc_plug_powervm import dlpar

            dlpar.attach(van, handle, lpar, self.config)
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
        """Remove the slot from the LPAR.

        live=False does nothing: the caller deletes or rebuilds the LPAR. But
        what a live call has begun is undone as a live call would undo it.
        """
        if not isinstance(van.handle, objects.DRCHandle):
            return
        if live or operation.noted(van) is not None:
            from acc_plug_powervm import dlpar

            lpar = powervm.lpar_uuid(instance_info)
            dlpar.detach(van, van.handle, lpar, self.config)


def to_io_slots(vans: Iterable[objects.VAN], adapter: Any = None) -> list[Any]:
    """Build the slots of VANs for LPARBuilder's attribute phys_io_slots.

    A resize must pass them too, because LPARBuilder.rebuild() removes every
    slot that is not in phys_io_slots.

    :param vans: the VANs of one instance; those without a DRCHandle are
        left out
    :param adapter: a pypowervm Adapter; None: the one of powervm.adapter()
    :returns: pypowervm.wrappers.base_partition.IOSlot, in the order of vans
    :raises HypervisorError: if pypowervm is not installed, or the log-on
        fails
    """
    if adapter is None:
        adapter = powervm.adapter()
    from acc_plug_powervm import dlpar

    return [
        dlpar.io_slot(adapter, van.handle)
        for van in vans
        if isinstance(van.handle, objects.DRCHandle)
    ]
