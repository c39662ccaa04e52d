# SPDX-License-Identifier: Apache-2.0

"""What is common to all that stands on PCI functions: group, chip, domain."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import facts
from os_acc.claims import nodes
from os_acc.claims import resource


def of_whole(
    known: facts.Facts, address: str, mode: resource.Mode, owner: str
) -> Iterator[resource.Claim]:
    """Claim a function as one that others may be behind.

    It counts for a VAN that only asks for a function, too. Such a VAN does not
    have it yet, so it claims nothing else. VANs that want a PF and its VF come
    one after the other, by the lock of the PF; these here have other locks.

    :param mode: EXCLUSIVE for the function, SHARED for files of it
    """
    yield resource.Claim(nodes.whole(address), mode, owner)
    function = known.function(address)
    for each in function.behind if function is not None else ():
        yield resource.Claim(nodes.whole(each), resource.PART, owner)


def of_group(
    known: facts.Facts, address: str, mode: resource.Mode, instance: str
) -> Iterator[resource.Claim]:
    """Claim the IOMMU group of a function, which one instance gets."""
    function = known.function(address)
    if function is not None and function.group is not None:
        yield resource.Claim(nodes.group(function.group), mode, instance)


def of_chip(
    known: facts.Facts,
    address: str,
    instance: str,
    whole: bool,
    pf: str | None = None,
) -> Iterator[resource.Claim]:
    """Claim a place in the FPGA of a function.

    Each PF of an FPGA has a place. Who has a PF may be able to program what
    stands on the places of the others, so it shares these. VANs that have
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
        place = nodes.place_in_fpga(each)
        if each == pf:
            yield resource.Claim(place, resource.PART, instance)
        elif (
            whole
            and address == pf
            and (each in function.fpgas or pf in function.fpgas)
        ):
            yield resource.Claim(place, resource.SHARED, instance)
