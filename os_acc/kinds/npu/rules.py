# SPDX-License-Identifier: Apache-2.0

"""Whether an accelerator of the class accel may be taken now; if not, why.

os_acc.claims says, for every kind, who else has it. Only root sees who has it
open: see os_acc.privileged.npu.
"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.availability import functions as availability
from os_acc.claims import vans
from os_acc.kernel import accounts
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.kinds.npu import entry as npu_entry
from os_acc.kinds.npu import facts as npu_facts
from os_acc.kinds.npu import refusals as npu_refusals
from os_acc.refusals import reasons
from os_acc.refusals import refusals
from os_acc.spec import device_spec
from os_acc.spec import entry as spec_entry

Obstacle = availability.Obstacle


def settings_of(spec: device_spec.Spec | None) -> npu_entry.Npu | None:
    """What an entry says about NPUs; None if it offers none."""
    found: npu_entry.Npu | None = None
    if spec is not None:
        found = spec.settings_of(npu_entry.KEY)
    return found


def label(address: str) -> str:
    """What errors call an accelerator."""
    return f'NPU {address}'


def nothing_of(
    spec: device_spec.Spec, function: pci.Function | None
) -> Iterator[Obstacle]:
    """Say why an entry with npu offers nothing.

    :param function: of this one; None: it names no PCI function
    """
    if function is not None:
        for reason in _unsuitable(function, settings_of(spec)):
            yield Obstacle.of(label(function.address), reason)
        return
    for each in npu_facts.others():
        if spec.matches_parent(each.device):
            reason = npu_refusals.NPU_NO_PCI.reason(
                device=each.device, path=each.path
            )
            yield Obstacle.of(f'NPU {each.device}', reason)


def obstacles(
    function: pci.Function,
    settings: npu_entry.Npu | None,
    holders: vans.Vans | None = None,
    held: bool = False,
    as_root: bool = False,
) -> Iterator[Obstacle]:
    """Say why an accelerator cannot be given to a VAN.

    :param settings: of its entry of device_spec; None: it is not offered
    :param holders: what the journal knows; None if it is unavailable
    :param held: the VAN already has it, so that device_spec and the device's
        health do not matter
    :param as_root: this process is root
    :returns: all obstacles, the most important one first
    """
    address = function.address
    known = vans.Vans() if holders is None else holders
    if settings is None and not held:
        yield Obstacle.of(label(address), _not_offered(address))
    for reason in _unsuitable(function, settings):
        yield Obstacle.of(label(address), reason)
    if not held:
        # It also says whether the function has failed.
        yield from availability.reserved_obstacles(address, known)
    yield from availability.answer_obstacles(function)
    yield from availability.host_obstacles(function, as_root=as_root)


def _not_offered(address: str) -> reasons.Reason:
    entry = {
        npu_entry.KEY: {},
        'address': address,
        **spec_entry.ids_of(address),
    }
    return npu_refusals.NOT_FOR_NPU.reason(entry=spec_entry.line(entry))


def _unsuitable(
    function: pci.Function, settings: npu_entry.Npu | None
) -> Iterator[reasons.Reason]:
    if function.is_vf:
        yield npu_refusals.NPU_VF.reason(pf=function.parent)
    if function.is_pf and (number := sriov.count(function.address)):
        yield refusals.HAS_VFS.reason(number=number)
    if not npu_facts.files_of(function.address):
        driver = function.driver or 'no driver'
        yield npu_refusals.NPU_NO_DRIVER.reason(driver=driver)
    for kind, name in (
        ('user', settings.owner if settings else None),
        ('group', settings.group if settings else None),
    ):
        if name is not None and accounts.number_of(kind, name) is None:
            yield npu_refusals.NPU_NO_ACCOUNT.reason(kind=kind, name=name)
