# SPDX-License-Identifier: Apache-2.0

"""Which notes of the privileged half are about one device.

A PF and its VFs, a parent and its mediated devices, a function and its device
files, a disk and its partitions share hardware: who has the one excludes who
wants the other. Functions of one IOMMU group can only go to one guest
(Documentation/driver-api/vfio.rst of Linux). Who has a PF of an FPGA may be
able to program it: see os_acc.claims.chip_use.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from os_acc import exception
from os_acc.claims import holder
from os_acc.kernel import chip
from os_acc.kernel import file_place
from os_acc.kernel import pci


@dataclasses.dataclass(frozen=True)
class Note:
    """A note: which device, or part of one, a VAN has.

    :ivar kind: one of the kinds of held
    :ivar name: the address of the function, the UUID of the mdev, ...
    :ivar label: the device, for errors
    :ivar what: tells another device of the same name; '' if the note cannot
        be read
    :ivar within: the devices in which it is: addresses of PCI functions, the
        name of another parent of mdevs, the names of the places of devices
        with files, or the name of a namespace
    :ivar accelerator: the name of an accelerator of device files, which VANs
        can share; else ''
    :ivar files: the names of the places of its files that no other accelerator
        of its entry has
    :ivar whole: whether it has all its parts: VFs, mediated devices, files
    :ivar fpga: whether it is a function of a device that can be programmed
    :ivar holder: who has it; None: an earlier version did not note that, or
        the note cannot be read
    """

    kind: str
    name: str
    label: str
    what: str
    within: frozenset[str]
    accelerator: str
    files: frozenset[str]
    whole: bool
    fpga: bool
    holder: holder.Holder | None

    @property
    def is_of_another(self) -> bool:
        """Whether it is not of the VAN for which this call is made.

        What cannot be read counts as another's.
        """
        if self.holder is None:
            return self.what == ''
        return holder.is_of_another(self.holder)

    def refuse(self) -> None:
        """Refuse the device to others than the VAN that has it.

        :raises DeviceBusy: if this call is made for another
        """
        if self.is_of_another:
            raise exception.DeviceBusy(
                device=self.label, reason=self.why_not(), noted=self.holder
            )

    def why_not(self) -> str:
        """Say who has the device, and what to do."""
        other, who = self.holder, holder.current()
        if other is None:
            return (
                f'the note {self.kind}-{self.name} of the privileged daemon '
                'cannot be read, so nobody knows who has it. If no instance '
                'or container has it, delete the note with os-acc device deny '
                '--lost-journal, and allow the device again'
            )
        text = (
            f'instance {other.instance} has it (VAN {other.van} of the '
            f'journal {other.path}), by the note of the privileged daemon. '
            'Release it with that journal. '
        )
        if who is not None and who.path == other.path:
            text += (
                'It is not the one that is at this path here: another '
                'container has it, or it was replaced. If it was set aside as '
                'damaged, run os-acc recover --rebuild. '
            )
        return text + (
            'If that journal is lost for good, delete the note with os-acc '
            'device deny --lost-journal, and allow the device again'
        )


def about_one_device(one: Note, other: Note) -> bool:
    """Whether two notes are about one device, or a device and its part.

    Also whether they are about functions of one IOMMU group, or a PF of an
    FPGA and another function of it.
    """
    return (
        share_hardware(one, other)
        or (
            pci.is_address(one.name)
            and pci.is_address(other.name)
            and _same_group(one.name, other.name)
        )
        or ((one.fpga or other.fpga) and _pf_and_another(one, other))
    )


def share_hardware(one: Note, other: Note) -> bool:
    """Whether two notes are about one device, or a device and its part."""
    if (one.kind, one.name) == (other.kind, other.name):
        return one.what == other.what or '' in (one.what, other.what)
    if one.whole and other.whole and one.name == other.name:
        return True
    if (one.whole and one.name in other.within) or (
        other.whole and other.name in one.within
    ):
        return True
    if one.accelerator and one.accelerator == other.accelerator:
        # One VAN has the device files alone, the other shares them.
        return one.accelerator in (one.name, other.name)
    # An entry that was changed since, or another one, may group them anew.
    return bool(
        one.files & other.files
        or one.files & other.within
        or other.files & one.within
    )


def _same_group(one: str, other: str) -> bool:
    first, second = pci.find(one), pci.find(other)
    return (
        first is not None
        and second is not None
        and first.iommu_group is not None
        and first.iommu_group == second.iommu_group
    )


def _pf_and_another(one: Note, other: Note) -> bool:
    """Whether one has a PF, and the other another PF of its chip, or its VF.

    VFs of one chip may have different owners.
    """
    functions = [
        each.name
        if pci.is_address(each.name)
        else file_place.function_in(each.name)
        for each in (one, other)
    ]
    # A VF may be gone after a reboot; its PF is in "within".
    pfs = [
        next(
            filter(pci.is_address, sorted(each.within - {function})), function
        )
        for each, function in zip((one, other), functions, strict=True)
    ]
    first = pci.find(pfs[0]) if pfs[0] is not None else None
    return (
        first is not None
        and pfs[0] != pfs[1]
        and any(map(operator.eq, functions, pfs))
        and pfs[1] in chip.parents(first)
    )


def containers(device: Any) -> frozenset[str]:
    """The PCI functions in which a device is, with the PF of a VF.

    :param device: an address, or the name of another device
    """
    if not isinstance(device, str):
        return frozenset()
    found = {device}
    if pci.is_address(device) and (function := pci.find(device)) is not None:
        found.add(function.parent)
    return frozenset(found)
