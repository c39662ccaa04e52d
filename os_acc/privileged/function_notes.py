# SPDX-License-Identifier: Apache-2.0

"""The notes of PCI functions and of their parts: VFs, vGPUs and mdevs."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import itertools
from typing import Annotated
from typing import Any
from typing import TypeVar

from os_acc.claims import nodes
from os_acc.deadlines import waiting
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.kinds.fpga import ids as fpga_ids
from os_acc.privileged import noted
from os_acc.privileged import notes
from os_acc.privileged import operation_lock
from os_acc.privileged import store
from os_acc.spec import device_spec

_T = TypeVar('_T')


@dataclasses.dataclass(frozen=True)
class Function(store.Said):
    """What the notes of a function and of its VFs say.

    :ivar device: the PF of a VF, or the function itself; None: an earlier
        version did not note that
    :ivar vfio_driver: the driver to which a function that is given out whole
        is bound
    :ivar host_driver: the same, for a service of the host itself
    :ivar command_empties: as its entry of device_spec said
    :ivar drive: which NVMe drive it is, see kernel.nvme; None: unknown
    :ivar trusted: whether a VF may stay trusted
    :ivar number: the type of a vGPU, if os-acc sets it
    :ivar numbers: how many VFs a PF has had when VANs got some
    """

    device: str | None = None
    vfio_driver: str | None = None
    host_driver: str | None = None
    command_empties: store.Flag = False
    drive: str | None = None
    trusted: store.Flag = False
    number: int | None = None
    numbers: Annotated[tuple[int, ...], tuple] = ()


def of_function(kind: str, function: pci.Function) -> Function | None:
    """What the note of a function says; None if it is not given out.

    After a change of the firmware, another function of a card can be where a
    VF was, even with its ids. The note of the VF is not about that one.
    """
    known = notes.said(Function, kind, function.address, function.ids)
    if known is None or known.device not in (None, function.parent):
        return None
    return known


def has(function: pci.Function) -> bool:
    """Whether a function is given out itself, as a whole or as a vGPU."""
    return any(of_function(kind, function) for kind in (notes.PCI, notes.VGPU))


def has_part(function: pci.Function) -> bool:
    """Whether a function is given out, or VFs of it are."""
    return (
        has(function)
        or notes.is_noted(notes.VFS, function.address, function.ids)
        or has_vf(function)
    )


def has_vf(pf: pci.Function) -> bool:
    """Whether a VF of a PF is given out."""
    vfs = map(pci.find, pf.vf_addresses)
    return any(vf is not None and has(vf) for vf in vfs)


def vfs_of(pf: pci.Function) -> frozenset[int]:
    """How many VFs of a PF VANs had when they got one; empty: none has."""
    known = notes.said(Function, notes.VFS, pf.address, pf.ids)
    return frozenset(() if known is None else known.numbers)


def note_function(
    function: pci.Function, spec: device_spec.Spec | None = None, **more: Any
) -> None:
    """Note that a function is given out as a whole. See notes.note()."""
    values = {**of_whole(notes.PCI, function, spec).values, **more}
    notes.note(notes.PCI, function.address, **values)


def renew(function: pci.Function) -> bool:
    """Note who has a function now, if it is given out already."""
    for kind in (notes.PCI, notes.VGPU):
        if notes.is_noted(kind, function.address, function.ids):
            notes.note(kind, function.address, function.ids)
            return True
    return False


def note_trusted(vf: pci.Function) -> None:
    """Note that a VF that is given out as a whole may stay trusted."""
    if of_function(notes.PCI, vf) is not None:
        note_function(vf, trusted=True)


def note_vfs(pf: pci.Function, number: int) -> None:
    """Note that VANs get VFs of a PF, and how many VFs the PF has."""
    notes.note(
        notes.VFS,
        pf.address,
        pf.ids,
        device=pf.address,
        numbers=sorted({*vfs_of(pf), number}),
    )


def note_vgpu(vf: pci.Function, number: int | None) -> None:
    """Note that a VF is given out as a vGPU.

    :param number: the vGPU type that os-acc may set again after a reboot;
        None: the operator sets it
    """
    notes.note(notes.VGPU, vf.address, vf.ids, device=vf.parent, number=number)


def of_whole(
    kind: str, function: pci.Function, spec: device_spec.Spec | None = None
) -> noted.Note:
    """The note that a VAN has of a function: PCI, or VGPU."""
    values: dict[str, Any] = {'what': function.ids, 'device': function.parent}
    if fpga_ids.is_fpga(function, spec):
        values['fpga'] = True
    return notes.made(kind, function.address, values)


def of_mdev(device: mdev.Mdev) -> noted.Note:
    """The note that a VAN has of a mediated device."""
    values = {'what': mdev_text(device), 'device': device.parent}
    return notes.made(notes.MDEV, device.uuid, values)


def note_mdev(device: mdev.Mdev) -> None:
    """Note that a mediated device is given out. See notes.note()."""
    notes.note(
        notes.MDEV, device.uuid, mdev_text(device), device=device.parent
    )


def mdev_text(device: mdev.Mdev) -> str:
    """What distinguishes mediated devices with the same UUID."""
    return f'{device.parent} {device.type}'


@contextlib.contextmanager
def locked(function: pci.Function, seconds: float) -> Iterator[int]:
    """Hold the operation lock of a function that no other VAN has.

    Each privileged call that changes a function does so with this lock.

    :raises DeviceBusy: if another VAN has it, or the PF of a VF
    """
    with operation_lock.held(function.path, seconds) as lock:
        check_function(function)
        yield lock


def change(
    function: pci.Function,
    seconds: float,
    what: str,
    act: Callable[[waiting.Deadline], _T],
) -> _T:
    """Do operation_lock.within() with a function that is locked()."""
    lock = functools.partial(locked, function)
    return operation_lock.within(lock, seconds, what, act)


def check_function(function: pci.Function) -> None:
    """Check that no other VAN has a function, or the PF of a VF."""
    for found in _of_whole(function):
        found.refuse()


def rule() -> noted.Rule:
    """The rule about the notes of others: for why_not()."""
    return noted.Rule(notes.of_others())


def why_not(
    function: pci.Function, others: noted.Rule | None = None
) -> str | None:
    """Say which other VAN has a function, a part of it, or the PF of a VF.

    :param others: rule(); pass it when asking about many functions
    :returns: a clause for an error; None if no other VAN has any of that
    """
    for found in _sharing(function, rule() if others is None else others):
        return found.note.why_not(found.both)
    return None


def needs_vfs(pf: pci.Function) -> list[str]:
    """Say which other VANs have VFs of a PF: a clause for each VF.

    The journal of the caller does not know of them, and while their guest is
    off, such a VF may be bound to no driver.
    """
    others = rule()
    return [
        f'VF {vf.address}: {found.note.why_not()}'
        for vf in map(pci.find, pf.vf_addresses)
        if vf is not None
        for found in itertools.islice(_sharing(vf, others, pf.address), 1)
    ]


def _sharing(
    function: pci.Function, others: noted.Rule, but_in: str = ''
) -> Iterator[noted.InTheWay]:
    """The notes of what shares hardware with a function.

    Another function of its IOMMU group or of its FPGA does not.

    :param but_in: the device in which sharing does not matter: the PF of a VF
    """
    whole = {'what': function.ids, 'device': function.parent}
    for found in others.in_the_way(
        notes.made(notes.PCI, function.address, whole),
        lambda node: not nodes.is_beside(node) and node.name != but_in,
    ):
        if notes.is_current(found.note):
            yield found


def _of_whole(function: pci.Function) -> Iterator[noted.Note]:
    """The notes of a function as a whole, and those of the PF of a VF."""
    for address in dict.fromkeys((function.address, function.parent)):
        for kind in (notes.PCI, notes.VGPU):
            found = notes.find(kind, address)
            if found is not None and notes.is_current(found):
                yield found
