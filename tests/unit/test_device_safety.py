# SPDX-License-Identifier: Apache-2.0

"""Devices that somebody else has, by ways that are easy to miss."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time

import devices
import memory
import pytest

import os_acc
from os_acc import exception
from os_acc.drivers import pci_functions
from os_acc.kernel import mdev
from os_acc.kernel import sriov
from os_acc.kernel import sysfs
from os_acc.kinds.pci.driver import driver as pci_driver
from os_acc.privileged import cleaning
from os_acc.privileged.kernel import module_loading
from os_acc.privileged.mdev import devices as privileged_mdev
from os_acc.privileged.pci import functions as privileged_pci
from os_acc.privileged.pci import vfs as privileged_vfs

PARENT = '0000:42:00.0'
VF_DRIVER = 'uio_pci_generic'


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    path = kernel.add_function(PARENT, '10de:1eb9', 0x030200, 'nvidia')
    kernel.add_mdev_parent(path, {'nvidia-222': 1}, 16)
    os_acc.initialize()
    return kernel


@pytest.fixture
def cleaned(tmp_path):
    """What the cleaning command was run for."""
    path = tmp_path / 'cleaned'
    os_acc.CONF.set_override(
        'cleaning_command', f'sh -c "echo {{address}} >> {path}"', 'os_acc'
    )
    return lambda: path.read_text().split() if path.exists() else []


# --- a device that is given out in parts


@pytest.mark.parametrize('made', ['by us', 'by another'])
def test_a_parent_of_mdevs_is_not_given_out_whole(here, made):
    request = devices.mdev('nvidia-222', parent=PARENT)
    if made == 'by us':
        os_acc.plug(devices.instance(), [request])
    else:
        path = (
            f'{mdev.parent_directory(PARENT)}/mdev_supported_types/nvidia-222'
        )
        here.write(f'{path}/create', request.handle.uuid)
    err = devices.refused(devices.pci(PARENT))
    assert isinstance(err, exception.DeviceBusy | exception.DeviceInUseByHost)
    assert request.handle.uuid in str(err)
    assert here.driver_of(PARENT) == 'nvidia'


def test_one_that_is_for_mdevs_is_not_given_out_whole(here):
    devices.spec({'address': PARENT, 'mdev_types': ['nvidia-222']})
    assert 'mediated devices of it only' in str(
        devices.refused(devices.pci(PARENT))
    )


def test_no_mdev_of_one_that_is_given_out_whole(here):
    os_acc.plug(devices.instance(), [devices.pci(PARENT)])
    err = devices.refused(devices.mdev('nvidia-222', parent=PARENT))
    assert isinstance(err, exception.DeviceBusy)


def test_a_function_with_a_vendors_vgpu(here):
    here.add_function('0000:43:00.4', '10de:2235', 0x030200, 'nvidia')
    directory = here.pci / 'devices/0000:43:00.4/nvidia'
    directory.mkdir()
    (directory / 'current_vgpu_type').write_text('558\n')
    devices.spec({'address': '0000:43:*'})
    request = devices.pci('0000:43:00.4')
    request.driver = 'pci'
    assert 'vGPU type 558' in str(devices.refused(request))


# --- cleaning never hits the host


def test_what_the_host_uses_by_now_is_not_cleaned(here, cleaned):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.DISK)])
    here.reboot()
    here.write_file(
        'proc/self/mountinfo',
        '36 35 259:0 / /data rw - ext4 /dev/nvme0n1 rw\n',
    )
    assert 'mounted on /data' in os_acc.recover().failed[0].error
    with pytest.raises(exception.UnplugException, match='mounted on /data'):
        os_acc.unplug(instance)
    assert cleaned() == []
    assert here.resets == []
    here.write_file('proc/self/mountinfo', '')
    assert os_acc.unplug(instance) == 1
    assert cleaned() == [devices.DISK]


def test_another_device_at_the_address_is_left(here, cleaned):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.DISK)])
    here.reboot()
    path = here.pci / 'devices' / devices.DISK
    text = (path / 'modalias').read_text()
    (path / 'modalias').write_text(text.replace('d00000010', 'd00000099'))
    os_acc.recover()
    here.write(f'{path}/driver_override', 'vfio-pci')
    here.write(str(here.pci / 'drivers/nvme/unbind'), devices.DISK)
    here.write(str(here.pci / 'drivers_probe'), devices.DISK)
    assert os_acc.unplug(instance) == 1
    assert here.driver_of(devices.DISK) == 'vfio-pci'
    assert cleaned() == []


def test_what_could_not_be_cleaned_is_kept_over_a_reboot(here):
    os_acc.CONF.set_override('cleaning_command', 'false', 'os_acc')
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.DISK)])
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance)
    here.reboot()
    os_acc.initialize(reset=True)
    (van,) = os_acc.get_vans()
    assert van.state == 'error'
    assert isinstance(
        devices.refused(devices.pci(devices.DISK)), exception.DeviceBusy
    )


def test_an_old_daemon_that_still_cleans_has_its_turn(here, monkeypatch):
    """Its caller was killed; what comes next waits until it has ended."""
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.DISK)])
    go_on, first = threading.Event(), [True]

    def slow(address: str) -> None:
        if first:
            first.clear()
            go_on.wait(120)

    monkeypatch.setattr(cleaning, 'run_command', slow)

    def clean() -> None:
        with devices.acting():
            privileged_pci.clean(devices.DISK, '1b36:0010', 'auto', 1.0, 1.0)

    old = threading.Thread(target=clean)
    old.start()
    while first:
        time.sleep(0.01)
    os_acc.CONF.set_override('device_timeout', 0.2, 'os_acc')
    with pytest.raises(exception.UnplugException, match='earlier operation'):
        os_acc.unplug(instance)
    os_acc.CONF.set_override('device_timeout', 60.0, 'os_acc')
    go_on.set()
    old.join()
    assert os_acc.unplug(instance) == 1


def cleaning_fails(text):
    """Run a cleaning command for at most 0.5 s; returns its error."""
    os_acc.CONF.set_override('cleaning_timeout', 0.5, 'os_acc')
    os_acc.CONF.set_override('cleaning_command', text, 'os_acc')
    before = time.monotonic()
    with pytest.raises(exception.CleaningFailed) as caught:
        cleaning.run_command('0000:00:01.0')
    assert time.monotonic() - before < 15
    return str(caught.value)


def test_a_child_of_a_cleaning_command_that_does_not_die(here):
    """It has left the process group, and keeps the output open."""
    text = cleaning_fails('sh -c "setsid sleep 20 & sleep 60"')
    assert 'cleaning_command sh: not done after 0.5 s, killed' in text


def test_a_cleaning_command_that_asks(here):
    """The end of the input could mean yes."""
    text = cleaning_fails('sh -c "printf \'Erase it? [Y/n]\'; read x; true"')
    assert 'probably waited for input' in text
    assert text.endswith('Erase it? [Y/n]')


def test_a_cleaning_command_that_writes_without_end(here):
    with memory.grows_by_at_most(64 << 20):  # it writes gigabytes
        text = cleaning_fails('yes {address}')
    assert 'not done after 0.5 s, killed' in text


def test_a_nic_that_is_the_hosts_again_is_let_go(here, cleaned):
    """libvirt gives it back, and its interface comes up at once."""
    devices.spec({'address': devices.NIC, 'managed': 'yes'})
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.NIC)])
    (here.sys / 'class/net/eth0/flags').write_text('0x1003\n')
    assert os_acc.unplug(instance) == 1
    assert cleaned() == []


def test_an_mdev_whose_parent_is_gone(here):
    request, instance = (
        devices.mdev('nvidia-222', parent=PARENT),
        (devices.instance()),
    )
    os_acc.plug(instance, [request])
    here.reboot()
    (here.sys / 'class/mdev_bus' / PARENT).unlink()
    (here.pci / 'devices' / PARENT).unlink()
    os_acc.CONF.set_override('device_timeout', 0.3, 'os_acc')
    assert 'come back' in os_acc.recover().failed[0].error
    assert os_acc.unplug(instance) == 1


# --- what cannot be seen does not count as unused


def test_processes_that_cannot_be_listed(here, monkeypatch):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.DISK)])
    here.hold(here.node(devices.DISK))
    listdir = os.listdir

    def fail(path='.'):
        if path == sysfs.PROC:
            raise OSError(errno.EMFILE, 'Too many open files')
        return listdir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, 'listdir', fail)
        with pytest.raises(exception.UnplugException, match='Too many'):
            os_acc.unplug(instance)
    assert here.driver_of(devices.DISK) == 'vfio-pci'


def test_a_container_that_does_not_see_the_hosts_processes(here):
    path = here.root / 'proc/self/ns/pid'
    path.parent.mkdir()
    path.symlink_to('pid:[4026532999]')
    err = devices.refused(devices.pci(devices.DISK))
    assert isinstance(err, exception.PrivilegeError)
    assert '--pid=host' in str(err)
    path.unlink()
    path.symlink_to('pid:[4026531836]')
    os_acc.plug(devices.instance(), [devices.pci(devices.DISK)])


def test_a_disk_that_cannot_be_opened(here):
    (here.root / 'dev/nvme0n1').unlink()
    err = devices.refused(devices.pci(devices.DISK))
    assert isinstance(err, exception.PrivilegeError)
    assert 'nvme0n1' in str(err)


# --- users that are easy to miss


def test_an_interface_further_down(here):
    path = here.add_function(
        '0000:70:00.0', '15b3:1021', 0x020000, 'mlx5_core', net='eth9'
    )
    directory = path / 'mlx5_core.sf.4/net/sf0'
    directory.mkdir(parents=True)
    (directory / 'flags').write_text('0x1003\n')
    (here.sys / 'class/net/sf0').symlink_to(directory)
    assert 'sf0 is up' in str(devices.refused(devices.pci('0000:70:00.0')))


def test_a_program_that_drives_it(here):
    path = here.add_function('0000:72:00.0', '1d0f:f010', 0x120000, VF_DRIVER)
    (path / 'uio/uio0').mkdir(parents=True)
    (path / 'uio/uio0/uevent').write_text('MAJOR=243\nDEVNAME=uio0\n')
    (here.sys / 'dev/char').mkdir(parents=True)
    (here.sys / 'dev/char/243:0').symlink_to(path / 'uio/uio0')
    pid = here.hold(here.root / 'dev/uio0', 'spdk_tgt', 'c 243:0')
    err = devices.refused(devices.pci('0000:72:00.0'))
    assert f'process {pid} (spdk_tgt)' in str(err)


def test_a_program_without_an_iommu(here):
    """VFIO's file of a group has another name then (drivers/vfio/group.c)."""
    group = here.node(devices.GPU).rpartition('/')[2]
    pid = here.hold(here.root / f'dev/vfio/noiommu-{group}', 'testpmd')
    err = devices.refused(devices.pci(devices.GPU))
    assert f'process {pid} (testpmd)' in str(err)


def test_a_device_file_that_goes_away_meanwhile(here, monkeypatch):
    """Another's: a guest elsewhere has just let go of its group."""
    (here.sys / 'dev/char').mkdir(parents=True)
    gone = here.sys / 'dev/char/238:2'
    gone.symlink_to(here.sys / 'devices/virtual/vfio/2')
    readlink = os.readlink

    def late(path, **kwargs):
        if str(path) == str(gone):
            raise FileNotFoundError(errno.ENOENT, 'No such file', str(path))
        return readlink(path, **kwargs)

    monkeypatch.setattr(os, 'readlink', late)
    [van] = os_acc.plug(devices.instance(), [devices.pci(devices.GPU)])
    assert here.driver_of(van.handle.address) == 'vfio-pci'


@pytest.mark.parametrize(
    'xml, busy',
    [
        (
            '<hostdev type="usb"><source><address bus="2" device="5"/>'
            '</source></hostdev>',
            False,
        ),
        (
            '<interface type="hostdev"><source><address type="pci" '
            'domain="0" bus="0x02" slot="0" function="0"/></source>'
            '</interface>',
            True,
        ),
        (
            '<disk type="nvme"><source><address domain="0" bus="0x02" '
            'slot="0" function="0"/></source></disk>',
            True,
        ),
    ],
)
def test_domains_of_libvirt(here, xml, busy):
    here.write_file(
        'libvirt/g.xml',
        '<domstatus><domain><name>g</name><uuid>u</uuid><devices>'
        f'{xml}</devices></domain></domstatus>',
    )
    request = devices.pci(devices.GPU)
    if busy:
        assert 'libvirt domain g' in str(devices.refused(request))
    else:
        os_acc.plug(devices.instance(), [request])


# --- VFs


def test_a_vf_that_somebody_drives_keeps_the_vfs(here):
    devices.spec({'address': devices.PF, 'num_vfs': 3})
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.VFS[0])])
    here.add_driver(VF_DRIVER)
    path = here.pci / 'devices' / devices.VFS[1]
    here.write(f'{path}/driver_override', VF_DRIVER)
    here.write(str(here.pci / f'drivers/{VF_DRIVER}/bind'), devices.VFS[1])
    os_acc.unplug(instance)
    assert sriov.count(devices.PF) == 3


def test_an_offset_that_is_not_told(here):
    path = here.pci / 'devices' / devices.PF
    (path / 'sriov_offset').write_text('0\n')
    devices.spec(
        {'address': devices.PF, 'num_vfs': 4, 'resource_class': 'CUSTOM_Q'}
    )
    assert isinstance(
        devices.refused(devices.wanted('CUSTOM_Q')), exception.DeviceNotFound
    )
    assert here.driver_of(devices.PF) == 'qat'


def test_a_claim_that_came_to_nothing_removes_its_vfs(here):
    """The first PF's VFs share its group; the second's do not."""
    group = (here.pci / 'devices' / devices.PF / 'iommu_group').readlink()
    other = '0000:61:00.0'
    here.add_function(other, '8086:4940', 0x0B4000, 'qat', totalvfs=2)
    add = here.add_function

    def shared(address, *args, **kwargs):
        if kwargs.get('physfn') == devices.PF:
            kwargs['group'] = int(group.name)
        return add(address, *args, **kwargs)

    here.add_function = shared
    devices.spec(
        {'address': devices.PF, 'num_vfs': 2, 'resource_class': 'CUSTOM_Q'},
        {'address': other, 'num_vfs': 2, 'resource_class': 'CUSTOM_Q'},
    )
    before = here.snapshot()
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.wanted('CUSTOM_Q')])
    assert van.device == other
    assert sriov.count(devices.PF) == 0
    os_acc.unplug(instance)
    assert here.snapshot() == before


def test_a_pf_that_somebody_gave_fewer_vfs(here):
    """All of them are taken: the next PF serves."""
    other = '0000:61:00.0'
    here.add_function(other, '8086:4940', 0x0B4000, 'qat', totalvfs=2)
    wanted = {'num_vfs': 2, 'resource_class': 'CUSTOM_Q'}
    devices.spec(
        {'address': devices.PF, **wanted}, {'address': other, **wanted}
    )
    here.write(str(here.pci / 'devices' / devices.PF / 'sriov_numvfs'), '1')
    got = [
        os_acc.plug(devices.instance(), [devices.wanted('CUSTOM_Q')])
        for _ in range(3)
    ]
    assert [van.device for (van,) in got] == [devices.PF, other, other]
    err = devices.refused(devices.wanted('CUSTOM_Q'))
    assert isinstance(err, exception.DeviceNotFound)


def test_vfs_that_come_while_candidates_are_listed(here, monkeypatch):
    """Another instance's plug makes them."""
    devices.spec(
        {'address': devices.PF, 'num_vfs': 3, 'resource_class': 'CUSTOM_Q'}
    )
    future, there = pci_functions.future, []

    def late(specs):
        if not there:
            there.append(devices.instance())
            os_acc.plug(there[0], [devices.pci(devices.VFS[0])])
        return future(specs)

    monkeypatch.setattr(pci_functions, 'future', late)
    (van,) = os_acc.plug(devices.instance(), [devices.wanted('CUSTOM_Q')])
    assert van.handle.address == devices.VFS[1]


def test_a_pf_that_makes_no_vfs_is_tried_once(here):
    other = '0000:61:00.0'
    here.add_function(other, '8086:4940', 0x0B4000, 'qat', totalvfs=2)
    wanted = {'num_vfs': 2, 'resource_class': 'CUSTOM_Q'}
    devices.spec(
        {'address': devices.PF, **wanted}, {'address': other, **wanted}
    )
    tried = []

    def refuse():
        tried.append(None)
        raise OSError(errno.ENOMEM, 'Cannot allocate memory')

    for _ in range(2):
        here.fail(f'*{devices.PF}/sriov_numvfs', refuse)
    (van,) = os_acc.plug(devices.instance(), [devices.wanted('CUSTOM_Q')])
    assert van.device == other
    assert len(tried) == 1


def test_vfs_that_somebody_makes_meanwhile_are_not_ours(here, monkeypatch):
    """An administrator, between the look and the act: they stay."""
    devices.spec({'address': devices.PF, 'num_vfs': 2})
    create = privileged_vfs.create_vfs

    def late(pf, *args):
        path = here.pci / 'devices' / pf
        here.write(f'{path}/sriov_drivers_autoprobe', '0')
        here.write(f'{path}/sriov_numvfs', '1')
        return create(pf, *args)

    monkeypatch.setattr(privileged_vfs, 'create_vfs', late)
    err = devices.refused(devices.pci(devices.VFS[1]))
    assert isinstance(err, exception.DeviceBusy)
    assert sriov.count(devices.PF) == 1
    assert not os_acc.get_vans()


def test_a_vf_that_has_no_link_to_its_pf_yet(here, monkeypatch):
    here.write(str(here.pci / 'devices' / devices.PF / 'sriov_numvfs'), '2')
    link = here.pci / 'devices' / devices.VFS[0] / 'physfn'
    there = link.readlink()
    link.unlink()
    lock = pci_driver.PCIDriver.lock

    def late(by, name, *args):
        link.symlink_to(there)
        return lock(by, name, *args)

    monkeypatch.setattr(pci_driver.PCIDriver, 'lock', late)
    err = devices.refused(devices.pci(devices.VFS[0]))
    assert isinstance(err, exception.DeviceBusy)
    assert 'are currently being created' in str(err)


def test_a_driver_that_has_not_let_go(here):
    """Its link goes first; the unbind waits for the program."""
    path = here.add_function('0000:72:00.0', '1d0f:f010', 0x120000, VF_DRIVER)
    (path / 'uio/uio0').mkdir(parents=True)
    (path / 'uio/uio0/uevent').write_text('MAJOR=243\nDEVNAME=uio0\n')
    (here.sys / 'dev/char').mkdir(parents=True)
    (here.sys / 'dev/char/243:0').symlink_to(path / 'uio/uio0')
    here.hold(here.root / 'dev/uio0', 'spdk_tgt', 'c 243:0')
    (path / 'driver').unlink()
    assert 'spdk_tgt' in str(devices.refused(devices.pci('0000:72:00.0')))


def test_a_candidate_that_cannot_go_to_a_guest(here):
    """It is behind no IOMMU: the next serves."""
    for place, group in (('62', -1), ('63', None)):
        here.add_function(
            f'0000:{place}:00.0', '1d0f:f010', 0x120000, group=group
        )
    devices.spec({'vendor_id': '1d0f', 'resource_class': 'CUSTOM_Q'})
    (van,) = os_acc.plug(devices.instance(), [devices.wanted('CUSTOM_Q')])
    assert van.device == '0000:63:00.0'
    err = devices.refused(devices.wanted('CUSTOM_Q'))
    assert str(err).count('IOMMU group: enable') == 1


def test_who_made_the_vfs_is_not_forgotten(here):
    devices.spec({'address': devices.PF, 'num_vfs': 3})
    before = here.snapshot()
    first, second = devices.instance(), devices.instance()
    os_acc.plug(first, [devices.pci(devices.VFS[0])])
    here.fail('*/sriov_numvfs', errno.EIO)
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(first)
    os_acc.plug(second, [devices.pci(devices.VFS[1])])
    os_acc.recover()
    os_acc.unplug(second)
    assert here.snapshot() == before


def test_what_somebody_else_has_bound_since_is_left_as_it_is(here):
    here.add_driver(VF_DRIVER)
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    here.write(str(here.pci / 'drivers/vfio-pci/unbind'), devices.GPU)
    path = here.pci / 'devices' / devices.GPU
    here.write(f'{path}/driver_override', VF_DRIVER)
    here.write(str(here.pci / 'drivers_probe'), devices.GPU)
    assert os_acc.unplug(instance) == 1
    assert here.driver_of(devices.GPU) == VF_DRIVER
    # This one was not written by os-acc.
    assert (path / 'driver_override').read_text() == f'{VF_DRIVER}\n'


def test_an_override_of_ours_that_somebody_else_left_is_undone(here):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    here.unbind(devices.GPU)
    here.add_driver(VF_DRIVER)
    here.bind(devices.GPU, VF_DRIVER)
    assert os_acc.unplug(instance) == 1
    assert here.driver_of(devices.GPU) == VF_DRIVER
    path = here.pci / 'devices' / devices.GPU
    assert (path / 'driver_override').read_text() == '(null)\n'


# --- mediated devices that come late


def test_an_mdev_that_comes_late_is_no_orphan(here):
    os_acc.CONF.set_override('device_timeout', 0.3, 'os_acc')
    request, instance = devices.mdev(), devices.instance()
    here.fail('*/mtty-1/create', lambda: time.sleep(1.0))
    with pytest.raises(exception.PlugException):
        os_acc.plug(instance, [request])
    (van,) = os_acc.get_vans()
    assert van.state == 'error'
    os_acc.CONF.set_override('device_timeout', 60.0, 'os_acc')
    assert [v.uuid for v in os_acc.recover().released] == [van.uuid]
    assert mdev.devices() == []


# --- privileged calls do what they are for


def test_no_vfs_is_no_number(here):
    with pytest.raises(exception.InvalidRequest, match='number'):
        privileged_vfs.create_vfs(devices.PF, 0, 1.0)


def test_vfs_are_not_made_anew(here):
    devices.spec({'address': devices.PF, 'num_vfs': 2})
    privileged_vfs.create_vfs(devices.PF, 2, 1.0)
    with pytest.raises(exception.DeviceBusy):
        privileged_vfs.create_vfs(devices.PF, 2, 1.0)
    assert sriov.count(devices.PF) == 2


def test_giving_back_loads_no_module(here, monkeypatch):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.DISK)])
    shutil.rmtree(here.pci / 'drivers/nvme')
    monkeypatch.setattr(
        module_loading, 'load', lambda *_: pytest.fail('modprobe')
    )
    with pytest.raises(
        exception.UnplugException, match='nvme is no longer loaded'
    ):
        os_acc.unplug(instance)
    assert here.driver_of(devices.DISK) == 'vfio-pci'
    here.add_driver('nvme')
    assert len(os_acc.recover().released) == 1
    assert here.driver_of(devices.DISK) == 'nvme'


def test_nothing_is_cleaned_that_device_spec_does_not_name(here, cleaned):
    devices.spec({'address': devices.PF})
    name = '11111111-2222-4333-8444-555555555555'
    privileged_mdev.released(name, 0)
    path = f'{mdev.parent_directory("mtty")}/mdev_supported_types/mtty-1'
    here.write(f'{path}/create', name)
    with pytest.raises(exception.DeviceNotFound, match='device_spec'):
        privileged_mdev.released(name, 0)
    assert cleaned() == []


@pytest.mark.parametrize('seconds', [-1, True, 'x', None, float('nan'), 1e9])
def test_seconds_that_are_none(here, seconds):
    with pytest.raises(exception.InvalidRequest, match='seconds'):
        privileged_vfs.create_vfs(devices.PF, 1, seconds)


@pytest.mark.parametrize(
    'address', ['../x', '0000:01:00.0/..', 7, None, '', '0000:01:00.8']
)
def test_addresses_that_are_none(here, address):
    with pytest.raises(exception.ExceptionBase):
        privileged_vfs.create_vfs(address, 1, 1.0)
    assert here.writes == []
