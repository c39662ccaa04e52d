# SPDX-License-Identifier: Apache-2.0

"""Functions that store data: emptied before anybody else sees the data.

A note that survives a reboot says that a guest may have written to a function:
see write_note(). It is there from before a guest gets the function until the
function was emptied. The record of this boot says the same, and also whether a
function is known to be empty. If one of the two says that the function is not
empty, it is not.

Callers hold the operation lock of the function.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Annotated

from os_acc import exception
from os_acc.availability import storage
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


@dataclasses.dataclass(frozen=True)
class _Disk(store.Said):
    instance: Annotated[str, str]


_notes = store.Store(notes.files, _Disk.of, damaged=_Disk(UNKNOWN))

# What is being emptied in this process: the progress from 0 to 1 (None:
# unknown) and what is done, by address.
_progress: dict[str, tuple[float | None, str]] = {}


def data_of_others(function: pci.Function, instance_uuid: str) -> str | None:
    """Say that a function may hold the data of another instance.

    :returns: a clause with the remedy; None if it holds no such data
    """
    if not storage.is_storage(function):
        return None
    holder = _holder(function)
    if holder in (None, instance_uuid):
        return None
    who = f'instance {holder}'
    if holder == UNKNOWN:
        who = 'an unknown instance'
    return (
        f'it may still hold the data of {who}, because it was not erased '
        'since. If os-acc van list shows a VAN that has it, release that '
        'VAN: os-acc recover or os-acc unplug. If none has it, erase it: '
        f'os-acc device free {function.address}'
    )


def check(function: pci.Function, instance_uuid: str) -> None:
    """Check that an instance can get a function, before it is touched.

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
    if (reason := data_of_others(function, instance_uuid)) is not None:
        raise exception.DeviceBusy(
            device=f'PCI function {function.address}', reason=reason
        )


def hand_out(function: pci.Function, instance_uuid: str) -> None:
    """Check that a function can be emptied, before a guest gets it.

    Then note that the guest may have written to it. Does nothing for a
    function that stores no data.

    :param function: it is bound to VFIO
    :raises DeviceBusy: if it may hold the data of another instance
    """
    if not storage.is_storage(function):
        return
    unused = _holder(function) is None
    try:
        check(function, instance_uuid)
        if _has_command(function):
            # Also if its entry of device_spec has gone when it is released.
            function_notes.note_function(function, command_empties=True)
        else:
            nvme.check(function.address, function.is_vf)
        write_note(function, instance_uuid)
    except BaseException:
        # Neither in this boot nor before has os-acc given it to a guest since
        # it was emptied, so it can be bound to its driver again.
        if unused:
            mark_empty(function)
        raise
    undo_log.storage.write(
        function.address,
        undo_log.Storage(function.ids, empty=False, instance=instance_uuid),
    )


def empty(function: pci.Function) -> None:
    """Erase what a guest has written to a function.

    If there is no built-in way, cleaning_command has to do it, if device_spec
    says that it does.

    :param function: it is bound to VFIO, and nobody has it open
    :raises CleaningFailed: if the function is not empty afterwards, or there
        is no way to empty it
    :raises Timeout: if that took longer than storage_cleaning_timeout
    """
    if not storage.is_storage(function):
        return
    address, device = function.address, f'PCI function {function.address}'
    reason: object = 'os-acc itself can erase only NVMe drives'
    if mates := storage.group_mates(function):
        reason = f'it shares its IOMMU group with {", ".join(mates)}'
    elif storage.is_nvme(function):

        def tell(fraction: float | None, text: str) -> None:
            _progress[address] = fraction, text

        try:
            emptied = nvme.empty(
                address,
                function.is_vf,
                offers.configuration().os_acc.storage_cleaning_timeout,
                tell,
            )
        except nvme_function.Unsupported as err:
            reason = err.kwargs['reason']
        except exception.DeviceError as err:
            raise exception.CleaningFailed(
                device=device, reason=f'not erased: {err}'
            ) from err
        else:
            LOG.info('%s was erased: %s', device, emptied)
            return
        finally:
            _progress.pop(address, None)
    if not _has_command(function):
        raise exception.CleaningFailed(
            device=device,
            reason=f'{reason}. No command erases it either: see '
            'cleaning_command and command_empties',
        )
    LOG.warning('%s is left to cleaning_command alone: %s', device, reason)


def progress(address: str) -> tuple[float | None, str] | None:
    """How far empty() has emptied a function; None: it is not doing so."""
    return _progress.get(address)


def mark_empty(function: pci.Function) -> None:
    """Record that a function holds no data of a guest."""
    if storage.is_storage(function):
        # Until both are done, the function counts as not empty.
        delete_note(function)
        undo_log.storage.write(
            function.address, undo_log.Storage(function.ids, empty=True)
        )


def is_empty(function: pci.Function) -> bool:
    """Whether a function is known to hold no data of a guest."""
    if not storage.is_storage(function):
        return True
    known = undo_log.storage.of(function)
    return known is not None and known.empty and not was_handed_out(function)


def was_handed_out(function: pci.Function) -> bool:
    """Whether a guest may have written to it since it was last emptied."""
    return _holder(function) is not None


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


def _holder(function: pci.Function) -> str | None:
    """The instance whose data a function may hold.

    :returns: its UUID; UNKNOWN if it is unknown which one; None
        if no guest has had it since it was last emptied
    """
    noted = noted_holder(function)
    if noted is not None:
        return noted
    known = undo_log.storage.of(function)
    if known is None or known.empty:
        return None
    return known.instance or UNKNOWN


def note_name(function: pci.Function) -> str:
    """The name of a function's note in notes.files.

    It has vendor:product, so that the note of a drive that was pulled out
    stays while another one is at its address.
    """
    return f'disk-{function.address}-{function.ids}'


def noted_holder(function: pci.Function) -> str | None:
    """The instance whose data a function may hold.

    :returns: its UUID; UNKNOWN if there is a note that says nothing; None if
        there is no note
    """
    found = _notes.read(note_name(function))
    return None if found is None else found.instance


def write_note(function: pci.Function, instance_uuid: str) -> None:
    """Note that a function may hold the data of an instance.

    Call it before a guest gets the function.

    :raises PrivilegeError: if the note cannot be written. Without it, the
        function could be given to another instance after a reboot before it
        was emptied
    """
    _notes.keep(note_name(function), _Disk(instance_uuid))


def delete_note(function: pci.Function) -> None:
    """Delete the note of a function that was emptied, if there is one."""
    # A file system that is read-only refuses to delete even what is not there.
    if noted_holder(function) is not None:
        _notes.delete(note_name(function))
