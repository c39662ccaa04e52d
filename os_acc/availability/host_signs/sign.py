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
from collections.abc import Mapping
import dataclasses

from os_acc.availability.host_signs import ways
from os_acc.availability.host_signs.snapshot import Snapshot
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.refusals import reasons
from os_acc.refusals.reasons import Reason


@dataclasses.dataclass(frozen=True)
class Sign:
    """One row of the table of signs.

    A sign says what the host uses its subject for, and None if it says
    nothing. It may raise an OSError or a ValueError: the subject then counts
    as used.
    """

    file: str  # the kernel file, with capitals for what varies
    meaning: str  # what the host does if the file says so
    since: str  # the first version that shows it, such as 'Linux 3.14'


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
    """The name and the directory of each device of a class, in order."""
    directory = f'{sysfs.SYS}/class/{name}'
    for each in sysfs.names(directory):
        yield each, sysfs.place(f'{directory}/{each}')


def by_function(uses: Iterable[tuple[str, Reason]]) -> dict[str, Reason]:
    """The first use of each PCI function.

    :param uses: the directory in sysfs of what is used, and the reason
    """
    found: dict[str, Reason] = {}
    for path, reason in uses:
        for address in ways.functions_in(path) or ways.functions_in(
            sysfs.place(f'{path}/device')
        ):
            found.setdefault(address, reason)
    return found


# What a sign finds in a table that is read once for the whole host.


def in_table(
    read: Callable[[Snapshot], Mapping[str, str]],
    refusal: reasons.Refusal,
    value: str,
) -> Callable[[Snapshot, str], Reason | None]:
    """Find the use of a block device.

    :param read: what uses each block device, by its name
    :param value: what the refusal calls that
    """

    def find(host: Snapshot, name: str) -> Reason | None:
        used = host.once(read).get(name)
        if used is None:
            return None
        return refusal.reason(name=name, **{value: used})

    return find


def in_set(
    read: Callable[[Snapshot], frozenset[str]], refusal: reasons.Refusal
) -> Callable[[Snapshot, str], Reason | None]:
    """Find a block device or interface among the names of those in use."""

    def find(host: Snapshot, name: str) -> Reason | None:
        used = name in host.once(read)
        return refusal.reason(name=name) if used else None

    return find


def on_the_way(
    read: Callable[[Snapshot], dict[str, Reason]], *classes: int
) -> Callable[[Snapshot, pci.Function], Reason | None]:
    """Find the use of a function for what the host exports.

    If that cannot be read, each function of some base classes or with a
    network interface may be used, but no other one.
    """

    def find(host: Snapshot, function: pci.Function) -> Reason | None:
        address = function.address
        try:
            return host.once(read).get(address)
        except OSError:
            if function.base_class in classes or host.interfaces_of(address):
                raise
            return None

    return find
