# SPDX-License-Identifier: Apache-2.0

"""Checks of the arguments of privileged calls, made again as root."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import uuid as uuid_module

from os_acc import exception
from os_acc.containers import handle as handles
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.privileged import offers

_LONGEST = 24 * 3600.0


def function(address: str) -> pci.Function:
    """Find a PCI function that os-acc may touch as a whole.

    :raises InvalidRequest: if the address is malformed
    :raises DeviceNotFound: if it is not there, or device_spec offers neither
        it nor the function whose companion it is, or parts of it only, and no
        VAN already has it
    """
    found = there(address)
    offers.check(found)
    return found


def offered(address: str) -> pci.Function:
    """Find a PCI function that os-acc may program, or touch parts of.

    :raises: as function(), unless device_spec offers parts of it, or a VAN
        already has a VF of it
    """
    found = there(address)
    offers.check_part(found)
    return found


def there(address: str) -> pci.Function:
    """Find a PCI function, whether os-acc may touch it or not."""
    if not isinstance(address, str):
        refuse('address', address, 'a PCI address')
    return pci.get(address)


def an_mdev(uuid: str, parent: str, kind: str) -> mdev.Mdev:
    """Check the names of a mediated device."""
    for field, value in (('parent', parent), ('type', kind)):
        if not isinstance(value, str):
            refuse(field, value, 'a string')
        mdev.check_name(value, field)
    mdev.directory(uuid)
    return mdev.Mdev(uuid, parent, kind)


def mdev_there(uuid: str) -> mdev.Mdev:
    """Find a mediated device, whether os-acc may touch it or not."""
    mdev.directory(uuid)
    if (found := mdev.find(uuid)) is None:
        raise exception.DeviceNotFound(
            wanted=f'mdev {uuid}', reason='this host has none'
        )
    return found


def uuid(value: str) -> str:
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        if str(uuid_module.UUID(value)) == value:
            return value
    return refuse('uuid', value, 'a UUID, in lower case with dashes')


def seconds(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse('seconds', value, 'a number')
    if not 0 <= value <= _LONGEST:
        refuse('seconds', value, f'0 to {_LONGEST:g}')
    return float(value)


def whole(value: int, field: str, most: int, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(field, value, 'a whole number')
    if not least <= value <= most:
        refuse(field, value, f'{least} to {most}')
    return value


def addresses(values: Sequence[str]) -> list[str]:
    found = list(values)
    for value in found:
        if not isinstance(value, str) or not pci.is_address(value):
            refuse('addresses', value, 'PCI addresses')
    return found


def permissions(handle: handles.Handle, allowed: str) -> None:
    """Check that a container may do no more with device files than allowed.

    :param allowed: one or more of the letters r, w and m
    """
    for file in handle.files:
        if not set(file.permissions) <= set(allowed):
            refuse(
                'permissions',
                file.permissions,
                f'at most {allowed}, as device_spec says',
            )


def refuse(field: str, value: object, expected: str) -> str:
    raise exception.InvalidRequest(
        subject='privileged call', field=field, value=value, expected=expected
    )
