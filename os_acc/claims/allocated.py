# SPDX-License-Identifier: Apache-2.0

"""Who has which device, as the journal knows it, and whom that excludes.

The package claims lies below the journal, so callers pass this in.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import functools

from os_acc.claims import facts
from os_acc.claims import identities
from os_acc.claims import meeting
from os_acc.claims import reader
from os_acc.claims import taken
from os_acc.claims import vans
from os_acc.kernel import file_place
from os_acc.spec import device_spec

#: The prefix of the identity of each handle of device files.
FILE = identities.FILE
file_in = identities.file_in
function_in = identities.function_in


ANYONE = vans.ANYONE
Holder = vans.Holder
Taker = vans.Taker
Unhealthy = vans.Unhealthy

#: The number of each device file, such as 'c 226:0', and its path.
Files = tuple[tuple[str, str], ...]


class Holders(vans.Vans):
    """The VANs that have or request handles, and whom that excludes.

    :ivar taker: the VAN that wants a device: see asked_by()
    :param reserved: why a device is reserved, by the address of its handle
    :param unhealthy: which devices have failed
    :param programmed: the addresses of devices that have been programmed
    :param files: finds the own device files of VANs, by the UUIDs of the VANs;
        called once, if needed
    :param specs: gives the entries of device_spec; called once, if needed
    :param set_up: lists the functions whose work queues os-acc apply sets up;
        called once, if needed
    :param many: whether many devices will be asked for: see taken
    """

    def __init__(
        self,
        holders: Iterable[Holder] = (),
        reserved: Mapping[str, str] | None = None,
        unhealthy: Unhealthy | None = None,
        programmed: Iterable[str] = (),
        files: Callable[[], Mapping[str, Files]] = dict,
        specs: Callable[[], device_spec.Specs] = device_spec.Specs,
        set_up: Callable[[], Iterable[str]] = tuple,
        many: bool = False,
    ) -> None:
        super().__init__()
        self.unhealthy = unhealthy or self.unhealthy
        self._reserved = reserved or {}
        self._list_set_up = set_up
        self._programmed = frozenset(map(_slot, programmed))
        self._by_handle: dict[str, Holder] = {}
        self._by_device: dict[str, list[Holder]] = {}
        self._by_file: dict[str, list[Holder]] = {}
        self._behind_file: dict[str, Holder] = {}
        there = [each for each in holders if each.handle is not None]
        self._taken = taken.Taken(
            lambda: _rows(there, files()),
            lambda: reader.Reader(specs(), self.is_programmed),
            many,
        )
        for each in there:
            assert each.handle is not None
            self._by_handle[each.handle] = each
            if each.device is not None:
                self._by_device.setdefault(each.device, []).append(each)
            if (name := file_in(each.handle)) is not None:
                self._by_file.setdefault(name, []).append(each)
                first = name.partition(file_place.SEPARATOR)[0]
                self._behind_file.setdefault(first, each)

    def __bool__(self) -> bool:
        return bool(self._by_handle)

    def in_the_way(
        self,
        handle: str,
        device: str | None,
        numbers: tuple[str, ...] = (),
        most: int = 0,
    ) -> list[meeting.Meeting]:
        if not self:
            return []
        van, instance = self.taker.van_uuid, self.taker.instance_uuid
        return self._taken.against(
            facts.Row(handle, device, van or '', instance or '', numbers, most)
        )

    def of_others(self, van_uuid: str) -> bool:
        """Whether a VAN but this one has or requests a handle."""
        return any(
            each.van_uuid != van_uuid for each in self._by_handle.values()
        )

    def of_handle(self, identity: str) -> Holder | None:
        return self._by_handle.get(identity)

    def of_function(self, address: str) -> Holder | None:
        whole = self._by_handle.get(f'pci/{address}')
        if whole is not None and whole.device is not None:
            return whole
        return self._behind_file.get(address, whole)

    def of_file(self, name: str) -> Sequence[Holder]:
        """The VANs that have device files, by DeviceFileHandle.name."""
        return self._by_file.get(name, ())

    def of_mdev(self, uuid: str) -> Holder | None:
        """The VAN that has a mediated device."""
        return self._by_handle.get(f'mdev/{uuid}')

    def reserved(self, address: str) -> str | None:
        return self._reserved.get(address)

    def is_programmed(self, address: str) -> bool:
        """Whether a device with the same PCI slot has been programmed."""
        return _slot(address) in self._programmed

    def is_set_up(self, address: str) -> bool:
        return address in self._set_up

    @functools.cached_property
    def _set_up(self) -> frozenset[str]:
        return frozenset(self._list_set_up())

    def on(self, device: str) -> Sequence[Holder]:
        return self._by_device.get(device, ())


def _rows(
    holders: Iterable[Holder], files: Mapping[str, Files]
) -> list[facts.Row]:
    return [
        facts.Row(
            each.handle or '',
            each.device,
            each.van_uuid,
            each.instance_uuid,
            tuple(number for number, _ in files.get(each.van_uuid, ())),
            paths=tuple(path for _, path in files.get(each.van_uuid, ())),
        )
        for each in holders
    ]


def _slot(address: str) -> str:
    """A PCI address without the number of the function."""
    return address.rpartition('.')[0]
