# SPDX-License-Identifier: Apache-2.0

"""What the driver nvidia_vgpu reports of cards and their VFs."""

from __future__ import annotations

from collections.abc import Iterator

import os_resource_classes as resource_classes

from os_acc import finding
from os_acc import objects
from os_acc.availability import functions as availability
from os_acc.claims import allocated
from os_acc.drivers import inventory
from os_acc.drivers import pci_functions
from os_acc.kernel import pci
from os_acc.kernel import vgpu
from os_acc.kernel import vgpu_cards
from os_acc.kinds.vgpu import refusals as vgpu_refusals
from os_acc.kinds.vgpu import rules as vgpu_availability
from os_acc.spec import device_spec


def names(spec: device_spec.Spec) -> inventory.Names:
    """Name the vGPUs that an entry offers as Placement does."""
    kind = [pci_functions.custom(f'VGPU_{spec.vgpu_type}')]
    return inventory.Names(
        str(spec.resource_class or resource_classes.VGPU),
        [*spec.traits, *(kind if spec.vgpu_type else [])],
    )


def handles(
    vfs: list[pci.Function],
    spec: device_spec.Spec,
    card: vgpu_cards.Card,
    holders: allocated.Holders,
) -> list[objects.DeviceHandleInfo]:
    """The handles of a card: no more than vGPUs of the type fit into it.

    :param vfs: the VFs of the card that the entry of device_spec offers
    """
    number = card.number_of(spec.vgpu_type or '')
    left = places(spec, card)
    room = 0
    if number is not None:
        room = card.left(number, spec.max_instances)
    handles = []
    for vf in vfs:
        holder = holders.of_function(vf.address)
        unset = card.current.get(vf.address) == vgpu.NONE
        if unset and holder is None and spec.vgpu_type is not None:
            if left <= 0:
                continue
            left -= 1
        obstacles = list(
            vgpu_availability.vgpu_obstacles(vf, spec, card, holders)
        )
        if unset and not obstacles:
            if room <= 0:
                obstacles.append(_no_place(vf))
            room -= 1
        handles.append(
            inventory.handle(
                objects.PCIHandle(address=vf.address, managed=False),
                obstacles,
                holder,
            )
        )
    return handles


def places(spec: device_spec.Spec, card: vgpu_cards.Card) -> int:
    """How many more vGPUs of a type a card could have, if it had no others.

    If the id of the type is unknown, all vGPUs of the card count as of that
    type.
    """
    number = card.number_of(spec.vgpu_type or '')
    return card.places(number, spec.max_instances) - sum(
        kind != vgpu.NONE and number in (kind, None)
        for kind in card.current.values()
    )


def _no_place(vf: pci.Function) -> availability.Obstacle:
    return availability.Obstacle.of(
        f'VF {vf.address}', vgpu_refusals.NO_ROOM.reason()
    )


def unlimited(
    pf: str, spec: device_spec.Spec, card: vgpu_cards.Card
) -> Iterator[finding.Finding]:
    """Report a card if it is unknown how many vGPUs fit into it."""
    number = card.number_of(spec.vgpu_type or '')
    if card.maximum(number, spec.max_instances) is None:
        yield finding.Finding(
            f'GPU {pf}',
            finding.WARNING,
            f'how many vGPUs of type {spec.vgpu_type} fit into it is unknown: '
            f'it is reported with one for each of its {len(card.current)} VFs',
            'set max_instances beside vgpu_type in device_spec, to the number '
            'that nvidia-smi vgpu -s -v shows as Max Instances',
        )


def no_room(
    vf: pci.Function, spec: device_spec.Spec, card: vgpu_cards.Card
) -> Iterator[finding.Finding]:
    """Report a VF that cannot have a vGPU, though its card is not full."""
    for obstacle in vgpu_availability.vgpu_obstacles(vf, spec, card):
        if obstacle.category is not availability.Category.NO_CAPACITY:
            yield finding.Finding(
                f'VF {vf.address}',
                finding.WARNING,
                f'it cannot have a vGPU now: {obstacle.text}',
                obstacle.remedy,
            )
