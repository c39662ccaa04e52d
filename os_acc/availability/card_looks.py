# SPDX-License-Identifier: Apache-2.0

"""Which parts of a card an entry of device_spec offers, by kind of part.

Each look yields why the entry offers no such part of the card; nothing if it
offers some.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import dataclasses

from os_acc import kinds
from os_acc.availability import vf_availability
from os_acc.availability.functions import Obstacle
from os_acc.claims import allocated
from os_acc.kernel import mdev_types
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.kernel import vgpu
from os_acc.kernel import vgpu_cards
from os_acc.kinds.vgpu import refusals as vgpu_refusals
from os_acc.refusals import entry_refusals
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts
from os_acc.spec.parts import Part


@dataclasses.dataclass(frozen=True)
class Card:
    """A PF, or a function that is no VF, with what an entry names of it."""

    spec: device_spec.Spec
    function: pci.Function
    # those that the entry names: the function itself, its VFs
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
        """Whether os-acc has changed it: for a VAN, or ahead of time."""
        return bool(
            self.holders.on(self.address)
            or self.holders.of_function(self.address)
            or self.holders.is_set_up(self.address)
        )


def types(
    spec: device_spec.Spec, name: str, parents: list[str]
) -> Iterator[Obstacle]:
    """Say that parents of mdevs, which a device has, lack an entry's types."""
    present = [
        kind.name for each in parents for kind in mdev_types.types(each)
    ]
    if not any(map(spec.allows_mdev, present)):
        yield Obstacle.of(
            f'mdev parent {name}',
            entry_refusals.MDEV_OTHER_TYPES.reason(
                present=', '.join(dict.fromkeys(present)) or 'none',
                wanted=', '.join(spec.mdev_types) or 'any',
            ),
        )


def _whole(card: Card) -> Iterator[Obstacle]:
    # While a PF has VFs, they are given out and the PF is not.
    offered = card.vfs or card.functions
    if all(map(vgpu.is_place, offered)):
        yield from _vgpu_types(card, offered)


def _vfs(card: Card) -> Iterator[Obstacle]:
    if card.is_held:
        return
    if card.vfs or card.function.vf_addresses:
        return
    if card.spec.num_vfs is None:
        yield Obstacle.of(
            f'PCI function {card.address}', entry_refusals.NO_VFS.reason()
        )
    else:
        yield from vf_availability.vfs_obstacles(card.function, spec=card.spec)


def _regions(card: Card) -> Iterator[Obstacle]:
    if card.spec.num_vfs is not None:
        yield from _vfs(card)
    elif not card.vfs:
        yield Obstacle.of(
            f'FPGA {card.address}', entry_refusals.NO_REGIONS.reason()
        )


def _vgpus(card: Card) -> Iterator[Obstacle]:
    device = f'GPU {card.address}'
    pf, vfs = card.function, card.vfs
    if places := [each for each in vfs if vgpu.is_place(each)]:
        yield from _vgpu_types(card, places)
    elif any(each.address in card.parents for each in (pf, *vfs)):
        yield Obstacle.of(device, entry_refusals.VGPU_AS_MDEV.reason())
    elif (other := _not_nvidia(pf, *vfs[:1])) is not None:
        driver = other.driver or 'no driver'
        if other is not pf:
            device = f'VF {other.address} of {device}'
        yield Obstacle.of(
            device, entry_refusals.NOT_NVIDIA.reason(driver=driver)
        )
    elif vfs:
        device = f'VF {vfs[0].address} of {device}'
        yield Obstacle.of(device, vgpu_refusals.NO_VGPU_FILE.reason())
    elif not pf.is_pf:
        yield Obstacle.of(device, entry_refusals.VGPU_NO_SRIOV.reason())
    elif there := pf.vf_addresses:
        others = [card.specs.first(pci.get(each)) for each in there]
        sources = dict.fromkeys(each.source for each in others if each)
        yield Obstacle.of(
            device,
            entry_refusals.NAMED_BEFORE.reason(
                source=', '.join(sources), verb='names', devices='its VFs'
            ),
        )
    else:
        yield Obstacle.of(
            device, entry_refusals.VGPU_NO_VFS.reason(address=pf.address)
        )


def _not_nvidia(*functions: pci.Function) -> pci.Function | None:
    """The first function that none of NVIDIA's drivers is bound to."""
    for each in functions:
        if not (each.driver or '').startswith('nvidia'):
            return each
    return None


def _vgpu_types(card: Card, places: list[pci.Function]) -> Iterator[Obstacle]:
    """Say why none of the VFs of a card can have a vGPU."""
    device, wanted = f'GPU {card.address}', card.spec.vgpu_type
    if not spec_parts.offers_vgpus(card.spec):
        yield Obstacle.of(device, vgpu_refusals.NO_VGPU_TYPE.reason())
        return
    found = vgpu_cards.Card.read(card.function)
    if any(found.current.values()):
        return  # it has vGPUs, and may only be full
    if wanted is None:
        yield Obstacle.of(device, vgpu_refusals.VGPU_TYPE_UNSET.reason())
        return
    if not any(found.possible.values()):
        yield Obstacle.of(device, entry_refusals.NO_VGPU_TYPES_NOW.reason())
        return
    number = found.number_of(wanted)
    if not any(number in kinds for kinds in found.possible.values()):
        types = vgpu_cards.types_text(places[0].address)
        yield Obstacle.of(
            f'vGPU type {wanted} on {device}',
            vgpu_refusals.VGPU_TYPES.reason(types=types),
        )


def _mdevs(card: Card) -> Iterator[Obstacle]:
    device = f'mdev parent {card.address}'
    makers = [each.address for each in card.functions]
    makers = [each for each in makers if each in card.parents]
    pf = card.function
    if makers:
        yield from types(card.spec, card.address, makers)
    elif any('nvidia' in each.entries for each in card.vfs):
        yield Obstacle.of(device, entry_refusals.MDEV_AS_VGPU.reason())
    else:
        lacks_vfs = pf.is_pf and sriov.total(pf.address) and not card.vfs
        yield Obstacle.of(
            device,
            entry_refusals.NO_MDEVS.reason(
                driver=pf.driver or 'no driver',
                vfs=', and has no VFs' if lacks_vfs else '',
                address=pf.address,
            ),
        )


def _of_kind(card: Card) -> Iterator[Obstacle]:
    if not card.is_held:
        yield from of_kind(card.spec, card.function)


def of_kind(
    spec: device_spec.Spec, function: pci.Function | None
) -> Iterator[Obstacle]:
    """Say why an entry with the key of one kind offers nothing.

    :param function: the one that it offers nothing of; None: it names none
        that exists
    """
    if spec.of_kind is not None:
        rules = kinds.module(spec.of_kind.kind, 'rules')
        yield from rules.nothing_of(spec, function)


# A device file and a namespace are named by their entries themselves.
_LOOKS: dict[Part, Callable[[Card], Iterator[Obstacle]]] = {
    Part.VF: _vfs,
    Part.REGION: _regions,
    Part.VGPU: _vgpus,
    Part.MDEV: _mdevs,
    Part.OF_KIND: _of_kind,
}


def why_nothing(card: Card) -> Obstacle | None:
    """Say why an entry offers nothing of a card; None if it offers some."""
    asked = spec_parts.asked_for(card.spec)
    looks = [_LOOKS[part] for part in Part if part in asked] or [_whole]
    found = [next(look(card), None) for look in looks]
    return None if None in found else found[0]
