# SPDX-License-Identifier: Apache-2.0

"""Adds the state of a card's FPGA managers to errors."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib

from os_acc import exception
from os_acc.kernel import fpga_manager
from os_acc.kernel import pci


@contextlib.contextmanager
def told(address: str) -> Iterator[None]:
    """Add the state of a card's FPGA managers to the errors of programming.

    :param address: of the PCI function that is programmed
    """
    try:
        yield
    except (exception.DeviceError, exception.Timeout) as err:
        function = pci.find(address)
        found = fpga_manager.managers(function) if function is not None else []
        if not found:
            raise
        lines = '; '.join(each.line for each in found)
        raise type(err)(f'{err}. FPGA manager: {lines}') from err
