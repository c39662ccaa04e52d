# SPDX-License-Identifier: Apache-2.0

"""Says who may use a state path, and how a second user gets access to it.

The users of a shared folder are trusted equally: who can write to the journal
can make os-acc act on the devices that device_spec offers.
"""

from __future__ import annotations

import os
import stat

from os_acc import exception
from os_acc.state import files as state_files


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
        except OSError as err:
            if isinstance(err, PermissionError):
                raise _refused(path, unreachable(path)) from err
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
        if not state_files.is_member(found.st_gid):
            raise _refused(path, f'the folder {place} {not_member(found)}')
    # What root makes in another user's folder belongs to root.
    elif found.st_uid != me and (place == path or me == 0):
        raise _refused(
            path,
            f'the folder {place} belongs to {state_files.user(found.st_uid)} '
            f'and this process runs as {state_files.user(me)}; run it as that '
            f'user, such as: sudo -u "#{found.st_uid}" os-acc ...'
            + (f'. {how(path)}' if me and place == path else ''),
        )


def not_member(found: os.stat_result) -> str:
    """Describe a shared folder whose group this process is not in."""
    me, group = os.geteuid(), state_files.group_name(found.st_gid)
    return (
        f'is shared with {state_files.group(found.st_gid)}, and this process, '
        f'which runs as {state_files.user(me)}, is not in this group. Run as '
        f'root: usermod -a -G {group} {state_files.user_name(me)}; then '
        'restart the service'
    )


def unreachable(path: str) -> str:
    """Say which folder keeps this process away from a path.

    :returns: the reason and what to do
    """
    me = os.geteuid()
    place = path
    while place != os.path.dirname(place):
        place = os.path.dirname(place)
        try:
            found = os.stat(place)
        except OSError:
            continue
        if state_files.is_shared(found) and not state_files.is_member(
            found.st_gid
        ):
            return f'the folder {place} {not_member(found)}'
        return (
            f'the folder {place} belongs to {state_files.user(found.st_uid)} '
            f'and has mode {stat.S_IMODE(found.st_mode):04o}, and '
            f'{state_files.user(me)} may not use what is in it. Choose a '
            'folder that this user can reach, such as /var/lib/os-acc, as '
            '[os_acc] state_path of all services'
        )
    return f'{state_files.user(me)} may not use {path}'


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
    if (text := read_only(folder)) is not None:
        return f'. {text[0].upper()}{text[1:]}'
    for place in (folder, *paths):
        if os.path.exists(place) and not os.access(place, os.R_OK | os.W_OK):
            return f'. {_not_permitted(place, place == folder)}'
    return ''


def read_only(folder: str) -> str | None:
    """Say that the file system of a folder is read-only; None if it is not.

    :raises OSError: if it cannot be examined
    """
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return f'the file system of {folder} is mounted read-only'
    return None


def _not_permitted(place: str, is_folder: bool) -> str:
    """Say who may use a folder or a file, and how this process may."""
    me, found = os.geteuid(), os.stat(place)
    if is_folder and state_files.is_shared(found):
        return f'{place} {not_member(found)}'
    text = (
        f'{place} belongs to {state_files.user(found.st_uid)}, and '
        f'{state_files.user(me)} may not read and write it'
    )
    if me and state_files.wrong(place):
        return f'{text}. Run as root: {state_files.fix(place)}'
    if me and is_folder:
        return f'{text}. {how(place)}'
    return text


def how(folder: str, group: str = 'os-acc') -> str:
    """Say how an operator shares a folder between this user and its owner.

    :param folder: of the journal, of the locks or of the cache
    """
    owner = os.stat(folder).st_uid if os.path.exists(folder) else 0
    names = dict.fromkeys(
        state_files.user_name(uid) for uid in (owner, os.geteuid()) if uid
    )
    commands = [
        f'groupadd --force --system {group}',
        *(f'usermod -a -G {group} {name}' for name in names),
        f'install -d -m 2770 -o {state_files.user_name(owner)} -g {group} '
        f'{folder}',
    ]
    return (
        'To share the folder with the services of other users, run as root: '
        f'{"; ".join(commands)}; then restart the services, the owner of the '
        'folder first'
    )


def _refused(path: str, reason: str) -> exception.JournalError:
    return exception.JournalError(path=path, reason=reason)
