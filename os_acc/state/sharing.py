# SPDX-License-Identifier: Apache-2.0

"""Says which user may not use a state path, and where the remedy is described.

The users of a shared directory are trusted equally: who can write to the
journal can make os-acc act on the devices that device_spec offers.
"""

from __future__ import annotations

import os
import pwd
import stat

from os_acc import exception
from os_acc.state import files as state_files

#: Where to read how root shares a directory.
PAGE = 'see "Two users" in the documentation'


def check(path: str) -> None:
    """Check that this process's user may use a directory, and may make it.

    The directory must belong to this user, or be shared with a group that this
    user is in. If another user, such as root, made a journal in a directory of
    one user, the service could not write it.
    """
    place = path
    while True:
        try:
            found = os.stat(place)
            break
        except FileNotFoundError:
            place = os.path.dirname(place)
        except PermissionError as err:
            raise _refused(path, unreachable(path)) from err
        except OSError:
            return  # opening the journal tells what is wrong with it
    if not stat.S_ISDIR(found.st_mode):
        return
    if place == path and found.st_mode & stat.S_IWOTH:
        raise _refused(
            path,
            f'all users can write to the directory {path}; run as root: chmod '
            f'o-w {path}',
        )
    me = os.geteuid()
    if state_files.is_shared(found):
        may = state_files.is_member(found.st_gid)
    else:
        # What root makes in another user's directory belongs to root.
        may = found.st_uid == me or (place != path and me != 0)
    if not may:
        raise _refused(path, refusal(place))


def refusal(place: str) -> str:
    """Say who may use a directory or a file, and that this process may not."""
    found = os.stat(place)
    me = state_files.user(os.geteuid())
    directory = stat.S_ISDIR(found.st_mode)
    text = (
        f'the {"directory" if directory else "file"} {place} belongs to '
        f'{state_files.user(found.st_uid)} and '
        f'{state_files.group(found.st_gid)} with mode '
        f'{stat.S_IMODE(found.st_mode):04o}, and this process runs as {me}'
    )
    if state_files.is_shared(found):
        return f'{text}, which is not in this group; {PAGE}'
    return (
        f'{text}; run it as that user, such as: sudo -u "#{found.st_uid}" '
        f'os-acc ..., or {PAGE}'
    )


def belongs_to_another(path: str) -> bool:
    """Say whether root would have to become another user to use a directory.

    What root makes in it belongs to root, unless the directory is shared.
    """
    if os.geteuid() or not os.path.isdir(path):
        return False
    found = os.stat(path)
    return found.st_uid != 0 and not state_files.is_shared(found)


def become_owner(path: str) -> None:
    """As root, become the owner of a directory for the rest of the process."""
    found = os.stat(path)
    try:
        owner = pwd.getpwuid(found.st_uid)
        os.initgroups(owner.pw_name, owner.pw_gid)
        os.setgid(owner.pw_gid)
    except KeyError:  # a user of a container, without a name here
        os.setgroups([])
        os.setgid(found.st_gid)
    os.setuid(found.st_uid)


def unreachable(path: str) -> str:
    """Say which directory keeps this process away from a path."""
    place = path
    while place != os.path.dirname(place):
        place = os.path.dirname(place)
        try:
            return refusal(place)
        except OSError:
            continue
    return f'{state_files.user(os.geteuid())} may not use {path}'


def hint(directory: str, *paths: str) -> str:
    """Explain why this process cannot use a directory or files in it.

    :param paths: of files in the directory; they may be missing
    :returns: sentences to append to an error; empty if access is permitted
    """
    try:
        os.stat(directory)
    except PermissionError:
        return f': {unreachable(directory)}'
    except OSError:
        return ''
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        return f'. The file system of {directory} is mounted read-only'
    for place in (directory, *paths):
        if os.path.exists(place) and not os.access(place, os.R_OK | os.W_OK):
            text = refusal(place)
            return f'. {text[0].upper()}{text[1:]}'
    return ''


def _refused(path: str, reason: str) -> exception.JournalError:
    return exception.JournalError(path=path, reason=reason)
