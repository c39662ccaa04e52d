# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""FPGAs on the PCI bus that a command of their vendor programs.

``[os_acc] device_spec`` names the devices and their commands. This driver
claims, binds and gives back PCI functions as the driver pci does: see
drivers.pci.claim.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import functools
import glob
import os
from typing import Any

from oslo_config import cfg

from os_acc import driver
from os_acc import exception
from os_acc import finding
from os_acc import objects
from os_acc import programming
from os_acc import progress
from os_acc.devices import device_spec
from os_acc.devices import pci
from os_acc.devices import sriov
from os_acc.devices import sysfs
from os_acc.devices import waiting
from os_acc.drivers.pci import claim
from os_acc.drivers.pci import listing as pci_listing
from os_acc.drivers.pci import report as pci_report
from os_acc.objects import device as device_objects
from os_acc.objects import function_id as function_ids
from os_acc.programming import bitstreams

CONF = cfg.CONF

KEEP, CLEAR = 'keep', 'clear'

OPTS = (
    *claim.OPTS,
    cfg.StrOpt(
        'at_unplug',
        default=KEEP,
        choices=(KEEP, CLEAR),
        help='What happens to a function when its last user has left: keep '
        'leaves it in the device for the next user, clear removes it with '
        "the device_spec's clear command.",
    ),
)


class _Programmable(device_spec.Specs):
    """The entries of device_spec that have a program command."""

    def find(self, function: pci.Function) -> device_spec.Spec | None:
        spec = super().find(function)
        return spec if spec is not None and spec.program else None

    def check(self, function: pci.Function) -> device_spec.Spec:
        spec = self.find(function)
        if spec is None:
            raise exception.DeviceNotFound(
                wanted=f'PCI function {function.address}',
                reason='no entry of [os_acc] device_spec has a program '
                'command for it',
            )
        return spec

    def check_held(self, function: pci.Function) -> device_spec.Spec:
        """The entry for a device that a VAN has already. See held().

        :raises DeviceNotFound: if no entry has a program command for it any
            more, so that the device cannot be programmed
        """
        spec = self.held(function)
        return spec if spec.program else self.check(function)


class FPGADriver(driver.DriverBase):
    """Programs PCI functions before they are given to instances."""

    programs = True
    CONFIG_OPTS = OPTS
    sets_ports = True
    handle_types = ('PCIHandle',)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._claims = claim.Claims(self, self._specs)

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        specs = [s for s in self._specs().entries if s.program]
        if not specs:
            return False
        if isinstance(request.handle, objects.PCIHandle):
            function = pci.find(request.handle.address)
            if function is not None:
                return self._specs().find(function) is not None
            return self._claims.pf_of(request.handle.address) is not None
        wanted = request.resource_class
        if request.handle is not None or wanted is None:
            return False
        return (
            wanted in {spec.resource_class for spec in specs}
            or wanted in self._resource_classes()
        )

    def _resource_classes(self) -> Iterator[str | None]:
        """The resource classes that get_devices() reports."""
        for function, spec in pci_listing.listed(self._specs()):
            vf = True if _vfs(function, spec) else None
            yield pci_listing.kind_of(function, spec, vf).resource_class

    def get_devices(self) -> list[objects.Device]:
        if not any(spec.program for spec in self._specs().entries):
            return []
        found = []
        for device in self._claims.get_devices():
            parent = pci.get(device.address)
            spec = self._specs().find(parent)
            if spec is None:
                # device_spec names VFs only; it is the PF that is programmed.
                continue
            slots = self._slots(device.address, spec)
            device.programming = spec.programming
            device.function_id = programming.common_function(slots)
            device.functions = programming.functions(slots)
            for each in device.handles:
                address = each.handle.identity.removeprefix('pci/')
                each.region = _region_of(parent, spec, address)
            found.append(device)
        return found

    def show_device(self, address: str) -> dict[str, Any] | None:
        function = pci.find(address) if pci.is_address(address) else None
        if function is None or self._specs().find(function) is None:
            return None
        spec = self._specs().check(function)
        slots = self._slots(function.parent, spec)
        return {
            **(pci_report.show(self, address, self._specs()) or {}),
            **programming.show(slots, spec.programming),
        }

    def diagnose(self) -> Iterator[finding.Finding]:
        """Check the commands and slots; the driver pci does the rest."""
        for spec in self._specs().entries:
            for key in ('program', 'check', 'clear'):
                command = getattr(spec, key)
                if command and not os.access(command[0], os.X_OK):
                    yield finding.Finding(
                        spec.source,
                        finding.ERROR,
                        f'{key}: there is no command {command[0]}',
                        "install the vendor's tools, or correct the path",
                    )
        for device in self.get_devices():
            yield self._finding(device)

    def _finding(self, device: objects.Device) -> finding.Finding:
        subject = f'FPGA {device.address}'
        spec = self._specs().check(pci.get(device.address))
        for slot in self._slots(device.address, spec):
            if (why := slot.broken()) is not None:
                return finding.Finding(
                    subject,
                    finding.WARNING,
                    why,
                    'program it again with os-acc device program '
                    f'{device.address}',
                )
        return finding.Finding(
            subject, finding.OK, f'function {device.function_id}'
        )

    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        programming.undecide(van)
        self._claims.claim(van, request, self._order(request))
        # The device is programmed before it is bound for the guest.
        self._give_function(van, request)
        self._claims.bind(van)

    def _give_function(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        assert isinstance(van.handle, objects.PCIHandle)
        assert van.device is not None
        parent = pci.get(van.device)
        spec = self._specs().check_held(parent)
        region = _region_of(parent, spec, van.handle.address)
        van.driver_data = {**van.driver_data, programming.REGION: region}
        van.save()
        slot = self._slot(van.device, spec, region)
        # If the request names the function, any bitstream with it will do.
        function_id, bitstream = slot.asked(van, request)
        by_file = bitstream is not None and function_id is None
        if not by_file and slot.take(van, programming.Wanted(function_id)):
            return
        self._program(
            slot, spec, bitstream, function_id, van.report_progress, van
        )

    def _program(
        self,
        slot: programming.Slot,
        spec: device_spec.Spec,
        bitstream: str | None,
        function_id: str | None,
        report: progress.Report,
        van: objects.VAN | None,
    ) -> bool:
        from os_acc.privileged import programming as privileged

        with bitstreams.fetched(
            bitstream, function_id, spec.region_type, report
        ) as file:
            wanted = programming.Wanted(
                function_id or file.function_id, file.sha256
            )

            def check() -> None:
                privileged.check(slot.device, slot.region, file.path)

            def act() -> None:
                report(None, 'programming')
                privileged.program(
                    slot.device,
                    slot.region,
                    file.path,
                    file.sha256,
                    wanted.function_id,
                    CONF.os_acc.program_timeout,
                )
                _check_seen(slot, wanted.function_id)

            return slot.program(wanted, check, act, van)

    def program_device(
        self,
        address: str,
        bitstream: str | None,
        function_id: str | None,
        region: str | None,
        report: progress.Report,
    ) -> bool:
        function = pci.get(address)
        spec = self._specs().check(function)
        regions = _regions(function, spec)
        if (region or programming.WHOLE) not in regions:
            raise exception.InvalidRequest(
                subject=f'PCI function {address}',
                field='region',
                value=region,
                expected='no region: the device is programmed as a whole'
                if regions == [programming.WHOLE]
                else f'one of {", ".join(regions)}',
            )
        slot = self._slot(address, spec, region or programming.WHOLE)
        return self._program(slot, spec, bitstream, function_id, report, None)

    def is_intact(self, van: objects.VAN) -> bool:
        """Examine the function's binding, and what the device contains.

        What the device contains can be seen if its entry of device_spec has
        a function_file; otherwise the journal's record counts.
        """
        if not self._claims.is_intact(van):
            return False
        region = van.driver_data.get(programming.REGION)
        parent = pci.find(van.device) if van.device is not None else None
        if region is None or parent is None:
            return parent is not None
        spec = self._specs().held(parent)
        if not spec.program:
            return True  # it could not be programmed again
        slot = self._slot(parent.address, spec, region)
        return slot.holds(van.function_id)

    def unprepareVAN(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        from os_acc.privileged import programming as privileged

        self._claims.give_back(van)
        if programming.REGION not in van.driver_data or van.device is None:
            return
        function = pci.find(van.device)
        spec = self._specs().held(function) if function is not None else None
        if function is None or spec is None or not spec.program:
            return  # the card is gone, or its entry of device_spec
        region = van.driver_data[programming.REGION]
        act = functools.partial(
            privileged.clear,
            function.address,
            region,
            CONF.os_acc.program_timeout,
        )
        slot = self._slot(function.address, spec, region)
        clears = self.config.at_unplug == CLEAR
        slot.clear(act if clears else None, van)

    def _order(
        self, request: objects.AcceleratorRequest
    ) -> Callable[[str], int]:
        """Prefer devices with the function; devices in use come last."""
        wanted = programming.Wanted(request.function_id)
        # Which function the bitstream has is unknown: prefer unused devices.
        by_file = wanted.function_id is None and request.bitstream is not None

        def rank(address: str) -> int:
            function = pci.find(address)
            name = function.parent if function else self._claims.pf_of(address)
            parent = pci.get(name or address)
            spec = self._specs().check(parent)
            region = _region_of(parent, spec, address)
            slot = self._slot(parent.address, spec, region)
            if by_file:
                return 2 if slot.users() else 1
            return slot.rank(wanted)

        return rank

    @staticmethod
    def _specs() -> _Programmable:
        return _Programmable(device_spec.load(CONF).entries)

    def _slots(
        self, address: str, spec: device_spec.Spec
    ) -> list[programming.Slot]:
        return [
            self._slot(address, spec, region)
            for region in _regions(pci.get(address), spec)
        ]

    def _slot(
        self, address: str, spec: device_spec.Spec, region: str
    ) -> programming.Slot:
        look = None
        if spec.function_file is not None and region == programming.WHOLE:
            look = functools.partial(
                _function_in, f'{pci.folder(address)}/{spec.function_file}'
            )
        return programming.Slot(self, address, region, spec.persistent, look)


def _regions(parent: pci.Function, spec: device_spec.Spec) -> list[str]:
    """The regions of a device that are programmed separately."""
    if spec.programming == device_objects.PROGRAMMING_SINGLE:
        return [programming.WHOLE]
    return [str(number) for number in range(len(_vfs(parent, spec)) or 1)]


def _region_of(
    parent: pci.Function, spec: device_spec.Spec, address: str
) -> str:
    """The region that a function gives access to: VF n to region n."""
    if spec.programming == device_objects.PROGRAMMING_SINGLE:
        return programming.WHOLE
    if address == parent.address:
        return '0'
    return str(_vfs(parent, spec).index(address))


def _vfs(parent: pci.Function, spec: device_spec.Spec) -> list[str]:
    """The VFs of a PF, or those that it will have, by number."""
    found = parent.vf_addresses
    if not parent.is_pf or spec.num_vfs is None:
        return found
    # Another process may be creating them now.
    future = sriov.future_addresses(parent.address, spec.num_vfs)
    return max(found, future, key=len)


def _check_seen(slot: programming.Slot, function_id: str | None) -> None:
    """Check that the kernel sees the function that was programmed."""
    if slot.look is None or function_id is None:
        return
    # The file that shows the function may appear after the command's end.
    seen = waiting.until(
        slot.look,
        CONF.os_acc.device_timeout,
        f'the kernel to show function {function_id} in {slot.label} after '
        'programming',
    )
    if not function_ids.same(seen, function_id):
        raise exception.DeviceError(
            device=slot.label,
            reason=f'it was programmed with {function_id}, but has {seen}',
        )


def _function_in(pattern: str) -> str | None:
    """Read the id of the function that the kernel sees in a device.

    :param pattern: a glob for the file that has it
    :returns: '' for none; None if there is not exactly one such file
    """
    paths = glob.glob(pattern)
    if len(paths) != 1:
        return None
    return sysfs.read(paths[0]) or ''
