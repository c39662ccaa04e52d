# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Any PCI function, PF or VF: bound to VFIO for a guest, and given back."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import logging
from typing import Any
from typing import ClassVar

from oslo_config import cfg

from os_acc import driver
from os_acc import exception
from os_acc import finding
from os_acc import log
from os_acc import objects
from os_acc.devices import boot
from os_acc.devices import device_spec
from os_acc.devices import modules
from os_acc.devices import pci
from os_acc.devices import reset
from os_acc.devices import vfio
from os_acc.devices import waiting
from os_acc.drivers import admission
from os_acc.drivers.pci import listing as pci_listing
from os_acc.drivers.pci import report as pci_report
from os_acc.drivers.pci import vfs as pci_vfs

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

OPTS = (
    cfg.StrOpt(
        'bind',
        default=device_spec.BIND_OS_ACC,
        choices=device_spec.BINDS,
        help='Who binds a function to VFIO and back: os-acc, libvirt (a '
        'managed hostdev), or none (it is bound already). A device_spec may '
        'say otherwise for its devices.',
    ),
    cfg.StrOpt(
        'reset',
        default=reset.AUTO,
        choices=reset.MODES,
        help='Between two guests: auto resets a function that VFIO does not '
        'reset by itself, where it can be; required fails if it cannot be; '
        'none does nothing. A device_spec may say otherwise.',
    ),
)

# Keys of VAN.driver_data, beside those of pci_vfs.
BIND = 'bind'
IDS = 'ids'
RESET = 'reset'
VFIO_DRIVER = 'vfio_driver'  # there from before the function is touched
DRIVER_BEFORE = 'driver_before'
OVERRIDE_BEFORE = 'override_before'


class PCIDriver(driver.DriverBase):
    CONFIG_OPTS: ClassVar[Sequence[cfg.Opt]] = OPTS
    generic = True
    handle_types = ('PCIHandle',)

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        if request.handle is not None:
            return isinstance(request.handle, objects.PCIHandle)
        wanted = request.resource_class
        if wanted is None:
            return False
        return (
            wanted in ('PGPU', 'FPGA', 'SRIOV_NET_VF')
            or wanted.startswith(pci_listing.PREFIX)
            or any(
                spec.resource_class == wanted
                and not spec.mdev_types
                and not spec.vgpu_type
                for spec in self._specs().entries
            )
        )

    def get_devices(self) -> list[objects.Device]:
        return pci_listing.devices(
            self.name,
            self._specs(),
            admission.functions_of(self.vans_on(None)),
        )

    def show_device(self, address: str) -> dict[str, Any] | None:
        return pci_report.show(self, address, self._specs())

    def diagnose(self) -> Iterator[finding.Finding]:
        return pci_report.findings(self, self._specs())

    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        if van.handle is not None:
            self._again(van)
        elif request.handle is None:
            self._choose(van, request)
        elif isinstance(request.handle, objects.PCIHandle):
            self._claim(van, request.handle)
        else:
            raise exception.UnsupportedHandle(
                taker=f'driver {self.name!r}',
                handle=request.handle.obj_name(),
                takes='PCIHandle',
            )
        self._bind(van)

    def _claim(self, van: objects.VAN, wanted: objects.PCIHandle) -> None:
        """Take a function by its address: its row says so from here on."""
        address = wanted.address
        function = pci.find(address)
        pf = function.physfn if function else self._future_pf(address)
        with self.lock(pf or address):
            function, new = pci.find(address), False
            if function is None and pf is not None:
                pci_vfs.create(self, van, address, pf, self._specs())
                new = True
            function = function or pci.get(address)
            if function.physfn != pf:
                # It is on the bus before the kernel links it to its PF.
                raise exception.DeviceBusy(
                    device=f'PCI function {address}',
                    holder=f'who makes the VFs of PF {function.physfn} now',
                )
            spec = self._specs().check(function)
            if spec.mdev_types or spec.vgpu_type:
                raise exception.DeviceNotFound(
                    wanted=f'PCI function {address}',
                    reason='[os_acc] device_spec has it for mdevs or vGPUs',
                )
            with admission.group_lock(self, function):
                bind = self._bind_of(wanted, spec)
                admission.check_function(self, van, function, bind, new)
                made = pci_vfs.known(self, pf) if pf and not new else {}
                van.driver_data = {
                    **van.driver_data,
                    **made,
                    **self._found(function, spec, bind),
                }
                van.device = pf or address
                van.handle = objects.PCIHandle(
                    address=address,
                    managed=bind == device_spec.BIND_LIBVIRT,
                    physical_network=wanted.physical_network,
                )
                van.save()

    def _found(
        self, function: pci.Function, spec: device_spec.Spec, bind: str
    ) -> dict[str, str]:
        """What undo will need of how a function was found."""
        data = {
            BIND: bind,
            IDS: function.ids,
            RESET: spec.reset or self.config.reset,
        }
        if bind == device_spec.BIND_OS_ACC:
            data[VFIO_DRIVER] = modules.vfio_driver(function.modalias)
            if function.driver is not None:
                data[DRIVER_BEFORE] = function.driver
            now = vfio.look(function, CONF.os_acc.device_timeout)
            if now.override is not None:
                data[OVERRIDE_BEFORE] = now.override
        return data

    def _bind_of(
        self, wanted: objects.PCIHandle, spec: device_spec.Spec
    ) -> str:
        if wanted.managed:
            return device_spec.BIND_LIBVIRT
        chosen: str = spec.bind or self.config.bind
        if wanted.managed is False and chosen == device_spec.BIND_LIBVIRT:
            return device_spec.BIND_OS_ACC
        return chosen

    def _bind(self, van: objects.VAN) -> None:
        """The act that the row tells of."""
        if van.driver_data[BIND] != device_spec.BIND_OS_ACC:
            return
        from os_acc.privileged import pci as privileged

        address = admission.address_of(van)
        siblings = admission.functions_of(self.requests_of(van.instance_uuid))
        name = privileged.take(
            address,
            van.driver_data[VFIO_DRIVER],
            sorted(siblings),
            CONF.os_acc.device_timeout,
        )
        log.about(LOG, van.instance_uuid, van.uuid).info(
            'PCI function %s is bound to %s', address, name
        )

    def _again(self, van: objects.VAN) -> None:
        """After a reboot: the same function, whatever became of it."""
        address = admission.address_of(van)
        pf = van.device or address
        with self.lock(pf):
            pci_vfs.create_again(van, pf)
            # VFs that others make come when their service has started.
            function = waiting.until(
                lambda: pci.find(address),
                CONF.os_acc.device_timeout,
                f'PCI function {address} to come back',
                'pci',
            )
            if function.ids != van.driver_data[IDS]:
                raise exception.DeviceNotFound(
                    wanted=f'PCI function {address}',
                    reason=f'{function.ids} is at that address since the '
                    f'reboot, where {van.driver_data[IDS]} was',
                )
            bind = van.driver_data[BIND]
            with admission.group_lock(self, function):
                admission.check_function(self, van, function, bind, False)
                spec = self._specs().check(function)
                if not vfio.is_bound(function):
                    data = dict(van.driver_data)
                    data.pop(DRIVER_BEFORE, None)
                    data.pop(OVERRIDE_BEFORE, None)
                    data |= self._found(function, spec, bind)
                    van.driver_data = data
                van.save()

    def _choose(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        """Take the first free function that serves the request."""
        reasons = []
        failed: set[str | None] = set()  # PFs whose VFs cannot be made
        for address in self._candidates(request):
            if (
                failed
                and pci.find(address) is None
                and self._future_pf(address) in failed
            ):
                continue
            try:
                self._claim(van, objects.PCIHandle(address=address))
                return
            except (
                exception.DeviceBusy,
                exception.DeviceError,
                exception.DeviceInUseByHost,
                exception.DeviceNotFound,
            ) as err:
                # Another may serve.
                reasons.append(str(err))
                if pci_vfs.MADE in van.driver_data:
                    failed.add(van.device)
                self._forget(van)
        raise admission.none_left(
            request, reasons, 'no such PCI function here'
        )

    def _forget(self, van: objects.VAN) -> None:
        """Undo a claim that came to nothing: the next starts from nothing."""
        pci_vfs.remove(self, van)
        van.handle, van.device, van.driver_data = None, None, {}
        van.save()

    def _candidates(
        self, request: objects.AcceleratorRequest
    ) -> Iterator[str]:
        specs = self._specs()
        taken = admission.functions_of(self.vans_on(None))
        for function, spec in pci_listing.listed(specs):
            if (
                pci_listing.kind_of(function, spec).serves(request)
                and function.address not in taken
                and not (function.is_pf and spec.num_vfs)
            ):
                yield function.address
        for address, pf, spec in pci_listing.future(specs):
            if address not in taken and pci_listing.kind_of(
                pf, spec, vf=True
            ).serves(request):
                yield address

    def _future_pf(self, address: str) -> str | None:
        """The PF that has, or would have, a VF at an address."""
        for future, pf, _ in pci_listing.future(self._specs()):
            if future == address:
                return pf.address
        return None

    def unprepareVAN(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        if van.handle is None:
            return
        if BIND in van.driver_data:
            self._give_back(van)
        pci_vfs.remove(self, van)

    def _give_back(self, van: objects.VAN) -> None:
        from os_acc.privileged import pci as privileged

        address, data = admission.address_of(van), van.driver_data
        function = pci.find(address)
        if function is None:
            return
        logger = log.about(LOG, van.instance_uuid, van.uuid)
        if function.ids != data[IDS]:
            logger.warning(
                'PCI function %s is %s now: left', address, function.ids
            )
            return
        conf, before = CONF.os_acc, data.get(DRIVER_BEFORE)
        ours = data[BIND] == device_spec.BIND_OS_ACC
        # Since a reboot it is with its driver again, and was not cleaned.
        rebooted = van.boot_id != boot.boot_id()
        foreign = function.driver not in (None, before)
        if ours and foreign and not vfio.is_bound(function):
            logger.warning(
                'PCI function %s: someone has bound it to %s: left',
                address,
                function.driver,
            )
            before = function.driver
        elif (
            not ours
            or rebooted
            or function.driver != before
            or vfio.is_bound(function)
        ):
            clean(van, function)
        if ours:
            privileged.give_back(
                address,
                function.ids,
                before,
                data.get(OVERRIDE_BEFORE),
                conf.device_timeout,
            )

    @staticmethod
    def _specs() -> device_spec.Specs:
        return device_spec.load(CONF)


def clean(van: objects.VAN, function: pci.Function) -> None:
    """Clean what a VAN's guest has let go of.

    :raises: as privileged.pci.clean
    """
    from os_acc.privileged import pci as privileged

    conf, data = CONF.os_acc, van.driver_data
    try:
        privileged.clean(
            function.address,
            data[IDS],
            data[RESET],
            conf.release_timeout,
            conf.device_timeout,
        )
    except exception.DeviceInUseByHost as err:
        # libvirt, or a reboot, gave it back already. A NIC that is up keeps
        # nothing of its last guest; a disk may.
        if function.base_class != pci.CLASS_NETWORK:
            raise
        log.about(LOG, van.instance_uuid, van.uuid).warning(
            'not cleaned: %s', err
        )
