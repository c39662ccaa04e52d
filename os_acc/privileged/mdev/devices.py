# SPDX-License-Identifier: Apache-2.0

"""Making and removing mediated devices and vGPUs, as root."""

from __future__ import annotations

import os

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.kernel import vgpu
from os_acc.privileged import arguments
from os_acc.privileged import cleaning
from os_acc.privileged import context
from os_acc.privileged import device_users
from os_acc.privileged import function_notes
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import operation_lock
from os_acc.privileged.kernel import mdev_files
from os_acc.privileged.kernel import vgpu_type
from os_acc.privileged.mdev import records


@context.entry
def create(
    uuid: str, parent: str, kind: str, seconds: float, kept: bool = False
) -> None:
    """Make a mediated device for a VAN. See mdev_files.create().

    :param kept: whether it stays when the VAN has gone: see keep()
    :raises DeviceNotFound: if device_spec does not offer it
    :raises DeviceBusy: also if it exists already and os-acc did not make it
    """
    wanted = _wanted(uuid, parent, kind)
    seconds = arguments.seconds(seconds)
    deadline = waiting.Deadline(seconds)

    def act() -> None:
        path = mdev.parent_directory(parent)
        with operation_lock.held(path, deadline.left(0.5)):
            _remember(wanted, kept is True)
            mdev_files.create(wanted, deadline.left())

    waiting.at_most(act, seconds, f'mdev {uuid} to be created')


@context.entry
def announce(uuid: str, parent: str, kind: str, seconds: float) -> None:
    """Note that Cyborg is about to make a mediated device for os-acc.

    remove() then removes it.

    :raises DeviceNotFound: if device_spec does not offer it
    :raises DeviceBusy: if it exists already
    """
    wanted = _wanted(uuid, parent, kind)
    path = mdev.parent_directory(parent)
    with operation_lock.held(path, arguments.seconds(seconds)):
        _remember(wanted)


def _wanted(uuid: str, parent: str, kind: str) -> mdev.Mdev:
    wanted = arguments.an_mdev(uuid, parent, kind)
    offers.check_mdev(wanted, new=True)
    mdev.check_type(parent, kind)
    return wanted


def _remember(wanted: mdev.Mdev, kept: bool = False) -> None:
    """Write the record of a device that is about to be made."""
    known = _made(wanted)
    function_notes.note_mdev(wanted)
    kept = kept or (known is not None and known.kept)
    _record(wanted, kept)


def _made(wanted: mdev.Mdev) -> records.Mdev | None:
    """The record of a device that os-acc has made; None: there is none.

    :raises DeviceBusy: if it exists and os-acc did not make it
    """
    there = mdev.find(wanted.uuid)
    if there is None:
        return None
    mdev.check_same(there, wanted)
    known = records.mdevs.read(wanted.uuid)
    if known is None:
        raise exception.DeviceBusy(
            device=f'mdev {wanted.uuid}',
            reason='somebody else has created it',
        )
    return known


def _record(wanted: mdev.Mdev, kept: bool) -> None:
    records.mdevs.write(
        wanted.uuid, records.Mdev(wanted.parent, wanted.type, kept)
    )


@context.entry
def keep(uuid: str, parent: str, kind: str, seconds: float) -> bool:
    """Make a mediated device that stays without a VAN.

    :returns: False: it was there and kept before
    :raises: as create()
    """
    wanted = _wanted(uuid, parent, kind)
    seconds = arguments.seconds(seconds)
    deadline = waiting.Deadline(seconds)

    def act() -> bool:
        path = mdev.parent_directory(parent)
        with operation_lock.held(path, deadline.left(0.5)):
            known = _made(wanted)
            if known is not None and known.kept:
                return False
            _record(wanted, kept=True)
            if known is None:
                try:
                    mdev_files.create(wanted, deadline.left())
                except exception.ExceptionBase:
                    if mdev.find(uuid) is None:
                        records.mdevs.delete(uuid)
                    raise
            return True

    return waiting.at_most(act, seconds, f'mdev {uuid} to be created')


@context.entry
def let_go(uuid: str, parent: str, kind: str, seconds: float) -> bool:
    """Remove a mediated device that keep() has made, and that no VAN has.

    :returns: False if there is no record that os-acc made it; it then stays
    :raises DeviceBusy: if a VAN has it, or it is open
    """
    wanted = arguments.an_mdev(uuid, parent, kind)
    seconds = arguments.seconds(seconds)
    deadline = waiting.Deadline(seconds)
    path, directory = mdev.parent_directory(parent), mdev.directory(uuid)

    def act() -> bool:
        with operation_lock.held(path, deadline.left(0.5)):
            there = mdev.find(uuid)
            if there is not None:
                if there != wanted or records.mdevs.read(uuid) is None:
                    return False
                if notes.find(notes.MDEV, uuid) is not None:
                    raise exception.DeviceBusy(
                        device=f'mdev {uuid}', reason='a VAN has it'
                    )
                device_users.wait_until_closed(directory, f'mdev {uuid}', 0)
                mdev_files.remove(uuid, deadline.left())
            records.mdevs.delete(uuid)
            return True

    return waiting.at_most(act, seconds, f'mdev {uuid} to be removed')


@context.entry
def lets_go(uuid: str, parent: str, kind: str) -> bool:
    """Say whether let_go() would remove a device that no VAN has."""
    wanted = arguments.an_mdev(uuid, parent, kind)
    known = records.mdevs.read(uuid)
    return known is not None and mdev.find(uuid) == wanted


@context.entry
@notes.undoes_own(returns=True)
def remove(
    uuid: str, parent: str, kind: str, release_seconds: float, seconds: float
) -> bool:
    """Remove a mediated device that os-acc made and its guest has closed.

    One that is kept stays: see keep().

    :param release_seconds: how long the guest may take to close it
    :returns: False if there is no record that os-acc made it; it then stays
    :raises DeviceBusy: if a guest still has it open, or the UUID is another
        device's
    """
    seconds = arguments.seconds(seconds)
    wanted = arguments.an_mdev(uuid, parent, kind)
    release_seconds = arguments.seconds(release_seconds)
    path, directory = mdev.parent_directory(parent), mdev.directory(uuid)
    if not os.path.isdir(path):
        # The parent is gone, and its mediated devices with it.
        notes.forget(
            notes.MDEV,
            uuid,
            notes.Cleaned.GONE,
            function_notes.mdev_text(wanted),
        )
        return True
    with operation_lock.held(path, seconds / 2):
        # With the lock held, no creation is under way.
        there = mdev.find(uuid)
        known = records.mdevs.read(uuid)
        if there is None:
            if known == records.Mdev(parent, kind):
                records.mdevs.delete(uuid)
            notes.forget(
                notes.MDEV,
                uuid,
                notes.Cleaned.GONE,
                function_notes.mdev_text(wanted),
            )
            return True
    notes.check_noted(notes.MDEV, uuid)
    if offers.has_nothing_to_undo(
        lambda: offers.check_mdev(wanted, new=False)
    ):
        return False
    mdev.check_same(there, wanted)
    if known is None:
        return False
    with operation_lock.held(directory, seconds / 2) as lock:
        device_users.wait_until_closed(
            directory, f'mdev {uuid}', release_seconds
        )
        cleaned = cleaning.run_command(uuid)
        deadline = waiting.Deadline(seconds)

        def act() -> None:
            with operation_lock.held(path, deadline.left(0.5)):
                if not known.kept:
                    mdev_files.remove(uuid, deadline.left())
                    records.mdevs.delete(uuid)
                notes.forget(notes.MDEV, uuid, cleaned)

        waiting.at_most(
            operation_lock.kept_until(lock, act),
            seconds,
            f'mdev {uuid} to be removed',
        )
    return True


@context.entry
def hold(uuid: str) -> None:
    """Note that a VAN has a mediated device that somebody else has made.

    :raises DeviceNotFound: if there is none, or device_spec does not offer it
    """
    mdev.directory(uuid)
    if (there := mdev.find(uuid)) is None:
        raise exception.DeviceNotFound(
            wanted=f'mdev {uuid}', reason='this host has none'
        )
    offers.check_mdev(there, new=True)
    function_notes.note_mdev(there)


@context.entry
@notes.undoes_own(returns=None)
def released(uuid: str, release_seconds: float, anew: bool = False) -> None:
    """Wait until a mediated device's guest has closed it, then clean it.

    :param anew: make one that os-acc keeps again, within the same time; one
        that somebody else has made stays as it is
    :raises DeviceBusy: if the guest still has it open
    """
    mdev.directory(uuid)
    release_seconds = arguments.seconds(release_seconds)
    # Otherwise its owner has removed it already.
    notes.check_noted(notes.MDEV, uuid)
    cleaned = notes.Cleaned.GONE
    if (there := mdev.find(uuid)) is not None:
        if offers.has_nothing_to_undo(
            lambda: offers.check_mdev(there, new=False)
        ):
            return
        directory = mdev.directory(uuid)
        with operation_lock.held(directory, release_seconds):
            device_users.wait_until_closed(
                directory, f'mdev {uuid}', release_seconds
            )
            cleaned = cleaning.run_command(uuid)
    known = records.mdevs.read(uuid)
    if there is not None and known is not None and known.kept and anew is True:
        path = mdev.parent_directory(there.parent)
        with operation_lock.held(path, release_seconds):
            mdev_files.remove(uuid, release_seconds)
            mdev_files.create(there, release_seconds)
    if known is not None and not known.kept:
        # os-acc made it in place of the Cyborg agent: it is the agent's now.
        records.mdevs.delete(uuid)
    notes.forget(notes.MDEV, uuid, cleaned)


@context.entry
def set_vgpu_type(
    address: str, number: int, seconds: float, for_van: bool = True
) -> None:
    """Set the vGPU type of a VF.

    :param for_van: False: ahead of time, for no VAN
    :raises DeviceBusy: if the VF has another type
    :raises DeviceNotFound: if device_spec does not offer the VF for this type
    """
    function = arguments.there(address)
    arguments.whole(number, 'number', 2**31, least=1)
    seconds = arguments.seconds(seconds)
    offers.check_vgpu(function, number)
    deadline = waiting.Deadline(seconds)

    def act() -> None:
        with function_notes.locked(function, deadline.left(0.5)):
            if (now := vgpu.current(address)) not in (vgpu.NONE, number):
                raise exception.DeviceBusy(
                    device=f'VF {address}', reason=f'it has vGPU type {now}'
                )
            if for_van:
                function_notes.note_vgpu(function, number)
            if now == vgpu.NONE:
                records.vgpus.write(address, records.Vgpu(number))
            vgpu_type.set_type(address, number, deadline.left())

    waiting.at_most(act, seconds, f'VF {address} to have vGPU type {number}')


@context.entry
@notes.undoes_own(returns=True)
def clear_vgpu_type(
    address: str, number: int, release_seconds: float, seconds: float
) -> bool:
    """Clear the vGPU type of a VF, once its guest has closed the VF.

    The VF may be gone, and its type with it.

    :param number: the type that os-acc has set. If the VF has another type,
        somebody else has set it, and nothing is changed
    :returns: False if the VF has this type, but there is no record that
        os-acc set it; it then stays
    :raises DeviceBusy: if a guest still has the VF open
    """
    arguments.whole(number, 'number', 2**31, least=1)
    seconds = arguments.seconds(seconds)
    release_seconds = arguments.seconds(release_seconds)
    if _is_gone(address):
        return True
    function = arguments.there(address)
    with function_notes.locked(function, seconds / 2) as lock:
        known = records.vgpus.read(address)
        if vgpu.current(address) != number:
            notes.forget(notes.VGPU, address, notes.Cleaned.GONE)
            return True
        if known is None or known.number != number:
            notes.forget(notes.VGPU, address, notes.Cleaned.GONE)
            return False
        device_users.wait_until_closed(
            function.path, f'VF {address}', release_seconds
        )
        cleaned = cleaning.run_command(address)
        deadline = waiting.Deadline(seconds)

        def act() -> None:
            vgpu_type.set_type(address, vgpu.NONE, deadline.left())
            records.vgpus.delete(address)
            notes.forget(notes.VGPU, address, cleaned)

        waiting.at_most(
            operation_lock.kept_until(lock, act),
            seconds,
            f'the vGPU type of VF {address} to be cleared',
        )
    return True


def _is_gone(address: str) -> bool:
    """Whether the VF of a vGPU is gone: then nobody has it any more."""
    arguments.addresses([address])
    if pci.find(address) is not None:
        return False
    notes.check_noted(notes.VGPU, address)
    records.vgpus.delete(address)
    notes.forget(notes.VGPU, address, notes.Cleaned.GONE)
    return True


@context.entry
@notes.undoes_own(returns=None)
def released_vgpu(address: str, release_seconds: float) -> None:
    """Wait until a vGPU's guest has closed its VF, then clean it.

    The vGPU type stays set. The VF may be gone.

    :raises DeviceBusy: if the guest still has it open
    :raises DeviceError: if it cannot have a vGPU type: the host may use it
    """
    release_seconds = arguments.seconds(release_seconds)
    if _is_gone(address):
        return
    function = arguments.there(address)
    if offers.has_nothing_to_undo(lambda: offers.check_part(function)):
        return
    with function_notes.locked(function, release_seconds):
        if not vgpu.is_vgpu_function(address):
            raise exception.DeviceError(
                device=f'PCI function {address}',
                reason="NVIDIA's driver has no vGPU on it, so it is not "
                'cleaned as one: the host may use it',
            )
        device_users.wait_until_closed(
            function.path, f'VF {address}', release_seconds
        )
        cleaned = cleaning.run_command(address)
    notes.forget(notes.VGPU, address, cleaned)
