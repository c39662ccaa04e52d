# SPDX-License-Identifier: Apache-2.0

"""The steps of os_acc.migration in Nova's moves, and what cannot move.

An instance can move if its flavor requests all of its accelerators from
Placement. Nova's API refuses flavors that name a device profile of Cyborg.

Nova stops the guest for a resize and a cold migration:

    migrate_disk_and_power_off   source   hand_over()
    finish_migration             target   plugged, as by a spawn
    confirm_migration            source   finish()
    finish_revert_migration      source   take_back()

A resize on the same host has one journal. So finish_migration releases what
the old flavor had, and plugs what the new flavor requests.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import logging
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects as nova_objects
from oslo_utils import timeutils

import os_acc
from os_acc import exception
from os_acc import log
from os_acc import migration
from os_acc import nova as calls
from os_acc import objects
from os_acc.objects import van as states
from os_acc.placement import flavor
from os_acc_nova import accelerators
from os_acc_nova import allocations
from os_acc_nova import errors

LOG = logging.getLogger(__name__)


def check_suspend(instance: Any) -> None:
    """Refuse a suspend: libvirt cannot save the state of such a device.

    :raises InstanceFaultRollback: if the instance has accelerators. Nova sets
        it back to the state that it had
    """
    with errors.plugging():
        number = len(os_acc.get_vans(instance.uuid).objects)
    if number:
        raise nova_exception.InstanceFaultRollback(
            nova_exception.InstanceSuspendFailure(
                reason=f'the instance has {number} accelerators of this host'
            )
        )


def movable(instance: Any) -> objects.VANList:
    """Read the accelerators of an instance that is to move.

    :raises JournalError: if the journal cannot be read
    :raises MigrationPreCheckError: if its flavor does not request all of
        them: then the target would not get the others
    """
    vans = os_acc.get_vans(instance.uuid)
    others = [v.uuid for v in vans if not flavor.is_of_flavor(v.uuid)]
    if others:
        raise nova_exception.MigrationPreCheckError(
            reason='its flavor does not request these of its accelerators: '
            + ', '.join(others)
        )
    return vans


def is_on_one_host(move: Any) -> bool:
    """Say whether an instance is resized on the host where it is.

    :param move: Nova's Migration
    """
    return bool(move.source_node == move.dest_node)


@contextlib.contextmanager
def handed_over(context: Any, instance: Any) -> Iterator[None]:
    """Hand over the accelerators; take them back if the block fails.

    :param instance: it is moved with its disks, and stopped in the block
    :raises InstanceFaultRollback: if they cannot be handed over. The guest
        runs with them, and Nova sets it back to the state that it had
    """
    try:
        given = _hand_over(context, instance)
    except exception.ExceptionBase as err:
        raise nova_exception.InstanceFaultRollback(
            nova_exception.MigrationPreCheckError(reason=errors.reason(err))
        ) from err
    except nova_exception.MigrationPreCheckError as err:
        raise nova_exception.InstanceFaultRollback(err) from err
    try:
        yield
    except BaseException:
        if given:
            take_back_or_log(instance)
        raise


def _hand_over(context: Any, instance: Any) -> bool:
    """Hand over the accelerators; say whether there is something to do."""
    vans = movable(instance)
    if not vans.objects:
        return False
    move = nova_objects.Migration.get_by_id_and_instance(
        context, instance.migration_context.migration_id, instance.uuid
    )
    if is_on_one_host(move):
        return False
    migration.hand_over(
        calls.instance_info(instance),
        move.uuid,
        vans=[van.uuid for van in vans],
    )
    return True


def take_back(instance: Any) -> None:
    """Undo what has begun on this host to move an instance.

    For a guest that Nova starts or keeps on this host. On the source, what
    was handed over is the instance's again. On the target, what is prepared
    is released.

    :raises ExceptionBase: see os_acc.migration.abort
    """
    info = calls.instance_info(instance)
    for uuid in sorted(moving(os_acc.get_vans(instance.uuid))):
        migration.abort(info, uuid)


def take_back_or_log(instance: Any) -> exception.ExceptionBase | None:
    """See take_back(). An error is logged, and returned.

    The next start of the guest by Nova tries again.
    """
    try:
        take_back(instance)
    except exception.ExceptionBase as err:
        log.about(LOG, instance.uuid).error(
            'The guest did not get its accelerators back: %s. A hard reboot '
            'tries again',
            err,
        )
        return err
    return None


def finish(instance: Any, move_uuid: str) -> None:
    """Release on the source what an instance has left behind.

    :param move_uuid: the UUID of Nova's Migration
    :raises ExceptionBase: see os_acc.migration.finish
    """
    vans = os_acc.get_vans(instance.uuid)
    if move_uuid in moving(vans, states.OUTGOING):
        migration.finish(calls.instance_info(instance), move_uuid)


def clear(instance: Any) -> None:
    """Release what earlier moves of an instance have left on this host.

    For a guest that is built here: an instance is evacuated, perhaps, and its
    source died while it moved to this host.

    :raises ExceptionBase: see end()
    """
    for state in states.MOVING:
        vans = os_acc.get_vans(instance.uuid)
        for uuid in sorted(moving(vans, state)):
            end(calls.instance_info(instance), uuid, state)


def end(info: objects.InstanceInfo, move_uuid: str, state: str) -> None:
    """Release on this host the accelerators of an instance that has moved.

    The guest is not on this host.

    :param state: the state of their VANs
    :raises ExceptionBase: see os_acc.migration.finish and abort
    """
    if state == states.OUTGOING:
        migration.finish(info, move_uuid)
    else:
        migration.abort(info, move_uuid)


def finish_lost(nodes: Collection[str]) -> None:
    """Release what instances left behind if Nova gave up their move.

    Nova calls no method of the driver on the source if the guest does not
    start on the target. Nova then deletes the allocation of the source, so
    that another instance may get its devices. If a host died while an
    instance moved, and the instance was evacuated to a third host, Nova calls
    neither of the two hosts of the move. What an instance that was deleted
    has on its target is released after migration_timeout. What others move,
    such as the command os-acc migrate, is theirs. An error is only logged.

    :param nodes: the names of the compute nodes of this host
    """
    try:
        vans = os_acc.get_vans()
    except exception.ExceptionBase as err:
        LOG.error('What moved instances left behind is unknown: %s', err)
        return
    found: dict[tuple[str, str, str], list[objects.VAN]] = {}
    for van in vans:
        if (
            van.owner == accelerators.OWNER
            and van.migration_uuid
            and van.state in states.MOVING
        ):
            key = van.instance_uuid, van.migration_uuid, van.state
            found.setdefault(key, []).append(van)
    for (instance_uuid, move_uuid, state), moved in found.items():
        logger = log.about(LOG, instance_uuid)
        try:
            if not _is_lost(instance_uuid, move_uuid, moved, nodes):
                continue
            info = objects.InstanceInfo(uuid=instance_uuid)
            end(info, move_uuid, state)
        except (exception.ExceptionBase, nova_exception.NovaException) as err:
            logger.error('what it has left behind was not released: %s', err)
            continue
        logger.warning(
            'its accelerators on this host were released: it is not on this '
            'host, and migration %s has ended',
            move_uuid,
        )


def _is_lost(
    instance_uuid: str,
    move_uuid: str,
    vans: Sequence[objects.VAN],
    nodes: Collection[str],
) -> bool:
    """Say whether an instance is elsewhere, and cannot come back.

    :param vans: the VANs of the move; all have the same state
    """
    context = nova_context.get_admin_context()
    outgoing = vans[0].state == states.OUTGOING
    # As long as Nova may revert the move, it has the source's allocation. It
    # is read before the instance: a revert first writes that the instance is
    # here, and then takes the allocation from the move.
    is_over = outgoing and not allocations.read(context, move_uuid)
    try:
        instance = nova_objects.Instance.get_by_uuid(context, instance_uuid)
    except nova_exception.InstanceNotFound:
        # It was deleted while it moved: Nova does not call the target then.
        return is_over or (not outgoing and _has_expired(vans))
    if instance.node in nodes:
        return False
    return is_over or _is_at_a_third_host(context, instance, move_uuid)


def _has_expired(vans: Sequence[objects.VAN]) -> bool:
    """Whether nobody has come for incoming VANs within migration_timeout."""
    now = timeutils.utcnow(with_timezone=True)
    newest = max(van.created_at or now for van in vans)
    seconds: float = os_acc.CONF.os_acc.migration_timeout
    return (now - newest).total_seconds() > seconds


def _is_at_a_third_host(context: Any, instance: Any, move_uuid: str) -> bool:
    """Say whether an instance is neither on the source nor on the target."""
    try:
        move = nova_objects.Migration.get_by_uuid(context, move_uuid)
    except nova_exception.MigrationNotFound:
        return False
    ends = (move.source_compute, move.dest_compute)
    return all(ends) and instance.host not in ends


def moving(vans: objects.VANList, *expected: str) -> set[str]:
    """The UUIDs of the migrations of VANs that are being moved.

    :param expected: only of those in these states
    """
    return {
        van.migration_uuid
        for van in vans
        if van.migration_uuid and van.state in (expected or states.MOVING)
    }
