# SPDX-License-Identifier: Apache-2.0

"""The plugin cdi on a generated kernel: the specs that it writes."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import stat
import threading
import time
import uuid

import cdi_validator
import command
import devices
import pytest

from acc_plug_cdi import CDIPlugin
from acc_plug_cdi import report
import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.containers import nodes as container_nodes
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import file_system
from os_acc.kernel import mdev
from os_acc.kernel import sriov
from os_acc.kernel import sysfs
from os_acc.kinds.devfile import groups as file_groups
from os_acc.privileged import container_offers
from os_acc.privileged import container_specs
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import undo_log
from os_acc.spec import device_spec

KIND = 'os-acc.openstack.org/accelerator'
# Begins with a letter, so that a spec of version 0.3.0 is enough.
UUID = 'ab4e28ba-1111-4222-8333-444455556666'


@pytest.fixture
def here(kernel, tmp_path):
    """A host whose plugin is cdi, with specs in the directory ``specs``."""
    devices.furnish(kernel)
    devices.spec({'address': devices.PF, 'num_vfs': 4}, {'address': '*'})
    conf = os_acc.CONF
    conf.set_override('plugin', 'cdi', 'os_acc')
    kernel.specs = kernel.root / 'run/cdi'
    os_acc.initialize()
    conf.set_override('spec_dir', str(kernel.specs), 'os_acc_cdi')
    return kernel


def pci(address, name=UUID):
    request = devices.pci(address)
    request.uuid = name
    return request


def specs(here) -> dict[str, dict]:
    """The specs by the names of their files, all of them valid."""
    found = {}
    for path in here.specs.iterdir():
        text = path.read_text()
        cdi_validator.check(text)
        assert list(cdi_validator.faults(text)) == []
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        found[path.name] = json.loads(text)
    return found


def nodes(here) -> list[tuple[str, str, int, int]]:
    (spec,) = specs(here).values()
    (device,) = spec['devices']
    return [
        (node['path'], node['type'], node['major'], node['minor'])
        for node in device['containerEdits']['deviceNodes']
    ]


def number(path) -> tuple[int, int]:
    major, minor = pathlib.Path(path).read_text().split(':')
    return int(major), int(minor)


def group(here, address) -> tuple[str, str, int, int]:
    name = os.path.basename(here.node(address))
    return (
        f'/dev/vfio/{name}',
        'c',
        *number(here.sys / f'class/vfio/{name}/dev'),
    )


CONTAINER = ('/dev/vfio/vfio', 'c', 10, 196)


def container(here) -> int:
    """A container with the device files of the only spec."""
    return here.contain(*((p, f'{t} {a}:{b}') for p, t, a, b in nodes(here)))


# --- what is written


def test_a_vf(here):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [pci(devices.VFS[1])])
    assert van.guest_config == f'{KIND}={UUID}'
    name = f'os-acc.openstack.org-accelerator_{UUID}.json'
    (spec,) = [s for n, s in specs(here).items() if n == name]
    assert spec['cdiVersion'] == '0.3.0'
    assert nodes(here) == [group(here, devices.VFS[1]), CONTAINER]
    assert stat.S_IMODE(here.specs.stat().st_mode) == 0o755
    assert os_acc.unplug(instance) == 1
    assert list(here.specs.iterdir()) == []
    assert undo_log.container_specs.names() == []
    assert sriov.count(devices.PF) == 0


def test_an_mdev(here):
    request = devices.mdev()
    os_acc.plug(devices.instance(), [request])
    name = sysfs.link(f'{mdev.directory(request.handle.uuid)}/iommu_group')
    there = number(here.sys / f'class/vfio/{name}/dev')
    assert nodes(here) == [(f'/dev/vfio/{name}', 'c', *there), CONTAINER]


def test_a_kernel_without_groups(here):
    here.without_groups()
    os_acc.plug(devices.instance(), [pci(devices.GPU)])
    name = os.path.basename(here.device_node(devices.GPU))
    assert nodes(here) == [
        (f'/dev/vfio/devices/{name}', 'c', 510, int(name[4:])),
        ('/dev/iommu', 'c', 10, 125),
    ]


SHARED = {'hostPath': '/usr/lib', 'containerPath': '/acme'}


def two(one: dict, other: dict):
    """Plug two devices for one container, with what their entries add."""
    devices.spec({'address': devices.GPU, **one}, {'address': 'mtty', **other})
    info = devices.instance()
    return os_acc.plug(info, [pci(devices.GPU), devices.mdev()])


@pytest.mark.parametrize(
    ('one', 'other', 'name'),
    [
        ({'env': ['A=0']}, {'env': ['A=1']}, 'variable A'),
        ({'env': ['A=']}, {'env': ['A=x=y']}, 'variable A'),
        (
            {'mounts': [SHARED]},
            {'mounts': [SHARED | {'hostPath': '/usr/bin'}]},
            'path /acme',
        ),
        (
            {'mounts': [SHARED | {'options': ['ro']}]},
            {'mounts': [SHARED | {'options': ['rw']}]},
            'path /acme',
        ),
        (
            {'mounts': [SHARED | {'containerPath': '/dev/vfio/vfio'}]},
            {},
            'path /dev/vfio/vfio',
        ),
    ],
)
def test_two_vans_of_one_container_that_contradict(here, one, other, name):
    with pytest.raises(exception.PlugException, match=name) as found:
        two(one, other)
    assert f'pci/{devices.GPU}' in str(found.value)
    assert not os_acc.get_vans()
    assert list(here.specs.glob('*')) == []


@pytest.mark.parametrize(
    'edits',
    [
        {'env': ['A=0']},
        {'env': ['A=disk and mount']},
        {'mounts': [SHARED]},
        {'mounts': [SHARED | {'options': ['ro', 'nosuid']}]},
    ],
)
def test_two_vans_of_one_container_that_agree(here, edits):
    assert len(two(edits, edits)) == 2


def test_a_later_van_contradicts_one_that_is_plugged(here):
    devices.spec(
        {'address': devices.GPU, 'env': ['A=0']},
        {'address': 'mtty', 'env': ['A=1']},
    )
    info = devices.instance()
    os_acc.plug(info, [pci(devices.GPU)])
    with pytest.raises(exception.PlugException, match='variable A'):
        os_acc.plug(info, [devices.mdev()])
    assert len(os_acc.get_vans()) == 1
    # Another container has another environment.
    os_acc.plug(devices.instance(), [devices.mdev()])


@pytest.mark.parametrize(
    ('added', 'text'),
    [
        (
            {'mounts': [SHARED | {'hostPath': '/no/such'}]},
            'the source /no/such of a mount does not exist',
        ),
        (
            {'hooks': [{'hookName': 'prestart', 'path': '/no/hook'}]},
            'the program /no/hook of a hook: No such file',
        ),
        (
            {'hooks': [{'hookName': 'prestart', 'path': '/etc/passwd'}]},
            'the program /etc/passwd of a hook cannot be executed',
        ),
        (
            {'hooks': [{'hookName': 'prestart', 'path': '/usr'}]},
            'the program /usr of a hook cannot be executed',
        ),
    ],
)
def test_an_entry_refers_to_what_is_not_there(here, added, text):
    devices.spec({'address': devices.GPU, **added})
    with pytest.raises(exception.PlugException, match=text):
        os_acc.plug(devices.instance(), [pci(devices.GPU)])
    assert not os_acc.get_vans()
    said = [each.text for each in report.entries(os_acc.CONF)]
    assert len(said) == 1
    assert text in said[0]


def test_a_mount_without_a_source_on_the_host(here):
    mount = SHARED | {'hostPath': '/no/such', 'type': 'tmpfs'}
    devices.spec({'address': devices.GPU, 'mounts': [mount]})
    os_acc.plug(devices.instance(), [pci(devices.GPU)])
    assert not list(report.entries(os_acc.CONF))


def test_iommufd_beside_groups(here):
    os_acc.CONF.set_override('iommufd', True, 'os_acc_cdi')
    with pytest.raises(exception.PlugException, match='no VFIO file of its'):
        os_acc.plug(devices.instance(), [pci(devices.GPU)])
    assert not os_acc.get_vans()


def test_what_the_entry_adds(here):
    mount = {'hostPath': '/usr/lib', 'containerPath': '/usr/lib'}
    hook = {'hookName': 'createContainer', 'path': '/bin/true', 'timeout': 5}
    devices.spec(
        {
            'address': devices.GPU,
            'env': ['A=1'],
            'mounts': [mount],
            'hooks': [hook],
        },
        {'address': 'mtty', 'env': ['B=2']},
    )
    for option, value in {
        'device_uid': 5,
        'device_gid': 6,
        'device_mode': '640',
    }.items():
        os_acc.CONF.set_override(option, value, 'os_acc_cdi')
    os_acc.plug(devices.instance(), [pci(devices.GPU)])
    (spec,) = specs(here).values()
    edits = spec['devices'][0]['containerEdits']
    assert edits['env'] == ['A=1']
    assert edits['mounts'] == [mount | {'options': ['rbind']}]
    assert edits['hooks'] == [hook]
    for node in edits['deviceNodes']:
        assert (node['uid'], node['gid'], node['fileMode']) == (5, 6, 0o640)
        assert node['permissions'] == 'rw'
    os_acc.plug(devices.instance(), [devices.mdev()])
    assert ['B=2'] in [
        spec['devices'][0]['containerEdits'].get('env')
        for spec in specs(here).values()
    ]


def test_an_mdev_that_no_entry_names_any_more(here):
    request, instance = devices.mdev(), devices.instance()
    os_acc.plug(instance, [request])
    devices.spec({'address': devices.GPU})
    for path in here.specs.iterdir():
        path.unlink()
    os_acc.plug(instance, [request])
    assert len(nodes(here)) == 2


def test_a_function_that_libvirt_would_bind(here):
    devices.spec({'address': devices.GPU, 'bind': 'libvirt'})
    with pytest.raises(exception.PlugException, match='"bind": "os-acc"'):
        os_acc.plug(devices.instance(), [pci(devices.GPU)])
    assert not here.specs.exists() or not list(here.specs.iterdir())
    assert not os_acc.get_vans()


def test_without_the_file_of_vfio(here):
    (here.sys / 'class/misc/vfio/dev').unlink()
    with pytest.raises(exception.PlugException, match='/vfio/vfio, without'):
        os_acc.plug(devices.instance(), [pci(devices.GPU)])


def test_live_is_refused(here):
    with pytest.raises(exception.LiveNotSupported):
        os_acc.plug(devices.instance(), [pci(devices.GPU)], live=True)


def test_a_handle_that_no_container_can_use(here):
    with pytest.raises(exception.UnsupportedHandle):
        container_nodes.of_handle(objects.TestHandle(name='x'), False)
    with pytest.raises(exception.UnsupportedHandle):
        container_offers.edits(objects.DRCHandle(drc_index=1), UUID)
    info = os_acc.host_info().get_plugin('cdi')
    assert {each.handle_object_name for each in info.handle_info} == {
        'PCIHandle',
        'MdevHandle',
        'DeviceFileHandle',
        'BlockHandle',
    }


# --- device files and block devices


def test_device_files(here, monkeypatch):
    files = [
        objects.DeviceFile(
            path=f'/dev/dsa/wq0.{n}', type='c', major=240, minor=n
        )
        for n in (0, 1)
    ]
    files[1].permissions = 'r'
    handle = objects.DeviceFileHandle(name='wq', files=files)

    def get(path):
        there = device_files.Number('c', 240, int(path[-1]))
        return device_files.Node(path, there, 0, 0, 0o600, 1)

    monkeypatch.setattr(device_files, 'get', get)
    found = container_nodes.of_handle(handle, False)
    assert [(n.path, n.permissions) for n in found] == [
        ('/dev/dsa/wq0.0', 'rw'),
        ('/dev/dsa/wq0.1', 'r'),
    ]
    files[1].minor = 2
    with pytest.raises(
        exception.DeviceError, match=r'was c 240:2 .* and is c 240:1 now'
    ):
        container_nodes.of_handle(handle, False)


@pytest.fixture
def queue(here, monkeypatch):
    """An accelerator of two files, one of which is common to others."""

    def node(path, minor):
        there = device_files.Number('c', 240, minor)
        return device_files.Node(path, there, 0, 0, 0o600, 1)

    own, common = node('/dev/acc0', 0), node('/dev/accctl', 9)
    (spec,) = device_spec.parse(
        '{"devices": "/dev/acc0", "with": "/dev/accctl", "env": ["A=1"]}'
    )
    found = file_groups.Accelerator(
        file_place.Place('acc'), spec, (own,), (common,)
    )
    monkeypatch.setattr(file_groups, 'find', lambda *args: found)
    by_path = {each.path: each for each in found.files}
    monkeypatch.setattr(device_files, 'get', by_path.__getitem__)
    return objects.DeviceFileHandle(
        name='acc',
        files=[
            objects.DeviceFile(path=path, type='c', major=240, minor=minor)
            for path, minor in (('/dev/acc0', 0), ('/dev/accctl', 9))
        ],
    )


def test_device_files_that_a_van_has(here, queue):
    with pytest.raises(exception.DeviceNotFound, match='no VAN has it'):
        container_specs.write(UUID, UUID, primitive(queue))
    notes.note(notes.FILE, 'acc', 'acc', entry='{"devices": "/dev/acc0"}')
    container_specs.write(UUID, UUID, primitive(queue))
    assert nodes(here) == [
        ('/dev/acc0', 'c', 240, 0),
        ('/dev/accctl', 'c', 240, 9),
    ]
    (spec,) = specs(here).values()
    assert spec['devices'][0]['containerEdits']['env'] == ['A=1']
    assert container_specs.is_written(UUID, primitive(queue))
    # Other containers have the common file too.
    pid = here.contain(('/dev/accctl', 'c 240:9'))
    container_specs.withdraw(UUID, 0.0)
    here.end(pid)


def test_a_caller_cannot_give_a_device_to_two(here, queue):
    """Nor hide by a second spec that a container has the device."""
    notes.note(notes.FILE, 'acc', 'acc', entry='{"devices": "/dev/acc0"}')
    container_specs.write(UUID, UUID, primitive(queue))
    other = str(uuid.uuid4())
    with pytest.raises(exception.DeviceBusy, match=f'VAN {UUID} of instance'):
        container_specs.write(other, other, primitive(queue))
    assert len(specs(here)) == 1
    container_specs.write(UUID, UUID, primitive(queue))
    container_specs.withdraw(UUID, 0.0)
    container_specs.write(other, other, primitive(queue))


def test_two_at_once_do_not_both_get_a_device(here, queue, monkeypatch):
    notes.note(notes.FILE, 'acc', 'acc', entry='{"devices": "/dev/acc0"}')
    write = undo_log.container_specs.write
    monkeypatch.setattr(
        undo_log.container_specs,
        'write',
        lambda *args: (time.sleep(0.1), write(*args)),
    )
    errors = []

    def ask(van):
        try:
            container_specs.write(van, van, primitive(queue))
        except exception.DeviceBusy as err:
            errors.append(err)

    vans = [str(uuid.uuid4()) for _ in range(3)]
    threads = [threading.Thread(target=ask, args=[van]) for van in vans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 2
    assert len(specs(here)) == 1


def test_the_spec_of_a_lost_van_can_be_removed(here, queue):
    notes.note(notes.FILE, 'acc', 'acc', entry='{"devices": "/dev/acc0"}')
    container_specs.write(UUID, UUID, primitive(queue))
    (path,) = here.specs.iterdir()
    path.unlink()
    pid = here.contain(('/dev/acc0', 'c 240:0'))
    other = str(uuid.uuid4())
    with pytest.raises(exception.DeviceBusy, match=f'VAN {UUID} of instance'):
        container_specs.write(other, other, primitive(queue))
    here.end(pid)
    container_specs.write(other, other, primitive(queue))
    assert undo_log.container_specs.names() == [other]


def test_a_caller_cannot_add_files_or_permissions(here, queue):
    notes.note(notes.FILE, 'acc', 'acc', entry='{"devices": "/dev/acc0"}')
    queue.files[0].permissions = 'rwm'
    with pytest.raises(exception.InvalidRequest, match='at most rw'):
        container_specs.write(UUID, UUID, primitive(queue))
    queue.files[0].permissions = 'rw'
    queue.files[0].path = '/dev/sda'
    with pytest.raises(exception.DeviceNotFound, match='/dev/sda'):
        container_specs.write(UUID, UUID, primitive(queue))
    assert not here.specs.exists()


@pytest.fixture
def disk(here):
    """A block device that a link of udev names."""
    here.write_file('sys/class/block/nvme1n1/dev', '259:3\n')
    here.write_file('sys/class/block/nvme1n1/wwid', 'uuid.77\n')
    here.write_file('dev/nvme1n1', '')
    link = here.root / 'dev/disk/by-id/nvme-uuid.77'
    link.parent.mkdir(parents=True)
    link.symlink_to('../../nvme1n1')
    return objects.BlockHandle(
        path='/dev/disk/by-id/nvme-uuid.77', wwn='uuid.77'
    )


def test_a_block_device(here, disk):
    (node,) = container_nodes.of_handle(disk, False)
    assert node.path == '/dev/nvme1n1'
    assert node.number == device_files.Number('b', 259, 3)


def test_another_block_device(here, disk):
    here.write_file('sys/class/block/nvme1n1/wwid', 'uuid.78\n')
    with pytest.raises(exception.DeviceError, match=r'uuid\.78, expected'):
        container_nodes.of_handle(disk, False)


def test_no_block_device(here, disk):
    (here.root / 'dev/nvme1n1').unlink()
    with pytest.raises(exception.DeviceNotFound, match='no such block'):
        container_nodes.of_handle(disk, False)


# --- again, and after a reboot


def test_plug_again_writes_nothing(here):
    instance, request = devices.instance(), pci(devices.GPU)
    os_acc.plug(instance, [request])
    (path,) = here.specs.iterdir()
    before = path.stat()
    os_acc.plug(instance, [request])
    after = path.stat()
    # The time of the last access changes, because the spec is read.
    assert after.st_ino == before.st_ino
    assert after.st_ctime_ns == before.st_ctime_ns


@pytest.mark.parametrize('how', ['removed', 'changed', 'option'])
def test_plug_again_repairs_the_spec(here, how):
    instance, request = devices.instance(), pci(devices.GPU)
    os_acc.plug(instance, [request])
    (path,) = here.specs.iterdir()
    text = path.read_text()
    if how == 'removed':
        path.unlink()
    elif how == 'changed':
        path.write_text(text.replace('"rw"', '"rwm"'))
    else:
        os_acc.CONF.set_override('device_mode', '600', 'os_acc_cdi')
    os_acc.plug(instance, [request])
    assert (path.read_text() == text) == (how != 'option')
    assert len(nodes(here)) == 2


@pytest.mark.parametrize('how', ['unbound', 'gone'])
def test_a_device_that_no_container_can_use_is_not_intact(here, how):
    (van,) = os_acc.plug(devices.instance(), [devices.pci(devices.GPU)])
    plugin = CDIPlugin.load('cdi')
    assert plugin.is_intact(van)
    before = here.snapshot(), specs(here)
    if how == 'unbound':
        here.unbind(devices.GPU)
    else:
        here.take_off(devices.GPU)
    after = here.snapshot()
    assert not plugin.is_intact(van)
    assert (here.snapshot(), specs(here)) == (after, before[1])


def test_plug_again_binds_a_device_that_somebody_has_unbound(here):
    instance, request = devices.instance(), devices.pci(devices.GPU)
    os_acc.plug(instance, [request])
    before = here.snapshot()
    here.unbind(devices.GPU)
    os_acc.plug(instance, [request])
    assert here.snapshot() == before
    # The file of the IOMMU group may have another number than before.
    assert nodes(here) == [group(here, devices.GPU), CONTAINER]


def test_another_directory_and_kind(here):
    instance, request = devices.instance(), pci(devices.GPU)
    os_acc.plug(instance, [request])
    other = here.root / 'run/other'
    os_acc.CONF.set_override('spec_dir', str(other), 'os_acc_cdi')
    os_acc.CONF.set_override('kind', 'v1.org/cc', 'os_acc_cdi')
    (van,) = os_acc.plug(instance, [request])
    assert van.guest_config == f'v1.org/cc={UUID}'
    assert os_acc.get_vans()[0].guest_config == van.guest_config
    assert list(here.specs.iterdir()) == []
    assert [path.name for path in other.iterdir()] == [
        f'v1.org-cc_{UUID}.json'
    ]
    # What is noted counts, not the options.
    os_acc.CONF.clear_override('kind', 'os_acc_cdi')
    os_acc.unplug(instance)
    assert list(other.iterdir()) == []


def test_after_a_reboot_the_spec_has_the_new_number(here, monkeypatch):
    instance = devices.instance()
    requests = [pci(devices.VFS[0]), devices.mdev()]
    os_acc.plug(instance, requests)
    (here.specs / f'os-acc.openstack.org-accelerator_{UUID}.json').unlink()
    before = {path.name: path.read_text() for path in here.specs.iterdir()}
    here.reboot()
    os_acc.initialize(reset=True)
    assert len(specs(here)) == 2
    for name, text in before.items():
        assert (here.specs / name).read_text() != text
    os_acc.unplug(instance)
    assert list(here.specs.iterdir()) == []


def test_a_spec_of_an_earlier_boot_is_removed(here, monkeypatch):
    """The directory of the specs may survive a reboot; root's record does
    not."""
    instance = devices.instance()
    os_acc.plug(instance, [pci(devices.GPU)])
    monkeypatch.setattr(sysfs, 'boot_id', lambda: 'next')
    container_specs.withdraw(UUID, 0.0)
    assert list(here.specs.iterdir()) == []


# --- containers that have a device


def test_unplug_waits_for_the_container(here):
    instance = devices.instance()
    os_acc.plug(instance, [pci(devices.GPU)])
    pid = container(here)
    with pytest.raises(
        exception.UnplugException,
        match=rf'process {pid} \(sleep\) is in a container',
    ) as caught:
        os_acc.unplug(instance)
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    # No other container gets it.
    assert list(here.specs.iterdir()) == []
    assert here.driver_of(devices.GPU) == 'vfio-pci'
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance)
    here.end(pid)
    assert os_acc.unplug(instance) == 1
    assert here.driver_of(devices.GPU) is None


def test_a_program_that_has_it_under_another_name(here):
    instance = devices.instance()
    os_acc.plug(instance, [pci(devices.GPU)])
    pid = here.contain(('/dev/other', 'c 1:3'))
    fd = here.root / f'proc/{pid}'
    _, kind, major, minor = group(here, devices.GPU)
    (fd / 'number/7').write_text(f'{kind} {major}:{minor}')
    with pytest.raises(exception.UnplugException, match='in a container'):
        os_acc.unplug(instance)
    here.end(pid)
    os_acc.unplug(instance)


def test_a_container_that_renames_its_device_file(here):
    instance = devices.instance()
    os_acc.plug(instance, [pci(devices.GPU)])
    _, kind, major, minor = group(here, devices.GPU)
    pid = here.contain(('/dev/deep/er/x', f'{kind} {major}:{minor}'))
    with pytest.raises(exception.UnplugException, match='has /dev/deep/er/x'):
        os_acc.unplug(instance)
    here.end(pid)
    os_acc.unplug(instance)


def test_a_container_whose_dev_is_a_link(here):
    """It would lead to the /dev of the host, whose processes do not count."""
    instance = devices.instance()
    os_acc.plug(instance, [pci(devices.GPU)])
    _, kind, major, minor = group(here, devices.GPU)
    pid = here.contain()
    root = here.root / f'proc/{pid}/root'
    root.mkdir()
    (root / 'dev').symlink_to(here.root / 'dev')
    number = here.root / f'proc/{pid}/number/7'
    number.write_text(f'{kind} {major}:{minor}')
    with pytest.raises(exception.UnplugException, match='in a container'):
        os_acc.unplug(instance)
    here.end(pid)
    os_acc.unplug(instance)


@pytest.mark.parametrize('what', ['file', 'directory'])
def test_a_container_cannot_claim_a_device_by_a_link(here, what):
    """It could keep the device of another instance from being released."""
    instance = devices.instance()
    os_acc.plug(instance, [pci(devices.GPU)])
    path, kind, major, minor = group(here, devices.GPU)
    pid = here.contain((path, f'{kind} {major}:{minor}'))
    node = here.root / f'proc/{pid}/root{path}'
    if what == 'directory':
        node = node.parent
        node.rename(f'{node}.moved')
        real = here.root / f'outside/{node.name}'
        real.mkdir(parents=True)
        (real / os.path.basename(path)).touch()
        node.symlink_to(real)
        (node.parent / f'{node.name}.moved' / os.path.basename(path)).unlink()
    else:
        node.unlink()
        node.symlink_to(here.root / f'dev{path.removeprefix("/dev")}')
    assert os_acc.unplug(instance) == 1


def test_other_containers_do_not_count(here):
    instance = devices.instance()
    os_acc.plug(instance, [pci(devices.GPU)])
    here.contain(('/dev/vfio/vfio', 'c 10:196'), ('/dev/null', 'c 1:3'))
    host = here.hold('/dev/null', 'bash', 'c 1:3')
    assert (here.root / f'proc/{host}/root').exists()
    assert os_acc.unplug(instance) == 1


def test_what_two_vans_have_does_not_count(here):
    """It does not tell which of the two has it."""
    both = ['/dev/kfd', 'c', 511, 0]
    own = ['/dev/dri/renderD128', 'c', 226, 128]
    other = ['/dev/dri/renderD129', 'c', 226, 129]
    for name, files in ((UUID, [both, own]), ('x', [both, other])):
        undo_log.container_specs.write(
            name,
            undo_log.ContainerSpec(str(here.specs), KIND, UUID, files),
        )
    pid = here.contain(('/dev/kfd', 'c 511:0'), (own[0], 'c 226:128'))
    with pytest.raises(exception.DeviceBusy, match='renderD128'):
        container_specs.withdraw(UUID, 0.0)
    here.end(pid)
    here.contain(('/dev/kfd', 'c 511:0'), (other[0], 'c 226:129'))
    container_specs.withdraw(UUID, 0.0)


@pytest.mark.parametrize('handle', ['file/{}', 'file/{}/0'])
def test_a_number_that_two_instances_have(here, handle):
    """Under two handles, it hides from neither VAN that it is in use."""
    node = ['/dev/dsa/wq0.0', 'c', 240, 0]
    for name in (UUID, 'x'):
        undo_log.container_specs.write(
            name,
            undo_log.ContainerSpec(
                str(here.specs), KIND, name, [node], handle.format(name)
            ),
        )
    pid = here.contain((node[0], 'c 240:0'))
    with pytest.raises(exception.DeviceBusy, match=r'wq0\.0'):
        container_specs.withdraw(UUID, 0.0)
    here.end(pid)
    container_specs.withdraw(UUID, 0.0)


def test_shares_of_one_accelerator_do_not_count(here):
    """They do not tell which of the two instances has it."""
    node = ['/dev/acc0', 'c', 240, 0]
    for number, name in enumerate((UUID, 'x')):
        undo_log.container_specs.write(
            name,
            undo_log.ContainerSpec(
                str(here.specs), KIND, name, [node], f'file/acc/{number}'
            ),
        )
    here.contain((node[0], 'c 240:0'))
    container_specs.withdraw(UUID, 0.0)


def test_a_number_that_another_van_was_given(here, queue):
    """The kernel has given it to another device."""
    notes.note(notes.FILE, 'acc', 'acc', entry='{"devices": "/dev/acc0"}')
    node = ['/dev/other', 'c', 240, 0]
    before = undo_log.ContainerSpec(
        str(here.specs), KIND, 'other', [node], 'file/other'
    )
    undo_log.container_specs.write('x', before)
    pid = here.contain((node[0], 'c 240:0'))
    with pytest.raises(
        exception.DeviceBusy,
        match=r'c 240:0.*VAN x of instance other has a spec for it, as file/',
    ):
        container_specs.write(UUID, UUID, primitive(queue))
    assert not here.specs.exists()
    here.end(pid)
    container_specs.write(UUID, UUID, primitive(queue))
    assert undo_log.container_specs.names() == [UUID]
    # The numbers of what both instances share may be the same.
    undo_log.container_specs.write('x', dataclasses.replace(before, nodes=[]))
    container_specs.write(UUID, UUID, primitive(queue))


def test_eight_vans_wait_as_long_as_one(here, monkeypatch):
    asked: list[float] = []
    real = container_specs.withdraw

    def withdraw(van, seconds):
        asked.append(seconds)
        real(van, seconds)

    os_acc.CONF.set_override('release_timeout', 0.5, 'os_acc')
    requests = [devices.mdev() for _ in range(4)]
    instance = devices.instance()
    os_acc.plug(instance, requests)
    pids = [
        here.contain(
            *(
                (node['path'], f'c {node["major"]}:{node["minor"]}')
                for node in spec['devices'][0]['containerEdits']['deviceNodes']
            )
        )
        for spec in specs(here).values()
    ]
    monkeypatch.setattr(container_specs, 'withdraw', withdraw)
    with pytest.raises(exception.UnplugException) as caught:
        os_acc.unplug(instance)
    assert len(caught.value.undo_errors) in (3, 4)
    assert asked[0] == 0.5
    assert asked[1:] == [0.0] * 3
    for pid in pids:
        here.end(pid)
    assert os_acc.unplug(instance) == 4


def test_a_repair_does_not_forget_the_old_container(here):
    """A container still has the number that the device had before."""
    instance, request = devices.instance(), pci(devices.GPU)
    os_acc.plug(instance, [request])
    old = container(here)
    (path,) = here.specs.iterdir()
    path.unlink()
    name = os.path.basename(here.node(devices.GPU))
    here.write_file(f'sys/class/vfio/{name}/dev', '244:77\n')
    with pytest.raises(exception.PlugException, match='stop the container'):
        os_acc.plug(instance, [request])
    here.end(old)
    os_acc.plug(instance, [request])
    assert nodes(here)[0][3] == 77


def test_no_container_starts_with_the_old_number(here):
    """The old spec goes before anybody looks who has its device."""
    instance, request = devices.instance(), pci(devices.GPU)
    os_acc.plug(instance, [request])
    old = container(here)
    name = os.path.basename(here.node(devices.GPU))
    here.write_file(f'sys/class/vfio/{name}/dev', '244:77\n')
    with pytest.raises(exception.PlugException, match='stop the container'):
        os_acc.plug(instance, [request])
    assert list(here.specs.iterdir()) == []
    here.end(old)
    os_acc.plug(instance, [request])
    assert nodes(here)[0][3] == 77


def test_a_guest_is_a_container_that_has_a_device(here):
    instance = devices.instance()
    os_acc.plug(instance, [pci(devices.GPU)])
    plugin = os_acc._host.extensions.plugin('cdi')
    assert plugin.has_guest(instance) is None
    pid = container(here)
    assert plugin.has_guest(instance) is True
    assert plugin.has_guest(devices.instance()) is None
    here.end(pid)


# --- specs of others


FOREIGN = json.dumps(
    {
        'cdiVersion': '0.3.0',
        'kind': KIND,
        'devices': [{'name': UUID, 'containerEdits': {'env': ['A=1']}}],
    }
)


@pytest.mark.parametrize(
    ('directory', 'name', 'text'),
    [
        ('run/cdi', 'theirs.json', FOREIGN),
        ('run/cdi', 'theirs.yaml', FOREIGN),
        (
            'etc/cdi',
            'theirs.yaml',
            f'kind: {KIND}\ndevices:\n- name: {UUID}\n',
        ),
        (
            'run/cdi',
            f'os-acc.openstack.org-accelerator_{UUID}.json',
            FOREIGN.replace('"devices": [', '"devices": [{"name": "x"}, '),
        ),
        (
            'run/cdi',
            f'os-acc.openstack.org-accelerator_{UUID}.json',
            f'{UUID} is not JSON',
        ),
        (
            'etc/cdi',
            f'os-acc.openstack.org-accelerator_{UUID}.json',
            FOREIGN,
        ),
    ],
)
def test_two_specs_of_one_name(here, directory, name, text):
    here.write_file(f'{directory}/{name}', text)
    path = here.root / directory / name
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(devices.instance(), [pci(devices.GPU)])
    cause = caught.value.__cause__
    assert isinstance(cause, exception.DeviceBusy)
    assert str(path) in str(cause)
    assert caught.value.undo_errors == []
    assert path.read_text() == text
    assert not os_acc.get_vans()


@pytest.mark.parametrize(
    ('name', 'text'),
    [
        ('a.json', FOREIGN.replace(KIND, 'vendor.com/class')),
        ('a.json', '{'),
        ('a.yaml', f'{UUID}: ['),
        ('a.yaml', f'"{UUID}": 2026-13-45'),
        ('a.txt', FOREIGN),
        ('.a.json.new', FOREIGN),
    ],
)
def test_specs_of_others_that_do_not_matter(here, name, text):
    here.write_file(f'run/cdi/{name}', text)
    instance = devices.instance()
    os_acc.plug(instance, [pci(devices.GPU)])
    os_acc.unplug(instance)
    assert (here.specs / name).read_text() == text


def test_files_that_are_no_files(here):
    here.specs.mkdir(parents=True)
    os.mkfifo(here.specs / 'pipe.json')
    (here.specs / 'directory.json').mkdir()
    (here.specs / 'link.json').symlink_to('nowhere')
    os_acc.plug(devices.instance(), [pci(devices.GPU)])


def test_a_spec_that_somebody_has_replaced_stays(here):
    instance = devices.instance()
    os_acc.plug(instance, [pci(devices.GPU)])
    (path,) = here.specs.iterdir()
    path.write_text('somebody else')
    assert os_acc.unplug(instance) == 1
    assert path.read_text() == 'somebody else'


# --- the directory and the file


def test_a_directory_that_others_can_write_in(here):
    here.specs.mkdir(parents=True)
    here.specs.chmod(0o777)
    with pytest.raises(exception.PlugException, match='can write to it'):
        os_acc.plug(devices.instance(), [pci(devices.GPU)])
    assert list(here.specs.iterdir()) == []


def test_a_directory_that_is_a_link(here):
    (here.root / 'elsewhere').mkdir()
    here.specs.symlink_to(here.root / 'elsewhere')
    with pytest.raises(exception.PlugException, match='must be a directory'):
        os_acc.plug(devices.instance(), [pci(devices.GPU)])
    assert list((here.root / 'elsewhere').iterdir()) == []


def test_a_file_that_is_a_link(here):
    here.specs.mkdir(parents=True)
    target = here.root / 'target'
    target.write_text('')
    name = f'os-acc.openstack.org-accelerator_{UUID}.json'
    (here.specs / name).symlink_to(target)
    with pytest.raises(exception.PlugException):
        os_acc.plug(devices.instance(), [pci(devices.GPU)])
    assert target.read_text() == ''
    assert (here.specs / name).is_symlink()


# --- root trusts no caller


def primitive(handle) -> dict:
    return handle.obj_to_primitive()


GPU = objects.PCIHandle(address=devices.GPU)


@pytest.mark.parametrize(
    ('van', 'instance', 'handle'),
    [
        ('../../etc/passwd', UUID, primitive(GPU)),
        (UUID, 'x', primitive(GPU)),
        (UUID.upper(), UUID, primitive(GPU)),
        (UUID, UUID, {}),
        (UUID, UUID, {'versioned_object.name': 'VAN'}),
        (UUID, UUID, None),
    ],
)
def test_arguments_that_root_refuses(here, van, instance, handle):
    with pytest.raises(exception.InvalidRequest):
        container_specs.write(van, instance, handle)
    assert not here.specs.exists()


def test_a_handle_with_a_wrong_field(here):
    wrong = primitive(GPU)
    wrong['versioned_object.data']['address'] = '../x'
    with pytest.raises(exception.InvalidRequest, match='PCI address'):
        container_specs.write(UUID, UUID, wrong)


FILE = objects.DeviceFile(path='/dev/acc0', type='c', major=240, minor=0)


@pytest.mark.parametrize(
    ('field', 'value', 'expected'),
    [
        ('path', '/dev/../etc/passwd', 'an absolute path'),
        ('type', 'p', 'c or b'),
        ('major', -1, 'an int of at least 0'),
        ('minor', True, 'an int of at least 0'),
        ('permissions', 'rwx', 'letters r, w and m'),
    ],
)
def test_a_device_file_with_a_wrong_field(here, field, value, expected):
    """Root reads the values of a handle without the classes of objects."""
    wrong = primitive(objects.DeviceFileHandle(name='acc', files=[FILE]))
    file = wrong['versioned_object.data']['files'][0]
    file['versioned_object.data'][field] = value
    with pytest.raises(exception.InvalidRequest, match=expected):
        container_specs.write(UUID, UUID, wrong)


@pytest.mark.parametrize('field', ['name', 'share', 'files'])
def test_device_files_with_a_wrong_field(here, field):
    wrong = primitive(objects.DeviceFileHandle(name='acc', files=[FILE]))
    wrong['versioned_object.data'][field] = '../x'
    with pytest.raises(exception.InvalidRequest, match=f'{field} is'):
        container_specs.write(UUID, UUID, wrong)


def test_one_device_has_one_name(here):
    name = '0000:3b:00.0'
    wrong = primitive(objects.DeviceFileHandle(name=name, files=[FILE]))
    wrong['versioned_object.data']['name'] = name.upper()
    with pytest.raises(exception.InvalidRequest, match='as the kernel writes'):
        container_specs.write(UUID, UUID, wrong)


def test_a_handle_of_another_major_version(here):
    wrong = {**primitive(GPU), 'versioned_object.version': '2.0'}
    with pytest.raises(exception.InvalidRequest, match='an attach handle'):
        container_specs.write(UUID, UUID, wrong)


def test_root_refuses_a_handle_that_no_container_can_use(here):
    with pytest.raises(
        exception.UnsupportedHandle, match='accept DRCHandle; '
    ):
        container_specs.write(
            UUID, UUID, primitive(objects.DRCHandle(drc_index=1))
        )


@pytest.mark.parametrize(
    'handle',
    [
        GPU,
        objects.MdevHandle(uuid=UUID, parent='mtty', type='mtty-1'),
        objects.PCIHandle(address='0000:ff:00.0'),
    ],
)
def test_what_device_spec_does_not_offer(here, handle):
    devices.spec({'address': devices.NIC})
    with pytest.raises(exception.DeviceNotFound):
        container_specs.write(UUID, UUID, primitive(handle))
    assert not here.specs.exists()


def test_an_mdev_of_somebody_else(here):
    devices.spec({'address': devices.NIC})
    here.write(
        f'{sysfs.SYS}/class/mdev_bus/mtty/mdev_supported_types/mtty-1/create',
        UUID,
    )
    handle = objects.MdevHandle(uuid=UUID, parent='mtty', type='mtty-1')
    with pytest.raises(exception.DeviceNotFound):
        container_specs.write(UUID, UUID, primitive(handle))


def test_an_option_that_only_the_privileged_half_sees(here, monkeypatch):
    from oslo_config import cfg

    conf = cfg.ConfigOpts()
    path = here.root / 'os-acc.conf'
    path.write_text('[os_acc_cdi]\nkind = nonsense\n')
    conf(['--config-file', str(path)])
    monkeypatch.setattr(offers, 'configuration', lambda: conf)
    with pytest.raises(exception.InvalidRequest, match='configuration: '):
        container_specs.write(UUID, UUID, primitive(GPU))


# --- the doctor


def verdicts(path) -> list[tuple[str, str]]:
    return [(each.verdict, each.text) for each in report.directory(str(path))]


MOUNTS = (
    '22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw',
    '23 22 0:21 / /run rw,nosuid - tmpfs tmpfs rw',
    '24 23 0:22 / /run/kept rw - overlay none rw',
    '25 22 0:23 / /a\\040b rw shared:2 master:1 - ext4 none rw',
    '26 22 0:24 / /a\\040b rw shared:2 master:1 - ramfs none rw',
)


@pytest.mark.parametrize(
    ('directory', 'kind'),
    [
        ('/run/cdi', None),
        ('/run', None),
        ('/run/kept/cdi', 'overlay'),
        ('/running/cdi', 'ext4'),
        ('/etc/cdi', 'ext4'),
        ('/a b/cdi', None),
    ],
)
def test_a_directory_that_survives_a_reboot(here, directory, kind):
    here.write_file('proc/self/mountinfo', '\n'.join(('x', *MOUNTS)) + '\n')
    found = [
        each.text
        for each in report.directory(directory)
        if each.subject == f'file system of CDI specs {directory}'
    ]
    assert [each[: each.index(':')] for each in found] == (
        [f'it is {kind}, not a tmpfs'] if kind else []
    )


def test_a_host_that_shows_no_mounts(here):
    (found,) = report.directory('/etc/cdi')
    assert found.subject == 'directory of CDI specs /etc/cdi'


def test_the_directory_is_examined(tmp_path, monkeypatch):
    monkeypatch.setattr(file_system, 'type_of', lambda path: 'tmpfs')
    directory = tmp_path / 'cdi'
    ((verdict, text),) = verdicts(directory)
    assert (verdict, text[:17]) == ('ok', 'it does not exist')
    ((verdict, _),) = verdicts(tmp_path / 'no/cdi')
    assert verdict == 'error'
    directory.mkdir(mode=0o755)
    real = os.stat

    def root_owned(path, *args, **kwargs):
        found = list(real(path, *args, **kwargs))
        found[4] = 0
        return os.stat_result(found)

    monkeypatch.setattr(report.os, 'stat', root_owned)
    assert verdicts(directory) == [('ok', 'only root can write to it')]
    directory.chmod(0o775)
    ((verdict, text),) = verdicts(directory)
    assert (verdict, 'users other than root' in text) == ('error', True)
    (tmp_path / 'link').symlink_to(directory)
    ((verdict, text),) = verdicts(tmp_path / 'link')
    assert (verdict, 'a link' in text) == ('error', True)


def test_the_doctor_finds_specs_without_a_van(here, capsys, monkeypatch):
    os_acc.plug(devices.instance(), [pci(devices.GPU)])
    other = str(uuid.uuid4())
    name = f'os-acc.openstack.org-accelerator_{other}.json'
    for each in (name, 'nvidia.yaml', 'os-acc.openstack.org-accelerator_x'):
        (here.specs / each).write_text('{}')
    (here.specs / f'vendor.com-class_{other}.json').write_text('{}')
    plugin = os_acc._host.extensions.plugin('cdi')
    (found,) = plugin.leftovers({UUID})
    assert found.subject == f'CDI spec {here.specs}/{name}'
    assert f'rm {here.specs}/{name}' in found.advice
    assert list(plugin.diagnose()) != []
    assert list(report.leftovers('/nowhere', KIND, ())) == []


def test_the_command_shows_the_format(here, capsys, monkeypatch):
    run = command.Command(os_acc.CONF.os_acc.state_path, capsys, monkeypatch)
    rows = run('host', 'show', '-f', 'json').json
    assert {
        row['name']: row['guest_config']
        for row in rows
        if row['kind'] == 'plugin'
    } == {
        'cdi': 'cdi-device',
        'libvirt': 'libvirt-xml',
        'noop': None,
        'powervm': 'powervm-json',
    }
