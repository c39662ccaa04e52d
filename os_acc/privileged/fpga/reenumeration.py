# SPDX-License-Identifier: Apache-2.0

"""Removing a card from the PCI bus and finding it again, as root."""

from __future__ import annotations

from collections.abc import Iterable
import contextlib
import dataclasses
import os

from os_acc import exception
from os_acc.availability import host_use
from os_acc.deadlines import waiting
from os_acc.kernel import chip as chips
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.kernel import sysfs
from os_acc.privileged import arguments
from os_acc.privileged import context
from os_acc.privileged import device_users
from os_acc.privileged import offers
from os_acc.privileged import operation_lock
from os_acc.privileged import undo_log
from os_acc.privileged.fpga import turn
from os_acc.privileged.kernel import vf_number


@dataclasses.dataclass(frozen=True)
class Removal:
    """A chip whose functions are being removed from the bus.

    :ivar buses: the buses to scan, so that its functions are found again
    """

    buses: list[str]


removals = undo_log.Records('removals', Removal)


@context.entry
def reenumerate(address: str, seconds: float) -> None:
    """Remove all functions of a programmed chip, and find them again.

    Its VFs are removed first. Only the buses of the chip are scanned.

    :param address: of a function of the chip, not of a VF
    :raises InvalidRequest, DeviceNotFound: if device_spec does not offer it as
        a device that is programmed
    :raises DeviceBusy: if a guest or a process has one of the functions open,
        or a command that programs the chip has not ended
    :raises DeviceInUseByHost: if the host uses one
    """
    function = arguments.offered(address)
    if function.is_vf:
        arguments.refuse('address', address, 'a device that is not a VF')
    if offers.specs().held(function).programmer is None:
        arguments.refuse('address', address, 'a device that is programmed')
    seconds = arguments.seconds(seconds)
    deadline = waiting.Deadline(seconds)

    def act() -> None:
        with contextlib.ExitStack() as stack:
            chip = chips.of(function)
            for each in chip.parents:
                stack.enter_context(
                    operation_lock.held(
                        pci.directory(each), deadline.left(0.5)
                    )
                )
                turn.lock(stack, each, each)
            _check_unused(address, chip)
            _remove_and_find(chip)

    waiting.at_most(
        act, seconds, f'{address} to be removed from the bus and found again'
    )


@context.entry
def recover() -> bool:
    """Find the chips whose process was killed after it had removed them.

    :returns: whether none is left; a process that has not ended keeps its chip
    :raises DeviceError: if the kernel refuses. The others are found
    """
    failure, done = None, True
    for address in removals.names():
        try:
            with contextlib.ExitStack() as stack:
                turn.lock(stack, address, address)
                known = removals.read(address)
                if known is not None:
                    _scan(known.buses, address)
                removals.delete(address)
        except exception.DeviceBusy:
            done = False  # its process has not ended
        except exception.ExceptionBase as err:
            failure = err
    if failure is not None:
        raise failure
    return done


def _remove_and_find(chip: chips.Chip) -> None:
    buses = sorted({each.rpartition(':')[0] for each in chip.parents})
    removals.write(chip.address, Removal(buses))
    try:
        for each in chip.parents:
            if sriov.count(each):
                vf_number.remove(each, None)
        for each in chip.parents:
            _write(f'{pci.directory(each)}/remove', each)
    finally:
        # Also if the kernel refuses to remove one of several functions.
        _scan(buses, chip.address)
    removals.delete(chip.address)


def _scan(buses: Iterable[str], address: str) -> None:
    for bus in buses:
        _write(f'{sysfs.SYS}/class/pci_bus/{bus}/rescan', address)


def _check_unused(address: str, chip: chips.Chip) -> None:
    functions = [
        each for each in map(pci.find, chip.functions) if each is not None
    ]
    host_use.check_unused(functions)
    if users := device_users.open_by(functions):
        raise exception.DeviceBusy(device=address, reason='; '.join(users))


def _write(path: str, address: str) -> None:
    try:
        sysfs.write(path, '1')
    except OSError as err:
        raise exception.DeviceError(
            device=f'PCI function {address}',
            reason=f'{os.path.basename(path)}: {err.strerror}',
        ) from err
