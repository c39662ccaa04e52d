# SPDX-License-Identifier: Apache-2.0

"""Operations that an instance with accelerators cannot have.

Nova's API refuses them if the flavor names a device profile of Cyborg. If the
flavor requests accelerators as resources, only the driver can refuse them.
"""

from __future__ import annotations

from typing import Any

from nova import exception as nova_exception

import os_acc
from os_acc_nova import errors


def check_suspend(instance: Any) -> None:
    """Refuse a suspend: libvirt cannot save the state of such a device.

    :raises InstanceFaultRollback: if the instance has accelerators. Nova sets
        it back to the state that it had
    """
    if reason := _reason(instance):
        raise nova_exception.InstanceFaultRollback(
            nova_exception.InstanceSuspendFailure(reason=reason)
        )


def check_migration(instance: Any) -> None:
    """Refuse a resize or a cold migration.

    :raises InstanceFaultRollback: see check_suspend()
    """
    if reason := _reason(instance):
        raise nova_exception.InstanceFaultRollback(
            nova_exception.MigrationPreCheckError(reason=reason)
        )


def check_live_migration(instance: Any) -> None:
    """Refuse a live migration.

    :raises MigrationPreCheckError: if the instance has accelerators
    """
    if reason := _reason(instance):
        raise nova_exception.MigrationPreCheckError(reason=reason)


def _reason(instance: Any) -> str | None:
    """Say why an instance cannot move; None if it has no accelerators."""
    with errors.plugging():
        number = len(os_acc.get_vans(instance.uuid).objects)
    if not number:
        return None
    return f'the instance has {number} accelerators of this host'
