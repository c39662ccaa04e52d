# SPDX-License-Identifier: Apache-2.0

"""What must happen after programming before the function can be used.

A card that gets a new image for the whole chip loses its PCI functions for a
moment: they leave the bus and come back in the same slot. The kernel then
makes new directories for them in sysfs, with other inode numbers, and their
VFs are gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
import contextlib
import dataclasses

from oslo_config import cfg

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.programming import programmer as programmers

CONF = cfg.CONF


@dataclasses.dataclass(frozen=True)
class Seen:
    """A PCI function other than a VF, as it was before the programming.

    :ivar inode: of its directory in sysfs; None: it was not there
    :ivar vfs: how many VFs it had
    """

    inode: int | None
    vfs: int


def see(addresses: Iterable[str]) -> dict[str, Seen]:
    """Look at the functions of a chip before it is programmed.

    :param addresses: of its functions without the VFs
    """
    return {
        each: Seen(pci.inode(each), sriov.count(each)) for each in addresses
    }


def reenumerate(label: str, before: Mapping[str, Seen]) -> None:
    """Wait until all functions of a chip have left the bus and come back.

    If the programmer has not made them leave, root removes them and has the
    kernel find them again. Then as many VFs are made as there were.
    """
    present = {each: seen for each, seen in before.items() if seen.inode}
    if not present:
        return
    seconds = CONF.os_acc.device_timeout
    if all(pci.inode(each) == seen.inode for each, seen in present.items()):
        from os_acc.privileged.fpga import reenumeration as privileged

        privileged.reenumerate(min(present), seconds)
    for address, seen in present.items():
        _wait(label, address, seen, seconds)
    for address, seen in present.items():
        if seen.vfs:
            _make_vfs(address, seen.vfs, seconds)


def _wait(label: str, address: str, seen: Seen, seconds: float) -> None:
    """Wait until a function has come back."""

    def is_back() -> bool:
        return (
            pci.inode(address) not in (None, seen.inode)
            and pci.answers(address)
            and (function := pci.find(address)) is not None
            # Only its driver can make VFs.
            and (not seen.vfs or function.driver is not None)
        )

    try:
        waiting.until(
            is_back,
            seconds,
            f'PCI function {address} to come back after programming',
            'pci',
        )
    except exception.Timeout as err:
        raise exception.DeviceError(
            device=label, reason=_missing(address, seen, seconds)
        ) from err


def _missing(address: str, seen: Seen, seconds: float) -> str:
    now = pci.inode(address)
    if now is None:
        what = 'has left the bus, and has not come back'
    elif now == seen.inode:
        what = 'has not left the bus'
    elif not pci.answers(address):
        what = 'has come back, but does not answer'
    else:
        what = 'has come back, but no driver is bound to it to create its VFs'
    return f'PCI function {address} {what} within {seconds:g} s'


def _make_vfs(pf: str, number: int, seconds: float) -> None:
    """Make the VFs of a PF again, or wait for the service that makes them."""
    from os_acc.privileged.pci import vfs as privileged_vfs

    if not sriov.count(pf):
        # If os-acc may not make so many, another service makes them.
        with contextlib.suppress(
            exception.DeviceBusy,
            exception.DeviceNotFound,
            exception.InvalidRequest,
        ):
            privileged_vfs.create_vfs(pf, number, seconds)
    waiting.until(
        lambda: sriov.count(pf) == number,
        seconds,
        f'the {number} VFs of PF {pf} to come back after programming',
        'pci',
    )


def check_function(
    label: str, programmer: programmers.Programmer, function_id: str | None
) -> None:
    """Check that a device that has come back has the function."""
    if function_id is None:
        return

    def look() -> str | None:
        found = programmer.look()
        return function_id if found is None else found

    awaited = f'{label} to show function {function_id} after programming'
    programmers.check_seen(look, label, function_id, awaited)
