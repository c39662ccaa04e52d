# SPDX-License-Identifier: Apache-2.0

"""The hardware of the driver fake: a directory of files.

Each handle in use has a file that names the VAN that uses it. The file is
created exclusively, so that two users of one handle are detected even if the
journal is wrong. Each programmed device has a file with its function and the
number of times that it was programmed.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import dataclasses
import json
import os
import re
from typing import Any
from typing import NamedTuple
import urllib.parse
import uuid

from oslo_config import cfg

from os_acc import exception
from os_acc import objects
from os_acc import programming
from os_acc import progress
from os_acc.programming import bitstreams
from os_acc.spec import device_spec
from os_acc.state import files as state_files

_DEVICE = re.compile(
    r'(?P<name>\w[\w.-]*):(?P<kind>test|pci|mdev|drc):(?P<count>[0-9]{1,3})'
    r'(:(?P<programming>none|single|dynamic))?'
)
# No host has this PCI domain or such an mdev: a fake handle never names a
# real device.
_DOMAIN = 'ffff'
_NAMESPACE = uuid.UUID('4a1c8d6e-9b0f-5b57-8d0e-0a5ac0fa4e00')


class Choice(NamedTuple):
    """A handle of a device.

    :ivar region: the region that it belongs to; '' if the device is
        programmed as a whole, None if it cannot be programmed
    """

    device: str
    region: str | None
    handle: objects.AttachHandle


@dataclasses.dataclass(frozen=True)
class FakeDevice:
    """A device of the option ``devices``."""

    name: str
    type: str
    handles: list[objects.AttachHandle]
    programming: str

    @classmethod
    def parse(cls, text: str, number: int) -> FakeDevice:
        """Read NAME:TYPE:HANDLES[:PROGRAMMING].

        :param number: the device's index in the option; its PCI bus number
        """
        match = _DEVICE.fullmatch(text)
        if match is None or int(match['count']) > 256:
            raise exception.InvalidRequest(
                subject='[os_acc_fake]',
                field='devices',
                value=text,
                expected='NAME:TYPE:HANDLES[:PROGRAMMING], TYPE one of test, '
                'pci, mdev, drc, HANDLES at most 256, PROGRAMMING one of '
                'none, single, dynamic',
            )
        name, kind = match['name'], match['kind']
        handles = [
            _handle(name, kind, number, index)
            for index in range(int(match['count']))
        ]
        return cls(name, kind, handles, match['programming'] or 'none')

    @property
    def choices(self) -> list[Choice]:
        """The device's handles, with the region of each."""
        regions = {'none': None, 'single': ''}
        return [
            Choice(
                self.name, regions.get(self.programming, str(index)), handle
            )
            for index, handle in enumerate(self.handles)
        ]

    @property
    def regions(self) -> list[str]:
        """The regions that are programmed separately; '': the whole device."""
        found = dict.fromkeys(each.region for each in self.choices)
        return [region for region in found if region is not None]

    @property
    def resource_class(self) -> str:
        return f'CUSTOM_FAKE_{self.type.upper()}'


def _handle(
    device: str, kind: str, number: int, index: int
) -> objects.AttachHandle:
    if kind == 'pci':
        return objects.PCIHandle(
            address=f'{_DOMAIN}:{number:02x}:{index // 8:02x}.{index % 8}'
        )
    if kind == 'mdev':
        return objects.MdevHandle(
            uuid=uuid.uuid5(_NAMESPACE, f'{device}/{index}'),
            parent=device,
            type='fake-1',
        )
    if kind == 'drc':
        return objects.DRCHandle(drc_index=0xFA4E0000 + number * 256 + index)
    return objects.TestHandle(name=f'{device}-{index}')


class Hardware:
    """The directory that stands for the hardware.

    Many threads and processes may use it at the same time.

    :param path: of the directory; empty: fake-hardware in state_path
    """

    def __init__(self, path: str) -> None:
        self.path = path or os.path.join(
            cfg.CONF.os_acc.state_path, 'fake-hardware'
        )

    def take(self, handle: str, van_uuid: str, instance_uuid: str) -> None:
        """Start the use of a handle, unless the VAN has it already."""
        mine = {'van': van_uuid, 'instance': instance_uuid}
        state_files.make_directory(self.path)
        # Written under another name, then linked: nobody reads half a file.
        path = self._file('handle', handle)
        fd, new = state_files.new_file(self.path)
        with open(fd, 'w', encoding='utf-8') as file:
            json.dump(mine, file)
        try:
            os.link(new, path)
        except FileExistsError:
            other = self._read(path)
            if other != mine:
                raise exception.DeviceBusy(
                    device=handle, holder=f'VAN {other.get("van")}'
                ) from None
        finally:
            os.unlink(new)

    def give_back(self, handle: str, van_uuid: str) -> None:
        """End the use of a handle, if this VAN has it."""
        path = self._file('handle', handle)
        if self._read(path).get('van') == van_uuid:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def in_use(self) -> dict[str, dict[str, str]]:
        """The handles in use: identity -> {'van': UUID, 'instance': UUID}."""
        if not os.path.isdir(self.path):
            return {}
        return {
            urllib.parse.unquote(name.removeprefix('handle-')): self._read(
                os.path.join(self.path, name)
            )
            for name in os.listdir(self.path)
            if name.startswith('handle-')
        }

    def function_of(self, device: str) -> str | None:
        """The function that a device contains; None: none."""
        function: str | None = self._read(self._file('device', device)).get(
            'function'
        )
        return function

    def times(self, device: str) -> int:
        """How often a device, or a region of it, was programmed."""
        count: int = self._read(self._file('device', device)).get(
            'programmed', 0
        )
        return count

    def program(self, device: str, function_id: str) -> None:
        """Store a device's new function. The caller holds the slot's lock."""
        state_files.make_directory(self.path)
        path = self._file('device', device)
        count = self._read(path).get('programmed', 0)
        fd, new = state_files.new_file(self.path)
        with open(fd, 'w', encoding='utf-8') as file:
            json.dump({'function': function_id, 'programmed': count + 1}, file)
        os.replace(new, path)

    def _file(self, kind: str, name: str) -> str:
        quoted = urllib.parse.quote(name, safe=':')
        return os.path.join(self.path, f'{kind}-{quoted}')

    @staticmethod
    def _read(path: str) -> dict[str, Any]:
        try:
            with open(path, encoding='utf-8') as file:
                content: dict[str, Any] = json.load(file)
                return content
        except FileNotFoundError:
            return {}


class Programmer(programming.Programmer):
    """Writes the function into the file that stands for the hardware.

    :param step: takes the time of a programming, and fails, as the options say
    """

    @property
    def can_clear(self) -> bool:
        return True

    def __init__(
        self,
        device: str,
        name: str,
        hardware: Hardware,
        step: Callable[[progress.Report], None],
    ) -> None:
        super().__init__(device)
        self._name, self._hardware, self._step = name, hardware, step

    def program(
        self,
        file: bitstreams.Bitstream | None,
        function_id: str | None,
        report: progress.Report,
    ) -> str:
        self._step(report)
        digest = file.sha256 if file is not None else None
        self._hardware.program(self._name, function_id or f'sha256-{digest}')
        return device_spec.PARTIAL

    def clear(self) -> None:
        self._hardware.program(self._name, '')

    def look(self) -> str:
        return self._hardware.function_of(self._name) or ''
