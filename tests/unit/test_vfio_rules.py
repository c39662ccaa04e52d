# SPDX-License-Identifier: Apache-2.0

"""What the kernel's VFIO refuses, told before a device is touched."""

from __future__ import annotations

import errno
import os

import devices
import disks
import pytest

import os_acc
from os_acc import exception
from os_acc.availability import vfio_rules
from os_acc.kernel import device_files
from os_acc.kernel import modules
from os_acc.kernel import pci
from os_acc.kernel import vfio
from os_acc.kinds.pci.driver import report_vfio
from os_acc.privileged.kernel import vfio_binding
from os_acc.spec import device_spec

DENIED = '0000:0a:00.0'
ECAP = 'sys/class/iommu/{}/intel-iommu/ecap'
UNSAFE = 'sys/module/{}/parameters/allow_unsafe_interrupts'


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    os_acc.initialize()
    return kernel


def refused(here, address: str) -> Exception:
    """Plug a function in vain: nothing is written."""
    before = here.snapshot()
    here.writes.clear()
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(devices.instance(), [devices.pci(address)])
    assert here.writes == []
    assert here.snapshot() == before
    assert not os_acc.get_vans()
    return caught.value.__cause__


def taken(here, address: str) -> None:
    """Plug a function and release it."""
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(address)])
    assert os_acc.unplug(instance) == 1


def free(address: str) -> int:
    (device,) = [d for d in os_acc.get_devices() if d.address == address]
    return device.handles_free


# --- the denylist of vfio-pci


@pytest.mark.parametrize(
    'ids, kind',
    [
        ('8086:19e2', 'QAT'),
        ('8086:19e3', 'QAT'),
        ('8086:37c8', 'QAT'),
        ('8086:37c9', 'QAT'),
        ('8086:0435', 'QAT'),
        ('8086:0443', 'QAT'),
        ('8086:0b25', 'DSA and IAA'),
        ('8086:0cfe', 'DSA and IAA'),
    ],
)
def test_a_device_of_the_denylist(here, ids, kind):
    here.add_function(DENIED, ids, 0x0B4000)
    err = refused(here, DENIED)
    assert isinstance(err, exception.DeviceError)
    assert f'vfio-pci refuses {ids}, because {kind}' in str(err)
    assert 'disable_denylist=1' in str(err)
    assert free(DENIED) == 0


@pytest.mark.parametrize(
    'name, text',
    [
        ('sys/module/vfio_pci/parameters/disable_denylist', 'Y\n'),
        ('modprobe.d/vfio.conf', 'options vfio-pci disable_denylist=1\n'),
        (
            'modprobe.d/vfio.conf',
            'options vfio_pci ids=1:2 disable_denylist\n',
        ),
        (
            'modprobe.d/vfio.conf',
            'options vfio-pci ids=1:2 \\\n  disable_denylist=1\n',
        ),
        ('proc/cmdline', 'quiet vfio-pci.disable_denylist=on\n'),
    ],
)
def test_the_denylist_is_off(here, name, text):
    here.add_function(DENIED, '8086:37c8', 0x0B4000)
    here.write_file(name, text)
    taken(here, DENIED)


@pytest.mark.parametrize(
    'name, text',
    [
        ('modprobe.d/vfio.conf', '# options vfio-pci disable_denylist=1\n'),
        ('modprobe.d/vfio.conf', 'options vfio-pci disable_denylist=0\n'),
        ('modprobe.d/vfio.conf', 'options kvm disable_denylist=1\n'),
        ('modprobe.d/vfio.conf.old', 'options vfio-pci disable_denylist=1\n'),
    ],
)
def test_the_denylist_is_on(here, name, text):
    here.add_function(DENIED, '8086:37c8', 0x0B4000)
    here.write_file(name, text)
    refused(here, DENIED)


def test_a_file_of_modprobe_hides_another_of_its_name(here, monkeypatch):
    here.add_function(DENIED, '8086:37c8', 0x0B4000)
    here.write_file(
        'usr/modprobe.d/vfio.conf', 'options vfio-pci disable_denylist=1\n'
    )
    directories = [str(here.root / 'usr/modprobe.d')]
    directories += modules.MODPROBE_DIRECTORIES
    monkeypatch.setattr(modules, 'MODPROBE_DIRECTORIES', directories)
    taken(here, DENIED)
    here.write_file('modprobe.d/vfio.conf', '# no options any more\n')
    refused(here, DENIED)


def test_what_is_loaded_counts_before_what_is_configured(here):
    here.add_function(DENIED, '8086:37c8', 0x0B4000)
    here.write_file(
        'modprobe.d/vfio.conf', 'options vfio-pci disable_denylist=1\n'
    )
    here.write_file('sys/module/vfio_pci/parameters/disable_denylist', 'N\n')
    refused(here, DENIED)


def test_one_that_vfio_pci_has_bound_is_not_refused(here):
    """An older kernel has no entries for Sapphire Rapids."""
    here.add_function(DENIED, '8086:0b25', 0x088000)
    path = here.pci / 'devices' / DENIED
    here.write(f'{path}/driver_override', 'vfio-pci')
    here.write(str(here.pci / 'drivers_probe'), DENIED)
    taken(here, DENIED)


def test_a_variant_driver_has_no_denylist(here):
    here.add_function(DENIED, '8086:37c9', 0x0B4000)
    here.add_driver('mlx5_vfio_pci')
    devices.spec({'address': DENIED, 'vfio_driver': 'mlx5_vfio_pci'})
    taken(here, DENIED)


def test_vfs_of_the_denylist_are_not_even_made(here):
    here.add_function(DENIED, '8086:37c8', 0x0B4000, 'qat', totalvfs=4)
    path = here.pci / 'devices' / DENIED / 'sriov_vf_device'
    path.write_text('37c9\n')
    devices.spec({'address': DENIED, 'num_vfs': 2})
    assert free(DENIED) == 0
    err = refused(here, '0000:0a:00.1')
    assert f'a VF of PF {DENIED}: vfio-pci refuses 8086:37c9' in str(err)
    here.write_file('sys/module/vfio_pci/parameters/disable_denylist', 'Y\n')
    assert free(DENIED) == 2
    taken(here, '0000:0a:00.1')


def test_vfs_that_get_a_variant_driver(here):
    here.add_function(DENIED, '8086:37c8', 0x0B4000, 'qat', totalvfs=4)
    path = here.pci / 'devices' / DENIED / 'sriov_vf_device'
    path.write_text('37c9\n')
    entry = {'address': DENIED, 'num_vfs': 2, 'vfio_driver': 'mlx5_vfio_pci'}
    devices.spec(entry)
    assert free(DENIED) == 2


def test_vfs_with_the_product_id_of_their_pf(here):
    """Kernels before 4.13 do not show the one of the VFs."""
    here.add_function(DENIED, '8086:37c9', 0x0B4000, 'qat', totalvfs=4)
    (here.pci / 'devices' / DENIED / 'sriov_vf_device').unlink(True)
    devices.spec({'address': DENIED, 'num_vfs': 2})
    assert free(DENIED) == 0
    err = refused(here, '0000:0a:00.1')
    assert f'a VF of PF {DENIED}: vfio-pci refuses 8086:37c9' in str(err)


@pytest.mark.parametrize('name', ['iavf', 'vfio pci', 'vfio-pci/../bind'])
def test_what_is_no_vfio_driver(here, name):
    """Root reads the name from a record, too, and not only from an entry."""
    spec = device_spec.Spec(vfio_driver=name)
    with pytest.raises(exception.InvalidRequest) as caught:
        vfio_rules.driver_for(pci.get(devices.GPU), spec)
    text = str(caught.value)
    assert '[os_acc] device_spec' in text
    assert f'vfio_driver is {name!r}' in text
    assert 'the name of a VFIO driver' in text


# --- memory that the firmware uses


@pytest.mark.parametrize(
    'kind, fine',
    [('direct', False), ('direct-relaxable', True), ('msi', True)],
)
def test_reserved_regions(here, kind, fine):
    group = here.node(devices.GPU).rpartition('/')[2]
    here.write_file(
        f'sys/kernel/iommu_groups/{group}/reserved_regions',
        '0x00000000fee00000 0x00000000feefffff msi\n'
        f'0x000000007b800000 0x000000007fffffff {kind}\n',
    )
    if fine:
        taken(here, devices.GPU)
        return
    err = refused(here, devices.GPU)
    assert isinstance(err, exception.DeviceError)
    assert '0x7b800000-0x7fffffff' in str(err)
    assert f'IOMMU group {group} (RMRR)' in str(err)
    assert free(devices.GPU) == 0


# --- interrupt remapping


def test_an_iommu_that_cannot_remap_interrupts(here):
    here.write_file(ECAP.format('dmar0'), 'f0105e\n')
    here.write_file(ECAP.format('dmar1'), 'f01056\n')
    err = refused(here, devices.GPU)
    assert isinstance(err, exception.DeviceError)
    assert 'cannot remap interrupts' in str(err)
    assert free(devices.GPU) == 0
    devices.spec({'address': devices.PF, 'num_vfs': 2})
    assert free(devices.PF) == 0
    assert 'cannot remap' in str(refused(here, devices.VFS[0]))
    assert 'allow_unsafe_interrupts=1' in str(err)


def test_iommus_that_can(here):
    here.write_file(ECAP.format('dmar0'), 'f0105e\n')
    (here.sys / 'class/iommu/ivhd0').mkdir()
    taken(here, devices.GPU)


@pytest.mark.parametrize('module', ['vfio_iommu_type1', 'iommufd'])
def test_unsafe_interrupts_are_allowed(here, module):
    here.write_file(ECAP.format('dmar0'), 'f01056\n')
    here.write_file(UNSAFE.format(module), 'Y\n')
    taken(here, devices.GPU)


def test_the_doctor_on_interrupts(here):
    assert list(report_vfio.findings()) == []
    here.write_file('proc/interrupts', '  9:  0  IO-APIC   9-fasteoi acpi\n')
    (found,) = report_vfio.findings()
    assert (found.subject, found.verdict) == (
        'interrupt remapping',
        'warning',
    )
    assert '/proc/interrupts' in found.text
    here.write_file('proc/interrupts', '  9:  0  IR-IO-APIC  9-fasteoi acpi\n')
    assert list(report_vfio.findings()) == []
    assert not report_vfio.remaps_no_interrupts()
    here.write_file(ECAP.format('dmar0'), 'f01056\n')
    (found,) = report_vfio.findings()
    assert found.verdict == 'error'
    here.write_file(UNSAFE.format('vfio_iommu_type1'), 'Y\n')
    (found,) = report_vfio.findings()
    assert found.verdict == 'warning'
    assert 'any interrupt' in found.text


# --- bridges by their header


def test_an_nvswitch_is_no_bridge(here):
    here.add_function('0000:0b:00.0', '10de:1af1', 0x068000)
    devices.spec({'address': '*'})
    assert free('0000:0b:00.0') == 1
    taken(here, '0000:0b:00.0')


@pytest.mark.parametrize(
    'pci_class, files',
    [
        (0x060000, {}),  # host bridge
        (0x060100, {}),  # ISA bridge: lpc_ich
        (0x060400, {'secondary_bus_number': '6\n'}),
        (0x068000, {'secondary_bus_number': '6\n'}),
        (0x088000, {'secondary_bus_number': '6\n'}),
    ],
)
def test_bridges(here, pci_class, files):
    here.add_function('0000:0b:00.0', '8086:1234', pci_class, files=files)
    devices.spec({'address': '*'})
    assert 'it is a bridge' in str(refused(here, '0000:0b:00.0'))
    assert '0000:0b:00.0' not in {d.address for d in os_acc.get_devices()}


@pytest.mark.parametrize(
    'driver, viable',
    [
        ('lpc_ich', False),
        ('shpchp', False),
        ('pcieport', True),
        ('pci-stub', True),
        (None, True),
    ],
)
def test_a_bridge_in_the_group(here, driver, viable):
    here.add_function('0000:0c:00.0', '10de:1eb8', 0x030200, group=60)
    here.add_function('0000:0c:1f.0', '8086:1234', 0x060100, driver, 60)
    if viable:
        taken(here, '0000:0c:00.0')
        return
    err = refused(here, '0000:0c:00.0')
    assert isinstance(err, exception.DeviceInUseByHost)
    assert (
        f'its IOMMU group 60 also contains 0000:0c:1f.0: driver {driver} is '
        'bound to it'
    ) in str(err)


def test_vfs_of_a_pf_whose_group_loses_a_member(here):
    """It is still listed, and nothing can be read of it."""
    here.add_function(DENIED, '1234:11e8', 0x0B4000, 'qat', 60, totalvfs=2)
    group = here.sys / 'kernel/iommu_groups/60/devices'
    (group / '0000:0a:00.7').symlink_to(here.pci / 'devices/0000:0a:00.7')
    devices.spec({'address': DENIED, 'num_vfs': 2})
    assert free(DENIED) == 2


def test_vfs_of_a_pf_beside_a_bridge_and_what_is_no_function(here):
    here.add_function(DENIED, '1234:11e8', 0x0B4000, 'qat', 60, totalvfs=2)
    here.add_function('0000:0c:00.0', '8086:1234', 0x060400, group=60)
    group = here.sys / 'kernel/iommu_groups/60/devices'
    (group / '0000').symlink_to(here.sys / 'devices')
    devices.spec({'address': DENIED, 'num_vfs': 2})
    assert free(DENIED) == 0
    assert '0000:0c:00.0' in str(refused(here, '0000:0a:00.1'))


# --- the NVMe target


@pytest.mark.parametrize(
    'name, path, text',
    [
        (
            'namespaces/1/device_path',
            '/dev/nvme0n1',
            'block device nvme0n1 is exported by the NVMe target as a '
            'namespace of nqn.test',
        ),
        (
            'namespaces/1/device_path',
            '/dev/disk/by-id/nvme-x',
            'block device nvme0n1 is exported',
        ),
        (
            'passthru/device_path',
            '/dev/nvme0',
            'NVMe controller nvme0 is exported by the NVMe target as nqn.test',
        ),
    ],
)
def test_a_disk_that_the_nvme_target_exports(here, name, path, text):
    directory = here.sys / f'devices/pci0000:00/{devices.DISK}/nvme'
    disks.add_controller(here, directory, 'nvme0', 'pcie')
    link = here.root / 'dev/disk/by-id/nvme-x'
    link.parent.mkdir(parents=True)
    link.symlink_to('../../nvme0n1')
    place = f'sys/kernel/config/nvmet/subsystems/nqn.test/{name}'
    here.write_file(place, '(null)\n')
    taken(here, devices.DISK)
    here.write_file(place, f'{path}\n')
    err = refused(here, devices.DISK)
    assert isinstance(err, exception.DeviceInUseByHost)
    assert text in str(err)


# --- a kernel without VFIO groups


@pytest.fixture
def groupless(here):
    here.without_groups()
    return here


def test_bound_without_groups(groupless):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(devices.GPU)])
    assert groupless.driver_of(devices.GPU) == 'vfio-pci'
    assert '<driver iommufd="yes"/>' in van.guest_config
    pid = groupless.hold(groupless.device_node(devices.GPU))
    with pytest.raises(exception.UnplugException, match=f'process {pid}'):
        os_acc.unplug(instance)
    groupless.end(pid)
    assert os_acc.unplug(instance) == 1
    assert groupless.driver_of(devices.GPU) is None


def test_the_file_does_not_come(groupless):
    groupless.show_device = lambda address: None
    with pytest.raises(
        exception.Timeout,
        match=f'vfio/devices for PCI function {devices.GPU}',
    ):
        vfio_binding.bind(devices.GPU, 'vfio-pci', 0.1)


def test_it_is_seen_only_after_the_module_is_loaded(here):
    """VFIO's classes are not there before the first bind."""
    (here.sys / 'class/vfio-dev').rmdir()
    (here.sys / 'class/vfio').rmdir()
    here.groups = False
    instance = devices.instance()
    show = here.show_device

    def load(address):
        (here.sys / 'class/vfio-dev').mkdir(exist_ok=True)
        show(address)

    here.show_device = load
    (van,) = os_acc.plug(instance, [devices.pci(devices.GPU)])
    assert '<driver iommufd="yes"/>' in van.guest_config
    (again,) = os_acc.get_vans(instance)
    assert again.driver_data['iommufd'] == 'yes'


def test_the_doctor_on_groups(groupless):
    (found,) = report_vfio.findings()
    assert found.verdict == 'ok'
    assert 'no VFIO groups' in found.text


@pytest.mark.parametrize(
    ('name', 'held'),
    [('12', True), ('noiommu-0', True), ('devices/vfio3', False)],
)
def test_only_a_group_can_be_open_once(here, monkeypatch, name, held):
    """That the file of a device cannot be opened says nothing of a guest."""

    def busy(*args: object) -> int:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    file = device_files.DeviceFile(
        vfio.node(name), device_files.Number('c', 244, 1)
    )
    monkeypatch.setattr(os, 'open', busy)
    assert vfio.is_held(file) is held
