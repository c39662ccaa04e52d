# SPDX-License-Identifier: Apache-2.0

"""Who has which device, as the journal knows it, and whom that excludes.

The package claims lies below the journal, so callers pass this in.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import NamedTuple

from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import meeting
from os_acc.claims import nodes
from os_acc.claims import of_handle
from os_acc.claims import reader
from os_acc.claims import vans
from os_acc.claims import words
from os_acc.kernel import file_place
from os_acc.kernel import pci
from os_acc.kinds.idxd import names as idxd_names
from os_acc.spec import device_spec

#: The prefix of the identity of each handle of device files.
FILE = vans.FILE
file_in = vans.file_in
function_in = vans.function_in


ANYONE = vans.ANYONE
Holder = vans.Holder
Taker = vans.Taker
Unhealthy = vans.Unhealthy

#: The number of each device file, such as 'c 226:0', its path, and the name of
#: its device, see file_place; empty: unknown.
Files = tuple[tuple[str, str, str], ...]


class Holders(vans.Vans):
    """The VANs that have or request handles, and whom that excludes.

    :ivar taker: the VAN that wants a device: see asked_by()
    :param reserved: why a device is reserved, by the address of its handle
    :param unhealthy: which devices have failed
    :param programmed: the addresses of devices that have been programmed
    :param files: finds the own device files of VANs, by the UUIDs of the VANs;
        called once, if needed
    :param specs: gives the entries of device_spec; called once, if needed
    :param set_up: lists the functions whose work queues os-acc apply sets up;
        called once, if needed
    :param many: whether many devices will be asked for: see taken
    :param slots: the I/O slots of Power, by their DRC indexes
    """

    def __init__(
        self,
        holders: Iterable[Holder] = (),
        reserved: Mapping[str, str] | None = None,
        unhealthy: Unhealthy | None = None,
        programmed: Iterable[str] = (),
        files: Callable[[], Mapping[str, Files]] = dict,
        specs: Callable[[], device_spec.Specs] = device_spec.Specs,
        set_up: Callable[[], Iterable[str]] = tuple,
        many: bool = False,
        slots: Mapping[str, facts.Slot] | None = None,
    ) -> None:
        super().__init__()
        self.unhealthy = unhealthy or self.unhealthy
        self._reserved = reserved or {}
        self._list_set_up = set_up
        self._programmed = frozenset(map(_slot, programmed))
        self._by_handle: dict[str, Holder] = {}
        self._by_device: dict[str, list[Holder]] = {}
        self._by_file: dict[str, list[Holder]] = {}
        self._behind_file: dict[str, Holder] = {}
        with_handles = [each for each in holders if each.handle is not None]
        self._taken = Taken(
            lambda: _rows(with_handles, files()),
            lambda: reader.Reader(specs(), self.is_programmed, slots),
            many,
        )
        for each in with_handles:
            assert each.handle is not None
            self._by_handle[each.handle] = each
            if each.device is not None:
                self._by_device.setdefault(each.device, []).append(each)
            if (name := file_in(each.handle)) is not None:
                self._by_file.setdefault(name, []).append(each)
                first = name.partition(file_place.SEPARATOR)[0]
                self._behind_file.setdefault(first, each)

    def __bool__(self) -> bool:
        return bool(self._by_handle)

    def in_the_way(
        self,
        handle: str,
        device: str | None,
        numbers: tuple[str, ...] = (),
        most: int = 0,
    ) -> list[meeting.Meeting]:
        if not self:
            return []
        van, instance = self.taker.van_uuid, self.taker.instance_uuid
        return self._taken.against(
            facts.Row(handle, device, van or '', instance or '', numbers, most)
        )

    def of_others(self, van_uuid: str) -> bool:
        """Whether a VAN other than this one has or requests a handle."""
        return any(
            each.van_uuid != van_uuid for each in self._by_handle.values()
        )

    def of_handle(self, identity: str) -> Holder | None:
        return self._by_handle.get(identity)

    def of_function(self, address: str) -> Holder | None:
        whole = self._by_handle.get(f'pci/{address}')
        if whole is not None and whole.device is not None:
            return whole
        return self._behind_file.get(address, whole)

    def of_file(self, name: str) -> Sequence[Holder]:
        """The VANs that have device files, by DeviceFileHandle.name."""
        return self._by_file.get(name, ())

    def of_mdev(self, uuid: str) -> Holder | None:
        """The VAN that has a mediated device."""
        return self._by_handle.get(f'mdev/{uuid}')

    def reserved(self, address: str) -> str | None:
        return self._reserved.get(address)

    def is_programmed(self, address: str) -> bool:
        """Whether a device with the same PCI slot has been programmed."""
        return _slot(address) in self._programmed

    def is_set_up(self, address: str) -> bool:
        return address in self._set_up

    @functools.cached_property
    def _set_up(self) -> frozenset[str]:
        return frozenset(self._list_set_up())

    def on(self, device: str) -> Sequence[Holder]:
        return self._by_device.get(device, ())


def _rows(
    holders: Iterable[Holder], files: Mapping[str, Files]
) -> list[facts.Row]:
    return [_row(each, files.get(each.van_uuid, ())) for each in holders]


def _row(holder: Holder, own: Files) -> facts.Row:
    # The file of a work queue is gone while the queue is disabled, and nobody
    # else may configure the queue then.
    queues = (idxd_names.of_file(name) for _, _, name in own)
    return facts.Row(
        holder.handle or '',
        holder.device,
        holder.van_uuid,
        holder.instance_uuid,
        tuple(number for number, _, _ in own),
        noted=facts.Files(
            queues=tuple(each for each in queues if each is not None)
        ),
        paths=tuple(path for _, path, _ in own),
        called=holder.called,
    )


def _slot(address: str) -> str:
    """A PCI address without the number of the function."""
    return address.rpartition('.')[0]


# Finds the VANs that keep a device from being given out. Most VANs have other
# devices than the wanted one. So the claims are found out only of VANs that
# may be in the way, by the names of their devices.

#: The prefixes of the identities of handles that claim devices which the
#: identity does not name.
_ANYWHERE = ('file/', 'drc/')

#: Stands for the nodes of all kinds that are not in _NAMED: see _is_named().
_UNNAMED = '*'

# The kinds of nodes that this module can derive from the names in a VAN's
# handle and device.
_NAMED = frozenset(
    {
        'PCI function',
        'whole PCI function',
        'IOMMU group',
        'place in an FPGA',
        'card of',
        'mdev',
        'work queue',
        'setting up of',
        'namespace',
        'disk',
        'device file',
        'device number',
        'device',
        'slot',
        'bus group',
        'handle',
    }
)


class Taken:
    """The VANs of a host at one moment, for many questions.

    :param rows: gives the VANs with their handles; called once, if needed
    :param known: gives the facts of the host; called once, if needed
    :param many: whether many devices will be asked for. Then the claims of all
        VANs are found out, and not those of a device that no VAN comes near to
    """

    def __init__(
        self,
        rows: Callable[[], Sequence[facts.Row]],
        known: Callable[[], reader.Reader],
        many: bool = False,
    ) -> None:
        self._read_rows, self._read_known = rows, known
        self._many = many
        self._holdings: dict[int, conflict.Holding] = {}

    @functools.cached_property
    def _rows(self) -> Sequence[facts.Row]:
        return self._read_rows()

    @functools.cached_property
    def _known(self) -> reader.Reader:
        return self._read_known()

    def against(self, wanted: facts.Row) -> list[meeting.Meeting]:
        """Say which VANs are in the way of a VAN, each once, and why.

        Those come first whose devices are closest to the wanted one.
        """
        numbers = sorted(self._near(wanted))
        if not numbers:
            return []
        own = of_handle.holding(wanted, self._known)
        found: dict[str, list[conflict.Conflict]] = {}
        for each in conflict.conflicts(own, map(self._holding, numbers)):
            found.setdefault(each.holding.van_uuid, []).append(each)
        met = [
            meeting.Meeting(wanted, row, found[row.van_uuid], words.why)
            for row in map(self._rows.__getitem__, numbers)
            if row.van_uuid in found
        ]
        return sorted(met, key=lambda each: each.relation)

    def _holding(self, number: int) -> conflict.Holding:
        if number not in self._holdings:
            self._holdings[number] = of_handle.holding(
                self._rows[number], self._known
            )
        return self._holdings[number]

    def _near(self, wanted: facts.Row) -> set[int]:
        """The rows that may be in the way."""
        if self._many and not wanted.handle.startswith(_ANYWHERE):
            return self._reaching.near(_named(wanted))
        own = of_handle.holding(wanted, self._known)
        return self._having.near(self._reach(own))

    @functools.cached_property
    def _having(self) -> _Rows:
        """The rows by what their handles and devices name."""
        return _Rows(map(_named, self._rows))

    @functools.cached_property
    def _reaching(self) -> _Rows:
        """The rows by all that their claims reach."""
        every = map(self._holding, range(len(self._rows)))
        return _Rows(map(self._reach, every))

    def _reach(self, holding: conflict.Holding) -> _Names:
        """The names of all devices by which others may be in the way."""
        found = _Names({''}, set())
        for claim in holding.claims:
            node, names = claim.node, [claim.node.name]
            if not _is_named(node):
                found.whole.add(_UNNAMED)
            if nodes.is_in_fpga(node):
                function = self._known.function(node.name)
                names += function.chip if function is not None else ()
            if claim.mode == conflict.PART:
                found.part.update(names)
                continue
            found.whole.update(names)
            if nodes.is_group(node):
                found.whole.update(pci.group_members(node.name))
            elif not _is_handle(node):
                found.whole.update(*map(self._known.below, names))
        return found


class _Names(NamedTuple):
    """Names of devices that are claimed.

    Two claims meet where one of them is for the whole of a node: see conflict.
    """

    whole: set[str]  # those that are claimed as a whole
    part: set[str]  # those of which a part is claimed


def _named(row: facts.Row) -> _Names:
    """What its handle and device name, without a look at the host."""
    if row.handle.startswith(_ANYWHERE):
        return _Names({''}, set())
    own = row.handle.partition('/')[2]
    return _Names({row.handle, own}, {row.device or own, _UNNAMED})


class _Rows:
    """Rows, as numbers, by names."""

    def __init__(self, rows: Iterable[_Names]) -> None:
        self._whole: dict[str, list[int]] = {}
        self._part: dict[str, list[int]] = {}
        for number, names in enumerate(rows):
            for found, named in zip(
                (self._whole, self._part), names, strict=True
            ):
                for name in named:
                    found.setdefault(name, []).append(number)

    def near(self, names: _Names) -> set[int]:
        """The rows that may conflict with these names."""
        found = set[int]()
        for name in names.whole:
            found.update(self._whole.get(name, ()), self._part.get(name, ()))
        for name in names.part:
            found.update(self._whole.get(name, ()))
        return found


def _is_named(node: conflict.Resource) -> bool:
    """Whether names tell which VANs may claim a node.

    If not, the claims of all VANs are looked at: an unknown kind of node costs
    time, but no device is given to two VANs.
    """
    return node.kind in _NAMED


def _is_handle(node: conflict.Resource) -> bool:
    """Whether a node is an attach handle."""
    return node.kind == 'handle'
