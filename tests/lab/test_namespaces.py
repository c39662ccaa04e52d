# SPDX-License-Identifier: Apache-2.0

"""QEMU in a mount namespace of its own, as libvirt runs it by default.

libvirt deletes the VFIO file in QEMU's /dev when it removes the hostdev, which
can be before QEMU has closed the file.
"""

from __future__ import annotations

import os
import pathlib
import signal
import threading
import time

import live
import pytest
import use

import os_acc
from os_acc import exception


def qemu(guest: live.Guest) -> int:
    """The process of a guest's QEMU."""
    file = pathlib.Path(f'/run/libvirt/qemu/{guest.name}.pid')
    return int(file.read_text())


def sees(pid: int, path: str) -> bool:
    return os.path.exists(f'/proc/{pid}/root{path}')


@pytest.fixture
def plugged(guest, here):
    """A guest that has a VF: the instance, and the VF's VFIO file."""
    instance = use.instance(guest.uuid)
    os_acc.plug(instance, [use.pci_request(use.VFS[0])], live=True)
    path = use.group_file(use.VFS[0])
    assert sees(qemu(guest), path)
    return instance, path


def test_qemu_has_a_dev_of_its_own(guest, plugged, snapshot):
    instance, path = plugged
    pid = qemu(guest)
    own = os.readlink('/proc/self/ns/mnt')
    assert os.readlink(f'/proc/{pid}/ns/mnt') != own
    assert not sees(pid, '/dev/mem')
    assert os_acc.unplug(instance, live=True) == 1
    assert not sees(pid, path)
    assert not os.path.exists(path)


def test_the_file_is_deleted_but_open(guest, here, plugged):
    """unplug fails, and the function stays bound to VFIO."""
    instance, path = plugged
    here.set_override('release_timeout', 3.0, 'os_acc')
    thief = use.Thief(path, qemu(guest))
    try:
        with pytest.raises(exception.UnplugException) as err:
            os_acc.unplug(instance, live=True)
        assert '<hostdev' not in guest.xml()
        assert not sees(qemu(guest), path)
        assert any(link.endswith(' (deleted)') for link in thief.links())
        assert isinstance(err.value.__cause__, exception.DeviceBusy)
        assert f'process {thief.pid} (' in str(err.value)
        assert f' has {path} open' in str(err.value)
        assert use.driver_of(use.VFS[0]) == 'vfio-pci'
        (van,) = os_acc.get_vans(instance)
        assert van.state == 'error'
    finally:
        thief.end()
    assert os_acc.unplug(instance, live=True) == 1


def test_unplug_waits_until_the_file_is_closed(guest, here, plugged):
    instance, path = plugged
    here.set_override('release_timeout', 120.0, 'os_acc')
    thief = use.Thief(path, qemu(guest))
    ended = []

    def end() -> None:
        try:
            live.wait(lambda: not sees(qemu(guest), path), 120)
            time.sleep(5)
            ended.append(time.monotonic())
        finally:
            thief.end()

    thread = threading.Thread(target=end)
    thread.start()
    assert os_acc.unplug(instance, live=True) == 1
    done = time.monotonic()
    thread.join(60)
    assert ended
    assert done > ended[0]


def test_qemu_is_killed(guest, here, plugged, snapshot):
    """Its guest is shut off then; the device goes back to its driver."""
    instance, path = plugged
    here.set_override('release_timeout', 60.0, 'os_acc')
    os.kill(qemu(guest), signal.SIGKILL)
    assert os_acc.unplug(instance, live=True) == 1
    assert not os.path.exists(path)
    assert '<hostdev' not in guest.xml('--inactive')
    assert os_acc.get_vans(instance).objects == []
