# SPDX-License-Identifier: Apache-2.0

"""Whether device files may be taken now, and if not, why.

As availability does for PCI functions: discovery, the check before a VAN takes
the files, the privileged half and os-acc doctor all ask obstacles().
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import itertools

from os_acc.availability import file_host_use
from os_acc.availability import functions as availability
from os_acc.availability import host_use
from os_acc.claims import vans
from os_acc.kernel import accounts
from os_acc.kernel import amd_partitions
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import idxd
from os_acc.kernel import pci
from os_acc.kinds.devfile import groups as file_groups
from os_acc.kinds.devfile import refusals as file_refusals
from os_acc.kinds.idxd import names as idxd_names
from os_acc.refusals import reasons
from os_acc.refusals import refusals
from os_acc.spec import device_spec

Reason = reasons.Reason
Obstacle = availability.Obstacle


def label(found: file_groups.Accelerator) -> str:
    """What errors call an accelerator."""
    return f'device file {found.path}'


def obstacles(
    found: file_groups.Accelerator,
    holders: vans.Vans | None = None,
    snapshot: host_use.Snapshot | None = None,
    as_root: bool = False,
    held: bool = False,
    users: Callable[[], Sequence[str]] | None = None,
) -> Iterator[Obstacle]:
    """Say why the files of an accelerator cannot be given to one more VAN.

    :param holders: the VANs of the journal, and who wants the files; None if
        it is unavailable
    :param snapshot: pass one when asking about many files
    :param as_root: this process is root
    :param held: the VAN already has it, so that device_spec and the device's
        health do not matter
    :param users: finds who has the files open: a clause for each. Called
        last, and not if the files are shared. None: do not check this
    :returns: all obstacles, the most important one first
    """
    known = vans.Vans() if holders is None else holders
    for reason in itertools.chain(
        _never(found),
        () if held else _not_offered(found),
        _unsuitable(found),
        _in_the_way(found, known),
        _queues_taken(found),
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
    reason = file_refusals.FILE_SHARED_NOT_CLEANED.reason()
    return Obstacle.of(label(found), reason)


def partition_obstacles(
    card: str, mode: str | None, specs: device_spec.Specs
) -> Iterator[Obstacle]:
    """Say why os-acc cannot set the mode of an AMD GPU's partitions.

    Whether somebody uses the card is not asked here.

    :param card: its PCI address
    :param mode: such as CPX
    """
    about, possible = f'PCI function {card}', amd_partitions.modes(card)
    if not possible:
        yield Obstacle.of(about, file_refusals.NO_PARTITIONS.reason())
    elif mode not in possible:
        reason = file_refusals.NO_MODE.reason(
            mode=mode, possible=', '.join(possible)
        )
        yield Obstacle.of(about, reason)
    if not any(
        card in each.place.functions and each.denied_by is None
        for each in file_groups.read(specs)
    ):
        reason = file_refusals.PARTITIONS_NOT_OFFERED.reason()
        yield Obstacle.of(about, reason)


def not_named(name: str) -> Obstacle:
    """The obstacle of an accelerator that no entry makes."""
    return Obstacle.of(
        f'device file {name}', file_refusals.FILE_NOT_NAMED.reason()
    )


def _never(found: file_groups.Accelerator) -> Iterator[Reason]:
    for node in found.files:
        place = file_place.of(node.number)
        if (why := file_host_use.never(node, place)) is not None:
            yield why
        elif node in found.common and node.number.kind == 'b':
            yield file_refusals.FILE_BLOCK_ALONG.reason(path=node.path)


def _not_offered(found: file_groups.Accelerator) -> Iterator[Reason]:
    if found.denied_by is not None:
        yield file_refusals.FILE_DENIED.reason(source=found.denied_by)
    if found.for_parts:
        yield file_refusals.FILE_FOR_PARTS.reason(parts=found.for_parts)
    if found.against:
        yield file_refusals.FILE_CONTRADICTION.reason(
            one=found.spec.source, others=', '.join(found.against)
        )


def _unsuitable(found: file_groups.Accelerator) -> Iterator[Reason]:
    for pattern in found.lacking:
        yield file_refusals.FILE_LACKS.reason(pattern=pattern)
    for kind, name in (
        ('user', found.spec.owner),
        ('group', found.spec.group),
    ):
        if name is not None and accounts.number_of(kind, name) is None:
            yield file_refusals.FILE_NO_ACCOUNT.reason(kind=kind, name=name)
    if not found.spec.keeps_data and any(
        file_host_use.stores_data(node, file_place.of(node.number))
        for node in found.own
    ):
        yield file_refusals.FILE_KEEPS_DATA.reason()


def _is_shared(found: file_groups.Accelerator) -> bool:
    return found.spec.shared is not None


def _in_the_way(
    found: file_groups.Accelerator, holders: vans.Vans
) -> Iterator[Reason]:
    """The VANs that exclude the files."""
    if not holders:
        return
    shares = '/any' if _is_shared(found) else ''
    those = holders.in_the_way(
        f'{vans.FILE}{found.name}{shares}',
        file_groups.device_of(found),
        device_files.texts(each.number for each in found.own),
        found.spec.shared or 0,
    )
    # If all shares are taken, that is one reason.
    yield from dict.fromkeys(each.reason for each in those)


def _queues_taken(found: file_groups.Accelerator) -> Iterator[Reason]:
    """The VANs, of whatever journal, that have the files as work queues."""
    for node in found.own:
        found_at = idxd.queue_at(file_place.of(node.number).directory or '')
        if found_at is None:
            continue
        _, queue = found_at
        if (van := idxd_names.van_of(queue.label)) is not None:
            yield file_refusals.FILE_QUEUE.reason(van=van)


def _unhealthy(
    found: file_groups.Accelerator, holders: vans.Vans
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
        if not file_host_use.may_use(node, place):
            continue
        snapshot = snapshot or host_use.Snapshot.read()
        use = file_host_use.used(node, place, snapshot, as_root)
        if use is not None:
            yield use


def _open(users: Callable[[], Sequence[str]]) -> Iterator[Reason]:
    if found := users():
        yield refusals.opened(found)
