# SPDX-License-Identifier: Apache-2.0

"""Setting up and disabling devices of Intel DSA and IAA, as root.

A device is set up with the first work queue that a VAN gets, and disabled with
the last one. One that os-acc apply keeps is set up earlier, and stays enabled.
"""

from __future__ import annotations

import dataclasses
import logging

from os_acc import exception
from os_acc.availability import functions as availability
from os_acc.deadlines import waiting
from os_acc.kernel import idxd
from os_acc.kernel import pci
from os_acc.kinds.idxd import rules as idxd_availability
from os_acc.privileged import arguments
from os_acc.privileged import context
from os_acc.privileged import function_notes
from os_acc.privileged import offers
from os_acc.privileged.idxd import notes as idxd_notes
from os_acc.privileged.idxd import setup as idxd_setup

LOG = logging.getLogger(__name__)


@context.entry
def keep(address: str, seconds: float) -> bool:
    """Set up a device as device_spec says, and keep it so without a VAN.

    If that fails, the device is as it was before.

    :returns: False: it was kept like that before
    :raises DeviceNotFound: if device_spec does not offer its work queues
    :raises DeviceInUseByHost: if somebody else has configured it
    :raises DeviceBusy: if another VAN has the function, or it is set up in
        another way, and VANs have or had work queues of it
    :raises DeviceError, DeviceUnhealthy: if it cannot be set up
    """
    function = arguments.there(address)
    seconds = arguments.seconds(seconds)
    return function_notes.change(
        function,
        seconds,
        f'the work queues of PCI function {address} to be set up',
        lambda deadline: _keep(pci.get(address), deadline),
    )


def _keep(function: pci.Function, deadline: waiting.Deadline) -> bool:
    earlier = idxd_notes.layout_of(function)
    wanted = _wanted(function, earlier is not None)
    was_kept = _is_kept(function)
    if earlier == wanted:
        _mark(function, True)
        return not was_kept
    if vans := idxd_notes.vans(function):
        raise exception.DeviceBusy(
            device=f'PCI function {function.address}',
            reason='; '.join(
                f'VAN {van} has work queue {name}'
                for name, van in vans.items()
            ),
        )
    device = idxd_setup.read(function.address)
    if earlier is not None:
        if others := idxd_setup.changed_by_others(device, earlier):
            raise exception.DeviceInUseByHost(
                device=f'PCI function {function.address}',
                by='; '.join(others),
            )
        idxd_setup.stop(device, deadline.left(0.5))
    try:
        start(function, wanted, deadline, kept=True)
    except exception.ExceptionBase:
        # This undoes what was done of it.
        if idxd_notes.layout_of(function) is None and earlier is not None:
            start(function, earlier, deadline, was_kept)
        raise
    return True


def _wanted(function: pci.Function, set_up: bool) -> idxd_availability.Layout:
    """How device_spec says that a device is set up."""
    spec = offers.specs().find(function)
    settings = None if spec is None else spec.queues
    for obstacle in idxd_availability.obstacles(
        function,
        idxd.find(function.address),
        settings,
        set_up,
        idxd_notes.files_given(function),
    ):
        raise obstacle.error()
    assert settings is not None
    device = idxd_setup.read(function.address)
    if (reason := idxd_availability.shortage(device, settings)) is not None:
        about = f'the work queues of PCI function {function.address}'
        raise availability.Obstacle.of(about, reason).error()
    return idxd_availability.plan(device, settings)


@context.entry
def let_go(address: str, seconds: float) -> bool:
    """End what keep() has begun: the device is disabled with its last VAN.

    :returns: False: there was nothing to do
    """
    function = arguments.there(address)
    seconds = arguments.seconds(seconds)

    def act(deadline: waiting.Deadline) -> bool:
        before = idxd_notes.idxd_devices.read(address)
        # Also after an earlier call that was interrupted.
        _mark(function, False)
        stop(function, deadline)
        return idxd_notes.idxd_devices.read(address) != before

    what = f'the work queues of PCI function {address} to be undone'
    return function_notes.change(function, seconds, what, act)


@context.entry
def lets_go(address: str) -> bool:
    """Say whether let_go() would do something."""
    function = arguments.there(address)
    known = idxd_notes.idxd_devices.read(address)
    # Not by layout_of(), which undoes what a call that goes on has set.
    return known is not None and (
        known.kept or not idxd_notes.in_use(function)
    )


def _is_kept(function: pci.Function) -> bool:
    known = idxd_notes.idxd_devices.of(function)
    return known is not None and known.kept


def _mark(function: pci.Function, kept: bool) -> None:
    """Record whether a device that is set up stays so without a VAN."""
    known = idxd_notes.idxd_devices.read(function.address)
    if known is not None and known.kept != kept:
        idxd_notes.idxd_devices.write(
            function.address, dataclasses.replace(known, kept=kept)
        )


def start(
    function: pci.Function,
    layout: idxd_availability.Layout,
    deadline: waiting.Deadline,
    kept: bool = False,
) -> None:
    """Set up a device and enable it. The operation lock is held."""
    idxd_notes.idxd_devices.write(
        function.address,
        idxd_notes.IdxdDevice(
            function.ids,
            layout.mode,
            layout.size,
            {str(number): group for number, group in layout.queues.items()},
            {str(number): group for number, group in layout.engines.items()},
            kept,
        ),
    )
    device = idxd_setup.read(function.address)
    idxd_setup.lay_out(device, layout)
    idxd_setup.start(device, deadline.left())
    LOG.info('%s (%s) enabled', device.name, function.address)


def stop(function: pci.Function, deadline: waiting.Deadline) -> None:
    """Disable a device that os-acc has enabled, if nothing needs it any more.

    The operation lock is held.
    """
    if (
        idxd_notes.in_use(function)
        or (layout := idxd_notes.layout_of(function)) is None
        or _is_kept(function)
    ):
        return
    device = idxd_setup.read(function.address)
    others = idxd_setup.changed_by_others(device, layout)
    if others:
        # Disabling it would undo that. From now on, it is their device.
        LOG.warning(
            '%s (%s) stays enabled, because somebody else has configured it: '
            '%s',
            device.name,
            function.address,
            '; '.join(others),
        )
    else:
        idxd_setup.stop(device, deadline.left())
        LOG.info('%s (%s) disabled', device.name, function.address)
    idxd_notes.idxd_devices.delete(function.address)
