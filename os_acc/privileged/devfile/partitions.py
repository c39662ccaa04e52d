# SPDX-License-Identifier: Apache-2.0

"""Setting the compute partitions of AMD GPUs, as root.

The mode is written to current_compute_partition of the card:
amdgpu_gfx_set_compute_partition() in drivers/gpu/drm/amd/amdgpu/amdgpu_gfx.c.
The kernel refuses this while KFD has a process. It does not look who has a
render node open; this module does.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import errno
import logging

from os_acc import exception
from os_acc.kernel import amd_partitions
from os_acc.kernel import device_files
from os_acc.kernel import open_files
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kinds.devfile import rules as file_availability
from os_acc.privileged import arguments
from os_acc.privileged import context
from os_acc.privileged import device_users
from os_acc.privileged import function_notes
from os_acc.privileged import offers
from os_acc.privileged import undo_log


@dataclasses.dataclass(frozen=True)
class Partitions:
    """The compute partitions of an AMD GPU, which were changed.

    :ivar ids: vendor:product
    :ivar before: its mode before
    :ivar mode: the mode that was to be set
    """

    ids: str
    before: str
    mode: str


partitions = undo_log.Records('partitions', Partitions)

LOG = logging.getLogger(__name__)


@context.entry
def set_mode(card: str, mode: str, seconds: float) -> bool:
    """Set the mode of a card. let_go() restores the mode that it had.

    :returns: False: it had this mode already
    :raises DeviceNotFound: if there is no such function, or device_spec offers
        no device file of it
    :raises DeviceBusy, DeviceInUseByHost: if somebody uses the card
    :raises DeviceError: if it cannot have this mode, or the kernel refuses
    """
    return _locked(card, seconds, lambda found: _set_mode(found, mode))


@context.entry
def let_go(card: str, seconds: float) -> bool:
    """Restore the mode that a card had before set_mode().

    A mode that somebody else has set since stays.

    :returns: False: there was nothing to do
    """
    return _locked(card, seconds, _let_go)


@context.entry
def restores(card: str) -> bool:
    """Say whether let_go() would change the mode of a card."""
    function = arguments.there(card)
    return _to_restore(function, partitions.of(function)) is not None


def _locked(
    card: str, seconds: float, act: Callable[[pci.Function], bool]
) -> bool:
    function = arguments.there(card)
    return function_notes.change(
        function,
        arguments.seconds(seconds),
        f'the compute partitions of PCI function {card} to be set',
        lambda deadline: act(function),
    )


def _set_mode(function: pci.Function, mode: str) -> bool:
    card = function.address
    for obstacle in file_availability.partition_obstacles(
        card, mode, offers.specs()
    ):
        raise obstacle.error()
    if (now := amd_partitions.mode(card)) in (None, mode):
        return False
    known = partitions.of(function)
    before = now if known is None else known.before
    _change(function, mode, Partitions(function.ids, before, mode))
    return True


def _let_go(function: pci.Function) -> bool:
    known = partitions.of(function)
    if known is None:
        return False
    now = amd_partitions.mode(function.address)
    if (before := _to_restore(function, known)) is not None:
        _change(function, before, known)
    elif now not in (known.before, known.mode):
        LOG.warning(
            'PCI function %s stays in the mode %s, which somebody else has '
            'set',
            function.address,
            now,
        )
    partitions.delete(function.address)
    return before is not None


def _to_restore(
    function: pci.Function, known: Partitions | None
) -> str | None:
    """The mode that let_go() would set; None: it would set none."""
    if known is None or known.before == known.mode:
        return None
    is_ours = amd_partitions.mode(function.address) == known.mode
    possible = known.before in amd_partitions.modes(function.address)
    return known.before if is_ours and possible else None


def _change(function: pci.Function, mode: str, record: Partitions) -> None:
    """Write a mode to a card that nobody uses.

    :param record: what let_go() needs; it is stored first
    """
    card, before = function.address, partitions.of(function)
    if users := device_users.open_by([function]):
        raise _busy(card, '; '.join(users))
    partitions.write(card, record)
    now = amd_partitions.mode(card)
    try:
        _write(card, mode)
    except exception.ExceptionBase:
        if amd_partitions.mode(card) == now:
            if before is None:
                partitions.delete(card)
            else:
                partitions.write(card, before)
        raise
    LOG.info('PCI function %s: %s', card, mode)


def _write(card: str, mode: str) -> None:
    about = f'PCI function {card}'
    try:
        sysfs.write(f'{pci.directory(card)}/{amd_partitions.FILE}', mode)
    except OSError as err:
        if err.errno == errno.EBUSY:
            why = f'the kernel refuses the mode {mode} ({err.strerror})'
            raise _busy(card, '; '.join([why, *_computing()])) from err
        raise exception.DeviceError(
            device=about,
            reason=f'{amd_partitions.FILE} {mode}: {err.strerror}',
        ) from err
    if (now := amd_partitions.mode(card)) != mode:
        # The driver of a VF accepts a mode, and ignores it.
        raise exception.DeviceError(
            device=about, reason=f'its driver has left it in the mode {now}'
        )


def _computing() -> list[str]:
    """Say which processes use KFD, on any card."""
    kfd = device_files.read(f'{sysfs.DEV}/kfd', f'{sysfs.SYS}/class/kfd/kfd')
    return [] if kfd is None else open_files.users_of([kfd])


def _busy(card: str, reason: str) -> exception.DeviceBusy:
    return exception.DeviceBusy(device=f'PCI function {card}', reason=reason)
