# SPDX-License-Identifier: Apache-2.0

"""Writing the number of VFs of a PF, as root. See drivers/pci/iov.c."""

from __future__ import annotations

import errno

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.kernel import sysfs

_REASONS = {
    errno.EBUSY: 'it already has a different number of VFs',
    errno.ERANGE: 'it cannot have that many VFs',
    errno.ENOENT: 'it has no driver, or its driver does not support SR-IOV',
    errno.ENOMEM: 'not enough memory space or bus numbers in the firmware',
}


def create(pf: str, number: int, seconds: float) -> None:
    """Create VFs on a PF. Does nothing if it has that many already.

    Sets sriov_drivers_autoprobe to 0, so that no driver of the host binds the
    VFs.

    :raises DeviceError: if the kernel or the PF's driver refuses, or makes
        another number of VFs; the PF then has none
    """
    if sriov.count(pf) == number:
        return
    if sriov.autoprobe(pf) == '1':
        _write(pf, 'sriov_drivers_autoprobe', '0')
    _write(pf, 'sriov_numvfs', str(number))
    got = sysfs.read_int(f'{pci.directory(pf)}/sriov_numvfs') or 0
    if got != number:
        # Some drivers make fewer and only log a warning.
        _write(pf, 'sriov_numvfs', '0')
        raise exception.DeviceError(
            device=f'PF {pf}',
            reason=f'its driver created {got} VFs instead of {number}',
        )
    waiting.until(
        lambda: _complete(pf, number),
        seconds,
        f'{number} VFs of {pf}',
        'pci',
    )


def remove(pf: str, autoprobe_before: str | None) -> None:
    """Remove all VFs of a PF. The caller has checked that nobody uses them.

    :param autoprobe_before: the value of sriov_drivers_autoprobe to restore;
        None to leave it as it is
    """
    if sriov.count(pf):
        _write(pf, 'sriov_numvfs', '0')
    restore_autoprobe(pf, autoprobe_before)


def restore_autoprobe(pf: str, before: str | None) -> None:
    """Set sriov_drivers_autoprobe of a PF as it was before create().

    The kernel does not probe the VFs that exist already.
    """
    if before is not None and sriov.autoprobe(pf) != before:
        _write(pf, 'sriov_drivers_autoprobe', before)


def _write(pf: str, name: str, text: str) -> None:
    try:
        sysfs.write(f'{pci.directory(pf)}/{name}', text)
    except OSError as err:
        known = _REASONS.get(err.errno or 0)
        reason = f'{known} ({err.strerror})' if known else err.strerror
        raise exception.DeviceError(
            device=f'PF {pf}', reason=f'{name} {text}: {reason}'
        ) from err


def _complete(pf: str, number: int) -> bool:
    function = pci.find(pf)
    if function is None:
        return False
    vfs = [pci.find(address) for address in function.vf_addresses]
    return len(vfs) == number and all(vf and vf.iommu_group for vf in vfs)
