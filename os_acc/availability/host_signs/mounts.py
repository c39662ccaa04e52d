# SPDX-License-Identifier: Apache-2.0

"""Which block devices have file systems that are mounted."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import errno
import os

from os_acc.availability.host_signs import snapshot
from os_acc.kernel import block_files
from os_acc.kernel import sysfs

# Further devices of a file system: xfs_fs_show_options() in
# fs/xfs/xfs_super.c.
_FURTHER = ('logdev=', 'rtdev=')

# File systems that have a directory with the name of the block device.
_IN_SYSFS = ('ext4', 'xfs', 'f2fs', 'nilfs2', 'erofs')

_UNSEEN = (errno.EINVAL, errno.EACCES, errno.EPERM)


@dataclasses.dataclass(frozen=True)
class Mounts:
    """Mount points."""

    numbers: dict[str, str]  # by the number of the device, ``major:minor``
    sources: dict[str, str]  # by the name of a block device that is a source
    # where the automounter mounts a block device on access
    automatic: set[str]
    # by the tag of a directory of another machine: virtiofs, 9p
    shared: dict[str, str]

    def of(self, number: str, name: str) -> str | None:
        """Where a block device is mounted; None if it is not."""
        return self.numbers.get(number, self.sources.get(name))


def read(host: object = None) -> Mounts:
    """Read the mounts of all mount namespaces that this process can see."""
    found = Mounts({}, {}, set(), {})
    for text in _texts():
        for line in text.splitlines():
            _add(line, found)
    return found


def automatic(host: snapshot.Snapshot) -> dict[str, str]:
    """Where each block device of fstab is mounted on access.

    With x-systemd.automount, which unmounts it after a while too:
    systemd.mount(5). The mount point itself is there all the time.
    """
    if not (places := host.once(read).automatic):
        return {}
    found = {}
    for line in sysfs.read_long(f'{sysfs.ETC}/fstab').splitlines():
        fields = [sysfs.unescaped(field) for field in line.split()]
        if len(fields) < 2 or fields[1] not in places:
            continue
        if (name := block_files.name_of_tagged(fields[0])) is not None:
            found[name] = fields[1]
    return found


def shared(host: snapshot.Snapshot) -> Iterator[tuple[str, str, str]]:
    """The device, tag and place of each mounted directory of a hypervisor.

    Documentation/ABI/testing/sysfs-fs-virtiofs, since Linux 6.9, and
    p9_mount_tag_show() in net/9p/trans_virtio.c.
    """
    places = host.once(read).shared
    if not places:
        return
    for directory, tag_file, device in (
        ('bus/virtio/drivers/9pnet_virtio', 'mount_tag', ''),
        ('fs/virtiofs', 'tag', '/device'),
    ):
        for name in sysfs.names(f'{sysfs.SYS}/{directory}'):
            path = f'{sysfs.SYS}/{directory}/{name}'
            tag = (sysfs.read(f'{path}/{tag_file}') or '').strip('\0')
            if tag in places:
                yield sysfs.place(f'{path}{device}'), tag, places[tag]


def superblocks(host: object = None) -> dict[str, str]:
    """The kind of the mounted file system of each block device.

    The kernel has a directory for each one until nobody has it mounted any
    more, even if the mount is in a namespace that this process cannot see, or
    was detached (umount --lazy) while a program uses it: sysfs-fs-ext4,
    sysfs-fs-xfs and the like in Documentation/ABI/testing.
    """
    directories = [f'{sysfs.SYS}/fs/{kind}' for kind in _IN_SYSFS]
    directories.append(f'{sysfs.PROC}/fs/ntfs3')
    return {
        name: os.path.basename(each)
        for each in directories
        for name in sysfs.names(each)
    }


def btrfs_members(host: object = None) -> dict[str, str]:
    """The UUID of the mounted btrfs of each block device that is in one."""
    directory = f'{sysfs.SYS}/fs/btrfs'
    return {
        name: uuid
        for uuid in sysfs.names(directory)
        for name in sysfs.names(f'{directory}/{uuid}/devices')
    }


def _texts() -> Iterator[str]:
    """The mounts of one process of each mount namespace, and of each chroot.

    Everybody may read the mounts of a process that is visible in procfs, and
    the first line has the id of the first mount that the process can reach,
    which is unique: proc(5). A process in a chroot cannot reach all mounts.
    """
    seen: set[str] = set()
    for pid in ('self', *filter(str.isdigit, sysfs.names(sysfs.PROC))):
        path = f'{sysfs.PROC}/{pid}/mountinfo'
        try:
            first = (sysfs.read(path) or '').partition('\n')[0]
            if first and first not in seen:
                seen.add(first)
                yield sysfs.read_long(path)
        except OSError as err:
            # The process has ended, and has no mounts any more:
            # mounts_open_common() in fs/proc_namespace.c. Or a security module
            # hides it: root is asked before a device is taken.
            if pid == 'self' or err.errno not in _UNSEEN:
                raise


def _add(line: str, found: Mounts) -> None:
    """Add a line of mountinfo: proc(5)."""
    fields = [sysfs.unescaped(field) for field in line.split(' ')]
    if len(fields) < 5 or '-' not in fields[6:]:
        return
    # A part of it may be bound elsewhere later: the first place says more.
    found.numbers.setdefault(fields[2], fields[4])
    # btrfs and ZFS have a device number of their own: use the source too.
    kind, given, options, *_ = [*fields[fields.index('-', 6) + 1 :], '', '']
    if kind in ('virtiofs', '9p'):
        found.shared.setdefault(given, fields[4])
    if kind == 'autofs':
        found.automatic.add(fields[4])
    # bcachefs lists its members: fs/bcachefs/fs.c.
    sources = given.split(':') if kind == 'bcachefs' else [given]
    for option in options.split(','):
        for key in _FURTHER:
            if option.startswith(key):
                sources.append(option.removeprefix(key))
    for each in sources:
        # A source may be anything. It may be a path in an NFS that hangs.
        if each.startswith('/dev/') and (name := block_files.name_of(each)):
            found.sources.setdefault(name, fields[4])
