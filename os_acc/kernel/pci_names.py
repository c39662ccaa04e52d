# SPDX-License-Identifier: Apache-2.0

"""Names of PCI vendors and products, from the file pci.ids."""

from __future__ import annotations

from collections.abc import Iterable
import os

#: Where distributions install the file: the packages pci.ids and hwdata.
FILES = ['/usr/share/misc/pci.ids', '/usr/share/hwdata/pci.ids']


def of(wanted: Iterable[str]) -> dict[str, str]:
    """Find the names of products, by their ids: vendor:product.

    A name is 'VENDOR PRODUCT', or 'VENDOR' if the product is unknown. An id of
    an unknown vendor is left out, and so are all on a host without pci.ids.
    """
    ids = set(wanted)
    vendors = {each.partition(':')[0] for each in ids}
    found: dict[str, str] = {}
    vendor = label = ''
    path = next((each for each in FILES if os.path.exists(each)), None)
    if path is None:
        return found
    with open(path, encoding='utf-8', errors='replace') as file:
        for line in file:
            if line.startswith('C '):
                break  # the classes follow the vendors
            # The formats are 'VVVV  NAME' and TAB 'PPPP  NAME'.
            if line[:1] not in '#\t\n':
                vendor, label = line[:4], line[4:].strip()
                if vendor in vendors:
                    found |= {
                        each: label
                        for each in ids
                        if each.startswith(f'{vendor}:')
                    }
            elif line[:1] == '\t' and line[1:2] != '\t':
                name = f'{vendor}:{line[1:5]}'
                if name in ids:
                    found[name] = f'{label} {line[5:].strip()}'
    return found
