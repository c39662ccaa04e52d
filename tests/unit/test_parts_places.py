# SPDX-License-Identifier: Apache-2.0

"""Another function where a VF should be, and classes that name parts."""

from __future__ import annotations

import devices
import pytest

import os_acc

CARD = '0000:6b:00.0'
OTHER = '0000:6b:00.1'  # where the first VF of the card would be
NIC = {'ids': '15b3:1021', 'pci_class': 0x020000, 'driver': 'mlx5_core'}
VFS = {'address': CARD, 'num_vfs': 2, 'resource_class': 'CUSTOM_VF'}


def initialize() -> None:
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()


@pytest.fixture(params=[{'address': '*'}, {'address': OTHER}])
def two_ports(request, kernel):
    """sriov_offset changes as soon as the PF has VFs."""
    kernel.add_function(CARD, totalvfs=2, **NIC)
    kernel.add_function(OTHER, **NIC)
    devices.spec(VFS, {**request.param, 'resource_class': 'CUSTOM_PF'})
    initialize()
    return kernel


def test_the_second_port_is_no_vf_of_the_first(two_ports):
    before = two_ports.snapshot()
    text = str(devices.refused(devices.wanted('CUSTOM_VF')))
    assert f'PF {CARD}: one of its VFs would be at {OTHER}' in text
    assert two_ports.snapshot() == before
    (van,) = os_acc.plug(devices.instance(), [devices.wanted('CUSTOM_PF')])
    assert van.handle.address == OTHER


def test_it_is_reported_once(two_ports):
    states = {
        (device.resource_class, handle.handle.identity): handle.state
        for device in os_acc.get_devices()
        for handle in device.handles
    }
    assert states == {
        ('CUSTOM_VF', f'pci/{CARD}'): 'absent',
        ('CUSTOM_PF', f'pci/{OTHER}'): 'free',
    }
    (found,) = devices.problems()
    assert found.subject == f'PF {CARD}'


def test_the_other_function_is_a_vf_of_another_pf(kernel):
    """The PFs of a card follow each other, and so do their VFs."""
    second = '0000:6a:1f.7'
    kernel.add_function(CARD, totalvfs=2, **NIC)
    kernel.add_function(
        second, totalvfs=2, files={'sriov_offset': '2\n'}, **NIC
    )
    kernel.set_numvfs(second, 1)
    devices.spec(VFS, {'address': second, 'resource_class': 'CUSTOM_SECOND'})
    initialize()
    text = str(devices.refused(devices.wanted('CUSTOM_VF')))
    assert f'one of its VFs would be at {OTHER}' in text
    (van,) = os_acc.plug(devices.instance(), [devices.wanted('CUSTOM_SECOND')])
    assert (van.handle.address, van.device) == (OTHER, second)


def test_a_function_takes_the_place_of_a_vf_after_a_reboot(kernel):
    kernel.add_function(CARD, totalvfs=2, **NIC)
    devices.spec(VFS, {'address': '*', 'resource_class': 'CUSTOM_PF'})
    initialize()
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.wanted('CUSTOM_VF')])
    kernel.reboot()
    kernel.add_function('0000:6b:00.2', **NIC)
    os_acc.CONF.set_override('device_timeout', 0.2, 'os_acc')
    kernel.writes.clear()
    os_acc.initialize(reset=True)
    (van,) = os_acc.get_vans()
    assert 'would be at 0000:6b:00.2, where another function is' in van.error
    assert kernel.writes == []
    assert kernel.driver_of('0000:6b:00.2') == 'mlx5_core'


def test_a_listed_vf_is_another_function_when_it_is_taken(kernel):
    """The stride of a PF does not lead to its second VF."""
    kernel.add_function(CARD, totalvfs=2, **NIC)
    devices.spec(VFS, {'address': '*', 'resource_class': 'CUSTOM_PF'})
    kernel.set_numvfs(CARD, 2)
    kernel.file('0000:6b:00.2', 'physfn').unlink()
    initialize()
    (van,) = os_acc.plug(devices.instance(), [devices.wanted('CUSTOM_VF')])
    assert van.handle.address == OTHER
    text = str(devices.refused(devices.wanted('CUSTOM_VF')))
    assert f'0000:6b:00.2 is busy: it is not a VF of PF {CARD} now' in text
    assert kernel.driver_of('0000:6b:00.2') != 'vfio-pci'


def test_a_new_vf_is_not_in_the_way(kernel):
    """The kernel makes it now, and has not linked it to its PF."""
    kernel.add_function(CARD, totalvfs=2, **NIC)
    kernel.add_function(OTHER, **NIC)
    (kernel.pci / 'devices' / OTHER / 'config').write_bytes(b'\xff' * 4)
    devices.spec(VFS)
    initialize()
    text = str(devices.refused(devices.wanted('CUSTOM_VF')))
    assert f'{OTHER} is busy: it is not a VF of PF {CARD} now' in text


# --- the PF beside its VFs


@pytest.mark.parametrize('driver', ['vfio-pci', None])
def test_the_group_of_a_vf_has_the_pf(kernel, driver):
    """A slot without ACS. The VFs were made while the PF was on vfio-pci."""
    qat = {'ids': '8086:4940', 'pci_class': 0x0B4000, 'driver': driver}
    kernel.add_function(CARD, totalvfs=2, group=7, **qat)
    kernel.vfs[CARD] |= {'group': 7, 'driver': 'vfio-pci'}
    kernel.set_numvfs(CARD, 2)
    devices.spec({**VFS, 'bind': 'none'})
    initialize()
    (device,) = os_acc.get_devices()
    if driver is None:
        assert device.handles_free == 2
        os_acc.plug(devices.instance(), [devices.wanted('CUSTOM_VF')])
        return
    assert device.handles_free == 0
    for request in (devices.wanted('CUSTOM_VF'), devices.pci(OTHER)):
        text = str(devices.refused(request))
        assert f'its IOMMU group 7 also contains its PF {CARD}' in text


# --- Placement's own classes of parts


@pytest.mark.parametrize(
    ('function', 'wanted'),
    [
        (NIC, 'SRIOV_NET_VF'),
        ({**NIC, 'totalvfs': 4}, 'SRIOV_NET_VF'),
        ({'ids': '10de:1eb8', 'pci_class': 0x030200}, 'VGPU'),
        (
            {'ids': '10de:2235', 'pci_class': 0x030200, 'driver': 'nvidia'},
            'VGPU',
        ),
    ],
)
def test_a_class_of_parts_is_not_of_the_whole(kernel, function, wanted):
    kernel.add_function(CARD, **function)
    devices.spec({'address': CARD, 'resource_class': wanted})
    initialize()
    before = kernel.snapshot()
    for request in (devices.wanted(wanted), devices.pci(CARD)):
        assert CARD in str(devices.refused(request))
    assert kernel.snapshot() == before
    assert all(each.handles_free == 0 for each in os_acc.get_devices())
    (found,) = devices.problems()
    assert 'has no num_vfs' in found.text


@pytest.mark.parametrize('wanted', ['SRIOV_NET_VF', 'VGPU'])
def test_vfs_that_the_operator_makes(kernel, wanted):
    kernel.add_function(CARD, totalvfs=2, **NIC)
    devices.spec({'address': CARD, 'resource_class': wanted})
    initialize()
    for number in (2, 0):
        kernel.set_numvfs(CARD, number)
        for _ in range(number):
            (van,) = os_acc.plug(devices.instance(), [devices.wanted(wanted)])
            assert van.device == CARD
            assert van.handle.address != CARD
        assert devices.refused(devices.wanted(wanted)) is not None
    assert kernel.driver_of(CARD) == 'mlx5_core'


@pytest.mark.parametrize('wanted', ['VGPU', 'CUSTOM_ANY'])
def test_mediated_devices_of_a_class(kernel, wanted):
    path = kernel.add_function(CARD, '10de:1eb8', 0x030200, 'nvidia')
    kernel.add_mdev_parent(path, {'nvidia-222': 1}, 16)
    devices.spec(
        {
            'address': CARD,
            'resource_class': wanted,
            'mdev_types': ['nvidia-222'],
        }
        if wanted != 'VGPU'
        else {'address': CARD, 'resource_class': wanted}
    )
    initialize()
    (van,) = os_acc.plug(devices.instance(), [devices.wanted(wanted)])
    assert van.handle.parent == CARD
    assert devices.problems() == []
