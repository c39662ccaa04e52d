# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Operations that an instance with accelerators cannot have.

Nova's API refuses them if the flavor names a device profile of Cyborg. If the
flavor requests accelerators as resources, only the driver can refuse them.
"""

from __future__ import annotations

from typing import Any

from nova import exception as nova_exception
from nova.virt.libvirt import driver

import os_acc
from os_acc_nova import errors


class LibvirtDriver(driver.LibvirtDriver):
    """Nova's libvirt driver, which moves no instance with accelerators."""

    def suspend(self, context: Any, instance: Any) -> None:
        """Refuse it: libvirt cannot save the state of an assigned device."""
        if reason := _reason(instance):
            # Nova sets the instance back to the state that it had.
            raise nova_exception.InstanceFaultRollback(
                nova_exception.InstanceSuspendFailure(reason=reason)
            )
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
        """Refuse a resize or cold migration before anything is done."""
        if reason := _reason(instance):
            raise nova_exception.InstanceFaultRollback(
                nova_exception.MigrationPreCheckError(reason=reason)
            )
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

    def check_can_live_migrate_source(
        self,
        context: Any,
        instance: Any,
        dest_check_data: Any,
        block_device_info: Any = None,
    ) -> Any:
        """Refuse a live migration before anything is done."""
        if reason := _reason(instance):
            raise nova_exception.MigrationPreCheckError(reason=reason)
        return super().check_can_live_migrate_source(
            context, instance, dest_check_data, block_device_info
        )


def _reason(instance: Any) -> str | None:
    """Say why an instance cannot move; None if it has no accelerators."""
    with errors.plugging():
        number = len(os_acc.get_vans(instance.uuid).objects)
    if not number:
        return None
    return f'the instance has {number} accelerators of this host'
