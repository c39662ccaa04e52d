# SPDX-License-Identifier: Apache-2.0

"""Which vGPU types an NVIDIA card has, and room for how many: see vgpu."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import fractions
import functools
import logging
import os

from os_acc.kernel import pci
from os_acc.kernel import vgpu


def label(number: int) -> str:
    """The id of a type, with its name if that is known."""
    name = load().names.get(number)
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
        for kinds in (*self.possible.values(), load().names):
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
        return load().maximum.get((self.product_id, number))

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


# The vGPU types of each NVIDIA card, from the file of its vGPU manager.
#
# sysfs shows only the types that a VF can have at this moment. It says neither
# how many vGPUs of a type a card can have nor the name of a type that is set.
# The vGPU manager installs an XML file that says both. Parts of it:
#
#   <vgpuType id="558" name="NVIDIA A40-1Q" class="Quadro">...</vgpuType>
#   <pgpu hostVgpuMode="sriov">
#     <devId vendorId="0x10de" deviceId="0x2235" .../>
#     <supportedVgpu vgpuId="558"><maxVgpus>32</maxVgpus>...</supportedVgpu>


LOG = logging.getLogger(__name__)

PATH = '/usr/share/nvidia/vgpu/vgpuConfig.xml'


@dataclasses.dataclass(frozen=True)
class Config:
    """What the file says."""

    names: Mapping[int, str]  # the name of each type, by its id
    # how many vGPUs of a type a card can have, by the product id of the card
    # (4 hex digits) and the id of the type
    maximum: Mapping[tuple[str, int], int]


def load() -> Config:
    """Read the file; empty if there is none, or if it cannot be read."""
    try:
        status = os.stat(PATH)
    except OSError:
        return Config({}, {})
    return _read(PATH, status.st_mtime_ns, status.st_size)


# The file has several megabytes, and changes only with the vendor's software.
@functools.lru_cache(maxsize=1)
def _read(path: str, _changed: int, _size: int) -> Config:
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    try:
        root = etree.parse(path, parser).getroot()
    except (OSError, etree.XMLSyntaxError) as err:
        LOG.warning('%s cannot be read: %s', path, err)
        return Config({}, {})
    names = {
        number: kind.get('name', '').strip()
        for kind in root.iter('vgpuType')
        if (number := _number(kind.get('id'))) is not None
    }
    maximum: dict[tuple[str, int], int] = {}
    for card in root.iter('pgpu'):
        product = _number(card.xpath('string(devId/@deviceId)'))
        for kind in card.iter('supportedVgpu'):
            number = _number(kind.get('vgpuId'))
            most = _number(kind.findtext('maxVgpus'))
            if product is None or number is None or not most:
                continue
            # Boards with one device id can differ in their subsystem ids.
            key = (f'{product:04x}', number)
            maximum[key] = max(most, maximum.get(key, 0))
    return Config(names, maximum)


def _number(text: str | None) -> int | None:
    try:
        return int((text or '').strip(), 0)
    except ValueError:
        return None
