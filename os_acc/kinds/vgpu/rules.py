# SPDX-License-Identifier: Apache-2.0

"""Whether a VF can be given out with an NVIDIA vGPU type."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.availability import functions as availability
from os_acc.claims import vans
from os_acc.kernel import pci
from os_acc.kernel import vgpu
from os_acc.kernel import vgpu_cards
from os_acc.kinds.vgpu import refusals as vgpu_refusals
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts

Obstacle = availability.Obstacle


def vgpu_obstacles(
    vf: pci.Function,
    spec: device_spec.Spec,
    card: vgpu_cards.Card,
    holders: vans.Vans | None = None,
) -> Iterator[Obstacle]:
    """Say why a VF cannot be given out with the vGPU type of its entry.

    The type may be set already, by the operator.

    :param spec: the entry of device_spec for it
    :param card: its PF
    :param holders: the VANs of the journal, and who wants the VF
    """
    address, device = vf.address, f'VF {vf.address}'
    if not spec_parts.offers_vgpus(spec):
        yield Obstacle.of(device, vgpu_refusals.NO_VGPU_TYPE.reason())
        return
    now = card.current.get(address)
    if now is None:
        yield Obstacle.of(device, vgpu_refusals.NO_VGPU_FILE.reason())
        return
    # A Holders without VANs is falsy, but still knows what has failed.
    holders = vans.Vans() if holders is None else holders
    if not holders.has(holders.taker.van_uuid, address):
        yield from availability.unhealthy_obstacles(vf, holders)
    for each in availability.in_the_way(vf, holders):
        yield Obstacle.of(device, each.reason)
    wanted = spec.vgpu_type
    if now != vgpu.NONE:
        if wanted is not None and card.number_of(wanted) != now:
            reason = vgpu_refusals.OTHER_VGPU_TYPE.reason(
                present=vgpu_cards.label(now), wanted=wanted
            )
            yield Obstacle.of(device, reason)
    elif wanted is None:
        yield Obstacle.of(device, vgpu_refusals.VGPU_TYPE_UNSET.reason())
    else:
        yield from _vgpu_capacity(address, wanted, spec.max_instances, card)


def _vgpu_capacity(
    address: str, wanted: str, limit: int | None, card: vgpu_cards.Card
) -> Iterator[Obstacle]:
    device = f'vGPU type {wanted} on VF {address}'
    number = card.number_of(wanted)
    if number is None or number not in card.possible[address]:
        types = vgpu_cards.types_text(address)
        yield Obstacle.of(device, vgpu_refusals.VGPU_TYPES.reason(types=types))
    elif not card.left(number, limit):
        places = card.places(number, limit)
        yield Obstacle.of(
            device, vgpu_refusals.VGPUS_FULL.reason(places=places)
        )
