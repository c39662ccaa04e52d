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
import functools
import json

from oslo_config import cfg

from os_acc import exception
from os_acc.devices import pci
from os_acc.devices import spec_entry
from os_acc.devices import spec_values
from os_acc.devices.spec_entry import BETWEEN_HOST
from os_acc.devices.spec_entry import BETWEEN_VFIO
from os_acc.devices.spec_entry import BIND_LIBVIRT
from os_acc.devices.spec_entry import BIND_NONE
from os_acc.devices.spec_entry import BIND_OS_ACC
from os_acc.devices.spec_entry import BINDS
from os_acc.devices.spec_entry import Spec

__all__ = (
    'BETWEEN_HOST',
    'BETWEEN_VFIO',
    'BINDS',
    'BIND_LIBVIRT',
    'BIND_NONE',
    'BIND_OS_ACC',
    'Spec',
    'Specs',
    'load',
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
            if spec.matches_parent(name):
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
            spec_values.refuse('JSON', text, f'a JSON object ({err})')
        for item in parsed if isinstance(parsed, list) else [parsed]:
            if not isinstance(item, dict):
                spec_values.refuse('entry', item, 'a JSON object')
            entries.append(spec_entry.read(item))
    return Specs(tuple(entries))
