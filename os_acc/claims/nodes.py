# SPDX-License-Identifier: Apache-2.0

"""The places in the tree of resources: each kind of node is made here only.

A kind that gives access to the device of another one, as a device file does,
claims the node of that device, and needs to know nothing else of that kind.
"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.kernel import pci

Resource = conflict.Resource

# The kinds that errors describe in more words.
_TEXTS = {
    'whole PCI function': 'PCI function {name}',
    'card of': 'the card that PCI function {name} manages',
    'setting up of': 'the set of work queues of {name}, which is set up as a '
    'whole',
}


def function(
    known: facts.Facts, address: str, pf: str | None = None
) -> Resource:
    """A PCI function: in its PF if it is a VF, or behind other functions.

    :param pf: of a VF that may not be there now; None: unknown
    """
    found = known.function(address)
    above: Resource | None = None
    pf = pf_of(known, address, pf)
    if pf != address:
        above = function(known, pf)
    elif found is not None:
        for each in found.behind:
            above = Resource('PCI function', each, above)
    return Resource('PCI function', address, above)


def pf_of(known: facts.Facts, address: str, pf: str | None) -> str:
    """The address of the PF of a VF; of another function, its own."""
    found = known.function(address)
    return found.parent if found is not None else pf or address


def whole(address: str) -> Resource:
    """A PCI function as one that others may be behind."""
    return Resource('whole PCI function', address)


def group(number: str) -> Resource:
    """An IOMMU group."""
    return Resource('IOMMU group', number)


def place_in_fpga(pf: str) -> Resource:
    """The place on a PF of an FPGA, for those who may program the FPGA."""
    return Resource('place in an FPGA', pf)


def card(address: str) -> Resource:
    """The card that a function manages."""
    return Resource('card of', address)


def mdev(known: facts.Facts, uuid: str, parent: str | None) -> Resource:
    """A mediated device on its parent.

    Nobody claims a parent that is no PCI function as a whole, so it is no
    node.

    :param parent: the name of its parent; None: unknown
    """
    above: Resource | None = None
    if parent is not None and pci.is_address(parent):
        above = function(known, parent)
    return Resource('mdev', uuid, above)


def queue(known: facts.Facts, address: str, number: int) -> Resource:
    """A work queue of a PCI function."""
    return Resource(
        'work queue', f'{address}-wq{number}', function(known, address)
    )


def setting_up(address: str) -> Resource:
    """The setting up of all work queues of a function."""
    return Resource('setting up of', address)


def namespace(wwn: str) -> Resource:
    """A namespace of NVMe."""
    return Resource('namespace', wwn)


def disk(wwn: str) -> Resource:
    """What device files of a namespace give access to, by whatever path."""
    return Resource('disk', wwn)


def device_file(name: str) -> Resource:
    """An accelerator of device files."""
    return Resource('device file', name)


def number(text: str) -> Resource:
    """A device number, such as 'c 226:0'. It is valid for one boot."""
    return Resource('device number', text)


def place(name: str) -> Resource:
    """A device that a file gives access to, or that contains such a device."""
    return Resource('device', name)


def text(node: Resource) -> str:
    """The name of a node in errors."""
    return _TEXTS.get(node.kind, '{kind} {name}').format(
        kind=node.kind, name=node.name
    )


def is_function(node: Resource) -> bool:
    """Whether a node is a PCI function in the tree: see function()."""
    return node.kind == 'PCI function'


def is_group(node: Resource) -> bool:
    """Whether a node is an IOMMU group."""
    return node.kind == 'IOMMU group'


def is_in_fpga(node: Resource) -> bool:
    """Whether a node is a place on a PF of an FPGA."""
    return node.kind == 'place in an FPGA'


def is_beside(node: Resource) -> bool:
    """Whether a node is beside the tree of devices.

    VANs that have different parts of it share no hardware.
    """
    return is_group(node) or is_in_fpga(node) or node.kind == 'card of'


def slot(index: str) -> Resource:
    """An I/O slot of Power."""
    return Resource('slot', index)


def bus_group(bus: str) -> Resource:
    """The slots of a bus of Power, as far as they must move together."""
    return Resource('bus group', bus)


def handle(identity: str) -> Resource:
    """An attach handle, of whatever kind. No two VANs have the same one."""
    return Resource('handle', identity)


# What is common to all that is on PCI functions: group, chip, domain.


def of_whole(
    known: facts.Facts, address: str, mode: conflict.Mode, owner: str
) -> Iterator[conflict.Claim]:
    """Claim a function as one that others may be behind.

    A VAN that only requests a function makes this claim, too. It does not have
    the function yet, so it claims nothing else. VANs that want a PF and its VF
    are serialized by the lock of the PF; the VANs here have other locks.

    :param mode: EXCLUSIVE for the function, SHARED for files of it
    """
    yield conflict.Claim(whole(address), mode, owner)
    function = known.function(address)
    for each in function.behind if function is not None else ():
        yield conflict.Claim(whole(each), conflict.PART, owner)


def of_group(
    known: facts.Facts, address: str, mode: conflict.Mode, instance: str
) -> Iterator[conflict.Claim]:
    """Claim the IOMMU group of a function, which one instance gets."""
    function = known.function(address)
    if function is not None and function.group is not None:
        yield conflict.Claim(group(function.group), mode, instance)


def of_chip(
    known: facts.Facts,
    address: str,
    instance: str,
    whole: bool,
    pf: str | None = None,
) -> Iterator[conflict.Claim]:
    """Claim a place in the FPGA of a function.

    Each PF of an FPGA has a place. A VAN that has a PF may be able to program
    what is on the places of the others, so it shares these. VANs that have
    files of one PF do not exclude each other here.

    :param whole: whether a PF, or a file of it, is claimed; no part of it
    :param pf: of a VF that may not be there now; None: unknown
    """
    function = known.function(address)
    if function is None and pf is not None:
        function = known.function(pf)
    if function is None or len(function.chip) < 2:
        return
    pf = function.parent
    for each in function.chip:
        place = place_in_fpga(each)
        if each == pf:
            yield conflict.Claim(place, conflict.PART, instance)
        elif (
            whole
            and address == pf
            and (each in function.fpgas or pf in function.fpgas)
        ):
            yield conflict.Claim(place, conflict.SHARED, instance)
