# SPDX-License-Identifier: Apache-2.0

"""The configuration for this driver that a claim or a DeviceClass has.

Kubernetes does not look into it. It is an object in JSON, such as:

    {"apiVersion": "os-acc.openstack.org/v1", "kind": "AcceleratorConfig",
     "function": "aes-256"}

An unknown key is refused: otherwise a misspelled one would be ignored
silently. A DeviceClass is written by an administrator, a claim by any user. So
only a class may name a file to program.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import re
from typing import Any

from os_acc.texts import masking
from os_acc_dra import errors

API_VERSION = 'os-acc.openstack.org/v1'
KIND = 'AcceleratorConfig'

_NAME = re.compile(r'[A-Za-z0-9_][A-Za-z0-9_.:+@=-]{0,254}')


@dataclasses.dataclass(frozen=True)
class Configuration:
    """What is wanted from the devices of a request.

    :ivar function: the function that they are to have; it is programmed if
        they have another one
    :ivar bitstream: the file to program: a path, an https URL, or an image
    """

    function: str | None = None
    bitstream: str | None = None

    def selectors(self) -> dict[str, Any]:
        """The fields of os-acc's request for a device."""
        fields = {'function_id': self.function, 'bitstream': self.bitstream}
        return {name: value for name, value in fields.items() if value}


def _function(value: Any) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError('a name of letters, digits and _.:+@=-')


def _bitstream(value: Any) -> str:
    if isinstance(value, str) and 0 < len(value) <= 4096:
        return value
    raise ValueError('a path, an https URL or the UUID of an image')


_KEYS: Mapping[str, Callable[[Any], Any]] = {
    'function': _function,
    'bitstream': _bitstream,
}
_OF_CLASS = ('bitstream',)
_CLASS = 'FromClass'


def of_claim(
    claim: Mapping[str, Any], requests: Sequence[str], driver: str
) -> dict[str, Configuration]:
    """The configuration of each request of a claim.

    The entries of the class come first, and those of the claim after them, so
    the value of the claim counts for each key.

    :param claim: an allocated claim
    :param requests: MAIN or MAIN/SUB, as in the results
    :param driver: the name of this driver; entries of others are left out
    :raises ClaimRefused: if an entry is wrong; it names the entry and the key
    """
    found: dict[str, dict[str, Any]] = {each: {} for each in requests}
    entries = claim['status']['allocation']['devices'].get('config') or ()
    own = [
        (place, each)
        for place, each in enumerate(entries)
        if (each.get('opaque') or {}).get('driver') == driver
    ]
    # Stable: within a source the order stays.
    own.sort(key=lambda each: each[1]['source'] != _CLASS)
    for place, each in own:
        where = f'config[{place}] {each["source"]}'
        values = _read(each['opaque'].get('parameters'), where)
        if each['source'] != _CLASS:
            for name in values.keys() & _OF_CLASS:
                raise errors.ClaimRefused(
                    f'{where}: only a DeviceClass may have {name}'
                )
        for request in requests:
            if _is_for(each.get('requests') or (), request):
                found[request].update(values)
    return {name: Configuration(**values) for name, values in found.items()}


def _is_for(named: Sequence[str], request: str) -> bool:
    """Whether an entry is for a request; one that names none is for all."""
    return not named or request in named or request.partition('/')[0] in named


def _read(parameters: Any, where: str) -> dict[str, Any]:
    """Check the parameters of an entry.

    :param where: the entry, for errors
    """
    where = f'{where}: parameters'
    if not isinstance(parameters, Mapping):
        raise _refused(where, parameters, 'an object')
    for name, expected in (('apiVersion', API_VERSION), ('kind', KIND)):
        if parameters.get(name) != expected:
            raise _refused(
                f'{where}.{name}', parameters.get(name), repr(expected)
            )
    values = {
        name: value
        for name, value in parameters.items()
        if name not in ('apiVersion', 'kind')
    }
    for name, value in values.items():
        if name not in _KEYS:
            raise errors.ClaimRefused(
                f'{where}.{errors.plain(name):.100} is unknown; there are '
                f'{", ".join(_KEYS)}'
            )
        try:
            values[name] = _KEYS[name](value)
        except ValueError as err:
            raise _refused(f'{where}.{name}', value, str(err)) from err
    return values


def _refused(where: str, value: Any, expected: str) -> errors.ClaimRefused:
    # The events of a Pod show it to any user of its namespace.
    return errors.ClaimRefused(
        f'{where} is {masking.masked(value)!r:.100}, expected {expected}'
    )
