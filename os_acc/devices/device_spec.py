# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The option device_spec: which devices of the host os-acc may touch.

Its syntax is that of Nova's ``[pci] device_spec``: JSON objects, each of which
names devices and says how they are offered.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import json
import re
import shlex
from typing import Any
from typing import NoReturn

from oslo_config import cfg

from os_acc import exception
from os_acc.devices import pci
from os_acc.devices import reset

BIND_OS_ACC, BIND_LIBVIRT, BIND_NONE = 'os-acc', 'libvirt', 'none'
BINDS = (BIND_OS_ACC, BIND_LIBVIRT, BIND_NONE)

#: Placeholders in commands, written in braces. The first five name the device.
PLACEHOLDERS = (
    'address',
    'domain',
    'bus',
    'device',
    'function',
    'region',
    'file',
    'function_id',
)
_LISTED = ', '.join(f'{{{name}}}' for name in PLACEHOLDERS)

_HEX = re.compile(r'(?:0x)?([0-9a-f]{4})', re.I)
_CUSTOM = re.compile(r'CUSTOM_[A-Z0-9_]{1,248}')
_MANAGED = {'yes': True, 'true': True, 'no': False, 'false': False}


@dataclasses.dataclass(frozen=True)
class Spec:
    """One entry of the option.

    :ivar address: a glob over PCI addresses, or over names of mdev parents
    :ivar bind: who binds a function to VFIO; None: as the driver's option
    :ivar num_vfs: how many VFs os-acc creates on a PF; None: none
    :ivar reset: one of reset.MODES; None: as the driver's option
    :ivar mdev_types: the mdev types that may be made; empty: all
    :ivar vgpu_type: the vGPU type, by id or name, that its VFs get
    :ivar max_instances: how many vGPUs of the type one card can have; None: as
        the vendor's software says
    :ivar programming: single or dynamic, as in objects.Device
    :ivar program: the command that programs a device, see
        privileged.programming
    :ivar check: the command that checks which function a device contains
    :ivar clear: the command that removes the function from a device
    :ivar function_file: a glob below the device's folder in sysfs, for the
        file that contains the id of the device's function
    :ivar persistent: whether a device keeps its function over a reboot of the
        host
    :ivar region_type: the region type that bitstreams must be made for
    """

    address: str = '*'
    vendor_id: str | None = None
    product_id: str | None = None
    resource_class: str | None = None
    traits: tuple[str, ...] = ()
    bind: str | None = None
    num_vfs: int | None = None
    reset: str | None = None
    mdev_types: tuple[str, ...] = ()
    vgpu_type: str | None = None
    max_instances: int | None = None
    programming: str = 'single'
    program: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    clear: tuple[str, ...] = ()
    function_file: str | None = None
    persistent: bool = False
    region_type: str | None = None

    def matches(self, function: pci.Function) -> bool:
        """Whether the entry names a function or, for a VF, its PF."""
        if self._is(function):
            return True
        parent = function.physfn
        found = pci.find(parent) if parent is not None else None
        return found is not None and self._is(found)

    def _is(self, function: pci.Function) -> bool:
        return (
            fnmatch.fnmatchcase(function.address, self.address)
            and self.vendor_id in (None, function.vendor_id)
            and self.product_id in (None, function.product_id)
        )


_ANY = Spec()


@dataclasses.dataclass(frozen=True)
class Specs:
    """All entries. The first one that names a device counts."""

    entries: tuple[Spec, ...] = ()

    def find(self, function: pci.Function) -> Spec | None:
        """The entry for a function.

        :returns: None if the option is set and does not name it
        """
        if not self.entries:
            return _ANY
        for spec in self.entries:
            if spec.matches(function):
                return spec
        return None

    def find_parent(self, name: str) -> Spec | None:
        """The entry for a parent of mdevs, which may be no PCI function."""
        if pci.is_address(name):
            function = pci.find(name)
            return self.find(function) if function is not None else None
        if not self.entries:
            return _ANY
        for spec in self.entries:
            if (
                spec.vendor_id is None
                and spec.product_id is None
                and fnmatch.fnmatchcase(name, spec.address)
            ):
                return spec
        return None

    def check(self, function: pci.Function) -> Spec:
        """The entry for a function.

        :raises DeviceNotFound: if the option is set and does not name it
        """
        return _named(self.find(function), f'PCI function {function.address}')

    def check_parent(self, name: str) -> Spec:
        """The entry for a parent of mdevs. See check()."""
        if pci.is_address(name):
            pci.get(name)
        return _named(self.find_parent(name), f'mdev parent {name}')


def _named(spec: Spec | None, device: str) -> Spec:
    if spec is None:
        raise exception.DeviceNotFound(
            wanted=device,
            reason='[os_acc] device_spec does not name it, so os-acc does not '
            'touch it',
        )
    return spec


def load(conf: cfg.ConfigOpts) -> Specs:
    """Read ``[os_acc] device_spec``.

    :raises InvalidRequest: if it is malformed; the error names key and value
    """
    return _parse(tuple(conf.os_acc.device_spec))


@functools.lru_cache(maxsize=8)
def _parse(texts: tuple[str, ...]) -> Specs:
    entries: list[Spec] = []
    for text in texts:
        try:
            parsed = json.loads(text)
        except ValueError as err:
            _refuse('JSON', text, f'a JSON object ({err})')
        for item in parsed if isinstance(parsed, list) else [parsed]:
            if not isinstance(item, dict):
                _refuse('entry', item, 'a JSON object')
            entries.append(_spec(item))
    return Specs(tuple(entries))


def _spec(item: dict[str, Any]) -> Spec:
    values: dict[str, Any] = {}
    for key in item:
        if key not in _READERS:
            _refuse('key', key, f'one of {", ".join(sorted(_READERS))}')
    for key, (name, read) in _READERS.items():
        if key in item:
            values.setdefault(name, read(key, item[key]))
    return Spec(**values)


def _glob(key: str, value: Any) -> str:
    text = _text(key, value)
    if ':' not in text:
        return text
    # Nova accepts an address without the domain, too.
    text = text.lower().lstrip(':')
    return text if text.count(':') > 1 else f'*:{text}'


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        _refuse(key, value, 'a text')
    return str(value).strip()


def _id(key: str, value: Any) -> str | None:
    if value == '*':
        return None
    match = _HEX.fullmatch(str(value))
    if match is None:
        _refuse(key, value, '4 hex digits')
    return match[1].lower()


def _name(key: str, value: Any, standard: Any) -> str:
    """A resource class or trait: a custom or a standard one."""
    text = _text(key, value).upper()
    if not _CUSTOM.fullmatch(text) and text not in standard():
        _refuse(
            key, value, 'a standard name, or CUSTOM_ with A to Z, 0 to 9, _'
        )
    return text


def _resource_class(key: str, value: Any) -> str:
    import os_resource_classes

    return _name(key, value, lambda: os_resource_classes.STANDARDS)


def _traits(key: str, value: Any) -> tuple[str, ...]:
    import os_traits

    return tuple(
        _name(key, item, os_traits.get_traits) for item in _texts(key, value)
    )


def _texts(key: str, value: Any) -> tuple[str, ...]:
    """A list, or, as in Nova, a text with commas."""
    items = value.split(',') if isinstance(value, str) else value
    if not isinstance(items, list):
        _refuse(key, value, 'a list, or a text with commas')
    return tuple(_text(key, item) for item in items)


def _command(key: str, value: Any) -> tuple[str, ...]:
    """A list of arguments, or a text that is split as a shell would."""
    try:
        words = value if isinstance(value, list) else shlex.split(value)
    except (AttributeError, TypeError, ValueError):
        words = []
    if not words or not all(isinstance(word, str) for word in words):
        _refuse(key, value, 'a command, or a list of its arguments')
    if not words[0].startswith('/'):
        _refuse(key, value, 'a command by its absolute path')
    for name in re.findall(r'\{(.*?)\}', ' '.join(words)):
        if name not in PLACEHOLDERS:
            _refuse(
                key,
                value,
                f'only the placeholders {_LISTED}',
            )
    return tuple(words)


def _below(key: str, value: Any) -> str:
    text = _text(key, value)
    if text.startswith('/') or '..' in text.split('/'):
        _refuse(key, value, 'a glob below the folder of the device in sysfs')
    return text


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        _refuse(key, value, 'true or false')
    return bool(value)


def _count(key: str, value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if isinstance(value, bool) or not 1 <= number <= 65535:
        what = 'VFs' if key == 'num_vfs' else 'instances'
        _refuse(key, value, f'a number of {what}, 1 to 65535')
    return number


def _managed(key: str, value: Any) -> str:
    managed = _MANAGED.get(str(value).lower())
    if managed is None:
        _refuse(key, value, "'yes' (libvirt binds) or 'no'")
    return BIND_LIBVIRT if managed else BIND_OS_ACC


def _one_of(*choices: str) -> Any:
    def read(key: str, value: Any) -> str:
        if value not in choices:
            _refuse(key, value, f'one of {", ".join(choices)}')
        return str(value)

    return read


# bind comes before managed, so that it wins if both are given.
_READERS: dict[str, tuple[str, Any]] = {
    'address': ('address', _glob),
    'vendor_id': ('vendor_id', _id),
    'product_id': ('product_id', _id),
    'resource_class': ('resource_class', _resource_class),
    'traits': ('traits', _traits),
    'bind': ('bind', _one_of(*BINDS)),
    'managed': ('bind', _managed),
    'num_vfs': ('num_vfs', _count),
    'reset': ('reset', _one_of(*reset.MODES)),
    'mdev_types': ('mdev_types', _texts),
    'vgpu_type': ('vgpu_type', _text),
    'max_instances': ('max_instances', _count),
    'programming': ('programming', _one_of('single', 'dynamic')),
    'program': ('program', _command),
    'check': ('check', _command),
    'clear': ('clear', _command),
    'function_file': ('function_file', _below),
    'persistent': ('persistent', _flag),
    'region_type': ('region_type', _text),
}


def _refuse(field: str, value: Any, expected: str) -> NoReturn:
    raise exception.InvalidRequest(
        subject='[os_acc] device_spec',
        field=field,
        value=value,
        expected=expected,
    )
