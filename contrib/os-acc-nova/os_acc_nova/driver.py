# SPDX-License-Identifier: Apache-2.0

"""Nova's libvirt driver, with accelerators attached by os-acc.

The driver lets Nova's methods do their work, and adds these steps:

==========================  ================================================
Operation                   What is added
==========================  ================================================
start of nova-compute       os_acc.initialize(); VANs of lost instances are
                            released
spawn, rebuild, unshelve,   the ARQs, and what the flavor requests without
evacuate (target)           Cyborg, are plugged before the domain is defined,
                            and unplugged if the guest does not start
resize, migration           see moving_driver
hard reboot, power on       nothing is unplugged; the VANs are plugged again
                            when the old domain is gone, and what the flavor
                            requests without Cyborg and the journal has not
resume on host boot         the same, from the journal, without ARQs
rescue, unrescue            the guest keeps its devices, from the journal
destroy, cleanup            unplugged when all else is done
periodic look at resources  what os-acc apply could not do is finished, and
                            what moved instances left behind is released
report to Placement         each device is a provider below the compute node
==========================  ================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from typing import Any

from nova import exception as nova_exception
from nova.compute import power_state
import nova.conf
from nova.virt.libvirt import driver

import os_acc
from os_acc import exception
from os_acc import nova as calls
from os_acc import objects
from os_acc_nova import accelerators
from os_acc_nova import allocations as placed
from os_acc_nova import arqs
from os_acc_nova import compatibility
from os_acc_nova import errors
from os_acc_nova import moves
from os_acc_nova import moving_driver
from os_acc_nova import node_devices
from os_acc_nova import operations
from os_acc_nova import reporting
from os_acc_nova import reshape

CONF = nova.conf.CONF

compatibility.check(driver.LibvirtDriver)

# A guest in one of these states has closed its devices.
_STOPPED = (power_state.SHUTDOWN, power_state.CRASHED)


class LibvirtDriver(moving_driver.MovingDriver):
    """Nova's libvirt driver, with accelerators attached by os-acc.

    ARQs never reach Nova's own code, which would make hostdevs and mdevs from
    them: the methods of the base class get accel_info=None.
    """

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        super().__init__(virtapi, read_only)
        self._os_acc_is_starting = True
        self._os_acc_reported = False
        self._os_acc_reports: reporting.Watcher | None = None

    def init_host(self, host: str) -> None:
        """Initialize os-acc. Nova starts guests again after this."""
        super().init_host(host)
        node = self.get_available_nodes()[0]
        try:
            accelerators.initialize(CONF.state_path, node)
            reshape.check_files(CONF.compute.provider_config_location)
        except exception.InvalidRequest as err:
            raise nova_exception.InvalidConfiguration(str(err)) from err
        if os_acc.CONF.os_acc_nova.resource_classes:
            self._os_acc_reports = reporting.Watcher(self.virtapi)
            self._os_acc_reports.start()

    def cleanup_host(self, host: str) -> None:
        """Stop what init_host() has started."""
        if self._os_acc_reports is not None:
            self._os_acc_reports.stop()
        super().cleanup_host(host)

    def update_provider_tree(
        self,
        provider_tree: Any,
        nodename: str,
        allocations: reshape.Allocations | None = None,
    ) -> None:
        """Report each device as a provider below the compute node.

        :raises ReshapeNeeded, ReshapeFailed: see reshape
        """
        before = provider_tree.data(nodename).inventory
        super().update_provider_tree(provider_tree, nodename, allocations)
        reshape.update(
            provider_tree,
            nodename,
            before,
            allocations,
            CONF.compute.provider_config_location,
            self._os_acc_reported,
        )
        self._os_acc_reported = True

    def process_instances_at_startup(
        self, context: Any, instances: Any
    ) -> Any:
        """Release the VANs of instances that are gone.

        :param instances: those of this host in Nova's database, without those
            that were evacuated
        """
        self._os_acc_is_starting = False
        known = {instance.uuid for instance in instances}
        known.update(self.list_instance_uuids())
        accelerators.release_orphans(known)
        return super().process_instances_at_startup(context, instances)

    def get_available_resource(self, nodename: str) -> Any:
        """Finish what os-acc apply could not do while guests had devices.

        Also release what moved instances have left behind. Nova calls it in
        its periodic task, before it looks at the resources.
        """
        os_acc.apply_again()
        moves.finish_lost(self.get_available_nodes())
        return super().get_available_resource(nodename)

    def spawn(
        self,
        context: Any,
        instance: Any,
        image_meta: Any,
        injected_files: Any,
        admin_password: Any,
        allocations: Any,
        network_info: Any = None,
        block_device_info: Any = None,
        power_on: bool = True,
        accel_info: Any = None,
    ) -> None:
        """Plug in _get_guest_config; unplug after a failure.

        Nova calls destroy() after a failed build, but not after a failed
        unshelve.
        """
        with operations.building(
            context,
            instance,
            image_meta,
            allocations,
            self.get_available_nodes(),
            accel_info,
        ):
            super().spawn(
                context,
                instance,
                image_meta,
                injected_files,
                admin_password,
                allocations,
                network_info=network_info,
                block_device_info=block_device_info,
                power_on=power_on,
                accel_info=None,
            )

    def _hard_reboot(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        share_info: Any,
        block_device_info: Any = None,
        accel_info: Any = None,
    ) -> None:
        """Plug again in _get_guest_config, when the old domain is gone.

        power_on() and resume_state_on_host_boot() come here too; the latter
        without accel_info.
        """
        operation = operations.Operation(context, instance.uuid, accel_info)
        with operations.doing(operation):
            super()._hard_reboot(
                context,
                instance,
                network_info,
                share_info,
                block_device_info,
                None,
            )

    def cleanup(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        block_device_info: Any = None,
        destroy_disks: bool = True,
        migrate_data: Any = None,
        destroy_vifs: bool = True,
        destroy_secrets: bool = True,
    ) -> None:
        """Unplug last, unless the guest is about to start again.

        :raises AcceleratorUnplugFailure: if some VANs could not be released.
            This is only logged while nova-compute starts, and removes
            instances that were evacuated, and after a live migration, which
            goes on at the target
        """
        super().cleanup(
            context,
            instance,
            network_info,
            block_device_info,
            destroy_disks,
            migrate_data,
            destroy_vifs,
            destroy_secrets,
        )
        if operations.current(instance) is not None:
            return
        if self._os_acc_is_starting or migrate_data is not None:
            accelerators.unplug_or_log(instance)
            return
        with errors.unplugging():
            accelerators.unplug(instance)
        arqs.delete_after_restart(context, instance)

    def _get_guest_config(
        self,
        instance: Any,
        network_info: Any,
        image_meta: Any,
        disk_info: Any,
        rescue: Any = None,
        block_device_info: Any = None,
        context: Any = None,
        mdevs: Any = None,
        accel_info: Any = None,
        share_info: Any = None,
        old_guest: Any = None,
    ) -> Any:
        """Add the devices of the journal to the guest, as os-acc made them.

        A VAN of a network port gets no device here: the <interface> of its
        VIF is that device.

        :param mdevs: Nova's own. A guest from before os-acc was installed has
            those of its ARQs among them, which are taken out
        """
        ports = arqs.of_ports(network_info)
        vans = self._vans(instance, image_meta, ports)
        ours = accelerators.mdevs(vans)
        guest = super()._get_guest_config(
            instance,
            network_info,
            image_meta,
            disk_info,
            rescue,
            block_device_info,
            context,
            [mdev for mdev in mdevs or () if mdev not in ours],
            None,
            share_info,
            old_guest,
        )
        for device in calls.devices(vans, ports):
            guest.add_device(device)
        return guest

    def _get_all_assigned_mediated_devices(
        self, instance: Any = None
    ) -> dict[str, str]:
        """Leave out the mdevs of os-acc, or name them all as assigned.

        For one instance, Nova asks which of its own mdevs to put into the
        new domain. For all instances, it asks which mdevs it must not give to
        another one: those of os-acc too, also while no domain has them.
        """
        assigned: dict[str, str] = super()._get_all_assigned_mediated_devices(
            instance
        )
        with errors.plugging():
            ours = accelerators.all_mdevs()
        if instance is None:
            return {**assigned, **ours}
        return {
            mdev: owner for mdev, owner in assigned.items() if mdev not in ours
        }

    def _vans(
        self, instance: Any, image_meta: Any, ports: Mapping[str, str]
    ) -> Sequence[objects.VAN]:
        """Return the VANs that the guest must have, plugged.

        :param ports: see arqs.of_ports
        """
        operation = operations.current(instance)
        if operation is None:
            with errors.plugging():
                return accelerators.plugged(instance.uuid)
        if operation.undo is None:
            with errors.plugging(), placed.choosing(instance):
                return self._plug_again(operation, instance, image_meta, ports)
        with errors.building(instance.uuid), placed.choosing(instance):
            return self._plug_for_spawn(
                operation, operation.undo, instance, ports
            )

    def _plug_for_spawn(
        self,
        operation: operations.Operation,
        undo: contextlib.ExitStack,
        instance: Any,
        ports: Mapping[str, str],
    ) -> Sequence[objects.VAN]:
        """Plug the accelerators of a guest that is new on this host.

        :returns: their VANs. What else the journal has of the instance is
            left from an earlier stay on this host, and is not a part of the
            guest
        """
        context = operation.context
        moves.clear(instance)
        wanted = arqs.with_ports(
            context,
            instance.uuid,
            operation.arqs_from_nova,
            ports,
            known=set(),
        )
        requests = arqs.to_requests(context, wanted, ports)
        requests += operation.allocated()
        vans: objects.VANList = undo.enter_context(
            calls.plugged(
                instance, requests, lambda: self._is_running(instance)
            )
        )
        self._warn_of_mdevs(wanted)
        return vans.objects

    def _plug_again(
        self,
        operation: operations.Operation,
        instance: Any,
        image_meta: Any,
        ports: Mapping[str, str],
    ) -> Sequence[objects.VAN]:
        """Plug again what the instance has, and what it lacks.

        The journal takes precedence: an instance keeps its devices even if its
        device profile was changed since. ARQs without a VAN are those of a
        guest from before os-acc was installed; they are plugged now, and
        os-acc makes their mdevs again. What the flavor requests without Cyborg
        is plugged if it has no VAN, so that no guest starts without its
        accelerators.

        :returns: all VANs of the instance
        """
        info = calls.instance_info(instance)
        moves.take_back(instance)
        known = {van.uuid for van in os_acc.replug(info)}
        context = operation.context
        wanted = arqs.with_ports(
            context, instance.uuid, operation.arqs_from_nova, ports, known
        )
        missing = [arq for arq in wanted if arq['uuid'] not in known]
        requests = arqs.to_requests(context, missing, ports)
        requests += placed.missing(
            context, instance, image_meta, self.get_available_nodes(), known
        )
        if requests:
            node_devices.remove(self._host, instance.uuid, missing)
            os_acc.plug(info, requests)
            self._warn_of_mdevs(missing)
        return accelerators.plugged(instance.uuid)

    def _warn_of_mdevs(self, plugged: Sequence[arqs.ARQ]) -> None:
        """Let Nova warn about a GPU that its own options name too."""
        for arq in plugged:
            if arq['attach_handle_type'] == 'MDEV':
                self._warn_if_nova_managed(arq['attach_handle_info'])

    def _is_running(self, instance: Any) -> bool:
        """Say whether the guest may have its devices open."""
        try:
            state = self.get_info(instance).state
        except nova_exception.InstanceNotFound:
            return False
        return state not in _STOPPED
