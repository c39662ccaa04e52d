# SPDX-License-Identifier: Apache-2.0

"""The names of work queues of Intel DSA and IAA.

They are stable: the kernel numbers its devices (dsa0, iax1) as it finds them,
so the number may change at a boot, but the PCI address and the number of the
work queue on the device do not.
"""

from __future__ import annotations

import re

from os_acc import exception
from os_acc.kernel import pci

_FILE = re.compile(r'(dsa|iax)\+wq\.(0|[1-9][0-9]{0,2})(\+.*)?')
_LABEL = 'os-acc-'
_NAME = re.compile('(.+)-wq(0|[1-9][0-9]{0,2})')


def name_of(address: str, number: int) -> str:
    """The name of a work queue, such as 0000:6a:01.0-wq0."""
    return f'{address}-wq{number}'


def split(name: str) -> tuple[str, int] | None:
    """The PCI address and the number in a name; None if it is malformed."""
    match = _NAME.fullmatch(name)
    if match is None or not pci.is_address(match[1]):
        return None
    return match[1], int(match[2])


def parse(name: str) -> tuple[str, int]:
    """Do what split() does, and refuse another form."""
    found = split(name)
    if found is None:
        raise exception.InvalidRequest(
            subject='DeviceFileHandle',
            field='name',
            value=name,
            expected='the name of a work queue, such as 0000:6a:01.0-wq0',
        )
    return found


def of_file(name: str) -> tuple[str, int] | None:
    """Find the work queue whose device file has a name of the driver devfile.

    :param name: as file_place makes it, such as 0000:6a:01.0+dsa+wq.1
    :returns: its PCI address and number; None if it is another file
    """
    address, _, rest = name.partition('+')
    match = _FILE.fullmatch(rest)
    if match is None or not pci.is_address(address):
        return None
    return address, int(match[2])


def van_of(label: str) -> str | None:
    """The UUID of the VAN in what label_of() makes; None: another text."""
    if not label.startswith(_LABEL):
        return None
    return label.removeprefix(_LABEL)


def label_of(van_uuid: str) -> str:
    """What os-acc writes to the file ``name`` of a VAN's work queue."""
    return f'{_LABEL}{van_uuid}'
