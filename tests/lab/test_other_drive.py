# SPDX-License-Identifier: Apache-2.0

"""Another drive of the same model is at a VAN's address after a reboot.

It may hold the data of another instance: so the VAN does not get it, and the
release of the VAN does not erase it. See lab_devices.qemu_options().
"""

from __future__ import annotations

import pathlib
import shutil

import lab_devices
import pytest
import use

import os_acc
from os_acc.kernel import nvme
from os_acc.kernel import pci

DISK = lab_devices.NVME_DISK
INSTANCE = '3b0a6bb0-1111-4222-8333-444455556666'
NOTES = pathlib.Path('/var/lib/os-acc-root')
SECRET = b'of another instance'


def configure(state: pathlib.Path) -> None:
    use.configure(state)
    os_acc.CONF.set_override('cleaning_command', '', 'os_acc')


def disk() -> pathlib.Path:
    """The block device of the drive on the host."""
    (found,) = (pci_path() / 'nvme').glob('nvme*/nvme*n1')
    return pathlib.Path('/dev') / found.name


def pci_path() -> pathlib.Path:
    return pathlib.Path(pci.get(DISK).path)


@pytest.mark.boot1
def test_before_the_reboot(lab_state, leave_all):
    known = nvme.drive_of(pci.get(DISK))
    assert known is not None
    assert known.startswith('disk1/')
    configure(lab_state / 'other-drive')
    os_acc.plug(use.instance(INSTANCE), [use.pci_request(DISK)])
    # The root file system is not kept over the reboot.
    kept = lab_state / 'notes-of-a-drive'
    kept.mkdir()
    notes = [each for each in NOTES.iterdir() if DISK in each.name]
    assert any(f'"drive": "{known}"' in each.read_text() for each in notes)
    for each in notes:
        shutil.copy2(each, kept)
    use.close()


@pytest.mark.boot2
def test_after_the_reboot(lab_state, report):
    assert nvme.drive_of(pci.get(DISK)) != 'disk1/0'
    with open(disk(), 'r+b', buffering=0) as file:
        file.write(SECRET.ljust(4096, b'\0'))
    NOTES.mkdir(mode=0o700, exist_ok=True)
    for each in (lab_state / 'notes-of-a-drive').iterdir():
        shutil.copy2(each, NOTES)
    configure(lab_state / 'other-drive')
    (van,) = os_acc.get_vans()
    assert van.error is not None
    assert 'is at that address now' in van.error
    report(f'lab: {van.error}')
    assert use.driver_of(DISK) == 'nvme'
    assert os_acc.unplug(use.instance(INSTANCE)) == 1
    assert use.driver_of(DISK) == 'nvme'
    with open(disk(), 'r+b', buffering=0) as file:
        assert file.read(len(SECRET)) == SECRET
        file.seek(0)
        file.write(bytes(4096))
    use.close()
