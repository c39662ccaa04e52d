# SPDX-License-Identifier: Apache-2.0

"""Mediated devices: their parents, their types, and which exist.

See drivers/vfio/mdev in the kernel.
"""

from __future__ import annotations

import dataclasses
import errno
import os

from os_acc import exception
from os_acc.kernel import sysfs
from os_acc.texts import forms

#: What drivers answer if no more devices can be made.
EXHAUSTED = (errno.EUSERS, errno.ENOSPC)


@dataclasses.dataclass(frozen=True)
class Mdev:
    """A mediated device."""

    uuid: str
    parent: str
    type: str


def check_name(value: str, field: str) -> str:
    """Check a name: a PCI address, a type, or such as mtty or 0.0.0033."""
    if not forms.is_name(value) or '..' in value:
        raise exception.InvalidRequest(
            subject='mediated device',
            field=field,
            value=value,
            expected="a name such as '0000:3b:00.0' or 'nvidia-558'",
        )
    return value


def directory(uuid: str) -> str:
    """The directory of a mediated device in sysfs.

    :raises InvalidRequest: if the UUID is malformed
    """
    if not isinstance(uuid, str) or forms.uuid(uuid) != uuid:
        raise exception.InvalidRequest(
            subject='mediated device',
            field='uuid',
            value=uuid,
            expected='a UUID, in lower case with dashes',
        )
    return f'{sysfs.SYS}/bus/mdev/devices/{uuid}'


def parent_directory(parent: str) -> str:
    check_name(parent, 'parent')
    return f'{sysfs.SYS}/class/mdev_bus/{parent}'


def types_directory(parent: str) -> str:
    """The directory of a parent's types."""
    return f'{parent_directory(parent)}/mdev_supported_types'


def devices() -> list[Mdev]:
    """All mediated devices of this host."""
    found = map(find, sysfs.names(f'{sysfs.SYS}/bus/mdev/devices'))
    return [device for device in found if device is not None]


def find(uuid: str) -> Mdev | None:
    """Find a mediated device of this host; None if there is none."""
    path = directory(uuid)
    kind, place = sysfs.link(f'{path}/mdev_type'), sysfs.target(path)
    if kind is None or place is None:
        return None  # there is none, or it is being removed
    parent = os.path.basename(os.path.dirname(place))
    return Mdev(uuid=uuid, parent=parent, type=kind)


def check_same(there: Mdev, wanted: Mdev) -> None:
    """Check that a device is of the wanted type and parent."""
    if there != wanted:
        raise exception.DeviceBusy(
            device=f'mdev UUID {wanted.uuid}',
            reason=f'it belongs to an mdev of type {there.type} on '
            f'{there.parent}, but {wanted.type} on {wanted.parent} is wanted',
        )


def check_type(parent: str, kind: str) -> None:
    """Check that a parent has a type."""
    found = sysfs.names(types_directory(parent))
    if kind not in found:
        raise exception.DeviceNotFound(
            wanted=f'mdev type {kind} on {parent}',
            reason=f'it has the types {", ".join(found)}'
            if found
            else 'it creates no mediated devices; is its driver loaded?',
        )


def exhausted(wanted: Mdev) -> exception.DeviceBusy:
    """The error if no more devices of a type can be made."""
    return exception.DeviceBusy(
        device=f'mdev type {wanted.type} on {wanted.parent}',
        reason='no capacity is left for this type',
    )
