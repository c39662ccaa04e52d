# SPDX-License-Identifier: Apache-2.0

"""The keys of an entry of device_spec that offers NPUs by their device files.

Such an entry has the key ``npu``: a JSON object, which says to whom the device
file belongs while a VAN has it. Its other keys name PCI functions, as in every
entry.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

from os_acc.spec import values as spec_values

#: Its presence makes an entry one for NPUs.
KEY = 'npu'
#: The keys that no other entry has.
KEYS = frozenset({KEY})
#: What such an entry offers.
OFFERS = 'NPUs by their device files'
#: The resource classes if it sets none.
CLASSES = ('CUSTOM_NPU',)

_NAMING = frozenset({'address'})

_READERS: dict[str, Callable[[str, Any], Any]] = {
    'owner': spec_values.account,
    'group': spec_values.account,
    'mode': spec_values.mode,
}


@dataclasses.dataclass(frozen=True)
class Npu:
    """To whom the device file belongs while a VAN has it.

    :ivar owner: a user, by name or number, as group; None: it is not changed
    :ivar mode: its permissions; None: they are not changed
    """

    owner: str | None = None
    group: str | None = None
    mode: int | None = None


def read(
    item: dict[str, Any], common: dict[str, Callable[[str, Any], Any]]
) -> tuple[Npu, dict[str, Any]]:
    """Read an entry with the key npu.

    :param item: the JSON object
    :param common: the readers of the keys that every entry can have
    :returns: the settings, and the other values of spec_entry.Spec
    """
    also = _NAMING | spec_values.OF_EACH_KIND
    values = {}
    for key, value in item.items():
        if key in also:
            values[key] = common[key](key, value)
        elif key != KEY:
            spec_values.refuse_key(key, KEYS | also, ', in an entry with npu')
    return _settings(item[KEY]), values


def _settings(value: Any) -> Npu:
    if not isinstance(value, dict):
        spec_values.refuse(KEY, value, 'a JSON object, which may be empty')
    spec_values.check_keys(KEY, value, _READERS)
    return Npu(
        **{
            name: _READERS[name](f'{KEY}.{name}', each)
            for name, each in value.items()
        }
    )


def of_note(values: object) -> Npu | None:
    """Restore the settings from what dataclasses.asdict() has made of them.

    :returns: None if they are not such values
    """
    try:
        return Npu(**values) if isinstance(values, dict) else None
    except TypeError:
        return None
