# SPDX-License-Identifier: Apache-2.0

"""May device files be taken now, and if not, why?

As availability does for PCI functions: discovery, the check before a VAN takes
the files, the privileged half and os-acc doctor all ask obstacles(). It is
also asked the other way round: has a VAN a device by its files?
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import itertools

from os_acc.availability import chip_use
from os_acc.availability import device_numbers
from os_acc.availability import file_host_use
from os_acc.availability import functions as availability
from os_acc.availability import host_use
from os_acc.claims import allocated
from os_acc.kernel import accounts
from os_acc.kernel import file_place
from os_acc.kernel import idxd
from os_acc.kernel import pci
from os_acc.kinds.devfile import groups as file_groups
from os_acc.kinds.devfile import refusals as file_refusals
from os_acc.kinds.idxd import names as idxd_names
from os_acc.refusals import reasons
from os_acc.refusals import refusals

Reason = reasons.Reason
Obstacle = availability.Obstacle

# Files that only make others usable, and that the kernel guards itself.
_HARMLESS_ALONG = frozenset({'vfio/vfio', 'vfio', 'iommu'})


def label(found: file_groups.Accelerator) -> str:
    """What errors call an accelerator."""
    return f'device file {found.path}'


def obstacles(
    found: file_groups.Accelerator,
    taker: allocated.Taker = allocated.ANYONE,
    holders: allocated.Holders | None = None,
    numbers: device_numbers.Numbers | None = None,
    snapshot: host_use.Snapshot | None = None,
    as_root: bool = False,
    held: bool = False,
    users: Callable[[], Sequence[str]] | None = None,
) -> Iterator[Obstacle]:
    """Say why the files of an accelerator cannot be given to one more VAN.

    :param holders: what the journal knows; None if it is unavailable
    :param numbers: which VANs of this boot have which device numbers
    :param snapshot: pass one when asking about many files
    :param as_root: this process is root
    :param held: the VAN has had it since before, so that device_spec and the
        device's health do not matter
    :param users: finds who has the files open: a clause for each. Called
        last, and not if the files are shared. None: do not check this
    :returns: all obstacles, the most important one first
    """
    known = allocated.Holders() if holders is None else holders
    for reason in itertools.chain(
        _never(found),
        () if held else _not_offered(found),
        _unsuitable(found),
        _taken(found, taker, known),
        _behind_taken(found, taker, known),
        _queues_taken(found, taker, known),
        _number_given(found, taker, numbers or {}),
        _part_given(found, taker, numbers or {}),
        _namespace_taken(found, taker, known),
        () if held else _unhealthy(found, known),
        _host_uses(found, snapshot, as_root),
        () if users is None or _is_shared(found) else _open(users),
    ):
        yield Obstacle.of(label(found), reason)


def not_cleaned(
    found: file_groups.Accelerator, wanted: bool
) -> Obstacle | None:
    """The obstacle of an accelerator that cleaning_command cannot clean.

    :param wanted: whether ``[os_acc] cleaning_command`` is set
    """
    if not wanted or not _is_shared(found):
        return None
    reason = file_refusals.FILE_SHARED_NOT_CLEANED.say()
    return Obstacle.of(label(found), reason)


def not_named(name: str) -> Obstacle:
    """The obstacle of an accelerator that no entry makes."""
    return Obstacle.of(
        f'device file {name}', file_refusals.FILE_NOT_NAMED.say()
    )


def mdev_obstacles(
    uuid: str, taker: allocated.Taker, holders: allocated.Holders
) -> Iterator[Obstacle]:
    """Say which VAN has the device file of a mediated device."""
    other = holders.file_of_mdev(uuid)
    if other is not None and other.van_uuid != taker.van_uuid:
        yield Obstacle.of(
            f'mdev {uuid}',
            refusals.TAKEN.say(
                instance=other.instance_uuid,
                what=other.handle,
                van=other.van_uuid,
            ),
        )


def _never(found: file_groups.Accelerator) -> Iterator[Reason]:
    for node in found.own:
        place = found.place if node is found.own[0] else None
        place = place or file_place.of(node.number)
        if (why := file_host_use.never(node, place)) is not None:
            yield why
    for node in found.common:
        place = file_place.of(node.number)
        if place.leaf in _HARMLESS_ALONG:
            continue
        if (why := file_host_use.never(node, place)) is not None:
            yield why
        elif node.number.kind == 'b':
            yield file_refusals.FILE_BLOCK_ALONG.say(path=node.path)


def _not_offered(found: file_groups.Accelerator) -> Iterator[Reason]:
    if found.denied_by is not None:
        yield file_refusals.FILE_DENIED.say(source=found.denied_by)
    if found.for_parts:
        yield file_refusals.FILE_FOR_PARTS.say(parts=found.for_parts)
    if found.against:
        yield file_refusals.FILE_CONTRADICTION.say(
            one=found.spec.source, others=', '.join(found.against)
        )


def _unsuitable(found: file_groups.Accelerator) -> Iterator[Reason]:
    for pattern in found.lacking:
        yield file_refusals.FILE_LACKS.say(pattern=pattern)
    for kind, name in (
        ('user', found.spec.owner),
        ('group', found.spec.group),
    ):
        if name is not None and accounts.number_of(kind, name) is None:
            yield file_refusals.FILE_NO_ACCOUNT.say(kind=kind, name=name)
    if not found.spec.keeps_data and any(
        file_host_use.stores_data(node, file_place.of(node.number))
        for node in found.own
    ):
        yield file_refusals.FILE_KEEPS_DATA.say()


def _is_shared(found: file_groups.Accelerator) -> bool:
    return found.spec.shared is not None


def _taken(
    found: file_groups.Accelerator,
    taker: allocated.Taker,
    holders: allocated.Holders,
) -> Iterator[Reason]:
    """The VANs that have the same accelerator."""
    others = [
        each
        for each in holders.of_file(found.name)
        if each.van_uuid != taker.van_uuid
    ]
    if not _is_shared(found):
        for each in others:
            yield _says(each, each.handle or 'it')
        return
    for each in others:
        if each.handle == f'file/{found.name}':
            # It was not shared when that VAN got it.
            yield _says(each, 'it alone')
    most = found.spec.shared or 0
    if most and len(others) >= most:
        yield file_refusals.FILE_SHARES.say(number=len(others), most=most)


def _says(holder: allocated.Holder, what: str) -> Reason:
    return refusals.TAKEN.say(
        instance=holder.instance_uuid, what=what, van=holder.van_uuid
    )


def _behind_taken(
    found: file_groups.Accelerator,
    taker: allocated.Taker,
    holders: allocated.Holders,
) -> Iterator[Reason]:
    """The VANs that have the device behind the files, or a part of it."""
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
        yield from chip_use.obstacles(
            function, found.function_spec, taker, holders
        )


def _queues_taken(
    found: file_groups.Accelerator,
    taker: allocated.Taker,
    holders: allocated.Holders,
) -> Iterator[Reason]:
    """The VANs that have the files as work queues of the driver idxd."""
    for node in found.own:
        found_at = idxd.queue_at(file_place.of(node.number).folder or '')
        if found_at is None:
            continue
        address, queue = found_at
        name = idxd_names.name_of(address, queue.number)
        holder = holders.of_handle(f'{allocated.FILE}{name}')
        if holder is not None and holder.device is not None:
            if holder.van_uuid != taker.van_uuid:
                yield _has_behind(holder)
        elif (van := idxd_names.van_of(queue.label)) is not None:
            yield file_refusals.FILE_QUEUE.say(van=van)


def _file_beside(holder: allocated.Holder, function: pci.Function) -> bool:
    """Whether a VAN has a file of the function's PF, or of its VFs.

    Who has a file of a PF may control its VFs.
    """
    other = allocated.function_in(holder.handle)
    return (
        _is_file(holder)
        and other not in (None, function.address)
        and function.parent in (other, function.address)
    )


def _on(
    function: pci.Function, holders: allocated.Holders
) -> Iterator[allocated.Holder]:
    """The VANs that have a function, a part of it, or the whole of its PF."""
    yield from holders.on(function.address)
    for address in {function.address, function.parent}:
        whole = holders.of_handle(f'pci/{address}')
        if whole is not None:
            yield whole


def _is_file(holder: allocated.Holder) -> bool:
    return (holder.handle or '').startswith(allocated.FILE)


def _has_behind(holder: allocated.Holder) -> Reason:
    return file_refusals.FILE_FUNCTION_TAKEN.say(
        instance=holder.instance_uuid,
        what=holder.handle,
        van=holder.van_uuid,
    )


def _number_given(
    found: file_groups.Accelerator,
    taker: allocated.Taker,
    numbers: device_numbers.Numbers,
) -> Iterator[Reason]:
    for node in found.own:
        yield from device_numbers.given(
            node.number, found.name, taker, numbers
        )


def _part_given(
    found: file_groups.Accelerator,
    taker: allocated.Taker,
    numbers: device_numbers.Numbers,
) -> Iterator[Reason]:
    """The VANs that have a part of the device, or that of which it is one."""
    if not numbers:
        return
    own = [
        file_place.device_folder(file_place.of(each.number))
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
        theirs = file_place.device_folder(file_place.of(number))
        if any(file_place.contain(each, theirs) for each in own):
            for each in others:
                yield file_refusals.FILE_PART.say(
                    instance=each.instance_uuid,
                    what=each.path,
                    van=each.van_uuid,
                )


def _namespace_taken(
    found: file_groups.Accelerator,
    taker: allocated.Taker,
    holders: allocated.Holders,
) -> Iterator[Reason]:
    """The VANs that have the files as namespaces of the driver nvme_of."""
    for node in found.own:
        place = file_place.of(node.number)
        if not holders or not file_host_use.stores_data(node, place):
            continue
        wwn = file_place.namespace_of(place)
        other = holders.of_handle(f'block/{wwn}')
        if other is not None and other.van_uuid != taker.van_uuid:
            yield file_refusals.FILE_PART.say(
                instance=other.instance_uuid,
                what=other.handle,
                van=other.van_uuid,
            )


def _unhealthy(
    found: file_groups.Accelerator, holders: allocated.Holders
) -> Iterator[Reason]:
    if (why := holders.unhealthy.of_device(found.name)) is not None:
        yield why
    for function in map(pci.find, found.place.functions):
        if function is not None and (
            why := holders.unhealthy.of_function(function)
        ):
            yield why


def _host_uses(
    found: file_groups.Accelerator,
    snapshot: host_use.Snapshot | None,
    as_root: bool,
) -> Iterator[Reason]:
    for node in found.own:
        place = file_place.of(node.number)
        if not file_host_use.stores_data(node, place):
            continue
        snapshot = snapshot or host_use.Snapshot.read()
        use = file_host_use.used(node, place, snapshot, as_root)
        if use is not None:
            yield use


def _open(users: Callable[[], Sequence[str]]) -> Iterator[Reason]:
    if found := users():
        yield refusals.opened(found)
