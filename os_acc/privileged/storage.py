# SPDX-License-Identifier: Apache-2.0

"""Functions that store data: emptied before anybody else sees the data.

A note that survives a reboot says that a guest may have written to a function:
see write_note(). It is there from before a guest gets the function until the
function was emptied. The record of this boot says the same, and also whether a
function is known to be empty. If one of the two says that the function is not
empty, it is not.

The note of an NVMe drive names the drive by its serial number, so it counts
wherever the drive is: after a reboot, the drives of two instances can have
each other's addresses. If it is unknown which drive is there, the note of its
address counts.

Callers hold the operation lock of the function.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import logging
import re
from typing import Annotated

from os_acc import exception
from os_acc.availability import storage
from os_acc.kernel import nvme as kernel_nvme
from os_acc.kernel import pci
from os_acc.privileged import function_notes
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import store
from os_acc.privileged import undo_log
from os_acc.privileged.nvme import cleaning as nvme
from os_acc.privileged.nvme import function as nvme_function
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)

#: In place of the UUID of an instance, if it is unknown which one it was.
UNKNOWN = 'unknown'

_PREFIX = 'disk-'


class OtherDrive(exception.DeviceNotFound):
    """Another drive than that of a VAN is at its address."""


@dataclasses.dataclass(frozen=True)
class _Disk(store.Said):
    instance: Annotated[str, str]
    drive: str | None = None  # see kernel.nvme.drive_id(); None: unknown


_notes = store.Store(notes.files, _Disk.of, damaged=_Disk(UNKNOWN))

# What is being emptied in this process: the progress from 0 to 1 (None:
# unknown) and what is done, by address.
_progress: dict[str, tuple[float | None, str]] = {}


def data_of_others(
    function: pci.Function, instance_uuid: str, drive: str | None = None
) -> str | None:
    """Say that a function may hold the data of another instance.

    :param drive: which drive it is; None: see drive_of()
    :returns: a clause with the remedy; None if it holds no such data
    """
    if not storage.is_storage(function):
        return None
    for holder in _holders(function, drive):
        if holder == instance_uuid:
            continue
        who = f'instance {holder}'
        if holder == UNKNOWN:
            who = 'an unknown instance'
        return (
            f'it may still hold the data of {who}, because it was not erased '
            'since. If os-acc van list shows a VAN that has it, release that '
            'VAN: os-acc recover or os-acc unplug. If none has it, erase it: '
            f'os-acc device free {function.address}'
        )
    return None


def check_own(
    function: pci.Function, instance_uuid: str | None, drive: str | None
) -> None:
    """Check that the drive at an address is the one that a VAN has got.

    :param instance_uuid: the instance of the VAN; None: there is no VAN
    :param drive: which drive it is; None: unknown
    :raises OtherDrive: if another drive has come there since
    """
    if instance_uuid is None:
        return
    known = function_notes.of_function(notes.PCI, function)
    had = None if known is None else known.drive
    others = [
        note.instance
        for _, note in _noted(function, drive)
        if note.drive is not None and note.instance != instance_uuid
    ]
    if drive is not None and (others or not _is_same(had, drive)):
        whose = (
            f' and holds the data of instance {others[0]}' if others else ''
        )
        raise OtherDrive(
            wanted=f'drive {had or "of a VAN"} at {function.address}',
            reason=f'drive {drive} is at that address now{whose}',
        )


def check(
    function: pci.Function, instance_uuid: str, drive: str | None = None
) -> None:
    """Check that an instance can get a function, before it is touched.

    :param drive: which drive it is; None: see drive_of()
    :raises DeviceBusy: if it may hold the data of another instance
    :raises DeviceError: if it stores data, and there is no way to empty it
    """
    if not storage.is_storage(function):
        return
    refusal = storage.refusal(
        function, device_spec.BIND_OS_ACC, _has_command(function)
    )
    if refusal is not None:
        raise exception.DeviceError(
            device=f'PCI function {function.address}', reason=refusal.text
        )
    reason = data_of_others(function, instance_uuid, drive)
    if reason is not None:
        raise exception.DeviceBusy(
            device=f'PCI function {function.address}', reason=reason
        )


def hand_out(
    function: pci.Function, instance_uuid: str, drive: str | None = None
) -> None:
    """Check that a function can be emptied, before a guest gets it.

    Then note that the guest may have written to it. Does nothing for a
    function that stores no data.

    :param function: it is bound to VFIO
    :param drive: which drive it is, if that was known before; None: the
        controller of an NVMe drive is asked
    :raises DeviceBusy: if it may hold the data of another instance
    :raises OtherDrive: see check_own()
    """
    if not storage.is_storage(function):
        return
    before = _holders(function, drive)
    try:
        check(function, instance_uuid, drive)
        if _has_command(function):
            # Also if its entry of device_spec has gone when it is released.
            function_notes.note_function(function, command_empties=True)
        else:
            drive = nvme.check(function.address, function.is_vf)
            before = _holders(function, drive)
            check(function, instance_uuid, drive)
            check_own(function, instance_uuid, drive)
            function_notes.note_function(function, drive=drive)
        write_note(function, instance_uuid, drive)
    except BaseException:
        # Neither in this boot nor before has os-acc given it to a guest since
        # it was emptied, so it can be bound to its driver again.
        if not before:
            mark_empty(function, drive)
        elif drive is not None:
            # device free finds it at this address then.
            _record_used(function, before[0], drive)
        raise
    _record_used(function, instance_uuid, drive)


def _record_used(
    function: pci.Function, instance_uuid: str, drive: str | None
) -> None:
    undo_log.storage.write(
        function.address,
        undo_log.Storage(function.ids, False, instance_uuid, drive),
    )


def empty(
    function: pci.Function, instance_uuid: str | None, drive: str | None
) -> str | None:
    """Erase what a guest has written to a function.

    If there is no built-in way, cleaning_command has to do it, if device_spec
    says that it does.

    :param function: it is bound to VFIO, and nobody has it open
    :param instance_uuid: the instance that had it; None: unknown
    :param drive: which drive it is; None: the controller of an NVMe drive is
        asked
    :returns: which drive was emptied; None: unknown
    :raises OtherDrive: see check_own(); nothing is erased
    :raises CleaningFailed: if the function is not empty afterwards, or there
        is no way to empty it
    :raises Timeout: if that took longer than storage_cleaning_timeout
    """
    if not storage.is_storage(function):
        return None
    address, device = function.address, f'PCI function {function.address}'
    reason: object = 'os-acc itself can erase only NVMe drives'
    if mates := storage.group_mates(function):
        reason = f'it shares its IOMMU group with {", ".join(mates)}'
    elif storage.is_nvme(function):

        def tell(fraction: float | None, text: str) -> None:
            _progress[address] = fraction, text

        def check_drive(found: str | None) -> None:
            nonlocal drive
            drive = found
            check_own(function, instance_uuid, drive)

        try:
            emptied = nvme.empty(
                address,
                function.is_vf,
                offers.configuration().os_acc.storage_cleaning_timeout,
                tell,
                check_drive,
            )
        except nvme_function.Unsupported as err:
            reason = err.kwargs['reason']
        except exception.DeviceError as err:
            raise exception.CleaningFailed(
                device=device, reason=f'not erased: {err}'
            ) from err
        else:
            LOG.info('%s was erased: %s', device, emptied)
            return drive
        finally:
            _progress.pop(address, None)
    if not _has_command(function):
        raise exception.CleaningFailed(
            device=device,
            reason=f'{reason}. No command erases it either: see '
            'cleaning_command and command_empties',
        )
    LOG.warning('%s is left to cleaning_command alone: %s', device, reason)
    return drive


def progress(address: str) -> tuple[float | None, str] | None:
    """How far empty() has emptied a function; None: it is not doing so."""
    return _progress.get(address)


def mark_empty(function: pci.Function, drive: str | None) -> None:
    """Record that a function holds no data of a guest."""
    if storage.is_storage(function):
        # Until both are done, the function counts as not empty.
        delete_notes(function, drive)
        undo_log.storage.write(
            function.address,
            undo_log.Storage(function.ids, empty=True, drive=drive),
        )


def is_empty(function: pci.Function) -> bool:
    """Whether a function is known to hold no data of a guest."""
    if not storage.is_storage(function):
        return True
    known = _record(function, drive_of(function))
    return known is not None and known.empty and not was_handed_out(function)


def was_handed_out(function: pci.Function) -> bool:
    """Whether a guest may have written to it since it was last emptied."""
    return bool(_holders(function, None))


def drive_of(function: pci.Function) -> str | None:
    """Which drive a function is; None: unknown.

    While the function is bound to VFIO, the record of this boot knows it.
    """
    if (shown := kernel_nvme.drive_of(function)) is not None:
        return shown
    known = undo_log.storage.of(function)
    return None if known is None else known.drive


def check_empty(function: pci.Function) -> None:
    """Check that a driver of the host may see what a function stores."""
    if not is_empty(function):
        raise exception.CleaningFailed(
            device=f'PCI function {function.address}',
            reason="it may hold a guest's data, so it is not bound to a host "
            'driver before it is erased',
        )


def _has_command(function: pci.Function) -> bool:
    """Whether a command empties a function. No caller can decide this."""
    return storage.has_command(offers.entry(function), offers.configuration())


def _holders(function: pci.Function, drive: str | None) -> list[str]:
    """The instances whose data a function may hold.

    :param drive: which drive it is; None: see drive_of()
    :returns: their UUIDs; UNKNOWN if it is unknown which one; empty if no
        guest has had it since it was last emptied
    """
    drive = drive or drive_of(function)
    if noted := [note.instance for _, note in _noted(function, drive)]:
        return noted
    known = _record(function, drive)
    if known is None or known.empty:
        return []
    return [known.instance or UNKNOWN]


def _record(
    function: pci.Function, drive: str | None
) -> undo_log.Storage | None:
    """The record of this boot, if it is about the drive that is there."""
    known = undo_log.storage.of(function)
    if known is None or not _is_same(known.drive, drive):
        return None
    return known


def _is_same(noted: str | None, drive: str | None) -> bool:
    """Whether two drives at one address can be the same."""
    return noted is None or drive is None or noted == drive


def _noted(
    function: pci.Function, drive: str | None
) -> Iterator[tuple[str, _Disk]]:
    """The notes about a function, and their names.

    A note that names the drive counts at whatever address it was written.
    """
    for name in _notes.names():
        if not name.startswith(_PREFIX):
            continue
        address, _, rest = name.removeprefix(_PREFIX).partition('-')
        if rest.partition('-')[0] != function.ids:
            continue
        if (note := _notes.read(name)) is None:
            continue
        here = address == function.address and _is_same(note.drive, drive)
        if here or (note.drive is not None and note.drive == drive):
            yield name, note


def note_name(function: pci.Function, drive: str | None = None) -> str:
    """The name of a function's note in notes.files.

    It has vendor:product and the drive, so that the note of a drive that was
    pulled out stays while another one is at its address.
    """
    name = f'{_PREFIX}{function.address}-{function.ids}'
    if drive is None:
        return name
    return f'{name}-{re.sub("[^A-Za-z0-9]", "_", drive)}'


def noted_holder(function: pci.Function) -> str | None:
    """The instance whose data a function may hold.

    :returns: its UUID; UNKNOWN if there is a note that says nothing; None if
        there is no note
    """
    drive = drive_of(function)
    return next((n.instance for _, n in _noted(function, drive)), None)


def write_note(
    function: pci.Function, instance_uuid: str, drive: str | None
) -> None:
    """Note that a function may hold the data of an instance.

    Call it before a guest gets the function.

    :raises PrivilegeError: if the note cannot be written. Without it, the
        function could be given to another instance after a reboot before it
        was emptied
    """
    _notes.keep(note_name(function, drive), _Disk(instance_uuid, drive))
    earlier = note_name(function)  # of an earlier version
    if drive is not None and _notes.read(earlier) is not None:
        _notes.delete(earlier)


def delete_notes(function: pci.Function, drive: str | None) -> None:
    """Delete the notes about a function that was emptied."""
    # A file system that is read-only refuses to delete even what is not there.
    for name, _ in list(_noted(function, drive)):
        _notes.delete(name)
