# SPDX-License-Identifier: Apache-2.0

"""The accelerators that device_spec makes from device files.

An entry with ``devices`` makes an accelerator of each file that its globs
name. The files that ``with`` names are added to it: those of the same PCI
function belong to the accelerator alone, as /dev/dri/card1 to renderD128;
those without a PCI function, such as /dev/kfd, are common to all; those of
other functions are left out. For a partition of an AMD GPU, the same goes for
the files of the other partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import json
import logging

from os_acc import exception
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.kinds.devfile import entry as spec_device_files
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts

LOG = logging.getLogger(__name__)

# Classes of the files by which VFIO gives out whole functions: of groups, and
# of single devices (drivers/vfio/vfio_main.c).
_OF_VFIO = frozenset({'vfio', 'vfio-dev'})


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """Device files that are given out together.

    :ivar place: the device behind the first file
    :ivar spec: the entry of device_spec that makes it
    :ivar own: the files that no other accelerator has; the first is the one
        that ``devices`` names
    :ivar common: the files that others have too
    :ivar lacking: globs of ``with`` that name no file of this host
    :ivar denied_by: the place of the entry that denies it; None: none does
    :ivar function_spec: the entry for the PCI function behind it, which may
        deny it; None: no entry names that, or there is none
    :ivar for_parts: which parts device_spec offers of a PCI function that a
        file gives whole; empty if it offers the whole
    :ivar against: the places of entries that offer a file of it in another way
    """

    place: file_place.Place
    spec: device_spec.Spec
    own: tuple[device_files.Node, ...]
    common: tuple[device_files.Node, ...] = ()
    lacking: tuple[str, ...] = ()
    function_spec: device_spec.Spec | None = None
    denied_by: str | None = None
    for_parts: str = ''
    against: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Identifies it on this host, also after a reboot."""
        return self.place.name

    @property
    def path(self) -> str:
        return self.own[0].path

    @property
    def files(self) -> tuple[device_files.Node, ...]:
        return self.own + self.common

    @property
    def numbers(self) -> frozenset[device_files.Number]:
        """The numbers of the files that no other accelerator has."""
        return frozenset(each.number for each in self.own)


def read(specs: device_spec.Specs) -> list[Accelerator]:
    """Find all accelerators that device_spec makes from device files."""
    entries = [each for each in specs.entries if each.devices]
    if not entries:
        return []
    look = _Look()
    denied = {
        node.number: entry.source
        for entry in entries
        if entry.deny
        for node in look.all(entry.devices)
    }
    offering = [
        (entry, _found(entry, look)) for entry in entries if not entry.deny
    ]
    known: set[device_files.Number] = set()
    result = []
    for entry, accelerators in offering:
        for each in accelerators:
            if each.own[0].number in known:
                continue
            known.add(each.own[0].number)
            behind = _function_spec(each.place, specs)
            result.append(
                dataclasses.replace(
                    each,
                    function_spec=behind,
                    denied_by=_denied(each, denied, behind),
                    for_parts=_for_parts(map(look.place, each.files), specs),
                    against=tuple(_against(each, entry, offering)),
                )
            )
    return result


def find(
    name: str, specs: device_spec.Specs, held: device_spec.Spec | None = None
) -> Accelerator | None:
    """Find an accelerator by its name.

    :param held: the entry by which a VAN has got it. It counts if device_spec
        does not offer the accelerator any more
    :returns: None if there is none of that name
    """
    sources = [specs, device_spec.Specs((held,))] if held else [specs]
    if held and isinstance(specs, device_spec.Unreadable):
        del sources[0]
    for some in sources:
        for each in read(some):
            if each.name == name and (held is None or not each.denied_by):
                return each
    return None


def _function_spec(
    place: file_place.Place, specs: device_spec.Specs
) -> device_spec.Spec | None:
    """The entry for the first PCI function behind a device file.

    If there are several, one that is denied counts first.
    """
    functions = [pci.find(each) for each in place.functions]
    entries = [specs.first(each) for each in functions if each is not None]
    for entry in entries:
        if entry is not None and entry.deny:
            return entry
    return next(iter(entries), None)


def _denied(
    found: Accelerator,
    by_number: dict[device_files.Number, str],
    behind: device_spec.Spec | None,
) -> str | None:
    """Say which entry denies an accelerator; None if none does."""
    for each in found.files:
        if each.number in by_number:
            return by_number[each.number]
    return behind.source if behind is not None and behind.deny else None


def _for_parts(
    places: Iterable[file_place.Place], specs: device_spec.Specs
) -> str:
    """Say which offered parts are of functions that the files give whole."""
    for place in places:
        if place.subsystem not in _OF_VFIO or place.mdevs:
            continue
        for function in filter(None, map(pci.find, place.functions)):
            spec = specs.find(function)
            if spec and not spec_parts.offers_whole(spec, function):
                return f'{spec_parts.text(spec)} of {function.address}'
    return ''


def function_of(found: Accelerator) -> pci.Function | None:
    """The PCI function behind an accelerator."""
    address = found.place.function
    return pci.find(address) if address is not None else None


def device_of(found: Accelerator) -> str:
    """What VAN.device is: as for PCIHandle, the PF of a VF.

    So code that asks for the VANs on a PF, such as the code that programs an
    FPGA, finds those that have the file of one of its VFs. The handle has the
    function itself.
    """
    function = function_of(found)
    if function is not None:
        return function.parent
    for uuid in found.place.mdevs:
        if (there := mdev.find(uuid)) is not None:
            return there.parent
    return found.name


def to_text(spec: device_spec.Spec) -> str:
    """Write down the entry by which a VAN gets files, for find()."""
    return json.dumps(spec_device_files.entry_of(spec), sort_keys=True)


def from_text(text: str | None) -> device_spec.Spec | None:
    """Read what to_text() has written; None if there is nothing."""
    if not text:
        return None
    (spec,) = device_spec.parse(text)
    return dataclasses.replace(spec, source='an earlier entry')


class _Look:
    """Device files and their places, each looked at once."""

    def __init__(self) -> None:
        self._nodes: dict[str, device_files.Node | None] = {}
        self._places: dict[device_files.Number, file_place.Place] = {}

    def all(self, globs: Iterable[str]) -> Iterator[device_files.Node]:
        """The device files that globs name, each number once."""
        seen = set()
        for pattern in globs:
            for path in device_files.expand(pattern):
                if path not in self._nodes:
                    self._nodes[path] = _looked(path)
                node = self._nodes[path]
                if node is not None and node.number not in seen:
                    seen.add(node.number)
                    yield node

    def place(self, node: device_files.Node) -> file_place.Place:
        if node.number not in self._places:
            self._places[node.number] = file_place.of(node.number)
        return self._places[node.number]


def _looked(path: str) -> device_files.Node | None:
    """Look at a file. One that cannot be trusted or seen is not offered."""
    try:
        return device_files.look(path)
    except (exception.DeviceError, OSError) as err:
        LOG.warning('%s is not offered: %s', path, exception.describe(err))
        return None


def place_of(path: str) -> file_place.Place | None:
    """The device behind a device file; None if there is no such file."""
    look = _Look()
    return next((look.place(node) for node in look.all([path])), None)


def _found(entry: device_spec.Spec, look: _Look) -> list[Accelerator]:
    """The accelerators of one entry, without regard to the others."""
    companions = {
        pattern: list(look.all([pattern])) for pattern in entry.companion_files
    }
    lacking = tuple(each for each, nodes in companions.items() if not nodes)
    beside = {
        node.number: node for nodes in companions.values() for node in nodes
    }
    result = []
    for node in look.all(entry.devices):
        if node.number in beside:
            continue  # it is not an accelerator of its own
        place = look.place(node)
        if place.partition == '' or not _has_ids(entry, place):
            continue
        own, common = [node], []
        for each in beside.values():
            there = look.place(each)
            if there.partition == '':
                continue
            if not place.functions or not there.functions:
                common.append(each)
            elif (
                set(there.functions) & set(place.functions)
                and there.partition == place.partition
            ):
                own.append(each)
        result.append(
            Accelerator(place, entry, tuple(own), tuple(common), lacking)
        )
    return result


def _has_ids(entry: device_spec.Spec, place: file_place.Place) -> bool:
    """Whether the device behind a file has the ids of an entry."""
    if entry.vendor_id is None and entry.product_id is None:
        return True
    function = pci.find(place.function) if place.function else None
    return (
        function is not None
        and entry.vendor_id in (None, function.vendor_id)
        and entry.product_id in (None, function.product_id)
    )


def _against(
    found: Accelerator,
    entry: device_spec.Spec,
    offering: list[tuple[device_spec.Spec, list[Accelerator]]],
) -> Iterator[str]:
    """Say which other entries offer a file of an accelerator differently."""
    for other, accelerators in offering:
        if other is entry:
            continue
        for each in accelerators:
            same = each.own[0].number == found.own[0].number
            if same and spec_device_files.alike(each.spec, entry):
                continue
            # What is common to several accelerators may be so in two entries.
            if found.numbers & {
                file.number for file in each.files
            } or each.numbers & {file.number for file in found.files}:
                yield other.source
                break
