# SPDX-License-Identifier: Apache-2.0

"""The device files that VANs have, and their numbers, for every driver."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import logging
from typing import Any

from os_acc import exception
from os_acc import journal as journal_module
from os_acc import objects
from os_acc.claims import allocated
from os_acc.kernel import accounts
from os_acc.kernel import device_file
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import sysfs
from os_acc.kinds.devfile import groups as file_groups
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)

#: The key of VAN.driver_data with the entry of device_spec by which the VAN
#: has got files of the driver devfile.
ENTRY = 'entry'
#: The key of VAN.driver_data that says how many of the handle's files, from
#: the first, are not common to several VANs.
OWN = 'own'
#: The key of VAN.driver_data with the names of the devices of these files, see
#: file_place.
NAMES = 'names'


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


def described(
    files: Iterable[device_file.DeviceFile | device_files.Node],
    permissions: str = 'rw',
) -> list[objects.DeviceFile]:
    """Describe files for an attach handle."""
    return [
        objects.DeviceFile(
            path=each.path,
            type=each.number.kind,
            major=each.number.major,
            minor=each.number.minor,
            permissions=permissions,
        )
        for each in files
    ]


def belongs(
    node: device_files.Node,
    owner: str | None,
    group: str | None,
    mode: int | None,
) -> bool:
    """Whether a file has an owner and a mode; None: any.

    An account that no longer exists on the host is not compared.
    """
    wanted = (
        owner and accounts.number_of('user', owner),
        group and accounts.number_of('group', group),
        mode,
    )
    found = (node.uid, node.gid, node.mode)
    return all(
        value in (None, have)
        for value, have in zip(wanted, found, strict=True)
    )


def arguments(files: Iterable[device_file.DeviceFile]) -> list[list[Any]]:
    """Name files as privileged calls take them."""
    return [[each.path, *each.number] for each in files]


def claimed(
    journal: journal_module.Journal,
    holders: Iterable[journal_module.Holder],
    specs: device_spec.Specs,
) -> dict[str, allocated.Files]:
    """The own files of VANs with the numbers that they have now.

    :param holders: the VANs; they are read only if one has files
    :returns: by the UUIDs of the VANs
    """
    with_files = {
        each.van_uuid for each in holders if allocated.file_in(each.handle)
    }
    if not with_files:
        return {}
    return {
        each.uuid: _claimed(each, specs)
        for each in journal.vans()
        if each.uuid in with_files
    }


def _claimed(van: objects.VAN, specs: device_spec.Specs) -> allocated.Files:
    """The own files of a VAN.

    What it got before a reboot of the host, and does not have again yet, has
    other numbers now.
    """
    handle = held_by(van)
    if handle is None:
        return ()
    if van.boot_id == sysfs.boot_id():
        names = van.driver_data.get(NAMES, '').split()
        return _named(own_files(van), names)
    try:
        before = file_groups.from_text(van.driver_data.get(ENTRY))
        if before is None:
            return ()
        found = file_groups.find(handle.name, specs, before)
    except (exception.ExceptionBase, OSError, ValueError) as err:
        # An error here must not keep other VANs from other devices. Another
        # version of os-acc may have written the entry.
        LOG.warning('VAN %s: %s', van.uuid, exception.describe(err))
        return ()
    if found is None:
        return ()
    return _named([each.file for each in found.own], names_of(found))


def names_of(found: file_groups.Accelerator) -> list[str]:
    """The names of the devices of an accelerator's own files."""
    return [file_place.of(each.number).name for each in found.own]


def _named(
    files: Sequence[device_file.DeviceFile], names: Sequence[str]
) -> allocated.Files:
    numbers = device_file.texts(each.number for each in files)
    paths = [each.path for each in files]
    # Other drivers, and earlier versions, note no names.
    known = names if len(names) == len(files) else [''] * len(files)
    return tuple(zip(numbers, paths, known, strict=True))
