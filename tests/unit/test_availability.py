# SPDX-License-Identifier: Apache-2.0

"""What discovery counts as free can be taken, and nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import tempfile

import devices
import examples
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

import os_acc
from os_acc import exception
from os_acc.availability import functions as availability
from os_acc.availability import vf_availability
from os_acc.claims import allocated
from os_acc.drivers import allocation
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.spec import device_spec
from os_acc.testing import kernel

CLASSES = (0x120000, 0x030200, 0x020000, 0x010802, 0x060400)
NATIVE = {0x120000: 'qat', 0x030200: 'nvidia', 0x010802: 'nvme'}

functions = st.lists(
    st.fixed_dictionaries(
        {
            'pci_class': st.sampled_from(CLASSES),
            'bound': st.sampled_from(('host', 'vfio-pci', None)),
            # None: an IOMMU group of its own; -1: no IOMMU
            'group': st.sampled_from((None, None, None, 7, 8, -1)),
            'vfs': st.integers(0, 2),
            'spec': st.sampled_from((None, 'none', 'vgpu', 1, 2, 9)),
            'in_use': st.booleans(),
            'boot_vga': st.booleans(),
            'mdev': st.booleans(),
        }
    ),
    min_size=1,
    max_size=4,
)


def build(host: kernel.Kernel, wanted: list[dict]) -> None:
    specs = []
    for number, each in enumerate(wanted):
        address = f'0000:{number + 0x10:02x}:00.0'
        pci_class = each['pci_class']
        network = pci_class == 0x020000
        driver = NATIVE.get(pci_class, 'e1000e')
        host.add_function(
            address,
            f'8086:{number + 0x1000:04x}',
            pci_class,
            driver if each['bound'] == 'host' else None,
            each['group'],
            totalvfs=2 if each['vfs'] or isinstance(each['spec'], int) else 0,
            net=f'eth{number}' if network else None,
            block=f'nvme{number}n1' if pci_class == 0x010802 else None,
            files={'boot_vga': f'{int(each["boot_vga"])}\n'}
            if pci_class == 0x030200
            else None,
        )
        path = host.pci / 'devices' / address
        if each['in_use'] and network:
            (path / f'net/eth{number}/flags').write_text('0x1003\n')
        if each['in_use'] and pci_class == 0x010802:
            (path / f'block/nvme{number}n1/holders/dm-0').touch()
        if each['mdev'] and each['bound'] == 'host':
            (path / '0f6a7b8c-1111-4222-8333-444455556666').mkdir()
        if each['vfs'] and each['bound'] == 'host' and each['group'] != -1:
            host.write(f'{path}/sriov_numvfs', str(each['vfs']))
        elif each['bound'] == 'vfio-pci' and each['group'] != -1:
            host.write(f'{path}/driver_override', 'vfio-pci')
            host.write(str(host.pci / 'drivers_probe'), address)
        spec = {'address': address}
        if each['spec'] == 'none':
            spec['bind'] = 'none'
        elif each['spec'] == 'vgpu':
            spec['vgpu_type'] = 'NVIDIA A40-1Q'
        elif each['spec'] is not None:
            spec['num_vfs'] = each['spec']
        specs.append(spec)
    devices.spec(*specs)


def handles_of(device) -> list[str]:
    """The addresses that a Device counts as its handles."""
    function = pci.get(device.address)
    if function.vf_addresses:
        return function.vf_addresses
    spec = device_spec.load(os_acc.CONF).check(function)
    return sriov.future_addresses(device.address, spec.num_vfs or 0) or [
        device.address
    ]


def can_be_taken(address: str) -> bool:
    instance = devices.instance()
    request = devices.pci(address)
    request.driver = 'pci'
    try:
        os_acc.plug(instance, [request])
    except exception.PlugException as err:
        assert err.undo_errors == []
        assert not os_acc.get_vans(instance)
        return False
    assert os_acc.unplug(instance) == 1
    return True


@settings(
    max_examples=examples.costly(15),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(wanted=functions, taken=st.lists(st.integers(0, 3), max_size=2))
def test_what_is_free_can_be_taken_and_nothing_else(clean, wanted, taken):
    """Nobody has a device open here: only root can see that, so discovery
    does not know it. See the next test."""
    patch = pytest.MonkeyPatch()
    with tempfile.TemporaryDirectory() as directory:
        host = kernel.Kernel(pathlib.Path(directory) / 'host')
        host.install(patch)
        try:
            build(host, wanted)
            for name, value in {
                'state_path': f'{directory}/state',
                'device_timeout': 60.0,
                'release_timeout': 0.05,
            }.items():
                os_acc.CONF.set_override(name, value, 'os_acc')
            os_acc.initialize(reset=True)
            # Some functions belong to other instances.
            for number in taken:
                address = f'0000:{number + 0x10:02x}:00.0'
                request = devices.pci(address)
                request.driver = 'pci'
                with contextlib.suppress(exception.PlugException):
                    os_acc.plug(devices.instance(), [request])
            found = [d for d in os_acc.get_devices() if d.driver == 'pci']
            for device in found:
                handles = handles_of(device)
                assert len(handles) == device.handles_total
                free = [each for each in handles if can_be_taken(each)]
                assert len(free) == device.handles_free, device
        finally:
            os_acc._host.close()
            os_acc._host = None
            patch.undo()


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    os_acc.initialize()
    return kernel


def free(address: str) -> int:
    (device,) = [d for d in os_acc.get_devices() if d.address == address]
    return device.handles_free


def test_only_root_sees_who_has_a_device_open(here):
    """The one difference between discovery and the check before a take."""
    here.hold(here.node(devices.GPU))
    assert free(devices.GPU) == 1
    assert not can_be_taken(devices.GPU)


def test_a_function_without_an_iommu_is_not_free(here):
    here.add_function('0000:09:00.0', group=-1)
    assert free('0000:09:00.0') == 0


def test_a_function_whose_group_the_host_uses_is_not_free(here):
    assert free(devices.SHARED) == 0


def test_a_function_whose_group_another_instance_has_is_not_free(here):
    here.write(str(here.pci / 'drivers/e1000e/unbind'), devices.SHARED_NIC)
    assert free(devices.SHARED) == 1
    os_acc.plug(devices.instance(), [devices.pci(devices.SHARED_NIC)])
    assert free(devices.SHARED) == 0


def test_a_pf_without_a_driver_has_no_free_vfs(here):
    devices.spec({'address': devices.PF, 'num_vfs': 2})
    assert free(devices.PF) == 2
    here.write(str(here.pci / 'drivers/qat/unbind'), devices.PF)
    assert free(devices.PF) == 0
    assert not can_be_taken(devices.VFS[0])
    assert sriov.count(devices.PF) == 0


def test_with_bind_none_only_what_is_bound_is_free(here):
    devices.spec({'address': '*', 'bind': 'none'})
    assert free(devices.DISK) == 0
    here.write(
        str(here.pci / 'devices' / devices.GPU / 'driver_override'), 'vfio-pci'
    )
    here.write(str(here.pci / 'drivers_probe'), devices.GPU)
    assert free(devices.GPU) == 1


def test_no_vf_of_a_pf_that_a_van_has(here):
    """An administrator makes VFs of a PF that a guest has as a whole."""
    os_acc.plug(devices.instance(), [devices.pci(devices.PF)])
    here.add_function(devices.VFS[0], '8086:4940', 0x0B4000, physfn=devices.PF)
    with pytest.raises(exception.PlugException, match='its PF is taken'):
        os_acc.plug(devices.instance(), [devices.pci(devices.VFS[0])])


@pytest.mark.parametrize(
    'category, raised',
    [
        (availability.Category.NOT_OFFERED, exception.DeviceNotFound),
        (availability.Category.UNSUITABLE, exception.DeviceError),
        (availability.Category.NO_IOMMU_GROUP, exception.DeviceError),
        (availability.Category.HAS_VFS, exception.DeviceBusy),
        (availability.Category.ALLOCATED, exception.DeviceBusy),
        (availability.Category.HOST_USE, exception.DeviceInUseByHost),
        (availability.Category.GROUP_HOST_USE, exception.DeviceInUseByHost),
        (availability.Category.GROUP_ALLOCATED, exception.DeviceBusy),
        (availability.Category.OPEN, exception.DeviceBusy),
    ],
)
def test_the_error_of_an_obstacle(category, raised):
    err = availability.Obstacle(
        category, 'device D', 'it has a reason'
    ).error()
    assert type(err) is raised
    assert 'device D' in str(err)
    assert 'it has a reason' in str(err)


@dataclasses.dataclass
class Holder:
    """A row of the journal, as plain data."""

    handle: str | None
    device: str | None
    van_uuid: str = 'van'
    instance_uuid: str = 'instance'
    called: str = 'instance'


def test_a_request_alone_does_not_share_a_group(kernel):
    """A VAN that has not claimed its function yet has not opened its group."""
    devices.furnish(kernel)
    function = pci.get(devices.SHARED)
    handle = f'pci/{devices.SHARED_NIC}'
    for device, shares in ((None, False), (devices.SHARED_NIC, True)):
        holders = allocated.Holders([Holder(handle, device)])
        assert allocation.shares_group(function, 'instance', holders) is shares
    assert not allocation.shares_group(function, 'other', holders)


def test_a_van_is_no_obstacle_to_itself(kernel):
    devices.furnish(kernel)
    function, spec = pci.get(devices.GPU), device_spec.Spec()
    holders = allocated.Holders(
        [Holder(None, None), Holder(f'pci/{devices.GPU}', devices.GPU)]
    )
    for van_uuid, categories in (
        ('van', []),
        ('another', [availability.Category.ALLOCATED]),
    ):
        taker = allocated.Taker(van_uuid, 'instance')
        found = availability.obstacles(
            function, spec, 'os-acc', holders.asked_by(taker)
        )
        assert [obstacle.category for obstacle in found] == categories


@pytest.mark.parametrize('device, busy', [(None, False), (devices.PF, True)])
def test_a_request_alone_does_not_take_a_device_whole(device, busy):
    holders = allocated.Holders([Holder(f'pci/{devices.PF}', device)])
    taker = allocated.Taker('another', 'instance')
    found = availability.part_obstacles(
        devices.PF, 'D', holders.asked_by(taker)
    )
    assert bool(list(found)) is busy


@pytest.mark.parametrize(
    'van_uuid, categories',
    [('van', []), ('another', [availability.Category.ALLOCATED])],
)
def test_a_pf_that_a_van_has_stays_its_own(kernel, van_uuid, categories):
    """After a reboot, although num_vfs has become impossible meanwhile."""
    devices.furnish(kernel)
    function = pci.get(devices.PF)
    spec = device_spec.Spec(num_vfs=65535)
    holders = allocated.Holders([Holder(f'pci/{devices.PF}', devices.PF)])
    taker = allocated.Taker(van_uuid, 'instance')
    found = availability.obstacles(
        function, spec, 'os-acc', holders.asked_by(taker)
    )
    parts_only = [availability.Category.NOT_OFFERED] if categories else []
    assert [obstacle.category for obstacle in found] == parts_only + categories


def test_who_uses_the_vfs_beside_one_that_goes(kernel):
    """Its link is still there while it leaves the bus."""
    devices.furnish(kernel)
    kernel.write_numvfs(devices.PF, 3)
    first, *others = devices.VFS[:3]
    kernel.remove_function(first)
    assert vf_availability.vf_users(pci.get(devices.PF)) == [
        f'VF {each}: it is bound to qat' for each in others
    ]


def test_a_vf_that_the_host_uses(kernel):
    """It is not removed, even if no driver has it."""
    devices.furnish(kernel)
    kernel.write_numvfs(devices.PF, 2)
    first = pathlib.Path(pci.get(devices.VFS[0]).path)
    (first / 'net/eth7').mkdir(parents=True)
    (first / 'net/eth7/flags').write_text('0x1003\n')
    (kernel.sys / 'class/net').mkdir(parents=True, exist_ok=True)
    (kernel.sys / 'class/net/eth7').symlink_to(first / 'net/eth7')
    used, _ = vf_availability.vf_users(pci.get(devices.PF))
    assert f'VF {devices.VFS[0]}: ' in used
    assert 'eth7' in used


def test_no_vfs_without_an_iommu(kernel):
    kernel.add_function(
        '0000:60:00.0', '8086:4940', 0x120000, 'qat', group=-1, totalvfs=2
    )
    found = vf_availability.vfs_obstacles(pci.get('0000:60:00.0'))
    assert availability.Category.NO_IOMMU_GROUP in [
        obstacle.category for obstacle in found
    ]


def categories(pf, spec=None):
    found = vf_availability.vfs_obstacles(pci.get(pf), None, spec)
    return [obstacle.category for obstacle in found]


def test_no_vfs_if_the_kernel_does_not_tell_their_addresses(kernel):
    devices.furnish(kernel)
    spec = device_spec.Spec(num_vfs=2)
    assert categories(devices.PF, spec) == []
    kernel.file(devices.PF, 'sriov_offset').write_text('0\n')
    found = vf_availability.vfs_obstacles(pci.get(devices.PF), None, spec)
    assert 'sriov_offset' in next(found).text


def test_a_bridge_in_the_group_of_a_pf(kernel):
    """The VFs that are there already have a group of their own."""
    kernel.add_function(
        '0000:61:00.0', '8086:4940', 0x120000, 'qat', group=70, totalvfs=2
    )
    kernel.add_function('0000:60:00.0', '8086:2030', 0x060400, group=70)
    (refused,) = categories('0000:61:00.0')
    kernel.write_numvfs('0000:61:00.0', 1)
    assert refused not in categories('0000:61:00.0')
