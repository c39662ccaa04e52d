# SPDX-License-Identifier: Apache-2.0

"""Enabling and disabling work queues of Intel DSA and IAA, as root.

The settings come from device_spec as root reads it, or from the note of a VAN
that already has the work queue. The record says what os-acc has set: on the
device, and on each work queue.
"""

from __future__ import annotations

import functools
import logging

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import device_files
from os_acc.kernel import idxd
from os_acc.kernel import pci
from os_acc.kinds.idxd import entry as spec_idxd
from os_acc.kinds.idxd import names as idxd_names
from os_acc.kinds.idxd import rules as idxd_availability
from os_acc.privileged import arguments
from os_acc.privileged import cleaning
from os_acc.privileged import context
from os_acc.privileged import device_users
from os_acc.privileged import notes
from os_acc.privileged import operation_lock
from os_acc.privileged.idxd import devices
from os_acc.privileged.idxd import notes as idxd_notes
from os_acc.privileged.idxd import setup as idxd_setup

LOG = logging.getLogger(__name__)

_HIGHEST_NUMBER = 255


@context.entry
def enable(
    address: str, number: int, van_uuid: str, seconds: float
) -> list[str | int]:
    """Configure and enable a work queue for a VAN, and its device if needed.

    It succeeds if the VAN has the work queue already.

    :returns: the path, the major and the minor number of its device file
    :raises DeviceNotFound: if device_spec does not offer it
    :raises DeviceInUseByHost: if somebody else has configured it
    :raises DeviceBusy: if another VAN has it
    :raises DeviceError, DeviceUnhealthy: if it cannot be enabled
    """
    function = arguments.there(address)
    arguments.whole(number, 'number', _HIGHEST_NUMBER)
    arguments.uuid(van_uuid)
    seconds = arguments.seconds(seconds)
    name = idxd_names.name_of(address, number)
    return operation_lock.within(
        functools.partial(operation_lock.held, function.path),
        seconds,
        f'work queue {name} to be enabled',
        lambda deadline: _enable(pci.get(address), number, van_uuid, deadline),
    )


def _enable(
    function: pci.Function,
    number: int,
    van: str,
    deadline: waiting.Deadline,
) -> list[str | int]:
    name = idxd_names.name_of(function.address, number)
    idxd_notes.check_note(function, name, van)
    settings = idxd_notes.settings_of(function, name, van)
    known = idxd_notes.layout_of(function)
    mine = idxd_notes.mine(function, name, van)
    for obstacle in idxd_availability.obstacles(
        function, idxd.find(function.address), settings, known is not None, {}
    ):
        raise obstacle.error()
    assert settings is not None
    device = idxd_setup.read(function.address)
    for obstacle in idxd_availability.queue_obstacles(
        device,
        settings,
        number,
        mine is not None,
        idxd_notes.files_given(function),
    ):
        raise obstacle.error()
    idxd_notes.note(function, name, van, settings)
    if not device.is_enabled:
        layout = idxd_availability.plan(device, settings)
        devices.start(function, layout, deadline)
        device = idxd_setup.read(function.address)
    queue = device.queue(number)
    assert queue is not None
    label = idxd_names.label_of(van)
    if not queue.is_enabled:
        # A program may have opened it before somebody else disabled it.
        _check_closed(name, van)
        if mine is None:
            before = idxd_setup.before(queue)
            mine = idxd_notes.IdxdQueue(function.ids, van, before)
            idxd_notes.idxd_queues.write(name, mine)
        idxd_setup.configure(device, queue, settings, label)
        idxd_setup.enable(device, queue, deadline.left())
        LOG.info('%s (%s) enabled for VAN %s', name, queue.name, van)
    return _numbers(function.address, number, van)


def _numbers(address: str, number: int, van: str) -> list[str | int]:
    """Read again what the device file of a work queue is, and record it."""
    idxd_setup.read(address)  # it raises the error if the device is gone
    name = idxd_names.name_of(address, number)
    _, file = idxd_notes.find(name)
    if file is None:
        raise exception.DeviceError(
            device=f'work queue {number} of PCI function {address}',
            reason='it has no device file',
        )
    idxd_notes.note_file(name, van, file)
    path = device_files.shown(file.path)
    return [path, file.number.major, file.number.minor]


@context.entry
@notes.undoes_own(returns=True)
def disable(
    address: str,
    number: int,
    van_uuid: str,
    release_seconds: float,
    seconds: float,
) -> bool:
    """Disable a VAN's work queue, and its device with the last one.

    It succeeds if the VAN does not have the work queue, or its device is gone.
    ``[os_acc] cleaning_command`` runs before the work queue is disabled, with
    its name for ``{address}``.

    :returns: False if the work queue is the VAN's, but there is no record that
        os-acc enabled it; it then stays
    """
    arguments.whole(number, 'number', _HIGHEST_NUMBER)
    arguments.uuid(van_uuid)
    seconds = arguments.seconds(seconds)
    release_seconds = arguments.seconds(release_seconds)
    name = idxd_names.name_of(address, number)
    noted = notes.said(idxd_notes.Queue, notes.IDXD, name)
    if noted is not None and noted.what != van_uuid:
        return True  # another VAN has it
    notes.check_noted(notes.IDXD, name)
    _wait_until_closed(name, van_uuid, release_seconds)
    function = pci.find(address)
    if function is None or idxd.find(address) is None:
        # The kernel has forgotten its work queues. Delete only the note and
        # the records of this one: other VANs may need theirs when the device
        # is back.
        idxd_notes.forget(name, van_uuid, notes.Cleaned.GONE)
        return True
    path = function.path
    with operation_lock.named(f'idxd-{name}', seconds / 2) as lock:
        cleaned = _clean(name, van_uuid)
        deadline = waiting.Deadline(seconds)

        def act() -> bool:
            with operation_lock.held(path, deadline.left(0.5)):
                function = pci.get(address)
                return _disable(function, number, van_uuid, cleaned, deadline)

        what = f'work queue {name} to be disabled'
        return operation_lock.at_most(lock, act, seconds, what)


def _clean(name: str, van: str) -> notes.Cleaned:
    """Run the operator's command for a work queue that a VAN has now."""
    noted = notes.any_of(notes.IDXD, name)
    if noted is None or not noted.may_be(van):
        return notes.Cleaned.NEVER_GIVEN
    if idxd_notes.idxd_files.read(name) is None:
        return notes.Cleaned.GONE  # reset by a reboot
    return cleaning.run_command(name)


def _wait_until_closed(name: str, van: str, seconds: float) -> None:
    """Wait until no program has a VAN's work queue open."""
    device_users.until_closed(
        f'work queue {name}', lambda: idxd_notes.users(name, van), seconds
    )


def _check_closed(name: str, van: str) -> None:
    """Check that no program has a VAN's work queue open."""
    if users := idxd_notes.users(name, van):
        raise exception.DeviceBusy(
            device=f'work queue {name}', reason='; '.join(users)
        )


def _disable(
    function: pci.Function,
    number: int,
    van: str,
    cleaned: notes.Cleaned,
    deadline: waiting.Deadline,
) -> bool:
    name = idxd_names.name_of(function.address, number)
    device = idxd_setup.read(function.address)
    queue = device.queue(number)
    known = idxd_notes.idxd_queues.read(name)
    if known is not None and (known.ids, known.van) != (function.ids, van):
        known = None
    if queue is not None and known is None and idxd_notes.has(queue, van):
        return False
    _check_closed(name, van)
    if (
        queue is not None
        and known is not None
        and idxd_notes.is_of(queue, van)
    ):
        if queue.is_enabled:
            idxd_setup.disable(device, queue, deadline.left(0.5))
            device = idxd_setup.read(function.address)
            queue = device.queue(number)
        if queue is not None:
            kept = idxd_notes.idxd_devices.read(function.address)
            mode = kept.mode if kept is not None else spec_idxd.SHARED
            idxd_setup.reset(device, queue, known.before, mode)
        LOG.info('%s disabled, which VAN %s had', name, van)
    idxd_notes.forget(name, van, cleaned)
    devices.stop(function, deadline)
    return True
