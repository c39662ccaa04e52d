# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Why does an entry of device_spec offer nothing?

That an entry names a device does not mean that it offers something: after a
reboot or an upgrade of a driver, a card may have no VFs, no vGPU types, no
mediated devices. find() says why, for each card. os-acc doctor, os-acc device
list and the refusal of a request all say what it finds.

What is not free at the moment, because an instance or the host has it, is
offered all the same: see availability.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses

from os_acc import exception
from os_acc.devices import allocated
from os_acc.devices import availability
from os_acc.devices import device_spec
from os_acc.devices import file_groups
from os_acc.devices import idxd
from os_acc.devices import idxd_availability
from os_acc.devices import mdev
from os_acc.devices import offer_refusals
from os_acc.devices import pci
from os_acc.devices import pci_scan
from os_acc.devices import spec_nvme_of
from os_acc.devices import spec_parts
from os_acc.devices import sriov
from os_acc.devices import unmatched
from os_acc.devices import vf_availability
from os_acc.devices import vgpu
from os_acc.devices import vgpu_availability
from os_acc.devices import vgpu_refusals

Obstacle = availability.Obstacle
Part = spec_parts.Part

# A device whose files cannot be read is reported as failed, by its driver.
_UNREADABLE = (OSError, ValueError, exception.DeviceError)


@dataclasses.dataclass(frozen=True)
class Nothing:
    """An entry, and a device of which it offers nothing.

    :ivar obstacle: why; its device is the entry itself if it names no device
    :ivar function: the device, if it is a PCI function
    """

    spec: device_spec.Spec
    obstacle: Obstacle
    function: pci.Function | None = None

    @property
    def reason(self) -> str:
        """The reason with the remedy, for an error."""
        text, remedy = self.obstacle.text, self.obstacle.remedy
        return text if remedy in text else f'{text}: {remedy}'

    @property
    def text(self) -> str:
        """Entry, device, reason and remedy."""
        device, source = self.obstacle.device, self.spec.source
        if device == source:
            return f'{source}: {self.reason}'
        return f'{source} offers nothing of {device}: {self.reason}'


@dataclasses.dataclass(frozen=True)
class _Card:
    """A PCI function that is no VF, and what of it one entry names.

    :ivar functions: those that the entry names: the function itself, its VFs
    """

    spec: device_spec.Spec
    function: pci.Function
    functions: list[pci.Function]
    specs: device_spec.Specs
    holders: allocated.Holders
    parents: frozenset[str]

    @property
    def address(self) -> str:
        return self.function.address

    @property
    def vfs(self) -> list[pci.Function]:
        return [each for each in self.functions if each.is_vf]

    @property
    def is_held(self) -> bool:
        """Whether a VAN has it or a part of it, so that it looks different."""
        return bool(
            self.holders.on(self.address)
            or self.holders.of_function(self.address)
        )


def find(
    specs: device_spec.Specs, holders: allocated.Holders | None = None
) -> list[Nothing]:
    """Find the entries that offer nothing, in their order.

    :param holders: what the journal knows; None if it is unavailable
    :raises InvalidRequest: if device_spec cannot be read
    """
    look = _Look(specs, allocated.Holders() if holders is None else holders)
    return [
        nothing
        for spec in specs.entries
        if not spec.deny
        for nothing in look.of_entry(spec)
    ]


class _Look:
    """What the entries name on this host, looked for once."""

    def __init__(
        self, specs: device_spec.Specs, holders: allocated.Holders
    ) -> None:
        self._specs, self._holders = specs, holders
        parents = mdev.parents()
        self._pci_parents = frozenset(filter(pci.is_address, parents))
        self._other_parents = [
            each for each in parents if each not in self._pci_parents
        ]
        self._host = unmatched.Host(specs)
        self._with_files = {id(each.spec) for each in file_groups.read(specs)}
        self._cards: dict[int, dict[str, list[pci.Function]]] = {}
        self._scan()

    def _scan(self) -> None:
        def failed(address: str, err: Exception) -> None:
            self._host.unreadable.append(address)

        for function in pci_scan.functions(failed):
            self._host.functions.append(function)
            if function.is_bridge:
                continue
            try:
                spec = self._specs.first(function)
            except _UNREADABLE:
                self._host.unreadable.append(function.address)
                continue
            if spec is not None:
                cards = self._cards.setdefault(id(spec), {})
                cards.setdefault(function.parent, []).append(function)

    def of_entry(self, spec: device_spec.Spec) -> Iterator[Nothing]:
        """Say of which devices an entry offers nothing."""
        if spec.nvme_of is not None:
            yield from self._of_target(spec, spec.nvme_of)
            return
        if spec.devices:
            if id(spec) not in self._with_files:
                globs = ', '.join(spec.devices)
                ids = f' that belongs to {unmatched.ids(spec)}'
                with_ids = spec.vendor_id or spec.product_id
                lack = offer_refusals.NO_FILES.say(
                    globs=globs, ids=ids if with_ids else ''
                )
                yield Nothing(spec, Obstacle.of(spec.source, lack))
            return
        named, found = 0, list[Nothing]()
        for address, functions in self._cards.get(id(spec), {}).items():
            named += 1
            with contextlib.suppress(*_UNREADABLE):
                found += self._of_card(spec, address, functions)
        for name in self._other_parents:
            if self._specs.first_parent(name) is spec:
                named += 1
                with contextlib.suppress(*_UNREADABLE):
                    found += _of_parent(spec, name)
        if not named:
            why = self._host.why_unmatched(spec)
            if why is not None:
                yield Nothing(spec, Obstacle.of(spec.source, why))
            return
        yield from _likely(spec, found, named)

    def _of_target(
        self, spec: device_spec.Spec, target: spec_nvme_of.Target
    ) -> Iterator[Nothing]:
        """Say that other entries count for all namespaces of a target."""
        counting = [
            self._specs.first_namespace(each) for each in target.namespaces
        ]
        if spec in counting:
            return
        others = [each for each in counting if each is not None]
        why = offer_refusals.NAMED_BEFORE.say(
            source=', '.join(dict.fromkeys(each.source for each in others)),
            verb='denies' if any(each.deny for each in others) else 'names',
            devices=', '.join(target.namespaces),
        )
        yield Nothing(spec, Obstacle.of(spec.source, why))

    def _of_card(
        self,
        spec: device_spec.Spec,
        address: str,
        functions: list[pci.Function],
    ) -> Iterator[Nothing]:
        function = pci.find(address)
        if function is None:
            return
        card = _Card(
            spec,
            function,
            functions,
            self._specs,
            self._holders,
            self._pci_parents,
        )
        obstacles = []
        asked = spec_parts.asked_for(spec)
        for look in [_LOOKS[part] for part in Part if part in asked] or [
            _whole
        ]:
            obstacle = next(look(card), None)
            if obstacle is None:
                return
            obstacles.append(obstacle)
        yield Nothing(spec, obstacles[0], function)


def _likely(
    spec: device_spec.Spec, found: list[Nothing], named: int
) -> list[Nothing]:
    """Leave out the devices that the entry hardly means.

    An entry for all vGPUs of a vendor also names the sound functions of the
    cards. If it offers something, they are left out.

    :param named: how many devices the entry names
    """
    if not spec_parts.asked_for(spec) & {Part.VGPU, Part.MDEV}:
        return found
    displays = [
        each
        for each in found
        if each.function is not None
        and each.function.base_class == pci.CLASS_DISPLAY
    ]
    return displays if displays or len(found) < named else found


def _of_parent(spec: device_spec.Spec, name: str) -> Iterator[Nothing]:
    """Look at a parent of mdevs that is no PCI function."""
    if not spec_parts.offers(spec, Part.MDEV):
        return
    for obstacle in _types(spec, name, [name]):
        yield Nothing(spec, obstacle)


def _types(
    spec: device_spec.Spec, name: str, parents: list[str]
) -> Iterator[Obstacle]:
    """Say that parents of mdevs have none of the types of an entry.

    :param name: of the device that has them
    """
    there = [kind.name for each in parents for kind in mdev.types(each)]
    if not any(map(spec.allows_mdev, there)):
        yield Obstacle.of(
            f'mdev parent {name}',
            offer_refusals.MDEV_OTHER_TYPES.say(
                present=', '.join(dict.fromkeys(there)) or 'none',
                wanted=', '.join(spec.mdev_types) or 'any',
            ),
        )


def _whole(card: _Card) -> Iterator[Obstacle]:
    # While a PF has VFs, they are given out and the PF is not.
    given = card.vfs or card.functions
    if all(map(vgpu.is_place, given)):
        yield from _vgpu_types(card, given)


def _vfs(card: _Card) -> Iterator[Obstacle]:
    if card.is_held:
        return
    if not card.vfs and not card.function.vf_addresses:
        yield from vf_availability.vfs_obstacles(card.function, spec=card.spec)


def _regions(card: _Card) -> Iterator[Obstacle]:
    if card.spec.num_vfs is not None:
        yield from _vfs(card)
    elif not card.vfs:
        yield Obstacle.of(
            f'FPGA {card.address}', offer_refusals.NO_REGIONS.say()
        )


def _vgpus(card: _Card) -> Iterator[Obstacle]:
    device = f'GPU {card.address}'
    pf, vfs = card.function, card.vfs
    if places := [each for each in vfs if vgpu.is_place(each)]:
        yield from _vgpu_types(card, places)
    elif any(each.address in card.parents for each in (pf, *vfs)):
        yield Obstacle.of(device, offer_refusals.VGPU_AS_MDEV.say())
    elif (other := _not_nvidia(pf, *vfs[:1])) is not None:
        driver = other.driver or 'no driver'
        if other is not pf:
            device = f'VF {other.address} of {device}'
        yield Obstacle.of(device, offer_refusals.NOT_NVIDIA.say(driver=driver))
    elif vfs:
        device = f'VF {vfs[0].address} of {device}'
        yield Obstacle.of(device, vgpu_refusals.NO_VGPU_FILE.say())
    elif not pf.is_pf:
        yield Obstacle.of(device, offer_refusals.VGPU_NO_SRIOV.say())
    elif there := pf.vf_addresses:
        others = [card.specs.first(pci.get(each)) for each in there]
        sources = dict.fromkeys(each.source for each in others if each)
        yield Obstacle.of(
            device,
            offer_refusals.NAMED_BEFORE.say(
                source=', '.join(sources), verb='names', devices='its VFs'
            ),
        )
    else:
        yield Obstacle.of(
            device, offer_refusals.VGPU_NO_VFS.say(address=pf.address)
        )


def _not_nvidia(*functions: pci.Function) -> pci.Function | None:
    """The first function that none of NVIDIA's drivers is bound to."""
    for each in functions:
        if not (each.driver or '').startswith('nvidia'):
            return each
    return None


def _vgpu_types(card: _Card, places: list[pci.Function]) -> Iterator[Obstacle]:
    """Say why none of the VFs of a card can have a vGPU.

    :param places: the VFs, which can have a vGPU type
    """
    device, wanted = f'GPU {card.address}', card.spec.vgpu_type
    if not vgpu_availability.offers_vgpus(card.spec):
        yield Obstacle.of(device, vgpu_refusals.NO_VGPU_TYPE.say())
        return
    found = vgpu.Card.read(card.function)
    if any(found.current.values()):
        return  # it has vGPUs, and may only be full
    if wanted is None:
        yield Obstacle.of(device, vgpu_refusals.VGPU_TYPE_UNSET.say())
        return
    if not any(found.possible.values()):
        yield Obstacle.of(device, offer_refusals.NO_VGPU_TYPES_NOW.say())
        return
    number = found.number_of(wanted)
    if not any(number in kinds for kinds in found.possible.values()):
        types = vgpu.types_text(places[0].address)
        yield Obstacle.of(
            f'vGPU type {wanted} on {device}',
            vgpu_refusals.VGPU_TYPES.say(types=types),
        )


def _mdevs(card: _Card) -> Iterator[Obstacle]:
    device = f'mdev parent {card.address}'
    makers = [each.address for each in card.functions]
    makers = [each for each in makers if each in card.parents]
    pf = card.function
    if makers:
        yield from _types(card.spec, card.address, makers)
    elif any('nvidia' in each.entries for each in card.vfs):
        yield Obstacle.of(device, offer_refusals.MDEV_AS_VGPU.say())
    else:
        lacks_vfs = pf.is_pf and sriov.total(pf.address) and not card.vfs
        yield Obstacle.of(
            device,
            offer_refusals.NO_MDEVS.say(
                driver=pf.driver or 'no driver',
                vfs=', and has no VFs' if lacks_vfs else '',
                address=pf.address,
            ),
        )


def _queues(card: _Card) -> Iterator[Obstacle]:
    if card.is_held:
        return
    yield from idxd_availability.obstacles(
        card.function,
        idxd.find(card.address),
        card.spec.queues,
        False,
        {},
    )


# A device file and a namespace are named by their entries themselves.
_LOOKS: dict[Part, Callable[[_Card], Iterator[Obstacle]]] = {
    Part.VF: _vfs,
    Part.REGION: _regions,
    Part.VGPU: _vgpus,
    Part.MDEV: _mdevs,
    Part.QUEUE: _queues,
}
