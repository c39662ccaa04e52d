# SPDX-License-Identifier: Apache-2.0

"""The XML of novalink.py: pypowervm's samples, and changes to them."""

from __future__ import annotations

from collections.abc import Sequence
import copy
import functools
import re

from lxml import etree
from pypowervm import const
from pypowervm import entities
from pypowervm.tests.test_utils import pvmhttp
from pypowervm.wrappers import logical_partition

UOM = '{%s}' % const.UOM_NS
ATOM = '{%s}' % const.ATOM_NS
WEB = '{%s}' % const.WEB_NS
DRC_INDEX = f'{UOM}SlotDynamicReconfigurationConnectorIndex'
DRC_NAME = f'{UOM}SlotDynamicReconfigurationConnectorName'
PARENT_INDEX = f'{UOM}ParentSlotDynamicReconfigurationConnectorIndex'
PARTITION_UUID = f'{UOM}PartitionUUID'


@functools.cache
def sample(name: str) -> str:
    """Return the body of one of pypowervm's samples."""
    return pvmhttp.PVMFile(name).body


def load(name: str, port: int) -> tuple[etree._Element, dict]:
    """A feed without its entries; the entries by their upper-case UUID."""
    here = f'http://localhost:{port}/rest/'
    text = re.sub(r'https?://9\.1\.2\.3:\d+/rest/', here, sample(name))
    feed = etree.fromstring(text.encode())
    entries = {}
    for entry in feed.findall(f'{ATOM}entry'):
        entries[entry.findtext(f'{ATOM}id').upper()] = entry
        feed.remove(entry)
    return feed, entries


def error(status: int, path: str, message: str) -> bytes:
    """An error message in the format of NovaLink."""
    entry = etree.fromstring(sample('fake_httperror.txt').strip().encode())
    for name, text in (
        ('HTTPStatus', str(status)),
        ('RequestURI', path),
        ('Message', message),
        ('RequestHeaders', ''),
    ):
        entry.find(f'.//{WEB}{name}').text = text
    return etree.tostring(entry)


def content(entry: etree._Element) -> etree._Element:
    """Return the LogicalPartition or ManagedSystem in an entry."""
    return entry.find(f'{ATOM}content')[0]


def replace(entry: etree._Element, element: etree._Element) -> None:
    """Put another LogicalPartition into an entry."""
    entry.find(f'{ATOM}content')[0] = element


def with_etag(entry: etree._Element, etag: str) -> etree._Element:
    """A copy of an entry in the form that it has in a feed."""
    entry = copy.deepcopy(entry)
    tag = etree.Element(f'{UOM}etag', nsmap={'etag': const.UOM_NS})
    tag.text = etag
    entry.find(f'{ATOM}content').addprevious(tag)
    return entry


def slots(lpar: etree._Element) -> list[etree._Element]:
    """Return the elements of the DRC indexes in a LogicalPartition."""
    return lpar.findall(f'.//{UOM}AssociatedIOSlot/{DRC_INDEX}')


def inventory(system: etree._Element) -> dict[int, etree._Element]:
    """Return the slots of a ManagedSystem or of its entry."""
    found = system.iterfind(f'.//{UOM}IOSlots/{UOM}IOSlot')
    return {int(slot.findtext(DRC_INDEX)): slot for slot in found}


def wrap(lpar: etree._Element) -> logical_partition.LPAR:
    """pypowervm's wrapper of an element; it changes the element itself."""
    return logical_partition.LPAR.wrap(entities.Entry({}, lpar, None))


def own(slot: etree._Element, lpar: etree._Element) -> None:
    """Set the owner of a slot in the inventory."""
    place = slot.find(f'{UOM}PCIClass')
    for name in (
        'PartitionID',
        'PartitionUUID',
        'PartitionName',
        'PartitionType',
    ):
        element = etree.Element(f'{UOM}{name}')
        element.text = lpar.findtext(f'{UOM}{name}')
        place.addprevious(element)


def on_bus(slot: etree._Element, bus: int) -> None:
    """Put a slot of the inventory on a bus that must move as a whole."""
    if (parent := slot.find(PARENT_INDEX)) is None:
        parent = etree.Element(PARENT_INDEX)
        slot.find(DRC_INDEX).addprevious(parent)
    parent.text = str(bus)
    require_group(slot, True)


def require_group(slot: etree._Element, required: bool) -> None:
    """Say whether a slot must move together with its whole bus."""
    text = str(required).lower()
    slot.find(f'{UOM}BusGroupingRequired').text = text


def move(lpar: etree._Element, systems: Sequence[str]) -> None:
    """Put an LPAR on the first of the systems, unless it is on another."""
    link = lpar.find(f'{UOM}AssociatedManagedSystem')
    before, _, own = link.get('href').rpartition('/')
    if own not in systems:
        link.set('href', f'{before}/{systems[0]}')


def capabilities(lpar: etree._Element) -> etree._Element:
    """Return a copy of the capabilities of an LPAR."""
    return copy.deepcopy(lpar.find(f'.//{UOM}PartitionCapabilities'))


def set_rmc(
    lpar: etree._Element, rmc_state: str, able: etree._Element
) -> None:
    """Set the state of the RMC connection, and the capabilities."""
    wrap(lpar).set_parm_value('ResourceMonitoringControlState', rmc_state)
    before = lpar.find(f'.//{UOM}PartitionCapabilities')
    before.getparent().replace(before, copy.deepcopy(able))


def created(
    like: etree._Element, lpar: etree._Element, name: str, number: int
) -> etree._Element:
    """The entry of a new LPAR, with the elements that NovaLink adds."""
    entry = copy.deepcopy(like)
    entry.find(f'{ATOM}id').text = name
    link = entry.find(f'{ATOM}link')
    link.set('href', link.get('href').rpartition('/')[0] + '/' + name)
    replace(entry, lpar)
    wrapper = wrap(lpar)
    wrapper.set_uuid(name)
    wrapper.set_parm_value('PartitionID', number)
    wrapper.set_parm_value('PartitionState', 'not activated')
    wrapper.set_parm_value('ResourceMonitoringControlState', 'inactive')
    wrapper.inject(entities.Element.wrapelement(capabilities(like), None))
    return entry
