# SPDX-License-Identifier: Apache-2.0

"""What a sign is: a file of the kernel, and what it says about a use.

A sign is about a block device, a network interface or a PCI function. The use
of a block device or an interface is a use of each PCI function on its way:
see Snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses

from os_acc.availability.host_signs import snapshot
from os_acc.availability.host_signs import ways
from os_acc.kernel import pci
from os_acc.kernel import sysfs
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
    """A sign of a PCI function. It is checked whatever its driver is."""

    find: Callable[[Snapshot, pci.Function], Reason | None]


@dataclasses.dataclass(frozen=True)
class HostSign(Sign):
    """A sign that is read once for all PCI functions of the host.

    It is given the host, and returns the use of each function by its address.
    """

    find: Callable[[Snapshot], dict[str, Reason]]


# Devices of the kernel's classes, and the PCI functions above them.


def of_class(name: str) -> Iterator[tuple[str, str]]:
    """The name and the directory of each device of a class, in order.

    :param name: such as 'watchdog'
    """
    directory = f'{sysfs.SYS}/class/{name}'
    for each in sysfs.names(directory):
        yield each, sysfs.place(f'{directory}/{each}')


def functions_above(path: str) -> list[str]:
    """The addresses of the PCI functions that a device depends on.

    :param path: the device's directory in sysfs
    """
    return ways.functions_in(path) or ways.functions_in(
        sysfs.place(f'{path}/device')
    )


def by_function(
    uses: Iterable[tuple[str, Reason]],
) -> dict[str, Reason]:
    """The first use of each PCI function.

    :param uses: the directory in sysfs of what is used, and the reason
    """
    found: dict[str, Reason] = {}
    for path, reason in uses:
        for address in functions_above(path):
            found.setdefault(address, reason)
    return found
