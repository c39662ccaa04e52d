# SPDX-License-Identifier: Apache-2.0

"""NVIDIA's vendor-specific VFIO vGPUs: a vGPU type is set on an SR-IOV VF.

NVIDIA vGPU software from version 17 on makes no mdevs on Linux 6.8 and later:
"Creating an NVIDIA vGPU on a Linux with KVM hypervisor that uses a
vendor-specific VFIO framework" in its user guide.

A card has more VFs than vGPUs fit into it. The file creatable_vgpu_types of a
VF lists the types that the VF can have at this moment. While a type is set on
the VF, or once the card is full, it lists none. In the card's default mode all
vGPUs of a card have framebuffers of one size, so that the first type that is
set leaves only types of that size in the lists of the other VFs. In mixed-size
mode (nvidia-smi vgpu -shm 1) the lists keep all sizes that still fit. A card
in MIG mode lists the types for which it has a GPU instance left. So the lists
tell what is possible in each mode; no file in sysfs names the mode itself.
"""

from __future__ import annotations

import errno
import re

from os_acc.kernel import pci
from os_acc.kernel import sysfs

NONE = 0

# Drivers write a line as '558 : NAME' or as 'NAME 558'.
_ID_FIRST = re.compile(r'(\d+)\s*:\s*(\S.*)')
_ID_LAST = re.compile(r'(\S.*?)\s+(\d+)')


def is_vgpu_function(address: str) -> bool:
    """Whether a vGPU type can be set on a function."""
    return current(address) is not None


def is_place(function: pci.Function) -> bool:
    """Whether a function is a VF that can have an NVIDIA vGPU type.

    The VF stays bound to NVIDIA's driver, also without a type. Bound to
    vfio-pci it would be useless to a guest.
    """
    return 'nvidia' in function.entries and is_vgpu_function(function.address)


def current(address: str) -> int | None:
    """The id of a VF's vGPU type; NONE: unset; None: it cannot have one."""
    return sysfs.read_int(f'{pci.directory(address)}/nvidia/current_vgpu_type')


def creatable(address: str) -> dict[int, str]:
    """The types that a VF can have now: their names by id.

    They depend on the types that the other VFs of its PF have.
    """
    path = f'{pci.directory(address)}/nvidia/creatable_vgpu_types'
    found: dict[int, str] = {}
    try:
        lines = (sysfs.read(path) or '').splitlines()
    except OSError as err:
        if err.errno != errno.EINVAL:
            raise
        # The vGPU manager cannot tell the types of this card now
        # (creatable_vgpu_types_show() in NVIDIA's driver).
        return found
    for line in lines:
        text = line.strip()
        if match := _ID_FIRST.fullmatch(text):
            found[int(match[1])] = match[2].strip()
        elif match := _ID_LAST.fullmatch(text):
            found[int(match[2])] = match[1].strip()
    return found


def find_type(address: str, wanted: str) -> int | None:
    """The id of a type, by id or name, that a VF can have now; None if not."""
    for number, name in creatable(address).items():
        if wanted in (str(number), name):
            return number
    return None
