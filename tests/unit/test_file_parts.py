# SPDX-License-Identifier: Apache-2.0

"""Two device files of one device: a disk and its partitions, and the like.

A glob such as /dev/sd* names both. Each test is also done with two journals:
then only the notes of the privileged half know of the first VAN.
"""

from __future__ import annotations

from concurrent import futures
import contextlib
import threading

import device_nodes
import devices
import nvme_of_model
import pytest

import os_acc
from os_acc import exception
from os_acc.kinds.devfile import rules as file_availability
from os_acc.privileged import notes

SATA = 'pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0'
USB = 'platform/soc/1000.usb/usb1/1-4'
WWN = 'uuid.1b4e28ba-2fa1-11d2-883f-0016d3cca427'


class Host:
    def __init__(self, kernel, tmp_path, monkeypatch) -> None:
        self.kernel, self._directory = kernel, tmp_path
        self.nodes = device_nodes.Nodes(kernel)
        self.nodes.install(monkeypatch)
        self.use('nova')

    def use(self, journal: str) -> None:
        path = str(self._directory / journal)
        os_acc.CONF.set_override('state_path', path, 'os_acc')
        os_acc.initialize(reset=True)

    def block(self, name: str, number: str, directory: str) -> None:
        """Show a block device, also in class/block."""
        self.nodes.add(name, number, directory, 'block')
        blocks = self.kernel.sys / 'class/block'
        blocks.mkdir(parents=True, exist_ok=True)
        (blocks / name).symlink_to(self.kernel.sys / 'devices' / directory)


@pytest.fixture
def host(kernel, tmp_path, monkeypatch):
    devices.furnish(kernel)
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    return Host(kernel, tmp_path, monkeypatch)


def disk(host):
    host.block('sdb', 'b 8:16', f'{SATA}/block/sdb')
    host.block('sdb1', 'b 8:17', f'{SATA}/block/sdb/sdb1')
    host.block('sdb2', 'b 8:18', f'{SATA}/block/sdb/sdb2')
    host.nodes.add('sg1', 'c 21:1', f'{SATA}/scsi_generic/sg1', 'scsi_generic')


def nvme(host):
    drive = 'pci0000:00/0000:07:00.0/nvme/nvme7'
    host.block('nvme7n1', 'b 259:20', f'{drive}/nvme7n1')
    host.block('nvme7n1p1', 'b 259:21', f'{drive}/nvme7n1/nvme7n1p1')
    host.nodes.add('ng7n1', 'c 243:7', f'{drive}/ng7n1', 'nvme-generic')


def tape(host):
    for name, number in (('st0', 'c 9:0'), ('nst0', 'c 9:128')):
        host.nodes.add(name, number, f'{SATA}/scsi_tape/{name}', 'scsi_tape')


def virtual(host):
    host.block('loop7', 'b 7:7', 'virtual/block/loop7')
    host.block('loop7p1', 'b 259:9', 'virtual/block/loop7/loop7p1')


def usb(host):
    host.nodes.add('bus/usb/001/004', 'c 189:3', USB, 'usb')
    directory = f'{USB}/1-4:1.0/video4linux/video0'
    host.nodes.add('video0', 'c 81:0', directory, 'video4linux')


PAIRS = [
    pytest.param(disk, 'sdb', 'sdb1', id='partition'),
    pytest.param(disk, 'sdb', 'sg1', id='sg'),
    pytest.param(disk, 'sdb1', 'sg1', id='sg of a partition'),
    pytest.param(nvme, 'nvme7n1', 'ng7n1', id='ng'),
    pytest.param(nvme, 'nvme7n1p1', 'ng7n1', id='ng of a partition'),
    pytest.param(tape, 'st0', 'nst0', id='tape'),
    pytest.param(virtual, 'loop7', 'loop7p1', id='virtual'),
    pytest.param(usb, 'bus/usb/001/004', 'video0', id='usb'),
]


def entry(name: str, number: int = 0) -> dict[str, object]:
    return {
        'devices': f'/dev/{name}',
        'keeps_data': True,
        'resource_class': f'CUSTOM_{number}',
    }


def plug(request):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [request])
    return instance, van


def busy(request, instance) -> str:
    """What the second VAN is told, which names the first one's instance."""
    error = devices.refused(request)
    assert isinstance(error, exception.ExceptionBase)
    assert instance.uuid in str(error)
    return str(error)


@pytest.mark.parametrize('journal', ['nova', 'other'])
@pytest.mark.parametrize('turned', [False, True])
@pytest.mark.parametrize(('show', 'one', 'other'), PAIRS)
def test_one_device(host, show, one, other, turned, journal):
    show(host)
    if turned:
        one, other = other, one
    entries = [entry(one, 0), entry(other, 1)]
    devices.spec(*entries)
    instance, _ = plug(devices.wanted('CUSTOM_0'))
    if journal == 'other':
        host.use('other')
        devices.spec(entries[1])
    busy(devices.wanted('CUSTOM_1'), instance)
    assert len(os_acc.get_vans()) == (journal == 'nova')
    host.use('nova')
    assert os_acc.unplug(instance) == 1
    host.use(journal)
    instance, _ = plug(devices.wanted('CUSTOM_1'))
    assert os_acc.unplug(instance) == 1
    assert notes.files.names() == []


@pytest.mark.parametrize(('show', 'one', 'other'), PAIRS)
def test_one_device_at_once(host, monkeypatch, show, one, other):
    """Two requests are checked one after the other."""
    show(host)
    devices.spec(entry(one, 0), entry(other, 1))
    meeting = threading.Barrier(2, timeout=0.4)
    check = file_availability.obstacles

    def obstacles(*args, **kwargs):
        found = list(check(*args, **kwargs))
        # Both are here at the same time, unless there is a lock.
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait()
        return iter(found)

    monkeypatch.setattr(file_availability, 'obstacles', obstacles)

    def tried(number):
        try:
            plug(devices.wanted(f'CUSTOM_{number}'))
        except exception.PlugException:
            return False
        return True

    with futures.ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(tried, range(2))) == [False, True]


@pytest.mark.parametrize('journal', ['nova', 'other'])
def test_two_partitions(host, journal):
    disk(host)
    devices.spec(entry('sdb1', 0), entry('sdb2', 1))
    first, _ = plug(devices.wanted('CUSTOM_0'))
    host.use(journal)
    second, _ = plug(devices.wanted('CUSTOM_1'))
    assert os_acc.unplug(second) == 1
    host.use('nova')
    assert os_acc.unplug(first) == 1
    assert notes.files.names() == []


@pytest.fixture
def namespace(host, monkeypatch):
    """An entry for a namespace of NVMe-oF."""
    host.fabric = nvme_of_model.Fabric(host.kernel)
    host.fabric.install(monkeypatch)
    host.fabric.target(WWN)
    target = {
        'nqn': nvme_of_model.NQN,
        'portals': [['192.0.2.1', 4420, 'tcp']],
        'namespaces': [WWN.removeprefix('uuid.')],
    }
    return {'nvme_of': target, 'resource_class': 'CUSTOM_FAST'}


def file_of_namespace(host) -> str:
    """The path of the namespace's device file, as the test kernel knows it."""
    name = host.fabric.block(WWN)
    directory = (host.kernel.sys / 'class/block' / name).resolve()
    number = (directory / 'dev').read_text().strip()
    (host.kernel.root / 'dev' / name).unlink()
    place = directory.relative_to(host.kernel.sys / 'devices')
    host.nodes.add(name, f'b {number}', str(place), 'block')
    return name


def generic_file_of_namespace(host) -> str:
    """As file_of_namespace(): the character device beside it."""
    name = file_of_namespace(host)
    directory = (host.kernel.sys / 'class/block' / name).resolve()
    name = name.replace('nvme', 'ng')
    place = (directory.parent / name).relative_to(host.kernel.sys / 'devices')
    host.nodes.add(name, 'c 243:7', str(place), 'nvme-generic')
    return name


FILES = [file_of_namespace, generic_file_of_namespace]


@pytest.mark.parametrize('file_of_namespace', FILES)
@pytest.mark.parametrize('journal', ['nova', 'other'])
def test_a_file_of_a_namespace_that_an_instance_has(
    host, namespace, journal, file_of_namespace
):
    """A glob such as /dev/nvme*n1 names the disk of another instance."""
    os_acc.CONF.set_override('plugin', 'libvirt', 'os_acc')
    devices.spec(namespace)
    instance, _ = plug(devices.wanted('CUSTOM_FAST'))
    name = file_of_namespace(host)
    host.use(journal)
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    devices.spec(entry(f'{name[:2]}*n1'))
    busy(devices.wanted('CUSTOM_0'), instance)
    host.use('nova')
    assert os_acc.unplug(instance) == 1
    assert notes.files.names() == []


@pytest.mark.parametrize('file_of_namespace', FILES)
@pytest.mark.parametrize('journal', ['nova', 'other'])
def test_a_namespace_of_whose_file_an_instance_has(
    host, namespace, journal, file_of_namespace
):
    """The administrator has connected it."""
    host.fabric.connect(nvme_of_model.NQN, 'nqn.2014-08.org.example:host')
    name = file_of_namespace(host)
    devices.spec(entry(name))
    instance, _ = plug(devices.wanted('CUSTOM_0'))
    host.use(journal)
    os_acc.CONF.set_override('plugin', 'libvirt', 'os_acc')
    devices.spec(namespace)
    busy(devices.wanted('CUSTOM_FAST'), instance)
    assert len(host.fabric.connections()) == 1
    host.use('nova')
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    assert os_acc.unplug(instance) == 1
    assert notes.files.names() == []


def test_a_group_of_vfio_has_all_its_functions(host):
    """A program with the file of the group, such as DPDK, has ended."""
    for address in (devices.SHARED, devices.SHARED_NIC):
        directory = host.kernel.pci / 'devices' / address
        if (driver := host.kernel.driver_of(address)) is not None:
            unbind = host.kernel.pci / 'drivers' / driver / 'unbind'
            host.kernel.write(str(unbind), address)
        host.kernel.write(f'{directory}/driver_override', 'vfio-pci')
        host.kernel.write(f'{host.kernel.pci}/drivers_probe', address)
    host.nodes.add('vfio/g50', 'c 511:50', 'virtual/vfio/50', 'vfio')
    devices.spec(entry('vfio/g50'))
    instance, _ = plug(devices.wanted('CUSTOM_0'))
    host.use('other')
    os_acc.CONF.set_override('plugin', 'libvirt', 'os_acc')
    devices.spec({'address': '*'})
    busy(devices.pci(devices.SHARED_NIC), instance)
