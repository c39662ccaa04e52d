# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Which devices VANs have, by the privileged half's own record.

device_spec can change while a VAN has a device. The VAN keeps the device until
it is released, and gets it again after a reboot of the host. The privileged
half must not trust its caller that there is such a VAN. So it notes each
device when it gives it out, which it does only while device_spec offers the
device. It deletes the note when it takes the device back.

A note allows no more than what was given out: see has(), has_part() and
values(). Unlike the record in /run, the notes survive a reboot.

A note also names the VAN, its instance and the journal that has the VAN, see
os_acc.devices.holder. While there is the note, nobody else gets the device, a
part of it, or the device of which it is a part: see note(), check_function()
and check_noted().
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import json
import logging
import os
from typing import Any
from typing import ParamSpec
from typing import TypeVar

from os_acc import exception
from os_acc.devices import file_place
from os_acc.devices import holder
from os_acc.devices import mdev
from os_acc.devices import operation_lock
from os_acc.devices import pci
from os_acc.devices import root_folder
from os_acc.privileged import overlap
from os_acc.privileged import root_files

_P = ParamSpec('_P')
_T = TypeVar('_T')

LOG = logging.getLogger(__name__)

#: Only root can write in it. Root creates it. It is no option, because a
#: caller must not choose it.
FOLDER = '/var/lib/os-acc-root'

#: Kinds of notes: a whole function, the VFs of a PF, a VF as a vGPU, an mdev,
#: device files, a work queue of Intel DSA or IAA.
PCI, VFS, VGPU, MDEV, FILE = 'pci', 'vfs', 'vgpu', 'mdev', 'file'
IDXD = 'idxd'
#: The kind of the notes of nvme_of_notes, which has its own rules.
NAMESPACE = 'namespace'

_LABELS = {
    PCI: 'PCI function',
    VGPU: 'VF',
    MDEV: 'mdev',
    FILE: 'device file',
    IDXD: 'work queue',
}

# Seconds to wait while other notes are written, which takes milliseconds.
_LOCK_SECONDS = 10.0

#: The files of the notes.
files = root_files.RootFiles(
    lambda: FOLDER, lambda: root_folder.open_at(FOLDER), durable=True
)


def note(kind: str, name: str, what: str, **values: Any) -> None:
    """Note that a device is given out. Call it before the device is touched.

    :param kind: such as PCI
    :param name: the address of the function, or the UUID of the mdev
    :param what: tells another device of the same name: vendor:product of the
        function, or parent and type of the mdev
    :param values: what else the VAN keeps, of types that JSON has. A value
        that the note has already stays, unless it is given here
    :raises DeviceBusy: if another VAN has the device, a part of it, or the
        device of which it is a part
    :raises PrivilegeError: if the note cannot be written. The device must not
        be touched then, because it might never be released
    """
    # Another call may be about to note a part of the device.
    with operation_lock.named('notes', _LOCK_SECONDS):
        known = _read(kind, name)
        before = known if known is not None and known['what'] == what else {}
        wanted = {**before, **values, 'what': what}
        # Many VANs, also of several journals, have VFs of one PF.
        if kind != VFS:
            if (who := holder.current()) is not None:
                wanted['holder'] = who.to_wire()
            _check_free(_note(kind, name, wanted))
        if wanted != known:
            files.write(f'{kind}-{name}', json.dumps(wanted))


def _check_free(wanted: overlap.Note) -> None:
    for each in files.names():
        kind, _, name = each.partition('-')
        if kind in (VFS, NAMESPACE):
            continue  # a note of VFs names no VAN; nvme_of has its own rules
        known = _read(kind, name)
        if known is None:
            continue
        found = _note(kind, name, known)
        if overlap.about_one_device(wanted, found) and found.is_current:
            found.refuse()


def _note(kind: str, name: str, values: dict[str, Any]) -> overlap.Note:
    device = values.get('device')
    within = overlap.containers(device) - {name}
    if kind == FILE:
        within |= overlap.containers(file_place.function_in(name))
        if (found := file_place.mdev_in(name)) is not None:
            within |= {found}
    return overlap.Note(
        kind,
        name,
        f'{_LABELS[kind]} {name}',
        # A work queue's note has its VAN there.
        str(values.get('ids') if kind == IDXD else values['what']),
        within,
        str(values['what']) if kind == FILE else '',
        kind in (PCI, VGPU, MDEV),
        _holder(kind, name, values),
    )


def _holder(
    kind: str, name: str, values: dict[str, Any]
) -> holder.Holder | None:
    if 'holder' not in values:
        return None
    try:
        return holder.from_wire(values['holder'])
    except exception.InvalidRequest as err:
        LOG.warning('%s: %s', files.path(f'{kind}-{name}'), err)
        return None


@contextlib.contextmanager
def locked(function: pci.Function, seconds: float) -> Iterator[int]:
    """Hold the operation lock of a function that no other VAN has.

    Each privileged call that changes a function does so with this lock.

    :param seconds: see operation_lock.held()
    :returns: as operation_lock.held()
    :raises DeviceBusy: if another VAN has it, or the PF of a VF
    """
    with operation_lock.held(function.path, seconds) as lock:
        check_function(function)
        yield lock


def check_function(function: pci.Function) -> None:
    """Check that no other VAN has a function, or the PF of a VF.

    :raises DeviceBusy: if another VAN has it
    """
    for found in _of_whole(function):
        found.refuse()


def why_not(function: pci.Function) -> str | None:
    """Say which other VAN has a function; None if none. See check_function().

    :returns: a clause for an error
    """
    for found in _of_whole(function):
        if found.is_of_another:
            return found.why_not()
    return None


def _of_whole(function: pci.Function) -> Iterator[overlap.Note]:
    """The notes of a function as a whole, and those of the PF of a VF."""
    for address in dict.fromkeys((function.address, function.parent)):
        for kind in (PCI, VGPU):
            known = _read(kind, address)
            if known is not None:
                found = _note(kind, address, known)
                if found.is_current:
                    yield found


def check_noted(kind: str, name: str) -> None:
    """Check that no other VAN has a device by its note.

    :raises DeviceBusy: if another VAN has it
    """
    known = _read(kind, name)
    if known is not None:
        _note(kind, name, known).refuse()


def undoes_own(
    returns: _T,
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Make an undo do nothing if another VAN has the device.

    A VAN that was refused a device is undone all the same. There is nothing
    to undo then, and the device is the other VAN's.

    :param returns: what the undo returns then
    """

    def decorate(undo: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(undo)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            try:
                return undo(*args, **kwargs)
            except exception.DeviceBusy as err:
                who = holder.current()
                if 'noted' not in err.kwargs or who is None or not who.van:
                    raise
                LOG.info('Nothing to undo: %s', err)
                return returns

        return call

    return decorate


def values(kind: str, name: str, what: str) -> dict[str, Any] | None:
    """The values of a note; None if the device is not given out."""
    known = _read(kind, name)
    return known if known is not None and known['what'] == what else None


def noted(kind: str, name: str) -> dict[str, Any] | None:
    """The values of a note, whatever its ``what`` says; None if none."""
    return _read(kind, name)


def is_noted(kind: str, name: str, what: str) -> bool:
    """Whether a device is given out. See note()."""
    return values(kind, name, what) is not None


def of_function(kind: str, function: pci.Function) -> dict[str, Any] | None:
    """The values of the note of a function; None if it is not given out.

    After a change of the firmware, another function of a card can be where a
    VF was, even with its ids. The note of the VF is not about that one.

    :param kind: PCI or VGPU
    """
    known = values(kind, function.address, function.ids)
    if known is None or known.get('device') not in (None, function.parent):
        return None
    return known


def has(function: pci.Function) -> bool:
    """Whether a function is given out itself, as a whole or as a vGPU."""
    return any(of_function(kind, function) for kind in (PCI, VGPU))


def has_part(function: pci.Function) -> bool:
    """Whether a function is given out, or VFs of it are."""
    return (
        has(function)
        or is_noted(VFS, function.address, function.ids)
        or has_vf(function)
    )


def has_vf(pf: pci.Function) -> bool:
    """Whether a VF of a PF is given out."""
    for address in pf.vf_addresses:
        vf = pci.find(address)
        if vf is not None and has(vf):
            return True
    return False


def note_function(function: pci.Function, **more: Any) -> None:
    """Note that a function is given out as a whole. See note()."""
    note(PCI, function.address, function.ids, device=function.parent, **more)


def note_trusted(vf: pci.Function) -> None:
    """Note that a VF that is given out as a whole may stay trusted."""
    if of_function(PCI, vf) is not None:
        note_function(vf, trusted=True)


def note_vfs(pf: pci.Function, number: int) -> None:
    """Note that VANs get VFs of a PF, of which there are a number."""
    known = values(VFS, pf.address, pf.ids) or {}
    numbers = sorted({*known.get('numbers', ()), number})
    note(VFS, pf.address, pf.ids, device=pf.address, numbers=numbers)


def note_vgpu(vf: pci.Function, number: int | None) -> None:
    """Note that a VF is given out as a vGPU.

    :param number: the vGPU type that os-acc sets; None: the operator sets it
    """
    note(VGPU, vf.address, vf.ids, device=vf.parent, number=number)


def note_mdev(device: mdev.Mdev) -> None:
    """Note that a mediated device is given out. See note()."""
    note(MDEV, device.uuid, mdev_text(device), device=device.parent)


def mdev_text(device: mdev.Mdev) -> str:
    """What tells another mediated device with the same UUID."""
    return f'{device.parent} {device.type}'


def of_device(device: str) -> list[tuple[str, str]]:
    """The notes of a device and of its parts: VFs, vGPUs, mdevs, files.

    :param device: a PCI address, the name of another parent of mdevs, or the
        path of a device file
    :returns: kind and name of each
    """
    found = []
    for each in files.names():
        kind, _, name = each.partition('-')
        known = _read(kind, name)
        if (
            name == device
            or name.startswith(f'{device}{file_place.SEPARATOR}')
            or (known and known.get('device') == device)
        ):
            found.append((kind, name))
    return found


def forget_unused(
    device: str,
    is_used: Callable[[str], bool],
    journal: str,
    lost: bool = False,
) -> list[str]:
    """Delete the notes of a device and of its parts that no VAN has.

    That of a namespace stays: it says whose data the namespace may hold. This
    is for os-acc device deny, which reads the journal and runs as root.

    :param device: as in of_device()
    :param is_used: whether a VAN has a PCI function or mdev, by its address or
        UUID
    :param journal: the UUID of the journal that was read for is_used
    :param lost: whether the other journals of this host are lost, so that
        notes of their VANs are deleted, too
    :returns: a clause for each VAN of another journal that keeps a device
    :raises PrivilegeError: if a note cannot be deleted
    """
    kept = []
    for kind, name in of_device(device):
        if kind == NAMESPACE or is_used(name):
            continue
        known = _read(kind, name) or {}
        other = _holder(kind, name, known)
        if other is not None and other.journal != journal and not lost:
            kept.append(
                f'instance {other.instance} keeps {name} (VAN {other.van} of '
                f'the journal {other.path})'
            )
            continue
        files.delete(f'{kind}-{name}')
    return kept


def forget(kind: str, name: str, what: str | None = None) -> None:
    """Delete the note of a device, if there is one.

    The note of another VAN stays.

    :param what: as in note(): the note of another device stays. None: delete
        it whatever it says
    :raises PrivilegeError: if it cannot be deleted
    """
    known = _read(kind, name)
    if known is None or what not in (None, known['what']):
        return
    other, who = _holder(kind, name, known), holder.current()
    if other is None or (who is not None and who.may_use_what(other)):
        files.delete(f'{kind}-{name}')


def _read(kind: str, name: str) -> dict[str, Any] | None:
    """Read a note. What cannot be read or trusted does not count."""
    try:
        text = files.read(f'{kind}-{name}')
        found = None if text is None else json.loads(text)
    except (exception.PrivilegeError, ValueError) as err:
        LOG.warning(
            '%s: %s',
            os.path.join(FOLDER, f'{kind}-{name}'),
            exception.describe(err),
        )
        return None
    return found if isinstance(found, dict) and 'what' in found else None
