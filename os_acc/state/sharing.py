# SPDX-License-Identifier: Apache-2.0

"""Says which user may not use a state path, and where the way out is told.

The users of a shared folder are trusted equally: who can write to the journal
can make os-acc act on the devices that device_spec offers.
"""

from __future__ import annotations

import os
import pwd
import stat

from os_acc import exception
from os_acc.state import files as state_files

#: Where to read how root shares a folder.
PAGE = 'see "Two users" in the documentation'


def check(path: str) -> None:
    """Check that this process's user may use a folder, and may make it.

    The folder must belong to this user, or be shared with a group of which
    this user is a member. If another user, such as root, made a journal in a
    folder of one user, the service could not write it.

    :raises JournalError: if it may not; the error says what to do
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
            return  # opening the journal tells what is wrong with the folder
    if not stat.S_ISDIR(found.st_mode):
        return
    if place == path and found.st_mode & stat.S_IWOTH:
        raise _refused(
            path,
            f'all users can write to the folder {path}; run as root: chmod '
            f'o-w {path}',
        )
    me = os.geteuid()
    if state_files.is_shared(found):
        may = state_files.is_member(found.st_gid)
    else:
        # What root makes in another user's folder belongs to root.
        may = found.st_uid == me or (place != path and me != 0)
    if not may:
        raise _refused(path, refusal(place))


def refusal(place: str) -> str:
    """Say who may use a folder or a file, and that this process may not.

    :raises OSError: if it cannot be examined
    """
    found = os.stat(place)
    me = state_files.user(os.geteuid())
    folder = stat.S_ISDIR(found.st_mode)
    text = (
        f'the {"folder" if folder else "file"} {place} belongs to '
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
    """Say whether root would have to be another user to use a folder.

    What root makes in it belongs to root, unless the folder is shared.
    """
    if os.geteuid() or not os.path.isdir(path):
        return False
    found = os.stat(path)
    return found.st_uid != 0 and not state_files.is_shared(found)


def become_owner(path: str) -> None:
    """As root, go on as the user that a folder belongs to, for good.

    :raises OSError: if that is not possible
    """
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
    """Say which folder keeps this process away from a path."""
    place = path
    while place != os.path.dirname(place):
        place = os.path.dirname(place)
        try:
            return refusal(place)
        except OSError:
            continue
    return f'{state_files.user(os.geteuid())} may not use {path}'


def hint(folder: str, *paths: str) -> str:
    """Explain why this process cannot use a folder or files in it.

    :param paths: of files in the folder; they may be missing
    :returns: sentences to append to an error; empty if access is permitted
    """
    try:
        os.stat(folder)
    except PermissionError:
        return f': {unreachable(folder)}'
    except OSError:
        return ''
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return f'. The file system of {folder} is mounted read-only'
    for place in (folder, *paths):
        if os.path.exists(place) and not os.access(place, os.R_OK | os.W_OK):
            text = refusal(place)
            return f'. {text[0].upper()}{text[1:]}'
    return ''


def _refused(path: str, reason: str) -> exception.JournalError:
    return exception.JournalError(path=path, reason=reason)
