# SPDX-License-Identifier: Apache-2.0

"""The steps of os_acc.migration in Nova's live migration.

The guest keeps running. By replug, it gives up its accelerators before it
moves, and gets others on the target. In the way live it keeps them: Nova
writes the devices of the target into the guest's XML, as target_mdevs and
pci_dev_map_src_dst say.

    check_can_live_migrate_source        source   offer()
    check_source_migrate_data_at_dest    target   check()
    pre_live_migration                   target   prepared()
    live_migration                       source   hand_over()
    cleanup                              source   released
    post_live_migration_at_destination   target   switch()

After a failure, Nova calls rollback_live_migration_at_source, which takes
them back, and rollback_live_migration_at_destination, which destroys what is
there of the guest, and so releases what is prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import json
from typing import Any

from nova import exception as nova_exception

import os_acc
from os_acc import exception
from os_acc import migration
from os_acc import nova as calls
from os_acc import objects
from os_acc.objects import van as states
from os_acc.placement import flavor
from os_acc.texts import ways
from os_acc_nova import errors
from os_acc_nova import moves

# Keys of target_mdevs in Nova's LibvirtLiveMigrateData, which goes to the
# target and back. Nova looks there for the UUIDs of mdevs only. If the field
# is set, Nova always calls cleanup on the source after a success, and
# rollback_live_migration_at_destination after a failure
# (_live_migration_cleanup_flags in nova/compute/manager.py).
_PLAN, _MIGRATION, _PREPARED = 'os_acc_plan', 'os_acc_migration', 'os_acc'
# For the way "live". _SOURCE: the devices of the guest on the source, by VAN.
# With _MAPPED the target says that Nova can replace them in the XML.
_SOURCE, _MAPPED = 'os_acc_source', 'os_acc_mapped'
# The VANs that the target has prepared. Earlier targets do not say it.
_VANS = 'os_acc_vans'

#: Makes the requests of an instance for the devices that Placement has
#: allocated on this host.
_Allocated = Callable[[], Sequence[objects.AcceleratorRequest]]


def offer(instance: Any, data: Any, post_copy: bool) -> None:
    """Tell the target what it must give.

    :param data: LibvirtLiveMigrateData, which is changed
    :param post_copy: whether Nova lets QEMU switch to post-copy
    :raises MigrationPreCheckError: if the instance cannot move while it runs
    """
    with _checking():
        vans = moves.movable(instance)
        if not vans.objects:
            return
        plan = migration.describe(calls.instance_info(instance))
        asked = flavor.way(instance.flavor.extra_specs)
    way = _way(plan, asked, post_copy)
    _hide_mdevs(data, vans)
    _set(data, _PLAN, json.dumps(plan.obj_to_primitive()))
    if way == ways.LIVE:
        _set(data, _SOURCE, json.dumps({van.uuid: _name(van) for van in vans}))


def check(data: Any, move: Any, allocated: _Allocated) -> None:
    """Check on the target that the devices are there.

    :param data: see offer(); the UUID of the migration is added
    :param move: Nova's Migration
    :raises MigrationPreCheckError: if they are not
    """
    if _get(data, _PLAN) is None:
        return
    with _checking():
        allocated()
    _set(data, _MIGRATION, move.uuid)


@contextlib.contextmanager
def prepared(
    instance: Any, data: Any, allocated: _Allocated
) -> Iterator[None]:
    """Prepare the devices on the target; release them if the block fails.

    :param data: see check()
    :raises AcceleratorPlugFailure: if they cannot be prepared
    """
    plan, uuid = _get(data, _PLAN), _get(data, _MIGRATION)
    if plan is None or uuid is None:
        yield
        return
    with errors.plugging():
        vans = migration.prepare(
            calls.instance_info(instance),
            json.loads(plan),
            uuid,
            requests=allocated(),
        )
    try:
        source = _get(data, _SOURCE)
        _remove(data, _PLAN, _MIGRATION, _SOURCE)
        if source is not None:
            _map(data, json.loads(source), vans)
            _set(data, _MAPPED, uuid)
        _set(data, _VANS, json.dumps([van.uuid for van in vans]))
        _set(data, _PREPARED, uuid)
        yield
    except BaseException:
        moves.take_back_or_log(instance)
        raise


def hand_over(instance: Any, data: Any) -> None:
    """Give up the accelerators on the source.

    By replug, they are detached from the guest.

    :param data: what pre_live_migration has returned on the target
    :raises AcceleratorUnplugFailure: if the guest does not let go of them, or
        the target has not prepared others, or one was plugged meanwhile. The
        guest keeps them
    """
    with errors.unplugging():
        if not os_acc.get_vans(instance.uuid).objects:
            return
        uuid = _get(data, _PREPARED)
        if uuid is None:
            raise errors.AcceleratorUnplugFailure(
                reason='the target host has prepared none; its compute driver '
                'must be os_acc.LibvirtDriver'
            )
        named = _get(data, _VANS)
        migration.hand_over(
            calls.instance_info(instance),
            uuid,
            live=_get(data, _MAPPED) is None,
            vans=None if named is None else json.loads(named),
        )


def switch(instance: Any) -> None:
    """Attach the prepared accelerators to the guest, on the target.

    A guest that has moved with its devices has them already. To attach them
    again changes nothing.

    :raises AcceleratorPlugFailure: if it fails. A hard reboot tries again
    """
    with errors.plugging():
        vans = os_acc.get_vans(instance.uuid)
        for uuid in moves.moving(vans, states.INCOMING):
            migration.switch(calls.instance_info(instance), uuid, live=True)


def _way(
    plan: objects.MigrationPlan, asked: str | None, post_copy: bool
) -> str:
    """Choose the way, or refuse what the accelerators or the flavor forbid.

    QEMU migrates no device if it may switch to post-copy.
    """
    wanted = f'its flavor has {flavor.MIGRATION}={asked}'
    if plan.obstacles:
        reason = '; '.join(plan.obstacles)
    elif plan.way == ways.COLD:
        reason = 'its accelerators cannot be detached from a running guest'
    elif asked == ways.COLD:
        reason = wanted
    elif asked == ways.LIVE and plan.way != ways.LIVE:
        reason = f'{wanted}, and its accelerators move by {plan.way} only'
    elif asked == ways.LIVE and post_copy:
        reason = (
            f'{wanted}, and its host has [libvirt] '
            'live_migration_permit_post_copy = true, with which QEMU migrates '
            'no device'
        )
    elif plan.way == ways.LIVE and not post_copy:
        return asked or ways.LIVE
    else:
        return ways.REPLUG
    raise nova_exception.MigrationPreCheckError(
        reason=f'{reason}. Stop the instance, and migrate it cold'
    )


def _map(data: Any, source: Mapping[str, str], vans: objects.VANList) -> None:
    """Tell Nova which devices to write into the guest's XML.

    :param source: what the guest has on the source, by the UUIDs of the VANs
    :raises AcceleratorPlugFailure: if a device of this host cannot go on with
        the state of the source's
    """
    unable = [van.uuid for van in vans if not van.live_migratable]
    if unable:
        raise errors.AcceleratorPlugFailure(
            reason='on this host, the kernel cannot migrate the devices of '
            f'{", ".join(unable)}'
        )
    functions = {}
    if 'pci_dev_map_src_dst' in data:
        functions = dict(data.pci_dev_map_src_dst)
    for van in vans:
        if isinstance(van.handle, objects.MdevHandle):
            _set(data, source[van.uuid], _name(van))
        else:
            functions[source[van.uuid]] = _name(van)
    data.pci_dev_map_src_dst = functions


def _hide_mdevs(data: Any, vans: objects.VANList) -> None:
    """Take os-acc's mediated devices from those that Nova wants to move.

    Nova would make others on the target, by its own options.
    """
    if 'source_mdev_types' in data:
        ours = {_name(van) for van in vans}
        data.source_mdev_types = {
            name: kind
            for name, kind in data.source_mdev_types.items()
            if name not in ours
        }


def _name(van: objects.VAN) -> str:
    """The PCI address or the mdev UUID of a VAN, as the guest's XML has it."""
    identity: str = van.handle.identity if van.handle is not None else ''
    return identity.partition('/')[2]


@contextlib.contextmanager
def _checking() -> Iterator[None]:
    """Raise errors in the block as MigrationPreCheckError."""
    try:
        yield
    except exception.ExceptionBase as err:
        raise nova_exception.MigrationPreCheckError(
            reason=errors.reason(err)
        ) from err
    except errors.AcceleratorPlugFailure as err:
        raise nova_exception.MigrationPreCheckError(reason=str(err)) from err


def _mdevs(data: Any) -> dict[str, str]:
    return dict(data.target_mdevs) if 'target_mdevs' in data else {}


def _get(data: Any, key: str) -> str | None:
    return _mdevs(data).get(key)


def _set(data: Any, key: str, value: str) -> None:
    data.target_mdevs = {**_mdevs(data), key: value}


def _remove(data: Any, *keys: str) -> None:
    data.target_mdevs = {
        key: value for key, value in _mdevs(data).items() if key not in keys
    }
