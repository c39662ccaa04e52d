# SPDX-License-Identifier: Apache-2.0

"""What claims need to know of a host: one object, which is read once.

See reader for the one that reads a real host.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """A PCI function."""

    address: str
    parent: str  # the address of its PF; its own, if it is no VF
    group: str | None = None  # its IOMMU group; None: it has none
    # the addresses of the functions that it is behind, the nearest one last:
    # bridges, and a VMD endpoint
    behind: tuple[str, ...] = ()
    # the addresses of the PFs of its chip, if one of them is an FPGA
    chip: tuple[str, ...] = ()
    fpgas: tuple[str, ...] = ()  # those of them that may be able to program it


@dataclasses.dataclass(frozen=True, slots=True)
class Files:
    """The devices behind the device files of an accelerator."""

    # the addresses of the PCI functions behind them
    functions: tuple[str, ...] = ()
    # the UUIDs of the mediated devices behind them
    mdevs: tuple[str, ...] = ()
    # the PCI address and the number of each work queue that one of them is
    queues: tuple[tuple[str, int], ...] = ()
    # the world wide names of the NVMe namespaces that they give access to as a
    # whole: as a disk, or as their controller
    namespaces: tuple[str, ...] = ()
    # the names of the devices to which they give access, which stay after a
    # reboot: see file_place
    places: tuple[str, ...] = ()
    around: tuple[str, ...] = ()  # the names of the devices in which these are
    # those of the NVMe namespaces whose partitions they are
    in_namespaces: tuple[str, ...] = ()

    def union(self, other: Files) -> Files:
        """The devices of both, each once."""
        return Files(
            *(
                tuple(dict.fromkeys(one + two))
                for one, two in zip(
                    dataclasses.astuple(self),
                    dataclasses.astuple(other),
                    strict=True,
                )
            )
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """An I/O slot of Power."""

    bus: str | None  # its parent bus; None: it has none
    grouped: bool  # whether its whole bus must be in one partition


class Facts(Protocol):
    """The facts of a host at one moment."""

    def function(self, address: str) -> Function | None:
        """A PCI function; None if it is not there now."""

    def files(self, name: str, numbers: tuple[str, ...]) -> Files:
        """What is behind an accelerator of device files.

        :param name: of the accelerator
        :param numbers: of its files that no other one has, such as 'c 226:0';
            empty: unknown in this boot of the host
        """

    def mdev_parent(self, uuid: str) -> str | None:
        """The parent of a mediated device; None if it is not there now."""

    def is_set_up(self, address: str) -> bool:
        """Whether the work queues of a function have sizes and groups."""

    def slot(self, index: str) -> Slot | None:
        """An I/O slot of Power, by its DRC index; None if it is unknown."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A VAN, as the journal or the notes of the privileged half know it."""

    handle: str  # the identity of its handle, or of the one that it requests
    device: str | None  # VAN.device; None: the handle is only requested yet
    van_uuid: str
    instance_uuid: str
    # of the device files of the handle that no other one has; of this boot of
    # the host
    numbers: tuple[str, ...] = ()
    most: int = 0  # how many VANs may share the files; 0: any number, or one
    # what was behind the files when the VAN got them, if that is known. The
    # devices may not be there now
    noted: Files = Files()
    # of the files with these numbers, in the same order; empty if unknown
    paths: tuple[str, ...] = ()
    # the name of the instance in texts; empty: its UUID
    called: str = dataclasses.field(default='', compare=False)
