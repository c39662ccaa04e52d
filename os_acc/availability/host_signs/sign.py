# SPDX-License-Identifier: Apache-2.0

"""What a sign is: a file of the kernel, and what it says about a use.

A sign is about a block device, a network interface or a PCI function. The use
of a block device or an interface is a use of each PCI function on its way:
see Snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

from os_acc.availability.host_signs import snapshot
from os_acc.kernel import pci
from os_acc.refusals import reasons

Snapshot = snapshot.Snapshot
Reason = reasons.Reason


@dataclasses.dataclass(frozen=True)
class Sign:
    """One row of the table of signs.

    A sign says what the host uses its subject for, and None if it says
    nothing. It may raise an OSError or a ValueError: the subject then counts
    as used.

    :ivar file: the kernel file, with capitals for what varies
    :ivar meaning: what the host does if the file says so
    :ivar since: the first version that shows it, such as 'Linux 3.14'
    """

    file: str
    meaning: str
    since: str


@dataclasses.dataclass(frozen=True)
class BlockSign(Sign):
    """A sign of a block device, which is given by its name, such as sda1."""

    find: Callable[[Snapshot, str], Reason | None]


@dataclasses.dataclass(frozen=True)
class InterfaceSign(Sign):
    """A sign of a network interface, which is given by its name."""

    find: Callable[[Snapshot, str], Reason | None]


@dataclasses.dataclass(frozen=True)
class FunctionSign(Sign):
    """A sign of a PCI function. It is asked whatever its driver is."""

    find: Callable[[Snapshot, pci.Function], Reason | None]


@dataclasses.dataclass(frozen=True)
class HostSign(Sign):
    """A sign of PCI functions of which one look at the host tells all.

    It is given the host, and returns the use of each function by its address.
    """

    find: Callable[[Snapshot], dict[str, Reason]]
