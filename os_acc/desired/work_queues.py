# SPDX-License-Identifier: Apache-2.0

"""The work queues that are set up before an instance requests one.

The entry of device_spec says how. Without a document, os-acc sets up a device
of Intel DSA or IAA for its first VAN and disables it with the last one. A
device of a document is set up before, and stays enabled: root's record says
so. The record does not survive a reboot, nor does the setup: the document is
applied again then.
"""

from __future__ import annotations

from collections.abc import Iterator
import functools

from os_acc import exception
from os_acc import host as host_module
from os_acc.availability import functions as availability
from os_acc.claims import allocated
from os_acc.desired import ahead
from os_acc.desired import documents
from os_acc.desired import offered
from os_acc.desired import steps
from os_acc.journal import desired as rows
from os_acc.kernel import idxd
from os_acc.kernel import pci
from os_acc.kinds.idxd import entry
from os_acc.kinds.idxd import rules
from os_acc.kinds.idxd.driver import report
from os_acc.spec import device_spec

PART = 'work_queues'


def find(
    host: host_module.Host,
    document: documents.Document,
    before: rows.Desired | None,
) -> Iterator[steps.Step]:
    """A step for each device that this or the earlier document names."""
    wanted, earlier, done = ahead.compare(PART, document, before)
    addresses = sorted({*wanted, *earlier})
    if not addresses:
        return
    specs = offered.specs_after(host.conf, document)
    for address in addresses:
        device = idxd.find(address)
        now = _text(device)
        if address not in wanted:
            act = functools.partial(_let_go, host, address)
            changes = functools.partial(_lets_go, host, address)
            after = 'only for instances'
            yield steps.Step(PART, address, now, after, act, changes=changes)
            continue
        layout = _layout(specs, address, device)
        if (
            address in done
            and device is not None
            and layout is not None
            and rules.has(device, layout)
        ):
            yield steps.Step(PART, address, now, now)
            continue
        error = _in_the_way(host, specs, address, layout, address in earlier)
        after = 'as its entry says' if layout is None else _described(layout)
        keep = functools.partial(_keep, host, address)
        yield steps.tried(PART, address, now, after, keep, error)


def _text(device: idxd.Device | None) -> str:
    if device is None or not device.is_enabled:
        return 'not set up'
    queues = [each for each in device.queues if each.size]
    return _described(
        rules.Layout(
            '/'.join(sorted({each.mode for each in queues})),
            max((each.size for each in queues), default=0),
            {each.number: each.group for each in queues},
            device.engines,
        )
    )


def _described(layout: rules.Layout) -> str:
    groups = len({*layout.queues.values()})
    return (
        f'{len(layout.queues)} work queues of {layout.size} entries, '
        f'{layout.mode}, in {groups} group{"s" * (groups != 1)}'
    )


def _settings(specs: device_spec.Specs, address: str) -> entry.Queues | None:
    function = pci.find(address)
    spec = None if function is None else specs.find(function)
    return None if spec is None else spec.queues


def _layout(
    specs: device_spec.Specs, address: str, device: idxd.Device | None
) -> rules.Layout | None:
    """How a device shall be set up; None: it cannot be, or is not offered."""
    settings = _settings(specs, address)
    if settings is None or device is None:
        return None
    if rules.shortage(device, settings) is not None:
        return None
    return rules.plan(device, settings)


def _in_the_way(
    host: host_module.Host,
    specs: device_spec.Specs,
    address: str,
    layout: rules.Layout | None,
    set_up: bool,
) -> exception.ExceptionBase | None:
    """Why a device cannot be set up now, as far as is known.

    :param set_up: whether a document has named it before
    """
    try:
        function = pci.get(address)
    except exception.ExceptionBase as err:
        return err
    holders = ahead.holders(host)
    device, settings = idxd.find(address), _settings(specs, address)
    set_up_by_os_acc = set_up or report.has_queues(address, holders)
    for obstacle in _obstacles(
        function, device, settings, set_up_by_os_acc, holders
    ):
        return obstacle.error()
    if device is None or (layout is not None and rules.has(device, layout)):
        return None
    try:
        users = ahead.clauses(holders.on(address))
        ahead.refuse(f'PCI function {address}', users)
    except exception.DeviceBusy as err:
        return err
    return None


def _obstacles(
    function: pci.Function,
    device: idxd.Device | None,
    settings: entry.Queues | None,
    set_up_by_os_acc: bool,
    holders: allocated.Holders,
) -> Iterator[availability.Obstacle]:
    about = f'PCI function {function.address}'
    yield from availability.part_obstacles(function.address, about, holders)
    yield from availability.unhealthy_obstacles(function, holders)
    given = report.files_given(device, holders)
    yield from rules.obstacles(
        function, device, settings, set_up_by_os_acc, given
    )
    if device is None or settings is None:
        return
    if (reason := rules.shortage(device, settings)) is not None:
        yield availability.Obstacle.of(about, reason)


def _keep(host: host_module.Host, address: str) -> bool:
    """Have a device set up, and keep it so.

    :returns: False: it was so before
    """
    from os_acc.privileged.idxd import devices as privileged

    with host.locks.device(address):
        specs = device_spec.load(host.conf)
        layout = _layout(specs, address, idxd.find(address))
        error = _in_the_way(host, specs, address, layout, True)
        if error is not None:
            raise error
        with host.acting_for():
            return privileged.keep(address, host.conf.os_acc.device_timeout)


def _let_go(host: host_module.Host, address: str) -> bool:
    """Let a device be disabled with its last VAN; now, if it has none.

    :returns: False: that was done before, or the device has gone
    """
    from os_acc.privileged.idxd import devices as privileged

    with host.locks.device(address):
        if pci.find(address) is None:
            return False
        with host.acting_for():
            return privileged.let_go(address, host.conf.os_acc.device_timeout)


def _lets_go(host: host_module.Host, address: str) -> bool:
    """Whether _let_go() would do something."""
    from os_acc.privileged.idxd import devices as privileged

    if pci.find(address) is None:
        return False
    with host.acting_for():
        return privileged.lets_go(address)
