# SPDX-License-Identifier: Apache-2.0

"""The driver idxd: gives work queues of Intel DSA and IAA to programs."""

from __future__ import annotations

from collections.abc import Iterator
import logging
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc import finding
from os_acc import log
from os_acc import objects
from os_acc.availability import functions as availability
from os_acc.claims import meeting
from os_acc.deadlines import waiting
from os_acc.drivers import allocation
from os_acc.drivers import base
from os_acc.drivers import choosing
from os_acc.drivers import given_files
from os_acc.drivers import pci_functions
from os_acc.kernel import device_files
from os_acc.kernel import idxd
from os_acc.kernel import pci
from os_acc.kinds.idxd import entry as spec_idxd
from os_acc.kinds.idxd import names as idxd_names
from os_acc.kinds.idxd import rules as idxd_availability
from os_acc.kinds.idxd.driver import report
from os_acc.privileged import root_folder

LOG = logging.getLogger(__name__)
CONF = cfg.CONF


class IdxdDriver(base.OneHandleDriver):
    cleans = True
    handle_types = ('DeviceFileHandle',)
    handle_class = objects.DeviceFileHandle

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        return choosing.is_for_kind(request, spec_idxd.KEY, self.specs())

    def get_devices(self) -> list[objects.Device]:
        holders = allocation.holders(self)
        specs = self.specs()
        return choosing.report(
            self,
            report.named(specs),
            lambda address: report.device(self.name, address, specs, holders),
        )

    def show_device(self, address: str) -> dict[str, Any] | None:
        """Show a device by the address of its PCI function."""
        if not pci.is_address(address):
            return None
        return report.shown(address, self.specs(), allocation.holders(self))

    def diagnose(self) -> Iterator[finding.Finding]:
        yield from report.findings(self.specs(), allocation.holders(self))

    def take(self, van: objects.VAN, handle: objects.DeviceFileHandle) -> None:
        self._take(van, *idxd_names.parse(handle.name))

    def take_again(
        self, van: objects.VAN, handle: objects.DeviceFileHandle
    ) -> None:
        address, number = idxd_names.parse(handle.name)
        # After a reboot, the kernel may find the device only later.
        waiting.until(
            lambda: idxd.find(address),
            CONF.os_acc.device_timeout,
            f'the DSA or IAA at {address} to come back',
            'dsa',
        )
        with self.lock(address):
            allocation.check_not_whole(
                self, van, address, f'PCI function {address}'
            )
            self._enable(van, address, number)

    def choose(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        """Take the first work queue that is free and as requested."""
        choosing.choose(
            van,
            request,
            report.named(self.specs()),
            lambda address: self._serving(address, request),
            lambda address: self._take(van, address, None),
            lambda: self.undo(van),
            'device_spec offers no work queues of this kind on this host',
            pci_functions.refused(self, self.specs(), request),
        )

    def _serving(
        self, address: str, request: objects.AcceleratorRequest
    ) -> Iterator[str]:
        """The address of a device, if its work queues serve a request."""
        offered = pci_functions.offered(address, self.specs(), spec_idxd.KEY)
        if offered is None:
            return
        kind = report.kind_of(offered[1], idxd.find(address))
        if kind.serves(request):
            yield address

    def _take(
        self, van: objects.VAN, address: str, number: int | None
    ) -> None:
        """Take a work queue of a device.

        :param number: of the work queue; None: the first that is free
        """
        with self.lock(address):
            allocation.check_not_whole(
                self, van, address, f'PCI function {address}'
            )
            name = self._free(van, address, number)
            van.handle = objects.DeviceFileHandle(name=name, files=[])
            van.device = address
            van.save()
            self._enable(van, *idxd_names.parse(name))

    def _free(self, van: objects.VAN, address: str, number: int | None) -> str:
        """Find a work queue that nobody has. See _take()."""
        function = pci.get(address)
        device = idxd.find(address)
        spec = self.specs().find(function)
        settings = None if spec is None else spec.queues
        holders = allocation.holders(self, van)
        file_holders = report.files_given(device, holders)
        set_up_by_os_acc = report.has_queues(address, holders)
        allocation.check(
            idxd_availability.obstacles(
                function, device, settings, set_up_by_os_acc, file_holders
            )
        )
        assert device is not None
        assert settings is not None
        numbers = idxd_availability.numbers(device, settings)
        reasons = []
        for each in numbers if number is None else [number]:
            name = idxd_names.name_of(address, each)
            obstacle = next(
                idxd_availability.queue_obstacles(
                    device, settings, each, False, file_holders
                ),
                None,
            )
            holder = holders.of_handle(f'file/{name}')
            if holder is not None and holder.van_uuid != van.uuid:
                reasons.append(
                    f'instance {holder.called} has work queue {each}'
                )
            elif obstacle is None:
                return name
            elif number is not None:
                raise obstacle.error()
            else:
                reasons.append(obstacle.text)
        raise exception.DeviceBusy(
            device=f'work queues of PCI function {address}',
            reason='; '.join(reasons) or 'it has none',
        )

    def _enable(self, van: objects.VAN, address: str, number: int) -> None:
        """Enable the work queue of a VAN, and save its device file.

        The kernel chooses the number of the file only now. If another VAN was
        given that number, a container may still have a file with it.
        """
        from os_acc.privileged.idxd import queues as privileged

        path, major, minor = privileged.enable(
            address, number, van.uuid, CONF.os_acc.device_timeout
        )
        file = device_files.DeviceFile(
            str(path), device_files.Number('c', int(major), int(minor))
        )
        name = idxd_names.name_of(address, number)
        allocation.check(
            availability.Obstacle.of(f'device file {path}', each.reason)
            for each in allocation.holders(self, van).in_the_way(
                f'file/{name}', address, device_files.texts([file.number])
            )
            if each.relation is meeting.Relation.NUMBER
        )
        van.handle = objects.DeviceFileHandle(
            name=name, files=given_files.described([file])
        )
        van.save()
        log.about(LOG, van.instance_uuid, van.uuid).info(
            'work queue %s enabled as %s', name, path
        )

    def is_intact(self, van: objects.VAN) -> bool:
        if not isinstance(van.handle, objects.DeviceFileHandle):
            return True
        address, number = idxd_names.parse(van.handle.name)
        device = idxd.find(address)
        queue = None if device is None else device.queue(number)
        if device is None or queue is None or not queue.is_enabled:
            return False
        file = device.file(queue)
        if file is None:
            return False
        shown = device_files.shown(file.path)
        return (
            given_files.own_files(van)
            == [device_files.DeviceFile(shown, file.number)]
            and queue.label == idxd_names.label_of(van.uuid)
            and device_files.number_of(file.path) == file.number
        )

    def undo(self, van: objects.VAN) -> None:
        """Disable the work queue of a VAN."""
        if not isinstance(van.handle, objects.DeviceFileHandle):
            return
        from os_acc.privileged.idxd import queues as privileged

        name = van.handle.name
        address, number = idxd_names.parse(name)
        if not privileged.disable(
            address,
            number,
            van.uuid,
            CONF.os_acc.release_timeout,
            CONF.os_acc.device_timeout,
        ):
            raise exception.DeviceError(
                device=f'work queue {name}',
                reason='the privileged daemon has no record of enabling it: '
                f'the record below {root_folder.PATH} was lost. Disable it as '
                'root, and run os-acc recover: accel-config disable-wq',
            )
        log.about(LOG, van.instance_uuid, van.uuid).info(
            'work queue %s disabled', name
        )
