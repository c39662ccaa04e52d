# SPDX-License-Identifier: Apache-2.0

"""The device files that VANs have, and their numbers: of every driver."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from os_acc import objects
from os_acc.availability import device_numbers
from os_acc.kernel import boot
from os_acc.kernel import device_file

#: The key of VAN.driver_data that says how many of the handle's files, from
#: the first, are not common to several VANs.
OWN = 'own'


def held_by(van: objects.VAN) -> objects.DeviceFileHandle | None:
    """The handle of a VAN, if it is one of device files."""
    handle = van.handle
    return handle if isinstance(handle, objects.DeviceFileHandle) else None


def own_files(van: objects.VAN) -> list[device_file.DeviceFile]:
    """The files of a VAN that no other VAN has, with the numbers it got.

    A VAN of another driver than devfile has no common files.
    """
    handle = held_by(van)
    if handle is None:
        return []
    number = int(van.driver_data.get(OWN, len(handle.files)))
    return [
        device_file.DeviceFile(
            each.path, device_file.Number(each.type, each.major, each.minor)
        )
        for each in handle.files[:number]
    ]


def numbers(
    vans: Iterable[objects.VAN],
) -> Mapping[device_file.Number, Sequence[device_numbers.Given]]:
    """Which VANs were given which device numbers in this boot of the host."""
    now = boot.boot_id()
    found: dict[device_file.Number, list[device_numbers.Given]] = {}
    for van in vans:
        handle = held_by(van)
        if handle is None or van.boot_id != now:
            continue
        for file in own_files(van):
            found.setdefault(file.number, []).append(
                device_numbers.Given(
                    van.uuid, van.instance_uuid, handle.name, file.path
                )
            )
    return found
