# SPDX-License-Identifier: Apache-2.0

"""The entries of device_spec that offer one device, as os-acc writes them.

A place is not a device: after a card was added or moved, another device may be
at an address. So the entries have the ids of the device beside its address.
"""

from __future__ import annotations

import json
from typing import Any

from os_acc import exception
from os_acc.kernel import pci
from os_acc.kernel import sriov

Entry = dict[str, Any]


def entries(name: str) -> list[Entry]:
    """The entries that offer a device; the first one is its own.

    The ids of an entry are those of the function itself. So a PF whose VFs
    have another product id has a second entry for them.

    :param name: a PCI address, or the name of a parent of mdevs, which has no
        ids
    """
    function = _find(name)
    if function is None:
        return [{'address': name}]
    products = [function.product_id]
    vf_product = sriov.vf_product_id(name) if function.is_pf else None
    if vf_product not in (None, *products):
        products.append(vf_product or '')
    return [
        {'address': name, **_ids(function.vendor_id, product)}
        for product in products
    ]


def ids_of(name: str) -> Entry:
    """The keys with the ids of the device at an address; empty if unknown."""
    function = _find(name)
    if function is None:
        return {}
    return _ids(function.vendor_id, function.product_id)


def line(entry: Entry) -> str:
    """The line of a configuration file that adds an entry."""
    return f'device_spec = {json.dumps(entry)}'


def _ids(vendor: str, product: str) -> Entry:
    return {'vendor_id': vendor, 'product_id': product}


def _find(name: str) -> pci.Function | None:
    """The function at an address; None if it cannot be read, too."""
    try:
        return pci.find(name) if pci.is_address(name) else None
    except (OSError, exception.DeviceError):
        return None
