# SPDX-License-Identifier: Apache-2.0

"""Giving device files to VANs, as root: who has them open, owner and mode.

The caller names an accelerator of device files. Which files these are, and who
is to own them, is looked up here, in device_spec as root reads it. What was
there before is in a record of its own: see file_owners.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import contextlib
import dataclasses
import re
from typing import Any

from os_acc import exception
from os_acc.claims import reader
from os_acc.deadlines import waiting
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import mdev
from os_acc.kernel import open_files
from os_acc.kernel import pci
from os_acc.kinds.devfile import groups as file_groups
from os_acc.kinds.devfile import rules as file_availability
from os_acc.kinds.fpga import ids as fpga_ids
from os_acc.privileged import arguments
from os_acc.privileged import cleaning
from os_acc.privileged import context
from os_acc.privileged import device_users
from os_acc.privileged import file_owners
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import operation_lock
from os_acc.privileged import root_folder
from os_acc.privileged import store
from os_acc.refusals import refusals
from os_acc.spec import device_spec

# One name for each share: two VANs must not get it as 1 and as 01.
_SHARE = re.compile('|0|[1-9][0-9]{0,8}')
_MOST_FILES = 256
_LARGEST_NUMBER = 2**32 - 1


@context.entry
def users(files: Sequence[Sequence[Any]]) -> list[str]:
    """Find who has device files open.

    :param files: path, type ('c' or 'b'), major and minor number of each
    :returns: a clause for each user, such as
        'process 4711 (python3) has /dev/dri/renderD128 open'
    """
    return open_files.users_of(_files(files))


@context.entry
def shares_of_others(name: str) -> list[str]:
    """Find which shares of an accelerator VANs of other journals have.

    :returns: the number of each
    """
    first = _note(name, '0').removesuffix('0')
    return [
        each.name.removeprefix(first)
        for each in notes.of_others()
        if each.kind == notes.FILE and each.name.startswith(first)
    ]


@context.entry
def take(
    name: str, share: str, files: Sequence[Sequence[Any]], seconds: float
) -> None:
    """Note that a VAN has an accelerator, and give its files to the owner.

    :param share: of the VAN, if the files are shared; else ''
    :param files: the files that the caller has seen, see users()
    :raises DeviceNotFound: if device_spec does not offer it, and no VAN
        already has it; or if another disk is at its place by now
    :raises DeviceBusy: if a process has a file open, also if it opened the
        file before its owner was changed; or the files or their numbers are
        not what the caller has seen
    """
    note = _note(name, share)
    seen = _files(files)
    seconds = arguments.seconds(seconds)

    def act(deadline: waiting.Deadline) -> None:
        found, spec = _found(name, note)
        if spec is None:
            _check_share(share, found.spec.shared)
            _check_cleanable(found)
        _check_same(found, seen)
        notes.check_noted(notes.FILE, note)
        _check_free(found, spec is not None)
        notes.note(
            notes.FILE,
            note,
            name,
            device=found.path,
            entry=file_groups.to_text(found.spec),
            **note_values(found),
        )
        owner = found.spec.owner, found.spec.group, found.spec.mode
        for node in found.own:
            file_owners.give(node, found.name, file_owners.Owner(*owner))
        if found.spec.shared is None:
            _check_still_free(found, note, spec is not None)

    def lock(most: float) -> contextlib.AbstractContextManager[int]:
        _found(name, note)  # there is such an accelerator
        return operation_lock.named(f'file-{name}', most)

    what = f'device file {name} to be assigned'
    operation_lock.within(lock, seconds, what, act)


@context.entry
@notes.undoes_own(returns=list[str]())
def give_back(
    name: str,
    share: str,
    files: Sequence[Sequence[Any]],
    release_seconds: float,
    seconds: float,
) -> list[str]:
    """Clean an accelerator, restore its files, and delete the note.

    The owner and the permissions of the files are restored. ``{address}`` of
    ``[os_acc] cleaning_command`` is the path of the first file.

    device_spec need not offer them any more: the record says what was changed.
    What somebody else has changed since stays.

    :param files: those that must be closed first, see users(); none if the
        files are shared
    :returns: a clause for each file that is not restored
    :raises DeviceInUseByHost: if the host uses it by now, so that it is not
        cleaned
    """
    note = _note(name, share)
    noted = notes.any_of(notes.FILE, note)
    notes.check_noted(notes.FILE, note)
    closed = [
        *_files(files),
        *(() if share else file_owners.changed_files(name)),
    ]
    seconds = arguments.seconds(seconds)
    _wait_until_closed(name, closed, arguments.seconds(release_seconds))
    if noted is None and not operation_lock.was_named(f'file-{name}'):
        return []

    with operation_lock.named(f'file-{name}', seconds / 2) as lock:
        cleaned = _clean(name, share)

        def act() -> list[str]:
            left = file_owners.restore(name) if not share else []
            # A process that has opened a file since the first check keeps it.
            _wait_until_closed(name, closed, 0.0)
            notes.forget(notes.FILE, note, cleaned, name)
            return left

        what = f'device file {name} to be returned'
        return operation_lock.at_most(lock, act, seconds, what)


def _clean(name: str, share: str) -> notes.Cleaned:
    """Run the operator's command on an accelerator that is closed.

    :raises CleaningFailed: if the command failed
    :raises DeviceBusy, DeviceInUseByHost: if somebody uses it by now, as after
        a reboot
    """
    if share:
        return notes.Cleaned.SHARED
    note = _note(name, share)
    noted = notes.any_of(notes.FILE, note)
    said = notes.said(Files, notes.FILE, note)
    if noted is None or not noted.may_be(name):
        return notes.Cleaned.NEVER_GIVEN
    before = None if said is None else file_groups.from_text(said.entry)
    found = file_groups.find(name, offers.specs(), before)
    if found is None or (said is not None and said.is_other(found)):
        return notes.Cleaned.GONE
    if cleaning.is_wanted():
        _check_free(found, True)
    return cleaning.run_command(found.path)


def held_by(name: str, share: str) -> file_groups.Accelerator:
    """Find an accelerator that a VAN has. See take()."""
    found, spec = _found(name, _note(name, share))
    if spec is None:
        raise exception.DeviceNotFound(
            wanted=f'device file {found.path}', reason='no VAN has it'
        )
    return found


def _note(name: str, share: str) -> str:
    """The name of the note of a VAN that has an accelerator."""
    if not isinstance(name, str) or not isinstance(share, str):
        arguments.refuse('name', name, 'a string')
    if not _SHARE.fullmatch(share):
        arguments.refuse('share', share, 'a number, or an empty text')
    root_folder.check_name(f'{notes.FILE}-{name}')
    return file_place.with_share(name, share)


def _check_share(share: str, most: int | None) -> None:
    """Check that the entry of device_spec has such a share."""
    if most is None and share:
        arguments.refuse('share', share, "'': the files are not shared")
    if most is not None and not (share and int(share) < (most or 10**9)):
        arguments.refuse(
            'share', share, 'a number below "shared" of the entry'
        )


def _check_cleanable(found: file_groups.Accelerator) -> None:
    """Check that it can be cleaned after its use, if that is wanted."""
    refusal = file_availability.not_cleaned(found, cleaning.is_wanted())
    if refusal is not None:
        raise refusal.error()


def _files(
    values: Sequence[Sequence[Any]],
) -> list[device_files.DeviceFile]:
    """Check device files that a caller names."""
    if not isinstance(values, list | tuple) or len(values) > _MOST_FILES:
        arguments.refuse('files', values, f'up to {_MOST_FILES} device files')
    found = []
    for each in values:
        if not isinstance(each, list | tuple) or len(each) != 4:
            arguments.refuse('files', each, 'path, type, major and minor')
        path, kind, major, minor = each
        if kind not in ('c', 'b'):
            arguments.refuse('files (type)', kind, "'c' or 'b'")
        number = device_files.Number(
            kind,
            arguments.whole(major, 'files (major)', _LARGEST_NUMBER),
            arguments.whole(minor, 'files (minor)', _LARGEST_NUMBER),
        )
        found.append(
            device_files.DeviceFile(device_files.check_path(path), number)
        )
    return found


def _found(
    name: str, note: str
) -> tuple[file_groups.Accelerator, device_spec.Spec | None]:
    """Find an accelerator that os-acc may touch.

    :returns: also the entry by which a VAN already has it, if one has
    :raises DeviceNotFound: if device_spec does not offer it, and no VAN has it
    """
    noted = notes.said(Files, notes.FILE, note, name)
    before = None if noted is None else file_groups.from_text(noted.entry)
    found = file_groups.find(name, offers.specs(), before)
    if found is None:
        raise file_availability.not_named(name).error()
    if noted is not None and noted.is_other(found):
        raise exception.DeviceNotFound(
            wanted=f'disk {noted.wwn} at {found.path}',
            reason=f'disk {file_place.wwn(found.place)} is at its place now',
        )
    return found, before


def _check_same(
    found: file_groups.Accelerator, seen: Iterable[device_files.DeviceFile]
) -> None:
    if [each.file for each in found.own] != list(seen):
        raise exception.DeviceBusy(
            device=file_availability.label(found),
            reason='its files, or their numbers, have changed since they were '
            'checked',
        )


def _check_free(found: file_groups.Accelerator, is_held: bool) -> None:
    for obstacle in file_availability.obstacles(
        found,
        as_root=True,
        held=is_held,
        users=lambda: open_files.users_of([each.file for each in found.own]),
    ):
        raise obstacle.error()


def _check_still_free(
    found: file_groups.Accelerator, note: str, is_held: bool
) -> None:
    """Check that nobody has opened the files before they were changed.

    A process that has a file open keeps it, whoever owns the file now. If one
    has, the files are given back.

    :param is_held: a VAN already has it, and its note stays
    """
    users = open_files.users_of([each.file for each in found.own])
    if not users:
        return
    left = file_owners.restore(found.name)
    if not is_held:
        notes.forget(notes.FILE, note, notes.Cleaned.NEVER_GIVEN, found.name)
    raise exception.DeviceBusy(
        device=file_availability.label(found),
        reason='; '.join([refusals.opened(users).text, *left]),
    )


def _wait_until_closed(
    name: str, files: Sequence[device_files.DeviceFile], seconds: float
) -> None:
    """Wait until no process has the files open."""
    device_users.until_closed(
        f'device file {files[0].path}' if files else f'device file {name}',
        lambda: open_files.users_of(files) if files else [],
        seconds,
    )


@dataclasses.dataclass(frozen=True)
class Files(store.Said):
    """The note of an accelerator.

    :ivar entry: its entry of device_spec, see file_groups.to_text(); None: an
        earlier version did not note that
    :ivar wwn: see file_place.wwn(); None: unknown
    """

    entry: str | None = None
    wwn: str | None = None

    def is_other(self, found: file_groups.Accelerator) -> bool:
        """Whether another disk is at the place of the one that was noted."""
        now = file_place.wwn(found.place)
        return None not in (self.wwn, now) and self.wwn != now


def note_values(found: file_groups.Accelerator) -> dict[str, Any]:
    """The devices of an accelerator, and the devices that contain them.

    They are noted, because the kernel may have other names for them when the
    next VAN wants one of them.
    """
    behind = reader.Reader(device_spec.Specs()).files(
        found.name, device_files.texts(found.numbers)
    )
    made: dict[str, Any] = {
        'parent': _parent(found),
        'files': sorted(
            {file_place.of(each).name for each in found.numbers}.union(
                behind.places
            )
        ),
        'within': sorted(
            {
                *behind.around,
                *behind.functions,
                *behind.mdevs,
                *behind.namespaces,
                *behind.in_namespaces,
            }
        ),
        'namespaces': sorted(behind.namespaces),
    }
    if (wwn := file_place.wwn(found.place)) is not None:
        made['wwn'] = wwn
    if any(
        fpga_ids.is_fpga(function, found.function_spec)
        for function in map(pci.find, found.place.functions)
        if function is not None
    ):
        made['fpga'] = True
    return made


def _parent(found: file_groups.Accelerator) -> str | None:
    """The PF of a VF behind the files, or the parent of a mediated device."""
    for each in map(pci.find, found.place.functions):
        if each is not None:
            return each.parent
    for there in map(mdev.find, found.place.mdevs):
        if there is not None:
            return there.parent
    return None
