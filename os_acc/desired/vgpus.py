# SPDX-License-Identifier: Apache-2.0

"""The VFs that have their vGPU type before an instance requests one.

The type is that of the entry of device_spec. An instance that gets such a VF
leaves the type there, as it leaves one that an operator has set.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import functools
import logging

from os_acc import exception
from os_acc import health
from os_acc import host as host_module
from os_acc.claims import allocated
from os_acc.desired import documents
from os_acc.desired import offered
from os_acc.desired import steps
from os_acc.kernel import pci
from os_acc.kernel import vgpu
from os_acc.kernel import vgpu_cards
from os_acc.kinds.vgpu import rules
from os_acc.kinds.vgpu.driver import driver as vgpu_driver
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)

PART = 'vgpus'
_NONE = 'no vGPU type'


def find(
    host: host_module.Host,
    document: documents.Document,
    earlier: Iterable[str],
) -> Iterator[steps.Step]:
    """A step for each VF of the document, and of the one before.

    :param earlier: the VFs of the earlier document
    """
    vfs = sorted({*document.vgpus, *earlier})
    if not vfs:
        return
    specs = offered.specs_after(host.conf, document)
    for vf in vfs:
        now = vgpu.current(vf)
        before = f'vGPU type {now}' if now else _NONE
        if vf not in document.vgpus:
            users = functools.partial(_users, host, vf)
            act = functools.partial(_clear, host, vf) if now else None
            yield steps.Step(PART, vf, before, _NONE, act, users)
            continue
        # A type that was set for a VAN is cleared with it.
        users = functools.partial(_users, host, vf, preset=False)
        if _is_right(specs, vf, now) and not users():
            yield steps.Step(PART, vf, before, before)
            continue
        act = functools.partial(_set, host, vf)
        yield steps.Step(PART, vf, before, 'the type of its entry', act, users)


def _is_right(specs: device_spec.Specs, vf: str, now: int | None) -> bool:
    """Whether a VF has the type of its entry."""
    function = pci.find(vf)
    spec = None if function is None else specs.find(function)
    if function is None or spec is None or not now or not spec.vgpu_type:
        return False
    card = vgpu_cards.Card.read(pci.get(function.parent))
    return card.number_of(spec.vgpu_type) == now


def _set(host: host_module.Host, vf: str) -> None:
    """Set the type of a VF that nobody has.

    :raises DeviceBusy, DeviceError, DeviceNotFound: if that is impossible
    """
    from os_acc.privileged.mdev import devices as privileged

    function = pci.get(vf)
    spec = device_spec.load(host.conf).check(function)
    with host.locks.device(function.parent):
        _refuse(vf, _users(host, vf, preset=False))
        card = vgpu_cards.Card.read(pci.get(function.parent))
        holders = allocated.Holders(
            host.journal.handles(), unhealthy=health.View(host.journal)
        )
        for obstacle in rules.vgpu_obstacles(function, spec, holders, card):
            raise obstacle.error()
        number = card.number_of(spec.vgpu_type or '')
        if number is None or card.current[vf] == number:
            return  # vgpu_obstacles() has found another type, or none
        with host.acting_for():
            privileged.set_vgpu_type(
                vf, number, host.conf.os_acc.device_timeout, given=False
            )


def _clear(host: host_module.Host, vf: str) -> None:
    """Clear the type of a VF that os-acc has set ahead of time."""
    from os_acc.privileged.mdev import devices as privileged

    with host.locks.device(pci.get(vf).parent):
        _refuse(vf, _users(host, vf))
        number = vgpu.current(vf)
        if not number:
            return
        with host.acting_for():
            done = privileged.clear_vgpu_type(
                vf,
                number,
                host.conf.os_acc.release_timeout,
                host.conf.os_acc.device_timeout,
            )
    if not done:
        LOG.warning('VF %s keeps vGPU type %d: others have set it', vf, number)


def _users(host: host_module.Host, vf: str, preset: bool = True) -> list[str]:
    """Say which VAN has a VF.

    :param preset: False: only a VAN whose vGPU type is cleared with it
    """
    return [
        f'instance {van.instance_uuid} has {van.handle.identity} '
        f'(VAN {van.uuid})'
        for van in host.journal.vans()
        if van.handle is not None
        and van.handle.identity == f'pci/{vf}'
        and (preset or vgpu_driver.PRESET not in van.driver_data)
    ]


def _refuse(vf: str, users: list[str]) -> None:
    if users:
        raise exception.DeviceBusy(device=f'VF {vf}', reason='; '.join(users))
