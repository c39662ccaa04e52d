# SPDX-License-Identifier: Apache-2.0

"""What the driver idxd reports about devices: inventory, show, doctor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from os_acc import finding
from os_acc import objects
from os_acc.availability import functions as availability
from os_acc.claims import allocated
from os_acc.claims import vans
from os_acc.drivers import choosing
from os_acc.drivers import given_files
from os_acc.drivers import inventory
from os_acc.drivers import pci_functions
from os_acc.kernel import device_files
from os_acc.kernel import idxd
from os_acc.kernel import pci
from os_acc.kinds.idxd import entry as spec_idxd
from os_acc.kinds.idxd import names as idxd_names
from os_acc.kinds.idxd import rules as idxd_availability
from os_acc.refusals import reasons
from os_acc.spec import device_spec

_CLASS_OF = {'dsa': 'CUSTOM_DSA', 'iax': 'CUSTOM_IAA'}
_SUBJECT = 'work queues of {}'


def kind_of(
    spec: device_spec.Spec, device: idxd.Device | None
) -> inventory.Names:
    """Name the work queues of a device as Placement does.

    :param device: None if idxd is not bound to the function: whether it is DSA
        or IAA is unknown then
    """
    assert spec.queues is not None
    chosen = spec.resource_class
    if chosen is None:
        chosen = '' if device is None else _CLASS_OF[device.kind]
    mode = f'CUSTOM_WQ_{spec.queues.wq_mode.upper()}'
    return inventory.Names(chosen, tuple(dict.fromkeys((*spec.traits, mode))))


def named(specs: device_spec.Specs) -> list[str]:
    """The addresses of the functions whose work queues entries offer."""
    return list(
        dict.fromkeys(
            spec.address.complete
            for spec in specs.entries
            if spec.queues is not None and spec.address.complete
        )
    )


def device(
    driver: str,
    address: str,
    specs: device_spec.Specs,
    holders: allocated.Holders,
) -> objects.Device | None:
    """Report a device with its work queues; None: they are not offered."""
    there = pci_functions.offered(address, specs, spec_idxd.KEY)
    if there is None:
        return None
    function, spec = there
    assert spec.queues is not None
    found = idxd.find(address)
    return inventory.device(
        address,
        driver,
        list(_handles(function, spec.queues, found, holders)),
        function=function,
        names=kind_of(spec, found),
    )


def _handles(
    function: pci.Function,
    settings: spec_idxd.Queues,
    found: idxd.Device | None,
    holders: allocated.Holders,
) -> Iterator[objects.DeviceHandleInfo]:
    """The work queues that os-acc has set up, or could set up."""
    address = function.address
    numbers = set()
    if found is not None:
        numbers.update(idxd_availability.numbers(found, settings))
    for holder in holders.on(address):
        name = (holder.handle or '').removeprefix('file/')
        if (parts := idxd_names.split(name)) and parts[0] == address:
            numbers.add(parts[1])
    file_holders = files_given(found, holders)
    common = list(_common(function, settings, found, holders))
    for number in sorted(numbers):
        own = common
        if not own and found is not None:
            own = list(
                idxd_availability.queue_obstacles(
                    found, settings, number, False, file_holders
                )
            )
        name = idxd_names.name_of(address, number)
        yield inventory.handle(
            objects.DeviceFileHandle(
                name=name, share=None, files=_files(found, number)
            ),
            own,
            holders.of_handle(f'file/{name}'),
        )


def _files(found: idxd.Device | None, number: int) -> list[objects.DeviceFile]:
    """The device file of a work queue; none while it is disabled."""
    queue = None if found is None else found.queue(number)
    file = None if found is None or queue is None else found.file(queue)
    if file is None:
        return []
    path = device_files.shown(file.path)
    return given_files.described([device_files.DeviceFile(path, file.number)])


def _common(
    function: pci.Function,
    settings: spec_idxd.Queues | None,
    found: idxd.Device | None,
    holders: allocated.Holders,
) -> Iterator[availability.Obstacle]:
    """Why no work queue of a function can be given out now."""
    yield from _not_free(function, holders)
    yield from idxd_availability.obstacles(
        function,
        found,
        settings,
        has_queues(function.address, holders),
        files_given(found, holders),
    )


def _not_free(
    function: pci.Function, holders: allocated.Holders
) -> Iterator[availability.Obstacle]:
    """Say which VAN has the whole function, or that it has failed."""
    address = function.address
    yield from availability.part_obstacles(
        address, f'PCI function {address}', holders
    )
    yield from availability.unhealthy_obstacles(function, holders)


def shown(
    address: str, specs: device_spec.Specs, holders: allocated.Holders
) -> dict[str, Any] | None:
    """What os-acc device show prints about a device."""
    function = pci.find(address)
    found = None if function is None else idxd.find(address)
    spec = None if function is None else specs.find(function)
    settings = None if spec is None else spec.queues
    if function is None or (found is None and settings is None):
        return None
    refused = next(_common(function, settings, found, holders), None)
    told: dict[str, Any] = {
        'address': address,
        'work queues can be given out': 'yes'
        if refused is None
        else f'no: {refused.text}',
    }
    if found is None:
        return told
    return told | {
        'idxd device': f'{found.name}, {found.state}',
        'idxd limits': f'{found.max_queues} work queues, {found.max_size} '
        f'entries, {found.max_groups} groups, {len(found.engines)} engines',
        'work queues': [
            _queue_line(found, queue, holders) for queue in found.queues
        ],
        'engines': [
            f'engine {number}: '
            + ('no group' if group == idxd.NO_GROUP else f'group {group}')
            for number, group in found.engines.items()
        ],
    }


def _queue_line(
    found: idxd.Device, queue: idxd.Queue, holders: allocated.Holders
) -> str:
    text = f'{queue.name}: {queue.state}, {queue.mode}, size {queue.size}'
    if queue.group != idxd.NO_GROUP:
        text += f', group {queue.group}'
    if queue.is_enabled:
        text += f', {queue.kind}, name {queue.label}'
    if (file := found.file(queue)) is not None:
        text += f', {file.path}, open {queue.clients} times'
    name = idxd_names.name_of(found.address, queue.number)
    holder = holders.of_handle(f'file/{name}')
    if holder is not None:
        text += f' (VAN {holder.van_uuid})'
    return text


def findings(
    specs: device_spec.Specs, holders: allocated.Holders
) -> Iterator[finding.Finding]:
    """Report each device whose work queues are offered.

    doctor.entries says why an entry offers none.
    """

    def look(address: str) -> Iterator[finding.Finding]:
        """Say how many work queues there are, or why they are not free."""
        there = pci_functions.offered(address, specs, spec_idxd.KEY)
        if there is None:
            return
        subject, (function, spec) = _SUBJECT.format(address), there
        assert spec.queues is not None
        found = idxd.find(address)
        for each in _not_free(function, holders):
            yield finding.Finding(
                subject, finding.WARNING, each.text, each.remedy
            )
            return
        if found is not None and not any(
            _common(function, spec.queues, found, holders)
        ):
            count = len(idxd_availability.numbers(found, spec.queues))
            yield finding.Finding(
                subject, finding.OK, f'{found.name}: {count} for programs'
            )

    return choosing.findings(named(specs), _SUBJECT.format, look)


def has_queues(address: str, holders: vans.Vans) -> bool:
    """Whether os-acc has set a function up: for VANs, or ahead of time."""
    return holders.is_set_up(address) or any(
        idxd_names.split(vans.file_in(each.handle) or '')
        for each in holders.on(address)
    )


def files_given(
    device: idxd.Device | None, holders: vans.Vans
) -> dict[int, reasons.Reason]:
    """Which work queues VANs have as device files, by other entries.

    While the device is not set up, that keeps others from all work queues.

    :returns: who has it, by the number of the work queue
    """
    found: dict[int, reasons.Reason] = {}
    if device is None or not holders:
        return found
    for queue in device.queues:
        name = idxd_names.name_of(device.address, queue.number)
        for each in holders.in_the_way(f'file/{name}', device.address):
            other = vans.file_in(each.other.handle) or ''
            if (there := idxd_names.of_file(other)) is not None:
                found[there[1]] = each.reason
    return found
