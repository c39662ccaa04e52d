# SPDX-License-Identifier: Apache-2.0

"""Whether the files of a guest are the same ones on two hosts."""

from __future__ import annotations

from collections.abc import Iterable
import contextlib
import dataclasses
import os
import stat

from os_acc.kernel import file_system
from os_acc.kernel import sysfs

#: What target hosts look at most.
MAX_FILES = 1024

_MUST_SHARE = 'os-acc moves no disk, so that both hosts must share it'


@dataclasses.dataclass(frozen=True)
class File:
    """A file that is no device.

    :ivar size: in bytes
    :ivar device: the number of the device that holds its file system
    :ivar file_system: its type, such as xfs; None: not known
    """

    size: int
    device: int
    file_system: str | None = None


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a host sees of the files of a guest.

    :ivar inodes: by path, the inode of a file, 0 for a device, or None if
        there is none; what the process may not see is left out
    :ivar files: by path, more about those that are no devices; none from a
        host whose os-acc does not tell it
    :ivar boot_id: of the machine; None: not known
    """

    inodes: dict[str, int | None]
    files: dict[str, File] = dataclasses.field(default_factory=dict)
    boot_id: str | None = None


def look(paths: Iterable[str]) -> Seen:
    """Look at files on this host."""
    inodes: dict[str, int | None] = {}
    files = {}
    for path in paths:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            inodes[path] = None
        except (OSError, ValueError):
            continue
        else:
            if stat.S_ISBLK(status.st_mode):
                inodes[path] = 0
                continue
            inodes[path] = status.st_ino
            kind = None
            with contextlib.suppress(OSError):
                kind = file_system.type_of(path)
            files[path] = File(status.st_size, status.st_dev, kind)
    boot_id = None
    with contextlib.suppress(OSError):
        boot_id = sysfs.boot_id()
    return Seen(inodes, files, boot_id)


def differences(here: Seen, there: Seen, is_off: bool = False) -> list[str]:
    """Say which files the two hosts do not share, as far as can be seen.

    A file that is shared has the same inode on all hosts. The same inode
    alone says nothing: two new file systems begin with the same ones.

    :param is_off: nobody writes to the files, so that their sizes count too
    """
    found = []
    for path, inode in here.inodes.items():
        if inode is None:
            continue
        if path in there.inodes and there.inodes[path] != inode:
            what = 'has no' if there.inodes[path] is None else 'has another'
            found.append(f'the target {what} {path}: {_MUST_SHARE}')
        elif (kind := _kept_apart(here, there, path)) is not None:
            found.append(
                f'{path} is on a file system of one host ({kind}): '
                f'{_MUST_SHARE}'
            )
        elif is_off and _sizes_differ(here, there, path):
            found.append(
                f'the target has another {path}, of another size: '
                f'{_MUST_SHARE}'
            )
    return found


def unchecked(here: Seen) -> list[str]:
    """The paths of devices: nobody can tell whether two hosts share them."""
    return [path for path, inode in here.inodes.items() if inode == 0]


def _kept_apart(here: Seen, there: Seen, path: str) -> str | None:
    """The type of a file system that only one of the hosts can use.

    :returns: None if they may share the file: as far as is known, or because
        both hosts are one machine with one such file system
    """
    kinds = [
        seen.files[path].file_system
        for seen in (here, there)
        if path in seen.files
    ]
    local = [kind for kind in kinds if kind and file_system.is_local(kind)]
    if not local:
        return None
    if here.boot_id is not None and here.boot_id == there.boot_id:
        devices = {
            seen.files[path].device
            for seen in (here, there)
            if path in seen.files
        }
        return None if len(devices) == 1 else local[0]
    return local[0]


def _sizes_differ(here: Seen, there: Seen, path: str) -> bool:
    if path not in here.files or path not in there.files:
        return False
    return here.files[path].size != there.files[path].size
