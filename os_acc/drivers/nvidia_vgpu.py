# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The driver nvidia_vgpu: NVIDIA vGPUs on SR-IOV VFs, without mdevs.

The VF stays bound to NVIDIA's own driver. The guest's definition therefore
has managed='no': if libvirt bound the VF to VFIO, the host would crash.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import logging
from typing import Any

import os_resource_classes as resource_classes
from oslo_config import cfg

from os_acc import driver
from os_acc import exception
from os_acc import finding
from os_acc import log
from os_acc import objects
from os_acc.devices import allocated
from os_acc.devices import availability
from os_acc.devices import device_spec
from os_acc.devices import pci
from os_acc.devices import sysfs
from os_acc.devices import vgpu
from os_acc.drivers import allocation
from os_acc.drivers.pci import listing as pci_listing

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# Key of VAN.driver_data: the id of the vGPU type, saved before it is set.
TYPE = 'vgpu_type'


class NvidiaVGPUDriver(driver.DriverBase):
    handle_types = ('PCIHandle',)

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        if isinstance(request.handle, objects.PCIHandle):
            return vgpu.is_vgpu_function(request.handle.address)
        return request.handle is None and any(
            spec.vgpu_type
            and (spec.resource_class or resource_classes.VGPU)
            == request.resource_class
            for spec in device_spec.load(CONF).entries
        )

    def get_devices(self) -> list[objects.Device]:
        holders = allocation.holders(self)
        by_pf: dict[str, list[pci.Function]] = {}
        specs: dict[str, device_spec.Spec] = {}
        for function, spec in self._functions():
            by_pf.setdefault(function.parent, []).append(function)
            specs[function.parent] = spec
        return [
            self._device(pci.get(pf), specs[pf], vfs, holders)
            for pf, vfs in by_pf.items()
        ]

    def _device(
        self,
        pf: pci.Function,
        spec: device_spec.Spec,
        vfs: list[pci.Function],
        holders: allocated.Holders,
    ) -> objects.Device:
        return objects.Device(
            address=pf.address,
            driver=self.name,
            vendor_id=pf.vendor_id,
            product_id=pf.product_id,
            resource_class=spec.resource_class or resource_classes.VGPU,
            traits=self._traits(spec),
            numa_node=pf.numa_node,
            handles_total=len(vfs),
            handles_free=sum(
                not any(
                    availability.vgpu_obstacles(
                        vf, spec, allocated.ANYONE, holders
                    )
                )
                for vf in vfs
            ),
        )

    @staticmethod
    def _traits(spec: device_spec.Spec) -> list[str]:
        kind = pci_listing.custom(f'VGPU_{spec.vgpu_type}')
        return [*spec.traits, *([kind] if spec.vgpu_type else [])]

    @staticmethod
    def _functions() -> Iterator[tuple[pci.Function, device_spec.Spec]]:
        specs = device_spec.load(CONF)
        for address in sysfs.names(pci.driver_folder('nvidia')):
            if not pci.is_address(address):
                continue
            function = pci.find(address)
            if function and 'nvidia' in function.entries and function.is_vf:
                spec = specs.find(function)
                if spec is not None:
                    yield function, spec

    def show_device(self, address: str) -> dict[str, Any] | None:
        """Show the vGPU types of a VF; the driver pci shows the rest."""
        if not pci.is_address(address) or not vgpu.is_vgpu_function(address):
            return None
        return {
            'vgpu type': vgpu.current(address) or None,
            'vgpu types possible': [
                f'{number} ({name})'
                for number, name in vgpu.creatable(address).items()
            ],
        }

    def diagnose(self) -> Iterator[finding.Finding]:
        for function, spec in self._functions():
            address, wanted = function.address, spec.vgpu_type
            if wanted is None or vgpu.current(address):
                continue
            if vgpu.find_type(address, wanted) is not None:
                continue
            yield finding.Finding(
                f'VF {address}',
                finding.WARNING,
                f'it cannot have a vGPU of type {wanted} now',
                'the vGPUs of the other VFs leave too little capacity, or the '
                f'type is wrong: see os-acc device show {address}',
            )

    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        if van.handle is not None:
            self._set_again(van)
            return
        if request.handle is None:
            self._choose(van, request)
            return
        if not isinstance(request.handle, objects.PCIHandle):
            raise exception.UnsupportedHandle(
                taker=f'driver {self.name!r}',
                handle=request.handle.obj_name(),
                takes='PCIHandle',
            )
        self._claim(van, request.handle)

    def _claim(self, van: objects.VAN, handle: objects.PCIHandle) -> None:
        function = pci.get(handle.address)
        spec = device_spec.load(CONF).check(function)
        # The type of one VF changes which types the other VFs can have.
        with self.lock(function.parent):
            number = self._check_available(van, function, spec)
            van.driver_data = {TYPE: str(number)}
            van.device = function.parent
            van.handle = objects.PCIHandle(
                address=handle.address,
                managed=False,
                physical_network=handle.physical_network,
            )
            van.save()
            self._privileged_set(van, number)

    def _check_available(
        self,
        van: objects.VAN,
        function: pci.Function,
        spec: device_spec.Spec,
    ) -> int:
        """Check that a VAN can have a vGPU on a VF.

        :returns: the id of the vGPU type that device_spec sets for it
        """
        from os_acc.privileged import device_users

        allocation.check(
            availability.vgpu_obstacles(
                function,
                spec,
                allocation.taker_of(self, van),
                allocation.holders(self),
            )
        )
        address = function.address
        allocation.check_open(
            f'VF {address}',
            device_users.of_function(address, van.instance_uuid, False),
        )
        number = vgpu.find_type(address, spec.vgpu_type or '')
        if number is None:  # vgpu_obstacles() has just found it
            raise exception.DeviceBusy(
                device=f'VF {address}',
                reason=f'it cannot have vGPU type {spec.vgpu_type} any more',
            )
        return number

    def _set_again(self, van: objects.VAN) -> None:
        """Set the same type on the same VF again after a reboot."""
        address = allocation.address_of(van)
        with self.lock(van.device or address):
            number = int(van.driver_data[TYPE])
            if vgpu.current(address) != number:
                function = pci.get(address)
                spec = dataclasses.replace(
                    device_spec.load(CONF).held(function),
                    vgpu_type=str(number),
                )
                self._check_available(van, function, spec)
                self._privileged_set(van, number)

    def _privileged_set(self, van: objects.VAN, number: int) -> None:
        from os_acc.privileged import mdev as privileged

        address = allocation.address_of(van)
        privileged.set_vgpu_type(address, number, CONF.os_acc.device_timeout)
        log.about(LOG, van.instance_uuid, van.uuid).info(
            'VF %s has vGPU type %d', address, number
        )

    def _choose(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        reasons = []
        for function, spec in self._functions():
            name = spec.resource_class or resource_classes.VGPU
            if name != request.resource_class or not set(
                request.traits
            ) <= set(self._traits(spec)):
                continue
            try:
                self._claim(van, objects.PCIHandle(address=function.address))
                return
            except (exception.DeviceBusy, exception.DeviceNotFound) as err:
                reasons.append(str(err))
        raise allocation.none_left(
            request,
            reasons,
            'device_spec offers no such VF of this host',
        )

    def unprepareVAN(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        if van.handle is None or TYPE not in van.driver_data:
            return
        from os_acc.privileged import mdev as privileged

        conf, address = CONF.os_acc, allocation.address_of(van)
        if pci.find(address) is None:
            return
        # Called even if the VF has no type: setting it may be under way.
        if not privileged.clear_vgpu_type(
            address,
            int(van.driver_data[TYPE]),
            conf.release_timeout,
            conf.device_timeout,
        ):
            log.about(LOG, van.instance_uuid, van.uuid).warning(
                'VF %s keeps vGPU type %s: the privileged daemon has no '
                'record of setting it',
                address,
                van.driver_data[TYPE],
            )
