# SPDX-License-Identifier: Apache-2.0

"""How os-acc sets up a device of Intel DSA or IAA, and which queues it has.

Sizes and groups can be set only before the device is enabled. So os-acc sets
up all its work queues together when the first one is wanted: see idxd.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses

from os_acc.availability import functions as availability
from os_acc.kernel import idxd
from os_acc.kernel import pci
from os_acc.kinds.idxd import entry as spec_idxd
from os_acc.kinds.idxd import names as idxd_names
from os_acc.kinds.idxd import refusals as idxd_refusals
from os_acc.refusals import reasons
from os_acc.spec import device_spec
from os_acc.spec import entry as spec_entry


@dataclasses.dataclass(frozen=True)
class Layout:
    """What os-acc sets on a device before it enables the device.

    :ivar mode: of each work queue that is not yet configured for a program.
        The kernel refuses all work queues if one that has a group is shared,
        and the CPU does not support shared ones
    :ivar size: of each work queue
    :ivar queues: the group of each work queue, by its number
    :ivar engines: the group of each engine, by its number
    """

    mode: str
    size: int
    queues: dict[int, int]
    engines: dict[int, int]


def plan(device: idxd.Device, settings: spec_idxd.Queues) -> Layout:
    """Distribute queues and engines to the groups.

    Call it only if shortage() finds nothing.
    """
    size, count = _numbers(device, settings)
    numbers = [queue.number for queue in device.queues][:count]
    groups = settings.wq_groups
    return Layout(
        settings.wq_mode,
        size,
        {each: place % groups for place, each in enumerate(numbers)},
        {each: place % groups for place, each in enumerate(device.engines)},
    )


def _numbers(
    device: idxd.Device, settings: spec_idxd.Queues
) -> tuple[int, int]:
    """The size of each queue, and how many there are."""
    most = min(device.max_queues, len(device.queues))
    wanted = settings.wq_count or most
    size = settings.wq_size or device.max_size // max(wanted, 1)
    if settings.wq_count is None and size:
        wanted = min(most, device.max_size // size)
    return size, wanted


def has(device: idxd.Device, layout: Layout) -> bool:
    """Whether a device is enabled and has a layout, whoever set it up."""
    there = {
        each.number: (each.size, each.group)
        for each in device.queues
        if each.size or each.group != idxd.NO_GROUP
    }
    return (
        device.is_enabled
        and there == {n: (layout.size, g) for n, g in layout.queues.items()}
        and device.engines == layout.engines
        and all(
            each.mode == layout.mode
            for each in device.queues
            if each.number in layout.queues and each.is_idle
        )
    )


def shortage(
    device: idxd.Device, settings: spec_idxd.Queues
) -> reasons.Reason | None:
    """Say why a device cannot be set up like that; None if it can."""
    size, count = _numbers(device, settings)
    most = min(device.max_queues, len(device.queues))
    groups = min(device.max_groups, len(device.engines), count)
    for wanted, present, lacks in (
        (f'{count} work queues', f'{most}', not 0 < count <= most),
        (
            f'{count} work queues of {size} entries each',
            f'{device.max_size} entries for all',
            not 0 < size * count <= device.max_size,
        ),
        (
            f'{settings.wq_groups} groups with an engine and a work queue '
            'each',
            f'{groups}',
            settings.wq_groups > groups,
        ),
        (
            f'a threshold of {settings.threshold}',
            f'{size} entries for each work queue',
            (settings.threshold or 0) > size,
        ),
    ):
        if lacks:
            return idxd_refusals.NOT_ENOUGH.reason(
                wanted=wanted, present=present, device=device.name
            )
    return None


def numbers(device: idxd.Device, settings: spec_idxd.Queues) -> list[int]:
    """The numbers of the work queues that os-acc has or would set up."""
    if device.is_enabled:
        return [
            queue.number
            for queue in device.queues
            if queue.size and queue.group != idxd.NO_GROUP
        ]
    if shortage(device, settings) is not None:
        return []
    return list(plan(device, settings).queues)


def nothing_of(
    spec: device_spec.Spec, function: pci.Function | None
) -> Iterator[availability.Obstacle]:
    """Say why an entry with idxd offers no work queue of a function.

    :param function: None if it names none: then there is no more to say
    """
    if function is not None:
        device = idxd.find(function.address)
        yield from obstacles(function, device, spec.queues, False, {})


def obstacles(
    function: pci.Function,
    device: idxd.Device | None,
    settings: spec_idxd.Queues | None,
    set_up_by_os_acc: bool,
    file_holders: Mapping[int, reasons.Reason],
) -> Iterator[availability.Obstacle]:
    """Say why no work queue of a function can be taken.

    :param device: of the function; None if idxd is not bound to it
    :param settings: of its entry of device_spec; None: it is not offered
    :param set_up_by_os_acc: whether os-acc has set the device up, or is
        about to
    :param file_holders: who has which work queues by their device files, by
        number
    :returns: all obstacles, the most important one first
    """
    for reason in _reasons(
        function, device, settings, set_up_by_os_acc, file_holders
    ):
        yield availability.Obstacle.of(
            f'the work queues of PCI function {function.address}', reason
        )


def _reasons(
    function: pci.Function,
    device: idxd.Device | None,
    settings: spec_idxd.Queues | None,
    set_up_by_os_acc: bool,
    file_holders: Mapping[int, reasons.Reason],
) -> Iterator[reasons.Reason]:
    if settings is None:
        entry = spec_entry.line(
            {
                'idxd': function.address,
                **spec_entry.ids_of(function.address),
            }
        )
        yield idxd_refusals.NOT_FOR_QUEUES.reason(entry=entry)
    if device is None:
        driver = function.driver or 'no driver'
        yield idxd_refusals.NO_IDXD.reason(driver=driver)
        return
    yield from _unsuitable(device)
    if device.is_enabled and not (set_up_by_os_acc or _is_of_a_van(device)):
        yield idxd_refusals.ENABLED_BY_OTHERS.reason(device=device.name)
    if device.is_enabled:
        return
    # Whoever made the file sets the device up, as after a reboot.
    yield from file_holders.values()
    others = [] if set_up_by_os_acc else list(idxd.configured(device))
    if others:
        yield idxd_refusals.CONFIGURED_BY_OTHERS.reason(
            device=device.name, what=others[0]
        )
    reason = None if settings is None else shortage(device, settings)
    if reason is not None:
        yield reason


def _is_of_a_van(device: idxd.Device) -> bool:
    """Whether a VAN has a work queue, maybe a VAN of another journal."""
    return any(
        idxd_names.van_of(queue.label) is not None for queue in device.queues
    )


def _unsuitable(device: idxd.Device) -> Iterator[reasons.Reason]:
    name = device.name
    if not device.configurable:
        yield idxd_refusals.NOT_CONFIGURABLE.reason(device=name)
    if not device.pasid_enabled:
        yield idxd_refusals.NO_PASID.reason(device=name)
    if device.state not in (idxd.ENABLED, idxd.DISABLED):
        yield idxd_refusals.HALTED.reason(device=name, state=device.state)


def queue_obstacles(
    device: idxd.Device,
    settings: spec_idxd.Queues,
    number: int,
    has_queue: bool,
    file_holders: Mapping[int, reasons.Reason],
) -> Iterator[availability.Obstacle]:
    """Say why one work queue cannot be taken, if obstacles() says nothing.

    :param has_queue: whether os-acc has configured it already, for the same
        VAN
    :param file_holders: who has which work queues by their device files, by
        number
    """
    known = numbers(device, settings)
    queue = device.queue(number)
    about = f'work queue {number} of PCI function {device.address}'
    if number in file_holders:
        yield availability.Obstacle.of(about, file_holders[number])
    elif queue is None or number not in known:
        yield availability.Obstacle.of(
            about,
            idxd_refusals.NO_QUEUE.reason(
                device=device.name, number=number, count=len(known)
            ),
        )
    elif has_queue:
        return
    elif (van := idxd_names.van_of(queue.label)) is not None:
        yield availability.Obstacle.of(
            about, idxd_refusals.QUEUE_GIVEN.reason(van=van)
        )
    elif not queue.is_idle:
        state = 'enabled' if queue.is_enabled else 'disabled'
        what = f'{state}, type {queue.kind}, name {queue.label!r}'
        yield availability.Obstacle.of(
            about,
            idxd_refusals.QUEUE_OF_OTHERS.reason(queue=queue.name, what=what),
        )
