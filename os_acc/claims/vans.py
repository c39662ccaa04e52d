# SPDX-License-Identifier: Apache-2.0

"""What the rules need to know of VANs: who has a device, whom that excludes.

Root has no journal. For it, and for a caller without one, there are no VANs:
see Vans. With a journal, allocated.Holders answers.
"""

from __future__ import annotations

from collections.abc import Sequence
import copy
import dataclasses
from typing import Protocol
from typing import Self

from os_acc.claims import facts
from os_acc.kernel import file_place
from os_acc.kernel import pci
from os_acc.refusals import reasons


class Unhealthy(Protocol):
    """Which devices have failed, and are given to nobody."""

    def of_function(self, function: pci.Function) -> reasons.Reason | None:
        """Why nobody may have a PCI function: it or its PF has failed."""

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

    @property
    def called(self) -> str:
        """The name of the instance in texts: its UUID, or such as host:ovs."""


class Met(Protocol):
    """A VAN that excludes what is wanted: see meeting.Meeting."""

    @property
    def other(self) -> facts.Row:
        """What the VAN has."""

    @property
    def is_close(self) -> bool:
        """Whether it is about the device itself, or what it is a part of."""

    @property
    def reason(self) -> reasons.Reason:
        """Why what is wanted cannot be given out."""

    def taken(self, what: str | None = None) -> reasons.Reason:
        """Say that another instance has something."""


@dataclasses.dataclass(frozen=True)
class Taker:
    """The VAN and the instance that want a function."""

    van_uuid: str | None = None  # what this VAN has already is no obstacle
    # this instance may have other functions of the same IOMMU group
    instance_uuid: str | None = None
    # addresses of the functions that the instance has or gets. The host's use
    # of them is no obstacle to others of their IOMMU group
    functions: frozenset[str] = frozenset()


#: For discovery and reports, which ask for no VAN.
ANYONE = Taker()


class Vans:
    """No VAN is known.

    :ivar taker: who wants something; see asked_by()
    :ivar unhealthy: which devices have failed
    """

    def __init__(self) -> None:
        self.taker = ANYONE
        self.unhealthy: Unhealthy = _AllHealthy()

    def __bool__(self) -> bool:
        """Whether there are VANs."""
        return False

    def asked_by(self, taker: Taker) -> Self:
        """The same, for somebody who wants something."""
        made = copy.copy(self)
        made.taker = taker
        return made

    def in_the_way(
        self,
        handle: str,
        device: str | None,
        numbers: tuple[str, ...] = (),
        most: int = 0,
    ) -> Sequence[Met]:
        """Say which VANs exclude a handle, and why: see Taken.against().

        The parameters are as in facts.Row.
        """
        return ()

    def of_handle(self, identity: str) -> Holder | None:
        """The VAN that has a handle, by AttachHandle.identity."""
        return None

    def of_function(self, address: str) -> Holder | None:
        """The VAN that has a PCI function as a whole, or a file of it.

        A VAN that only requests the function comes last.
        """
        return None

    def has(self, van_uuid: str | None, address: str) -> bool:
        """Whether a VAN has a PCI function, and not only requests it."""
        whole = self.of_function(address)
        return (
            whole is not None
            and whole.device is not None
            and whole.van_uuid == van_uuid
        )

    def reserved(self, address: str) -> str | None:
        """Why nobody may have a handle until an operator frees it."""
        return None

    def is_set_up(self, address: str) -> bool:
        """Whether os-acc apply sets up the work queues of a function."""
        return False

    def on(self, device: str) -> Sequence[Holder]:
        """The VANs that have a device or a part of it."""
        return ()


# What the identities of attach handles say of their devices.

#: The prefix of the identity of each handle of device files.
FILE = 'file/'


def file_in(identity: str | None) -> str | None:
    """The name of a DeviceFileHandle, by its identity; None: it is not one."""
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
