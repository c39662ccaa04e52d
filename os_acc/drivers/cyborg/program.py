# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Programs devices by Cyborg's drivers, with one function per device."""

from __future__ import annotations

import logging

from oslo_config import cfg

from os_acc import driver
from os_acc import exception
from os_acc import objects
from os_acc import programming
from os_acc import progress
from os_acc.devices import device_spec
from os_acc.devices import pci
from os_acc.drivers.cyborg import listing as cyborg_listing
from os_acc.drivers.cyborg import source as cyborg_source
from os_acc.programming import bitstreams

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# This driver of Cyborg does not pass the PCI domain to its tool, fpgaconf.
_NO_DOMAIN = 'intel_fpga_driver'


def program(
    slot: programming.Slot,
    source: cyborg_source.Source,
    bitstream: str | None,
    function_id: str | None,
    report: progress.Report,
    van: objects.VAN | None = None,
) -> bool:
    """Program a device, and check the result as far as it can be seen.

    :param bitstream: see bitstreams.fetched()
    :param function_id: the bitstream's function; None: unknown
    :param report: called during the work, see DriverBase.program_device
    :param van: the VAN that needs it; None: the administrator
    :returns: False if the device already held the bitstream
    :raises DeviceBusy: if others use the device with another function, or a
        guest has it open
    :raises DeviceNotFound: if none of Cyborg's drivers has the device, or
        device_spec does not offer it
    :raises BitstreamError: if the bitstream is unavailable
    :raises DeviceError: if the programming failed, or the device reports
        another function afterwards
    :raises Timeout: if it took longer than program_timeout
    """
    with bitstreams.fetched(bitstream, function_id, None, report) as file:
        wanted = programming.Wanted(
            function_id or file.function_id, file.sha256
        )

        def act() -> None:
            report(None, f'programming {slot.device}')
            _program(source, slot.device, file.path, wanted.function_id)

        return slot.program(
            wanted, lambda: _check(source, slot.device), act, van
        )


def _check(source: cyborg_source.Source, address: str) -> None:
    """Check that a device can be programmed now. Nothing is changed."""
    from os_acc.privileged import device_users

    found = source.at(address)
    check_programmable(found)
    function = pci.get(address)
    device_spec.load(CONF).check(function)
    functions = {
        address,
        *function.vf_addresses,
        *(
            each.address
            for each in found.handles
            if isinstance(each, objects.PCIHandle)
        ),
    }
    users = device_users.of_guests(sorted(functions))
    if users:
        raise exception.DeviceBusy(device=address, reason='; '.join(users))


def _program(
    source: cyborg_source.Source,
    address: str,
    image_path: str,
    function_id: str | None,
) -> None:
    found = source.at(address)
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
            'returned False, which means that it failed',
        )
    _verify(source, found, function_id)


def _verify(
    source: cyborg_source.Source,
    before: cyborg_listing.Found,
    function_id: str | None,
) -> None:
    """Discover a device again after it was programmed, and check it.

    :raises DeviceError: if it is gone or reports another function
    """
    there, errors = source.discover()
    for now in there:
        if (now.address, now.by) == (before.address, before.by):
            break
    else:
        reason = errors.get(before.by, 'it is gone')
        raise exception.DeviceError(
            device=before.address,
            reason=f"Cyborg's {before.by} does not find it any more after "
            f'programming: {reason}',
        )
    if function_id is None or now.has_function(function_id):
        return
    if now.functions:
        raise exception.DeviceError(
            device=now.address,
            reason=f'it was programmed with {function_id}, but has '
            + ', '.join(now.functions),
        )
    LOG.info(
        "%s: Cyborg's %s reports that it programmed function %s, but does "
        'not report which function the device has',
        now.address,
        now.by,
        function_id,
    )


def slot_of(
    by: driver.DriverBase, source: cyborg_source.Source, address: str
) -> programming.Slot:
    """Make the slot of a device; it is always programmed as a whole."""

    def look() -> str | None:
        # The device may have changed while the caller waited for the lock.
        source.forget()
        functions = source.at(address).functions
        return functions[0] if functions else None

    return programming.Slot(by, address, look=look)


def put_function(
    by: driver.DriverBase,
    source: cyborg_source.Source,
    van: objects.VAN,
    request: objects.AcceleratorRequest,
    address: str,
) -> None:
    """Program a device for a request. The caller holds the device's lock.

    :raises DeviceBusy: if others use the device with another function
    :raises DeviceError: if the programming failed
    """
    slot = slot_of(by, source, address)
    function_id, bitstream = request.function_id, request.bitstream
    by_file = bitstream is not None and function_id is None
    if not by_file and slot.take(van, programming.Wanted(function_id)):
        return
    program(slot, source, bitstream, function_id, van.report_progress, van)


def check_programmable(found: cyborg_listing.Found) -> None:
    """:raises DeviceError: if Cyborg's driver cannot program the device"""
    reason = None
    if not found.programmable:
        reason = f"Cyborg's {found.by} cannot program it"
    elif found.by == _NO_DOMAIN and not found.address.startswith('0000:'):
        reason = (
            f"Cyborg's {found.by} does not pass the PCI domain to fpgaconf, "
            'which could then program another device, in domain 0000'
        )
    if reason is not None:
        raise exception.DeviceError(device=found.address, reason=reason)
