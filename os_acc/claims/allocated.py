# SPDX-License-Identifier: Apache-2.0

"""Who has which device, as the journal knows it, in plain data.

The package claims lies below the journal, so callers pass this in.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Protocol

from os_acc.kernel import file_place
from os_acc.kernel import pci
from os_acc.refusals import reasons

#: How the identities of handles begin whose devices are device files.
FILE = 'file/'


class Unhealthy(Protocol):
    """Which devices have failed, and are given to nobody."""

    def of_function(self, function: pci.Function) -> reasons.Reason | None:
        """Why nobody may have a PCI function; also if its PF has failed."""

    def of_device(self, address: str) -> reasons.Reason | None:
        """Why nobody may have a device, which may be no PCI function."""


class _AllHealthy:
    def of_function(self, function: pci.Function) -> None:
        return None

    def of_device(self, address: str) -> None:
        return None


class Holder(Protocol):
    """A VAN as the journal knows it."""

    @property
    def handle(self) -> str | None:
        """The identity of its handle, or of the handle that it requests."""

    @property
    def device(self) -> str | None:
        """The handle's device: for a VF its PF. None: only requested yet."""

    @property
    def van_uuid(self) -> str: ...

    @property
    def instance_uuid(self) -> str: ...


class Holders:
    """The VANs that have or request handles, by handle and by device.

    :param reserved: why a device is reserved, by the address of its handle
    :param unhealthy: which devices have failed
    :param programmed: the addresses of devices that have been programmed
    """

    def __init__(
        self,
        holders: Iterable[Holder] = (),
        reserved: Mapping[str, str] | None = None,
        unhealthy: Unhealthy | None = None,
        programmed: Iterable[str] = (),
    ) -> None:
        self.unhealthy: Unhealthy = unhealthy or _AllHealthy()
        self._reserved = reserved or {}
        self._programmed = frozenset(map(_slot, programmed))
        self._by_handle: dict[str, Holder] = {}
        self._by_device: dict[str, list[Holder]] = {}
        self._by_file: dict[str, list[Holder]] = {}
        self._behind_file: dict[str, Holder] = {}
        for each in holders:
            if each.handle is None:
                continue
            self._by_handle[each.handle] = each
            if each.device is not None:
                self._by_device.setdefault(each.device, []).append(each)
            if (name := file_in(each.handle)) is not None:
                self._by_file.setdefault(name, []).append(each)
                first = name.partition(file_place.SEPARATOR)[0]
                self._behind_file.setdefault(first, each)

    def __bool__(self) -> bool:
        return bool(self._by_handle)

    def of_handle(self, identity: str) -> Holder | None:
        """The VAN that has a handle, by AttachHandle.identity."""
        return self._by_handle.get(identity)

    def of_function(self, address: str) -> Holder | None:
        """The VAN that has a PCI function as a whole, or a file of it.

        A VAN that only requests the function comes last.
        """
        whole = self._by_handle.get(f'pci/{address}')
        if whole is not None and whole.device is not None:
            return whole
        return self._behind_file.get(address, whole)

    def of_file(self, name: str) -> Sequence[Holder]:
        """The VANs that have device files, by DeviceFileHandle.name."""
        return self._by_file.get(name, ())

    def file_of_mdev(self, uuid: str) -> Holder | None:
        """The VAN that has a device file of a mediated device."""
        return self._behind_file.get(uuid)

    def has(self, van_uuid: str | None, address: str) -> bool:
        """Whether a VAN has a PCI function, and not only requests it."""
        whole = self.of_function(address)
        return (
            whole is not None
            and whole.device is not None
            and whole.van_uuid == van_uuid
        )

    def of_mdev(self, uuid: str) -> Holder | None:
        """The VAN that has a mediated device."""
        return self._by_handle.get(f'mdev/{uuid}')

    def reserved(self, address: str) -> str | None:
        """Why nobody may have a handle until an operator frees it."""
        return self._reserved.get(address)

    def is_programmed(self, address: str) -> bool:
        """Whether a device with the same PCI slot has been programmed."""
        return _slot(address) in self._programmed

    def on(self, device: str) -> Sequence[Holder]:
        """The VANs that have a device or a part of it."""
        return self._by_device.get(device, ())


def file_in(identity: str | None) -> str | None:
    """The name of a DeviceFileHandle, by its identity; None: it is no such."""
    if identity is None or not identity.startswith(FILE):
        return None
    return identity.removeprefix(FILE).partition('/')[0]


def function_in(identity: str | None) -> str | None:
    """The address of the PCI function that a handle stands for.

    :param identity: of a PCIHandle, or of a DeviceFileHandle with a function
        behind its files; None for any other
    """
    if (name := file_in(identity)) is not None:
        return file_place.function_in(name)
    kind, _, address = (identity or '').partition('/')
    return address if kind == 'pci' and pci.is_address(address) else None


def _slot(address: str) -> str:
    """A PCI address without the number of the function."""
    return address.rpartition('.')[0]


@dataclasses.dataclass(frozen=True)
class Taker:
    """The VAN and the instance that want a function.

    :ivar van_uuid: what this VAN has already is no obstacle
    :ivar instance_uuid: this instance may have other functions of the same
        IOMMU group
    :ivar functions: addresses of the functions that the instance has or gets.
        The host's use of them is no obstacle to others of their IOMMU group
    """

    van_uuid: str | None = None
    instance_uuid: str | None = None
    functions: frozenset[str] = frozenset()


#: For discovery and reports, which ask for no VAN.
ANYONE = Taker()
