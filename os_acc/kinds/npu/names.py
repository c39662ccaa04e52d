# SPDX-License-Identifier: Apache-2.0

"""The names of accelerators of the class accel.

They are stable: the kernel numbers its devices (accel0) as it finds them, so
the number may change at a boot and when a driver is bound again. The PCI
address does not. file_place never makes the part behind it from the name of a
directory in sysfs, so no accelerator of the driver devfile has such a name.
"""

from __future__ import annotations

from os_acc import exception
from os_acc.kernel import file_place
from os_acc.kernel import pci

_WHOLE = 'npu=whole'


def name_of(address: str) -> str:
    """The name of an accelerator, such as 0000:00:0b.0+npu=whole."""
    return f'{address}{file_place.SEPARATOR}{_WHOLE}'


def split(name: str) -> str | None:
    """The PCI address in a name; None if it has another form."""
    address, _, rest = name.partition(file_place.SEPARATOR)
    return address if rest == _WHOLE and pci.is_address(address) else None


def parse(name: str) -> str:
    """Do what split() does, and refuse another form."""
    found = split(name)
    if found is None:
        raise exception.InvalidRequest(
            subject='DeviceFileHandle',
            field='name',
            value=name,
            expected='the name of an NPU, such as 0000:00:0b.0+npu=whole',
        )
    return found
