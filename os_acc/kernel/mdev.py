# SPDX-License-Identifier: Apache-2.0

"""Mediated devices: their parents, their types, and which there are.

See drivers/vfio/mdev in the kernel.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import uuid as uuid_module

from os_acc import exception
from os_acc.kernel import sysfs

# A PCI address, or a name such as mtty, matrix, 0.0.0033.
_NAME = re.compile(r'[A-Za-z0-9_][A-Za-z0-9_.:+@=-]{0,254}')

_MAXIMUM = re.compile(r'\bmax_instance=(\d+)')

#: What drivers answer if no more devices can be made.
EXHAUSTED = (errno.EUSERS, errno.ENOSPC)

# What a driver may answer if it cannot make devices of a type now.
_NOT_NOW = (*EXHAUSTED, errno.EINVAL, errno.EBUSY, errno.EAGAIN)


@dataclasses.dataclass(frozen=True)
class Type:
    """An mdev type of a parent.

    :ivar available: how many more can be made; only a hint, because the types
        of a parent share its capacity
    :ivar maximum: how many a card can have, if the vendor's driver says so. It
        matters for a parent that is a VF: each VF of the card shows that one
        more can be made, until the card is full
    """

    parent: str
    name: str
    label: str
    device_api: str
    available: int
    maximum: int | None = None


@dataclasses.dataclass(frozen=True)
class Mdev:
    """A mediated device."""

    uuid: str
    parent: str
    type: str


def check_name(value: str, field: str) -> str:
    """Check the name of a device or type.

    :raises InvalidRequest: if the text cannot be such a name
    """
    if not _NAME.fullmatch(value) or '..' in value:
        raise exception.InvalidRequest(
            subject='mediated device',
            field=field,
            value=value,
            expected="a name such as '0000:3b:00.0' or 'nvidia-558'",
        )
    return value


def folder(uuid: str) -> str:
    """The folder of a mediated device in sysfs.

    :raises InvalidRequest: if the UUID is malformed
    """
    try:
        parsed = str(uuid_module.UUID(uuid))
    except (ValueError, AttributeError, TypeError):
        parsed = ''
    if not parsed or parsed != uuid:
        raise exception.InvalidRequest(
            subject='mediated device',
            field='uuid',
            value=uuid,
            expected='a UUID, in lower case with dashes',
        )
    return f'{sysfs.SYS}/bus/mdev/devices/{uuid}'


def parent_folder(parent: str) -> str:
    check_name(parent, 'parent')
    return f'{sysfs.SYS}/class/mdev_bus/{parent}'


def parents() -> list[str]:
    """The devices of this host that can make mediated devices."""
    return sysfs.names(f'{sysfs.SYS}/class/mdev_bus')


def types(parent: str) -> list[Type]:
    """The mdev types of a parent; empty if the device is no parent."""
    return [_type(parent, name) for name in sysfs.names(types_folder(parent))]


def types_folder(parent: str) -> str:
    """The folder of a parent's types."""
    return f'{parent_folder(parent)}/mdev_supported_types'


def _type(parent: str, name: str) -> Type:
    path = f'{types_folder(parent)}/{name}'
    return Type(
        parent=parent,
        name=name,
        label=sysfs.read(f'{path}/name') or name,
        device_api=sysfs.read(f'{path}/device_api') or '',
        available=_number(f'{path}/available_instances'),
        maximum=_maximum(path),
    )


def _maximum(path: str) -> int | None:
    # NVIDIA's driver: 'num_heads=4, framebuffer=2048M, max_instance=24'.
    match = _MAXIMUM.search(sysfs.read(f'{path}/description') or '')
    return int(match[1]) if match else None


def _number(path: str) -> int:
    try:
        return sysfs.read_int(path) or 0
    except OSError as err:
        if err.errno not in _NOT_NOW:
            raise
        return 0


def devices() -> list[Mdev]:
    """All mediated devices of this host."""
    found = map(find, sysfs.names(f'{sysfs.SYS}/bus/mdev/devices'))
    return [device for device in found if device is not None]


def find(uuid: str) -> Mdev | None:
    """Find a mediated device of this host; None if there is none."""
    path = folder(uuid)
    kind = sysfs.link(f'{path}/mdev_type')
    if kind is None:
        return None
    parent = os.path.basename(os.path.dirname(sysfs.place(path)))
    return Mdev(uuid=uuid, parent=parent, type=kind)


def check_same(there: Mdev, wanted: Mdev) -> None:
    """Check that a device is of the wanted type and parent.

    :raises DeviceBusy: if it is not
    """
    if there != wanted:
        raise exception.DeviceBusy(
            device=f'mdev UUID {wanted.uuid}',
            reason=f'it belongs to an mdev of type {there.type} on '
            f'{there.parent}, but {wanted.type} on {wanted.parent} is wanted',
        )


def check_type(parent: str, kind: str) -> None:
    """Check that a parent has a type.

    :raises DeviceNotFound: if there is no such parent, or it lacks the type
    """
    found = sysfs.names(types_folder(parent))
    if kind not in found:
        raise exception.DeviceNotFound(
            wanted=f'mdev type {kind} on {parent}',
            reason=f'it has the types {", ".join(found)}'
            if found
            else 'it makes no mediated devices; is its driver loaded?',
        )


def type_of(parent: str, kind: str) -> Type:
    """Find a type. Raises as check_type()."""
    check_type(parent, kind)
    return _type(parent, kind)


def exhausted(wanted: Mdev) -> exception.DeviceBusy:
    """The error if no more devices of a type can be made."""
    return exception.DeviceBusy(
        device=f'mdev type {wanted.type} on {wanted.parent}',
        reason='no capacity is left for this type',
    )
