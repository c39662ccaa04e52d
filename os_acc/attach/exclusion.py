# SPDX-License-Identifier: Apache-2.0

"""Which VANs of the journal keep a device from others, for every driver.

A driver checks the one rule of os_acc.claims before it takes a device. What a
driver leaves out, or another VAN has taken meanwhile, is refused here: before
a VAN is given a device, and in reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
import functools

from oslo_config import cfg

from os_acc import exception
from os_acc import journal as journal_module
from os_acc import objects
from os_acc.claims import allocated
from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import of_handle
from os_acc.claims import reader
from os_acc.drivers import given_files
from os_acc.kernel import device_files
from os_acc.kinds.devfile import groups as file_groups
from os_acc.objects import device as device_objects
from os_acc.spec import device_spec


class Exclusion:
    """Who has what, and whom that excludes.

    What the journal says is read for each question.
    """

    def __init__(
        self, journal: journal_module.Journal, conf: cfg.ConfigOpts
    ) -> None:
        self._journal, self._conf = journal, conf

    @functools.cached_property
    def _specs(self) -> device_spec.Specs:
        return device_spec.load_for_vans(self._conf)

    def check(self, van: objects.VAN) -> None:
        """Check that a VAN can have the handle and the device that are set.

        :param van: it is in the journal as it is now
        """
        handle = van.handle
        if handle is None or not of_handle.is_of_device(handle.identity):
            return
        known = self._known(1)
        if not known.of_others(van.uuid):
            return
        own = given_files.own_files(van)
        taker = allocated.Taker(van.uuid, van.instance_uuid)
        for met in known.asked_by(taker).in_the_way(
            handle.identity,
            van.device,
            device_files.texts(each.number for each in own),
        ):
            raise exception.DeviceBusy(
                device=_label(handle), reason=met.in_common.text
            )

    def show(self, devices: Iterable[objects.Device]) -> None:
        """Mark handles as not free that VANs of other devices exclude."""
        listed = list(devices)
        known = self._known(
            sum(
                each.state == device_objects.FREE
                for device in listed
                for each in device.handles
            )
        )
        if not known:
            return
        for device in listed:
            changed = False
            for each in device.handles:
                if each.state == device_objects.FREE:
                    changed |= self._show(device, each, known)
            for kind in device.mdev_types:
                part = f'mdev/of-{device.address}'
                if kind.available and known.in_the_way(part, device.address):
                    kind.available, changed = 0, True
            if changed:
                counted = device.counted()
                device.handles_total, device.handles_free = counted

    def among(
        self, devices: Iterable[objects.Device]
    ) -> dict[str, frozenset[str]]:
        """Say which handles exclude each other: see os_acc.get_exclusions."""
        known = reader.Reader(self._specs, self._known(1).is_programmed)
        holdings = []
        for device in devices:
            for each in device.handles:
                identity = each.handle.identity
                # Each handle gets a VAN and an instance of its own.
                row = facts.Row(
                    identity,
                    device.address,
                    identity,
                    identity,
                    self._numbers(identity),
                )
                holdings.append(of_handle.holding(row, known))
        held = conflict.Held(holdings)
        return {
            wanted.van_uuid: frozenset(
                found.holding.van_uuid for found in held.conflicts(wanted)
            )
            for wanted in holdings
        }

    def _show(
        self,
        device: objects.Device,
        handle: objects.DeviceHandleInfo,
        known: allocated.Holders,
    ) -> bool:
        """Show why a handle is not free, if it is not."""
        identity = handle.handle.identity
        numbers = self._numbers(identity)
        for met in known.in_the_way(identity, device.address, numbers):
            handle.state = device_objects.USED
            handle.reason = met.in_common.text
            return True
        return False

    @functools.cached_property
    def _files(self) -> Mapping[str, file_groups.Accelerator]:
        return {each.name: each for each in file_groups.read(self._specs)}

    def _numbers(self, identity: str) -> tuple[str, ...]:
        """The numbers of the device files of a handle, by device_spec."""
        name = allocated.file_in(identity)
        found = None if name is None else self._files.get(name)
        return device_files.texts(found.numbers) if found is not None else ()

    def _known(self, wanted: int) -> allocated.Holders:
        """The VANs that have or request a device."""
        held = [
            each
            for each in self._journal.handles()
            if each.handle is not None and of_handle.is_of_device(each.handle)
        ]
        return allocated.Holders(
            held,
            programmed=[each.device for each in self._journal.programs()],
            files=lambda: given_files.claimed(
                self._journal, held, self._specs
            ),
            specs=lambda: self._specs,
            many=wanted > len(held),
        )


def _label(handle: objects.AttachHandle) -> str:
    """The name of a device in errors."""
    kind, _, name = str(handle.identity).partition('/')
    if isinstance(handle, objects.DeviceFileHandle) and handle.files:
        name = handle.files[0].path
    known = {'pci': 'PCI function', 'mdev': 'mdev', 'file': 'device file'}
    return f'{known.get(kind, kind)} {name}'
