# SPDX-License-Identifier: Apache-2.0

"""The vGPU types of each NVIDIA card, from the file of its vGPU manager.

sysfs shows only the types that a VF can have at this moment. It says neither
how many vGPUs of a type a card can have nor the name of a type that is set.
The vGPU manager installs an XML file that says both. Parts of it:

  <vgpuType id="558" name="NVIDIA A40-1Q" class="Quadro">...</vgpuType>
  <pgpu hostVgpuMode="sriov">
    <devId vendorId="0x10de" deviceId="0x2235" .../>
    <supportedVgpu vgpuId="558"><maxVgpus>32</maxVgpus>...</supportedVgpu>
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import functools
import logging
import os

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
