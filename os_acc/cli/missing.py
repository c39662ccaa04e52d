# SPDX-License-Identifier: Apache-2.0

"""Says whether a plug found no device because there is none at all.

A driver raises DeviceNotFound if others have all devices, which may pass, and
also if no device of this host, free or not, could ever serve the request.
"""

from __future__ import annotations

from collections.abc import Sequence

from os_acc import exception
from os_acc import host
from os_acc import objects
from os_acc.cli import base
from os_acc.cli import errors
from os_acc.objects import van as states
from os_acc.operations import discovery


def check(
    err: exception.ExceptionBase,
    requests: Sequence[objects.AcceleratorRequest],
) -> None:
    """Check that a plug that has failed could succeed later.

    :raises NoSuchDevice: if this host has no device for a request
    """
    root = list(errors.causes(err))[-1]
    if not isinstance(root, exception.DeviceNotFound):
        return
    if not requests or getattr(err, 'undo_errors', []):
        return
    opened = base.look()
    try:
        reason = _reason(opened, err, requests)
    except exception.ExceptionBase:
        return  # it is unknown
    finally:
        opened.close()
    if reason is not None:
        raise errors.NoSuchDevice(reason) from None


def _reason(
    opened: host.Host,
    err: exception.ExceptionBase,
    requests: Sequence[objects.AcceleratorRequest],
) -> str | None:
    """Say why no device can serve a request; None: one may."""
    devices = discovery.devices(opened)
    addresses = {device.address for device in devices}
    # A device that is programmed or reset is off the bus for a while.
    if any(
        van.device not in addresses
        for van in opened.journal.vans()
        if van.state not in (*states.WHOLE, states.ERROR)
    ):
        return None
    if all(request.handle is not None for request in requests):
        # If somebody else had the named device, it would be DeviceBusy.
        return exception.describe(err)
    preferred = opened.conf.os_acc.drivers
    for request in requests:
        if request.handle is not None:
            continue
        driver = opened.extensions.driver_for(request, preferred)
        if driver.takes_unlisted(request):
            continue
        if discovery.unread(devices, driver.name):
            return None
        if not any(_fits(request, driver.name, each) for each in devices):
            return (
                f'No device of this host, free or not, is {_wanted(request)}: '
                'see os-acc device list --long'
            )
    return None


def _fits(
    request: objects.AcceleratorRequest, driver: str, device: objects.Device
) -> bool:
    return (
        device.driver == driver
        and request.resource_class in (None, device.resource_class)
        and set(request.traits) <= set(device.traits)
    )


def _wanted(request: objects.AcceleratorRequest) -> str:
    text = f'of {request.resource_class}'
    if request.traits:
        text += ' with the traits ' + ', '.join(request.traits)
    return text + (f' for driver {request.driver}' if request.driver else '')
