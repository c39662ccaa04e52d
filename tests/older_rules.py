# SPDX-License-Identifier: Apache-2.0

"""The rules by which each kind of device once asked for each other kind.

They stay here to be compared with the one rule of os_acc.claims: see claim_*.
Each says which VANs are in the way, and in which words.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import NamedTuple

from os_acc.availability import companions
from os_acc.availability import file_host_use
from os_acc.claims import allocated
from os_acc.kernel import chip
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import idxd
from os_acc.kernel import nvme_of
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kinds.devfile import groups as file_groups
from os_acc.kinds.devfile import refusals as file_refusals
from os_acc.kinds.fpga import ids as fpga_ids
from os_acc.kinds.idxd import names as idxd_names
from os_acc.kinds.idxd import refusals as idxd_refusals
from os_acc.refusals import reasons
from os_acc.refusals import report_refusals
from os_acc.spec import device_spec

Reason = reasons.Reason
Taker = allocated.Taker
Holder = allocated.Holder
Holders = allocated.Holders


class Given(NamedTuple):
    """A VAN of this boot that was given a device number."""

    van_uuid: str
    instance_uuid: str
    name: str
    path: str


Numbers = Mapping[device_files.Number, Sequence[Given]]


# --- PCI functions


def of_function(
    function: pci.Function,
    spec: device_spec.Spec | None,
    taker: Taker,
    holders: Holders,
) -> Iterator[Reason]:
    """A function that is wanted as a whole."""
    yield from taken_by_others(function, taker, holders)
    yield from of_chip(function, spec, taker, holders)
    for each in companions.of(function, spec, device_spec.BIND_OS_ACC):
        whole = holders.of_function(each.address)
        if whole is not None and whole.instance_uuid != taker.instance_uuid:
            yield _taken(whole, f'its companion {each.address}')
    yield from _of_group(function, taker, holders)


def taken_by_others(
    function: pci.Function, taker: Taker, holders: Holders
) -> Iterator[Reason]:
    """The VANs that have a function, a part of it, or all of its PF."""
    whole = holders.of_function(function.address)
    if whole is not None and whole.van_uuid != taker.van_uuid:
        yield _taken(whole, 'it')
    for part in holders.on(function.address):
        if (
            part is not whole
            and part.van_uuid != taker.van_uuid
            and not _is_beside(part, function, taker)
        ):
            yield _taken(part, part.handle or 'it')
    for what, addresses in (
        ('{}, which it is behind', function.above),
        ('{}, which is behind it', function.behind),
    ):
        for address in addresses:
            near = holders.of_function(address)
            if near is not None and near.van_uuid != taker.van_uuid:
                yield _taken(near, what.format(address))
    if (pf := function.physfn) is not None:
        for found in of_whole(pf, taker, holders):
            yield report_refusals.PF_TAKEN.reason(holder=found.text)


def _is_beside(part: Holder, function: pci.Function, taker: Taker) -> bool:
    address = allocated.function_in(part.handle)
    if part.instance_uuid != taker.instance_uuid or address is None:
        return False
    found = pci.find(address)
    return found is not None and found.physfn != function.address


def of_whole(address: str, taker: Taker, holders: Holders) -> Iterator[Reason]:
    """Which VAN has the whole of a device, when a part of it is wanted."""
    whole = holders.of_function(address)
    if whole is None or whole.van_uuid == taker.van_uuid:
        return
    if whole.device is not None:
        yield _taken(whole, 'it')


def _taken(holder: Holder, what: str) -> Reason:
    return report_refusals.TAKEN.reason(
        instance=holder.instance_uuid, what=what, van=holder.van_uuid
    )


def of_chip(
    function: pci.Function,
    spec: device_spec.Spec | None,
    taker: Taker,
    holders: Holders,
    pfs_only: bool = False,
) -> Iterator[Reason]:
    """Which VANs have other PFs of the FPGA of a function, or their VFs.

    :param pfs_only: VFs do not count
    """
    if not holders or not (
        fpga_ids.is_fpga(function, spec)
        or holders.is_programmed(function.parent)
    ):
        return
    for address in chip.parents(function):
        for other in holders.on(address):
            if (
                address != function.parent
                and other.instance_uuid != taker.instance_uuid
                and (_has_pf(other) or not (function.is_vf or pfs_only))
            ):
                yield report_refusals.CHIP_TAKEN.reason(
                    instance=other.instance_uuid,
                    what=other.handle,
                    van=other.van_uuid,
                )


def _has_pf(holder: Holder) -> bool:
    function = allocated.function_in(holder.handle)
    return function is not None and function == holder.device


def _of_group(
    function: pci.Function, taker: Taker, holders: Holders
) -> Iterator[Reason]:
    group = function.iommu_group
    for name in pci.group_members(group or ''):
        other = holders.of_function(name)
        if (
            name != function.address
            and other is not None
            and other.device is not None
            and other.instance_uuid != taker.instance_uuid
        ):
            yield report_refusals.GROUP_TAKEN.reason(
                instance=other.instance_uuid,
                member=other.handle,
                group=group,
                van=other.van_uuid,
            )


def of_new_vfs(
    pf: pci.Function,
    spec: device_spec.Spec | None,
    taker: Taker,
    holders: Holders,
) -> Iterator[Reason]:
    """The VFs that are to be made on a PF."""
    yield from of_whole(pf.address, taker, holders)
    yield from of_chip(pf, spec, taker, holders, pfs_only=True)


# --- Mediated devices


def of_mdev(
    uuid: str, parent: str, there: bool, taker: Taker, holders: Holders
) -> Iterator[Reason]:
    """A mediated device.

    :param there: whether it exists
    """
    yield from of_whole(parent, taker, holders)
    other = holders.of_function(uuid) if there else None
    if other is not None and other.van_uuid != taker.van_uuid:
        yield _taken(other, other.handle or '')


# --- Device files


def of_file(
    found: file_groups.Accelerator,
    taker: Taker,
    holders: Holders,
    numbers: Numbers,
) -> Iterator[Reason]:
    """An accelerator of device files."""
    for each in (
        _file_taken(found, taker, holders),
        _behind_taken(found, taker, holders),
        _queues_taken(found, taker, holders),
        itertools.chain(
            *(
                number_given(node.number, found.name, taker, numbers)
                for node in found.own
            )
        ),
        _part_given(found, taker, numbers),
        _namespace_taken(found, taker, holders),
    ):
        yield from each


def _file_taken(
    found: file_groups.Accelerator, taker: Taker, holders: Holders
) -> Iterator[Reason]:
    others = [
        each
        for each in holders.of_file(found.name)
        if each.van_uuid != taker.van_uuid
    ]
    if found.spec.shared is None:
        for each in others:
            yield _taken(each, each.handle or 'it')
        return
    for each in others:
        if each.handle == f'file/{found.name}':
            yield _taken(each, 'it alone')
    most = found.spec.shared or 0
    if most and len(others) >= most:
        yield file_refusals.FILE_SHARES.reason(number=len(others), most=most)


def _behind_taken(
    found: file_groups.Accelerator, taker: Taker, holders: Holders
) -> Iterator[Reason]:
    if not holders:
        return
    for uuid in found.place.mdevs:
        if (mdev := holders.of_mdev(uuid)) is not None:
            yield _has_behind(mdev)
    for address in found.place.functions:
        function = pci.find(address)
        if function is None:
            continue
        for each in _on(function, holders):
            if each.van_uuid != taker.van_uuid and not _is_file(each):
                yield _has_behind(each)
        for each in holders.on(function.parent):
            if each.instance_uuid != taker.instance_uuid and _file_beside(
                each, function
            ):
                yield _has_behind(each)
        yield from of_chip(function, found.function_spec, taker, holders)


def _queues_taken(
    found: file_groups.Accelerator, taker: Taker, holders: Holders
) -> Iterator[Reason]:
    for node in found.own:
        found_at = idxd.queue_at(file_place.of(node.number).directory or '')
        if found_at is None:
            continue
        address, queue = found_at
        name = idxd_names.name_of(address, queue.number)
        holder = holders.of_handle(f'{allocated.FILE}{name}')
        if holder is not None and holder.device is not None:
            if holder.van_uuid != taker.van_uuid:
                yield _has_behind(holder)
        elif (van := idxd_names.van_of(queue.label)) is not None:
            yield file_refusals.FILE_QUEUE.reason(van=van)


def _file_beside(holder: Holder, function: pci.Function) -> bool:
    other = allocated.function_in(holder.handle)
    return (
        _is_file(holder)
        and other not in (None, function.address)
        and function.parent in (other, function.address)
    )


def _on(function: pci.Function, holders: Holders) -> Iterator[Holder]:
    yield from holders.on(function.address)
    for address in {function.address, function.parent}:
        whole = holders.of_handle(f'pci/{address}')
        if whole is not None:
            yield whole


def _is_file(holder: Holder) -> bool:
    return (holder.handle or '').startswith(allocated.FILE)


def _has_behind(holder: Holder) -> Reason:
    return file_refusals.FILE_FUNCTION_TAKEN.reason(
        instance=holder.instance_uuid,
        what=holder.handle,
        van=holder.van_uuid,
    )


def number_given(
    number: device_files.Number, name: str, taker: Taker, numbers: Numbers
) -> Iterator[Reason]:
    """Which VANs were given a number under another name."""
    for each in numbers.get(number, ()):
        if each.van_uuid != taker.van_uuid and each.name != name:
            yield file_refusals.FILE_NUMBER.reason(
                instance=each.instance_uuid,
                number=f'{number.major}:{number.minor}',
                path=each.path,
                van=each.van_uuid,
            )


def _part_given(
    found: file_groups.Accelerator, taker: Taker, numbers: Numbers
) -> Iterator[Reason]:
    own = [
        file_place.device_directory(file_place.of(each.number))
        for each in found.own
    ]
    for number, given in numbers.items():
        others = [
            each
            for each in given
            if each.van_uuid != taker.van_uuid and each.name != found.name
        ]
        if not others or number in found.numbers:
            continue
        theirs = file_place.device_directory(file_place.of(number))
        if any(_contain(each, theirs) for each in own):
            for each in others:
                yield file_refusals.FILE_PART.reason(
                    instance=each.instance_uuid,
                    what=each.path,
                    van=each.van_uuid,
                )


def _namespace_taken(
    found: file_groups.Accelerator, taker: Taker, holders: Holders
) -> Iterator[Reason]:
    for node in found.own:
        place = file_place.of(node.number)
        if not holders or not file_host_use.stores_data(node, place):
            continue
        wwn = _namespace_of(place)
        other = holders.of_handle(f'block/{wwn}')
        if other is not None and other.van_uuid != taker.van_uuid:
            yield file_refusals.FILE_PART.reason(
                instance=other.instance_uuid,
                what=other.handle,
                van=other.van_uuid,
            )


def _contain(one: str | None, other: str | None) -> bool:
    """Whether of two directories of devices, one is the other or is in it."""
    if one is None or other is None:
        return False
    return f'{one}/'.startswith(f'{other}/') or other.startswith(f'{one}/')


def _namespace_of(place: file_place.Place) -> str | None:
    """The name of the NVMe namespace that a file is, or is a part of."""
    device = file_place.device_directory(place) or ''
    for directory in (device, device.rpartition('/')[0]):
        if directory and (wwn := sysfs.read(f'{directory}/wwid')):
            return wwn
    return None


# --- Work queues of Intel DSA and IAA


def of_queue(
    device: idxd.Device,
    number: int,
    file: device_files.Number | None,
    taker: Taker,
    holders: Holders,
    numbers: Numbers,
) -> Iterator[Reason]:
    """A work queue.

    :param file: the number of its device file
    """
    address = device.address
    for each in holders.on(address):
        name = allocated.file_in(each.handle) or ''
        if each.van_uuid != taker.van_uuid and not (
            idxd_names.split(name) or idxd_names.of_file(name)
        ):
            yield _taken(each, 'it')
    given = _files_given(address, holders)
    if not device.is_enabled:
        for each, who in given.items():
            yield idxd_refusals.FILE_GIVEN.reason(who=who, number=each)
    elif number in given:
        yield idxd_refusals.FILE_GIVEN.reason(who=given[number], number=number)
    if file is not None:
        name = idxd_names.name_of(address, number)
        yield from number_given(file, name, taker, numbers)


def _files_given(address: str, holders: Holders) -> dict[int, str]:
    found = {}
    for each in holders.on(address):
        queue = idxd_names.of_file(allocated.file_in(each.handle) or '')
        if queue is not None and queue[0] == address:
            found[queue[1]] = (
                f'instance {each.instance_uuid} (VAN {each.van_uuid})'
            )
    return found


# --- Namespaces of NVMe-oF


def of_namespace(wwn: str, taker: Taker, holders: Holders) -> Iterator[Reason]:
    """A namespace."""
    holder = holders.of_handle(f'block/{wwn}')
    if holder is not None and holder.van_uuid != taker.van_uuid:
        yield _taken(holder, 'it')
    for block in nvme_of.blocks(wwn) if holders else ():
        for directory in (
            block.path,
            *(f'{block.path}/{each}' for each in sysfs.folders(block.path)),
        ):
            if (text := sysfs.read(f'{directory}/dev')) is not None:
                number = device_files.parse(text, 'b')
                for each in holders.of_file(file_place.of(number).name):
                    if each.van_uuid != taker.van_uuid:
                        yield _taken(each, each.handle or '')
