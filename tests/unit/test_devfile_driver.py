# SPDX-License-Identifier: Apache-2.0

"""The driver devfile, by os_acc's own calls, on a kernel of files."""

from __future__ import annotations

import contextlib
import threading
import types
import uuid

import device_nodes
import devices
import previews
import pytest

import os_acc
from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc.kernel import device_files
from os_acc.kernel import open_files
from os_acc.operations import preview
from os_acc.privileged import file_owners
from os_acc.privileged import notes
from os_acc.privileged.devfile import device_files as privileged
from os_acc.spec import device_spec
from os_acc.testing import mortal

GPU, OTHER = '0000:3b:00.0', '0000:5e:00.0'
A, B, C = 'char-240-1', 'char-240-2', 'char-240-3'
CLASS = 'CUSTOM_FILE_ACC'


@pytest.fixture
def nodes(kernel, monkeypatch):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    made = device_nodes.Nodes(kernel)
    made.install(monkeypatch)
    made.kernel = kernel
    for number in (1, 2, 3):
        made.add(f'acc{number}', f'c 240:{number}')
    devices.spec({'devices': '/dev/acc*', 'owner': 1001, 'mode': '0600'})
    os_acc.initialize()
    before = made.snapshot()
    yield made
    kernel.revive()
    for owner in {van.instance_uuid for van in os_acc.get_vans()}:
        os_acc.unplug(objects.InstanceInfo(uuid=owner, name='', project_id=''))
    if not getattr(made, 'changed', False):
        assert made.snapshot() == before
    assert file_owners.changes.names() == []
    assert notes.files.names() == []


def named(name, share=None):
    handle = objects.DeviceFileHandle(name=name, share=share, files=[])
    return objects.AcceleratorRequest(uuid=str(uuid.uuid4()), handle=handle)


def plug(*requests):
    instance = devices.instance()
    vans = os_acc.plug(instance, list(requests))
    return instance, vans[0]


def handles():
    return {
        handle.handle.identity: (handle.state, handle.reason)
        for device in os_acc.get_devices()
        for handle in device.handles
    }


def test_plugged_and_unplugged(nodes):
    instance, van = plug(named(B))
    assert (van.driver, van.device) == ('devfile', B)
    assert van.handle.identity == f'file/{B}'
    (file,) = van.handle.files
    assert (file.path, file.type, file.major, file.minor) == (
        '/dev/acc2',
        'c',
        240,
        2,
    )
    assert file.permissions == 'rw'
    assert nodes.of('acc2') == (1001, 6, 0o600)
    assert nodes.of('acc1') == (0, 6, 0o660)
    assert handles()[f'file/{B}'][0] == 'used'
    assert isinstance(devices.refused(named(B)), exception.DeviceBusy)
    assert os_acc.unplug(instance) == 1
    assert nodes.of('acc2') == (0, 6, 0o660)
    assert handles()[f'file/{B}'] == ('free', None)


def test_plugging_twice_touches_nothing(nodes):
    instance, request = devices.instance(), named(A)
    os_acc.plug(instance, [request])
    writes = list(nodes.kernel.writes)
    os_acc.plug(instance, [request])
    assert nodes.kernel.writes == writes


def test_selected_by_class(nodes):
    vans = [plug(devices.wanted(CLASS))[1] for _ in range(3)]
    assert {van.handle.name for van in vans} == {A, B, C}
    error = devices.refused(devices.wanted(CLASS))
    assert isinstance(error, exception.DeviceNotFound)


def test_selected_by_class_and_traits_of_the_entry(nodes):
    devices.spec(
        {'devices': '/dev/acc1', 'resource_class': 'FPGA'},
        {
            'devices': '/dev/acc*',
            'resource_class': 'FPGA',
            'traits': ['CUSTOM_X'],
        },
        {'address': '*', 'resource_class': 'PGPU'},
    )
    _, van = plug(devices.wanted('FPGA', 'CUSTOM_X'))
    assert van.handle.name == B
    error = devices.refused(devices.wanted('FPGA', 'CUSTOM_Y'))
    assert isinstance(error, exception.DeviceNotFound)


def test_an_open_file_is_refused_and_the_next_is_chosen(nodes):
    pid = nodes.kernel.hold('/dev/acc1', 'python3', 'c 240:1')
    error = devices.refused(named(A))
    assert isinstance(error, exception.DeviceBusy)
    assert f'process {pid} (python3) has /dev/acc1 open' in str(error)
    assert nodes.of('acc1') == (0, 6, 0o660)
    _, van = plug(devices.wanted(CLASS))
    assert van.handle.name == B


def test_a_file_that_is_still_open_is_not_given_back(nodes):
    instance, _ = plug(named(A))
    pid = nodes.kernel.hold('/dev/acc1', 'python3', 'c 240:1')
    with pytest.raises(exception.UnplugException) as caught:
        os_acc.unplug(instance)
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    assert nodes.of('acc1') == (1001, 6, 0o600)
    # Nor does the privileged half restore it if the caller leaves that out.
    with pytest.raises(exception.DeviceBusy):
        privileged.give_back(A, '', [], 0.1, 2.0)
    nodes.kernel.end(pid)
    assert os_acc.unplug(instance) == 1


@pytest.mark.parametrize(
    ('request_', 'text'),
    [
        (named('char-240-9'), 'device_spec does not offer it'),
        (named(A, '0'), 'no share'),
    ],
)
def test_what_is_not_offered(nodes, request_, text):
    assert text in str(devices.refused(request_))


def test_a_handle_of_another_type(nodes):
    request = devices.pci(GPU)
    request.driver = 'devfile'
    error = devices.refused(request)
    assert isinstance(error, exception.UnsupportedHandle)


def test_owner_that_the_host_does_not_know(nodes):
    devices.spec({'devices': '/dev/acc*', 'owner': 'no-such-user'})
    assert 'no user no-such-user' in str(devices.refused(named(A)))
    devices.spec({'devices': '/dev/acc*', 'group': 'no-such-group'})
    assert 'no group no-such-group' in str(devices.refused(named(A)))
    assert handles()[f'file/{A}'][0] == 'absent'


def test_what_somebody_else_has_set_stays(nodes, caplog):
    instance, _ = plug(named(A))
    nodes.set('acc1', 1001, 77, 0o666)
    assert os_acc.unplug(instance) == 1
    assert nodes.of('acc1') == (0, 77, 0o666)
    assert 'keeps what somebody else has set' in caplog.text
    nodes.set('acc1', 0, 6, 0o660)


def test_udev_restores_the_owner(nodes):
    """The VAN is not intact; the next plug sets the owner again."""
    instance, request = devices.instance(), named(A)
    os_acc.plug(instance, [request])
    nodes.set('acc1', 0, 6, 0o660)
    os_acc.plug(instance, [request])
    assert nodes.of('acc1') == (1001, 6, 0o600)
    os_acc.unplug(instance)
    assert nodes.of('acc1') == (0, 6, 0o660)


# --- shared


def test_shared_by_a_number_of_vans(nodes):
    devices.spec({'devices': '/dev/acc1', 'shared': 2})
    nodes.kernel.hold('/dev/acc1', 'python3', 'c 240:1')
    first, one = plug(devices.wanted(CLASS))
    second, two = plug(devices.wanted(CLASS))
    assert [one.handle.identity, two.handle.identity] == [
        f'file/{A}/0',
        f'file/{A}/1',
    ]
    error = devices.refused(devices.wanted(CLASS))
    assert 'shared to 2' in str(error)
    (device,) = os_acc.get_devices()
    assert (device.handles_total, device.handles_free) == (2, 0)
    os_acc.unplug(first)
    assert notes.files.names() == [f'file-{A}+share=1']
    _, three = plug(named(A, '0'))
    assert three.handle.share == '0'
    for share in ('2', '00', 'x', None):
        assert devices.refused(named(A, share)) is not None
    os_acc.unplug(second)


def test_shared_by_any_number(nodes):
    devices.spec({'devices': '/dev/acc1', 'shared': True})
    for number in range(3):
        _, van = plug(devices.wanted(CLASS))
        assert van.handle.share == str(number)
        (device,) = os_acc.get_devices()
        assert device.handles_total == number + 2
        assert device.handles_free == 1


def test_a_dry_run_of_a_share_that_is_not_named(nodes, tmp_path):
    """Plug takes the first one that is left, and a dry run says that."""
    devices.spec({'devices': '/dev/acc1', 'shared': 3})
    for share in ('0', '1', '2'):
        instance = previews.agrees(tmp_path, [named(A)])
        (van,) = os_acc.get_vans(instance)
        assert van.handle.share == share
    assert previews.agrees(tmp_path, [named(A)]) is None


def test_a_dry_run_says_which_requests_take_all_shares(nodes):
    devices.spec({'devices': '/dev/acc1', 'shared': 2})
    requests = [devices.wanted(CLASS), devices.wanted(CLASS), named(A)]
    with contextlib.closing(
        host_module.Host.open(os_acc.CONF, read_only=True)
    ) as host:
        planned = preview.plug(host, devices.instance(), requests)
    assert [each.obstacle for each in planned] == [
        None,
        None,
        'an earlier request of this plug would take it',
    ]


def test_a_dry_run_of_a_shared_file_that_is_not_cleaned(nodes, tmp_path):
    devices.spec({'devices': '/dev/acc1', 'shared': 3})
    os_acc.CONF.set_override('cleaning_command', ['/bin/true'], 'os_acc')
    for request in (named(A), named(A, '1'), devices.wanted(CLASS)):
        assert previews.agrees(tmp_path, [request]) is None


def test_shared_after_it_was_exclusive(nodes):
    instance, _ = plug(named(A))
    devices.spec({'devices': '/dev/acc1', 'shared': True})
    assert 'it alone' in str(devices.refused(devices.wanted(CLASS)))
    os_acc.unplug(instance)
    instance, _ = plug(devices.wanted(CLASS))
    devices.spec({'devices': '/dev/acc1'})
    error = devices.refused(named(A))
    assert isinstance(error, exception.DeviceBusy)
    (found,) = os_acc._host.extensions.drivers['devfile'].diagnose()
    for text in (str(error), found.text):
        assert f'instance {instance.uuid} has file/{A}/0' in text
    os_acc.unplug(instance)


# --- what is behind the file


@pytest.fixture
def gpus(nodes):
    for number, address in enumerate((GPU, OTHER)):
        nodes.kernel.add_function(address, '1002:740f', 0x038000)
        nodes.render(address, 128 + number)
    nodes.add('kfd', 'c 235:0', 'virtual/kfd/kfd', 'kfd')
    nodes.changed = True
    devices.spec(
        {
            'devices': '/dev/dri/renderD*',
            'with': ['/dev/kfd', '/dev/dri/card*'],
            'group': 44,
        },
        {'address': '*'},
    )
    return nodes


RENDER = f'{GPU}+drm+renderd'


def test_files_that_go_along(gpus):
    instance, van = plug(named(RENDER))
    assert [each.path for each in van.handle.files] == [
        '/dev/dri/renderD128',
        '/dev/dri/card0',
        '/dev/kfd',
    ]
    assert van.device == GPU
    assert gpus.of('dri/card0') == (0, 44, 0o660)
    assert gpus.of('kfd') == (0, 6, 0o660)
    pid = gpus.kernel.hold('/dev/kfd', 'python3', 'c 235:0')
    assert os_acc.unplug(instance) == 1
    gpus.kernel.end(pid)


def test_a_file_or_its_function_but_not_both(gpus):
    instance, _ = plug(named(RENDER))
    error = devices.refused(devices.pci(GPU))
    assert isinstance(error, exception.DeviceBusy)
    assert instance.uuid in str(error)
    os_acc.unplug(instance)
    instance, _ = plug(devices.pci(GPU))
    error = devices.refused(named(RENDER))
    assert isinstance(error, exception.DeviceBusy)
    assert f'pci/{GPU}, which is behind the file' in str(error)
    os_acc.unplug(instance)
    plug(devices.pci(OTHER))
    plug(named(RENDER))


def test_a_file_lacks_what_goes_along(gpus):
    gpus.remove('kfd')
    error = devices.refused(named(RENDER))
    assert 'no file of this host matches /dev/kfd' in str(error)


def test_a_denied_function(gpus):
    devices.spec(
        {'devices': '/dev/dri/renderD*'}, {'address': GPU, 'deny': True}
    )
    error = devices.refused(named(RENDER))
    assert isinstance(error, exception.DeviceNotFound)
    assert 'entry 2' in str(error)


def test_an_unhealthy_function(gpus):
    os_acc.get_vans()
    from os_acc import health

    health.mark(os_acc._host.journal, GPU, 'reset', 'it failed', 'pci')
    assert isinstance(
        devices.refused(named(RENDER)), exception.DeviceUnhealthy
    )
    assert handles()[f'file/{RENDER}'][0] == 'reserved'


def test_entries_that_contradict_each_other(gpus):
    devices.spec(
        {'devices': '/dev/dri/renderD128'},
        {'devices': '/dev/dri/*', 'shared': True},
    )
    error = devices.refused(named(RENDER))
    assert 'entry 1 and device_spec, entry 2 offer one of' in str(error)
    assert handles()[f'file/{RENDER}'][0] == 'absent'


def test_the_pf_and_files_of_its_vfs(nodes):
    kernel, pf = nodes.kernel, '0000:01:00.0'
    kernel.add_function(pf, '10ee:5000', 0x120000, 'qat', totalvfs=2)
    kernel.write(f'{kernel.pci}/devices/{pf}/sriov_numvfs', '2')
    for number in range(3):
        address = f'0000:01:00.{number}'
        nodes.add(
            f'user{number}',
            f'c 250:{number}',
            f'pci0000:00/{address}/xocl/user{number}',
            'xocl',
        )
    nodes.changed = True
    devices.spec({'devices': '/dev/user*'}, {'address': '*'})
    names = [f'0000:01:00.{n}+xocl+user' for n in range(3)]
    one, van = plug(named(names[1]))
    # As for the VF itself: those who ask for the VANs on the PF find it.
    assert van.device == pf
    two, _ = plug(named(names[2]))
    for wanted in (named(names[0]), devices.pci('0000:01:00.1')):
        assert isinstance(devices.refused(wanted), exception.DeviceBusy)
    os_acc.unplug(one)
    os_acc.unplug(two)
    one, _ = plug(named(names[0]))
    for wanted in (named(names[1]), devices.pci('0000:01:00.1')):
        assert isinstance(devices.refused(wanted), exception.DeviceBusy)
    os_acc.unplug(one)
    plug(devices.pci('0000:01:00.1'))
    error = devices.refused(named(names[1]))
    assert 'pci/0000:01:00.1, which is behind the file' in str(error)
    plug(named(names[2]))


def test_the_file_of_a_mediated_device(nodes):
    kernel, request = nodes.kernel, devices.mdev()
    kernel.add_mtty()
    kernel.write(
        f'{kernel.sys}/class/mdev_bus/mtty/mdev_supported_types/mtty-1/create',
        request.handle.uuid,
    )
    there = kernel.mdev / request.handle.uuid
    group = (there / 'iommu_group').readlink().name
    (kernel.root / 'dev/vfio' / group).unlink()
    nodes.add(f'vfio/{group}', 'c 244:1', f'virtual/vfio/{group}', 'vfio')
    nodes.changed = True
    devices.spec({'devices': '/dev/vfio/1*'}, {'address': 'mtty'})
    name = f'{request.handle.uuid}+vfio'
    instance, van = plug(named(name))
    assert van.device == 'mtty'
    assert isinstance(devices.refused(request), exception.DeviceBusy)
    os_acc.unplug(instance)
    plug(request)
    assert isinstance(devices.refused(named(name)), exception.DeviceBusy)


@pytest.mark.parametrize('glob', ['/dev/vfio/1*', '/dev/vfio/devices/*'])
@pytest.mark.parametrize(
    ('entry', 'parts'),
    [
        ({'num_vfs': 2}, 'VFs'),
        ({'mdev_types': ['t-1']}, 'mediated devices'),
        ({}, None),
    ],
)
def test_a_file_of_vfio_and_an_entry_for_parts(nodes, glob, entry, parts):
    """The operator has bound the PF to VFIO, whose files give it whole."""
    nodes.kernel.add_function(GPU, '8086:4940', 0x0B4000, 'vfio-pci', 12)
    place = f'pci0000:00/{GPU}/vfio-dev/vfio0'
    for made in (nodes.kernel.root / 'dev/vfio').glob('1*'):
        made.unlink()
    nodes.add('vfio/12', 'c 244:1', 'virtual/vfio/12', 'vfio')
    nodes.add('vfio/devices/vfio9', 'c 511:9', place, 'vfio-dev')
    nodes.changed = True
    devices.spec(
        {'devices': glob, 'resource_class': 'CUSTOM_V'},
        {'address': GPU, **entry},
    )
    if parts is None:
        plug(devices.wanted('CUSTOM_V'))
        return
    error = str(devices.refused(devices.wanted('CUSTOM_V')))
    assert f'offers {parts} of {GPU} only' in error
    ((state, _),) = [
        each for name, each in handles().items() if name.startswith('file/')
    ]
    assert state == 'absent'


# --- what the host uses, or nobody may have


@pytest.mark.parametrize(
    ('number', 'directory', 'subsystem', 'what'),
    [
        ('c 1:1', '', '', 'the memory of the host'),
        ('c 1:11', 'virtual/mem/kmsg', 'mem', "the kernel's log"),
        ('c 4:64', 'platform/serial/tty/ttyS0', 'tty', 'a terminal'),
        ('c 5:1', 'virtual/tty/console', 'tty', 'the console'),
        ('c 188:0', 'usb/ttyUSB0/tty/ttyUSB0', 'tty', 'a serial line'),
        ('c 10:232', '', '', 'KVM'),
        ('c 10:99', 'virtual/misc/vhost-vdpa', 'misc', 'vhost-vdpa'),
        ('c 10:60', 'virtual/misc/cpu_dma_latency', 'misc', 'cpu_dma'),
        ('c 254:0', 'pnp0/rtc/rtc7', 'rtc', 'the clock'),
        ('c 13:64', 'virtual/input/event0', 'input', 'an input device'),
        ('c 109:0', '', '', 'LVM'),
        ('c 10:122', 'virtual/misc/nvme-fabrics', 'misc', 'remote disks'),
        ('c 10:249', 'virtual/misc/zfs', 'misc', 'the control file of ZFS'),
        ('c 89:3', '', '', 'a system bus'),
        ('c 240:200', 'virtual/i2c-dev/i2c-3', 'i2c-dev', 'a system bus'),
        ('c 10:220', '', '', 'a storage controller'),
        ('c 10:221', '', '', 'a storage controller'),
        ('c 10:70', 'virtual/misc/mpt3ctl', 'misc', 'a storage controller'),
        ('c 243:0', '', '', 'a storage controller'),
        ('c 244:1', '', '', 'a storage controller'),
        ('c 245:0', '', '', 'the management controller'),
        ('c 245:1', 'virtual/ipmi/ipmi1', 'ipmi', 'the management controller'),
        ('c 10:130', '', '', 'the watchdog'),
        ('c 248:0', 'virtual/watchdog/watchdog0', 'watchdog', 'the watchdog'),
        ('c 10:228', '', '', 'a timer'),
        ('c 10:135', '', '', 'the clock'),
        ('c 10:223', '', '', 'input devices'),
        ('c 10:238', '', '', "guests' networks"),
        ('c 10:200', '', '', 'network tunnels'),
        ('c 10:237', '', '', 'loop devices'),
        ('c 10:234', '', '', 'Btrfs'),
        ('c 10:236', '', '', 'the device mapper'),
        ('c 10:51', 'virtual/misc/device-mapper', 'misc', 'device mapper'),
        ('c 10:235', '', '', 'the automounter'),
        ('c 10:229', '', '', 'file systems'),
        ('c 10:231', '', '', 'hibernation'),
        ('c 202:1', '', '', 'model-specific registers'),
        ('c 1:4', '', '', 'the I/O ports'),
        ('c 10:144', '', '', 'the NVRAM'),
        ('c 10:184', '', '', 'the microcode'),
        ('c 10:60', 'virtual/misc/xen!privcmd', 'misc', 'for guests'),
        ('c 10:61', 'virtual/misc/ublk-control', 'misc', 'block devices'),
        ('c 246:0', 'pci0000:00/iLO/d0ccb0', 'iLO', 'management controller'),
        ('c 247:0', 'pci0000:00/uio/uio0', 'uio', 'DMA that no IOMMU limits'),
        ('c 247:1', 'platform/dax0.0/dax0.0', 'dax', 'memory of the host'),
        ('c 247:2', 'pci0000:00/mem0', 'cxl', 'a memory device'),
        ('c 231:0', 'virtual/umad0', 'infiniband_mad', 'InfiniBand network'),
        ('c 153:0', 'platform/spidev0.0', 'spidev', 'a system bus'),
        ('c 254:0', 'platform/gpiochip0', 'gpio', 'pins of the mainboard'),
        ('c 10:62', 'virtual/misc/sgx_provision', 'misc', 'the identity'),
        ('c 10:63', 'virtual/misc/mst!mt4119', 'misc', 'network cards'),
        ('c 242:0', '', '', 'network cards'),
        ('b 31:0', 'platform/mtd/mtd0/mtdblock0', 'block', 'a flash memory'),
        ('b 252:0', 'virtual/block/ubiblock0_1', 'block', 'a flash memory'),
    ],
)
def test_never(nodes, number, directory, subsystem, what):
    nodes.kernel.write_file(
        'proc/devices',
        'Character devices:\n  1 mem\n 10 misc\n242 mst_pciconf\n'
        '243 megaraid_sas_ioctl\n'
        '244 aac\n245 ipmidev\n\nBlock devices:\n240 aac\n',
    )
    nodes.add('bad', number, directory, subsystem)
    nodes.changed = True
    devices.spec({'devices': '/dev/bad'}, {'devices': '/dev/acc1'})
    (bad,) = (d for d in os_acc.get_devices() if d.address != A)
    assert bad.handles[0].state == 'host'
    error = devices.refused(named(bad.address))
    assert isinstance(error, exception.DeviceInUseByHost)
    assert what in str(error)
    devices.spec({'devices': '/dev/acc1', 'with': '/dev/bad'})
    assert what in str(devices.refused(named(A)))


@pytest.mark.parametrize(
    ('number', 'directory', 'subsystem'),
    [
        # Up to Linux 5.x, the kernel chooses minor numbers below 128.
        ('c 10:1', 'virtual/misc/habanalabs', 'misc'),
        ('c 10:125', 'virtual/misc/acc', 'misc'),
        ('c 240:9', 'virtual/accel/kvm', 'accel'),
        ('c 1:3', 'virtual/mem/null', 'mem'),
    ],
)
def test_not_of_the_host(nodes, number, directory, subsystem):
    """By its number or name alone it could be one that nobody gets."""
    nodes.kernel.write_file(
        'proc/devices', 'Character devices:\n\nBlock devices:\n240 aac\n'
    )
    nodes.add('good', number, directory, subsystem)
    nodes.changed = True
    devices.spec({'devices': '/dev/good'})
    (good,) = os_acc.get_devices()
    assert good.handles[0].state == 'free'


def test_the_container_file_of_vfio_goes_along(nodes):
    nodes.add('vfio/vfio', 'c 10:196', 'virtual/misc/vfio', 'misc')
    nodes.changed = True
    devices.spec({'devices': '/dev/acc1', 'with': '/dev/vfio/vfio'})
    _, van = plug(named(A))
    assert len(van.handle.files) == 2


@pytest.fixture
def disk(nodes):
    """A disk with a partition."""
    for name, number in (('sdx', 0), ('sdx1', 1)):
        there = 'pci0000:00/0000:04:00.0/block/sdx'
        directory = there if name == 'sdx' else f'{there}/sdx1'
        nodes.add(name, f'b 8:{number}', directory, 'block')
        (nodes.kernel.sys / f'class/block/{name}').symlink_to(
            nodes.kernel.sys / 'devices' / directory
        )
    nodes.changed = True
    devices.spec({'devices': '/dev/sdx*', 'keeps_data': True})
    return nodes


def name_at(path):
    (found,) = (
        d
        for d in os_acc.get_devices()
        if any(f.path == path for f in d.handles[0].handle.files)
    )
    return found.address


def test_the_data_of_a_disk_stays_when_its_instance_moves(disk):
    driver = os_acc._host.extensions.drivers['devfile']
    _, van = plug(named(name_at('/dev/sdx')))
    assert driver.left_behind(van) == 'the data of the device'
    devices.spec({'devices': '/dev/acc*'})
    _, van = plug(named(name_at('/dev/acc1')))
    assert driver.left_behind(van) is None


@pytest.mark.parametrize('path', ['/dev/sdx', '/dev/sdx1'])
def test_another_disk_is_at_its_place_after_a_reboot(disk, path, tmp_path):
    """The first one found has the first place, as behind a SAS adapter."""
    there = 'sys/devices/pci0000:00/0000:04:00.0/block/sdx'
    wwid = f'{there}/device/wwid'
    disk.kernel.write_file(wwid, 'naa.500a\n')
    disk.kernel.write_file(f'{there}/sdx1/partition', '1\n')
    instance, _ = plug(named(name_at(path)))
    cleaned = tmp_path / 'cleaned'
    os_acc.CONF.set_override('cleaning_command', f'touch {cleaned}', 'os_acc')
    disk.kernel.reboot()
    disk.kernel.write_file(wwid, 'naa.500b\n')
    (failed,) = os_acc.recover().failed
    assert 'disk naa.500b is at its place now' in failed.error
    disk.kernel.write_file(wwid, 'naa.500a\n')
    assert len(os_acc.recover().restored) == 1
    disk.kernel.reboot()
    disk.kernel.write_file(wwid, 'naa.500b\n')
    assert os_acc.unplug(instance) == 1
    assert not cleaned.exists()


def test_a_disk_that_is_idle(disk):
    instance, van = plug(named(name_at('/dev/sdx')))
    assert van.handle.files[0].type == 'b'
    os_acc.unplug(instance)
    devices.spec({'devices': '/dev/sdx*'})
    error = devices.refused(named(name_at('/dev/sdx')))
    assert 'it stores data' in str(error)


def _mounted(disk):
    disk.kernel.write_file(
        'proc/self/mountinfo', '36 35 8:1 / /srv rw - ext4 /dev/sdx1 rw\n'
    )


def _mounted_by_source(disk):
    disk.kernel.write_file(
        'proc/self/mountinfo', '36 35 0:40 / /srv rw - btrfs /dev/sdx1 rw\n'
    )


def _swap(disk):
    disk.kernel.write_file('proc/swaps', 'Filename\n/dev/sdx1 disk 8 0 -2\n')


def _held(disk):
    directory = disk.kernel.sys / 'class/block/sdx1/holders'
    directory.mkdir()
    (directory / 'dm-0').touch()


def _loop(disk):
    directory = disk.kernel.sys / 'class/block/sdx1/loop'
    directory.mkdir()
    (directory / 'backing_file').write_text('/srv/image\n')


@pytest.mark.parametrize(
    ('use', 'text'),
    [
        (_mounted, 'mounted on /srv'),
        (_mounted_by_source, 'mounted on /srv'),
        (_swap, 'swap space'),
        (_held, 'a part of dm-0'),
        (_loop, 'shows the file /srv/image'),
    ],
)
def test_a_disk_that_the_host_uses(disk, use, text):
    names = [name_at('/dev/sdx'), name_at('/dev/sdx1')]
    use(disk)
    for name in names:
        error = devices.refused(named(name))
        assert isinstance(error, exception.DeviceInUseByHost)
        assert text in str(error)
        assert handles()[f'file/{name}'][0] == 'host'


def test_a_disk_that_the_host_has_opened_exclusively(disk, monkeypatch):
    monkeypatch.setattr(open_files, 'exclusively_used', list)
    error = devices.refused(named(name_at('/dev/sdx')))
    assert 'opened block device sdx exclusively' in str(error)


@pytest.mark.parametrize(
    ('mounted', 'used'),
    [
        ('sdy', ['/dev/sdx', '/dev/sdx1']),
        ('sdy1', ['/dev/sdx', '/dev/sdx1']),
        ('sdy2', ['/dev/sdx']),
    ],
)
def test_a_disk_that_the_host_uses_by_another_adapter(disk, mounted, used):
    """A LUN of two adapters, without multipathd."""
    directory = disk.kernel.sys / 'devices/pci0000:00/0000:0a:00.0/block/sdy'
    for number, path in enumerate(
        (directory, directory / 'sdy1', directory / 'sdy2'), 16
    ):
        path.mkdir(parents=True)
        (path / 'dev').write_text(f'8:{number}\n')
        (disk.kernel.sys / f'class/block/{path.name}').symlink_to(path)
    for path in (directory, disk.kernel.sys / 'class/block/sdx'):
        (path / 'device').mkdir()
        (path / 'device/wwid').write_text('naa.600508b1001c4d41\n')
    names = {path: name_at(path) for path in ('/dev/sdx', '/dev/sdx1')}
    disk.kernel.write_file(
        'proc/self/mountinfo', f'36 35 0:4 / /srv rw - xfs /dev/{mounted} rw\n'
    )
    for path, name in names.items():
        assert (handles()[f'file/{name}'][0] == 'host') is (path in used)
    text = str(devices.refused(named(names['/dev/sdx'])))
    assert f'{mounted} is mounted on /srv' in text


def test_the_character_device_of_a_disk(nodes):
    kernel = nodes.kernel
    kernel.add_function('0000:04:00.0', '1b36:0010', 0x010802, 'nvme')
    there = 'pci0000:00/0000:04:00.0/ata1/0:0:0:0'
    nodes.add('sg0', 'c 21:0', f'{there}/scsi_generic/sg0', 'scsi_generic')
    directory = kernel.sys / 'devices' / there / 'block/sdy'
    directory.mkdir(parents=True)
    (directory / 'dev').write_text('8:32\n')
    (kernel.sys / 'class/block/sdy').symlink_to(directory)
    kernel.write_file('dev/sdy', '')
    nodes.changed = True
    devices.spec({'devices': '/dev/sg0'})
    (found,) = os_acc.get_devices()
    assert 'it stores data' in str(devices.refused(named(found.address)))
    devices.spec({'devices': '/dev/sg0', 'keeps_data': True})
    kernel.write_file(
        'proc/self/mountinfo', '36 35 8:32 / /srv rw - ext4 /dev/sdy rw\n'
    )
    error = devices.refused(named(found.address))
    assert 'mounted on /srv' in str(error)
    kernel.write_file('proc/self/mountinfo', '')
    plug(named(found.address))


def test_the_character_device_of_a_disk_that_is_open(nodes, monkeypatch):
    """Only an exclusive open shows that Ceph has a disk, or ZFS another."""
    there = 'pci0000:00/0000:04:00.0/ata1/0:0:0:0'
    nodes.add('sg0', 'c 21:0', f'{there}/scsi_generic/sg0', 'scsi_generic')
    nodes.add('sdy', 'b 8:32', f'{there}/block/sdy', 'block')
    (nodes.kernel.sys / 'class/block/sdy').symlink_to(
        nodes.kernel.sys / 'devices' / there / 'block/sdy'
    )
    nodes.changed = True
    devices.spec({'devices': '/dev/sg0', 'keeps_data': True})
    monkeypatch.setattr(open_files, 'exclusively_used', list)
    error = devices.refused(named(name_at('/dev/sg0')))
    assert isinstance(error, exception.DeviceInUseByHost)
    assert 'opened block device sdy exclusively' in str(error)


@pytest.mark.parametrize(
    ('above', 'pci_class'),
    [
        ('0000:04:00.0/host5/rport-5:0-1', 0x0C0400),  # Fibre Channel
        ('0000:04:00.0/host5/port-5:0', 0x010700),  # SAS
        ('', 0),  # iSCSI
    ],
)
def test_the_file_of_a_tape_keeps_data(nodes, above, pci_class):
    """What a tenant has written is on the cartridge, whatever leads to it."""
    there = 'platform/host5/session1'
    if above:
        nodes.kernel.add_function('0000:04:00.0', '1077:2261', pci_class)
        there = f'pci0000:00/{above}'
    there += '/target5:0:0/5:0:0:1'
    nodes.add('nst0', 'c 9:128', f'{there}/scsi_tape/nst0', 'scsi_tape')
    nodes.changed = True
    entry = {'devices': '/dev/nst0'}
    devices.spec(entry)
    (found,) = os_acc.get_devices()
    assert 'it stores data' in found.handles[0].reason
    assert 'it stores data' in str(devices.refused(named(found.address)))
    devices.spec(entry | {'keeps_data': True})
    instance, _ = plug(named(found.address))
    os_acc.unplug(instance)


@pytest.fixture
def stick(nodes):
    """A USB disk, by the file of the USB device."""
    there = 'pci0000:00/0000:00:14.0/usb1/1-2'
    nodes.add('bus/usb/001/005', 'c 189:4', there, 'usb')
    block = f'{there}/1-2:1.0/host7/target7:0:0/7:0:0:0/block/sdy'
    nodes.add('sdy', 'b 8:32', block, 'block')
    (nodes.kernel.sys / 'class/block/sdy').symlink_to(
        nodes.kernel.sys / 'devices' / block
    )
    nodes.kernel.write_file(
        f'sys/devices/{there}/1-2:1.0/bInterfaceClass', '08\n'
    )
    nodes.changed = True
    return nodes


def test_the_file_of_a_usb_disk_keeps_data(stick):
    devices.spec({'devices': '/dev/bus/usb/001/005'})
    error = devices.refused(named(name_at('/dev/bus/usb/001/005')))
    assert 'it stores data' in str(error)


def test_the_file_of_a_usb_disk_that_the_host_uses(stick):
    devices.spec({'devices': '/dev/bus/usb/001/005', 'keeps_data': True})
    name = name_at('/dev/bus/usb/001/005')
    stick.kernel.write_file(
        'proc/self/mountinfo', '36 35 8:32 / /srv rw - ext4 /dev/sdy rw\n'
    )
    error = devices.refused(named(name))
    assert isinstance(error, exception.DeviceInUseByHost)
    assert 'mounted on /srv' in str(error)
    assert handles()[f'file/{name}'][0] == 'host'
    stick.kernel.write_file('proc/self/mountinfo', '')
    instance, _ = plug(named(name))
    os_acc.unplug(instance)


@pytest.fixture
def usb(nodes):
    """A USB device with one interface, which is no disk."""
    there = 'pci0000:00/0000:00:14.0/usb1/1-2'
    nodes.add('bus/usb/001/005', 'c 189:4', there, 'usb')
    nodes.kernel.write_file(f'sys/devices/{there}/bDeviceClass', '00\n')
    nodes.changed = True
    devices.spec({'devices': '/dev/bus/usb/001/005'})

    def show(kind, protocol='00'):
        for name, value in (('Class', kind), ('Protocol', protocol)):
            nodes.kernel.write_file(
                f'sys/devices/{there}/1-2:1.0/bInterface{name}', f'{value}\n'
            )

    show('ff')
    return types.SimpleNamespace(
        show=show,
        there=nodes.kernel.sys / 'devices' / there,
        kernel=nodes.kernel,
    )


def test_the_file_of_a_usb_accelerator(usb):
    instance, _ = plug(named(name_at('/dev/bus/usb/001/005')))
    os_acc.unplug(instance)


@pytest.mark.parametrize(
    ('kind', 'protocol', 'refused'),
    [('03', '01', True), ('03', '02', True), ('03', '00', False)],
)
def test_the_file_of_a_keyboard(usb, kind, protocol, refused):
    usb.show(kind, protocol)
    request = named(name_at('/dev/bus/usb/001/005'))
    if refused:
        assert 'an input device' in str(devices.refused(request))
    else:
        plug(request)


def test_the_file_of_a_usb_hub(usb):
    (usb.there / 'bDeviceClass').write_text('09\n')
    error = devices.refused(named(name_at('/dev/bus/usb/001/005')))
    assert 'a USB hub, with all devices behind it' in str(error)


@pytest.mark.parametrize(
    ('flags', 'place', 'refused'),
    [
        ('0x1003', '1-2:1.0', True),
        ('0x1002', '1-2:1.0', False),
        ('0x1003', '../1-3/1-3:1.0', False),
    ],
)
def test_the_file_of_a_usb_network_card(usb, flags, place, refused):
    path = (usb.there / place).resolve()
    path.mkdir(parents=True, exist_ok=True)
    usb.kernel.add_net(path, 'eth9')
    (path / 'net/eth9/flags').write_text(f'{flags}\n')
    request = named(name_at('/dev/bus/usb/001/005'))
    if refused:
        error = devices.refused(request)
        assert isinstance(error, exception.DeviceInUseByHost)
        assert 'eth9 is up' in str(error)
    else:
        plug(request)


@pytest.mark.parametrize('mounted, used', [('8:32', True), ('8:33', False)])
def test_the_character_device_of_a_namespace(nodes, mounted, used):
    """Native multipath: the namespaces of other drives do not count."""
    kernel = nodes.kernel
    directory = 'virtual/nvme-subsystem/nvme-subsys'
    nodes.add('ng0n1', 'c 21:0', f'{directory}0/ng0n1', 'nvme-generic')
    for number in range(2):
        path = kernel.sys / f'devices/{directory}{number}/nvme{number}n1'
        path.mkdir(parents=True)
        (path / 'dev').write_text(f'8:{32 + number}\n')
        (kernel.sys / f'class/block/{path.name}').symlink_to(path)
        kernel.write_file(f'dev/{path.name}', '')
    nodes.changed = True
    devices.spec({'devices': '/dev/ng0n1', 'keeps_data': True})
    (found,) = os_acc.get_devices()
    kernel.write_file(
        'proc/self/mountinfo', f'36 35 {mounted} / /srv rw - xfs /dev/x rw\n'
    )
    if used:
        error = devices.refused(named(found.address))
        assert 'nvme0n1 is mounted on /srv' in str(error)
    else:
        plug(named(found.address))


def test_the_host_uses_a_disk_of_the_same_function(disk):
    """The disk comes with another file, and neither is given out."""
    there = 'pci0000:00/0000:04:00.0/misc/acc9'
    disk.add('acc9', 'c 241:9', there, 'misc')
    spec = {'devices': '/dev/acc9', 'with': '/dev/sdx'}
    devices.spec(spec)
    name = name_at('/dev/acc9')
    assert 'it stores data' in str(devices.refused(named(name)))
    devices.spec({**spec, 'keeps_data': True})
    assert handles()[f'file/{name}'] == ('free', None)
    _swap(disk)
    error = devices.refused(named(name))
    assert isinstance(error, exception.DeviceInUseByHost)
    assert 'swap space' in str(error)
    assert handles()[f'file/{name}'][0] == 'host'


def test_a_block_device_does_not_go_along(disk):
    devices.spec({'devices': '/dev/acc1', 'with': '/dev/sdx'})
    error = devices.refused(named(A))
    assert 'cannot come with' in str(error)


# --- reboot, lost devices, changes of device_spec


def test_after_a_reboot_by_its_name(gpus):
    instance, van = plug(named(RENDER))
    assert van.handle.files[0].minor == 128
    gpus.kernel.reboot()
    for name in ('renderD128', 'card0', 'renderD129', 'card1'):
        gpus.remove(f'dri/{name}')
    gpus.render(OTHER, 128)
    gpus.render(GPU, 129)
    # device_spec may offer it no more: the VAN keeps it.
    devices.spec()
    assert os_acc.recover().failed == []
    (van,) = os_acc.get_vans()
    assert [each.path for each in van.handle.files] == [
        '/dev/dri/renderD129',
        '/dev/dri/card1',
        '/dev/kfd',
    ]
    assert van.handle.name == RENDER
    assert gpus.of('dri/renderD129') == (0, 44, 0o660)
    assert gpus.of('dri/renderD128') == (0, 6, 0o660)
    assert os_acc.unplug(instance) == 1
    assert gpus.of('dri/renderD129') == (0, 6, 0o660)


def test_after_a_reboot_two_entries_offer_it_differently(nodes):
    """Nobody else gets it; the VAN keeps it."""
    instance, _ = plug(named(B))
    devices.spec(
        {'devices': '/dev/acc*', 'owner': 1001, 'mode': '0600'},
        {'devices': '/dev/acc2', 'mode': '0666'},
    )
    nodes.kernel.reboot()
    nodes.set('acc2', 0, 6, 0o660)
    assert os_acc.recover().failed == []
    assert os_acc.unplug(instance) == 1
    assert 'contradict' in str(devices.refused(named(B)))


def test_unplugged_after_a_reboot(nodes):
    instance, _ = plug(named(A))
    nodes.kernel.reboot()
    nodes.set('acc1', 0, 6, 0o660)
    pid = nodes.kernel.hold('/dev/acc1', 'other', 'c 240:1')
    assert os_acc.unplug(instance) == 1
    nodes.kernel.end(pid)


def test_a_device_that_does_not_come_back(nodes):
    os_acc.CONF.set_override('device_timeout', 0.2, 'os_acc')
    instance, _ = plug(named(A))
    nodes.kernel.reboot()
    nodes.remove('acc1')
    nodes.changed = True
    (van,) = os_acc.recover().failed
    assert f'{A} to come back' in van.error
    assert os_acc.unplug(instance) == 1


def test_a_number_that_another_device_has_by_now(gpus):
    """The module was loaded again: the GPUs have each other's numbers."""
    one, request = devices.instance(), named(RENDER)
    os_acc.plug(one, [request])
    for name in ('renderD128', 'card0', 'renderD129', 'card1'):
        gpus.remove(f'dri/{name}')
    gpus.render(OTHER, 128)
    gpus.render(GPU, 129)
    error = devices.refused(named(f'{OTHER}+drm+renderd'))
    assert isinstance(error, exception.DeviceBusy)
    assert f'instance {one.uuid} was given the device number' in str(error)
    # Nor does the VAN move while its container has the old number open.
    pid = gpus.kernel.hold('/dev/dri/renderD128', 'python3', 'c 226:128')
    with pytest.raises(exception.PlugException, match='has /dev/dri/render'):
        os_acc.plug(one, [request])
    gpus.kernel.end(pid)
    (van,) = os_acc.plug(one, [request])
    assert van.handle.files[0].path == '/dev/dri/renderD129'
    plug(named(f'{OTHER}+drm+renderd'))


def test_a_file_that_is_gone_is_released(nodes):
    instance, request = devices.instance(), named(A)
    os_acc.plug(instance, [request])
    nodes.remove('acc1')
    nodes.changed = True
    assert os_acc.unplug(instance) == 1


def test_the_numbers_change_between_look_and_claim(nodes, monkeypatch):
    nodes.changed = True
    taken = privileged.take

    def replaced(*arguments):
        nodes.remove('acc1')
        nodes.add('acc1', 'c 240:9')
        return taken(*arguments)

    monkeypatch.setattr(privileged, 'take', replaced)
    error = devices.refused(named(A))
    assert isinstance(error, exception.DeviceNotFound)
    assert nodes.of('acc1') == (0, 6, 0o660)


# --- crashes and threads


def test_a_crash_at_each_change(nodes):
    nodes.changed = False
    for after in (False, True):
        number, died = 0, True
        while died:
            nodes.kernel.crash_at(number, after)
            died = False
            try:
                instance, _ = plug(named(A))
            except mortal.Crash:
                died = True
            except exception.PlugException:
                died = True
            nodes.kernel.revive()
            os_acc.initialize(reset=True)
            if died:
                assert os_acc.recover().failed == []
                assert nodes.of('acc1') == (0, 6, 0o660)
                assert not os_acc.get_vans()
            number += 1
        assert number == 3
        for place in range(2):
            nodes.kernel.crash_at(place, after)
            with pytest.raises((mortal.Crash, exception.UnplugException)):
                os_acc.unplug(instance)
            nodes.kernel.revive()
            os_acc.initialize(reset=True)
            os_acc.recover()
            os_acc.unplug(instance)
            assert nodes.of('acc1') == (0, 6, 0o660)
            instance, _ = plug(named(A))
        os_acc.unplug(instance)


def test_a_crash_at_each_record_and_note(nodes, monkeypatch):
    from os_acc.privileged import root_folder

    for name in ('write', 'delete'):
        real = getattr(root_folder.RootFiles, name)
        for after in (False, True):
            for number in range(2):
                left = [number]

                def act(self, *values, real=real, left=left, after=after):
                    left[0] -= 1
                    if left[0] == -1 and not after:
                        raise mortal.Crash
                    real(self, *values)
                    if left[0] == -1:
                        raise mortal.Crash

                monkeypatch.setattr(root_folder.RootFiles, name, act)
                instance = devices.instance()
                with pytest.raises(
                    (
                        mortal.Crash,
                        exception.PlugException,
                        exception.UnplugException,
                    )
                ):
                    os_acc.plug(instance, [named(A)])
                    os_acc.unplug(instance)
                monkeypatch.setattr(root_folder.RootFiles, name, real)
                os_acc.initialize(reset=True)
                os_acc.recover()
                os_acc.unplug(instance)
                assert nodes.of('acc1') == (0, 6, 0o660)
                assert file_owners.changes.names() == []
                assert notes.files.names() == []


def test_two_threads_for_one_file(nodes):
    done, errors = [], []

    def one():
        try:
            done.append(plug(named(A))[0])
        except exception.PlugException as err:
            errors.append(err.__cause__)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 1
    assert all(isinstance(e, exception.DeviceBusy) for e in errors)


def test_threads_share_a_file(nodes):
    devices.spec({'devices': '/dev/acc1', 'shared': True})
    done = []

    def one():
        done.append(plug(devices.wanted(CLASS))[1].handle.share)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == ['0', '1', '2', '3']


# --- the privileged half trusts no caller


FILE = ['/dev/acc1', 'c', 240, 1]


@pytest.mark.parametrize(
    ('arguments', 'error'),
    [
        (('../a', '', [FILE], 1.0), exception.InvalidRequest),
        ((7, '', [FILE], 1.0), exception.InvalidRequest),
        ((A, 'x', [FILE], 1.0), exception.InvalidRequest),
        ((A, '0', [FILE], 1.0), exception.InvalidRequest),
        ((A, '', 'x', 1.0), exception.InvalidRequest),
        ((A, '', [['/dev/acc1', 'c', 240]], 1.0), exception.InvalidRequest),
        ((A, '', [['/etc/x', 'c', 240, 1]], 1.0), exception.InvalidRequest),
        ((A, '', [['/dev/acc1', 'f', 1, 1]], 1.0), exception.InvalidRequest),
        ((A, '', [['/dev/acc1', 'c', -1, 1]], 1.0), exception.InvalidRequest),
        ((A, '', [FILE], -1), exception.InvalidRequest),
        ((A, '', [['/dev/acc2', 'c', 240, 2]], 1.0), exception.DeviceBusy),
        ((A, '', [], 1.0), exception.DeviceBusy),
        (('char-240-9', '', [FILE], 1.0), exception.DeviceNotFound),
    ],
)
def test_bad_arguments(nodes, arguments, error):
    with pytest.raises(error):
        privileged.take(*arguments)
    assert nodes.kernel.writes == []


def test_root_refuses_a_share_above_the_number(nodes):
    devices.spec({'devices': '/dev/acc1', 'shared': 2})
    with pytest.raises(exception.InvalidRequest, match='share'):
        privileged.take(A, '2', [FILE], 1.0)


def test_root_asks_device_spec_itself(nodes):
    devices.spec({'devices': '/dev/acc2'})
    with pytest.raises(exception.DeviceNotFound):
        privileged.take(A, '', [FILE], 1.0)
    devices.spec(
        {'devices': '/dev/acc1'}, {'devices': '/dev/a*', 'deny': True}
    )
    with pytest.raises(exception.DeviceNotFound, match='denies'):
        privileged.take(A, '', [FILE], 1.0)


def test_nothing_is_restored_without_a_record(nodes):
    nodes.changed = True
    nodes.set('acc1', 5, 5, 0o600)
    assert privileged.give_back(A, '', [FILE], 0.1, 1.0) == []
    assert nodes.of('acc1') == (5, 5, 0o600)


def test_a_directory_that_is_not_to_be_trusted(nodes, caplog):
    nodes.add('open/acc', 'c 240:7')
    nodes.changed = True
    devices.spec({'devices': ['/dev/acc1', '/dev/open/*'], 'mode': '0600'})
    instance, _ = plug(named('char-240-7'))
    directory = nodes.kernel.root / 'dev/open'
    directory.chmod(0o777)
    assert [d.address for d in os_acc.get_devices()] == [A]
    assert 'users other than root can write' in caplog.text
    assert os_acc.unplug(instance) == 1
    assert 'is left as it is' in caplog.text
    directory.chmod(0o755)


@pytest.mark.parametrize('change', ['number', 'number only', 'inode'])
def test_another_file_takes_its_place(nodes, monkeypatch, change):
    """Between the look of the privileged half and the change, or after it."""
    nodes.changed = True
    if change == 'number only':
        devices.spec({'devices': '/dev/acc*'})

    def replace():
        nodes.remove('acc1')
        nodes.add('acc1', 'c 240:1' if change == 'inode' else 'c 240:9')

    if change != 'inode':
        opened = device_files.opened

        def reopened(path):
            if not done:
                done.append(path)
                replace()
            return opened(path)

        done = []
        monkeypatch.setattr(
            privileged,
            '_check_free',
            lambda *values: monkeypatch.setattr(
                device_files, 'opened', reopened
            ),
        )
    else:
        nodes.kernel.fail('dev/acc1/chmod', replace)
    error = devices.refused(named(A))
    assert isinstance(error, exception.DeviceBusy)
    assert 'another file has meanwhile taken its place' in str(error)
    assert nodes.of('acc1') == (0, 6, 0o660)


def test_intact(nodes):
    driver = os_acc._host.extensions.drivers['devfile']
    _, van = plug(named(A))
    assert driver.is_intact(van)
    nodes.set('acc1', 1001, 6, 0o640)
    assert not driver.is_intact(van)
    van.driver_data = {}
    assert driver.is_intact(van)
    nodes.set('acc1', 1001, 6, 0o600)
    nodes.changed = True


# --- tools


def test_shown(nodes, gpus):
    plug(named(RENDER))
    driver = os_acc._host.extensions.drivers['devfile']
    for address in (RENDER, '/dev/dri/renderD128'):
        told = driver.show_device(address)
        assert told['address'] == RENDER
        assert told['pci functions'] == [GPU]
        assert told['shared'] == 'no'
        assert 'user 0, group 44, mode 0660' in told['files'][0]
        assert len(told['vans']) == 1
    assert driver.show_device('/dev/acc1') is None
    devices.spec(
        {'devices': '/dev/acc1', 'shared': 2},
        {'devices': '/dev/acc2', 'shared': True},
    )
    assert driver.show_device(A)['shared'] == 'by 2 VANs'
    assert driver.show_device(B)['shared'] == 'by any number of VANs'


def test_diagnosed(nodes):
    driver = os_acc._host.extensions.drivers['devfile']
    plug(named(A))
    devices.spec(
        {'devices': '/dev/acc[12]'},
        {'devices': '/dev/none'},
        {'devices': '/dev/acc3', 'with': '/dev/none'},
    )
    found = [(f.subject, f.verdict) for f in driver.diagnose()]
    assert found == [
        ('device file /dev/acc1', 'ok'),
        ('device file /dev/acc2', 'ok'),
        ('device file /dev/acc3', 'warning'),
    ]
    (found,) = devices.problems()
    assert found.subject == 'device_spec, entry 2'
    devices.spec()
    assert list(driver.diagnose()) == []


def test_numbers_of_a_van_of_another_driver(nodes):
    """Such as idxd: all of its files are its own."""
    from os_acc.drivers import given_files

    _, van = plug(named(A))
    van.driver_data = {}
    assert given_files.own_files(van) == [
        device_files.DeviceFile('/dev/acc1', device_files.Number('c', 240, 1))
    ]
    assert device_spec.load(os_acc.CONF).entries


def opened_at_the_change(nodes, monkeypatch, name):
    """Let a program open /dev/acc1 just before its owner is changed.

    :returns: gets the process id; once it is emptied, another program does so
    """
    change, pids = file_owners.set_owner, []

    def opened(fd, uid, gid):
        if not pids:
            path = nodes.kernel.root / 'dev/acc1'
            pids.append(nodes.kernel.hold(str(path), name, 'c 240:1'))
        change(fd, uid, gid)

    monkeypatch.setattr(file_owners, 'set_owner', opened)
    return pids


def test_a_program_opens_a_file_while_it_is_given_back(nodes, monkeypatch):
    """Between the look who has it open and the change of its owner."""
    instance, _ = plug(named(A))
    pids = opened_at_the_change(nodes, monkeypatch, 'late')
    with pytest.raises(exception.UnplugException, match='late'):
        os_acc.unplug(instance)
    assert notes.files.names() == [f'file-{A}']
    assert isinstance(devices.refused(named(A)), exception.DeviceBusy)
    nodes.kernel.end(pids[0])
    assert os_acc.unplug(instance) == 1


@pytest.mark.parametrize('mode', ['0600', '0660'])
def test_a_program_opens_a_file_while_it_is_given_out(
    nodes, monkeypatch, mode
):
    """Between the look who has it open and the change of its owner."""
    devices.spec({'devices': '/dev/acc*', 'owner': 1001, 'mode': mode})
    pids = opened_at_the_change(nodes, monkeypatch, 'early')
    text = str(devices.refused(named(A)))
    assert f'process {pids[0]} (early) has /dev/acc1 open' in text
    assert nodes.of('acc1') == (0, 6, 0o660)
    assert notes.files.names() == []
    assert file_owners.changes.names() == []
    nodes.kernel.end(pids[0])
    instance, _ = plug(named(A))
    assert nodes.of('acc1') == (1001, 6, int(mode, 8))
    # A VAN that has lost the owner of its file keeps its note.
    nodes.set('acc1', 0, 6, 0o666)
    pids.clear()
    with (
        devices.acting(),
        pytest.raises(exception.DeviceBusy, match='early'),
    ):
        privileged.take(A, '', [FILE], 60.0)
    assert notes.files.names() == [f'file-{A}']
    nodes.kernel.end(pids[0])
    os_acc.unplug(instance)
    nodes.changed = True


# --- cleaning


def cleaning(text):
    os_acc.CONF.set_override('cleaning_command', text, 'os_acc')


def says(path):
    return f"sh -c 'echo $0 >> {path}' {{address}}"


def test_cleaned_when_it_is_closed(nodes, tmp_path):
    said = tmp_path / 'said'
    cleaning(says(said))
    instance, _ = plug(named(B))
    pid = nodes.kernel.hold('/dev/acc2', 'python3', 'c 240:2')
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance)
    assert not said.exists()
    nodes.kernel.end(pid)
    assert os_acc.unplug(instance) == 1
    assert said.read_text() == '/dev/acc2\n'


def test_what_cannot_be_cleaned_goes_to_nobody(nodes):
    instance, van = plug(named(B))
    cleaning('false {address}')
    with pytest.raises(exception.UnplugException, match='cleaning_command'):
        os_acc.unplug(instance)
    (left,) = os_acc.get_vans()
    assert (left.uuid, left.state) == (van.uuid, 'error')
    assert isinstance(devices.refused(named(B)), exception.DeviceBusy)
    assert nodes.of('acc2') == (1001, 6, 0o600)
    cleaning('')
    assert os_acc.unplug(instance) == 1


def test_a_shared_file_refuses_the_option(nodes, tmp_path):
    devices.spec({'devices': '/dev/acc*', 'shared': 2})
    instance, _ = plug(named(A))
    said = tmp_path / 'said'
    cleaning(says(said))
    error = str(devices.refused(named(A)))
    assert '[os_acc] cleaning_command is set' in error
    assert len(notes.files.names()) == 1
    # The other VAN may use it still.
    assert os_acc.unplug(instance) == 1
    assert not said.exists()


def test_root_refuses_a_shared_file_too(nodes):
    devices.spec({'devices': '/dev/acc*', 'shared': 2})
    cleaning('true')
    files = [['/dev/acc1', 'c', 240, 1]]
    with pytest.raises(exception.ExceptionBase, match='cleaning_command'):
        privileged.take(A, '0', files, 5.0)


def test_the_host_uses_it_since_a_reboot(nodes, tmp_path):
    """It is not cleaned then."""
    nodes.changed = True
    said = tmp_path / 'said'
    cleaning(says(said))
    instance, _ = plug(named(A))
    nodes.kernel.reboot()
    pid = nodes.kernel.hold('/dev/acc1', 'hostd', 'c 240:1')
    with pytest.raises(exception.UnplugException, match=f'process {pid} '):
        os_acc.unplug(instance)
    assert not said.exists()
    nodes.kernel.end(pid)
    assert os_acc.unplug(instance) == 1
    assert said.read_text() == '/dev/acc1\n'
