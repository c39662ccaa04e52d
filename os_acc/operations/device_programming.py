# SPDX-License-Identifier: Apache-2.0

"""Programs a device for the administrator, and writes that to the journal."""

from __future__ import annotations

import functools
import time

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc import progress
from os_acc.bitstreams import reference as bitstream_reference
from os_acc.journal import events
from os_acc.operations import discovery


def program_device(
    host: host_module.Host,
    address: str,
    bitstream: str | None,
    function_id: str | None,
    region: str | None,
    callback: progress.Callback | None,
) -> bool:
    """See os_acc.program_device."""
    # The fields of an object refuse an invalid address or function name.
    wanted = objects.Device.partial(address=address, driver='any')
    if function_id is not None:
        wanted.function_id = function_id
    if bitstream is None and function_id is None:
        raise exception.InvalidRequest(
            subject='os_acc.program_device',
            field='bitstream',
            value=None,
            expected='a bitstream or a function_id (os-acc device program: '
            '--bitstream or --function)',
        )
    if bitstream is not None:
        bitstream_reference.parse(bitstream, 'os_acc.program_device')
    driver = discovery.driver_of(host, wanted.address)
    reporter = progress.Reporter(callback)

    event = functools.partial(
        progress.Progress, '', '', 'program_device', device=wanted.address
    )
    start = time.monotonic()
    reporter(event(progress.STARTED))
    try:
        with host.acting_for():
            done = driver.program_device(
                wanted.address,
                bitstream,
                function_id,
                region,
                lambda fraction, text: reporter(
                    event(progress.RUNNING, fraction, text)
                ),
            )
    except BaseException as err:
        text = exception.describe(err)
        reporter(event(progress.FAILED, message=text))
        _note_programming(host, driver, wanted.address, start, err)
        raise
    reporter(event(progress.DONE, 1.0))
    if done:
        _note_programming(host, driver, wanted.address, start)
    return done


def _note_programming(
    host: host_module.Host,
    driver: driver_base.DriverBase,
    address: str,
    start: float,
    err: BaseException | None = None,
) -> None:
    """Write an event."""
    made = events.Event(
        at=events.now(),
        operation=events.PROGRAM,
        step=None,
        result=events.DONE if err is None else events.FAILED,
        seconds=time.monotonic() - start,
        device=address,
        extension=driver.name,
        **(events.failure(err) if err is not None else {}),
    )
    host.journal.note([made])
