# SPDX-License-Identifier: Apache-2.0

"""Attach to and detach from a running guest: libvirtd, QEMU, VFIO."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import uuid

import lab_devices
import live
import pytest
import use

import acc_plug_libvirt
import os_acc
from os_acc import exception
from os_acc import objects

BOTH = (live.MTTY_IDS, live.NVME_IDS)


def instance(guest: live.Guest) -> objects.InstanceInfo:
    return use.instance(guest.uuid)


def requests() -> list[objects.AcceleratorRequest]:
    return [use.mdev_request('mtty-1'), use.pci_request(use.VFS[0])]


def hostdevs(guest: live.Guest) -> tuple[int, int]:
    """Count the devices of the running guest and of its definition."""
    return (
        guest.xml().count('<hostdev'),
        guest.xml('--inactive').count('<hostdev'),
    )


def test_live(guest, here, snapshot):
    """The guest itself lists both devices, and after unplug neither."""
    before = snapshot()
    assert not guest.sees(*BOTH)
    wanted = requests()
    vans = os_acc.plug(instance(guest), wanted, live=True)
    assert guest.sees(*BOTH)
    assert hostdevs(guest) == (2, 2)
    for van in vans:
        assert f'ua-acc-{van.uuid}' in guest.xml()
    # Again: nothing is touched.
    assert os_acc.plug(instance(guest), wanted, live=True) == vans
    assert hostdevs(guest) == (2, 2)
    groups = [
        use.group_file(use.VFS[0]),
        use.mdev_file(vans[0].handle.uuid),
    ]
    assert os_acc.unplug(instance(guest), live=True) == 2
    bus = guest.bus()
    assert not any(ids in bus for ids in BOTH)
    assert hostdevs(guest) == (0, 0)
    assert not any(os.path.exists(path) for path in groups)
    assert snapshot() == before


def test_a_part(guest, here, snapshot):
    """One of two devices is unplugged; the other stays."""
    wanted = requests()
    os_acc.plug(instance(guest), wanted, live=True)
    assert os_acc.unplug(instance(guest), wanted[:1], live=True) == 1
    bus = guest.bus()
    assert live.MTTY_IDS not in bus
    assert live.NVME_IDS in bus
    os_acc.unplug(instance(guest), live=True)


def test_cold(libvirtd, here, snapshot):
    """Define a guest with guest_config, boot it, destroy it, unplug."""
    before = snapshot()
    made = live.Guest(libvirtd)
    try:
        vans = os_acc.plug(instance(made), requests())
        made.define(''.join(van.guest_config for van in vans))
        made.start()
        assert made.sees(*BOTH)
        made.destroy()
        assert os_acc.unplug(instance(made)) == 2
        assert snapshot() == before
    finally:
        made.remove()


def test_a_guest_that_is_shut_off(libvirtd, here):
    """A live plug for a guest that is off changes its definition only."""
    made = live.Guest(libvirtd)
    try:
        os_acc.plug(instance(made), requests()[:1], live=True)
        assert made.xml('--inactive').count('<hostdev') == 1
        os_acc.unplug(instance(made), live=True)
        assert made.xml('--inactive').count('<hostdev') == 0
    finally:
        made.remove()


def test_a_domain_that_is_gone(libvirtd, here, snapshot):
    """A plug into a missing guest fails; an unplug from it succeeds."""
    before = snapshot()
    made = live.Guest(libvirtd)
    os_acc.plug(instance(made), requests()[:1], live=True)
    made.remove()
    assert os_acc.unplug(instance(made), live=True) == 1
    with pytest.raises(exception.PlugException, match='no domain'):
        os_acc.plug(instance(made), requests()[:1], live=True)
    assert snapshot() == before


def test_a_guest_that_does_not_answer(guest, here, snapshot):
    before = snapshot()
    os_acc.plug(instance(guest), requests(), live=True)
    live.virsh('suspend', guest.uuid)
    try:
        here.set_override('detach_attempt_timeout', 3.0, 'os_acc_libvirt')
        here.set_override('detach_timeout', 6.0, 'os_acc_libvirt')
        with pytest.raises(
            exception.UnplugException, match='to release VAN'
        ) as err:
            os_acc.unplug(instance(guest), live=True)
        assert isinstance(err.value.__cause__, exception.Timeout)
        vans = os_acc.get_vans(instance(guest))
        assert {van.state for van in vans} == {'error'}
        assert use.driver_of(use.VFS[0]) == 'vfio-pci'
    finally:
        live.virsh('resume', guest.uuid)
    here.set_override('detach_timeout', 60.0, 'os_acc_libvirt')
    assert os_acc.unplug(instance(guest), live=True) == 2
    assert not any(ids in guest.bus() for ids in BOTH)
    assert snapshot() == before


def test_libvirtd_restarts_between(guest, libvirtd, here, snapshot):
    before = snapshot()
    os_acc.plug(instance(guest), requests(), live=True)
    libvirtd.kill()
    libvirtd.start()
    assert os_acc.unplug(instance(guest), live=True) == 2
    assert hostdevs(guest) == (0, 0)
    assert snapshot() == before


def test_libvirtd_restarts_in_a_detach(guest, libvirtd, here, snapshot):
    before = snapshot()
    os_acc.plug(instance(guest), requests(), live=True)
    live.virsh('suspend', guest.uuid)
    failures = []

    def unplug() -> None:
        try:
            os_acc.unplug(instance(guest), live=True)
        except exception.UnplugException as err:
            failures.append(err)

    thread = threading.Thread(target=unplug)
    thread.start()
    time.sleep(6)
    libvirtd.kill()
    libvirtd.start()
    live.virsh('resume', guest.uuid)
    thread.join(240)
    assert not thread.is_alive()
    if failures:
        assert os_acc.unplug(instance(guest), live=True) == 2
    assert os_acc.get_vans(instance(guest)) == objects.VANList()
    assert hostdevs(guest) == (0, 0)
    assert snapshot() == before


@pytest.mark.parametrize('kill', ['before attach', 'after attach', 'detach'])
def test_killed(guest, here, snapshot, tmp_path, kill):
    """Each device of the guest has a VAN, and each VAN has its device."""
    before = snapshot()
    wanted = requests()
    if kill == 'detach':
        os_acc.plug(instance(guest), wanted, live=True)
    use.close()
    order = {
        'kill': kill,
        'state': str(tmp_path / 'state'),
        'instance': guest.uuid,
        'requests': [request.obj_to_primitive() for request in wanted],
    }
    child = pathlib.Path(__file__).with_name('live_child.py')
    # As pytest does by pythonpath in pyproject.toml.
    environment = {**os.environ, 'PYTHONPATH': str(child.parents[1])}
    process = subprocess.run(
        [sys.executable, str(child), json.dumps(order)],
        env=environment,
        timeout=400,
    )
    assert process.returncode == -signal.SIGKILL
    use.configure(tmp_path / 'state', initialize=False)
    here.set_override('release_timeout', 20.0, 'os_acc')
    os_acc.initialize()
    assert os_acc.get_vans() == objects.VANList()
    assert hostdevs(guest) == (0, 0)
    assert not any(ids in guest.bus() for ids in BOTH)
    assert snapshot() == before


def test_no_free_port(libvirtd, here, snapshot):
    """The second of three devices is refused, and all are undone."""
    before = snapshot()
    made = live.Guest(libvirtd, ports=1)
    try:
        made.start()
        bus = made.bus()
        wanted = [
            use.pci_request(use.VFS[0]),
            use.mdev_request('mtty-1'),
            use.pci_request(use.VFS[1]),
        ]
        with pytest.raises(exception.PlugException, match='root port') as err:
            os_acc.plug(instance(made), wanted, live=True)
        assert err.value.undo_errors == []
        assert made.bus() == bus
        assert hostdevs(made) == (0, 0)
        assert os_acc.get_vans() == objects.VANList()
        assert snapshot() == before
    finally:
        made.remove()


def test_a_function_that_fits_no_port(guest, here, snapshot):
    """An invalid guest address: a slot that a root port does not have."""
    before, bus = snapshot(), guest.bus()
    wanted = [use.pci_request(use.VFS[0]), use.mdev_request('mtty-1')]
    # Slot 5 of a root port, which has slot 0 only.
    here.set_override(
        'guest_addresses',
        [f'{wanted[1].handle.uuid}=0000:01:05.0'],
        'os_acc_libvirt',
    )
    with pytest.raises(exception.PlugException) as err:
        os_acc.plug(instance(guest), wanted, live=True)
    assert isinstance(err.value.__cause__, exception.HypervisorError)
    assert err.value.undo_errors == []
    assert guest.bus() == bus
    assert hostdevs(guest) == (0, 0)
    assert snapshot() == before


def test_the_device_of_another_domain(guest, libvirtd, here):
    """Somebody gave the device to another domain, without os-acc."""
    wanted = use.mdev_request('mtty-1')
    other = live.Guest(libvirtd)
    try:
        (van,) = os_acc.plug(instance(other), [wanted])
        xml = van.guest_config.replace('ua-acc-', 'ua-other-')
        os_acc.unplug(instance(other))
        other.define(xml)
        with pytest.raises(exception.PlugException, match=other.name):
            os_acc.plug(instance(guest), [wanted], live=True)
        assert hostdevs(guest) == (0, 0)
    finally:
        other.remove()


def test_what_is_there_already(guest, here, tmp_path):
    """libvirt attaches no device twice; a missing one is added."""
    wanted = use.mdev_request('mtty-1')
    (van,) = os_acc.plug(instance(guest), [wanted], live=True)
    plugin = acc_plug_libvirt.LibvirtPlugin.load('libvirt')
    plugin.plug(van, instance(guest), True)
    assert hostdevs(guest) == (1, 1)
    file = tmp_path / 'hostdev.xml'
    file.write_text(van.guest_config)
    for side, left in (('--config', (1, 0)), ('--live', (0, 1))):
        live.virsh('detach-device', guest.uuid, str(file), side)
        live.wait(lambda left=left: hostdevs(guest) == left, 60)
        plugin.plug(van, instance(guest), True)
        assert hostdevs(guest) == (1, 1)
    group = use.mdev_file(van.handle.uuid)
    assert os.path.exists(group)
    # The device with another alias; the alias with another device.
    other = objects.VAN.obj_from_primitive(van.obj_to_primitive())
    other.uuid = str(uuid.uuid4())
    with pytest.raises(exception.DeviceBusy, match=van.uuid):
        plugin.plug(other, instance(guest), True)
    other.uuid = van.uuid
    other.handle = objects.PCIHandle(address=use.VFS[1])
    with pytest.raises(exception.DeviceBusy, match='alias'):
        plugin.plug(other, instance(guest), True)
    assert hostdevs(guest) == (1, 1)
    os_acc.unplug(instance(guest), live=True)
    assert hostdevs(guest) == (0, 0)


def test_a_transient_domain(guest, here, snapshot):
    """A transient guest has no definition: only the running guest changes."""
    before = snapshot()
    live.virsh('undefine', guest.uuid)
    try:
        os_acc.plug(instance(guest), requests(), live=True)
        assert guest.sees(*BOTH)
        assert os_acc.unplug(instance(guest), live=True) == 2
        assert guest.xml().count('<hostdev') == 0
    finally:
        guest.define()
    assert hostdevs(guest) == (0, 0)
    assert snapshot() == before


def our_files() -> list[str]:
    """The open files of this process, without those of the journal.

    It keeps up to four connections, as many as threads wrote at once.
    """
    found = []
    for name in os.listdir('/proc/self/fd'):
        # The file that lists the directory is closed by now.
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f'/proc/self/fd/{name}'))
    return [path for path in found if 'journal' not in path]


# Each round takes 4 s and more.
ROUNDS = 8


def test_rounds(guest, libvirtd, here, snapshot, report):
    """Plug and unplug again and again: nothing grows."""
    before = snapshot()
    wanted = requests()

    def leaks() -> dict[str, int]:
        return {
            'our files': len(our_files()),
            'libvirtd': len(os.listdir(f'/proc/{libvirtd.pid}/fd')),
            'rows': len(os_acc.get_vans()),
            'groups': len(os.listdir('/dev/vfio')),
            'node devices': len(live.virsh('nodedev-list').stdout.split()),
            'threads': threading.active_count(),
        }

    counts = []
    for number in range(ROUNDS):
        os_acc.plug(instance(guest), wanted, live=True)
        os_acc.unplug(instance(guest), live=True)
        if number in (1, ROUNDS - 1):
            counts.append(leaks())
    report(f'lab: after 2 and after {ROUNDS} rounds: {counts}')
    for name, value in counts[1].items():
        assert value <= counts[0][name] + 1, name
    assert lab_devices.NVME_PF in snapshot()
    assert snapshot() == before
