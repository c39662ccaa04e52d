# SPDX-License-Identifier: Apache-2.0

"""FPGAs on the PCI bus that are programmed for their guests.

``[os_acc] device_spec`` names the devices and how they are programmed. This
driver claims, binds and gives back PCI functions as the driver pci does: see
drivers.pci.claim.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import functools
import os
from typing import Any

from oslo_config import cfg

from os_acc import driver
from os_acc import exception
from os_acc import finding
from os_acc import objects
from os_acc import programming
from os_acc import progress
from os_acc import reserved
from os_acc.drivers import allocation
from os_acc.drivers import base
from os_acc.drivers import choosing
from os_acc.drivers import pci_functions
from os_acc.kernel import chip as chips
from os_acc.kernel import pci
from os_acc.kinds.fpga.driver import slots as fpga_slots
from os_acc.kinds.pci.driver import claim
from os_acc.kinds.pci.driver import inventory as pci_inventory
from os_acc.kinds.pci.driver import report as pci_report
from os_acc.objects import device as device_objects
from os_acc.programming import bitstreams
from os_acc.programming import regions
from os_acc.programming import uses
from os_acc.spec import device_spec

CONF = cfg.CONF

KEEP, CLEAR = 'keep', 'clear'

OPTS = (
    *claim.OPTS,
    cfg.StrOpt(
        'at_unplug',
        default=KEEP,
        choices=[
            (KEEP, 'It stays in the device for the next user.'),
            (CLEAR, "The device_spec's clear command removes it."),
        ],
        help='What happens to a function when its last user has released it.',
    ),
)


class FPGADriver(base.Driver):
    """Programs PCI functions before they are given to instances."""

    programs = True
    CONFIG_OPTS = OPTS
    sets_ports = True
    cleans = True
    handle_types = ('PCIHandle',)
    moves = driver.REPLUG

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._claims = claim.Claims(self, self.specs)

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        specs = [s for s in self.specs().entries if s.programmer]
        if not specs:
            return False
        if isinstance(request.handle, objects.PCIHandle):
            function = pci.find(request.handle.address)
            if function is not None:
                return self.specs().find(function) is not None
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
        for function, spec in pci_functions.listed(self.specs()):
            vf = True if fpga_slots.vfs(function, spec) else None
            yield pci_functions.kind_of(function, spec, vf).resource_class

    def get_devices(self) -> list[objects.Device]:
        if not any(spec.programmer for spec in self.specs().entries):
            return []
        return [
            made
            for each in pci_inventory.devices(self, self.specs())
            for made in choosing.report(
                self,
                [each.address],
                functools.partial(self._with_functions, each),
            )
        ]

    def _with_functions(
        self, device: objects.Device, address: str
    ) -> objects.Device | None:
        """Add to a report what a device contains, and its chip.

        :returns: None if device_spec names VFs of it only: it is the PF that
            is programmed
        """
        if device.health != device_objects.OK:
            return device  # it cannot be read
        parent = pci.get(address)
        spec = self.specs().find(parent)
        if spec is None:
            return None
        slots = fpga_slots.Slots(self, parent, spec)
        every = slots.all()
        device.programming = spec.programming
        device.function_id = programming.common_function(every)
        device.functions = programming.functions(every)
        device.chip = pci_report.chip_info(slots.chip)
        for each in device.handles:
            function = each.handle.identity.removeprefix('pci/')
            each.region = slots.region_of(function)
        return device

    def show_device(self, address: str) -> dict[str, Any] | None:
        function = pci.find(address) if pci.is_address(address) else None
        if function is None or self.specs().find(function) is None:
            return None
        spec = self.specs().check(function)
        slots = fpga_slots.Slots(self, pci.get(function.parent), spec)
        return {
            **(pci_report.show(self, address, self.specs()) or {}),
            **pci_report.show_chip(slots.chip),
            **programming.show(slots.all(), spec.programming),
        }

    def diagnose(self) -> Iterator[finding.Finding]:
        """Check the commands and slots; the driver pci does the rest."""
        for spec in self.specs().entries:
            for key in ('program', 'check', 'clear'):
                command = getattr(spec, key)
                if command and not os.access(command[0], os.X_OK):
                    yield finding.Finding(
                        spec.source,
                        finding.ERROR,
                        f'{key}: there is no command {command[0]}',
                        "install the vendor's tools, or correct the path",
                    )
        yield from choosing.findings(
            self.get_devices(),
            lambda device: f'FPGA {device.address}',
            lambda device: [self._finding(device)],
        )

    def _finding(self, device: objects.Device) -> finding.Finding:
        subject = f'FPGA {device.address}'
        if device.health != device_objects.OK:
            return finding.Finding(
                subject, finding.ERROR, device.health_reason or ''
            )
        parent = pci.get(device.address)
        spec = self.specs().check(parent)
        for slot in fpga_slots.Slots(self, parent, spec).all():
            fault = slot.programmer.fault() if slot.programmer else None
            if fault is not None:
                return finding.Finding(
                    subject,
                    finding.ERROR,
                    fault,
                    'install what is missing, or correct its entry of '
                    'device_spec',
                )
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

    def check_request(
        self,
        request: objects.AcceleratorRequest,
        handle: objects.AttachHandle,
    ) -> None:
        self._claims.check_request(request, handle)
        address = objects.PCIHandle.cast(handle, 'driver fpga').address
        self._slot_at(address).check_request(request)

    def rank(
        self,
        request: objects.AcceleratorRequest,
        handle: objects.AttachHandle,
    ) -> int:
        address = objects.PCIHandle.cast(handle, 'driver fpga').address
        return self._order(request, {})(address)

    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        programming.undecide(van)
        if van.handle is None and request.handle is None:
            self._choose(van, request)
            return
        self._claims.claim(van, request)
        # The device is programmed before it is bound for the guest.
        self._give_function(van, request)
        self._claims.bind(van)

    def _choose(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        """Claim a function, program it and bind it.

        If only one slot was tried, its error is raised.
        """
        tried: dict[str, exception.ExceptionBase] = {}  # by label of the slot
        known: dict[str, fpga_slots.Slots] = {}

        def prepare() -> None:
            try:
                self._give_function(van, request, search=True)
            except exception.ExceptionBase as err:
                label = self._slot_at(allocation.address_of(van)).label
                tried[label] = err
                raise
            self._claims.bind(van)

        try:
            self._claims.choose(
                van,
                request,
                prepare,
                self._order(request, known),
                lambda address: (
                    bool(tried)
                    and self._slot_at(address, known).label in tried
                ),
            )
        except exception.DeviceNotFound as err:
            if len(tried) == 1:
                raise next(iter(tried.values())) from err
            raise

    def _give_function(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        search: bool = False,
    ) -> None:
        """Give a VAN the function that its request asks for.

        :param search: whether another device would be tried after an error,
            but not if programming has failed: a wrong bitstream would spoil
            one device after the other
        """
        assert isinstance(van.handle, objects.PCIHandle)
        assert van.device is not None
        parent = pci.get(van.device)
        if self._stays_as_it_is(van, request, parent):
            uses.decide(van, None)
            return
        spec = self.specs().check_held(parent)
        slots = fpga_slots.Slots(self, parent, spec)
        slot = slots.of_function(van.handle.address)
        van.driver_data = {
            **van.driver_data,
            programming.REGION: slot.region,
            programming.CHIP: slots.chip.identity,
        }
        van.save()
        # If the request names the function, any bitstream with it will do.
        function_id, bitstream = slot.asked(van, request)
        by_file = bitstream is not None and function_id is None
        if by_file or not slot.take(van, programming.Wanted(function_id)):
            try:
                self._program(
                    slot,
                    spec,
                    bitstream,
                    function_id,
                    van.report_progress,
                    van,
                )
            except (exception.DeviceBusy, exception.DeviceInUseByHost):
                raise
            except Exception as err:
                if search:
                    raise choosing.SearchEnds(err) from err
                raise
        # This or another VAN may have had the whole chip programmed.
        chip = chips.of(pci.get(van.device))
        van.driver_data = {
            **van.driver_data,
            programming.CHIP: chip.identity,
        }
        self._claims.renew(van)

    def _stays_as_it_is(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        parent: pci.Function,
    ) -> bool:
        """Whether a VAN gets back a device that nothing can program now.

        No entry of device_spec says any more how it is programmed, or none
        can be read, and the VAN asks for no function.
        """
        return (
            programming.REGION in van.driver_data
            and request.function_id is None
            and request.bitstream is None
            and not self.specs().held(parent).programmer
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
        with bitstreams.fetched(
            bitstream, function_id, spec.region_type, report
        ) as file:
            wanted = programming.Wanted(
                function_id or file.function_id or slot.function_of(file),
                file.sha256,
            )
            return slot.program(wanted, file, report, van)

    def program_device(
        self,
        address: str,
        bitstream: str | None,
        function_id: str | None,
        region: str | None,
        report: progress.Report,
    ) -> bool:
        function = pci.get(address)
        spec = self.specs().check(function)
        slots = fpga_slots.Slots(self, function, spec)
        named = regions.check(
            f'PCI function {address}', region, slots.regions()
        )
        slot = slots.of_region(named)
        return self._program(slot, spec, bitstream, function_id, report, None)

    def is_intact(self, van: objects.VAN) -> bool:
        """Examine the function's binding, and what the device contains.

        What the device contains can be seen if its entry of device_spec has
        a function_file; otherwise the journal's record counts.
        """
        if (
            not self._claims.is_intact(van)
            or van.device is None
            or pci.find(van.device) is None
        ):
            return False
        slot = self._slot_held(van)
        # Without a slot, it could not be programmed again.
        return slot is None or slot.holds(van)

    def left_behind(self, van: objects.VAN) -> str | None:
        return 'what the FPGA holds besides its function, such as its memory'

    def undo(self, van: objects.VAN) -> None:
        self._claims.give_back(van)
        slot = self._slot_held(van)
        if slot is not None:
            slot.clear(van, remove=self.config.at_unplug == CLEAR)

    def _slot_held(self, van: objects.VAN) -> programming.Slot | None:
        """The slot that a VAN has.

        :returns: None also if the card is gone, or its entry of device_spec
        """
        region = van.driver_data.get(programming.REGION)
        parent = pci.find(van.device) if van.device is not None else None
        if region is None or parent is None:
            return None
        spec = self.specs().held(parent)
        if not spec.programmer:
            return None
        return fpga_slots.Slots(self, parent, spec).of_region(region)

    def _order(
        self,
        request: objects.AcceleratorRequest,
        known: dict[str, fpga_slots.Slots],
    ) -> Callable[[str], int]:
        """Prefer devices with the function; devices in use come last."""
        wanted = programming.Wanted.of_request(request)
        ranks: dict[str, int] = {}
        pools = self.journal.pools()
        reservations = reserved.read(self.journal)

        def rank(address: str) -> int:
            slot = self._slot_at(address, known)
            if slot.label not in ranks:
                ranks[slot.label] = slot.rank(wanted, pools, reservations)
            return ranks[slot.label]

        return rank

    def _slot_at(
        self, address: str, known: dict[str, fpga_slots.Slots] | None = None
    ) -> programming.Slot:
        """The slot of a function that is offered and may not exist yet.

        :param known: the slots of devices that were looked for already
        """
        known = {} if known is None else known
        function = pci.find(address)
        name = function.parent if function else self._claims.pf_of(address)
        device = name or address
        if device not in known:
            parent = pci.get(device)
            spec = self.specs().check(parent)
            known[device] = fpga_slots.Slots(self, parent, spec)
        return known[device].of_function(address)

    @staticmethod
    def specs() -> fpga_slots.Programmable:
        found = device_spec.load_for_vans(CONF)
        if isinstance(found, device_spec.Unreadable):
            return fpga_slots.Unreadable(found.error)
        return fpga_slots.Programmable(found.entries)
