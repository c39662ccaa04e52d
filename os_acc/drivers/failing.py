# SPDX-License-Identifier: Apache-2.0

"""PCI functions that fail when they are released are given to nobody."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib

from os_acc import driver as driver_base
from os_acc import exception
from os_acc.journal import health
from os_acc.kernel import pci
from os_acc.programming import announcing


@contextlib.contextmanager
def noticed(driver: driver_base.DriverBase, address: str) -> Iterator[None]:
    """Mark a function as unhealthy if it fails while it is cleaned.

    That is if its reset or its cleaning fails or does not end, and if it does
    not answer afterwards or has left the bus. An error stays an error.
    """
    try:
        yield
    except (exception.CleaningFailed, exception.Timeout) as err:
        announcing.mark(
            driver, address, health.CLEANING, f'it was not cleaned: {err}'
        )
        raise
    check_answers(driver, address)


def check_answers(driver: driver_base.DriverBase, address: str) -> None:
    """Mark a function as unhealthy if it no longer answers."""
    if pci.answers(address):
        return
    gone = pci.inode(address) is None
    announcing.mark(
        driver,
        address,
        health.GONE,
        'it has left the bus while it was released, and has not come back'
        if gone
        else 'it does not answer after its cleaning: its configuration space '
        'reads as ones',
    )
