# SPDX-License-Identifier: Apache-2.0

"""Which device each request of a plug would get."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from typing import TypeAlias

from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc import reserved
from os_acc.attach import plan
from os_acc.drivers import choosing
from os_acc.drivers import pci_functions
from os_acc.objects import device as device_objects
from os_acc.operations import discovery
from os_acc.operations import planned as planned_module
from os_acc.programming import contents
from os_acc.programming import kept
from os_acc.programming import place
from os_acc.spec import device_spec
from os_acc.texts import forms

#: A handle with its device and region, and whether no earlier request of the
#: same plug would take it.
_Offer: TypeAlias = tuple[
    objects.Device, objects.AttachHandle, str | None, bool
]


class Offers:
    """The devices of this host, and what earlier requests would take.

    :param named: the requests of this plug that name their handles: no other
        request gets these
    """

    def __init__(
        self,
        host: host_module.Host,
        named: Iterable[objects.AcceleratorRequest],
        project: str | None,
    ) -> None:
        self._failed: str | None = None
        self._conf = host.conf
        self._project = project
        self._reserved = reserved.for_vans(host.journal)
        self._pools = host.journal.pools()
        try:
            self._devices = discovery.devices(host)
        except exception.DiscoveryFailed as err:
            self._devices, self._failed = err.devices, str(err)
        self._taken = {
            each.handle.identity for each in named if each.handle is not None
        }
        self._made: collections.Counter[str] = collections.Counter()
        # What earlier requests have in a region of a chip.
        self._contents: dict[tuple[str, str], str | None] = {}

    def new(self, planned: plan.Plan) -> planned_module.Planned:
        """Say what would be done for a request that has no VAN yet."""
        if planned.request.handle is not None:
            return self._named(planned, planned.request.handle)
        fits = [
            device
            for device in self._devices
            if device.driver == planned.driver.name
            and planned.driver.serves(planned.request, device)
        ]
        reasons: list[str] = []
        could: dict[str, None] = {}
        chosen = None
        answers: dict[tuple[str, str | None], str | None] = {}
        for device, handle, region, left in self._ranked(planned, fits):
            if chosen is not None and device.address in could:
                continue
            # All handles of one region have the same answer.
            key = device.address, region
            if region is None or key not in answers:
                answers[key] = self._refusal(planned, device, handle, region)
            why = answers[key]
            if why is not None:
                if left:
                    reasons.append(why)
                continue
            could[device.address] = None
            if left and chosen is None:
                chosen = device.address
                self._take(planned, device, handle, region)
        if chosen is not None:
            others = [each for each in could if each != chosen]
            return self._planned(planned, None, [chosen, *others], None)
        obstacle = self._none_left(planned, bool(fits), reasons)
        return self._planned(planned, None, [], obstacle)

    def _none_left(
        self, planned: plan.Plan, fits: bool, reasons: Iterable[str]
    ) -> str | None:
        wanted = planned.request.resource_class
        listed = list(dict.fromkeys(reasons))
        if listed:
            return '; '.join(listed)
        if fits:
            return f'no device of {wanted} has a free handle left' + (
                self._of_entries(planned)
            )
        if planned.driver.takes_unlisted(planned.request):
            return None
        obstacle = self._failed or (
            f'driver {planned.driver.name!r} lists no device of '
            f'{wanted} with these traits'
        )
        for each in discovery.unread(self._devices, planned.driver.name):
            obstacle += f'; {each.address}: {each.health_reason}'
        return obstacle + self._of_entries(planned)

    def _ranked(
        self, planned: plan.Plan, devices: Iterable[objects.Device]
    ) -> list[_Offer]:
        """The free handles of devices, in the order of the driver's choice."""
        offers = [
            (device, *place)
            for device in devices
            for place in self._places(device, planned.request.uuid)
        ]
        ranks: dict[tuple[str, str | None], int] = {}

        def rank(offer: _Offer) -> int:
            device, handle, region, _ = offer
            key = device.address, region
            if key not in ranks:
                ranks[key] = self._rank(planned, device, handle, region)
            return ranks[key]

        return choosing.ranked(offers, rank)

    def _rank(
        self,
        planned: plan.Plan,
        device: objects.Device,
        handle: objects.AttachHandle,
        region: str | None,
    ) -> int:
        """The rank of a region, even if an earlier request would use it."""
        request = planned.request
        key = place.of(device, region)
        if key not in self._contents:
            return planned.driver.rank(request, handle)
        inside = self._contents[key]
        if request.function_id is None and request.bitstream is None:
            is_kept = kept.is_kept(self._pools, inside)
            return contents.KEPT if is_kept else contents.HOLDS
        same = request.function_id and forms.same_function(
            inside, request.function_id
        )
        return contents.HOLDS if same else contents.IN_USE

    def _places(
        self, device: objects.Device, uuid: str
    ) -> Iterator[tuple[objects.AttachHandle, str | None, bool]]:
        """The free handles of a device, with region, and whether it is left.

        :param uuid: the UUID of a mediated device that would be made
        """
        for each in device.handles:
            if each.state == device_objects.FREE:
                left = each.handle.identity not in self._taken
                yield each.handle, each.region, left
        # The types share the capacity of the device.
        made = self._made[device.address]
        for kind in device.mdev_types:
            if kind.available:
                handle = objects.MdevHandle(
                    uuid=uuid, parent=device.address, type=kind.name
                )
                yield handle, None, kind.available > made
        if not device.handles and not device.mdev_types:
            # A driver that was written for version 1.0 only counts them.
            for number in range(device.handles_free):
                counted = objects.TestHandle(name=f'any-{number}')
                yield counted, None, number >= made

    def _refusal(
        self,
        planned: plan.Plan,
        device: objects.Device,
        handle: objects.AttachHandle,
        region: str | None,
    ) -> str | None:
        """Say why a request would not get a handle that is free."""
        request = planned.request
        try:
            planned.driver.check_request(request, handle)
            reserved.check(
                self._reserved,
                reserved.names(device.address, handle),
                region,
                request.function_id,
                self._project,
            )
        except Exception as err:
            return exception.describe(err)
        key = place.of(device, region)
        if key not in self._contents or not (
            request.function_id or request.bitstream
        ):
            return None
        inside = self._contents[key]
        if forms.same_function(inside, request.function_id) and inside:
            return None
        return (
            f'an earlier request of this plug would use {device.address} '
            f'with {inside or "what it contains"}'
        )

    def _take(
        self,
        planned: plan.Plan,
        device: objects.Device,
        handle: objects.AttachHandle,
        region: str | None,
    ) -> None:
        """Note what a request would take, for the requests after it."""
        self._taken.add(handle.identity)
        listed = {each.handle.identity for each in device.handles}
        if handle.identity not in listed:
            self._made[device.address] += 1
        if region is not None:
            self._contents.setdefault(
                place.of(device, region),
                planned.request.function_id or device.functions.get(region),
            )

    def _of_entries(self, planned: plan.Plan) -> str:
        """Say which entries that could serve a request offer nothing."""
        specs = device_spec.load_for_vans(self._conf)
        if isinstance(specs, device_spec.Unreadable):
            return ''  # discovery has said why
        return ''.join(
            f'; {each}'
            for each in pci_functions.refused(
                planned.driver, specs, planned.request
            )
        )

    def _named(
        self, planned: plan.Plan, handle: objects.AttachHandle
    ) -> planned_module.Planned:
        """Say what would be done for a request that names its handle."""
        refused = None
        for device, each in self._named_by(handle):
            why = _why_not(each)
            if each.handle.identity in self._taken - {handle.identity}:
                why = why or 'an earlier request of this plug would take it'
            why = why or self._refusal(
                planned, device, each.handle, each.region
            )
            if why is None:
                self._take(planned, device, each.handle, each.region)
                return self._planned(
                    planned, each.handle, [device.address], None
                )
            refused = refused or self._planned(
                planned, handle, [device.address], why
            )
        if refused is not None:
            return refused
        if isinstance(handle, objects.MdevHandle):
            return self._mdev(planned, handle)
        address = handle.identity.partition('/')[2]
        obstacle = self._unlisted(planned, address)
        return self._planned(planned, handle, [], obstacle)

    def _named_by(
        self, handle: objects.AttachHandle
    ) -> Iterator[tuple[objects.Device, objects.DeviceHandleInfo]]:
        """The listed handles that the handle of a request names.

        If it has no share, it names each share of the device files.
        """
        for device in self._devices:
            for each in device.handles:
                identity = each.handle.identity
                if f'{identity}/'.startswith(f'{handle.identity}/'):
                    yield device, each

    def _mdev(
        self, planned: plan.Plan, handle: objects.MdevHandle
    ) -> planned_module.Planned:
        """Say what would be done for a mediated device that is to be made."""
        kinds = {
            (device.address, kind.name): (device, kind.available)
            for device in self._devices
            for kind in device.mdev_types
        }
        found = kinds.get((handle.parent, handle.type))
        obstacle = None
        if found is None:
            obstacle = self._unlisted(planned, handle.parent)
        elif found[1] <= self._made[handle.parent]:
            obstacle = f'no more of type {handle.type} can be created'
        else:
            obstacle = self._refusal(planned, found[0], handle, None)
            if obstacle is None:
                self._take(planned, found[0], handle, None)
        return self._planned(planned, handle, [handle.parent], obstacle)

    def _unlisted(self, planned: plan.Plan, address: str) -> str | None:
        """Say why a device that discovery does not list cannot be taken."""
        driver = planned.driver
        try:
            if driver.takes_unlisted(planned.request):
                return None
            shown = driver.show_device(address) or {}
        except Exception as err:
            return exception.describe(err)
        status = shown.get('status')
        return f'driver {driver.name!r} does not list {address}' + (
            f': {status}' if status else ''
        )

    @staticmethod
    def _planned(
        planned: plan.Plan,
        handle: objects.AttachHandle | None,
        devices: list[str],
        obstacle: str | None,
    ) -> planned_module.Planned:
        return planned_module.Planned(
            planned.request.uuid,
            planned_module.PLUG,
            planned.driver.name,
            planned.plugin.name,
            None,
            handle.identity if handle is not None else None,
            devices,
            obstacle,
        )


def _why_not(found: objects.DeviceHandleInfo) -> str | None:
    if found.state == device_objects.FREE:
        return None
    text = f'its handle is not free: {found.state}'
    if found.reason is not None:
        text += f', {found.reason}'
    return text + (f' (VAN {found.holder})' if found.holder else '')
