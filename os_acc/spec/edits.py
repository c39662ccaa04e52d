# SPDX-License-Identifier: Apache-2.0

"""What else a container gets with a device: "env", "mounts" and "hooks".

The keys of an entry of device_spec have the form that they have in a CDI
spec, so that they can be copied from one:
https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md. The
readers are as those in spec_values.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
import dataclasses
import posixpath
import re
from typing import Any

from os_acc.spec import values as spec_values

#: When a runtime runs a hook: validHookNames in pkg/cdi/container-edits.go.
HOOK_NAMES = (
    'prestart',
    'createRuntime',
    'createContainer',
    'startContainer',
    'poststart',
    'poststop',
)

_VARIABLE = re.compile(r'[A-Za-z_][A-Za-z0-9_]*=[^\x00-\x08\x0a-\x1f\x7f]*')
_PATH = re.compile(r'/[^\x00-\x1f\x7f]*')
_WORD = re.compile(r'[A-Za-z0-9_.:/=@%+-]+')
_LONGEST_WAIT = 24 * 3600


@dataclasses.dataclass(frozen=True)
class Mount:
    """A file or directory of the host that the container sees.

    :ivar type: the type of the file system; None: the runtime decides
    """

    host_path: str
    container_path: str
    type: str | None = None
    options: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Hook:
    """A program that the runtime runs on the host.

    :ivar name: one of HOOK_NAMES
    :ivar args: the arguments, the first of which is the program's own name
    :ivar timeout: in seconds; None: none
    """

    name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


@dataclasses.dataclass(frozen=True)
class Edits:
    """What the entry of a device adds to the container."""

    env: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()


def env(key: str, value: Any) -> tuple[str, ...]:
    """Read variables of the environment, such as ``NAME=value``."""
    read = tuple(_variable(key, each) for each in _list(key, value))
    _unique(key, value, (each.partition('=')[0] for each in read), 'variable')
    return read


def mounts(key: str, value: Any) -> tuple[Mount, ...]:
    """Read mounts: hostPath, containerPath, type and options."""
    read = tuple(
        Mount(**_object(key, each, _MOUNT, ('hostPath', 'containerPath')))
        for each in _list(key, value)
    )
    _unique(key, value, (each.container_path for each in read), 'path')
    return read


def hooks(key: str, value: Any) -> tuple[Hook, ...]:
    """Read hooks: hookName, path, args, env and timeout."""
    return tuple(
        Hook(**_object(key, each, _HOOK, ('hookName', 'path')))
        for each in _list(key, value)
    )


def entry_of(edits: Edits) -> dict[str, Any]:
    """Write edits as env(), mounts() and hooks() read them."""
    found = {
        'env': list(edits.env),
        'mounts': [_written(each, _MOUNT) for each in edits.mounts],
        'hooks': [_written(each, _HOOK) for each in edits.hooks],
    }
    return {key: value for key, value in found.items() if value}


def _written(edit: Mount | Hook, keys: _Keys) -> dict[str, Any]:
    values = {key: getattr(edit, field) for key, (field, _) in keys.items()}
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in values.items()
        if value
    }


def _object(
    key: str, value: Any, keys: _Keys, needed: Iterable[str]
) -> dict[str, Any]:
    """Read an object; the errors name its keys as ``mounts.hostPath``.

    :returns: the values, by the names of the fields
    """
    if not isinstance(value, dict):
        spec_values.refuse(key, value, 'a list of objects')
    if not value.keys() <= keys.keys():
        spec_values.refuse(key, value, f'only the keys {", ".join(keys)}')
    for name in needed:
        if name not in value:
            spec_values.refuse(key, value, f'an object with {name}')
    return {
        keys[name][0]: keys[name][1](f'{key}.{name}', each)
        for name, each in value.items()
    }


def _list(key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        spec_values.refuse(key, value, 'a list')
    return value


def _variable(key: str, value: Any) -> str:
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        spec_values.refuse(
            key,
            value,
            'NAME=value, with a name of letters, digits and underscores that '
            'does not begin with a digit, and a value without control '
            'characters',
        )
    return value


def _path(key: str, value: Any) -> str:
    if (
        not isinstance(value, str)
        or not _PATH.fullmatch(value)
        or posixpath.normpath(value) != value
        or value.startswith('//')
    ):
        spec_values.refuse(
            key, value, 'an absolute path without "." and ".." in it'
        )
    return value


def _word(key: str, value: Any) -> str:
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        spec_values.refuse(key, value, 'a word without blanks and commas')
    return value


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or '\0' in value:
        spec_values.refuse(key, value, 'a string without null characters')
    return value


def _seconds(key: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= _LONGEST_WAIT:
        spec_values.refuse(key, value, f'seconds, 1 to {_LONGEST_WAIT}')
    return int(value)


def _unique(key: str, value: Any, names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            spec_values.refuse(key, value, f'each {what} once: {name}')
        seen.add(name)


def _words(key: str, value: Any) -> tuple[str, ...]:
    return tuple(_word(key, each) for each in _list(key, value))


def _texts(key: str, value: Any) -> tuple[str, ...]:
    return tuple(_text(key, each) for each in _list(key, value))


# By the key of the JSON object: the field, and the function that reads it.
_Keys = dict[str, tuple[str, Callable[[str, Any], Any]]]

_MOUNT: _Keys = {
    'hostPath': ('host_path', _path),
    'containerPath': ('container_path', _path),
    'type': ('type', _word),
    'options': ('options', _words),
}
_HOOK: _Keys = {
    'hookName': ('name', spec_values.one_of(*HOOK_NAMES)),
    'path': ('path', _path),
    'args': ('args', _texts),
    'env': ('env', env),
    'timeout': ('timeout', _seconds),
}
