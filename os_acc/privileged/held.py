# SPDX-License-Identifier: Apache-2.0

"""Which devices VANs have, by the privileged half's own record.

device_spec can change while a VAN has a device. The VAN keeps the device until
it is released, and gets it again after a reboot of the host. The privileged
half must not trust its caller that there is such a VAN. So it notes each
device when it gives it out, which it does only while device_spec offers the
device. It deletes the note when it takes the device back.

A note allows no more than what was given out: see has(), has_part() and
values(). Unlike the record in /run, the notes survive a reboot.

A note also names the VAN, its instance and the journal that has the VAN, see
os_acc.claims.holder. While there is the note, nobody else gets the device, a
part of it, or the device of which it is a part: see note(), check_function()
and check_noted().
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import enum
import functools
import itertools
import json
import logging
import os
from typing import Any
from typing import ParamSpec
from typing import TypeVar

from os_acc import exception
from os_acc.claims import holder
from os_acc.claims import nodes
from os_acc.kernel import file_place
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.kinds.fpga import ids as fpga_ids
from os_acc.privileged import noted
from os_acc.privileged import operation_lock
from os_acc.privileged import root_files
from os_acc.privileged import root_folder
from os_acc.spec import device_spec

_P = ParamSpec('_P')
_T = TypeVar('_T')

LOG = logging.getLogger(__name__)

#: Only root can write in it. Root creates it. It is no option, because a
#: caller must not choose it.
FOLDER = '/var/lib/os-acc-root'

#: Kinds of notes: see noted.
PCI, VFS, VGPU, MDEV = noted.PCI, noted.VFS, noted.VGPU, noted.MDEV
FILE, IDXD, NAMESPACE = noted.FILE, noted.IDXD, noted.NAMESPACE


class Cleaned(enum.Enum):
    """What was done about a VAN's data before its note is deleted.

    Each deletion of a note has to say it, so that no kind of device can leave
    ``[os_acc] cleaning_command`` out. See cleaning.run_command().
    """

    COMMAND = 'cleaning_command has succeeded, or none is set'
    EARLIER = 'an earlier call has cleaned it, and it has been closed since'
    GONE = 'what the VAN had is not there any more'
    NEVER_GIVEN = 'no instance has had it'
    SHARED = 'other VANs have it, too'


# Stands for a note that cannot be read.
_UNREADABLE: dict[str, Any] = {'what': ''}

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


def _check_free(wanted: noted.Note, *kinds: str) -> None:
    """Check that no other VAN has a device, a part of it, or what it is in.

    A note of an earlier version names no VAN. What it is about may be this
    VAN's; what is beside that is kept from everybody.

    :param kinds: of the notes that count; none: all
    :raises DeviceBusy: if another VAN has it
    """
    others = [
        each
        for each in _all()
        if each.kind in (kinds or noted.LABELS)
        and (
            each.is_of_another
            or (each.holder is None and not each.is_about(wanted))
        )
    ]
    for found in noted.Rule(others, wanted).in_the_way(wanted):
        if _is_current(found.note):
            raise found.note.error(found.both)


def _all() -> Iterator[noted.Note]:
    """The notes of what VANs have.

    A note of VFs names no VAN, and that of a namespace may be left of a VAN
    that was released. A note that cannot be read is one of them.
    """
    for each in files.names():
        kind, _, name = each.partition('-')
        if kind not in noted.LABELS or (known := _load(kind, name)) is None:
            continue
        if kind != NAMESPACE or known.get('given', True):
            yield _note(kind, name, known)


def of_others() -> list[noted.Note]:
    """The notes of other VANs than the one for which this call is made."""
    return [each for each in _all() if each.is_of_another]


def _is_current(found: noted.Note) -> bool:
    """Whether a function is the one of which a note says who has it.

    After a reboot, VFs are not there until their VAN gets them back.
    """
    if found.ids == '':
        return True
    function = pci.find(found.function)
    if function is not None or found.kind == IDXD:
        return function is None or function.ids == found.ids
    pf = pci.find(found.device)
    return pf is not None and (
        is_noted(VFS, pf.address, pf.ids) or _read(VFS, pf.address) is None
    )


def _note(kind: str, name: str, values: dict[str, Any]) -> noted.Note:
    return noted.Note(kind, name, values, _holder(kind, name, values))


def _holder(
    kind: str, name: str, values: dict[str, Any]
) -> holder.Holder | None:
    if values.get('holder') is None:
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


def rule() -> noted.Rule:
    """The rule about the notes of others: for why_not()."""
    return noted.Rule(of_others())


def why_not(
    function: pci.Function, others: noted.Rule | None = None
) -> str | None:
    """Say which other VAN has a function, a part of it, or the PF of a VF.

    :param others: rule(); pass it when asking about many functions
    :returns: a clause for an error; None if no other VAN has any of that
    """
    for found in _sharing(function, rule() if others is None else others):
        return found.note.why_not(found.both)
    return None


def needs_vfs(pf: pci.Function) -> list[str]:
    """Say which other VANs have VFs of a PF: a clause for each VF.

    The journal of the caller does not know of them, and while their guest is
    off, such a VF may be bound to no driver.
    """
    others = rule()
    return [
        f'VF {vf.address}: {found.note.why_not()}'
        for vf in map(pci.find, pf.vf_addresses)
        if vf is not None
        for found in itertools.islice(_sharing(vf, others, pf.address), 1)
    ]


def _sharing(
    function: pci.Function, others: noted.Rule, but: str = ''
) -> Iterator[noted.InTheWay]:
    """The notes of what shares hardware with a function.

    Another function of its IOMMU group or of its FPGA does not.

    :param but: a device in which that does not matter, the PF of a VF
    """
    whole = {'what': function.ids, 'device': function.parent}
    for found in others.in_the_way(
        _note(PCI, function.address, whole),
        lambda node: not nodes.is_beside(node) and node.name != but,
    ):
        if _is_current(found.note):
            yield found


def _of_whole(function: pci.Function) -> Iterator[noted.Note]:
    """The notes of a function as a whole, and those of the PF of a VF."""
    for address in dict.fromkeys((function.address, function.parent)):
        for kind in (PCI, VGPU):
            known = _read(kind, address)
            if known is not None:
                found = _note(kind, address, known)
                if _is_current(found):
                    yield found


def check_namespace(wwn: str) -> None:
    """Check that no other VAN has a device file of a namespace.

    :raises DeviceBusy: if another VAN has one
    """
    _check_free(_note(NAMESPACE, wwn, {'what': wwn}), FILE)


def note_namespace(wwn: str, values: dict[str, Any]) -> None:
    """Write what nvme_of.notes notes of a namespace.

    :raises DeviceBusy: if it is given out, and another VAN has a file of it
    :raises PrivilegeError: if the note cannot be written
    """
    with operation_lock.named('notes', _LOCK_SECONDS):
        if values['given']:
            check_namespace(wwn)
        text = json.dumps(values)
        if files.read(f'{NAMESPACE}-{wwn}') != text:
            files.write(f'{NAMESPACE}-{wwn}', text)


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


def any_values(kind: str, name: str) -> dict[str, Any] | None:
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


def note_function(
    function: pci.Function, spec: device_spec.Spec | None = None, **more: Any
) -> None:
    """Note that a function is given out as a whole. See note().

    :param spec: the entry of device_spec for it
    """
    if fpga_ids.is_fpga(function, spec):
        more['fpga'] = True
    note(PCI, function.address, function.ids, device=function.parent, **more)


def renew(function: pci.Function) -> bool:
    """Note who has a function now, if it is given out already.

    :returns: False if it is not
    """
    for kind in (PCI, VGPU):
        if is_noted(kind, function.address, function.ids):
            note(kind, function.address, function.ids)
            return True
    return False


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
    is_lost: Callable[[holder.Holder | None], bool],
) -> list[str]:
    """Delete the notes of a device and of its parts that no VAN has.

    That of a namespace stays: it says whose data the namespace may hold. If
    the journal is lost, the namespace is not given any more. This is for
    os-acc device deny, which reads the journal and runs as root.

    :param device: as in of_device()
    :param is_used: whether a VAN has a PCI function or mdev, by its address or
        UUID
    :param journal: the UUID of the journal that was read for is_used
    :param is_lost: whether the other journal that has a VAN is lost, so that
        the note is deleted, too; None: the note does not tell the journal
    :returns: a clause for each VAN of another journal that keeps a device
    :raises PrivilegeError: if a note cannot be deleted
    """
    kept: list[str] = []
    # Whoever keeps a VF needs the note of how many VFs there are, too.
    for kind, name in sorted(of_device(device), key=lambda each: each[0]):
        if is_used(name) or (kind == VFS and kept):
            continue
        known = _load(kind, name) or _UNREADABLE
        other = _holder(kind, name, known)
        foreign = other is not None and other.journal != journal
        if (foreign or known is _UNREADABLE) and not is_lost(other):
            kept.append(
                f'the note {kind}-{name} cannot be read, so it stays'
                if other is None
                else f'instance {other.instance} keeps {name} (VAN '
                f'{other.van} of the journal {other.path})'
            )
        elif kind == NAMESPACE:
            if foreign:
                text = json.dumps({**known, 'given': False})
                files.write(f'{kind}-{name}', text)
        else:
            files.delete(f'{kind}-{name}')
    return kept


def adopt(who: holder.Holder, device: str) -> None:
    """Note who has a device since before notes said so.

    It does so, too, if the note cannot be read any more, and if the journal of
    the VAN has another UUID or path since. A note of another VAN stays.

    :param device: as the attach handle names it: an address, a UUID, ...
    """
    with operation_lock.named('notes', _LOCK_SECONDS):
        for kind in noted.LABELS:
            known = _load(kind, device)
            if known is None:
                continue
            before = _holder(kind, device, known)
            if before is not None and (
                before == who
                or (before.instance, before.van) != (who.instance, who.van)
            ):
                continue
            # Of a namespace, it is nvme_of_notes that says what is unknown.
            if kind != NAMESPACE or known is not _UNREADABLE:
                text = json.dumps({**known, 'holder': who.to_wire()})
                files.write(f'{kind}-{device}', text)


def forget(
    kind: str, name: str, cleaned: Cleaned, what: str | None = None
) -> None:
    """Delete the note of a device, if there is one.

    The note of another VAN stays.

    :param cleaned: what was done about the data of the VAN
    :param what: as in note(): the note of another device stays. None: delete
        it whatever it says
    :raises PrivilegeError: if it cannot be deleted
    """
    known = _read(kind, name)
    if known is None or (
        known['what'] != '' and what not in (None, known['what'])
    ):
        return
    other = _holder(kind, name, known)
    if other is None or not holder.is_of_another(other):
        files.delete(f'{kind}-{name}')
        LOG.debug('%s is released: %s', name, cleaned.value)


def _read(kind: str, name: str) -> dict[str, Any] | None:
    """Read a note. What cannot be read or trusted allows nothing."""
    found = _load(kind, name)
    return None if found is _UNREADABLE else found


def _load(kind: str, name: str) -> dict[str, Any] | None:
    """Read a note.

    :returns: None if there is none; _UNREADABLE if it cannot be read or
        trusted
    """
    try:
        text = files.read(f'{kind}-{name}')
        if text is None:
            return None
        found = json.loads(text)
    except (exception.PrivilegeError, ValueError) as err:
        LOG.warning(
            '%s: %s',
            os.path.join(FOLDER, f'{kind}-{name}'),
            exception.describe(err),
        )
        return _UNREADABLE
    return (
        found if isinstance(found, dict) and 'what' in found else _UNREADABLE
    )
