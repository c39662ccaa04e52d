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

Unlike /run, the folder of the notes survives a reboot.
"""

from __future__ import annotations

import json
import logging
import os

from os_acc import exception
from os_acc.devices import atomic_file
from os_acc.devices import mdev
from os_acc.devices import pci
from os_acc.devices import trust

LOG = logging.getLogger(__name__)

#: Only root can write in it. Root creates it. It is no option, because a
#: caller must not choose it.
FOLDER = '/var/lib/os-acc-root'

PCI, VFS, MDEV = 'pci', 'vfs', 'mdev'


def note(kind: str, name: str, what: str) -> None:
    """Note that a device is given out. Call it before the device is touched.

    If the note cannot be written, that is logged: the device works, as long as
    device_spec offers it.

    :param kind: PCI: a function; VFS: the VFs of a PF; MDEV
    :param name: the address of the function, or the UUID of the mdev
    :param what: tells another device of the same name: vendor:product of the
        function, or parent and type of the mdev
    """
    if is_noted(kind, name, what):
        return
    try:
        if os.path.exists(FOLDER):
            trust.check_folder(FOLDER)
        atomic_file.write(_path(kind, name), json.dumps(what), 0o600, 0o700)
    except (OSError, exception.InvalidRequest) as err:
        LOG.warning(
            'Cannot note in %s that %s is given out: %s. If device_spec no '
            'longer offers it, it cannot be released',
            FOLDER,
            name,
            exception.describe(err),
        )


def is_noted(kind: str, name: str, what: str) -> bool:
    """Whether a device is given out. See note()."""
    try:
        with open(_path(kind, name), encoding='utf-8') as file:
            trust.check_folder(FOLDER)
            return bool(json.load(file) == what)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as err:
        LOG.warning('%s: %s', FOLDER, exception.describe(err))
        return False


def has(function: pci.Function) -> bool:
    """Whether a function is given out, or VFs of it are."""
    if is_noted(PCI, function.address, function.ids):
        return True
    if is_noted(VFS, function.address, function.ids):
        return True
    for address in function.vf_addresses:
        vf = pci.find(address) if os.path.exists(_path(PCI, address)) else None
        if vf is not None and is_noted(PCI, address, vf.ids):
            return True
    return False


def note_function(function: pci.Function) -> None:
    """Note that a function is given out. See note()."""
    note(PCI, function.address, function.ids)


def note_mdev(device: mdev.Mdev) -> None:
    """Note that a mediated device is given out. See note()."""
    note(MDEV, device.uuid, mdev_text(device))


def mdev_text(device: mdev.Mdev) -> str:
    """What tells another mediated device with the same UUID."""
    return f'{device.parent} {device.type}'


def forget(kind: str, name: str) -> None:
    """Delete the note of a device, if there is one."""
    try:
        atomic_file.remove(_path(kind, name))
    except OSError as err:
        LOG.warning('%s: %s', FOLDER, exception.describe(err))


def _path(kind: str, name: str) -> str:
    return os.path.join(FOLDER, f'{kind}-{name}')
