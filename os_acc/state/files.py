# SPDX-License-Identifier: Apache-2.0

"""Makes the files and directories of a state path, for one user or for a
group.

A directory is shared if its group can write to it and its setgid bit is set
(mode 2770). Root makes it once. What os-acc makes in a shared directory
belongs to the group of the directory, and the group can read and write it:
files have mode 0660, directories 2770. What os-acc makes in any other
directory belongs to its user alone: 0600 and 0700. The umask of the process
does not matter.

A file gets its mode before it gets its name. Otherwise another user could find
a file that it may not open yet, or may never open if the process is killed.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import stat
import tempfile

#: Temporary names begin with this. A process that is killed can leave some.
NEW = '.new-'

# Opens a name without its content, and no symbolic link.
_UNOPENED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

_SHARED = stat.S_ISGID | stat.S_IRWXG


def group_of(directory: str) -> int | None:
    """The id of the group that shares a directory; None: none does."""
    found = os.stat(directory)
    return found.st_gid if is_shared(found) else None


def is_shared(found: os.stat_result) -> bool:
    """Say whether a directory is shared with its group.

    A directory that all users can write to is not. Neither is one with the
    sticky bit, because there only the owner of a file can remove it.
    """
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_mode & _SHARED == _SHARED
        and not found.st_mode & (stat.S_IWOTH | stat.S_ISVTX)
    )


def is_member(gid: int) -> bool:
    """Say whether this process may use what a group shares."""
    return os.geteuid() == 0 or gid in (os.getegid(), *os.getgroups())


def make_directory(path: str) -> None:
    """Make a directory, and the directories above it, if they do not exist.

    Each is shared if the directory above it is.
    """
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    make_directory(above)
    if group_of(above) is None:
        try:
            os.mkdir(path, 0o700)
            os.chmod(path, 0o700)  # whatever the umask is
        except FileExistsError:
            if not os.path.isdir(path):
                raise
        return
    new = tempfile.mkdtemp(prefix=NEW, dir=above)
    try:
        fd = os.open(new, _UNOPENED)
        try:
            _adopt(fd, above)
        finally:
            os.close(fd)
        # rename(2) puts a directory in the place of an empty one, so both of
        # two processes may succeed.
        os.rename(new, path)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        if not os.path.isdir(path):
            raise


def new_file(directory: str, prefix: str = NEW) -> tuple[int, str]:
    """Make a file with a temporary name.

    :returns: its descriptor, open for reading and writing, and its path
    """
    fd, path = tempfile.mkstemp(prefix=prefix, dir=directory)
    try:
        _adopt(fd, directory)
    except BaseException:
        os.close(fd)
        os.unlink(path)
        raise
    return fd, path


def make_file(path: str) -> None:
    """Make an empty file, unless the path exists.

    A file that exists is not opened: closing it would release the locks that
    this process holds on it (fcntl(2)).
    """
    if os.path.lexists(path):
        return
    fd, new = new_file(os.path.dirname(path))
    os.close(fd)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
    finally:
        os.unlink(new)


def open_file(path: str) -> int:
    """Open a file for reading and writing. It is made if it does not exist."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        if group_of(os.path.dirname(path)) is None:
            return os.open(path, flags | os.O_CREAT, 0o600)
        make_file(path)


def repair(path: str) -> None:
    """Give a file or directory the group and the mode that its directory
    demands.

    Does nothing if it does not exist. In a shared directory a user repairs
    only what belongs to it, and root nothing: the group could have moved any
    file of root there. Never follows a symbolic link, and leaves a file with
    several names alone: one of them may be outside of the directory.
    """
    try:
        # Opening a file in the usual way, and closing it, would release the
        # locks that this process holds on it (fcntl(2)).
        fd = os.open(path, _UNOPENED)
    except FileNotFoundError:
        return
    directory = os.path.dirname(path)
    try:
        found = os.fstat(fd)
        mine = found.st_uid == os.geteuid() != 0
        if (mine or group_of(directory) is None) and (
            stat.S_ISDIR(found.st_mode) or _is_only_name(found)
        ):
            _adopt(fd, directory)
    finally:
        os.close(fd)


def user(uid: int) -> str:
    """Describe a user by id and name, such as 'user id 64055 (nova)'."""
    with contextlib.suppress(KeyError):
        return f'user id {uid} ({pwd.getpwuid(uid).pw_name})'
    return f'user id {uid}'


def group(gid: int) -> str:
    """Describe a group by id and name."""
    with contextlib.suppress(KeyError):
        return f'group id {gid} ({grp.getgrgid(gid).gr_name})'
    return f'group id {gid}'


def user_name(uid: int) -> str:
    """Return the name of a user for a command; its id if it has none."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def _is_only_name(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def mode_in(gid: int | None, directory: bool) -> int:
    """Return the mode that a file or directory has in a directory.

    :param gid: of the group that shares the directory above; None: none does
    """
    if gid is None:
        return 0o700 if directory else 0o600
    return 0o2770 if directory else 0o660


def _adopt(fd: int, above: str) -> None:
    """Set group and mode of an open file or directory, as its directory
    demands.

    What root makes in a shared directory gets the owner of the directory, too.
    """
    directory = os.stat(above)
    gid = directory.st_gid if is_shared(directory) else None
    found = os.fstat(fd)
    # fchown(2) and fchmod(2) refuse a descriptor of O_PATH. This path always
    # leads to the open file, whatever its name names by now.
    path = f'/proc/self/fd/{fd}'
    if gid is not None:
        uid = directory.st_uid if os.geteuid() == 0 else found.st_uid
        if (found.st_uid, found.st_gid) != (uid, gid):
            # Before chmod: chown(2) can clear the setgid bit.
            os.chown(path, uid, gid)
    mode = mode_in(gid, stat.S_ISDIR(found.st_mode))
    if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
        os.chmod(path, mode)
