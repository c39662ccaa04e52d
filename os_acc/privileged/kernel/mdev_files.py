# SPDX-License-Identifier: Apache-2.0

"""Writing the files that make and remove a mediated device, as root."""

from __future__ import annotations

import errno
import os

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import mdev
from os_acc.kernel import sysfs

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
