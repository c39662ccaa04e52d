# SPDX-License-Identifier: Apache-2.0

"""The driver devfile: gives device files, such as /dev/dri/renderD128."""

from __future__ import annotations

from collections.abc import Iterator
import itertools
from typing import Any

from oslo_config import cfg

from os_acc import driver as driver_base
from os_acc import finding
from os_acc import objects
from os_acc.availability import functions as availability
from os_acc.availability import host_use
from os_acc.claims import allocated
from os_acc.claims import of_handle
from os_acc.drivers import allocation
from os_acc.drivers import base
from os_acc.drivers import choosing
from os_acc.drivers import given_files
from os_acc.drivers import inventory
from os_acc.kinds.devfile import groups as file_groups
from os_acc.kinds.devfile import rules as file_availability
from os_acc.kinds.devfile.driver import claim
from os_acc.spec import device_spec

CONF = cfg.CONF

Category = availability.Category

# The operator need not do anything.
_NORMAL = (Category.NOT_OFFERED, Category.ALLOCATED)


class DevfileDriver(base.OneHandleDriver):
    cleans = True
    handle_types = ('DeviceFileHandle',)
    handle_class = objects.DeviceFileHandle

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        if request.handle is not None:
            # Other kinds name their handles in their own ways.
            return (
                isinstance(request.handle, objects.DeviceFileHandle)
                and of_handle.kind_of(request.handle.name) is None
            )
        wanted = request.resource_class
        return wanted is not None and (
            wanted.startswith(claim.PREFIX)
            or any(
                spec.resource_class == wanted and spec.devices
                for spec in self.specs().entries
            )
        )

    def get_devices(self) -> list[objects.Device]:
        view = _View(self)
        there = {found.name: found for found in file_groups.read(self.specs())}
        return choosing.report(
            self, there, lambda name: view.device(there[name])
        )

    def show_device(self, address: str) -> dict[str, Any] | None:
        """Show an accelerator by its name, or by the path of a file."""
        for found in file_groups.read(self.specs()):
            if address not in (
                found.name,
                *(each.path for each in found.files),
            ):
                continue
            view = _View(self)
            held = view.holders.of_file(found.name)
            return {
                'address': found.name,
                'driver': self.name,
                'status': _status(found, view)[1],
                'in device_spec': found.spec.source,
                'files': [
                    f'{each.path} ({each.number.kind} {each.number.major}:'
                    f'{each.number.minor}), user {each.uid}, group '
                    f'{each.gid}, mode {each.mode:04o}'
                    for each in found.files
                ],
                'sysfs': found.place.directory,
                'subsystem': found.place.subsystem or None,
                'pci functions': list(found.place.functions),
                'mediated devices': list(found.place.mdevs),
                'shared': _shared(found.spec),
                'vans': list(map(_van, held)),
            }
        return None

    def diagnose(self) -> Iterator[finding.Finding]:
        if not any(each.devices for each in self.specs().entries):
            return
        view = _View(self)

        def look(found: file_groups.Accelerator) -> Iterator[finding.Finding]:
            verdict, text, advice = _status(found, view)
            text = f'{found.name}: {text}'
            yield finding.Finding(
                file_availability.label(found), verdict, text, advice
            )

        yield from choosing.findings(
            file_groups.read(self.specs()), file_availability.label, look
        )

    def choose(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        claim.choose(self, van, request)

    def take(self, van: objects.VAN, handle: objects.DeviceFileHandle) -> None:
        claim.claim(self, van, handle.name, handle.share)

    def take_again(
        self, van: objects.VAN, handle: objects.DeviceFileHandle
    ) -> None:
        claim.claim_again(self, van, handle)

    def check_request(
        self,
        request: objects.AcceleratorRequest,
        handle: objects.AttachHandle,
    ) -> None:
        claim.check_request(handle, self.specs())

    def is_intact(self, van: objects.VAN) -> bool:
        return claim.is_intact(van, self.specs())

    def left_behind(self, van: objects.VAN) -> str | None:
        entry = file_groups.from_text(van.driver_data.get(given_files.ENTRY))
        return 'the data of the device' if entry and entry.keeps_data else None

    def undo(self, van: objects.VAN) -> None:
        claim.give_back(van, CONF.os_acc.release_timeout)


class _View:
    """What all devices of one report are checked against."""

    def __init__(self, driver: driver_base.DriverBase) -> None:
        self._driver = driver.name
        self.holders = allocation.holders(driver)
        self._snapshot = host_use.Snapshot.read()

    def obstacles(
        self, found: file_groups.Accelerator
    ) -> Iterator[availability.Obstacle]:
        return file_availability.obstacles(
            found,
            holders=self.holders,
            snapshot=self._snapshot,
        )

    def device(self, found: file_groups.Accelerator) -> objects.Device:
        return inventory.device(
            found.name,
            self._driver,
            self._handles(found),
            function=file_groups.function_of(found),
            names=claim.kind_of(found),
        )

    def _handles(
        self, found: file_groups.Accelerator
    ) -> list[objects.DeviceHandleInfo]:
        obstacles = list(self.obstacles(found))
        held = self.holders.of_file(found.name)
        if found.spec.shared is None:
            holder = held[0] if held else None
            return [
                inventory.handle(
                    claim.handle_of(found, None), obstacles, holder
                )
            ]
        by_share = {
            (each.handle or '').rpartition('/')[2]: each for each in held
        }
        most = found.spec.shared or len(by_share) + 1
        numbers = (str(n) for n in itertools.count())
        free = (n for n in numbers if n not in by_share)
        shares = [
            *by_share,
            *itertools.islice(free, max(most - len(by_share), 0)),
        ]
        return [
            inventory.handle(
                claim.handle_of(found, share), obstacles, by_share.get(share)
            )
            for share in shares
        ]


def _shared(spec: device_spec.Spec) -> str:
    if spec.shared is None:
        return 'no'
    return f'by {spec.shared} VANs' if spec.shared else 'by any number of VANs'


def _van(holder: allocated.Holder) -> str:
    return f'{holder.van_uuid} of instance {holder.called}: {holder.handle}'


def _status(
    found: file_groups.Accelerator, view: _View
) -> tuple[str, str, str]:
    """Whether it could be given out now: verdict, text, advice."""
    for each in view.obstacles(found):
        if each.category in _NORMAL:
            return finding.OK, each.text, ''
        return finding.WARNING, each.text, each.remedy
    return finding.OK, 'free', ''
