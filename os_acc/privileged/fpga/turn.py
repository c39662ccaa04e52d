# SPDX-License-Identifier: Apache-2.0

"""What every way of programming checks as root, and the lock that it holds."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import fcntl
import re

from os_acc import exception
from os_acc.kernel import chip
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.privileged import arguments
from os_acc.privileged import device_users
from os_acc.privileged import function_notes
from os_acc.privileged import offers
from os_acc.privileged import root_folder
from os_acc.spec import device_spec

# objects.device.PROGRAMMING_SINGLE. Importing that module would load
# oslo.versionedobjects, and with it oslo.messaging, into the daemon.
_SINGLE = 'single'

_REGION = re.compile(r'0|[1-9][0-9]{0,4}')


def device(
    address: str, region: str, programmer: str
) -> tuple[pci.Function, device_spec.Spec]:
    """Find a device that may be programmed in one of the ways.

    :param programmer: one of device_spec.PROGRAMMERS
    :raises InvalidRequest: if device_spec does not say that the device is
        programmed in this way, or there is no such region
    :raises DeviceNotFound: if device_spec does not offer it
    """
    function = arguments.offered(address)
    function_notes.check_function(function)
    if function.is_vf:
        # Locks and checks work on the PF, not on its VFs.
        arguments.refuse('address', address, 'a device that is not a VF')
    # arguments.offered() has checked that it is offered, or was.
    spec = offers.specs().held(function)
    if spec.programmer != programmer:
        arguments.refuse(
            'address', address, f'a device with the programmer {programmer}'
        )
    _check_region(function, spec, region)
    return function, spec


def _check_region(
    function: pci.Function, spec: device_spec.Spec, region: str
) -> None:
    if spec.programming == _SINGLE:
        if region != '':
            arguments.refuse('region', region, "'': it has no regions")
        return
    future = sriov.future_addresses(function.address, spec.num_vfs or 0)
    number = max(len(function.vf_addresses), len(future), 1)
    if (
        not isinstance(region, str)
        or not _REGION.fullmatch(region)
        or int(region) >= number
    ):
        arguments.refuse('region', region, f'0 to {number - 1}')


@contextlib.contextmanager
def taken(function: pci.Function, region: str) -> Iterator[list[int]]:
    """Lock a device with flock(2) on files that its command inherits.

    Two regions can be programmed at the same time, but not a region and the
    whole chip. This is not the lock of operation_lock: programming can
    take long, and other operations on the device need not wait for it.
    """
    vf = _vf_of(function, region)
    whole = chip.of(function).address
    how = fcntl.LOCK_SH if vf else fcntl.LOCK_EX
    seconds = offers.configuration().os_acc.device_timeout
    with contextlib.ExitStack() as stack:
        fds = [lock(stack, whole, function.address, seconds, how)]
        if vf is not None:
            fds.append(lock(stack, vf.address, function.address, seconds))
        yield fds


def lock(
    stack: contextlib.ExitStack,
    name: str,
    device: str,
    seconds: float = 0.0,
    how: int = fcntl.LOCK_EX,
) -> int:
    """Keep other commands from a chip or a region until the stack ends.

    :raises DeviceBusy: if an earlier command for it has not ended
    """
    try:
        return stack.enter_context(
            root_folder.locked('programming', name, seconds, how)
        )
    except exception.Timeout as err:
        raise exception.DeviceBusy(
            device=device,
            reason='an earlier command for it has not ended',
        ) from err


def check_unused(function: pci.Function, region: str) -> None:
    """Check again, under the lock, that nobody has the device open."""
    vf = _vf_of(function, region)
    parts = (
        [vf]
        if vf
        else [
            each
            for each in map(pci.find, chip.of(function).functions)
            if each is not None
        ]
    )
    if found := device_users.open_by(parts):
        raise exception.DeviceBusy(
            device=function.address, reason='; '.join(found)
        )


def _vf_of(function: pci.Function, region: str) -> pci.Function | None:
    """The VF that gives access to a region; None if there is none."""
    vfs = function.vf_addresses
    if region and int(region) < len(vfs):
        return pci.get(vfs[int(region)])
    return None
