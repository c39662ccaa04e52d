# SPDX-License-Identifier: Apache-2.0

"""Reads what the target host of a move answers.

It may be another version of os-acc, or something else altogether. So each
value is checked, and no text of it can control the terminal.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
import dataclasses
from typing import Any
from typing import NoReturn

from os_acc import exception
from os_acc import objects
from os_acc.moving import storage

# The longest text of the target that is shown, in characters.
_LONGEST = 2000
# What a process can exit with that no signal has ended; 0 is a success.
_CODES = range(1, 126)


@dataclasses.dataclass(frozen=True)
class Look:
    """What is in the way on the target.

    :ivar plugins: those that its VANs would have; none if it is not known
    :ivar seen: what it sees of the guest's files
    """

    obstacles: list[str]
    plugins: list[str]
    seen: storage.Seen


def look(answer: Mapping[str, Any]) -> Look:
    """Read the answer to the call look.

    An earlier version answers only the inodes of files.
    """
    inodes = _mapping(answer, 'files', {})
    for path, inode in inodes.items():
        if inode is not None and not _is_number(inode):
            _refuse('files', {path: inode}, 'the inode of each path')
    boot_id = answer.get('boot_id')
    if boot_id is not None and not isinstance(boot_id, str):
        _refuse('boot_id', boot_id, 'a string')
    return Look(
        [printable(each) for each in _texts(answer, 'obstacles')],
        [printable(each) for each in _texts(answer, 'plugins')],
        storage.Seen(inodes, _files(answer), boot_id),
    )


def of_look(
    obstacles: list[str], plugins: Collection[str], seen: storage.Seen
) -> dict[str, Any]:
    """Write the answer to the call look, which look() reads."""
    return {
        'obstacles': obstacles,
        'plugins': sorted(plugins),
        'files': seen.inodes,
        'details': {
            path: dataclasses.asdict(each) for path, each in seen.files.items()
        },
        'boot_id': seen.boot_id,
    }


def vans(
    answer: Mapping[str, Any], expected: Collection[str]
) -> list[objects.VAN]:
    """Read the VANs in an answer."""
    try:
        made = objects.VANList.obj_from_primitive(answer['vans'])
        found = {van.uuid: van for van in made.objects}
        is_whole = all(isinstance(van, objects.VAN) for van in made.objects)
    except Exception as err:
        raise _error(f'vans: {exception.describe(err)}') from err
    if (
        not is_whole
        or found.keys() != set(expected)
        or len(found) != len(made.objects)
    ):
        _refuse('vans', list(found), f'the VANs {", ".join(expected)}')
    return list(made.objects)


def check_aborted(answer: Mapping[str, Any]) -> None:
    """Check the answer to the call abort."""
    if not _is_number(answer.get('aborted')):
        _refuse('aborted', answer.get('aborted'), 'a number of VANs')


def error(found: Any, called: str) -> exception.TargetError:
    """Make an error of what the target has answered."""
    read = found if isinstance(found, Mapping) else {}
    name, text = read.get('class'), read.get('text')
    code: Any = read.get('code')
    if not isinstance(name, str) or not isinstance(text, str):
        return exception.TargetError(
            target=called,
            reason=f'wrong answer: error is {_shown(found)}, expected its '
            'class and its text',
        )
    return exception.TargetError(
        name=name,
        code=code if _is_number(code) and code in _CODES else 1,
        target=called,
        reason=printable(text),
    )


def printable(text: str) -> str:
    """Write a text of the target in one line, without control characters."""
    line = ' '.join(text[:_LONGEST].split())
    return ''.join(
        each if each.isprintable() else ascii(each)[1:-1] for each in line
    )


def _files(answer: Mapping[str, Any]) -> dict[str, storage.File]:
    """Read what an answer says about files; nothing of an earlier version."""
    kinds: dict[str, Callable[[Any], bool]] = {
        'size': _is_number,
        'device': _is_number,
        'file_system': lambda each: each is None or isinstance(each, str),
    }
    found = {}
    for path, each in _mapping(answer, 'details', {}).items():
        if not isinstance(each, Mapping) or not all(
            is_right(each.get(name)) for name, is_right in kinds.items()
        ):
            _refuse('details', {path: each}, 'size, device and file_system')
        kind = each.get('file_system')
        found[path] = storage.File(
            each['size'], each['device'], kind and printable(kind)
        )
    return found


def _mapping(
    answer: Mapping[str, Any], field: str, default: Any = None
) -> dict[str, Any]:
    found = answer.get(field, default)
    if not isinstance(found, dict):
        _refuse(field, found, 'an object with a key for each path')
    return found


def _texts(answer: Mapping[str, Any], field: str) -> list[str]:
    found = answer.get(field)
    if not isinstance(found, list) or not all(
        isinstance(each, str) for each in found
    ):
        _refuse(field, found, 'a list of strings')
    return found


def _is_number(value: Any) -> bool:
    """Whether a value is a whole number that is not negative."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and value >= 0


def _shown(value: Any) -> str:
    return printable(repr(value)[:200])


def _refuse(field: str, value: Any, expected: str) -> NoReturn:
    raise _error(f'{field} is {_shown(value)}, expected {expected}')


def _error(reason: str) -> exception.TargetError:
    return exception.TargetError(
        target='of the migration', reason=f'wrong answer: {printable(reason)}'
    )
