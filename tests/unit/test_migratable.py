# SPDX-License-Identifier: Apache-2.0

"""Whether a guest can move live with a device: the kernel is asked."""

from __future__ import annotations

import errno
import fcntl
import logging
import os

import devices
import pytest
import vgpu_card

import os_acc
from os_acc import exception
from os_acc.kernel import device_files
from os_acc.kernel import vfio
from os_acc.kernel import vgpu_cards
from os_acc.privileged import migratable
from os_acc.privileged.kernel import vfio_device

VARIANT = 'mlx5_vfio_pci'
ALIAS = f'vfio_pci:v000010DEd00001EB8sv*sd*bc*sc*i* {VARIANT}'


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    kernel.add_driver(VARIANT)
    kernel.aliases(ALIAS)
    devices.spec({'address': devices.GPU}, {'address': 'mtty'})
    os_acc.initialize()
    return kernel


@pytest.fixture
def asked(here, monkeypatch):
    """The devices that were opened for the question."""
    found, probe = [], vfio_device.probe

    def note(path, name, feature):
        found.append(name)
        probe(path, name, feature)

    monkeypatch.setattr(vfio_device, 'probe', note)
    return found


def plugged(request):
    (van,) = os_acc.plug(devices.instance(), [request])
    return van


@pytest.mark.parametrize('answer', [True, False])
def test_a_function_on_a_variant_driver(here, asked, answer):
    here.migrates = {VARIANT} if answer else set()
    van = plugged(devices.pci(devices.GPU))
    assert here.driver_of(devices.GPU) == VARIANT
    assert van.live_migratable is answer
    assert [v.live_migratable for v in os_acc.get_vans()] == [answer]
    assert asked == [devices.GPU]


@pytest.mark.parametrize('answer', [True, False])
@pytest.mark.parametrize('there', [True, False])
def test_a_mediated_device(here, asked, answer, there):
    """It is asked whether os-acc has made it or not."""
    here.migrates = {'mtty-2' if answer else 'mtty-1'}
    request = devices.mdev('mtty-2')
    if there:
        kind = here.sys / 'class/mdev_bus/mtty/mdev_supported_types/mtty-2'
        here.write(str(kind / 'create'), request.handle.uuid)
    van = plugged(request)
    assert van.live_migratable is answer
    assert [v.live_migratable for v in os_acc.get_vans()] == [answer]
    assert asked == [request.handle.uuid]


def test_vfio_pci_itself_is_not_asked(here, asked):
    """It cannot save a state, and to open a function takes a reset."""
    here.migrates = {'vfio-pci'}
    devices.spec({'address': devices.GPU, 'vfio_driver': 'vfio-pci'})
    assert plugged(devices.pci(devices.GPU)).live_migratable is False
    assert asked == []


def test_what_libvirt_binds_cannot_be_asked(here, asked):
    here.migrates = {VARIANT}
    devices.spec({'address': devices.GPU, 'bind': 'libvirt'})
    assert plugged(devices.pci(devices.GPU)).live_migratable is False
    assert asked == []


@pytest.mark.parametrize('driver', [VARIANT, 'vfio-pci'])
def test_what_the_operator_has_bound(here, driver):
    here.migrates = {VARIANT}
    path = here.pci / 'devices' / devices.GPU
    here.write(f'{path}/driver_override', driver)
    here.write(str(here.pci / 'drivers_probe'), devices.GPU)
    devices.spec({'address': devices.GPU, 'bind': 'none'})
    van = plugged(devices.pci(devices.GPU))
    assert van.live_migratable is (driver == VARIANT)


@pytest.mark.parametrize('says', ['yes', 'no'])
@pytest.mark.parametrize('kernel_says', [True, False])
def test_device_spec_can_only_forbid(here, asked, says, kernel_says):
    here.migrates = {VARIANT} if kernel_says else set()
    devices.spec({'address': devices.GPU, 'live_migratable': says})
    van = plugged(devices.pci(devices.GPU))
    assert van.live_migratable is (kernel_says and says == 'yes')
    assert bool(asked) is (says == 'yes')


def test_device_spec_forbids_it_for_a_mediated_device(here, asked):
    here.migrates = {'mtty-1'}
    devices.spec(
        {'address': 'mtty', 'mdev_types': ['mtty-1'], 'live_migratable': 'no'}
    )
    assert plugged(devices.mdev()).live_migratable is False
    assert asked == []


def test_somebody_has_its_group_open(here, monkeypatch, caplog):
    """The generated kernel answers as the real one does: EBUSY."""
    here.migrates = {VARIANT}
    probe = vfio_device.probe

    def opened(*args):
        here.hold(here.node(devices.GPU))
        probe(*args)

    monkeypatch.setattr(vfio_device, 'probe', opened)
    caplog.set_level(logging.DEBUG, 'os_acc.drivers.migratable')
    assert plugged(devices.pci(devices.GPU)).live_migratable is False
    assert f'VFIO answers: {os.strerror(errno.EBUSY)}' in caplog.text


@pytest.mark.parametrize(
    'error',
    [
        OSError(errno.ENOTTY, os.strerror(errno.ENOTTY)),
        OSError(errno.EBUSY, os.strerror(errno.EBUSY)),
        exception.Timeout(what='the kernel', seconds=5),
        RuntimeError('a fault of os-acc'),
    ],
)
@pytest.mark.parametrize('kind', ['pci', 'mdev'])
def test_an_error_means_no_and_fails_no_plug(
    here, monkeypatch, caplog, error, kind
):
    def fail(*_):
        raise error

    monkeypatch.setattr(vfio_device, 'probe', fail)
    caplog.set_level(logging.DEBUG, 'os_acc.drivers.migratable')
    request = devices.pci(devices.GPU) if kind == 'pci' else devices.mdev()
    van = plugged(request)
    assert (van.state, van.live_migratable) == ('plugged', False)
    (record,) = [
        each
        for each in caplog.records
        if each.name == 'os_acc.drivers.migratable'
    ]
    assert record.levelno == logging.DEBUG
    assert van.handle.identity.partition('/')[2] in record.getMessage()
    assert van.uuid in str(record.__dict__)


def test_it_is_asked_again_after_a_reboot(here, asked, monkeypatch):
    van = plugged(devices.pci(devices.GPU))
    assert van.live_migratable is False
    here.migrates = {VARIANT}  # the firmware was updated
    here.reboot()
    os_acc.recover()
    assert [v.live_migratable for v in os_acc.get_vans()] == [True]
    assert asked == [devices.GPU] * 2


@pytest.mark.parametrize('answer', [True, False])
@pytest.mark.parametrize('says', [None, 'no'])
def test_a_vgpu(kernel, tmp_path, monkeypatch, answer, says):
    monkeypatch.setattr(vgpu_cards, 'PATH', str(tmp_path / 'missing.xml'))
    types = {558: ('NVIDIA A40-1Q', 1)}
    card = vgpu_card.Card(kernel, '0000:41:00.0', types, size=48, vfs=2)
    kernel.migrates = {'nvidia'} if answer else set()
    values = {} if says is None else {'live_migratable': says}
    devices.spec({'vendor_id': '10de', 'vgpu_type': 'NVIDIA A40-1Q', **values})
    os_acc.initialize()
    van = plugged(devices.pci(card.vfs[0]))
    assert van.driver == 'nvidia_vgpu'
    assert van.live_migratable is (answer and says is None)


def test_the_privileged_half_asks_only_for_what_is_offered(here):
    devices.spec({'address': devices.PF})
    with pytest.raises(exception.DeviceNotFound):
        migratable.function(devices.GPU, 5.0)
    with pytest.raises(exception.InvalidRequest):
        migratable.function('gpu', 5.0)
    with pytest.raises(exception.InvalidRequest):
        migratable.mediated('mtty', 5.0)
    with pytest.raises(exception.DeviceNotFound):
        migratable.mediated(devices.mdev().handle.uuid, 5.0)


# --- the calls of the kernel


class Calls:
    """open, ioctl and close, in the order in which the kernel gets them."""

    def __init__(self, patch, number=(10, 7), fails=None):
        self.log, self.names, self.fails = [], {}, fails
        self.number = number
        patch.setattr(os, 'open', self.open)
        patch.setattr(os, 'close', self.close)
        patch.setattr(os, 'fstat', self.fstat)
        patch.setattr(fcntl, 'ioctl', self.ioctl)

    def open(self, path, flags):
        assert flags == os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = 100 + len(self.names)
        self.names[fd] = os.path.basename(path)
        self.log.append(('open', self.names[fd]))
        return fd

    def close(self, fd):
        self.log.append(('close', self.names[fd]))

    def fstat(self, fd):
        return os.stat_result((0,) * 10, {'st_rdev': os.makedev(*self.number)})

    def ioctl(self, fd, number, argument):
        if number == self.fails:
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        self.log.append((hex(number), self.names[fd], argument))
        if number == 0x3B6A:
            assert isinstance(argument, bytearray)
            self.names[99] = 'device'
            return 99
        return 0


FEATURE = b'\x08\0\0\0\x01\0\x05\0'


@pytest.fixture
def files(monkeypatch):
    """A device with a file of its group and a file of its own."""
    number = device_files.Number('c', 10, 7)
    for name, path in (('group_nodes', '12'), ('device_nodes', 'vfio3')):
        file = device_files.DeviceFile(f'/dev/vfio/{path}', number)
        monkeypatch.setattr(vfio, name, lambda path, file=file: [file])


def test_by_the_group(monkeypatch, files):
    monkeypatch.setattr(vfio, 'has_groups', lambda: True)
    calls = Calls(monkeypatch)
    vfio_device.probe('/sys/x', '0000:3b:02.1', vfio_device.MIGRATION)
    assert calls.log == [
        ('open', 'vfio'),
        ('open', '12'),
        ('0x3b68', '12', b'd\0\0\0'),
        ('0x3b66', 'vfio', 3),
        ('0x3b6a', '12', bytearray(b'0000:3b:02.1\0')),
        ('0x3b75', 'device', FEATURE),
        ('close', 'device'),
        ('close', '12'),
        ('close', 'vfio'),
    ]


def test_by_iommufd(monkeypatch, files):
    monkeypatch.setattr(vfio, 'has_groups', lambda: False)
    calls = Calls(monkeypatch)
    vfio_device.probe('/sys/x', '0000:3b:02.1', vfio_device.MIGRATION)
    bind = b'\x10\0\0\0' + bytes(4) + b'd\0\0\0' + bytes(4)
    assert calls.log == [
        ('open', 'iommu'),
        ('open', 'vfio3'),
        ('0x3b76', 'vfio3', bind),
        ('0x3b75', 'vfio3', FEATURE),
        ('close', 'vfio3'),
        ('close', 'iommu'),
    ]


@pytest.mark.parametrize('fails', [0x3B68, 0x3B66, 0x3B6A, 0x3B75])
def test_all_is_closed_after_an_error(monkeypatch, files, fails):
    monkeypatch.setattr(vfio, 'has_groups', lambda: True)
    calls = Calls(monkeypatch, fails=fails)
    with pytest.raises(OSError, match='ioctl') as caught:
        vfio_device.probe('/sys/x', '0000:3b:02.1', vfio_device.MIGRATION)
    assert caught.value.errno == errno.ENOTTY
    opened = [name for step, name, *_ in calls.log if step == 'open']
    closed = [name for step, name, *_ in calls.log if step == 'close']
    assert closed == (['device'] if fails == 0x3B75 else []) + opened[::-1]


def test_another_file_at_the_path_is_not_asked(monkeypatch, files):
    monkeypatch.setattr(vfio, 'has_groups', lambda: True)
    calls = Calls(monkeypatch, number=(1, 3))
    with pytest.raises(OSError, match='No such device'):
        vfio_device.probe('/sys/x', '0000:3b:02.1', vfio_device.MIGRATION)
    assert all(step in ('open', 'close') for step, *_ in calls.log)


def test_a_device_without_a_file(monkeypatch, files):
    monkeypatch.setattr(vfio, 'has_groups', lambda: True)
    monkeypatch.setattr(vfio, 'group_nodes', lambda path: [])
    calls = Calls(monkeypatch)
    with pytest.raises(OSError, match='No such device'):
        vfio_device.probe('/sys/x', '0000:3b:02.1', vfio_device.MIGRATION)
    assert calls.log == [('open', 'vfio'), ('close', 'vfio')]
