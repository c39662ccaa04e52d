# SPDX-License-Identifier: Apache-2.0

"""Programs devices with Cyborg's drivers, with one function per device."""

from __future__ import annotations

import logging

from oslo_config import cfg

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import objects
from os_acc import programming
from os_acc import progress
from os_acc.kernel import chip as chips
from os_acc.kernel import pci
from os_acc.kinds.cyborg.driver import listing as cyborg_listing
from os_acc.kinds.cyborg.driver import source as cyborg_source
from os_acc.programming import bitstreams
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# This driver of Cyborg does not pass the PCI domain to its tool, fpgaconf.
_NO_DOMAIN = 'intel_fpga_driver'
# This driver of Cyborg runs "xbmgmt program --base", which writes the card's
# flash memory: the card has its old image until the host is powered off and
# on.
_COLD_REBOOT = 'xilinx_fpga_driver'


def program(
    slot: programming.Slot,
    bitstream: str | None,
    function_id: str | None,
    report: progress.Report,
    van: objects.VAN | None = None,
) -> bool:
    """Program a device, and check the result as far as it can be seen.

    :param function_id: the bitstream's function; None: unknown
    :param van: the VAN that needs it; None: the administrator
    :returns: False if the device already held the bitstream
    """
    with bitstreams.fetched(bitstream, function_id, None, report) as file:
        wanted = programming.Wanted(
            function_id or file.function_id, file.sha256
        )
        return slot.program(wanted, file, report, van)


class CyborgProgrammer(programming.Programmer):
    """Lets Cyborg's driver program a device."""

    def __init__(self, device: str, source: cyborg_source.Source) -> None:
        super().__init__(device)
        self._source = source

    @property
    def time_limit(self) -> float:
        # The driver discovers its devices before and after program().
        config = self._source.config
        limit: float = config.program_timeout + 2 * config.timeout
        return limit

    def check(self, file: bitstreams.Bitstream | None) -> None:
        found = self._source.at(self.device)
        check_programmable(found)
        device_spec.load(CONF).check(pci.get(self.device))

    def program(
        self,
        file: bitstreams.Bitstream | None,
        function_id: str | None,
        report: progress.Report,
    ) -> str:
        file = self.needed(file)
        report(None, f'programming {self.device}')
        source, found = self._source, self._source.at(self.device)
        try:
            done = source.call(
                'program',
                source.config.program_timeout,
                f'program {self.device} with {file.path}',
                driver=found.cyborg_driver,
                controlpath_id=found.controlpath_id,
                image=file.path,
            )
        except exception.HelperError as err:
            raise exception.DeviceError(
                device=self.device, reason=str(err)
            ) from err
        finally:
            source.forget()
        if not done:
            raise exception.DeviceError(
                device=self.device,
                reason=f"program() of Cyborg's {found.cyborg_driver} with "
                f'{file.path} returned False, which means that it failed',
            )
        self._verify(found, function_id)
        if found.cyborg_driver == _COLD_REBOOT:
            return device_spec.COLD_REBOOT
        return device_spec.PARTIAL

    def _verify(
        self, before: cyborg_listing.Found, function_id: str | None
    ) -> None:
        """Discover a device again after it was programmed, and check it."""
        there, errors = self._source.discover()
        for now in there:
            if (now.address, now.cyborg_driver) == (
                before.address,
                before.cyborg_driver,
            ):
                break
        else:
            reason = errors.get(before.cyborg_driver, 'it is gone')
            raise exception.DeviceError(
                device=before.address,
                reason=f"Cyborg's {before.cyborg_driver} does not find it any "
                f'more after programming: {reason}',
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
            now.cyborg_driver,
            function_id,
        )

    def look(self) -> str | None:
        # The device may have changed while the caller waited for the lock.
        self._source.forget()
        functions = self._source.at(self.device).functions
        return functions[0] if functions else None


class _AsFound(programming.Programmer):
    """Says what Cyborg's driver found earlier, and discovers nothing."""

    def __init__(self, found: cyborg_listing.Found) -> None:
        super().__init__(found.address)
        self._found = found

    def look(self) -> str | None:
        return next(iter(self._found.functions), None)


def slot_of(
    driver: driver_base.DriverBase,
    source: cyborg_source.Source,
    found: cyborg_listing.Found,
) -> programming.Slot:
    """Make the slot of a device; it is always programmed as a whole."""
    return _slot(driver, found, CyborgProgrammer(found.address, source))


def slot_as_found(
    driver: driver_base.DriverBase, found: cyborg_listing.Found
) -> programming.Slot:
    """Make a slot that only shows a device, as it was when it was found."""
    return _slot(driver, found, _AsFound(found))


def _slot(
    driver: driver_base.DriverBase,
    found: cyborg_listing.Found,
    programmer: programming.Programmer,
) -> programming.Slot:
    function = pci.find(found.address)
    chip = chips.of(function) if function is not None else None
    functions = {
        each.address
        for each in found.handles
        if isinstance(each, objects.PCIHandle)
    }
    if chip is not None:
        functions.update(chip.functions)
    return programming.Slot(
        driver,
        found.address,
        programmer=programmer,
        chip=chip,
        functions=tuple(sorted(functions)),
        handles=tuple(each.identity for each in found.handles),
    )


def put_function(
    driver: driver_base.DriverBase,
    source: cyborg_source.Source,
    van: objects.VAN,
    request: objects.AcceleratorRequest,
    found: cyborg_listing.Found,
) -> None:
    """Program a device for a request, unless it has the function.

    The VAN is saved with its handle. The caller does not hold the device's
    lock, because this can take as long as Cyborg's driver programs.
    """
    slot = slot_of(driver, source, found)
    if slot.chip is not None:
        van.driver_data = {
            **van.driver_data,
            programming.CHIP: slot.chip.identity,
        }
        van.save()
    function_id, bitstream = slot.asked(van, request)
    by_file = bitstream is not None and function_id is None
    if not by_file and slot.take(van, programming.Wanted(function_id)):
        return
    program(slot, bitstream, function_id, van.report_progress, van)


def check_programmable(found: cyborg_listing.Found) -> None:
    """:raises DeviceError: if Cyborg's driver cannot program the device"""
    reason = None
    if not found.programmable:
        reason = f"Cyborg's {found.cyborg_driver} cannot program it"
    elif found.cyborg_driver == _NO_DOMAIN and not found.address.startswith(
        '0000:'
    ):
        reason = (
            f"Cyborg's {found.cyborg_driver} does not pass the PCI domain to "
            'fpgaconf, which could then program another device, in domain '
            '0000'
        )
    if reason is not None:
        raise exception.DeviceError(device=found.address, reason=reason)
