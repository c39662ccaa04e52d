# SPDX-License-Identifier: Apache-2.0

"""The VFs that have their vGPU type before an instance requests one.

The type is that of the entry of device_spec. An instance that gets such a VF
leaves the type there, as it leaves one that an operator has set.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
import functools
import logging

from os_acc import exception
from os_acc import host as host_module
from os_acc.claims import allocated
from os_acc.desired import ahead
from os_acc.desired import documents
from os_acc.desired import offered
from os_acc.desired import steps
from os_acc.journal import desired as rows
from os_acc.kernel import pci
from os_acc.kernel import vgpu
from os_acc.kernel import vgpu_cards
from os_acc.kinds.vgpu import rules
from os_acc.kinds.vgpu.driver import driver as vgpu_driver
from os_acc.refusals.reasons import Category
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)

PART = 'vgpus'
_NONE = 'no vGPU type'
_LASTING = (Category.NOT_OFFERED, Category.UNSUITABLE)


def find(
    host: host_module.Host,
    document: documents.Document,
    before: rows.Desired | None,
) -> Iterator[steps.Step]:
    """A step for each VF of the document, and of the one before."""
    wanted, earlier, _ = ahead.compare(PART, document, before)
    # First what goes: a card may have vGPUs of one size only.
    for vf in sorted({*earlier} - {*wanted}):
        now = vgpu.current(vf)
        users = functools.partial(_users, host, vf)
        # The type that is set for a VAN goes with it.
        if not now or _users(host, vf, preset=False):
            yield steps.Step(PART, vf, _text(now), _text(now))
            continue
        act = functools.partial(_clear, host, vf)
        yield steps.Step(PART, vf, _text(now), _NONE, act, users)
    if not wanted:
        return
    specs = offered.specs_after(host.conf, document)
    for vf in sorted(wanted):
        now = vgpu.current(vf)
        right = bool(now) and _wanted(specs, vf) == now
        other = bool(now) and not right
        users = functools.partial(_users, host, vf, preset=other)
        if right and not users():
            yield steps.Step(PART, vf, _text(now), _text(now))
            continue
        change = functools.partial(_set, host, vf, earlier)
        after, why = 'the type of its entry', _fault(specs, vf)
        yield steps.Step(PART, vf, _text(now), after, change, users, why)


def _fault(specs: device_spec.Specs, vf: str) -> str | None:
    """Why a VF cannot have a type, whoever has the card."""
    try:
        function = pci.get(vf)
        spec = specs.check(function)
        card = vgpu_cards.Card.read(pci.get(function.parent))
        # A card with vGPUs may not list the types that it can have otherwise.
        if vf in card.current and any(card.current.values()):
            return None
        for obstacle in rules.vgpu_obstacles(function, spec, card):
            if obstacle.category in _LASTING:
                return exception.describe(obstacle.error())
    except Exception as err:
        return exception.describe(err)
    return None


def _text(number: int | None) -> str:
    return f'vGPU type {number}' if number else _NONE


def _wanted(specs: device_spec.Specs, vf: str) -> int | None:
    """The id of the type of a VF's entry; None: it has none, or an unknown."""
    function = pci.find(vf)
    spec = None if function is None else specs.find(function)
    if function is None or spec is None or not spec.vgpu_type:
        return None
    card = vgpu_cards.Card.read(pci.get(function.parent))
    return card.number_of(spec.vgpu_type)


def _set(host: host_module.Host, vf: str, earlier: Collection[str]) -> None:
    """Set the type of a VF that nobody has."""
    from os_acc.privileged.mdev import devices as privileged

    function = pci.get(vf)
    spec = device_spec.load(host.conf).check(function)
    with host.locks.device(function.parent):
        ahead.refuse(f'VF {vf}', _users(host, vf, preset=False))
        card = vgpu_cards.Card.read(pci.get(function.parent))
        for each, now in card.current.items():
            if now and each in earlier:
                _make_room(host, each, now)
        card = vgpu_cards.Card.read(pci.get(function.parent))
        holders = ahead.holders(host)
        number = card.number_of(spec.vgpu_type or '')
        for obstacle in rules.vgpu_obstacles(function, spec, card, holders):
            error = obstacle.error()
            if (
                isinstance(error, exception.DeviceNotFound)
                and card.current.get(vf) == vgpu.NONE
                and number is not None
            ):
                # The card may have this size once they have gone.
                ahead.refuse(
                    f'VF {vf}',
                    [u for e in card.current for u in _users(host, e)],
                )
            raise error
        if number is None or card.current[vf] == number:
            return  # vgpu_obstacles() has found another type, or none
        with host.acting_for():
            privileged.set_vgpu_type(
                vf, number, host.conf.os_acc.device_timeout, for_van=False
            )


def _clear(host: host_module.Host, vf: str) -> bool:
    """Clear the type of a VF that os-acc has set ahead of time.

    :returns: False: it has none, or keeps it
    """
    with host.locks.device(pci.get(vf).parent):
        ahead.refuse(f'VF {vf}', _users(host, vf))
        number = vgpu.current(vf)
        return number is not None and _clear_type(host, vf, number)


def _make_room(host: host_module.Host, vf: str, now: int) -> None:
    """Clear a type that is not that of the VF's entry any more.

    A card may have vGPUs of one size only: so all of them go before the first
    of the new type is set.
    """
    wanted = _wanted(device_spec.load(host.conf), vf)
    if wanted not in (None, now) and not _users(host, vf):
        _clear_type(host, vf, now)


def _clear_type(host: host_module.Host, vf: str, number: int) -> bool:
    """Clear the type of a VF. The lock of its card is held.

    :returns: False: it has none, or others have set it, and it stays
    """
    from os_acc.privileged.mdev import devices as privileged

    if number == vgpu.NONE:
        return False
    with host.acting_for():
        done = privileged.clear_vgpu_type(
            vf,
            number,
            host.conf.os_acc.release_timeout,
            host.conf.os_acc.device_timeout,
        )
    if not done:
        LOG.warning('VF %s keeps vGPU type %d: others have set it', vf, number)
    return done


def _users(host: host_module.Host, vf: str, preset: bool = True) -> list[str]:
    """Say which VAN has a VF.

    :param preset: False: only a VAN whose vGPU type goes with it
    """
    found = allocated.Holders(host.journal.handles()).of_handle(f'pci/{vf}')
    # The type of a VAN whose row is unreadable counts as set ahead of time.
    if found is None or not (
        preset
        or any(
            van.uuid == found.van_uuid
            and vgpu_driver.PRESET not in van.driver_data
            for van in host.journal.vans()
        )
    ):
        return []
    return ahead.clauses([found])
