# SPDX-License-Identifier: Apache-2.0

"""The driver mdev: gives mediated devices, and makes them if needed."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import os_resource_classes as resource_classes
from oslo_config import cfg

from os_acc import driver
from os_acc import exception
from os_acc import finding
from os_acc import objects
from os_acc.availability import functions as availability
from os_acc.claims import allocated
from os_acc.deadlines import waiting
from os_acc.drivers import allocation
from os_acc.drivers import base
from os_acc.drivers import choosing
from os_acc.drivers import inventory
from os_acc.drivers import migratable
from os_acc.drivers import pci_functions
from os_acc.kernel import mdev
from os_acc.kernel import mdev_types
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kinds.mdev.driver import handles as mdev_handles
from os_acc.objects import device as device_objects
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts

CONF = cfg.CONF

OS_ACC, CYBORG, EXTERNAL = 'os-acc', 'cyborg', 'external'

OPTS = (
    cfg.StrOpt(
        'owner',
        default=OS_ACC,
        choices=[
            (OS_ACC, 'os-acc creates and removes them.'),
            (
                CYBORG,
                'The Cyborg agent creates them when it binds an ARQ, and '
                'removes them when it unbinds it. os-acc creates one that is '
                'missing, as after a reboot, and leaves its removal to the '
                'agent, which otherwise could not delete the ARQ.',
            ),
            (
                EXTERNAL,
                'Nova or Cyborg creates and removes them. os-acc only checks '
                'that they exist.',
            ),
        ],
        help='Who creates and removes the mediated devices that a request '
        'names, as an ARQ does.',
    ),
)

PREFIX = 'CUSTOM_MDEV_'


class MdevDriver(base.OneHandleDriver):
    CONFIG_OPTS = OPTS
    cleans = True
    handle_types = ('MdevHandle',)
    handle_class = objects.MdevHandle
    moves = driver.LIVE

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        if request.handle is not None:
            return isinstance(request.handle, objects.MdevHandle)
        wanted = request.resource_class
        return wanted is not None and (
            wanted.startswith(PREFIX)
            or any(
                wanted == (spec.resource_class or resource_classes.VGPU)
                # Then its class VGPU is for VFs of the driver nvidia_vgpu.
                and spec.bind != device_spec.BIND_NONE
                and self._is_for_mdevs(spec)
                for spec in self.specs().entries
            )
        )

    def _is_for_mdevs(self, spec: device_spec.Spec) -> bool:
        """Whether an entry asks for mediated devices.

        If it asks for VFs too, by its class, what its devices have counts.
        """
        asked = spec_parts.asked_for(spec)
        if spec_parts.Part.MDEV not in asked:
            return False
        if spec_parts.Part.VF not in asked:
            return True
        found = map(self._parent, mdev_types.parents())
        return any(each is not None and each[0] == spec for each in found)

    def get_devices(self) -> list[objects.Device]:
        made, holders = mdev.devices(), allocation.holders(self)
        room = mdev_handles.Room(made)
        return choosing.report(
            self,
            mdev_types.parents(),
            lambda parent: self._device(parent, made, holders, room),
        )

    def show_device(self, address: str) -> dict[str, Any] | None:
        """Show a parent by its name, or a mediated device by its UUID."""
        made, holders = mdev.devices(), allocation.holders(self)
        found = next((each for each in made if each.uuid == address), None)
        if found is not None:
            return {
                'address': address,
                'driver': self.name,
                'status': _status(address, holders),
                'parent': found.parent,
                'mdev type': found.type,
                'iommu group': sysfs.link(
                    f'{mdev.directory(address)}/iommu_group'
                ),
            }
        if address not in mdev_types.parents() or pci.is_address(address):
            # The driver pci shows PCI functions, parents included.
            return None
        return {
            'address': address,
            'driver': self.name,
            'mdev types': [
                f'{each.name} ({each.label}): {each.available} more'
                for each in mdev_types.types(address)
            ],
            'mediated devices': [
                f'{each.uuid} ({each.type}): {_status(each.uuid, holders)}'
                for each in made
                if each.parent == address
            ],
        }

    def diagnose(self) -> Iterator[finding.Finding]:
        holders, kept = (
            allocation.holders(self),
            mdev_handles.kept(self.journal),
        )
        unknown = [
            each
            for each in mdev.devices()
            if not holders.of_mdev(each.uuid) and each.uuid not in kept
        ]
        return choosing.findings(
            mdev_types.parents(),
            'mdev parent {}'.format,
            lambda parent: self._findings(parent, unknown),
        )

    def _findings(
        self, parent: str, unknown: list[mdev.Mdev]
    ) -> Iterator[finding.Finding]:
        """Report a parent."""
        offered = self._parent(parent)
        if offered is None:
            return
        _, types = offered
        text = ', '.join(f'{t.name}: {t.available} more' for t in types)
        yield finding.Finding(f'mdev parent {parent}', finding.OK, text)
        for each in unknown:
            if each.parent == parent:
                yield finding.Finding(
                    f'mdev {each.uuid}',
                    finding.OK
                    if self.config.owner != OS_ACC
                    else finding.WARNING,
                    f'it exists ({each.type} on {parent}), but no VAN has it: '
                    'os-acc did not create it and does not remove it',
                    'find out who created it (Nova, Cyborg, mdevctl); if '
                    f'nobody needs it, mdevctl stop -u {each.uuid}',
                )

    def _device(
        self,
        parent: str,
        made: list[mdev.Mdev],
        holders: allocated.Holders,
        room: mdev_handles.Room,
    ) -> objects.Device | None:
        offered = self._parent(parent)
        if offered is None:
            return None
        spec, types = offered
        function = mdev_handles.function_of(parent)
        taken = list(availability.part_obstacles(parent, parent, holders))
        handles = [
            inventory.handle(
                objects.MdevHandle(
                    uuid=each.uuid, parent=parent, type=each.type
                ),
                taken,
                holders.of_mdev(each.uuid),
            )
            for each in made
            if each.parent == parent
        ]
        infos = []
        for kind in types:
            capacity = room.take(kind, spec.max_instances)
            infos.append(
                objects.DeviceMdevTypeInfo(
                    name=kind.name,
                    label=kind.label,
                    capacity=capacity,
                    available=0 if taken else capacity,
                )
            )
        return inventory.device(
            parent,
            self.name,
            handles,
            infos,
            function=function,
            resource_class=self._class(spec, function, types[0]),
            traits=[*spec.traits, *(type_trait(each.name) for each in types)],
        )

    def _parent(
        self, parent: str
    ) -> tuple[device_spec.Spec, list[mdev_types.Type]] | None:
        """The entry for a parent, and the types of it that are offered.

        :returns: None if none is
        """
        spec = self.specs().find_parent(parent)
        if spec is None or not spec_parts.offers(spec, spec_parts.Part.MDEV):
            return None
        types = [
            each
            for each in mdev_types.types(parent)
            if spec.allows_mdev(each.name)
        ]
        return (spec, types) if types else None

    @staticmethod
    def _class(
        spec: device_spec.Spec,
        function: pci.Function | None,
        kind: mdev_types.Type,
    ) -> str:
        if spec.resource_class is not None:
            return spec.resource_class
        if function and function.base_class == pci.CLASS_DISPLAY:
            return str(resource_classes.VGPU)
        return type_trait(kind.name)

    def serves(
        self, request: objects.AcceleratorRequest, device: objects.Device
    ) -> bool:
        if device.health != device_objects.OK:
            return super().serves(request, device)
        # The report has the class of the first type only.
        return any(self._serving(device.address, request, request.uuid))

    def check_request(
        self,
        request: objects.AcceleratorRequest,
        handle: objects.AttachHandle,
    ) -> None:
        wanted = mdev_handles.mdev_of(
            objects.MdevHandle.cast(handle, f'driver {self.name!r}')
        )
        there = mdev.find(wanted.uuid) is not None
        reason = None
        if request.handle is None:
            own = self._serving(wanted.parent, request, request.uuid)
            kept = wanted.uuid in mdev_handles.kept(self.journal, False)
            fits = wanted.type in {each.type for each in own}
            if not fits or (there and not kept):
                reason = f'a new device of {wanted.type} cannot replace it'
        if self.config.owner == EXTERNAL and not there:
            reason = 'with owner = external, Nova or Cyborg creates it'
        if reason is not None:
            raise exception.DeviceNotFound(
                wanted=f'mdev {wanted.uuid} on {wanted.parent}', reason=reason
            )

    def rank(
        self,
        request: objects.AcceleratorRequest,
        handle: objects.AttachHandle,
    ) -> int:
        uuid = objects.MdevHandle.cast(handle, f'driver {self.name!r}').uuid
        return int(uuid not in mdev_handles.kept(self.journal, False))

    def take_again(self, van: objects.VAN, handle: objects.MdevHandle) -> None:
        mdev_handles.wait_for_parent(handle)
        self.take(van, handle)

    def take(self, van: objects.VAN, handle: objects.MdevHandle) -> None:
        """Take a mediated device, and make it if it does not exist."""
        with self.lock(handle.parent):
            allocation.check_not_whole(
                self, van, handle.parent, f'mdev parent {handle.parent}'
            )
            wanted = mdev_handles.mdev_of(handle)
            limit = None
            if van.device is None:
                spec = self.specs().check_mdev(wanted.parent, wanted.type)
                limit = spec.max_instances
            # Otherwise the VAN already has it, and keeps it.
            there = mdev.find(wanted.uuid)
            kept = wanted.uuid in mdev_handles.kept(self.journal)
            if there is None and self.config.owner == EXTERNAL and not kept:
                there = waiting.until(
                    lambda: mdev.find(wanted.uuid),
                    CONF.os_acc.device_timeout,
                    f'mdev {wanted.uuid}, which Nova or Cyborg creates with '
                    'owner = external',
                    'mdev',
                )
            if there is not None:
                holder = allocation.holders(self, van).of_mdev(wanted.uuid)
                if holder is not None and holder.van_uuid != van.uuid:
                    raise choosing.TakenMeanwhile(device=f'mdev {wanted.uuid}')
                allocation.check_no_file(self, van, wanted.uuid)
                mdev_handles.check_free(van, there, wanted)
            else:
                mdev_handles.check_room(wanted, limit)
                # Only os-acc's own choice has the UUID of the VAN.
                if not kept and (
                    self.config.owner != CYBORG or wanted.uuid == van.uuid
                ):
                    made = {mdev_handles.MADE: '1'}
                    van.driver_data = {**van.driver_data, **made}
            van.handle, van.device = handle, wanted.parent
            van.save()
            if there is None:
                mdev_handles.create(van, wanted, kept)
            else:
                mdev_handles.hold(wanted)
            if van.live_migratable is None:
                known = self.specs().known_parent(wanted.parent)
                van.live_migratable = (
                    known is None or known.live_migratable is not False
                ) and migratable.mediated(van, wanted)

    def choose(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        """Take a device that os-acc apply keeps, or make one.

        It is made on the first parent that can, with the UUID of the VAN.
        """
        places: list[mdev.Mdev | str] = [
            *mdev_handles.free(self, van),
            *mdev_types.parents(),
        ]

        def parts(device: mdev.Mdev | str) -> Iterable[objects.MdevHandle]:
            if isinstance(device, str):
                return self._serving(device, request, van.uuid)
            own = self._serving(device.parent, request, device.uuid)
            return (each for each in own if each.type == device.type)

        choosing.choose(
            van,
            request,
            places,
            parts,
            lambda handle: self.take(van, handle),
            lambda: mdev_handles.undo(van),
            'device_spec offers no parent of this host that has such a type',
            pci_functions.refused(self, self.specs(), request),
        )

    def _serving(
        self,
        parent: str,
        request: objects.AcceleratorRequest,
        uuid: str,
    ) -> Iterator[objects.MdevHandle]:
        """The mediated devices of a parent that would serve a request.

        :param uuid: which they would have
        """
        found = self._parent(parent)
        if found is None:
            return
        spec, types = found
        function = mdev_handles.function_of(parent)
        for kind in types:
            traits = {type_trait(kind.name), *spec.traits}
            if self._class(
                spec, function, kind
            ) == request.resource_class and traits.issuperset(request.traits):
                yield objects.MdevHandle(
                    uuid=uuid, parent=parent, type=kind.name
                )

    def is_intact(self, van: objects.VAN) -> bool:
        return mdev_handles.is_there(van.handle)

    def undo(self, van: objects.VAN) -> None:
        mdev_handles.undo(van)


def _status(uuid: str, holders: allocated.Holders) -> str:
    holder = holders.of_mdev(uuid)
    if holder is None:
        return 'no VAN has it'
    return f'VAN {holder.van_uuid} of instance {holder.called}'


def type_trait(kind: str) -> str:
    """The trait of an mdev type, which is also its resource class."""
    return pci_functions.custom(f'MDEV_{kind}')
