# SPDX-License-Identifier: Apache-2.0

"""Devices of the kernel's classes, and the PCI functions above them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator

from os_acc.availability.host_signs import ways
from os_acc.kernel import sysfs
from os_acc.refusals import reasons

Reason = reasons.Reason


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
