# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""NVIDIA's vendor-specific VFIO vGPUs: a type is set on an SR-IOV VF.

The vGPU software 17 and later, on kernels of 6.8 and later, has no mdevs:
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

# Seen as '558 : NAME' and as 'NAME 558'.
_ID_FIRST = re.compile(r'(\d+)\s*:\s*(\S.*)')
_ID_LAST = re.compile(r'(\S.*?)\s+(\d+)')


def is_vgpu_function(address: str) -> bool:
    """Whether a function's driver makes vGPUs of it in this way."""
    return current(address) is not None


def current(address: str) -> int | None:
    """The id of a VF's vGPU type; 0: it has none; None: it cannot."""
    return sysfs.read_int(f'{pci.folder(address)}/nvidia/current_vgpu_type')


def creatable(address: str) -> dict[int, str]:
    """The types that a VF can have now, name by id.

    A VF's siblings change it: what they have leaves less.
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


def find_type(address: str, wanted: str) -> int:
    """The id of a type that a VF can have now.

    :param wanted: its id, or its name
    :raises DeviceNotFound: it cannot have it
    """
    there = creatable(address)
    for number, name in there.items():
        if wanted in (str(number), name):
            return number
    text = ', '.join(f'{n} ({name})' for n, name in there.items())
    raise exception.DeviceNotFound(
        wanted=f'vGPU type {wanted} on VF {address}',
        reason=f'it can have: {text or "none"}',
    )


def set_type(address: str, number: int, seconds: float) -> None:
    """Set a VF's vGPU type, or take it away (0).

    :raises DeviceError: the driver refused it
    :raises Timeout: it is still refused while a guest goes down
    """

    def done() -> bool:
        if current(address) == number:
            return True
        try:
            sysfs.write(
                f'{pci.folder(address)}/nvidia/current_vgpu_type', str(number)
            )
        except OSError as err:
            # EPERM comes while a guest is just going down.
            if err.errno != errno.EPERM or number != NONE:
                raise exception.DeviceError(
                    device=f'VF {address}',
                    reason=f'vGPU type {number}: {err.strerror}',
                ) from err
            return False
        if current(address) != number:
            # A bad id is taken without a word, and reads back as 0.
            raise exception.DeviceError(
                device=f'VF {address}',
                reason=f'its driver did not take vGPU type {number}',
            )
        return True

    waiting.until(
        done, seconds, f'VF {address} to have vGPU type {number}', 'pci'
    )
