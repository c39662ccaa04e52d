# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The driver that uses OpenStack Cyborg's drivers for the device half.

Cyborg's drivers run in a separate process, see os_acc.drivers.cyborg.helper.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
import contextlib
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
from os_acc.devices import reset
from os_acc.drivers import allocation
from os_acc.drivers import mdev_handles
from os_acc.drivers.cyborg import listing as cyborg_listing
from os_acc.drivers.cyborg import mdev as cyborg_mdev
from os_acc.drivers.cyborg import program as cyborg_program
from os_acc.drivers.cyborg import report as cyborg_report
from os_acc.drivers.cyborg import source as cyborg_source
from os_acc.drivers.pci import release as pci_release

CONF = cfg.CONF

OPTS = (
    cfg.ListOpt(
        'enabled_drivers',
        default=[],
        help="Names of Cyborg's drivers to use: entry points of the group "
        'cyborg.accelerator.driver, such as intel_fpga_driver. If the list '
        'is empty, os-acc uses none of them and starts no process.',
    ),
    cfg.StrOpt(
        'python',
        default='',
        sample_default='<the one that os-acc runs in>',
        help='Path of the Python interpreter of the environment in which '
        'Cyborg is installed.',
    ),
    cfg.ListOpt(
        'config_files',
        default=[],
        help="Cyborg's configuration files, such as "
        '/etc/cyborg/cyborg.conf. Some of its drivers have options there.',
    ),
    cfg.FloatOpt(
        'timeout',
        default=60.0,
        min=0.1,
        help="Time limit in seconds for Cyborg's drivers to discover their "
        'devices or to create a mediated device. At the limit they are '
        'killed, with all processes that they have started.',
    ),
    cfg.FloatOpt(
        'program_timeout',
        default=1800.0,
        min=0.1,
        help="Time limit in seconds for Cyborg's drivers to program a device. "
        'At the limit they are killed, as for timeout.',
    ),
    cfg.FloatOpt(
        'discovery_interval',
        default=60.0,
        min=0,
        help="Seconds for which the devices that Cyborg's drivers discovered "
        'are remembered, to decide whether a request is for one of them.',
    ),
    cfg.StrOpt(
        'reset',
        default=reset.AUTO,
        choices=reset.MODES,
        help='Reset of a PCI function between two instances: auto resets it '
        'if that is possible, required fails if it is not, none does not '
        'reset.',
    ),
)


class CyborgDriver(driver.DriverBase):
    """Gives out devices of Cyborg's drivers, with the checks of os-acc."""

    CONFIG_OPTS = OPTS
    programs = True
    handle_types = ('PCIHandle', 'MdevHandle', 'TestHandle')

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._source = cyborg_source.Source(config)

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        handle = request.handle
        if not self.config.enabled_drivers:
            return False
        if handle is None:
            return request.resource_class is not None and bool(
                self._source.find(lambda found: found.serves(request))
            )
        return handle.obj_name() in self.handle_types and bool(
            self._source.find(lambda found: found.has(handle))
        )

    def get_devices(self) -> list[objects.Device]:
        if not self.config.enabled_drivers:
            return []
        found, errors = self._source.discover()
        devices = cyborg_report.devices(
            self.name, found, allocation.holders(self)
        )
        if errors:
            raise exception.DiscoveryFailed(
                devices, message=cyborg_source.joined(errors)
            )
        return devices

    def diagnose(self) -> Iterator[finding.Finding]:
        if not self.config.enabled_drivers:
            return
        group = f'[os_acc_{self.name}]'
        try:
            found, errors = self._source.discover()
        except exception.ExceptionBase as err:
            yield finding.Finding(
                "Cyborg's drivers",
                finding.ERROR,
                str(err),
                f'see python, enabled_drivers and config_files in {group}',
            )
            return
        for name in self.config.enabled_drivers:
            subject = f"Cyborg's {name}"
            if name in errors:
                yield finding.Finding(
                    subject,
                    finding.ERROR,
                    errors[name],
                    f'fix it, or remove it from enabled_drivers in {group}; '
                    'until then, requests that its devices might serve are '
                    'refused',
                )
                continue
            places = [each.address for each in found if each.by == name]
            yield finding.Finding(
                subject, finding.OK, ', '.join(places) or 'no device'
            )

    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        if not self.config.enabled_drivers:
            raise exception.InvalidRequest(
                subject='configuration',
                field=f'[os_acc_{self.name}] enabled_drivers',
                value=[],
                expected="names of Cyborg's drivers",
            )
        wanted = van.handle or request.handle
        if wanted is None:
            self._choose(van, request)
            return
        found = self._source.get(
            lambda found: found.has(wanted), wanted.identity
        )
        with self.lock(found.parent):
            self._take(van, request, found, wanted)

    def is_intact(self, van: objects.VAN) -> bool:
        """Whether the handle is there. This starts no driver of Cyborg's.

        What a device contains is not examined: Cyborg's drivers do not say.
        """
        if isinstance(van.handle, objects.PCIHandle):
            function = pci.find(van.handle.address)
            ids = van.driver_data.get(pci_release.IDS)
            return function is not None and ids in (None, function.ids)
        return mdev_handles.is_there(van.handle)

    def unprepareVAN(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        """Undo the device half. This needs none of Cyborg's drivers."""
        if isinstance(van.handle, objects.MdevHandle):
            # Cyborg's own function does not wait until the guest is gone.
            mdev_handles.release(van, van.handle)
        elif (
            isinstance(van.handle, objects.PCIHandle)
            and pci_release.RESET in van.driver_data
            and (function := pci.find(van.handle.address)) is not None
        ):
            if not pci_release.is_clean(van, function.address):
                pci_release.clean(van, function)
            pci_release.finish(van, function)

    def program_device(
        self,
        address: str,
        bitstream: str | None,
        function_id: str | None,
        region: str | None,
        report: progress.Report,
    ) -> bool:
        if region:
            raise exception.InvalidRequest(
                subject=f'PCI function {address}',
                field='region',
                value=region,
                expected='no region: the device is programmed as a whole',
            )
        found = self._source.at(address)
        cyborg_program.check_programmable(found)
        return cyborg_program.program(
            cyborg_program.slot_of(self, self._source, address),
            self._source,
            bitstream,
            function_id,
            report,
        )

    def _take(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        found: cyborg_listing.Found,
        handle: objects.AttachHandle,
    ) -> None:
        """Claim and prepare a handle for a VAN. The device's lock is held."""
        wants_function = request.function_id or request.bitstream
        if wants_function:
            cyborg_program.check_programmable(found)
        self._check_siblings(van, found, handle)
        if found.programmable:
            programming.undecide(van, programming.WHOLE)
        with contextlib.ExitStack() as stack:
            if isinstance(handle, objects.PCIHandle):
                stack.enter_context(self._admitted(van, handle))
                # Cyborg's drivers bind no VFIO driver; libvirt does that.
                handle = objects.PCIHandle(
                    address=handle.address,
                    managed=True,
                    physical_network=handle.physical_network,
                )
            elif isinstance(handle, objects.MdevHandle):
                cyborg_mdev.check(van, handle)
            van.handle, van.device = handle, found.parent
            van.save()
        if found.programmable:
            cyborg_program.put_function(
                self, self._source, van, request, found.address
            )
        if isinstance(handle, objects.MdevHandle):
            cyborg_mdev.make(van, handle, self._source.create_mdev)

    def _check_siblings(
        self,
        van: objects.VAN,
        found: cyborg_listing.Found,
        handle: objects.AttachHandle,
    ) -> None:
        """Check that no other instance has a part of the same accelerator.

        :raises DeviceBusy: if one has. It could program the accelerator, or
            read its data
        """
        siblings = {each.identity for each in found.siblings(handle)}
        for each in self.handles(found.parent):
            if (
                each.handle in siblings
                and each.instance_uuid != van.instance_uuid
            ):
                raise exception.DeviceBusy(
                    device=handle.identity,
                    reason=f'instance {each.instance_uuid} (VAN '
                    f'{each.van_uuid}) has {each.handle}, which belongs to '
                    'the same accelerator',
                )

    @contextlib.contextmanager
    def _admitted(
        self, van: objects.VAN, handle: objects.PCIHandle
    ) -> Iterator[None]:
        """Check that a guest may have a PCI function; lock its IOMMU group."""
        function = pci.get(handle.address)
        specs = device_spec.load(CONF)
        again = van.device is not None
        spec = specs.held(function) if again else specs.check(function)
        with allocation.group_lock(self, function):
            allocation.check_function(
                self, van, function, spec, device_spec.BIND_LIBVIRT, new=False
            )
            pci_release.hold(handle.address)
            data = dict(van.driver_data)
            data.pop(pci_release.CLEANED, None)
            van.driver_data = {
                **data,
                pci_release.IDS: function.ids,
                pci_release.RESET: spec.reset or self.config.reset,
            }
            yield

    def _choose(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        """Take the first free handle of a device that fits a request.

        Devices that already have the function come first.
        """
        wanted, reasons = request.function_id, []
        fits = self._source.find(lambda found: found.serves(request))
        fits.sort(key=lambda each: not (wanted and each.has_function(wanted)))
        for found in fits:
            with self.lock(found.parent):
                for handle in self._free(found, van):
                    try:
                        self._take(van, request, found, handle)
                        return
                    except (
                        exception.DeviceBusy,
                        exception.DeviceInUseByHost,
                    ) as err:
                        reasons.append(str(err))
                        # Undo the claim, then try the next handle.
                        van.handle = van.device = van.function_id = None
                        van.driver_data = {}
                        van.save()
        raise exception.DeviceNotFound(
            wanted=f'request {request.uuid}',
            reason='; '.join(dict.fromkeys(reasons))
            or (
                "all handles of Cyborg's devices are taken"
                if fits
                else f"Cyborg's drivers have no {allocation.selector(request)}"
            ),
        )

    def _free(
        self, found: cyborg_listing.Found, van: objects.VAN
    ) -> list[objects.AttachHandle]:
        taken, mdevs = self._taken()
        free = [
            # Of a card of Xilinx, the user function.
            handles[-1]
            for handles in found.accelerators
            if not any(each.identity in taken for each in handles)
        ]
        if sum(found.mdevs.values()) > mdevs[found.parent]:
            free += [
                objects.MdevHandle(
                    uuid=van.uuid, parent=found.parent, type=kind
                )
                for kind in found.mdevs
            ]
        return free

    def _taken(self) -> tuple[frozenset[str], collections.Counter[str]]:
        """List the handles that VANs have, and count the mdevs by parent."""
        taken, mdevs = set(), collections.Counter[str]()
        for each in self.handles():
            if each.handle is None:
                continue
            taken.add(each.handle)
            if each.device is not None and each.handle.startswith('mdev/'):
                mdevs[each.device] += 1
        return frozenset(taken), mdevs
