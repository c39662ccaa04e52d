# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Which block devices have file systems that are mounted."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import errno
import re

from os_acc.devices import sysfs

# A space, a tab, a line feed and a backslash are written in octal: proc(5).
_OCTAL = re.compile(r'\\([0-7]{3})')

# Further devices of a file system: xfs_fs_show_options() in
# fs/xfs/xfs_super.c.
_FURTHER = ('logdev=', 'rtdev=')


@dataclasses.dataclass(frozen=True)
class Mounts:
    """Mount points.

    :ivar numbers: by the number of the device, ``major:minor``
    :ivar sources: by the name of a block device that is a source
    """

    numbers: dict[str, str]
    sources: dict[str, str]

    def of(self, number: str, name: str) -> str | None:
        """Where a block device is mounted; None if it is not."""
        return self.numbers.get(number, self.sources.get(name))


def read(host: object = None) -> Mounts:
    """Read the mounts of all mount namespaces that this process can see.

    :raises OSError: if those of this process cannot be read
    """
    found = Mounts({}, {})
    for text in _texts():
        for line in text.splitlines():
            _add(line, found)
    return found


def btrfs_members(host: object = None) -> dict[str, str]:
    """The UUID of the mounted btrfs of each block device that is in one."""
    folder = f'{sysfs.SYS}/fs/btrfs'
    return {
        name: uuid
        for uuid in sysfs.names(folder)
        for name in sysfs.names(f'{folder}/{uuid}/devices')
    }


def _texts() -> Iterator[str]:
    """The file mountinfo of one process of each mount namespace."""
    seen = {sysfs.link(f'{sysfs.PROC}/self/ns/mnt')}
    yield sysfs.read_long(f'{sysfs.PROC}/self/mountinfo')
    for pid in sysfs.names(sysfs.PROC):
        if not pid.isdigit():
            continue
        try:
            namespace = sysfs.link(f'{sysfs.PROC}/{pid}/ns/mnt')
            if pid != '1' and namespace in seen:
                continue
            yield _of_process(pid)
            seen.add(namespace)
        except PermissionError:
            # Of another user: root is asked before a device is taken. Who may
            # see the namespace of a process: ptrace(2).
            if pid == '1':
                yield _of_init()


def _of_process(pid: str) -> str:
    try:
        return sysfs.read_long(f'{sysfs.PROC}/{pid}/mountinfo')
    except OSError as err:
        # The process has ended, and has no mounts any more:
        # mounts_open_common() in fs/proc_namespace.c.
        if err.errno == errno.EINVAL:
            return ''
        raise


def _of_init() -> str:
    try:
        return sysfs.read_long(f'{sysfs.PROC}/1/mountinfo')
    except PermissionError:
        return ''


def _add(line: str, found: Mounts) -> None:
    """Add a line of mountinfo: proc(5)."""
    fields = [
        _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)
        for field in line.split(' ')
    ]
    if len(fields) < 5 or '-' not in fields[6:]:
        return
    found.numbers[fields[2]] = fields[4]
    # btrfs and ZFS have a device number of their own: use the source too.
    kind, source, options, *_ = [*fields[fields.index('-', 6) + 1 :], '', '']
    # bcachefs lists its members: fs/bcachefs/fs.c.
    sources = source.split(':') if kind == 'bcachefs' else [source]
    for option in options.split(','):
        for name in _FURTHER:
            if option.startswith(name):
                sources.append(option.removeprefix(name))
    for each in sources:
        if each.startswith('/dev/'):
            found.sources[sysfs.block_name(each)] = fields[4]
