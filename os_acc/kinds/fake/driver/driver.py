# SPDX-License-Identifier: Apache-2.0

"""The driver for devices that do not exist, for tests, demos and CI.

It claims requests with a TestHandle (Cyborg's TEST_PCI). If its devices are
reported, it also claims requests for their handles and resource classes. A
request that names this driver may have a handle of any type, or none: then the
driver chooses a handle of one of its devices.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import time
from typing import Any

from oslo_config import cfg

from os_acc import driver
from os_acc import exception
from os_acc import objects
from os_acc import programming
from os_acc import progress
from os_acc import reserved
from os_acc.availability import functions as availability
from os_acc.claims import allocated
from os_acc.drivers import allocation
from os_acc.drivers import choosing
from os_acc.drivers import inventory
from os_acc.kinds.fake.driver import hardware as fake_hardware
from os_acc.programming import bitstreams

TRAITS = frozenset({'CUSTOM_FAKE_DEVICE'})

OPTS = (
    cfg.ListOpt(
        'devices',
        default=['fake0:test:16'],
        help='The devices, each as NAME:TYPE:HANDLES[:PROGRAMMING]. TYPE is '
        'test, pci, mdev or drc; HANDLES is their number, at most 256; '
        'PROGRAMMING is none, single or dynamic. The resource class of a '
        'device is CUSTOM_FAKE_<TYPE>.',
    ),
    cfg.BoolOpt(
        'discover',
        default=False,
        help='Report the devices in get_devices(). Off by default: a host '
        'with real devices must not offer fake ones.',
    ),
    cfg.StrOpt(
        'hardware_path',
        default='',
        sample_default='<state_path>/fake-hardware',
        help='Directory that stands for the hardware. It has a file for each '
        'handle in use and for each programmed device.',
    ),
    cfg.DictOpt(
        'delays',
        default={},
        help='Seconds that each step takes, such as '
        'prepareVAN:0.2,program:3. The steps are prepareVAN, postplug, '
        'unprepareVAN, get_devices and program.',
    ),
    cfg.ListOpt(
        'fail',
        default=[],
        help='Steps that fail: STEP for all VANs, or STEP, "@" and the UUID '
        'of one VAN.',
    ),
)


class FakeDriver(driver.DriverBase):
    """Gives out handles of fake devices and programs them."""

    CONFIG_OPTS = OPTS
    programs = True
    handle_types = ('TestHandle', 'PCIHandle', 'MdevHandle', 'DRCHandle')
    moves = driver.REPLUG

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        if request.handle is not None:
            return isinstance(request.handle, objects.TestHandle) or (
                self.config.discover
                and self._choice_of(request.handle) is not None
            )
        return self.config.discover and any(
            each.resource_class == request.resource_class
            for each in self._devices()
        )

    def get_devices(self) -> list[objects.Device]:
        self._step('get_devices')
        if not self.config.discover:
            return []
        holders = allocation.holders(self)
        in_use = self._hardware().in_use()
        devices = {each.name: each for each in self._devices()}
        numbers = {name: place for place, name in enumerate(devices)}
        return choosing.report(
            self,
            devices,
            lambda name: self._device(
                numbers[name], devices[name], holders, in_use
            ),
        )

    def takes_unlisted(self, request: objects.AcceleratorRequest) -> bool:
        if request.handle is not None:
            # For a handle that no device has, prepareVAN invents a device.
            return request.handle.obj_name() in self.handle_types
        return not self.config.discover and bool(self._fitting(request))

    def _device(
        self,
        number: int,
        device: fake_hardware.FakeDevice,
        holders: allocated.Holders,
        in_use: dict[str, dict[str, str]],
    ) -> objects.Device:
        slots = [self._slot(device.name, each) for each in device.regions]
        return inventory.device(
            device.name,
            self.name,
            [
                inventory.handle(
                    choice.handle,
                    _used_by_others(choice, in_use),
                    holders.of_handle(choice.handle.identity),
                    choice.region,
                )
                for choice in device.choices
            ],
            vendor_id='fa4e',
            product_id=f'{number:04x}',
            resource_class=device.resource_class,
            traits=list(TRAITS),
            programming=device.programming,
            function_id=programming.common_function(slots),
            functions=programming.functions(slots),
        )

    def serves(
        self, request: objects.AcceleratorRequest, device: objects.Device
    ) -> bool:
        return device.address in {each.name for each in self._fitting(request)}

    def check_request(
        self,
        request: objects.AcceleratorRequest,
        handle: objects.AttachHandle,
    ) -> None:
        choice = self._choice_of(handle)
        if choice is not None and choice.region is not None:
            self._slot(choice.device, choice.region).check_request(request)

    def rank(
        self,
        request: objects.AcceleratorRequest,
        handle: objects.AttachHandle,
    ) -> int:
        choice = self._choice_of(handle)
        if choice is None:
            return 0
        return self._order(request)((choice.device, choice.region))

    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        if van.handle is None:
            self._choose(van, request)
        self._step('prepareVAN', van)
        assert van.handle is not None and van.device is not None
        self._hardware().take(van.handle.identity, van.uuid, van.instance_uuid)
        if programming.REGION not in van.driver_data:
            return
        region = van.driver_data[programming.REGION]
        slot = self._slot(van.device, region, van)
        function_id, bitstream = slot.asked(van, request)
        if not slot.take(van, programming.Wanted(function_id)):
            self._program(
                slot, bitstream, function_id, van, van.report_progress
            )

    def program_device(
        self,
        address: str,
        bitstream: str | None,
        function_id: str | None,
        region: str | None,
        report: progress.Report,
    ) -> bool:
        (device,) = (d for d in self._devices() if d.name == address)
        if device.programming == 'none':
            return super().program_device(
                address, bitstream, function_id, region, report
            )
        if (region or programming.WHOLE) not in device.regions:
            raise exception.InvalidRequest(
                subject=f'fake device {address}',
                field='region',
                value=region,
                expected=f'one of {", ".join(map(repr, device.regions))}',
            )
        slot = self._slot(address, region or programming.WHOLE)
        return self._program(slot, bitstream, function_id, None, report)

    def show_device(self, address: str) -> dict[str, Any] | None:
        for device in self._devices():
            if device.name == address and device.programming != 'none':
                slots = [self._slot(address, r) for r in device.regions]
                return programming.show(slots, device.programming)
        return None

    def postplug(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        self._step('postplug', van)

    def is_intact(self, van: objects.VAN) -> bool:
        if van.handle is None or van.device is None:
            return True
        user = self._hardware().in_use().get(van.handle.identity, {})
        if user.get('van') != van.uuid:
            return False
        region = van.driver_data.get(programming.REGION)
        return region is None or self._slot(van.device, region).holds(van)

    def unprepareVAN(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        self._step('unprepareVAN', van)
        if van.handle is not None:
            self._hardware().give_back(van.handle.identity, van.uuid)
        if programming.REGION in van.driver_data and van.device is not None:
            slot = self._slot(van.device, van.driver_data[programming.REGION])
            slot.clear(van, remove=False)

    def _choose(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        """Claim the request's handle, or a free handle of a fitting device."""
        if request.handle is not None:
            choice = self._choice_of(request.handle)
            if choice is not None:
                allocation.check_healthy(self, van, choice.device)
                self._claim(van, *choice)
                return
            if type(request.handle).__name__ not in self.handle_types:
                raise exception.DeviceNotFound(
                    wanted=f'handle {request.handle.identity}',
                    reason='the fake devices have none of its class',
                )
            # No fake device has this handle: invent one for it.
            device = f'fake:{request.handle.identity}'.replace('/', ':')
            region = '' if request.function_id is not None else None
            self._claim(van, device, region, request.handle)
            return
        fits = self._fitting(request)
        choices = [choice for each in fits for choice in each.choices]
        places = dict.fromkeys((c.device, c.region) for c in choices)

        def free(
            place: tuple[str, str | None],
        ) -> Iterator[fake_hardware.Choice]:
            taken = self._taken(place[0])
            for choice in choices:
                if choice[:2] == place and choice.handle.identity not in taken:
                    yield choice

        choosing.choose(
            van,
            request,
            choosing.ranked(places, self._order(request)),
            free,
            lambda choice: self._take(van, choice),
            lambda: None,
            'no fake device has a free handle'
            if fits
            else f'no fake device is of {allocation.selector(request)}'
            + (' and can be programmed' if request.function_id else ''),
        )

    def _order(
        self, request: objects.AcceleratorRequest
    ) -> Callable[[tuple[str, str | None]], int]:
        """Rank the regions of devices for a request."""
        wanted = programming.Wanted(request.function_id)
        pools = self.journal.pools()
        reservations = reserved.read(self.journal)

        def rank(place: tuple[str, str | None]) -> int:
            device, region = place
            if region is None:
                return 0
            slot = self._slot(device, region)
            return slot.rank(wanted, pools, reservations)

        return rank

    def _take(self, van: objects.VAN, choice: fake_hardware.Choice) -> None:
        """Claim a handle of a device."""
        allocation.check_healthy(self, van, choice.device)
        with self.lock(choice.device):
            if choice.handle.identity in self._taken(choice.device):
                raise choosing.TakenMeanwhile(device=choice.handle.identity)
            # Saved under the lock: the next caller sees it as taken.
            self._claim(van, *choice)

    def _fitting(
        self, request: objects.AcceleratorRequest
    ) -> list[fake_hardware.FakeDevice]:
        """List the devices that fit a request, free or used."""
        return [
            each
            for each in self._devices()
            if request.resource_class in (None, each.resource_class)
            and set(request.traits) <= TRAITS
            and (request.function_id is None or each.programming != 'none')
        ]

    def _choice_of(
        self, handle: objects.AttachHandle
    ) -> fake_hardware.Choice | None:
        """Find a handle among those of the fake devices."""
        for device in self._devices():
            for choice in device.choices:
                if choice.handle.identity == handle.identity:
                    return choice
        return None

    @staticmethod
    def _claim(
        van: objects.VAN,
        device: str,
        region: str | None,
        handle: objects.AttachHandle,
    ) -> None:
        van.handle, van.device = handle, device
        if region is not None:
            programming.undecide(van, region)
        van.save()

    def _program(
        self,
        slot: programming.Slot,
        bitstream: str | None,
        function_id: str | None,
        van: objects.VAN | None,
        report: progress.Report,
    ) -> bool:
        with contextlib.ExitStack() as stack:
            file = None
            if bitstream is not None:
                file = stack.enter_context(
                    bitstreams.fetched(bitstream, function_id, report=report)
                )
                function_id = function_id or file.function_id
            wanted = programming.Wanted(
                function_id, file.sha256 if file is not None else None
            )
            return slot.program(wanted, file, report, van)

    def _slot(
        self, device: str, region: str, van: objects.VAN | None = None
    ) -> programming.Slot:
        """Make the slot of a fake device.

        :param van: the VAN that it may be programmed for
        """
        return programming.Slot(
            self,
            device,
            region,
            fake_hardware.Programmer(
                device,
                _hardware_name(device, region),
                self._hardware(),
                lambda report: self._step('program', van, report),
            ),
            handles=tuple(
                choice.handle.identity
                for each in self._devices()
                if each.name == device
                for choice in each.choices
                if choice.region == region
            ),
        )

    def _step(
        self,
        step: str,
        van: objects.VAN | None = None,
        report: progress.Report | None = None,
    ) -> None:
        """Take the time and fail as the options say for this step."""
        seconds = float(self.config.delays.get(step, 0))
        parts = 20 if report is not None else 1
        for part in range(parts):
            if seconds:
                time.sleep(seconds / parts)
            if report is not None:
                report((part + 1) / parts, 'programming')
        here = f'{step}@{van.uuid}' if van is not None else step
        if not {step, here}.isdisjoint(self.config.fail):
            raise RuntimeError(f'the fake driver was told to fail at {here}')

    def _devices(self) -> list[fake_hardware.FakeDevice]:
        return [
            fake_hardware.FakeDevice.parse(text, number)
            for number, text in enumerate(self.config.devices)
        ]

    def _taken(self, device: str) -> set[str | None]:
        return {each.handle for each in self.handles(device)}

    def _hardware(self) -> fake_hardware.Hardware:
        return fake_hardware.Hardware(self.config.hardware_path)


def _used_by_others(
    choice: fake_hardware.Choice, in_use: dict[str, dict[str, str]]
) -> Iterator[availability.Obstacle]:
    user = in_use.get(choice.handle.identity)
    if user is not None:
        yield availability.Obstacle(
            availability.Category.OPEN,
            choice.handle.identity,
            f'VAN {user.get("van")}, which the journal does not have, uses it',
        )


def _hardware_name(device: str, region: str) -> str:
    return f'{device}.{region}' if region else device
