# SPDX-License-Identifier: Apache-2.0

"""Making and removing mediated devices and vGPUs, as root."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import os
from typing import TypeVar

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
from os_acc.privileged import undo_log
from os_acc.privileged.kernel import mdev_files

_T = TypeVar('_T')


@dataclasses.dataclass(frozen=True)
class Mdev:
    """A mediated device that was made.

    :ivar kept: whether it stays without a VAN, for os-acc apply
    """

    parent: str
    type: str
    kept: bool = False


@dataclasses.dataclass(frozen=True)
class Vgpu:
    """The vGPU type that was set on a VF."""

    number: int


mdevs = undo_log.Records('mdevs', Mdev)
vgpus = undo_log.Records('vgpus', Vgpu)


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

    def act(deadline: waiting.Deadline) -> None:
        _remember(wanted, kept is True)
        mdev_files.create(wanted, deadline.left())

    _with_parent(parent, seconds, f'mdev {uuid} to be created', act)


def _with_parent(
    parent: str,
    seconds: float,
    what: str,
    act: Callable[[waiting.Deadline], _T],
) -> _T:
    """Run an act with the operation lock of a parent device."""
    path = mdev.parent_directory(parent)
    lock = functools.partial(operation_lock.held, path)
    return operation_lock.within(lock, arguments.seconds(seconds), what, act)


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
    """Write the note and the record of a device that is about to be made."""
    known = _made(wanted)
    function_notes.note_mdev(wanted)
    kept = kept or (known is not None and known.kept)
    mdevs.write(wanted.uuid, Mdev(wanted.parent, wanted.type, kept))


def _made(wanted: mdev.Mdev) -> Mdev | None:
    """The record of a device that os-acc has made; None: there is none."""
    there = mdev.find(wanted.uuid)
    if there is None:
        return None
    mdev.check_same(there, wanted)
    known = mdevs.read(wanted.uuid)
    if known is None:
        raise exception.DeviceBusy(
            device=f'mdev {wanted.uuid}',
            reason='somebody else has created it',
        )
    return known


@context.entry
def keep(uuid: str, parent: str, kind: str, seconds: float) -> bool:
    """Make a mediated device that stays without a VAN.

    :returns: False: it was there and kept before
    :raises DeviceBusy: also if another VAN has the parent
    """
    wanted = _wanted(uuid, parent, kind)

    def act(deadline: waiting.Deadline) -> bool:
        known = _made(wanted)
        if known is not None and known.kept:
            return False
        function = pci.find(parent) if pci.is_address(parent) else None
        if function is not None:
            function_notes.check_function(function)
        mdevs.write(uuid, Mdev(parent, kind, kept=True))
        if known is None:
            try:
                mdev_files.create(wanted, deadline.left())
            except exception.ExceptionBase:
                if mdev.find(uuid) is None:
                    mdevs.delete(uuid)
                raise
        return True

    return _with_parent(parent, seconds, f'mdev {uuid} to be created', act)


@context.entry
def let_go(uuid: str, parent: str, kind: str, seconds: float) -> bool:
    """Remove a mediated device that keep() has made, and that no VAN has.

    :returns: False if there is no record that os-acc made it; it then stays
    :raises DeviceBusy: if a VAN has it, or it is open
    """
    wanted = arguments.an_mdev(uuid, parent, kind)

    def act(deadline: waiting.Deadline) -> bool:
        there = mdev.find(uuid)
        if there is not None:
            if there != wanted or mdevs.read(uuid) is None:
                return False
            if notes.any_of(notes.MDEV, uuid) is not None:
                raise exception.DeviceBusy(
                    device=f'mdev {uuid}', reason='a VAN has it'
                )
            _wait_until_closed(uuid, 0)
            mdev_files.remove(uuid, deadline.left())
        mdevs.delete(uuid)
        return True

    return _with_parent(parent, seconds, f'mdev {uuid} to be removed', act)


def _wait_until_closed(uuid: str, seconds: float) -> None:
    path = mdev.directory(uuid)
    device_users.wait_until_closed(path, f'mdev {uuid}', seconds)


@context.entry
def lets_go(uuid: str, parent: str, kind: str) -> bool:
    """Say whether let_go() would remove a device that no VAN has."""
    wanted = arguments.an_mdev(uuid, parent, kind)
    known = mdevs.read(uuid)
    return known is not None and mdev.find(uuid) == wanted


@context.entry
@notes.undoes_own(returns=True)
def remove(
    uuid: str, parent: str, kind: str, release_seconds: float, seconds: float
) -> bool:
    """Remove a mediated device that os-acc made and its guest has closed.

    One that is kept stays: see keep().

    :returns: False if there is no record that os-acc made it; it then stays
    :raises DeviceBusy: if a guest still has it open, or the UUID is another
        device's
    """
    seconds = arguments.seconds(seconds)
    wanted = arguments.an_mdev(uuid, parent, kind)
    release_seconds = arguments.seconds(release_seconds)
    path, text = (
        mdev.parent_directory(parent),
        function_notes.mdev_text(wanted),
    )
    if not os.path.isdir(path):
        # The parent is gone, and its mediated devices with it.
        notes.forget(notes.MDEV, uuid, notes.Cleaned.GONE, text)
        return True
    with operation_lock.held(path, seconds / 2):
        # With the lock held, no creation is under way.
        there = mdev.find(uuid)
        known = mdevs.read(uuid)
        if there is None:
            if known == Mdev(parent, kind):
                mdevs.delete(uuid)
            notes.forget(notes.MDEV, uuid, notes.Cleaned.GONE, text)
            return True
    notes.check_noted(notes.MDEV, uuid)
    if offers.has_nothing_to_undo(
        lambda: offers.check_mdev(wanted, new=False),
        function_notes.of_mdev(wanted),
    ):
        return False
    mdev.check_same(there, wanted)
    if known is None:
        return False
    with operation_lock.held(mdev.directory(uuid), seconds / 2) as lock:
        _wait_until_closed(uuid, release_seconds)
        cleaned = cleaning.run_command(uuid)
        deadline = waiting.Deadline(seconds)

        def act() -> None:
            with operation_lock.held(path, deadline.left(0.5)):
                # keep() may have been called meanwhile.
                now = mdevs.read(uuid)
                if now is not None and not now.kept:
                    mdev_files.remove(uuid, deadline.left())
                    mdevs.delete(uuid)
                notes.forget(notes.MDEV, uuid, cleaned)

        what = f'mdev {uuid} to be removed'
        operation_lock.at_most(lock, act, seconds, what)
    return True


@context.entry
def hold(uuid: str) -> None:
    """Note that a VAN has a mediated device that somebody else has made.

    :raises DeviceNotFound: if there is none, or device_spec does not offer it
    """
    there = arguments.mdev_there(uuid)
    offers.check_mdev(there, new=True)
    function_notes.note_mdev(there)


@context.entry
@notes.undoes_own(returns=None)
def released(uuid: str, release_seconds: float, anew: bool = False) -> None:
    """Wait until a mediated device's guest has closed it, then clean it.

    :param anew: make one that os-acc keeps again, within the same time; one
        that somebody else has made stays as it is
    """
    directory = mdev.directory(uuid)
    release_seconds = arguments.seconds(release_seconds)
    # Otherwise its owner has removed it already.
    notes.check_noted(notes.MDEV, uuid)
    cleaned = notes.Cleaned.GONE
    if (there := mdev.find(uuid)) is not None:
        if offers.has_nothing_to_undo(
            lambda: offers.check_mdev(there, new=False),
            function_notes.of_mdev(there),
        ):
            return
        with operation_lock.held(directory, release_seconds):
            _wait_until_closed(uuid, release_seconds)
            cleaned = cleaning.run_command(uuid)
    known = mdevs.read(uuid)
    if there is not None and known is not None and known.kept and anew is True:
        path = mdev.parent_directory(there.parent)
        with operation_lock.held(path, release_seconds):
            mdev_files.remove(uuid, release_seconds)
            mdev_files.create(there, release_seconds)
    if known is not None and not known.kept:
        # os-acc made it in place of the Cyborg agent: it is the agent's now.
        mdevs.delete(uuid)
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

    def act(deadline: waiting.Deadline) -> None:
        if (now := vgpu.current(address)) not in (vgpu.NONE, number):
            raise exception.DeviceBusy(
                device=f'VF {address}', reason=f'it has vGPU type {now}'
            )
        if for_van:
            function_notes.note_vgpu(function, number)
        if now == vgpu.NONE:
            vgpus.write(address, Vgpu(number))
        mdev_files.set_vgpu_type(address, number, deadline.left())

    what = f'VF {address} to have vGPU type {number}'
    function_notes.change(function, seconds, what, act)


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
    """
    arguments.whole(number, 'number', 2**31, least=1)
    seconds = arguments.seconds(seconds)
    release_seconds = arguments.seconds(release_seconds)
    if _is_gone(address):
        return True
    function = arguments.there(address)
    with function_notes.locked(function, seconds / 2) as lock:
        has_type = vgpu.current(address) == number
        if not has_type or vgpus.read(address) != Vgpu(number):
            notes.forget(notes.VGPU, address, notes.Cleaned.GONE)
            return not has_type
        device_users.wait_until_closed(
            function.path, f'VF {address}', release_seconds
        )
        cleaned = cleaning.run_command(address)
        deadline = waiting.Deadline(seconds)

        def act() -> None:
            mdev_files.set_vgpu_type(address, vgpu.NONE, deadline.left())
            vgpus.delete(address)
            notes.forget(notes.VGPU, address, cleaned)

        what = f'the vGPU type of VF {address} to be cleared'
        operation_lock.at_most(lock, act, seconds, what)
    return True


def _is_gone(address: str) -> bool:
    """Whether the VF of a vGPU is gone: then nobody has it any more."""
    arguments.addresses([address])
    if pci.find(address) is not None:
        return False
    notes.check_noted(notes.VGPU, address)
    vgpus.delete(address)
    notes.forget(notes.VGPU, address, notes.Cleaned.GONE)
    return True


@context.entry
@notes.undoes_own(returns=None)
def released_vgpu(address: str, release_seconds: float) -> None:
    """Wait until a vGPU's guest has closed its VF, then clean it.

    The vGPU type stays set. The VF may be gone.

    :raises DeviceError: if it cannot have a vGPU type: the host may use it
    """
    release_seconds = arguments.seconds(release_seconds)
    if _is_gone(address):
        return
    function = arguments.there(address)
    if offers.has_nothing_to_undo(
        lambda: offers.check_part(function),
        function_notes.of_whole(notes.VGPU, function),
    ):
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
