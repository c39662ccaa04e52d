# SPDX-License-Identifier: Apache-2.0

"""An attach handle as root reads it: plain values, each of them checked.

An attach handle of os_acc.objects has the same names, so code that takes one
of these takes it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
from typing import Any

from os_acc import exception
from os_acc.kernel import pci
from os_acc.texts import forms

#: The handles that a container can use.
TAKES = 'PCIHandle, MdevHandle, DeviceFileHandle, BlockHandle'

_PREFIX = 'versioned_object.'


@dataclasses.dataclass(frozen=True)
class File:
    """A device file of a handle: see objects.DeviceFile."""

    path: str
    type: str
    major: int
    minor: int
    permissions: str


@dataclasses.dataclass(frozen=True)
class Handle:
    """An attach handle that a container can use.

    :ivar identity: kind and device, such as 'pci/0000:3b:00.0'
    :ivar name: of a DeviceFileHandle, as share and files
    :ivar path: of a BlockHandle
    """

    identity: str
    name: str = ''
    share: str | None = None
    files: tuple[File, ...] = ()
    path: str = ''


def unsupported(kind: str) -> exception.UnsupportedHandle:
    """The error for a handle that no container can use."""
    return exception.UnsupportedHandle(taker='CDI', handle=kind, takes=TAKES)


def read(primitive: object) -> Handle:
    """Read the primitive of an attach handle, from a caller."""
    name, data = _parts(primitive)
    if name == 'PCIHandle':
        return Handle(f'pci/{_value(name, data, "address", *_ADDRESS)}')
    if name == 'MdevHandle':
        return Handle(f'mdev/{_value(name, data, "uuid", *_UUID)}')
    if name == 'DeviceFileHandle':
        return _of_files(data)
    if name == 'BlockHandle':
        wwn = _value(name, data, 'wwn', *_NAME)
        path = _value(name, data, 'path', *_PATH)
        return Handle(f'block/{wwn}', path=path)
    raise unsupported(name)


def _of_files(data: Mapping[str, Any]) -> Handle:
    subject = 'DeviceFileHandle'
    name = _value(subject, data, 'name', *_DEVICE)
    share = data.get('share')
    if share is not None:
        share = _value(subject, data, 'share', *_NAME)
    files = data.get('files')
    if not isinstance(files, list | tuple):
        raise _malformed(subject, 'files', files, 'a list of device files')
    identity = f'file/{name}' if share is None else f'file/{name}/{share}'
    return Handle(identity, name, share, tuple(map(_file, files)))


def _file(primitive: object) -> File:
    subject, data = _parts(primitive)
    return File(
        _value(subject, data, 'path', *_PATH),
        _value(subject, data, 'type', *_TYPE),
        _value(subject, data, 'major', *_COUNT),
        _value(subject, data, 'minor', *_COUNT),
        _value(subject, {'permissions': 'rw', **data}, 'permissions', *_MAY),
    )


def _parts(primitive: object) -> tuple[str, Mapping[str, Any]]:
    """The name of the class of an object, and its values."""
    if isinstance(primitive, Mapping):
        name = primitive.get(f'{_PREFIX}name')
        data = primitive.get(f'{_PREFIX}data')
        if (
            primitive.get(f'{_PREFIX}namespace') == 'os_acc'
            and str(primitive.get(f'{_PREFIX}version')).startswith('1.')
            and isinstance(name, str)
            and isinstance(data, Mapping)
        ):
            return name, data
    raise _malformed(
        'privileged call', 'handle', primitive, 'an attach handle'
    )


def _value(
    subject: str,
    data: Mapping[str, Any],
    field: str,
    is_right: Callable[[object], bool],
    expected: str,
) -> Any:
    value = data.get(field)
    if not is_right(value):
        raise _malformed(subject, field, value, expected)
    return value


def _malformed(
    subject: str, field: str, value: object, expected: str
) -> exception.InvalidRequest:
    return exception.InvalidRequest(
        subject=subject, field=field, value=value, expected=expected
    )


# What the values of the fields are, and how the errors say it. They are as
# the objects write them: in one form only.
_ADDRESS = (
    lambda value: isinstance(value, str) and pci.is_address(value),
    'a PCI address (dddd:bb:ss.f)',
)
_UUID = (
    lambda value: isinstance(value, str) and forms.uuid(value) == value,
    'a UUID',
)
_NAME = (forms.is_name, forms.A_NAME)
# One device must not have two names.
_DEVICE = (
    lambda value: (
        forms.is_name(value)
        and (pci.parse(value) is None or pci.is_address(value))
    ),
    f'{forms.A_NAME}, or a PCI address as the kernel writes it',
)
_PATH = (forms.is_device_path, forms.A_DEVICE_PATH)
_COUNT = (forms.is_count, forms.A_COUNT)
_TYPE = (lambda value: value in ('c', 'b'), 'c or b')
_MAY = (forms.is_permissions, forms.PERMISSIONS)
