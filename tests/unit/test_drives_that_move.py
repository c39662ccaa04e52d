# SPDX-License-Identifier: Apache-2.0

"""NVMe drives that have another address after a reboot of the host.

A card that was added, or a change of the firmware, renumbers the buses: the
drives of two instances may then have each other's addresses. Both drives are
of the same model, so that vendor:product says nothing.
"""

from __future__ import annotations

import shutil

import command
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.kernel import nvme
from os_acc.kernel import pci
from os_acc.testing import kernel as kernel_model

FIRST, SECOND, THIRD = devices.DISK, '0000:14:00.0', '0000:15:00.0'
IDS = '1b36:0010'


class Drives:
    """The drives of a host. The host's NVMe driver shows what they are."""

    def __init__(self, kernel: kernel_model.Kernel, shown: bool) -> None:
        self.kernel = kernel
        self.shown = shown
        driver = 'nvme' if shown else 'vfio-pci'
        for address in (SECOND, THIRD):
            kernel.add_function(address, IDS, 0x010802, driver)
        kernel.unbind(FIRST)
        kernel.native[FIRST] = driver
        kernel.bind(FIRST, driver)
        for address in (FIRST, SECOND, THIRD):
            self.put(address, kernel.drives.at(address))

    def put(self, address: str, drive) -> None:
        """Put a drive at an address."""
        self.kernel.drives.there[address] = drive
        directory = self.kernel.pci / 'devices' / address / 'nvme'
        shutil.rmtree(directory, ignore_errors=True)
        if self.shown:
            (directory / 'nvme0').mkdir(parents=True)
            (directory / 'nvme0/serial').write_text(f'{drive.serial:20}\n')
            (directory / 'nvme0/cntlid').write_text(f'{drive.id}\n')

    def hide(self) -> None:
        """What the driver of the host shows is gone once VFIO has them."""
        for address in (FIRST, SECOND, THIRD):
            directory = self.kernel.pci / 'devices' / address / 'nvme'
            shutil.rmtree(directory, ignore_errors=True)

    def swap(self) -> None:
        """Reboot; the first two drives have each other's addresses then."""
        self.kernel.reboot()
        there = dict(self.kernel.drives.there)
        self.put(FIRST, there[SECOND])
        self.put(SECOND, there[FIRST])
        self.put(THIRD, there[THIRD])

    def rotate(self) -> None:
        """Reboot; each drive is where the one before was."""
        self.kernel.reboot()
        there = dict(self.kernel.drives.there)
        self.put(FIRST, there[THIRD])
        self.put(SECOND, there[FIRST])
        self.put(THIRD, there[SECOND])


def write(drive, text: bytes) -> None:
    drive.namespaces[1].fill(text)


def has(drive, text: bytes) -> bool:
    return any(text in each for each in drive.namespaces[1].data.values())


@pytest.fixture(params=[True, False], ids=['shown', 'bound at boot'])
def host(kernel, request):
    devices.furnish(kernel)
    devices.spec({'address': '*', 'product_id': '0010'})
    made = Drives(kernel, request.param)
    os_acc.initialize()
    return made


def plug(host, *addresses: str) -> list:
    found = []
    for address in addresses:
        instance = devices.instance()
        os_acc.plug(instance, [devices.pci(address)])
        found.append(instance)
    host.hide()
    return found


def test_the_name_of_a_drive():
    assert nvme.drive_id('S1 ', 3) == 'S1/3'
    assert nvme.drive_id(' ', 3) is None
    assert nvme.drive_id('0000', 3) is None


def test_no_instance_gets_the_drive_of_another(host):
    first, second = host.kernel.drives.at(FIRST), host.kernel.drives.at(SECOND)
    plug(host, FIRST, SECOND)
    write(first, b'secret of the first')
    write(second, b'secret of the second')
    host.swap()
    report = os_acc.recover()
    assert report.restored == []
    assert len(report.failed) == 2
    for each in report.failed:
        assert 'is at that address now' in each.error or (
            'may still hold the data of instance' in each.error
        )
    assert has(first, b'secret of the first')
    assert has(second, b'secret of the second')


def test_unplug_does_not_erase_the_drive_of_another(host):
    first, second = host.kernel.drives.at(FIRST), host.kernel.drives.at(SECOND)
    owner, _ = plug(host, FIRST, SECOND)
    write(first, b'secret of the first')
    write(second, b'secret of the second')
    host.swap()
    assert os_acc.unplug(owner) == 1
    assert has(second, b'secret of the second')
    assert has(first, b'secret of the first')


def test_an_empty_drive_is_not_taken_for_the_one_with_data(host):
    first = host.kernel.drives.at(FIRST)
    plug(host, FIRST)
    write(first, b'secret')
    host.swap()
    (failed,) = os_acc.recover().failed
    assert 'is at that address now' in failed.error
    assert has(first, b'secret')


def test_nobody_else_gets_a_drive_that_has_moved(host):
    first = host.kernel.drives.at(FIRST)
    (owner,) = plug(host, FIRST)
    write(first, b'secret')
    host.rotate()
    with pytest.raises(exception.ExceptionBase) as caught:
        plug(host, SECOND)
    assert f'data of instance {owner.uuid}' in str(caught.value) + str(
        caught.value.__cause__
    )
    assert has(first, b'secret')


def test_device_free_erases_it_where_it_is(
    host, tmp_path, capsys, monkeypatch
):
    first = host.kernel.drives.at(FIRST)
    plug(host, FIRST)
    write(first, b'secret')
    host.rotate()
    with pytest.raises(exception.ExceptionBase, match=SECOND):
        plug(host, SECOND)
    run = command.Command(tmp_path / 'state', capsys, monkeypatch)
    result = run('device', 'free', SECOND)
    assert result.code == 0, result.err
    assert 'it was erased' in result.out
    assert not has(first, b'secret')
    plug(host, SECOND)


def test_it_is_taken_again_where_it_was(host):
    first, second = host.kernel.drives.at(FIRST), host.kernel.drives.at(SECOND)
    owner, _ = plug(host, FIRST, SECOND)
    write(first, b'secret')
    host.swap()
    assert len(os_acc.recover().failed) == 2
    host.swap()
    assert len(os_acc.recover().restored) == 2
    assert has(first, b'secret')
    assert os_acc.unplug(owner) == 1
    assert not has(first, b'secret')
    assert second.formatted == []


def test_a_note_of_an_earlier_version_counts_for_its_address(host):
    from os_acc.privileged import storage

    owner, other = devices.instance().uuid, devices.instance().uuid
    function = pci.get(FIRST)
    storage.write_note(function, owner, None)
    assert storage.data_of_others(function, owner) is None
    assert owner in str(storage.data_of_others(function, other))
    assert storage.data_of_others(pci.get(SECOND), other) is None
    # Once it is known which drive is there, it is noted.
    storage.write_note(function, owner, 'S1/0')
    assert storage.data_of_others(function, other, 'S2/0') is None
    assert owner in str(storage.data_of_others(pci.get(SECOND), other, 'S1/0'))
