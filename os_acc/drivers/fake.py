# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""A driver for devices that are not there: for tests, demos and CI.

It takes TEST_PCI ARQs and requests that name it, with any handle, and for
those without one makes a handle of any type.
"""

from __future__ import annotations

import time

from oslo_config import cfg

from os_acc import driver
from os_acc import exception
from os_acc import objects
from os_acc.drivers import fake_hardware

OPTS = (
    cfg.ListOpt(
        'devices',
        default=['fake0:test:16'],
        help='The devices: NAME:TYPE:HANDLES[:PROGRAMMING], TYPE being test, '
        'pci, mdev or drc, PROGRAMMING none, single or dynamic. The resource '
        'class of a device is CUSTOM_FAKE_<TYPE>.',
    ),
    cfg.BoolOpt(
        'discover',
        default=False,
        help='Report the devices in get_devices(). Off, as a host with real '
        'devices must not offer fake ones.',
    ),
    cfg.StrOpt(
        'hardware_path',
        default='',
        sample_default='<state_path>/fake-hardware',
        help='Folder that serves as the hardware: a file for each handle in '
        'use, and for each programmed device.',
    ),
    cfg.DictOpt(
        'delays',
        default={},
        help='Seconds that a step takes: prepareVAN:0.2,program:3. Steps are '
        'prepareVAN, postplug, unprepareVAN, get_devices and program.',
    ),
    cfg.ListOpt(
        'fail',
        default=[],
        help='Steps that fail: STEP, or STEP@VAN for one VAN only.',
    ),
)


class FakeDriver(driver.DriverBase):
    CONFIG_OPTS = OPTS
    handle_types = ('TestHandle', 'PCIHandle', 'MdevHandle', 'DRCHandle')

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        return isinstance(request.handle, objects.TestHandle)

    def get_devices(self) -> list[objects.Device]:
        self._step('get_devices')
        if not self.config.discover:
            return []
        return [
            objects.Device(
                address=device.name,
                driver=self.name,
                vendor_id='fa4e',
                product_id=f'{number:04x}',
                resource_class=device.resource_class,
                traits=['CUSTOM_FAKE_DEVICE'],
                handles_total=len(device.handles),
                handles_free=len(self._free(device)),
                programming=device.programming,
                function_id=self._hardware().function_of(device.name),
            )
            for number, device in enumerate(self._devices())
        ]

    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        if van.handle is None:
            self._choose(van, request)
        self._step('prepareVAN', van)
        assert van.handle is not None
        self._hardware().take(van.handle.identity, van.uuid, van.instance_uuid)
        if request.function_id is not None:
            self._program(van, request.function_id)

    def postplug(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        self._step('postplug', van)

    def unprepareVAN(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        self._step('unprepareVAN', van)
        if van.handle is not None:
            self._hardware().give_back(van.handle.identity, van.uuid)

    def _choose(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        """Set the request's handle, or a free one of a device that fits."""
        if request.handle is not None:
            van.handle, van.device = request.handle, 'fake'
            van.save()
            return
        fits = [
            device
            for device in self._devices()
            if request.resource_class in (None, device.resource_class)
            and (request.function_id is None or device.programming != 'none')
        ]
        for device in fits:
            with self.lock(device.name):
                free = self._free(device)
                if free:
                    van.handle, van.device = free[0], device.name
                    # Saved under the lock: the next one sees it as taken.
                    van.save()
                    return
        raise exception.DeviceNotFound(
            wanted=f'request {request.uuid}',
            reason='no fake device has a free handle'
            if fits
            else f'no fake device is of {request.resource_class}',
        )

    def _program(self, van: objects.VAN, function_id: str) -> None:
        """Put a function in, unless it is in already."""
        assert van.device is not None
        with self.lock(van.device):
            others = [
                other
                for other in self.vans_on(van.device)
                if other.uuid != van.uuid and other.function_id is not None
            ]
            hardware = self._hardware()
            present = hardware.function_of(van.device)
            if present != function_id and others:
                raise exception.DeviceBusy(
                    device=f'{van.device}, programmed with {present},',
                    holder=', '.join(
                        f'instance {other.instance_uuid}' for other in others
                    ),
                )
            van.function_id = function_id
            van.save()
            if present != function_id:
                self._step('program', van)
                hardware.program(van.device, function_id)

    def _step(self, step: str, van: objects.VAN | None = None) -> None:
        """Take as long as the step shall take, and fail if it shall."""
        seconds = float(self.config.delays.get(step, 0))
        parts = 20 if van is not None and step == 'program' else 1
        for part in range(parts):
            if seconds:
                time.sleep(seconds / parts)
            if parts > 1 and van is not None:
                van.report_progress((part + 1) / parts, 'programming')
        here = f'{step}@{van.uuid}' if van is not None else step
        if not {step, here}.isdisjoint(self.config.fail):
            raise RuntimeError(f'the fake driver was told to fail at {here}')

    def _devices(self) -> list[fake_hardware.FakeDevice]:
        return [
            fake_hardware.FakeDevice.parse(text, number)
            for number, text in enumerate(self.config.devices)
        ]

    def _free(
        self, device: fake_hardware.FakeDevice
    ) -> list[objects.AttachHandle]:
        taken = {
            van.handle.identity
            for van in self.vans_on(device.name)
            if van.handle is not None
        }
        return [h for h in device.handles if h.identity not in taken]

    def _hardware(self) -> fake_hardware.Hardware:
        return fake_hardware.Hardware(self.config.hardware_path)
