# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Claiming PCI functions for VANs: choose, take, bind, give back.

The driver pci does nothing else. A driver that does more, such as fpga, uses
Claims for what is the same for all PCI functions.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import logging

from oslo_config import cfg

from os_acc import driver
from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.devices import device_spec
from os_acc.devices import modules
from os_acc.devices import pci
from os_acc.devices import reset
from os_acc.devices import vfio
from os_acc.devices import waiting
from os_acc.drivers import allocation
from os_acc.drivers.pci import inventory as pci_inventory
from os_acc.drivers.pci import listing as pci_listing
from os_acc.drivers.pci import release
from os_acc.drivers.pci import vfs as pci_vfs

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

#: The options that a driver that uses Claims needs in its own group.
OPTS = (
    cfg.StrOpt(
        'bind',
        default=device_spec.BIND_OS_ACC,
        choices=device_spec.BINDS,
        help='Who binds a function to VFIO and back: os-acc, libvirt (a '
        'managed hostdev), or none (the operator). An entry of '
        'device_spec can set another value for its devices.',
    ),
    cfg.StrOpt(
        'reset',
        default=reset.AUTO,
        choices=reset.MODES,
        help='Reset of a function between two guests: auto resets a function '
        'if VFIO does not do so itself and the kernel can; required fails if '
        'the function cannot be reset; none never resets. An entry of '
        'device_spec can set another value for its devices.',
    ),
)

#: The errors after which another function may serve a request.
_TRY_NEXT = (
    exception.DeviceBusy,
    exception.DeviceError,
    exception.DeviceInUseByHost,
    exception.DeviceNotFound,
)


class Claims:
    """Takes PCI functions for the VANs of one driver, and gives them back.

    :param by: the driver, which has the options OPTS
    :param specs: gives the entries of device_spec that are the driver's
    """

    def __init__(
        self,
        by: driver.DriverBase,
        specs: Callable[[], device_spec.Specs],
    ) -> None:
        self._by = by
        self._specs = specs

    def get_devices(self) -> list[objects.Device]:
        """Report the PCI functions. See DriverBase.get_devices()."""
        return pci_inventory.devices(
            self._by.name,
            self._specs(),
            self._by.config.bind,
            allocation.holders(self._by),
        )

    def claim(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        order: Callable[[str], int] | None = None,
    ) -> None:
        """Take the function that a request names, or choose one.

        If the VAN has a function already, as after a reboot, that one is
        taken again. Afterwards the VAN has its handle and device, and its row
        has what the undo needs. This makes the VFs of a PF if needed, but
        changes nothing else: bind() does that.

        :param order: sort key of the addresses to choose from, lowest first
        :raises UnsupportedHandle: if the request's handle is no PCIHandle
        :raises DeviceNotFound: if there is no such function, or none left
        :raises DeviceBusy, DeviceInUseByHost, DeviceError: if the function
            cannot be taken
        """
        if van.handle is not None:
            self._claim_again(van)
        elif request.handle is None:
            self._choose(van, request, order)
        elif isinstance(request.handle, objects.PCIHandle):
            self._claim(van, request.handle)
        else:
            raise exception.UnsupportedHandle(
                taker=f'driver {self._by.name!r}',
                handle=request.handle.obj_name(),
                takes='PCIHandle',
            )

    def bind(self, van: objects.VAN) -> None:
        """Bind a VAN's function to VFIO, unless libvirt or the operator does.

        :raises: as privileged.pci.take
        """
        if van.driver_data[release.BIND] != device_spec.BIND_OS_ACC:
            return
        from os_acc.privileged import pci as privileged

        address = allocation.address_of(van)
        siblings = allocation.functions_of(
            self._by.requests_of(van.instance_uuid)
        )
        name = privileged.take(
            address,
            van.driver_data[release.VFIO_DRIVER],
            sorted(siblings),
            CONF.os_acc.device_timeout,
        )
        log.about(LOG, van.instance_uuid, van.uuid).info(
            'PCI function %s is bound to %s', address, name
        )

    def give_back(self, van: objects.VAN) -> None:
        """Clean and give back what a VAN has, and remove VFs made for it.

        :raises DeviceBusy: if a guest still has it open
        :raises CleaningFailed: if it could not be cleaned
        :raises DeviceError, Timeout: if its driver could not be bound again,
            or the VFs could not be removed
        """
        if van.handle is None:
            return
        if release.BIND in van.driver_data:
            release.give_back(van)
        pci_vfs.remove(self._by, van)

    def pf_of(self, address: str) -> str | None:
        """The PF that has, or would have, a VF at an address."""
        for future, pf, _ in pci_listing.future(self._specs()):
            if future == address:
                return pf.address
        return None

    def _claim(self, van: objects.VAN, wanted: objects.PCIHandle) -> None:
        address = wanted.address
        function = pci.find(address)
        pf = function.physfn if function else self.pf_of(address)
        with self._by.lock(pf or address):
            function, new = pci.find(address), False
            if function is None and pf is not None:
                pci_vfs.create(self._by, van, address, pf, self._specs())
                new = True
            function = function or pci.get(address)
            if function.physfn != pf:
                # A new VF is on the bus before the kernel links it to its PF.
                raise exception.DeviceBusy(
                    device=f'PCI function {address}',
                    reason=f'the VFs of PF {function.physfn} are being made '
                    'now',
                )
            spec = self._specs().check(function)
            with allocation.group_lock(self._by, function):
                bind = self._bind_mode(wanted, spec)
                allocation.check_function(
                    self._by, van, function, spec, bind, new
                )
                made = pci_vfs.known(self._by, pf) if pf and not new else {}
                van.driver_data = {
                    **van.driver_data,
                    **made,
                    **self._state_before(function, spec, bind),
                }
                van.device = pf or address
                van.handle = objects.PCIHandle(
                    address=address,
                    managed=bind == device_spec.BIND_LIBVIRT,
                    physical_network=wanted.physical_network,
                )
                van.save()

    def _claim_again(self, van: objects.VAN) -> None:
        """Take the same function again after a reboot."""
        address = allocation.address_of(van)
        pf = van.device or address
        with self._by.lock(pf):
            pci_vfs.create_again(van, pf)
            # VFs that another service makes appear once it has started.
            function = waiting.until(
                lambda: pci.find(address),
                CONF.os_acc.device_timeout,
                f'PCI function {address} to come back',
                'pci',
            )
            if function.ids != van.driver_data[release.IDS]:
                raise exception.DeviceNotFound(
                    wanted=f'PCI function {address}',
                    reason=f'device {function.ids} is at that address now; '
                    f'before the reboot, {van.driver_data[release.IDS]} was',
                )
            bind = van.driver_data[release.BIND]
            spec = self._specs().check(function)
            with allocation.group_lock(self._by, function):
                allocation.check_function(
                    self._by, van, function, spec, bind, new=False
                )
                if not vfio.is_bound(function):
                    data = dict(van.driver_data)
                    data.pop(release.DRIVER_BEFORE, None)
                    data.pop(release.OVERRIDE_BEFORE, None)
                    data |= self._state_before(function, spec, bind)
                    van.driver_data = data
                van.save()

    def _state_before(
        self, function: pci.Function, spec: device_spec.Spec, bind: str
    ) -> dict[str, str]:
        """What undo needs to know of a function before it is touched."""
        data = {
            release.BIND: bind,
            release.IDS: function.ids,
            release.RESET: spec.reset or self._by.config.reset,
        }
        if bind == device_spec.BIND_OS_ACC:
            data[release.VFIO_DRIVER] = modules.vfio_driver(function.modalias)
            if function.driver is not None:
                data[release.DRIVER_BEFORE] = function.driver
            now = vfio.read_binding(function, CONF.os_acc.device_timeout)
            if now.override is not None:
                data[release.OVERRIDE_BEFORE] = now.override
        return data

    def _bind_mode(
        self, wanted: objects.PCIHandle, spec: device_spec.Spec
    ) -> str:
        """Who is to bind a function: the handle's ``managed`` goes first."""
        if wanted.managed:
            return device_spec.BIND_LIBVIRT
        chosen: str = spec.bind or self._by.config.bind
        if wanted.managed is False and chosen == device_spec.BIND_LIBVIRT:
            return device_spec.BIND_OS_ACC
        return chosen

    def _choose(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        order: Callable[[str], int] | None,
    ) -> None:
        """Take the first function that serves a request and can be taken."""
        addresses: Iterator[str] | list[str] = self._candidates(request)
        if order is not None:
            addresses = sorted(addresses, key=order)
        reasons = []
        before = dict(van.driver_data)
        failed: set[str | None] = set()  # PFs whose VFs cannot be made
        for address in addresses:
            if (
                failed
                and pci.find(address) is None
                and self.pf_of(address) in failed
            ):
                continue
            try:
                self._claim(van, objects.PCIHandle(address=address))
                return
            except _TRY_NEXT as err:
                reasons.append(str(err))
                if pci_vfs.MADE in van.driver_data:
                    failed.add(van.device)
                pci_vfs.remove(self._by, van)
                van.handle, van.device, van.driver_data = None, None, before
                van.save()
        raise allocation.none_left(
            request, reasons, 'no such PCI function is left on this host'
        )

    def _candidates(
        self, request: objects.AcceleratorRequest
    ) -> Iterator[str]:
        """The functions that match a request and that no VAN has.

        Whether they can be taken is checked for each as it is claimed.
        """
        specs = self._specs()
        holders = allocation.holders(self._by)
        for function, spec in pci_listing.listed(specs):
            if (
                pci_listing.kind_of(function, spec).serves(request)
                and holders.of_function(function.address) is None
                and not (function.is_pf and spec.num_vfs)
            ):
                yield function.address
        for address, pf, spec in pci_listing.future(specs):
            if holders.of_function(address) is None and pci_listing.kind_of(
                pf, spec, vf=True
            ).serves(request):
                yield address
