# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Which devices VANs have, by the privileged half's own record.

device_spec can change while a VAN has a device. The VAN keeps the device until
it is released, and gets it again after a reboot of the host. The privileged
half must not trust its caller that there is such a VAN. So it notes each
device when it gives it out, which it does only while device_spec offers the
device. It deletes the note when it takes the device back.

A note allows no more than what was given out: see has(), has_part() and
values(). Unlike the record in /run, the notes survive a reboot.
"""

from __future__ import annotations

from collections.abc import Callable
import json
import logging
import os
from typing import Any

from os_acc import exception
from os_acc.devices import file_place
from os_acc.devices import mdev
from os_acc.devices import pci
from os_acc.devices import root_folder
from os_acc.privileged import root_files

LOG = logging.getLogger(__name__)

#: Only root can write in it. Root creates it. It is no option, because a
#: caller must not choose it.
FOLDER = '/var/lib/os-acc-root'

#: Kinds of notes: a whole function, the VFs of a PF, a VF as a vGPU, an mdev,
#: device files, a work queue of Intel DSA or IAA.
PCI, VFS, VGPU, MDEV, FILE = 'pci', 'vfs', 'vgpu', 'mdev', 'file'
IDXD = 'idxd'
#: The kind of the notes of nvme_of_notes, which has its own rules.
NAMESPACE = 'namespace'

#: The files of the notes.
files = root_files.RootFiles(
    lambda: FOLDER, lambda: root_folder.open_at(FOLDER), durable=True
)


def note(kind: str, name: str, what: str, **values: Any) -> None:
    """Note that a device is given out. Call it before the device is touched.

    :param kind: such as PCI
    :param name: the address of the function, or the UUID of the mdev
    :param what: tells another device of the same name: vendor:product of the
        function, or parent and type of the mdev
    :param values: what else the VAN keeps, of types that JSON has. A value
        that the note has already stays, unless it is given here
    :raises PrivilegeError: if the note cannot be written. The device must not
        be touched then, because it might never be released
    """
    known = _read(kind, name)
    before = known if known is not None and known['what'] == what else {}
    wanted = {**before, **values, 'what': what}
    if wanted != known:
        files.write(f'{kind}-{name}', json.dumps(wanted))


def values(kind: str, name: str, what: str) -> dict[str, Any] | None:
    """The values of a note; None if the device is not given out."""
    known = _read(kind, name)
    return known if known is not None and known['what'] == what else None


def holder(kind: str, name: str) -> dict[str, Any] | None:
    """The values of a note, whatever its ``what`` says; None if none."""
    return _read(kind, name)


def is_noted(kind: str, name: str, what: str) -> bool:
    """Whether a device is given out. See note()."""
    return values(kind, name, what) is not None


def has(function: pci.Function) -> bool:
    """Whether a function is given out itself, as a whole or as a vGPU."""
    return any(
        is_noted(kind, function.address, function.ids) for kind in (PCI, VGPU)
    )


def has_part(function: pci.Function) -> bool:
    """Whether a function is given out, or VFs of it are."""
    return (
        has(function)
        or is_noted(VFS, function.address, function.ids)
        or has_vf(function)
    )


def has_vf(pf: pci.Function) -> bool:
    """Whether a VF of a PF is given out."""
    for address in pf.vf_addresses:
        vf = pci.find(address)
        if vf is not None and has(vf):
            return True
    return False


def note_function(function: pci.Function, **more: Any) -> None:
    """Note that a function is given out as a whole. See note()."""
    note(PCI, function.address, function.ids, device=function.parent, **more)


def note_trusted(vf: pci.Function) -> None:
    """Note that a VF that is given out as a whole may stay trusted."""
    if is_noted(PCI, vf.address, vf.ids):
        note_function(vf, trusted=True)


def note_vfs(pf: pci.Function, number: int) -> None:
    """Note that VANs get VFs of a PF, of which there are a number."""
    known = values(VFS, pf.address, pf.ids) or {}
    numbers = sorted({*known.get('numbers', ()), number})
    note(VFS, pf.address, pf.ids, device=pf.address, numbers=numbers)


def note_vgpu(vf: pci.Function, number: int | None) -> None:
    """Note that a VF is given out as a vGPU.

    :param number: the vGPU type that os-acc sets; None: the operator sets it
    """
    note(VGPU, vf.address, vf.ids, device=vf.parent, number=number)


def note_mdev(device: mdev.Mdev) -> None:
    """Note that a mediated device is given out. See note()."""
    note(MDEV, device.uuid, mdev_text(device), device=device.parent)


def mdev_text(device: mdev.Mdev) -> str:
    """What tells another mediated device with the same UUID."""
    return f'{device.parent} {device.type}'


def of_device(device: str) -> list[tuple[str, str]]:
    """The notes of a device and of its parts: VFs, vGPUs, mdevs, files.

    :param device: a PCI address, the name of another parent of mdevs, or the
        path of a device file
    :returns: kind and name of each
    """
    found = []
    for each in files.names():
        kind, _, name = each.partition('-')
        known = _read(kind, name)
        if (
            name == device
            or name.startswith(f'{device}{file_place.SEPARATOR}')
            or (known and known.get('device') == device)
        ):
            found.append((kind, name))
    return found


def forget_unused(device: str, is_used: Callable[[str], bool]) -> None:
    """Delete the notes of a device and of its parts that no VAN has.

    That of a namespace stays: it says whose data the namespace may hold. This
    is for os-acc device deny, which reads the journal and runs as root.

    :param device: as in of_device()
    :param is_used: whether a VAN has a PCI function or mdev, by its address or
        UUID
    :raises PrivilegeError: if a note cannot be deleted
    """
    for kind, name in of_device(device):
        if kind != NAMESPACE and not is_used(name):
            forget(kind, name)


def forget(kind: str, name: str, what: str | None = None) -> None:
    """Delete the note of a device, if there is one.

    :param what: as in note(): the note of another device stays. None: delete
        it whatever it says
    :raises PrivilegeError: if it cannot be deleted
    """
    known = _read(kind, name)
    if known is not None and what in (None, known['what']):
        files.delete(f'{kind}-{name}')


def _read(kind: str, name: str) -> dict[str, Any] | None:
    """Read a note. What cannot be read or trusted does not count."""
    try:
        text = files.read(f'{kind}-{name}')
        found = None if text is None else json.loads(text)
    except (exception.PrivilegeError, ValueError) as err:
        LOG.warning(
            '%s: %s',
            os.path.join(FOLDER, f'{kind}-{name}'),
            exception.describe(err),
        )
        return None
    return found if isinstance(found, dict) and 'what' in found else None
