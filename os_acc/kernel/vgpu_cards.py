# SPDX-License-Identifier: Apache-2.0

"""How many vGPUs of which types an NVIDIA card has room for: see vgpu."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import fractions

from os_acc.kernel import pci
from os_acc.kernel import vgpu
from os_acc.kernel import vgpu_config


def label(number: int) -> str:
    """The id of a type, with its name if that is known."""
    name = vgpu_config.load().names.get(number)
    return f'{number} ({name})' if name else str(number)


@dataclasses.dataclass(frozen=True)
class Card:
    """The VFs of a PF that can have a vGPU type, at one moment."""

    product_id: str  # of the PF
    # the id of each VF's type, by address; NONE: unset
    current: Mapping[str, int]
    # the types that each VF without one can have now
    possible: Mapping[str, Mapping[int, str]]

    @classmethod
    def read(cls, pf: pci.Function) -> Card:
        found = {vf: vgpu.current(vf) for vf in pf.vf_addresses}
        there = {vf: kind for vf, kind in found.items() if kind is not None}
        empty = [vf for vf, kind in there.items() if kind == vgpu.NONE]
        return cls(
            pf.product_id, there, {vf: vgpu.creatable(vf) for vf in empty}
        )

    def number_of(self, wanted: str) -> int | None:
        """The id of a type, by id or name; None if the card lacks it."""
        if wanted.isdecimal():
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
        """As maximum(), but the number of VFs if that is less or unknown."""
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
            if kind != vgpu.NONE and share is not None:
                taken += fractions.Fraction(1, share)
        return max(0, min(listing, int((1 - taken) * most)))


def types_text(address: str) -> str:
    """The types that a VF can have now, for a message."""
    types = vgpu.creatable(address).items()
    return ', '.join(f'{n} ({name})' for n, name in types) or 'none'
