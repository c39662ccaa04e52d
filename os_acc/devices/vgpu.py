# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""NVIDIA's vendor-specific VFIO vGPUs: a vGPU type is set on an SR-IOV VF.

NVIDIA vGPU software from version 17 on makes no mdevs on Linux 6.8 and later:
"Creating an NVIDIA vGPU on a Linux with KVM hypervisor that uses a
vendor-specific VFIO framework" in its user guide.
"""

from __future__ import annotations

import errno
import re

from os_acc import exception
from os_acc.devices import pci
from os_acc.devices import sysfs
from os_acc.devices import waiting

NONE = 0

# Drivers write a line as '558 : NAME' or as 'NAME 558'.
_ID_FIRST = re.compile(r'(\d+)\s*:\s*(\S.*)')
_ID_LAST = re.compile(r'(\S.*?)\s+(\d+)')


def is_vgpu_function(address: str) -> bool:
    """Whether a vGPU type can be set on a function."""
    return current(address) is not None


def current(address: str) -> int | None:
    """The id of a VF's vGPU type; NONE: unset; None: it cannot have one."""
    return sysfs.read_int(f'{pci.folder(address)}/nvidia/current_vgpu_type')


def creatable(address: str) -> dict[int, str]:
    """The types that a VF can have now: their names by id.

    They depend on the types that the other VFs of its PF have.
    """
    path = f'{pci.folder(address)}/nvidia/creatable_vgpu_types'
    found: dict[int, str] = {}
    for line in (sysfs.read(path) or '').splitlines():
        text = line.strip()
        if match := _ID_FIRST.fullmatch(text):
            found[int(match[1])] = match[2].strip()
        elif match := _ID_LAST.fullmatch(text):
            found[int(match[2])] = match[1].strip()
    return found


def find_type(address: str, wanted: str) -> int | None:
    """The id of a type that a VF can have now; None if it cannot have it.

    :param wanted: the id of the type, or its name
    """
    for number, name in creatable(address).items():
        if wanted in (str(number), name):
            return number
    return None


def types_text(address: str) -> str:
    """The types that a VF can have now, for a message."""
    types = creatable(address).items()
    return ', '.join(f'{n} ({name})' for n, name in types) or 'none'


def set_type(address: str, number: int, seconds: float) -> None:
    """Set a VF's vGPU type.

    :param number: the id of the type; NONE to clear it
    :raises DeviceError: if the driver refuses it
    :raises Timeout: if the driver still refuses to clear it while a guest
        shuts down
    """

    def done() -> bool:
        if current(address) == number:
            return True
        try:
            sysfs.write(
                f'{pci.folder(address)}/nvidia/current_vgpu_type', str(number)
            )
        except OSError as err:
            # The driver answers EPERM while a guest shuts down.
            if err.errno != errno.EPERM or number != NONE:
                raise exception.DeviceError(
                    device=f'VF {address}',
                    reason=f'vGPU type {number}: {err.strerror}',
                ) from err
            return False
        if current(address) != number:
            # The driver accepts a bad id without an error; it reads back as 0.
            raise exception.DeviceError(
                device=f'VF {address}',
                reason=f'its driver did not accept vGPU type {number}',
            )
        return True

    waiting.until(
        done, seconds, f'VF {address} to have vGPU type {number}', 'pci'
    )
