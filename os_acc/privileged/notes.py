# SPDX-License-Identifier: Apache-2.0

"""Which devices VANs have, by the privileged half's own notes.

device_spec can change while a VAN has a device. The VAN keeps the device until
it is released, and gets it again after a reboot of the host. The privileged
half must not trust its caller that there is such a VAN. So it notes each
device when it gives it out, which it does only while device_spec offers the
device. It deletes the note when it takes the device back.

A note allows no more than what was given out: see said() and
function_notes. Unlike the record in /run, the notes survive a reboot.

A note also names the VAN, its instance and the journal that has the VAN, see
os_acc.claims.holder. While there is the note, nobody else gets the device, a
part of it, or the device of which it is a part: see note() and
function_notes.

A new kind needs a line in noted.KINDS, and a dataclass for what else its notes
say: see said().
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import enum
import functools
import logging
from typing import Any
from typing import ParamSpec
from typing import TypeVar

from os_acc import exception
from os_acc.claims import holder
from os_acc.kernel import file_place
from os_acc.kernel import pci
from os_acc.privileged import noted
from os_acc.privileged import operation_lock
from os_acc.privileged import root_folder
from os_acc.privileged import store

_P = ParamSpec('_P')
_S = TypeVar('_S', bound=store.Said)
_T = TypeVar('_T')

LOG = logging.getLogger(__name__)

#: The directory of the notes. Only root can write in it, and root creates it.
#: A caller must not choose it, so it is not an option. The tests of services
#: set it by this name.
FOLDER = '/var/lib/os-acc-root'

# Seconds to wait while other notes are written, which takes milliseconds.
_LOCK_SECONDS = 10.0

#: The files of the notes.
files = root_folder.RootFiles(
    lambda: FOLDER, lambda: root_folder.open_at(FOLDER), durable=True
)

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


def _checked(values: Any) -> Mapping[str, Any]:
    is_note = isinstance(values, dict) and 'what' in values
    return values if is_note else noted.DAMAGED


_notes = store.Store(files, _checked)


def note(kind: str, name: str, what: str, **values: Any) -> None:
    """Note that a device is given out. Call it before the device is touched.

    :param name: the address of the function, or the UUID of the mdev
    :param what: distinguishes devices of the same name: vendor:product of the
        function, or parent and type of the mdev
    :param values: what else the VAN keeps, of types that JSON has. A value
        that the note has already stays, unless it is given here
    :raises DeviceBusy: if another VAN has the device, a part of it, or the
        device of which it is a part
    :raises PrivilegeError: if the note cannot be written. The device must not
        be touched then, because it might never be released
    """
    with operation_lock.named('notes', _LOCK_SECONDS):
        known = find(kind, name)
        is_same = known is not None and known.what == what
        before = known.values if known is not None and is_same else {}
        wanted = {**before, **values, 'what': what}
        # Many VANs, also of several journals, have VFs of one PF.
        if kind != VFS:
            if (who := holder.current()) is not None:
                wanted['holder'] = who.to_wire()
            _check_free(made(kind, name, wanted))
        if known is None or wanted != known.values:
            _notes.write(f'{kind}-{name}', wanted)


def note_namespace(wwn: str, values: dict[str, Any]) -> None:
    """Write what nvme_of.notes notes of a namespace."""
    with operation_lock.named('notes', _LOCK_SECONDS):
        if values['given']:
            check_namespace(wwn)
        _notes.keep(f'{NAMESPACE}-{wwn}', values)


def check_namespace(wwn: str) -> None:
    """Check that no other VAN has a device file of a namespace."""
    _check_free(made(NAMESPACE, wwn, {'what': wwn}), FILE)


def check_noted(kind: str, name: str) -> None:
    """Check that no other VAN has a device by its note."""
    if (known := find(kind, name)) is not None:
        known.refuse()


def any_of(kind: str, name: str) -> noted.Note | None:
    """Read the note of a device, also if it is damaged. See find().

    A VAN has the device, and it is to be cleaned.
    """
    return _read(kind, name)


def check_not_refused(wanted: noted.Note) -> None:
    """Check that the VAN that is undone was not refused a device by note().

    A VAN that was not has a note of the device. See undoes_own().
    """
    who, handle = holder.current(), noted.KINDS[wanted.kind].handle
    if who is None or not who.van:
        return
    alike = [
        kind for kind, each in noted.KINDS.items() if each.handle == handle
    ]
    if all(any_of(kind, wanted.name) is None for kind in alike):
        _check_free(wanted)


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


def _check_free(wanted: noted.Note, *kinds: str) -> None:
    """Check that no other VAN has a device, a part of it, or what it is in.

    A note of an earlier version names no VAN. Its device may be this VAN's;
    anything else that it excludes is refused to every VAN.

    :param kinds: of the notes that count; none: all
    """
    others = [
        each
        for each in _all()
        if each.kind in (kinds or noted.KINDS)
        and (
            each.is_of_another
            or (each.holder is None and not each.is_about(wanted))
        )
    ]
    for found in noted.Rule(others, wanted).in_the_way(wanted):
        if is_current(found.note):
            raise found.note.error(found.both)


def is_current(found: noted.Note) -> bool:
    """Whether a note is about the function that is there now.

    After a reboot, VFs are not there until their VAN gets them back.
    """
    if found.ids == '':
        return True
    function = pci.find(found.function)
    if function is not None or found.kind == IDXD:
        return function is None or function.ids == found.ids
    if (pf := pci.find(found.device)) is None:
        return False
    vfs = find(VFS, pf.address)
    return vfs is None or vfs.what == pf.ids


def of_others() -> list[noted.Note]:
    """The notes of other VANs than the one for which this call is made."""
    return [each for each in _all() if each.is_of_another]


def of_other_instances(instance: str) -> list[noted.Note]:
    """The notes of other instances, and those that cannot be read."""
    return [
        each
        for each in _all()
        if each.is_damaged
        or (each.holder is not None and each.holder.instance != instance)
    ]


def _all() -> Iterator[noted.Note]:
    """The notes of what VANs have.

    A note of VFs names no VAN, and that of a namespace may be left from a VAN
    that was released. A note that cannot be read counts, too.
    """
    for each in files.names():
        kind, _, name = each.partition('-')
        known = _read(kind, name) if kind in noted.KINDS else None
        if known is not None and known.values.get('given', True):
            yield known


def of_device(device: str) -> list[tuple[str, str]]:
    """The notes of a device and of its parts: VFs, vGPUs, mdevs, files.

    :param device: a PCI address, the name of another parent of mdevs, or the
        path of a device file
    :returns: kind and name of each
    """
    found = []
    for each in files.names():
        kind, _, name = each.partition('-')
        known = find(kind, name)
        if (
            name == device
            or name.startswith(f'{device}{file_place.SEPARATOR}')
            or (known is not None and known.values.get('device') == device)
        ):
            found.append((kind, name))
    return found


def find(kind: str, name: str, what: str | None = None) -> noted.Note | None:
    """Read the note of a device.

    :param what: as in note(): the note of a different device counts as
        missing. None: it is read whatever it says
    :returns: None if the device is not given out, or its note cannot be read
        or trusted: that allows nothing
    """
    found = _read(kind, name)
    if found is None or found.is_damaged or what not in (None, found.what):
        return None
    return found


def is_noted(kind: str, name: str, what: str) -> bool:
    """Whether a device is given out. See note()."""
    return find(kind, name, what) is not None


def said(
    shape: type[_S], kind: str, name: str, what: str | None = None
) -> _S | None:
    """Read what a kind has noted about a device. See find().

    :raises PrivilegeError: if a value of it is damaged, so that it is not
        known what the VAN has
    """
    if find(kind, name, what) is None:
        return None
    return store.Store(files, shape.of).read(f'{kind}-{name}')


def forget(
    kind: str, name: str, cleaned: Cleaned, what: str | None = None
) -> None:
    """Delete the note of a device, if there is one.

    The note of another VAN stays.

    :param what: as in note(): the note of another device stays. None: delete
        it whatever it says
    """
    known = find(kind, name)
    if known is None or (known.is_readable and what not in (None, known.what)):
        return
    if known.holder is None or not holder.is_of_another(known.holder):
        _notes.delete(f'{kind}-{name}')
        LOG.debug('%s is released: %s', name, cleaned.value)


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

    :param is_used: whether a VAN has a PCI function or mdev, by its address or
        UUID
    :param journal: the UUID of the journal that was read for is_used
    :param is_lost: whether the other journal that has a VAN is lost, so that
        the note is deleted, too; None: the note does not name the journal
    :returns: a clause for each VAN of another journal that keeps a device
    """
    kept: list[str] = []
    # A VAN that keeps a VF also needs the note that counts the VFs. So that
    # note comes last.
    for kind, name in sorted(
        of_device(device), key=lambda each: each[0] == VFS
    ):
        if is_used(name) or (kind == VFS and kept):
            continue
        known = _read(kind, name) or made(kind, name, noted.DAMAGED)
        other = known.holder
        foreign = other is not None and other.journal != journal
        if (foreign or known.is_damaged) and not is_lost(other):
            kept.append(
                f'the note {kind}-{name} cannot be read, so it stays'
                if other is None
                else f'instance {other.instance} keeps {name} (VAN '
                f'{other.van} of the journal {other.path})'
            )
        elif kind != NAMESPACE:
            _notes.delete(f'{kind}-{name}')
        elif foreign:
            _notes.write(f'{kind}-{name}', {**known.values, 'given': False})
    return kept


def adopt(who: holder.Holder, device: str) -> None:
    """Note who has a device, if its note does not say so yet.

    It also does so if the note can no longer be read, or if the journal of the
    VAN has another UUID or path since. A note of another VAN stays.

    :param device: as the attach handle names it: an address, a UUID, ...
    """
    with operation_lock.named('notes', _LOCK_SECONDS):
        for kind in noted.KINDS:
            if (known := _read(kind, device)) is None:
                continue
            before = known.holder
            if before is not None and (
                before == who
                or (before.instance, before.van) != (who.instance, who.van)
            ):
                continue
            # For a damaged note of a namespace, nvme_of.notes says what is
            # unknown.
            if kind != NAMESPACE or not known.is_damaged:
                wanted = {**known.values, 'holder': who.to_wire()}
                if kind == IDXD and not known.is_readable:
                    wanted['what'] = who.van
                _notes.write(f'{kind}-{device}', wanted)


def made(kind: str, name: str, values: Mapping[str, Any]) -> noted.Note:
    """Make a note from what it says."""
    who = None
    if values.get('holder') is not None:
        try:
            who = holder.from_wire(values['holder'])
        except exception.InvalidRequest as err:
            path = files.path(f'{kind}-{name}')
            LOG.warning('%s: %s', path, err)
    return noted.Note(kind, name, values, who)


def _read(kind: str, name: str) -> noted.Note | None:
    """Read a note; None if there is none.

    One that cannot be read or trusted is damaged.
    """
    try:
        found = _notes.read(f'{kind}-{name}')
    except exception.PrivilegeError as err:
        LOG.warning('%s', err)
        found = noted.DAMAGED
    return None if found is None else made(kind, name, found)
