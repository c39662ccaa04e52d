# SPDX-License-Identifier: Apache-2.0

"""Reads the facts that claims need from /sys, each once."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import logging
import os
from typing import TypeVar

from os_acc import exception
from os_acc.claims import facts
from os_acc.kernel import chip
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import idxd
from os_acc.kernel import mdev
from os_acc.kernel import nvme_of
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kinds.fpga import ids as fpga_ids
from os_acc.kinds.idxd import names as idxd_names
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)

_T = TypeVar('_T')
_Chips = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
# The world wide name of a namespace, and whether a file gives access to all of
# it: a partition does not.
_Namespace = tuple[str, bool]


class Reader:
    """The facts of this host at one moment.

    :param specs: the entries of device_spec, which say what is an FPGA
    :param is_programmed: whether a PCI function has been programmed
    :param slots: the I/O slots of Power by their DRC indexes
    """

    def __init__(
        self,
        specs: device_spec.Specs,
        is_programmed: Callable[[str], bool] = lambda address: False,
        slots: Mapping[str, facts.Slot] | None = None,
    ) -> None:
        # VANs are restored even while device_spec cannot be read.
        lost = isinstance(specs, device_spec.Unreadable)
        self._specs = device_spec.Specs() if lost else specs
        self._is_programmed = is_programmed
        self.slots = slots or {}
        self._functions: dict[str, facts.Function | None] = {}
        self._found: dict[str, pci.Function | None] = {}
        self._chips: _Chips = {}
        self._places: dict[str, file_place.Place] = {}
        self._set_up: dict[str, bool] = {}
        self._mdevs: dict[str, str] | None = None
        self._wwns: dict[str, list[_Namespace]] | None = None

    def function(self, address: str) -> facts.Function | None:
        """See facts.Facts."""
        if address not in self._functions:
            self._functions[address] = self._read(address)
        return self._functions[address]

    def _read(self, address: str) -> facts.Function | None:
        if not pci.is_address(address):
            return None
        path = pci.directory(address)
        if not os.path.isdir(path):
            return None
        # Links are enough: what is in its files may be unreadable.
        pf = sysfs.link(f'{path}/physfn') or address
        parents, fpgas = self._chip(pf)
        found = pci.Function(address, '', '', 0, '', None, frozenset(), pf)
        return facts.Function(
            address,
            found.parent,
            found.iommu_group,
            tuple(found.above),
            parents if fpgas else (),
            fpgas,
        )

    def _find(self, address: str) -> pci.Function | None:
        if address not in self._found:
            found = _read_or(None, lambda: pci.find(address))
            if found is not None:
                found.pf = found.parent  # its link is not read again
            self._found[address] = found
        return self._found[address]

    def _chip(self, pf: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The PFs of the chip of a PF, and those that are FPGAs."""
        if pf not in self._chips:
            parts, seen = {pf}, set[str]()
            todo = {pf} if self._may_be_of_fpga(pf) else set[str]()
            while todo:
                # A PF may not show its chip, as another one does.
                seen.add(each := todo.pop())
                parts.update(self._parents(each))
                todo = parts - seen
            fpgas = sorted(filter(self._is_fpga, parts))
            chip_and_fpgas = tuple(sorted(parts)), tuple(fpgas)
            self._chips |= dict.fromkeys(
                parts if fpgas else {pf}, chip_and_fpgas
            )
        return self._chips[pf]

    def _may_be_of_fpga(self, pf: str) -> bool:
        """Whether a PF may be of an FPGA's chip. Most hosts have no FPGA.

        One in another slot is found by the serial number of the card.
        """
        near = chip.slot_addresses(pf)
        if any(map(self._is_fpga, near)):
            return True
        named = any(each.programmer for each in self._specs.entries)
        return any(
            chip.shows_serial(each)
            and (named or each.base_class == chip.CLASS_ACCELERATOR)
            for each in filter(None, map(self._find, near))
        )

    def _parents(self, address: str) -> list[str]:
        pf = self._find(address)
        return [] if pf is None else _read_or([], lambda: chip.parents(pf))

    def _is_fpga(self, address: str) -> bool:
        """Whether a PF is of an FPGA, or has such VFs."""
        pf = self._find(address)
        if pf is None:
            return False
        if self._is_programmed(address) or self._has_ids(pf):
            return True
        # The VFs of a PF have the same ids, and may have several entries.
        named = any(each.programmer for each in self._specs.entries)
        vfs = pf.vf_addresses if named else pf.vf_addresses[:1]
        return any(map(self._has_ids, filter(None, map(self._find, vfs))))

    def _has_ids(self, function: pci.Function) -> bool:
        return fpga_ids.is_fpga(function, self._specs.first(function))

    def below(self, address: str) -> list[str]:
        """The VFs of a function, and the functions of its PCI domain."""
        known, none = self.function(address), list[str]()
        if known is None or known.parent != address:
            return none
        if (found := self._find(address)) is None:
            return none
        return [*found.vf_addresses, *_read_or(none, lambda: found.behind)]

    def files(self, name: str, numbers: tuple[str, ...]) -> facts.Files:
        """See facts.Facts."""
        places = [self._place(each) for each in numbers]
        around = [file_place.around(each) for each in places]
        devices = _once(each[0] for each in around if each)
        namespaces = [
            found
            for each in (name, *devices)
            for found in self._namespaces().get(each, ())
        ]
        functions = [file_place.function_in(name)]
        mdevs = [file_place.mdev_in(name)]
        queues = [idxd_names.of_file(name)]
        for place in places:
            functions += place.functions
            mdevs += place.mdevs
            queues.append(idxd_names.of_file(place.name))
        return facts.Files(
            _once(functions),
            _once(mdevs),
            _once(queues),
            _once(wwn for wwn, whole in namespaces if whole),
            devices,
            _once(name for each in around for name in each[1:]),
            _once(wwn for wwn, whole in namespaces if not whole),
        )

    def _place(self, number: str) -> file_place.Place:
        if number not in self._places:
            kind, _, text = number.partition(' ')
            parsed = device_files.parse(text, kind)
            # Its number is claimed, even if nothing can be read of it.
            unknown = file_place.Place(number)
            self._places[number] = _read_or(
                unknown, lambda: file_place.of(parsed)
            )
        return self._places[number]

    def _namespaces(self) -> dict[str, list[_Namespace]]:
        """The NVMe namespaces to which files give access, by their names."""
        if self._wwns is None:
            self._wwns = {}
            for block in nvme_of.all_blocks():
                for name, found in _names(block):
                    self._wwns.setdefault(name, []).append(found)
        return self._wwns

    def mdev_parent(self, uuid: str) -> str | None:
        """See facts.Facts."""
        if self._mdevs is None:
            self._mdevs = {each.uuid: each.parent for each in mdev.devices()}
        return self._mdevs.get(uuid)

    def is_set_up(self, address: str) -> bool:
        """See facts.Facts."""
        if address not in self._set_up:
            device = _read_or(None, lambda: idxd.find(address))
            self._set_up[address] = device is not None and device.is_enabled
        return self._set_up[address]

    def slot(self, index: str) -> facts.Slot | None:
        """See facts.Facts."""
        return self.slots.get(index)


def _names(block: nvme_of.Block) -> list[tuple[str, _Namespace]]:
    """What gives access to an NVMe namespace, by the names of the files.

    These are the block device, its partitions, and the controllers.
    """

    def read() -> list[tuple[str, _Namespace]]:
        wwn = sysfs.read(f'{block.path}/wwid')
        if not wwn:
            return []
        parts = [f'{block.path}/{each}' for each in sysfs.folders(block.path)]
        controllers = [
            f'{sysfs.SYS}/class/nvme/{each}' for each in block.reached_by
        ]
        files = [
            (block.path, 'b', True),
            *((each, 'b', False) for each in parts),
            *((each, 'c', True) for each in controllers),
        ]
        return [
            (file_place.of(device_files.parse(text, kind)).name, (wwn, whole))
            for directory, kind, whole in files
            if (text := sysfs.read(f'{directory}/dev')) is not None
        ]

    return _read_or([], read)


def _read_or(otherwise: _T, read: Callable[[], _T]) -> _T:
    """Read something of a device; if it cannot be read, return a default.

    It may be another device than the wanted one. If the wanted one cannot be
    read, its driver says so and refuses it.
    """
    try:
        return read()
    except (exception.DeviceError, OSError, ValueError) as err:
        LOG.warning('A device is skipped: %s', exception.describe(err))
        return otherwise


def _once(found: Iterable[_T | None]) -> tuple[_T, ...]:
    """Each of some values once, without None."""
    return tuple(dict.fromkeys(each for each in found if each is not None))
