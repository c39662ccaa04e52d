# SPDX-License-Identifier: Apache-2.0

"""The driver that uses OpenStack Cyborg's drivers for the device half.

Cyborg's drivers run in a separate process, see the module helper.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import itertools
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc import finding
from os_acc import objects
from os_acc import programming
from os_acc import progress
from os_acc.deadlines import waiting
from os_acc.drivers import allocation
from os_acc.drivers import base
from os_acc.drivers import choosing
from os_acc.kernel import chip as chips
from os_acc.kernel import pci
from os_acc.kinds.cyborg.driver import choice as cyborg_choice
from os_acc.kinds.cyborg.driver import listing as cyborg_listing
from os_acc.kinds.cyborg.driver import mdev as cyborg_mdev
from os_acc.kinds.cyborg.driver import program as cyborg_program
from os_acc.kinds.cyborg.driver import report as cyborg_report
from os_acc.kinds.cyborg.driver import source as cyborg_source
from os_acc.kinds.mdev.driver import handles as mdev_handles
from os_acc.kinds.pci.driver import release as pci_release
from os_acc.programming import regions
from os_acc.spec import device_spec

CONF = cfg.CONF


class CyborgDriver(base.Driver):
    """Gives out devices of Cyborg's drivers, with the checks of os-acc."""

    CONFIG_OPTS = cyborg_source.OPTS
    programs = True
    cleans = True
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
        devices = cyborg_report.devices(self, found, allocation.holders(self))
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
            places = [
                each.address for each in found if each.cyborg_driver == name
            ]
            yield finding.Finding(
                subject, finding.OK, ', '.join(places) or 'no device'
            )

    def serves(
        self, request: objects.AcceleratorRequest, device: objects.Device
    ) -> bool:
        return any(
            device.address in (found.address, found.parent)
            for found in self._source.find(lambda found: found.serves(request))
        )

    def check_request(
        self,
        request: objects.AcceleratorRequest,
        handle: objects.AttachHandle,
    ) -> None:
        found = self._source.get(
            lambda found: found.has(handle), handle.identity
        )
        if request.function_id or request.bitstream:
            cyborg_program.check_programmable(found)
        if found.programmable:
            cyborg_program.slot_as_found(self, found).check_request(request)

    def rank(
        self,
        request: objects.AcceleratorRequest,
        handle: objects.AttachHandle,
    ) -> int:
        found = self._source.get(
            lambda found: found.has(handle), handle.identity
        )
        return cyborg_choice.rank(self, found, request)

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
        if van.handle is not None:
            _wait_until_back(van.handle)
        found = self._source.get(
            lambda found: found.has(wanted), wanted.identity
        )
        with self.lock(found.parent):
            self._claim(van, request, found, wanted)
        self._put_function(van, request, found)

    def is_intact(self, van: objects.VAN) -> bool:
        """Whether the handle is there. This starts no driver of Cyborg's.

        What a device contains is not examined: Cyborg's drivers do not say.
        """
        if isinstance(van.handle, objects.PCIHandle):
            function = pci.find(van.handle.address)
            ids = van.driver_data.get(pci_release.IDS)
            if function is None or ids not in (None, function.ids):
                return False
            return programming.CHIP not in van.driver_data or (
                not programming.chip_replaced(van, chips.of(function))
            )
        return mdev_handles.is_there(van.handle)

    def undo(self, van: objects.VAN) -> None:
        """Undo the device half. This needs none of Cyborg's drivers."""
        if (
            isinstance(van.handle, objects.PCIHandle)
            and pci_release.RESET in van.driver_data
        ):
            pci_release.give_back_clean(self, van)
        # Cyborg's own function does not wait until the guest is gone.
        mdev_handles.undo(van)

    def program_device(
        self,
        address: str,
        bitstream: str | None,
        function_id: str | None,
        region: str | None,
        report: progress.Report,
    ) -> bool:
        regions.check(f'PCI function {address}', region, [programming.WHOLE])
        found = self._source.at(address)
        cyborg_program.check_programmable(found)
        return cyborg_program.program(
            cyborg_program.slot_of(self, self._source, found),
            bitstream,
            function_id,
            report,
        )

    def _claim(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        found: cyborg_listing.Found,
        handle: objects.AttachHandle,
    ) -> None:
        """Claim a handle for a VAN, and save the VAN with it.

        The device's lock is held. _put_function() follows without the lock.
        """
        if request.function_id or request.bitstream:
            cyborg_program.check_programmable(found)
        for each in dict.fromkeys((found.parent, found.address)):
            allocation.check_healthy(self, van, each)
        cyborg_choice.check_siblings(self, van, found, handle)
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
                allocation.check_no_file(self, van, handle.uuid)
                cyborg_mdev.check(van, handle)
            elif cfg.CONF.os_acc.cleaning_command:
                raise exception.InvalidRequest(
                    subject=f'handle {handle.identity}',
                    field='[os_acc] cleaning_command',
                    value=cfg.CONF.os_acc.cleaning_command,
                    expected='none, because a TestHandle represents no device '
                    'that could be cleaned',
                )
            van.handle, van.device = handle, found.parent
            van.save()
            if isinstance(handle, objects.PCIHandle):
                pci_release.hold(handle.address)
        if not found.programmable:
            # The kernel counts it before another VAN can claim one.
            self._make_mdev(van)

    def _put_function(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        found: cyborg_listing.Found,
    ) -> None:
        """Program a VAN's device, if that can be done: the end of its claim.

        The device's lock is not held: VANs that share the device, or take
        another one, do not have to wait for the lock.
        """
        if found.programmable:
            cyborg_program.put_function(
                self, self._source, van, request, found
            )
            with self.lock(found.parent):
                self._make_mdev(van)
        if isinstance(van.handle, objects.PCIHandle):
            allocation.reserve_later(
                van, self.specs(), pci.get(van.handle.address)
            )

    def _make_mdev(self, van: objects.VAN) -> None:
        if isinstance(van.handle, objects.MdevHandle):
            cyborg_mdev.make(van, van.handle, self._source.create_mdev)

    @contextlib.contextmanager
    def _admitted(
        self, van: objects.VAN, handle: objects.PCIHandle
    ) -> Iterator[None]:
        """Check that a guest may have a PCI function; lock its IOMMU group."""
        function, bind = pci.get(handle.address), device_spec.BIND_LIBVIRT
        if van.device is None:
            spec = self.specs().check(function)
        else:
            pci_release.check_same(van, function)
            before = van.driver_data.get(pci_release.VFIO_DRIVER)
            spec = self.specs().held(function, before)
        with allocation.shared_locks(self, function, spec):
            allocation.check_function(
                self, van, function, spec, bind, new=False
            )
            data = dict(van.driver_data)
            data.pop(pci_release.CLEANED, None)
            van.driver_data = {
                **data,
                **pci_release.hints(function, spec, bind),
                **pci_release.identity(function),
                pci_release.RESET: spec.reset or self.config.reset,
            }
            yield

    def _choose(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        """Take a free handle of the device that fits a request best.

        Devices that others are having programmed come last, because the VAN
        would have to wait for them.
        """
        fits = self._source.find(lambda found: found.serves(request))
        later: list[cyborg_listing.Found] = []
        busy: set[str] = set()  # others use them with another function

        def parts(
            found: cyborg_listing.Found,
        ) -> Iterator[tuple[cyborg_listing.Found, objects.AttachHandle]]:
            with self.lock(found.parent):
                if found not in later and cyborg_choice.changes(
                    self, found, van, request
                ):
                    later.append(found)
                    return
                free = cyborg_choice.free_handles(self, found, van)
            for handle in free:
                if found.address not in busy:
                    yield found, handle

        def take(
            part: tuple[cyborg_listing.Found, objects.AttachHandle],
        ) -> None:
            self._claim_one(van, request, *part)
            try:
                self._put_function(van, request, part[0])
            except (
                exception.DeviceBusy,
                exception.DeviceInUseByHost,
                exception.DeviceUnhealthy,
            ):
                busy.add(part[0].address)
                raise
            except Exception as err:
                # A wrong bitstream would spoil one device after the other.
                raise choosing.SearchEnds(err) from err

        choosing.choose(
            van,
            request,
            itertools.chain(cyborg_choice.ranked(self, fits, request), later),
            parts,
            take,
            lambda: _let_go(van),
            "all handles of Cyborg's devices are taken"
            if fits
            else f"Cyborg's drivers have no {allocation.selector(request)}",
        )

    def _claim_one(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        found: cyborg_listing.Found,
        handle: objects.AttachHandle,
    ) -> None:
        """Claim a handle that is still free."""
        with self.lock(found.parent):
            free = cyborg_choice.free_handles(self, found, van)
            if handle.identity not in [each.identity for each in free]:
                raise choosing.TakenMeanwhile(device=handle.identity)
            self._claim(van, request, found, handle)


def _wait_until_back(handle: objects.AttachHandle) -> None:
    """Wait for what a VAN has had: its service may start after os-acc."""
    if isinstance(handle, objects.MdevHandle):
        mdev_handles.wait_for_parent(handle)
    elif isinstance(handle, objects.PCIHandle):
        waiting.until(
            lambda: pci.find(handle.address),
            CONF.os_acc.device_timeout,
            f'PCI function {handle.address} to come back',
            'pci',
        )


def _let_go(van: objects.VAN) -> None:
    """Undo the claim of a handle, so that the VAN can claim another one."""
    ids = van.driver_data.get(pci_release.IDS)
    if isinstance(van.handle, objects.PCIHandle) and ids is not None:
        pci_release.let_go(van.handle.address, ids)
    mdev_handles.undo(van)
