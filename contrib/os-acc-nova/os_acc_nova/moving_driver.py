# SPDX-License-Identifier: Apache-2.0

"""Nova's libvirt driver, whose instances move with their accelerators.

Each method lets Nova's own do its work, and adds the step of moves or
live_moves.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from nova.compute import utils as compute_utils
from nova.compute import vm_states
import nova.conf
from nova.virt.libvirt import driver

from os_acc import objects
from os_acc_nova import accelerators
from os_acc_nova import allocations as placed
from os_acc_nova import errors
from os_acc_nova import live_moves
from os_acc_nova import moves
from os_acc_nova import operations

CONF = nova.conf.CONF


class MovingDriver(driver.LibvirtDriver):
    """The moves of Nova's libvirt driver, with accelerators."""

    def suspend(self, context: Any, instance: Any) -> None:
        """Refuse to suspend an instance with accelerators."""
        moves.check_suspend(instance)
        super().suspend(context, instance)

    def migrate_disk_and_power_off(
        self,
        context: Any,
        instance: Any,
        dest: Any,
        flavor: Any,
        network_info: Any,
        block_device_info: Any = None,
        timeout: Any = 0,
        retry_interval: Any = 0,
    ) -> Any:
        """Hand over first: a failure then leaves the guest as it is."""
        with moves.handed_over(context, instance):
            return super().migrate_disk_and_power_off(
                context,
                instance,
                dest,
                flavor,
                network_info,
                block_device_info,
                timeout,
                retry_interval,
            )

    def finish_migration(
        self,
        context: Any,
        migration: Any,
        instance: Any,
        disk_info: Any,
        network_info: Any,
        image_meta: Any,
        resize_instance: Any,
        allocations: Any,
        block_device_info: Any = None,
        power_on: bool = True,
        share_info: Any = None,
    ) -> None:
        """Plug what the new flavor requests; unplug it after a failure."""
        if moves.is_on_one_host(migration):
            with errors.unplugging():
                accelerators.unplug(instance)
        with operations.building(
            context,
            instance,
            image_meta,
            allocations,
            self.get_available_nodes(),
        ):
            super().finish_migration(
                context,
                migration,
                instance,
                disk_info,
                network_info,
                image_meta,
                resize_instance,
                allocations,
                block_device_info=block_device_info,
                power_on=power_on,
                share_info=share_info,
            )

    def confirm_migration(
        self, context: Any, migration: Any, instance: Any, network_info: Any
    ) -> None:
        """Release on the source what the instance has left behind."""
        super().confirm_migration(context, migration, instance, network_info)
        with errors.unplugging():
            moves.finish(instance, migration.uuid)

    def finish_revert_migration(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        migration: Any,
        block_device_info: Any = None,
        power_on: bool = True,
        share_info: Any = None,
    ) -> None:
        """Take back what was handed over, and plug what is missing then.

        It is taken back first: after a kill of nova-compute, the method of
        Nova 34 fails, because the instance has no old_flavor yet. A resize to
        another cell destroys the guest on its old host without asking this
        driver (_prep_snapshot_based_resize_at_source in
        nova/compute/manager.py).
        """
        with errors.plugging():
            moves.take_back(instance)
        operation = operations.Operation(context, instance.uuid, None)
        with operations.doing(operation):
            super().finish_revert_migration(
                context,
                instance,
                network_info,
                migration,
                block_device_info=block_device_info,
                power_on=power_on,
                share_info=share_info,
            )

    def check_can_live_migrate_source(
        self,
        context: Any,
        instance: Any,
        dest_check_data: Any,
        block_device_info: Any = None,
    ) -> Any:
        """Tell the target which accelerators it must give."""
        data = super().check_can_live_migrate_source(
            context, instance, dest_check_data, block_device_info
        )
        live_moves.offer(
            instance, data, CONF.libvirt.live_migration_permit_post_copy
        )
        return data

    def check_source_migrate_data_at_dest(
        self,
        ctxt: Any,
        instance: Any,
        migrate_data: Any,
        migration: Any,
        limits: Any,
        allocs: Any,
    ) -> Any:
        """Check that the devices that Placement has allocated are there."""
        with placed.choosing(instance):
            live_moves.check(
                migrate_data,
                migration,
                lambda: placed.to_requests(
                    ctxt,
                    instance,
                    instance.image_meta,
                    allocs,
                    self.get_available_nodes(),
                ),
            )
        return super().check_source_migrate_data_at_dest(
            ctxt, instance, migrate_data, migration, limits, allocs
        )

    def pre_live_migration(
        self,
        context: Any,
        instance: Any,
        block_device_info: Any,
        network_info: Any,
        disk_info: Any,
        migrate_data: Any,
    ) -> Any:
        """Prepare the devices that Placement has allocated."""

        def allocated() -> Sequence[objects.AcceleratorRequest]:
            return placed.missing(
                context,
                instance,
                instance.image_meta,
                self.get_available_nodes(),
                (),
            )

        with (
            placed.choosing(instance),
            live_moves.prepared(instance, migrate_data, allocated),
        ):
            return super().pre_live_migration(
                context,
                instance,
                block_device_info,
                network_info,
                disk_info,
                migrate_data,
            )

    def live_migration(
        self,
        context: Any,
        instance: Any,
        dest: Any,
        post_method: Callable[..., Any],
        recover_method: Callable[..., Any],
        block_migration: Any = False,
        migrate_data: Any = None,
    ) -> None:
        """Hand over the accelerators, and migrate the guest.

        If it does not let go of them, it stays, and Nova rolls back. Nova
        would set it to ERROR after an exception here.
        """
        try:
            live_moves.hand_over(instance, migrate_data)
        except errors.AcceleratorUnplugFailure as err:
            compute_utils.add_instance_fault_from_exc(context, instance, err)
            recover_method(context, instance, dest, migrate_data=migrate_data)
            return
        super().live_migration(
            context,
            instance,
            dest,
            post_method,
            recover_method,
            block_migration,
            migrate_data,
        )

    def rollback_live_migration_at_source(
        self, context: Any, instance: Any, migrate_data: Any
    ) -> None:
        """Take back the accelerators; attach them if they were detached.

        A failure becomes the instance's fault only: Nova's rollback on the
        target comes next.
        """
        super().rollback_live_migration_at_source(
            context, instance, migrate_data
        )
        if (err := moves.take_back_or_log(instance)) is not None:
            compute_utils.add_instance_fault_from_exc(
                context,
                instance,
                errors.AcceleratorPlugFailure(reason=errors.reason(err)),
            )

    def post_live_migration_at_destination(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        block_migration: Any = False,
        block_device_info: Any = None,
    ) -> None:
        """Make the prepared accelerators the instance's, and attach them.

        If it fails, the instance is in ERROR, with the cause as its fault.
        After an exception here, Nova would keep the source's allocation.
        """
        super().post_live_migration_at_destination(
            context,
            instance,
            network_info,
            block_migration,
            block_device_info,
        )
        try:
            live_moves.switch(instance)
        except errors.AcceleratorPlugFailure as err:
            compute_utils.add_instance_fault_from_exc(context, instance, err)
            # Nova saves the instance next.
            instance.vm_state = vm_states.ERROR
