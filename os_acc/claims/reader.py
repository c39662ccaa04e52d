# SPDX-License-Identifier: Apache-2.0

"""Reads the facts that claims need from /sys, each once."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import functools
import logging
import os
from typing import NamedTuple
from typing import TypeVar

from os_acc import exception
from os_acc.claims import facts
from os_acc.kernel import chip
from os_acc.kernel import device_file
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


class _Where(NamedTuple):
    """Where a PCI function is: see facts.Function."""

    parent: str
    group: str | None
    behind: tuple[str, ...]


class Reader:
    """The facts of this host at one moment.

    :param specs: the entries of device_spec, which say what is an FPGA
    :param is_programmed: whether a PCI function has been programmed; see
        allocated.Holders
    :param slots: the I/O slots of Power by their DRC indexes
    :param rows: all VANs that will be compared. Whether a PF is an FPGA counts
        only if one of them has it, or a part of it, so no other is read. None:
        the VANs are not known yet, so all functions are read
    :param before: one of the same call. What it has read of functions that
        are there is not read again
    """

    def __init__(
        self,
        specs: device_spec.Specs,
        is_programmed: Callable[[str], bool] = lambda address: False,
        slots: Mapping[str, facts.Slot] | None = None,
        rows: Iterable[facts.Row] | None = None,
        before: Reader | None = None,
    ) -> None:
        self._specs = specs
        self._is_programmed = is_programmed
        self.slots = slots or {}
        self._rows = None if rows is None else list(rows)
        self._functions: dict[str, facts.Function | None] = {}
        self._found: dict[str, pci.Function | None] = {}
        self._where: dict[str, _Where] = {}
        if before is not None:
            found = before._found.items()
            self._found |= {name: each for name, each in found if each}
            self._where |= before._where
        self._chips: _Chips | None = None
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
        there = self._place_of(address)
        if there is None:
            return None
        parents, fpgas = self._chip(there.parent)
        return facts.Function(
            address,
            there.parent,
            there.group,
            there.behind,
            parents if fpgas else (),
            fpgas,
        )

    def _place_of(self, address: str) -> _Where | None:
        there = self._where.get(address) or _where(address)
        if there is not None:
            self._where[address] = there
        return there

    def _find(self, address: str) -> pci.Function | None:
        if address not in self._found:
            found = _or(None, lambda: pci.find(address))
            if found is not None:
                found.pf = found.parent  # its link is not read again
            self._found[address] = found
        return self._found[address]

    def _chip(self, pf: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The PFs of the chip of a PF, and those that are FPGAs."""
        if self._chips is None:
            self._chips = {}
            fpgas = self._fpgas()
            for address in sorted(fpgas):
                parts = {address, *self._parents(address)}
                for each in sorted(parts):
                    # A PF may not show of which chip it is.
                    parts.update(self._chips.get(each, ((), ()))[0])
                found = tuple(sorted(parts)), tuple(sorted(fpgas & parts))
                self._chips |= dict.fromkeys(parts, found)
        return self._chips.get(pf, ((), ()))

    def _parents(self, address: str) -> list[str]:
        pf = self._find(address)
        return [] if pf is None else _or([], lambda: chip.parents(pf))

    def _fpgas(self) -> set[str]:
        """The PFs of this host that are of FPGAs, or that have such VFs."""
        return {
            each.parent
            for each in map(self._find, self._addresses())
            if each is not None
            and (
                fpga_ids.is_fpga(each, self._specs.first(each))
                or self._is_programmed(each.parent)
            )
        }

    def _addresses(self) -> list[str]:
        """The functions of which one may be an FPGA that counts."""
        if self._rows is None:
            return pci.addresses()
        found: list[str | None] = []
        for row in self._rows:
            kind, _, rest = row.handle.partition('/')
            found += [row.device, rest]
            if kind == 'file':
                name = rest.partition('/')[0]
                behind = self.files(name, row.numbers).along(row.noted)
                found += behind.functions
                found += map(self.mdev_parent, behind.mdevs)
        named = [each for each in _once(found) if pci.is_address(each)]
        there = [*self._without_alike(named)]
        parents = [each.parent for each in map(self._find, there) if each]
        return [*_once([*there, *parents])]

    def _without_alike(self, addresses: Iterable[str]) -> Iterator[str]:
        """Leave out all VFs of a PF but one.

        All have the ids that are in the PF's SR-IOV capability. Only an entry
        for an FPGA may name one of them.
        """
        seen = set()
        for address in addresses:
            there = self._place_of(address)
            pf = address if there is None else there.parent
            if pf in seen and pf != address and not self._has_programmers:
                continue
            yield address
            if pf != address and self._find(address) is not None:
                seen.add(pf)

    @functools.cached_property
    def _has_programmers(self) -> bool:
        """Whether an entry says that a function is an FPGA."""
        try:
            return any(each.programmer for each in self._specs.entries)
        except exception.InvalidRequest:
            return True  # it cannot be read

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
            parsed = device_file.parse(text, kind)
            # Its number is claimed, even if nothing can be read of it.
            unknown = file_place.Place(number)
            self._places[number] = _or(unknown, lambda: file_place.of(parsed))
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
            device = _or(None, lambda: idxd.find(address))
            self._set_up[address] = device is not None and device.is_enabled
        return self._set_up[address]

    def slot(self, index: str) -> facts.Slot | None:
        """See facts.Facts."""
        return self.slots.get(index)


def _where(address: str) -> _Where | None:
    """Read where a function is; None if it is not there."""
    if not pci.is_address(address):
        return None
    path = pci.folder(address)
    if not os.path.isdir(path):
        return None
    # Links are enough: what is in its files may be unreadable.
    pf = sysfs.link(f'{path}/physfn')
    found = pci.Function(
        address, '', '', 0, '', None, frozenset(), pf or address
    )
    return _Where(found.parent, found.iommu_group, tuple(found.above))


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
            (file_place.of(device_file.parse(text, kind)).name, (wwn, whole))
            for folder, kind, whole in files
            if (text := sysfs.read(f'{folder}/dev')) is not None
        ]

    return _or([], read)


def _or(otherwise: _T, read: Callable[[], _T]) -> _T:
    """Read something of a device; a device that cannot be read stops nothing.

    It may be another's than the one that is wanted. The drivers say what is
    wrong with the one that is wanted, and refuse it.
    """
    try:
        return read()
    except (exception.DeviceError, OSError, ValueError) as err:
        LOG.warning('A device is left out: %s', exception.describe(err))
        return otherwise


def _once(found: Iterable[_T | None]) -> tuple[_T, ...]:
    """Each of some values once, without None."""
    return tuple(dict.fromkeys(each for each in found if each is not None))
