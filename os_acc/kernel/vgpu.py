# SPDX-License-Identifier: Apache-2.0

"""NVIDIA's vendor-specific VFIO vGPUs: a vGPU type is set on an SR-IOV VF.

NVIDIA vGPU software from version 17 on makes no mdevs on Linux 6.8 and later:
"Creating an NVIDIA vGPU on a Linux with KVM hypervisor that uses a
vendor-specific VFIO framework" in its user guide.

A card has more VFs than vGPUs fit into it. The file creatable_vgpu_types of a
VF lists the types that the VF can have at this moment. While a type is set on
the VF, or once the card is full, it lists none. In the card's default mode all
vGPUs of a card have framebuffers of one size, so that the first type that is
set leaves only types of that size in the lists of the other VFs. In mixed-size
mode (nvidia-smi vgpu -shm 1) the lists keep all sizes that still fit. A card
in MIG mode lists the types for which it has a GPU instance left. So the lists
tell what is possible in each mode; no file in sysfs names the mode itself.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import errno
import fractions
import re

from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vgpu_config

NONE = 0

# Drivers write a line as '558 : NAME' or as 'NAME 558'.
_ID_FIRST = re.compile(r'(\d+)\s*:\s*(\S.*)')
_ID_LAST = re.compile(r'(\S.*?)\s+(\d+)')


def is_vgpu_function(address: str) -> bool:
    """Whether a vGPU type can be set on a function."""
    return current(address) is not None


def is_place(function: pci.Function) -> bool:
    """Whether a function is a VF that can have a vGPU type of NVIDIA's.

    The VF stays bound to NVIDIA's driver, also without a type. Bound to
    vfio-pci it would be useless to a guest.
    """
    return 'nvidia' in function.entries and is_vgpu_function(function.address)


def current(address: str) -> int | None:
    """The id of a VF's vGPU type; NONE: unset; None: it cannot have one."""
    return sysfs.read_int(f'{pci.folder(address)}/nvidia/current_vgpu_type')


def creatable(address: str) -> dict[int, str]:
    """The types that a VF can have now: their names by id.

    They depend on the types that the other VFs of its PF have.
    """
    path = f'{pci.folder(address)}/nvidia/creatable_vgpu_types'
    found: dict[int, str] = {}
    try:
        lines = (sysfs.read(path) or '').splitlines()
    except OSError as err:
        if err.errno != errno.EINVAL:
            raise
        # The vGPU manager cannot tell the types of this card now
        # (creatable_vgpu_types_show() in NVIDIA's driver).
        return found
    for line in lines:
        text = line.strip()
        if match := _ID_FIRST.fullmatch(text):
            found[int(match[1])] = match[2].strip()
        elif match := _ID_LAST.fullmatch(text):
            found[int(match[2])] = match[1].strip()
    return found


def find_type(address: str, wanted: str) -> int | None:
    """The id of a type that a VF can have now; None if it cannot have it.

    :param wanted: the id of the type, or its name
    """
    for number, name in creatable(address).items():
        if wanted in (str(number), name):
            return number
    return None


def label(number: int) -> str:
    """The id of a type, with its name if that is known."""
    name = vgpu_config.load().names.get(number)
    return f'{number} ({name})' if name else str(number)


@dataclasses.dataclass(frozen=True)
class Card:
    """The VFs of a PF that can have a vGPU type, at one moment.

    :ivar product_id: of the PF
    :ivar current: the id of each VF's type, by address; NONE: unset
    :ivar possible: the types that each VF without one can have now
    """

    product_id: str
    current: Mapping[str, int]
    possible: Mapping[str, Mapping[int, str]]

    @classmethod
    def read(cls, pf: pci.Function) -> Card:
        found = {vf: current(vf) for vf in pf.vf_addresses}
        there = {vf: kind for vf, kind in found.items() if kind is not None}
        return cls(
            pf.product_id,
            there,
            {vf: creatable(vf) for vf, kind in there.items() if kind == NONE},
        )

    def number_of(self, wanted: str) -> int | None:
        """The id of a type; None if the card has no such type.

        :param wanted: the id of the type, or its name
        """
        if wanted.isdigit():
            return int(wanted)
        for kinds in (*self.possible.values(), vgpu_config.load().names):
            for number, name in kinds.items():
                if name == wanted:
                    return number
        return None

    def maximum(self, number: int | None, limit: int | None) -> int | None:
        """How many vGPUs of a type an empty card can have; None if unknown.

        :param number: the id of the type; None if that is unknown
        :param limit: max_instances of device_spec; None: as the vGPU manager
            says
        """
        if limit is not None or number is None:
            return limit
        return vgpu_config.load().maximum.get((self.product_id, number))

    def places(self, number: int | None, limit: int | None) -> int:
        """As maximum(), but at most, and if unknown, the number of VFs."""
        most = self.maximum(number, limit) or len(self.current)
        return min(len(self.current), most)

    def left(self, number: int, limit: int | None) -> int:
        """How many more vGPUs of a type fit beside those that the card has.

        creatable_vgpu_types only tells that one more fits. Each vGPU takes the
        share of the framebuffer that is given by how many of its type fit.
        """
        listing = sum(number in kinds for kinds in self.possible.values())
        most, taken = self.maximum(number, limit), fractions.Fraction(0)
        if most is None:
            return listing
        for kind in self.current.values():
            share = self.maximum(kind, limit if kind == number else None)
            if kind != NONE and share is not None:
                taken += fractions.Fraction(1, share)
        return max(0, min(listing, int((1 - taken) * most)))


def types_text(address: str) -> str:
    """The types that a VF can have now, for a message."""
    types = creatable(address).items()
    return ', '.join(f'{n} ({name})' for n, name in types) or 'none'
