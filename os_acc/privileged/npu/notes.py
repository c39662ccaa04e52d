# SPDX-License-Identifier: Apache-2.0

"""Which VAN has which NPU, by the notes of the privileged half: see held.

A note has the kind of device files. Its name, which no other kind has, tells
os_acc.claims that the VAN has the whole PCI function.
"""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses

from os_acc.claims import holder
from os_acc.kernel import device_file
from os_acc.kernel import file_place
from os_acc.kernel import pci
from os_acc.kinds.npu import entry as npu_entry
from os_acc.kinds.npu import names as npu_names
from os_acc.kinds.npu import rules as npu_rules
from os_acc.privileged import held
from os_acc.privileged import offers


def is_given(function: pci.Function) -> bool:
    """Whether a VAN has an NPU since before.

    A note of another device that had the address does not count.
    """
    name = npu_names.name_of(function.address)
    return held.is_noted(held.FILE, name, function.ids)


def has(van: str, function: pci.Function) -> bool:
    """Whether a VAN has an NPU.

    :param van: its UUID
    """
    name = npu_names.name_of(function.address)
    noted = held.values(held.FILE, name, function.ids)
    other = None if noted is None else noted.get('holder')
    return isinstance(other, list) and other[3:] == [van]


def is_of_an_earlier_van(function: pci.Function) -> bool:
    """Whether an NPU was given to a VAN that has not given it back.

    The journal may have lost that VAN, or forgotten it.
    """
    name = npu_names.name_of(function.address)
    noted = held.any_values(held.FILE, name) or {}
    who, other = holder.current(), noted.get('holder')
    if who is None or not isinstance(other, list):
        return False
    return other[2:] != [who.instance, who.van]


def settings_of(function: pci.Function) -> npu_entry.Npu | None:
    """To whom its files belong: as it was given out, or by device_spec.

    :returns: None if it is not offered, and no VAN has it
    """
    name = npu_names.name_of(function.address)
    noted = held.values(held.FILE, name, function.ids)
    if noted is not None:
        found = npu_entry.of_note(noted.get('settings'))
        if found is not None:
            return found
    return npu_rules.settings_of(offers.specs().find(function))


def note(
    function: pci.Function,
    settings: npu_entry.Npu,
    files: Iterable[device_file.DeviceFile],
) -> None:
    """Note that a VAN has an NPU.

    :raises DeviceBusy: if another VAN has it, or a file of it
    :raises PrivilegeError: if the note cannot be written
    """
    places = [file_place.of(each.number).name for each in files]
    held.note(
        held.FILE,
        npu_names.name_of(function.address),
        function.ids,
        parent=function.address,
        files=places,
        within=[function.address],
        driver=function.driver,
        settings=dataclasses.asdict(settings),
    )


def driver_of(address: str) -> str:
    """The kernel driver that an NPU had when it was given out; '': unknown."""
    name = npu_names.name_of(address)
    noted = held.any_values(held.FILE, name) or {}
    return str(noted.get('driver') or '')


def forget(address: str, cleaned: held.Cleaned) -> None:
    """Delete the note of an NPU."""
    held.forget(held.FILE, npu_names.name_of(address), cleaned)
