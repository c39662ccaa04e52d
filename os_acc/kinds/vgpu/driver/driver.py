# SPDX-License-Identifier: Apache-2.0

"""The driver nvidia_vgpu: NVIDIA vGPUs on SR-IOV VFs, without mdevs.

The VF stays bound to NVIDIA's own driver. The guest's definition therefore
has managed='no': if libvirt bound the VF to VFIO, the host would crash.

The type of a VF may be preset by the operator. os-acc then gives the VF out
with that type, and leaves the type set afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import functools
import itertools
import logging
from typing import Any

from oslo_config import cfg

from os_acc import driver
from os_acc import finding
from os_acc import log
from os_acc import objects
from os_acc.claims import allocated
from os_acc.deadlines import waiting
from os_acc.drivers import allocation
from os_acc.drivers import base
from os_acc.drivers import choosing
from os_acc.drivers import inventory
from os_acc.drivers import migratable
from os_acc.drivers import pci_functions
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vgpu
from os_acc.kernel import vgpu_cards
from os_acc.kinds.pci.driver import release as pci_release
from os_acc.kinds.vgpu import rules as vgpu_availability
from os_acc.kinds.vgpu.driver import report as vgpu_report
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# Keys of VAN.driver_data.
TYPE = 'vgpu_type'  # the id of the vGPU type, saved before it is set
PRESET = 'vgpu_preset'  # the type was set before: os-acc does not clear it


class NvidiaVGPUDriver(base.OneHandleDriver):
    cleans = True
    handle_types = ('PCIHandle',)
    handle_class = objects.PCIHandle
    moves = driver.LIVE

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        if isinstance(request.handle, objects.PCIHandle):
            return vgpu.is_vgpu_function(request.handle.address)
        if request.handle is not None:
            return False
        wanted = request.resource_class
        entries = [
            spec
            for spec in self.specs().entries
            if spec.nvme_of is None
            and vgpu_report.names(spec).resource_class == wanted
        ]
        if any(spec.vgpu_type for spec in entries):
            return True
        # Entries without vgpu_type also name functions that are not vGPUs.
        return any(map(spec_parts.offers_vgpus, entries)) and any(
            vgpu_report.names(spec).resource_class == wanted
            for _, spec in self._offered()
        )

    def get_devices(self) -> list[objects.Device]:
        holders = allocation.holders(self)
        named: dict[str, dict[device_spec.Spec, list[pci.Function]]] = {}
        unreadable: dict[str, Exception] = {}
        for function, spec in self._offered(unreadable):
            entries = named.setdefault(function.parent, {})
            entries.setdefault(spec, []).append(function)
        found = []
        for address, entries in named.items():
            for spec, vfs in entries.items():
                found += choosing.report(
                    self,
                    [address],
                    functools.partial(self._device, spec, vfs, holders),
                )
        return [
            *found,
            *(
                inventory.failed(address, self, choosing.text_of(err))
                for address, err in unreadable.items()
                if address not in named
            ),
        ]

    def _device(
        self,
        spec: device_spec.Spec,
        vfs: list[pci.Function],
        holders: allocated.Holders,
        address: str,
    ) -> objects.Device:
        """Report the VFs of a card that an entry of device_spec names."""
        card = pci.get(address)
        return inventory.device(
            address,
            self.name,
            vgpu_report.handles(
                vfs, spec, vgpu_cards.Card.read(card), holders
            ),
            function=card,
            names=vgpu_report.names(spec),
        )

    def _functions(
        self, unreadable: dict[str, Exception] | None = None
    ) -> Iterator[tuple[pci.Function, device_spec.Spec]]:
        """The VFs of NVIDIA's drivers that device_spec names."""
        specs = self.specs()
        for driver_name in sysfs.names(f'{sysfs.SYS}/bus/pci/drivers'):
            # nvidia, and the upstream kernel's nvidia-vgpu-vfio
            if not driver_name.startswith('nvidia'):
                continue
            for address in sysfs.names(pci.driver_directory(driver_name)):
                if not pci.is_address(address):
                    continue
                with choosing.noting(address, unreadable):
                    found = pci.find(address)
                    if found and 'nvidia' in found.entries and found.is_vf:
                        spec = specs.find(found)
                        if spec is not None:
                            yield found, spec

    def _offered(
        self, unreadable: dict[str, Exception] | None = None
    ) -> Iterator[tuple[pci.Function, device_spec.Spec]]:
        """Those of _functions() that device_spec offers as vGPUs."""
        for function, spec in self._functions(unreadable):
            if spec_parts.offers_vgpus(spec):
                yield function, spec

    def show_device(self, address: str) -> dict[str, Any] | None:
        """Show the vGPU types of a VF; the driver pci shows the rest."""
        if not pci.is_address(address) or not vgpu.is_vgpu_function(address):
            return None
        now = vgpu.current(address)
        return {
            'vgpu type': now or None,
            'vgpu type name': vgpu_cards.load().names.get(now or 0),
            'vgpu types possible': [
                f'{number} ({name})'
                for number, name in vgpu.creatable(address).items()
            ],
            # Where a vGPU is: in MIG mode, and in mixed-size mode.
            'gpu instance': _vendor_file(address, 'gpu_instance_id'),
            'placement': _vendor_file(address, 'placement_id'),
        }

    def diagnose(self) -> Iterator[finding.Finding]:
        cards: dict[str, vgpu_cards.Card | None] = {}
        told: set[tuple[str, device_spec.Spec]] = set()
        unreadable: dict[str, Exception] = {}
        for function, spec in self._functions(unreadable):
            pf, address = function.parent, function.address
            if pf not in cards:
                cards[pf] = None
                with choosing.noting(pf, unreadable):
                    cards[pf] = vgpu_cards.Card.read(pci.get(pf))
            card, first = cards[pf], (pf, spec) not in told
            if card is None:
                continue
            told.add((pf, spec))
            if first and spec.vgpu_type:
                yield from vgpu_report.unlimited(pf, spec, card)
            if (
                spec_parts.offers_vgpus(spec)
                and card.current.get(address) == vgpu.NONE
                and vgpu_report.places(spec, card) > 0
            ):
                with choosing.noting(address, unreadable):
                    yield from vgpu_report.no_room(function, spec, card)
        for address, err in unreadable.items():
            yield choosing.finding_of(f'GPU {address}', err)

    def take(self, van: objects.VAN, handle: objects.PCIHandle) -> None:
        function = pci.get(handle.address)
        spec = self.specs().check(function)
        # The type of one VF changes which types the other VFs can have.
        with self.lock(function.parent):
            number, preset = self._check_available(van, function, spec)
            van.driver_data = {
                TYPE: str(number),
                **pci_release.hints(function, spec, device_spec.BIND_NONE),
                **({PRESET: '1'} if preset else {}),
            }
            van.device = function.parent
            van.handle = objects.PCIHandle(
                address=handle.address,
                managed=False,
                physical_network=handle.physical_network,
            )
            van.save()
            if preset:
                pci_release.hold(handle.address)
                log.about(LOG, van.instance_uuid, van.uuid).info(
                    'VF %s already has vGPU type %d, and keeps it',
                    handle.address,
                    number,
                )
            else:
                self._privileged_set(van, number)
            self._ask_live(van, spec)

    @staticmethod
    def _ask_live(van: objects.VAN, spec: device_spec.Spec) -> None:
        """Set live_migratable of a VAN whose VF has its type."""
        van.live_migratable = (
            spec.live_migratable is not False
            and migratable.function(van, allocation.address_of(van))
        )

    def _check_available(
        self,
        van: objects.VAN,
        function: pci.Function,
        spec: device_spec.Spec,
    ) -> tuple[int, bool]:
        """Check that a VAN can have a vGPU on a VF.

        :returns: the id of the vGPU type, and whether it is set already
        """
        from os_acc.privileged import device_users

        address = function.address
        card = vgpu_cards.Card.read(pci.get(function.parent))
        allocation.check(
            vgpu_availability.vgpu_obstacles(
                function, spec, card, allocation.holders(self, van)
            )
        )
        allocation.check_open(
            f'VF {address}',
            device_users.of_function(address, van.instance_uuid, False),
        )
        now = card.current[address]
        if now != vgpu.NONE:
            return now, True
        number = card.number_of(spec.vgpu_type or '')
        assert number is not None  # vgpu_obstacles() has found it
        return number, False

    def take_again(self, van: objects.VAN, handle: objects.PCIHandle) -> None:
        """Give the VAN the same type on the same VF again after a reboot."""
        address, data = handle.address, van.driver_data
        number, preset = int(data[TYPE]), PRESET in data
        known = self.journal.desired()
        if known is not None and address in known.devices_of('vgpus'):
            preset = False  # os-acc apply had set it
        # sriov-manage makes the VFs, and a service of the operator presets
        # their types. Both may start after os-acc.
        waiting.until(
            lambda: _is_back(address, number if preset else None),
            CONF.os_acc.device_timeout,
            f'VF {address} to come back with its preset vGPU type {number}, '
            'which os-acc does not set'
            if preset
            else f'VF {address} to come back with the file '
            'nvidia/current_vgpu_type, which sriov-manage creates',
            'pci',
        )
        if vgpu.current(address) == number:
            return
        with self.lock(van.device or address):
            function = pci.get(address)
            spec = dataclasses.replace(
                self.specs().held(function), vgpu_type=str(number)
            )
            _, done = self._check_available(van, function, spec)
            if not done:
                self._privileged_set(van, number)
            self._ask_live(van, spec)

    def _privileged_set(self, van: objects.VAN, number: int) -> None:
        from os_acc.privileged.mdev import devices as privileged

        address = allocation.address_of(van)
        privileged.set_vgpu_type(address, number, CONF.os_acc.device_timeout)
        log.about(LOG, van.instance_uuid, van.uuid).info(
            'VF %s has vGPU type %d', address, number
        )

    def choose(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        unreadable: dict[str, Exception] = {}
        fits = [
            function.address
            for function, spec in self._offered(unreadable)
            if vgpu_report.names(spec).serves(request)
        ]
        choosing.choose(
            van,
            request,
            # VFs with a preset type can be used for nothing else.
            choosing.ranked(fits, lambda vf: not vgpu.current(vf)),
            lambda vf: [objects.PCIHandle(address=vf)],
            lambda handle: self.take(van, handle),
            lambda: self.undo(van),
            'device_spec offers no such VF of this host',
            itertools.chain(
                unreadable.values(),
                pci_functions.refused(self, self.specs(), request),
            ),
        )

    def is_intact(self, van: objects.VAN) -> bool:
        """Whether the VF is there and still has the VAN's vGPU type."""
        if van.handle is None or TYPE not in van.driver_data:
            return True
        return _is_back(allocation.address_of(van), int(van.driver_data[TYPE]))

    def undo(self, van: objects.VAN) -> None:
        """Clear the vGPU type of a VAN's VF, if os-acc has set it."""
        if van.handle is None or TYPE not in van.driver_data:
            return
        from os_acc.privileged.mdev import devices as privileged

        conf, address = CONF.os_acc, allocation.address_of(van)
        if PRESET in van.driver_data:
            privileged.released_vgpu(address, conf.release_timeout)
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


def _is_back(address: str, number: int | None) -> bool:
    """Whether a VF is there, as after a reboot.

    :param number: the type that it must have; None: any, or none
    """
    there = pci.find(address)
    now = vgpu.current(address) if there is not None else None
    return now is not None and number in (now, None)


def _vendor_file(address: str, name: str) -> str | None:
    """Read a file of a VF that exists only in newer versions of the driver.

    The driver answers ENXIO as long as the VF has no vGPU.
    """
    try:
        return sysfs.read(f'{pci.directory(address)}/nvidia/{name}')
    except OSError:
        return None
