# SPDX-License-Identifier: Apache-2.0

"""Functions that fail when they are given back are given to nobody."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib

from os_acc import driver
from os_acc import exception
from os_acc.journal import health
from os_acc.kernel import pci
from os_acc.programming import announcing


@contextlib.contextmanager
def noticed(by: driver.DriverBase, address: str) -> Iterator[None]:
    """Mark a function as unhealthy that fails while it is cleaned.

    That is if its reset or its cleaning fails or does not end, and if it does
    not answer afterwards or has left the bus. An error stays an error.

    :param by: its driver
    :param address: of the function, which is there
    """
    try:
        yield
    except (exception.CleaningFailed, exception.Timeout) as err:
        announcing.mark(
            by, address, health.CLEANING, f'it was not cleaned: {err}'
        )
        raise
    check_answers(by, address)


def check_answers(by: driver.DriverBase, address: str) -> None:
    """Mark a function as unhealthy that does not answer any more."""
    if pci.answers(address):
        return
    gone = pci.inode(address) is None
    announcing.mark(
        by,
        address,
        health.GONE,
        'it has left the bus while it was released, and has not come back'
        if gone
        else 'it does not answer after its cleaning: its configuration space '
        'reads as ones',
    )
