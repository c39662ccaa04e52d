# SPDX-License-Identifier: Apache-2.0

"""Setting the vGPU type of a VF of an NVIDIA card, as root."""

from __future__ import annotations

import errno

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vgpu


def set_type(address: str, number: int, seconds: float) -> None:
    """Set a VF's vGPU type.

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
