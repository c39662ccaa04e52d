# SPDX-License-Identifier: Apache-2.0

"""All PCI functions of this host, found in one scan, and their names.

A host can have thousands of VFs. All VFs of a PF have the same ids and class
(PCIe Base Specification, 9.3.4.1), so only the first of them is read, unless a
VF is bound to a driver of the host. Of a function that is bound to no driver,
only the ids are read.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import logging
import os

from os_acc import exception
from os_acc.kernel import modules
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.kernel import sysfs

LOG = logging.getLogger(__name__)


def functions(
    failed: Callable[[str, Exception], None] | None = None,
) -> Iterator[pci.Function]:
    """Find every function, in the order of the addresses.

    A VF that was not read, but copied from the first VF, has ``pf`` set.
    ``entries`` is empty if pci.find_plain() has read the function.

    :param failed: called for each function that cannot be read; None: it is
        logged
    """
    drivers = _drivers()
    alike: dict[str, pci.Function] = {}
    # A VF has a higher address than its PF.
    other_vfs: set[str] = set()
    for address in pci.addresses():
        driver, for_guests = drivers.get(address, (None, True))
        like = alike.pop(address, None)
        if like is not None and for_guests:
            yield dataclasses.replace(like, address=address, driver=driver)
            continue
        # It seems to be neither bound nor a VF.
        plain = driver is None and like is None and address not in other_vfs
        try:
            found = pci.find_plain(address) if plain else None
            found = found or pci.find(address)
            if found is None:
                continue
            copies = _vfs(found)
        except (OSError, exception.DeviceError) as err:
            if failed is not None:
                failed(address, err)
            else:
                LOG.warning('%s: %s', address, exception.describe(err))
            continue
        yield found
        alike |= copies
        if not copies and found.is_pf and 'virtfn0' in found.entries:
            other_vfs.update(found.vf_addresses)


def _drivers() -> dict[str, tuple[str, bool]]:
    """For each bound address its driver, and whether that is for VFIO."""
    found = {}
    for name in sysfs.names(f'{sysfs.SYS}/bus/pci/drivers'):
        about = (name, modules.is_vfio_driver(name))
        for entry in sysfs.names(pci.driver_directory(name)):
            found[entry] = about
    return found


def _vfs(pf: pci.Function) -> dict[str, pci.Function]:
    """Map the address of each VF of a PF to what its first VF looks like."""
    if not pf.is_pf or 'virtfn0' not in pf.entries:
        return {}
    number = sum(entry.startswith('virtfn') for entry in pf.entries)
    addresses = sriov.future_addresses(pf.address, number)
    first = sysfs.link(f'{pf.path}/virtfn0')
    if not addresses or addresses[0] != first:
        return {}
    vf = pci.find(first)
    if vf is None or vf.physfn != pf.address:
        return {}
    like = dataclasses.replace(vf, pf=pf.address)
    return dict.fromkeys(addresses, like)


# Names of PCI vendors and products, from the file pci.ids.


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
