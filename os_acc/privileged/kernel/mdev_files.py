# SPDX-License-Identifier: Apache-2.0

"""Writing the files of mediated devices and of vGPU types, as root."""

from __future__ import annotations

import errno
import os

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vgpu

_REASONS = {
    errno.EINVAL: 'the kernel does not accept that UUID',
    errno.ENODEV: 'the parent device is going away',
}


def create(wanted: mdev.Mdev, seconds: float) -> None:
    """Make a mediated device. Succeeds if it exists already."""
    mdev.check_name(wanted.type, 'type')
    path = f'{mdev.types_directory(wanted.parent)}/{wanted.type}/create'
    mdev.directory(wanted.uuid)
    try:
        sysfs.write(path, wanted.uuid)
    except OSError as err:
        if err.errno == errno.EEXIST and (there := mdev.find(wanted.uuid)):
            mdev.check_same(there, wanted)
            return
        if err.errno in mdev.EXHAUSTED:
            raise mdev.exhausted(wanted) from err
        reason = _REASONS.get(err.errno or 0, 'the driver refused')
        raise exception.DeviceError(
            device=f'mdev type {wanted.type} on {wanted.parent}',
            reason=f'create: {reason} ({err.strerror})',
        ) from err
    waiting.until(
        lambda: mdev.find(wanted.uuid), seconds, f'mdev {wanted.uuid}', 'mdev'
    )


def remove(uuid: str, seconds: float) -> None:
    """Remove a mediated device. Succeeds if it is gone already."""
    path = mdev.directory(uuid)

    def gone() -> bool:
        try:
            sysfs.write(f'{path}/remove', '1')
        except OSError as err:
            if err.errno == errno.EBUSY:
                raise exception.DeviceBusy(
                    device=f'mdev {uuid}', reason='a guest has it open'
                ) from err
            # EAGAIN: its creation has not ended yet.
            if err.errno not in (errno.EAGAIN, errno.ENODEV, errno.ENOENT):
                raise exception.DeviceError(
                    device=f'mdev {uuid}', reason=f'remove: {err.strerror}'
                ) from err
        # The file vanishes before the removal has ended.
        return not os.path.lexists(path)

    waiting.until(gone, seconds, f'mdev {uuid} to be removed', 'mdev')


def set_vgpu_type(address: str, number: int, seconds: float) -> None:
    """Set the vGPU type of a VF of an NVIDIA card.

    :param number: the id of the type; vgpu.NONE to clear it
    :raises DeviceError: if the driver refuses it
    :raises Timeout: if the driver still refuses to clear it while a guest
        shuts down
    """

    def done() -> bool:
        if vgpu.current(address) == number:
            return True
        try:
            sysfs.write(
                f'{pci.directory(address)}/nvidia/current_vgpu_type',
                str(number),
            )
        except OSError as err:
            # The driver answers EPERM while a guest shuts down.
            if err.errno != errno.EPERM or number != vgpu.NONE:
                raise exception.DeviceError(
                    device=f'VF {address}',
                    reason=f'vGPU type {number}: {err.strerror}',
                ) from err
            return False
        if vgpu.current(address) != number:
            # The driver accepts a bad id without an error; it reads back as 0.
            raise exception.DeviceError(
                device=f'VF {address}',
                reason=f'its driver did not accept vGPU type {number}',
            )
        return True

    waiting.until(
        done, seconds, f'VF {address} to have vGPU type {number}', 'pci'
    )
