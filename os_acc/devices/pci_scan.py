# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""All PCI functions of this host, found in one scan.

A host can have thousands of VFs. All VFs of a PF have the same ids and class
(PCIe Base Specification, 9.3.4.1), so only the first of them is read, unless a
VF is bound to a driver of the host. Of a function that is bound to no driver,
only the ids are read.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses

from os_acc.devices import modules
from os_acc.devices import pci
from os_acc.devices import sriov
from os_acc.devices import sysfs


def functions() -> Iterator[pci.Function]:
    """Find every function, in the order of the addresses.

    A VF that was not read, but copied from the first VF, has ``pf`` set.
    ``entries`` is empty if pci.find_plain() has read the function.
    """
    drivers = _drivers()
    alike: dict[str, pci.Function] = {}
    # A VF has a higher address than its PF.
    other_vfs: set[str] = set()
    for address in pci.addresses():
        driver, for_guests = drivers.get(address, (None, True))
        like = alike.pop(address, None)
        if like is not None and for_guests:
            yield pci.Function(
                address,
                like.vendor_id,
                like.product_id,
                like.pci_class,
                like.modalias,
                driver,
                like.entries,
                like.pf,
            )
            continue
        found = None
        if driver is None and like is None and address not in other_vfs:
            found = pci.find_plain(address)
        if found is None:
            found = pci.find(address)
        if found is None:
            continue
        yield found
        if found.is_pf and 'virtfn0' in found.entries:
            copies = _vfs(found)
            alike |= copies
            if not copies:
                other_vfs.update(found.vf_addresses)


def _drivers() -> dict[str, tuple[str, bool]]:
    """For each bound address its driver, and whether that is for VFIO."""
    found = {}
    for name in sysfs.names(f'{sysfs.SYS}/bus/pci/drivers'):
        about = (name, modules.is_vfio_driver(name))
        for entry in sysfs.names(pci.driver_folder(name)):
            found[entry] = about
    return found


def _vfs(pf: pci.Function) -> dict[str, pci.Function]:
    """Map the address of each VF of a PF to what its first VF looks like."""
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
