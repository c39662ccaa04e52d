# SPDX-License-Identifier: Apache-2.0

"""What the identities of attach handles say of their devices."""

from __future__ import annotations

from os_acc.kernel import file_place
from os_acc.kernel import pci

#: The prefix of the identity of each handle of device files.
FILE = 'file/'


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
