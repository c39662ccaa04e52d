# SPDX-License-Identifier: Apache-2.0

"""The keys of those entries of device_spec that name device files.

Each reader takes the key and the value as JSON gives it. See spec_values.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import re
from typing import Any

from os_acc.spec import edits as spec_edits
from os_acc.spec import values as spec_values

#: The value of Spec.shared for ``"shared": true``.
ANY_NUMBER = 0

_MOST_SHARES = 1024
_GLOB = re.compile(r'/dev(/[!#-.0-\[\]-~]+)+')


def globs(key: str, value: Any) -> tuple[str, ...]:
    """Read globs of device files: a text, or a list of texts."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts:
        spec_values.refuse(key, value, 'a glob below /dev, or a list of globs')
    for each in texts:
        if (
            not isinstance(each, str)
            or not _GLOB.fullmatch(each)
            or {'.', '..', '**'} & set(each.split('/'))
            or not each.removeprefix('/dev/').strip('*/')
        ):
            spec_values.refuse(
                key,
                each,
                'a glob below /dev, such as /dev/dri/renderD*, without "..", '
                '"**", blanks, quotes or backslashes, that does not name '
                'every file',
            )
    return tuple(texts)


def shared(key: str, value: Any) -> int | None:
    """Read how many VANs may have a device at once.

    :returns: None for one only, ANY_NUMBER if their number is not limited
    """
    if value is False or value is None:
        return None
    if value is True:
        return ANY_NUMBER
    if type(value) is not int or not 1 <= value <= _MOST_SHARES:
        spec_values.refuse(
            key,
            value,
            f'true, false, or a number of VANs, 1 to {_MOST_SHARES}',
        )
    return int(value)


def permissions(key: str, value: Any) -> str:
    """Read what a container may do: letters of the devices cgroup."""
    if (
        not isinstance(value, str)
        or not value
        or not set(value) <= set('rwm')
        or len(set(value)) != len(value)
    ):
        spec_values.refuse(key, value, 'one or more of the letters r, w and m')
    return ''.join(each for each in 'rwm' if each in value)


@dataclasses.dataclass(frozen=True)
class Key:
    """A key that only an entry with ``devices`` may have.

    The text that is saved for a VAN, and the comparison of two entries, both
    go through these keys, so that neither can leave one out.

    :ivar read: takes the key and the value as JSON gives it
    :ivar write: turns a value back into what JSON gives
    :ivar field: the attribute of Spec that has the value; empty: it has the
        name of the key
    :ivar always: whether it is saved even if it has its default
    """

    read: Callable[[str, Any], Any]
    write: Callable[[Any], Any] = lambda value: value
    field: str = ''
    always: bool = False


#: By their names.
KEYS = {
    'devices': Key(globs, list),
    'with': Key(globs, list, 'companion_files'),
    'shared': Key(shared, lambda value: value or True),
    'owner': Key(spec_values.account),
    'group': Key(spec_values.account),
    'mode': Key(spec_values.mode, '{:04o}'.format),
    'permissions': Key(permissions, always=True),
    'keeps_data': Key(spec_values.flag),
}

# The other keys that such an entry may have.
_ALSO = spec_values.OF_EACH_KIND | {'deny'}

# What os-acc changes for the one VAN that has a file.
_OF_ONE_VAN = ('owner', 'group', 'mode')


def check(item: dict[str, Any]) -> None:
    """Check that the keys of an entry go together.

    :param item: the JSON object; each value has been read
    """
    if 'devices' not in item:
        for key in sorted(item.keys() & KEYS.keys()):
            spec_values.refuse(
                key, item[key], f'no {key} in an entry without devices'
            )
        return
    for key, value in item.items():
        if key not in KEYS and key not in _ALSO and value is not None:
            spec_values.refuse(
                key,
                value,
                f'no {key} in an entry with devices: it applies to PCI '
                'functions and mediated devices',
            )
    for key in ('vendor_id', 'product_id'):
        if item.get('deny') and key in item:
            spec_values.refuse(
                key,
                item[key],
                f'no {key} in an entry with devices and deny: it denies the '
                'files, whatever device they belong to',
            )
    if item.get('shared') not in (None, False):
        for key in _OF_ONE_VAN:
            if key in item:
                spec_values.refuse(
                    key,
                    item[key],
                    f'no {key} in an entry with shared: it is set for one '
                    'VAN, and restored when that is released',
                )


def fields(values: dict[str, Any]) -> dict[str, Any]:
    """Name values by the attributes of Spec.

    :param values: what was read, by key
    """
    return {_field(key): value for key, value in values.items()}


def _field(key: str) -> str:
    return KEYS[key].field or key if key in KEYS else key


def entry_of(spec: Any) -> dict[str, Any]:
    """The part of an entry that says how its files are given out, as in JSON.

    spec_reading.read() turns it back into an entry that gives out the same
    files in the same way, with the same additions to a container.

    :param spec: a spec_entry.Spec with devices
    """
    found: dict[str, Any] = {}
    for name, key in KEYS.items():
        value = getattr(spec, _field(name))
        if key.always or value != getattr(type(spec), _field(name)):
            found[name] = key.write(value)
    return found | spec_edits.entry_of(spec.edits)


def alike(one: Any, other: Any) -> bool:
    """Whether two entries give out the same files in the same way.

    :param one: a spec_entry.Spec with devices, as the other
    """
    return all(
        getattr(one, _field(name)) == getattr(other, _field(name))
        for name in KEYS.keys() - {'devices'}
    )
