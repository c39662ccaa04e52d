# SPDX-License-Identifier: Apache-2.0

"""The owner and the permissions of the device files that VANs have, as root.

What was there before is in a record, and is restored when the VAN is released.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import os
from typing import NamedTuple

from os_acc import exception
from os_acc.kernel import accounts
from os_acc.kernel import device_files
from os_acc.privileged import undo_log


class Owner(NamedTuple):
    """Whom a file is to belong to; None: unchanged.

    :ivar user: a name or a number, as group
    :ivar mode: its permissions
    """

    user: str | None = None
    group: str | None = None
    mode: int | None = None


@dataclasses.dataclass(frozen=True)
class DeviceFile:
    """A device file whose owner or permissions were changed.

    :ivar name: of the accelerator that the file belongs to
    :ivar inode: a different file at the same path has a different one
    :ivar before: user id, group id and permissions before
    :ivar ours: the same, as os-acc was to set them
    """

    name: str
    path: str
    inode: int
    before: list[int]
    ours: list[int]


#: What was changed, by the numbers of the files.
changes = undo_log.Records('device-files', DeviceFile)


def _wanted(node: device_files.Node, to: Owner) -> list[int]:
    """User, group and permissions that a file is to have."""
    now = [node.uid, node.gid, node.mode]
    for place, kind, name in (
        (0, 'user', to.user),
        (1, 'group', to.group),
    ):
        number = accounts.number_of(kind, name) if name else None
        if number is not None:
            now[place] = number
    if to.mode is not None:
        now[2] = to.mode
    return now


def give(node: device_files.Node, name: str, to: Owner) -> None:
    """Give a file to its owner. The record is written first."""
    wanted = _wanted(node, to)
    with device_files.opened(node.path) as fd:
        now = device_files.node_of(node.path, fd)
        if now.number != node.number:
            raise _replaced(node)
        before = [now.uid, now.gid, now.mode]
        known = changes.read(_key(node.number))
        if known is not None and _is_ours(known, name, now):
            # An earlier call was interrupted, or udev has restored a part.
            before = known.before
        elif wanted == before:
            return
        changes.write(
            _key(node.number),
            DeviceFile(name, node.path, now.inode, before, wanted),
        )
        _set(fd, now, wanted)
    after = device_files.look(node.path)
    if after is None or (after.number, after.inode) != (
        node.number,
        now.inode,
    ):
        raise _replaced(node)


def _replaced(node: device_files.Node) -> exception.DeviceBusy:
    return exception.DeviceBusy(
        device=f'device file {node.path}',
        reason='another file has meanwhile taken its place',
    )


def _key(number: device_files.Number) -> str:
    return f'{number.kind}-{number.major}-{number.minor}'


def _is_ours(known: DeviceFile, name: str, now: device_files.Node) -> bool:
    """Whether a file is the recorded one, and nobody else has changed it."""
    return (
        (known.name, known.path, known.inode) == (name, now.path, now.inode)
    ) and all(
        value in pair
        for value, pair in zip(
            (now.uid, now.gid, now.mode),
            zip(known.before, known.ours, strict=True),
            strict=True,
        )
    )


def _set(fd: int, now: device_files.Node, wanted: Sequence[int]) -> None:
    uid, gid, mode = wanted
    if (now.uid, now.gid) != (uid, gid):
        set_owner(fd, uid, gid)
    if now.mode != mode:
        set_mode(fd, mode)


def changed_files(name: str) -> list[device_files.DeviceFile]:
    """The files that the record says were changed."""
    found = []
    for key in changes.names():
        known = changes.read(key)
        if known is not None and known.name == name:
            kind, major, minor = key.split('-')
            number = device_files.Number(kind, int(major), int(minor))
            found.append(device_files.DeviceFile(known.path, number))
    return found


def restore(name: str) -> list[str]:
    """Restore files as their records say.

    What somebody else has changed since stays.

    :returns: a clause for each file that is not restored
    """
    left = []
    for key in changes.names():
        known = changes.read(key)
        if known is None or known.name != name:
            continue
        if (why := _restored(key, known)) is not None:
            left.append(why)
        changes.delete(key)
    return left


def _restored(key: str, known: DeviceFile) -> str | None:
    """Restore one file; if it is left as it is, say why."""
    try:
        with device_files.opened(known.path) as fd:
            now = device_files.node_of(known.path, fd)
            if now.inode != known.inode or _key(now.number) != key:
                return None  # the kernel has made the file anew
            have = [now.uid, now.gid, now.mode]
            back = [
                before if value in (before, ours) else value
                for value, before, ours in zip(
                    have, known.before, known.ours, strict=True
                )
            ]
            _set(fd, now, back)
    except (FileNotFoundError, exception.DeviceNotFound):
        return None
    except exception.DeviceError as err:
        return f'{known.path} is left as it is: {err}'
    if back == known.before:
        return None
    return f'{known.path} keeps what somebody else has set since'


# Changing owner and permissions of an open device file, as root.


def set_owner(fd: int, uid: int, gid: int) -> None:
    """Change owner and group of a file that opened() has opened, as root.

    fchown(2) refuses a descriptor of O_PATH; the link in /proc stands for the
    same file.
    """
    os.chown(f'/proc/self/fd/{fd}', uid, gid)


def set_mode(fd: int, mode: int) -> None:
    """Change the permissions of a file. See set_owner()."""
    os.chmod(f'/proc/self/fd/{fd}', mode)
