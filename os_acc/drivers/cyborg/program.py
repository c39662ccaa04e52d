# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Programming by Cyborg's drivers, of what takes one function at a time."""

from __future__ import annotations

import logging

from oslo_config import cfg

from os_acc import driver
from os_acc import exception
from os_acc import objects
from os_acc.devices import device_spec
from os_acc.devices import pci
from os_acc.drivers.cyborg import listing as cyborg_listing
from os_acc.drivers.cyborg import source as cyborg_source
from os_acc.programming import bitstreams
from os_acc.programming import rule as programming

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# The one of Cyborg's drivers whose tool is not told the PCI domain.
_NO_DOMAIN = 'intel_fpga_driver'


def program(
    source: cyborg_source.Source,
    address: str,
    image_path: str,
    function_id: str | None,
) -> None:
    """Program a device, and see as well as can be that it is done.

    See CyborgDriver.program.
    """
    found = source.at(address)
    check_programmable(found)
    device_spec.load(CONF).check(pci.get(address))
    try:
        done = source.call(
            'program',
            source.config.program_timeout,
            f'program {address} with {image_path}',
            driver=found.by,
            controlpath_id=found.controlpath_id,
            image=image_path,
        )
    except exception.HelperError as err:
        raise exception.DeviceError(device=address, reason=str(err)) from err
    finally:
        source.forget()
    if not done:
        raise exception.DeviceError(
            device=address,
            reason=f"program() of Cyborg's {found.by} with {image_path} "
            'returned False: it failed',
        )
    _verify(source, found, function_id)


def _verify(
    source: cyborg_source.Source,
    before: cyborg_listing.Found,
    function_id: str | None,
) -> None:
    """Look at a device after it was programmed."""
    there, errors = source.discover()
    for now in there:
        if (now.address, now.by) == (before.address, before.by):
            break
    else:
        reason = errors.get(before.by, 'it does not find it any more')
        raise exception.DeviceError(
            device=before.address,
            reason=f"after it was programmed, Cyborg's {before.by} "
            f'cannot tell of it: {reason}',
        )
    if function_id is None or now.has_function(function_id):
        return
    if now.functions:
        raise exception.DeviceError(
            device=now.address,
            reason=f'it was programmed with {function_id}, and has '
            + ', '.join(now.functions),
        )
    LOG.info(
        "%s: Cyborg's %s says that it is programmed with %s, and does not "
        'tell what is in it',
        now.address,
        now.by,
        function_id,
    )


def slot_of(source: cyborg_source.Source, address: str) -> programming.Slot:
    """A device as what is programmed: always the whole of it."""

    def look() -> str | None:
        # What was found before this one waited for the lock may not be so.
        source.forget()
        functions = source.at(address).functions
        return functions[0] if functions else None

    return programming.Slot(device=address, look=look)


def put_function(
    by: driver.DriverBase,
    source: cyborg_source.Source,
    van: objects.VAN,
    request: objects.AcceleratorRequest,
    address: str,
) -> None:
    """Have a function in a device for a VAN. The device's lock is held.

    :raises DeviceBusy: others have the device with something else in it
    :raises DeviceError: its programming failed
    """
    slot = slot_of(source, address)
    function_id, bitstream = request.function_id, request.bitstream
    if bitstream is None or function_id is not None:
        wanted = programming.Wanted(function_id)
        if programming.take(by, van, slot, wanted):
            return
    with bitstreams.fetched(
        bitstream, function_id, None, van.report_progress
    ) as file:
        wanted = programming.Wanted(
            function_id or file.function_id, file.sha256
        )

        def act() -> None:
            van.report_progress(None, f'programming {address}')
            program(source, address, file.path, wanted.function_id)

        programming.program(by, slot, wanted, lambda: None, act, van)


def check_programmable(found: cyborg_listing.Found) -> None:
    """:raises DeviceError: Cyborg's driver cannot program it"""
    reason = None
    if not found.programmable:
        reason = f"Cyborg's {found.by} cannot program it"
    elif found.by == _NO_DOMAIN and not found.address.startswith('0000:'):
        reason = (
            f"Cyborg's {found.by} does not tell fpgaconf the PCI domain: it "
            'could program the device with that address in domain 0000'
        )
    if reason is not None:
        raise exception.DeviceError(device=found.address, reason=reason)
