# SPDX-License-Identifier: Apache-2.0

"""Waits until a plug finds a free device."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import logging
import math
import random
import time
from typing import TypeVar

import os_acc
from os_acc import exception
from os_acc import host
from os_acc import objects
from os_acc import opts
from os_acc.cli import base
from os_acc.cli import errors
from os_acc.cli import queueing
from os_acc.cli import report
from os_acc.objects import van as states

LOG = logging.getLogger(__name__)

#: Seconds that --wait stands for without a number.
DEFAULT = 300.0

# Seconds between two attempts, at first and at most. They vary by half, so
# that many waiting commands do not try at the same moment.
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 1.0

_MAY_PASS = (
    exception.DeviceBusy,
    exception.DeviceNotFound,
    exception.JournalBusy,
    exception.LockTimeout,
)

_T = TypeVar('_T')


def seconds(text: str) -> float:
    """Read a time limit: seconds, 0 or more."""
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f'{text!r}: expected 0 or more')
    return value


def may_pass(err: BaseException) -> bool:
    """Whether an error may pass by itself, so that a retry makes sense.

    The device, the journal or a lock is in use, or no device is free. An error
    that leaves something to undo does not count.
    """
    if isinstance(err, errors.NoSuchDevice):
        return False
    return not getattr(err, 'undo_errors', []) and any(
        isinstance(each, _MAY_PASS) for each in errors.causes(err)
    )


def retry(
    act: Callable[[], _T],
    seconds: float | None,
    tell: Callable[[str], object],
    prepare: Callable[[], object] = lambda: None,
    requests: Sequence[objects.AcceleratorRequest] = (),
) -> _T:
    """Act until it succeeds, or fails with an error that does not pass.

    :param seconds: how long to try again; None: act once
    :param tell: gets a line that says what is waited for, when that changes
    :param prepare: called before each further attempt
    :param requests: what act asks for. Of this host's commands that wait for
        the same device, the one that came first acts first
    :raises NoSuchDevice: if this host has no device for a request
    """
    deadline = time.monotonic() + (seconds or 0.0)
    queue = queueing.Queue(
        opts.lock_path(os_acc.CONF), requests if seconds else (), deadline
    )
    pause = _FIRST_PAUSE
    last_reason = ''
    tried = False
    with contextlib.closing(queue):
        while True:
            try:
                with queue.turn(tried, tell) as is_mine:
                    if not is_mine:
                        raise exception.LockTimeout(
                            what=f'its turn: {queueing.EARLIER}',
                            seconds=seconds,
                        )
                    if tried:
                        prepare()
                    tried = True
                    return act()
            except exception.ExceptionBase as err:
                if not last_reason:
                    _check_exists(err, requests)
                left = deadline - time.monotonic()
                if seconds is None or left <= 0 or not may_pass(err):
                    raise
                root = list(errors.causes(err))[-1]
                # Without the UUID of the request.
                reason = getattr(root, 'kwargs', {}).get('reason')
                reason = str(reason or exception.describe(root))
            if reason != last_reason:
                last_reason = reason
                text = f'Waiting for at most {left:.0f} s: {reason}'
                LOG.info(text)
                tell(text)
            # S311: this is no secret.
            time.sleep(min(pause * random.uniform(0.5, 1.5), left))  # noqa: S311
            pause = min(pause * 1.7, _LONGEST_PAUSE)


def release_ended(tell: Callable[[str], object]) -> None:
    """Release what ended processes and interrupted commands have left.

    A command that waits may be the only one that does so.

    :param tell: gets a line for each VAN or instance
    """
    try:
        done = os_acc.recover()
    except exception.ExceptionBase as err:
        LOG.warning('Not recovered: %s', exception.describe(err))
        return
    for line in report.lines(done):
        tell(f'Recovery while waiting: {line}')


def _check_exists(
    err: exception.ExceptionBase,
    requests: Sequence[objects.AcceleratorRequest],
) -> None:
    """Check that a plug that has failed could succeed later.

    A driver raises DeviceNotFound if others have all devices, which may pass,
    and also if no device of this host could ever serve the request.

    :raises NoSuchDevice: if this host has no device for a request
    """
    root = list(errors.causes(err))[-1]
    if not isinstance(root, exception.DeviceNotFound):
        return
    if not requests or getattr(err, 'undo_errors', []):
        return
    opened = base.look()
    try:
        reason = _no_device(opened, err, requests)
    except exception.ExceptionBase:
        return  # it is unknown
    finally:
        opened.close()
    if reason is not None:
        raise errors.NoSuchDevice(reason) from None


def _no_device(
    opened: host.Host,
    err: exception.ExceptionBase,
    requests: Sequence[objects.AcceleratorRequest],
) -> str | None:
    """Say why no device can serve a request; None: one may."""
    # Only here, because most commands need no drivers.
    from os_acc.operations import discovery

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
