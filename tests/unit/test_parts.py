# SPDX-License-Identifier: Apache-2.0

"""An entry whose keys name parts of a device never gives out the whole."""

from __future__ import annotations

import devices
import examples
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest
import vendor

import os_acc
from os_acc import exception
from os_acc.kernel import pci
from os_acc.privileged.mdev import devices as privileged_mdev
from os_acc.privileged.pci import functions as privileged
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts

CARD = '0000:6b:00.0'
UUID = '11111111-2222-4333-8444-555555555555'

# A function that has lost its SR-IOV, the entry, and what a request names.
LOST = {
    'QAT, a class of its own': (
        {'ids': '8086:4940', 'pci_class': 0x0B4000, 'driver': '4xxx'},
        {'num_vfs': 16, 'resource_class': 'CUSTOM_QAT_VF'},
        'CUSTOM_QAT_VF',
    ),
    'a GPU, by its default class': (
        {'ids': '8086:56c0', 'pci_class': 0x038000, 'driver': 'i915'},
        {'num_vfs': 5},
        'PGPU',
    ),
    'a NIC whose interface is down': (
        {
            'ids': '15b3:1021',
            'pci_class': 0x020000,
            'driver': 'mlx5_core',
            'net': 'ens1',
        },
        {'num_vfs': 4, 'resource_class': 'CUSTOM_NIC_VF'},
        'CUSTOM_NIC_VF',
    ),
    # pci_sriov_set_totalvfs() with 0, as in the driver nfp: the file stays.
    'a driver that allows no VFs': (
        {
            'ids': '19ee:4000',
            'pci_class': 0x120000,
            'driver': 'nfp',
            'files': {'sriov_totalvfs': '0\n', 'sriov_numvfs': '0\n'},
        },
        {'num_vfs': 4, 'resource_class': 'CUSTOM_NFP'},
        'CUSTOM_NFP',
    ),
    # NUM_OF_VFS of a ConnectX was lowered by mlxconfig.
    'fewer VFs than before': (
        {
            'ids': '15b3:1021',
            'pci_class': 0x020700,
            'driver': 'mlx5_core',
            'totalvfs': 2,
        },
        {'num_vfs': 4, 'resource_class': 'CUSTOM_IB_VF'},
        'CUSTOM_IB_VF',
    ),
    'an NVMe drive with virtual functions': (
        {
            'ids': '144d:a824',
            'pci_class': 0x010802,
            'driver': 'nvme',
            'block': 'nvme7n1',
        },
        {'num_vfs': 2, 'resource_class': 'CUSTOM_NVME_VF'},
        'CUSTOM_NVME_VF',
    ),
}


@pytest.fixture(params=LOST)
def lost(request, kernel):
    function, entry, wanted = LOST[request.param]
    kernel.add_function(CARD, **function)
    devices.spec({'address': CARD, **entry})
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    return wanted


def test_who_asks_for_a_vf_gets_the_reason(lost, kernel):
    before = kernel.snapshot()
    text = str(devices.refused(devices.wanted(lost)))
    assert CARD in text
    assert 'num_vfs is' in text
    assert 'firmware' in text  # what to do about it
    assert kernel.snapshot() == before


def test_nothing_of_it_is_free(lost):
    (device,) = os_acc.get_devices()
    assert device.handles_free == 0
    (handle,) = device.handles
    assert handle.state == 'absent'
    assert 'num_vfs is' in handle.reason


def test_who_names_the_pf_does_not_get_it(lost, kernel):
    before = kernel.snapshot()
    text = str(devices.refused(devices.pci(CARD)))
    assert 'offers VFs of it only' in text
    assert kernel.snapshot() == before


def test_root_does_not_take_it(lost, kernel):
    ids = pci.get(CARD).ids
    for act in (
        lambda: privileged.take(CARD, 'vfio-pci', [], UUID, 1.0),
        lambda: privileged.hold(CARD),
    ):
        with pytest.raises(exception.DeviceNotFound, match='VFs of it only'):
            act()
    assert pci.get(CARD).ids == ids
    assert kernel.driver_of(CARD) != 'vfio-pci'


def test_the_doctor_says_it_once(lost):
    (found,) = devices.problems()
    assert found.verdict == 'error'
    assert found.subject == f'PF {CARD}'
    assert 'device_spec, entry 1 offers nothing of it: num_vfs' in found.text
    assert found.advice


@pytest.mark.parametrize('made_by_os_acc', [True, False])
def test_a_vf_that_came_back_as_something_else(kernel, made_by_os_acc):
    """After a reboot without SR-IOV, a second function is where a VF was."""
    vf = f'{CARD[:-1]}1'
    kernel.add_function(CARD, '8086:4940', 0x0B4000, 'qat', totalvfs=2)
    number = {'num_vfs': 2} if made_by_os_acc else {}
    devices.spec({'address': CARD, **number}, {'address': vf})
    if not made_by_os_acc:
        kernel.write_numvfs(CARD, 2)
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    os_acc.plug(devices.instance(), [devices.pci(vf)])
    kernel.reboot()
    for name in ('sriov_totalvfs', 'sriov_numvfs'):
        kernel.file(CARD, name).unlink()
    # It even has the same ids.
    kernel.add_function(vf, '8086:4940', 0x0B4000, 'qat')
    os_acc.CONF.set_override('device_timeout', 0.2, 'os_acc')
    os_acc.initialize(reset=True)
    (van,) = os_acc.get_vans()
    assert ('SR-IOV' if made_by_os_acc else f'as a VF of {CARD}') in van.error
    assert kernel.driver_of(vf) == 'qat'
    assert kernel.driver_of(CARD) == 'qat'


def test_one_card_of_two_has_lost_it(kernel):
    other = '0000:6c:00.0'
    kernel.add_function(CARD, '8086:4940', 0x0B4000, 'qat')
    kernel.add_function(other, '8086:4940', 0x0B4000, 'qat', totalvfs=2)
    devices.spec(
        {
            'vendor_id': '8086',
            'product_id': '4940',
            'num_vfs': 2,
            'resource_class': 'CUSTOM_V',
        }
    )
    os_acc.initialize()
    for _ in range(2):
        (van,) = os_acc.plug(devices.instance(), [devices.wanted('CUSTOM_V')])
        assert van.device == other
    text = str(devices.refused(devices.wanted('CUSTOM_V')))
    assert f'PF {CARD}: num_vfs is set' in text
    assert kernel.driver_of(CARD) == 'qat'


class TestFPGAs:
    """VFs with regions of their own."""

    def test_a_dynamic_card_without_vfs(self, kernel, tmp_path):
        """Who has the whole card could program all its regions."""
        tool = vendor.installed(kernel, tmp_path / 'vendor')
        entry = {k: v for k, v in tool.spec().items() if k != 'num_vfs'}
        kernel.set_numvfs(vendor.FPGA, 0)
        devices.spec({**entry, 'programming': 'dynamic'})
        os_acc.initialize()
        text = str(devices.refused(devices.wanted('FPGA')))
        assert 'programming is dynamic' in text
        assert 'sriov_numvfs' in text
        text = str(devices.refused(devices.pci(vendor.FPGA)))
        assert 'VFs with their own regions of it only' in text

    def test_a_programmed_card_without_sriov(self, kernel, tmp_path):
        tool = vendor.installed(kernel, tmp_path / 'vendor')
        address = '0000:1a:00.0'
        kernel.add_function(address, '8086:09c4', 0x120000, 'dfl-pci')
        devices.spec({**tool.spec(), 'address': address})
        os_acc.initialize()
        request = devices.wanted('FPGA')
        request.bitstream = tool.bitstream('aes')
        assert 'SR-IOV' in str(devices.refused(request))
        assert tool.calls() == []
        assert kernel.driver_of(address) == 'dfl-pci'


@pytest.mark.parametrize(
    ('entry', 'parts'),
    [
        ({'vgpu_type': 'A40-1Q'}, 'vGPUs'),
        ({'mdev_types': ['nvidia-558']}, 'mediated devices'),
        (
            {'mdev_types': ['nvidia-558'], 'vgpu_type': 'A40-1Q'},
            'vGPUs or mediated devices',
        ),
    ],
)
@pytest.mark.parametrize('driver', [None, 'nvidia', 'vfio-pci'])
def test_a_gpu_without_its_software(kernel, entry, parts, driver):
    kernel.add_function(CARD, '10de:2235', 0x030200, driver)
    devices.spec({'address': CARD, **entry})
    os_acc.initialize()
    assert os_acc.get_devices() == []
    for request in (devices.pci(CARD), devices.wanted('PGPU')):
        assert devices.refused(request) is not None
    text = str(devices.refused(devices.pci(CARD)))
    assert f'offers {parts} of it only' in text
    assert kernel.driver_of(CARD) == driver


def test_parts_of_another_kind_are_not_given_either(kernel):
    """A PF that also makes mediated devices: its VFs are asked for."""
    path = kernel.add_function(CARD, '8086:4940', 0x0B4000, 'qat', totalvfs=2)
    kernel.add_mdev_parent(path, {'qat-1': 1}, 4)
    devices.spec({'address': CARD, 'num_vfs': 2})
    os_acc.initialize()
    (device,) = os_acc.get_devices()
    assert (device.driver, device.mdev_types) == ('pci', [])
    for wanted in (
        devices.wanted('CUSTOM_MDEV_QAT_1'),
        devices.mdev('qat-1', parent=CARD),
    ):
        err = devices.refused(wanted)
        assert isinstance(err, exception.DeviceNotFound)
    assert 'offers VFs of it only' in str(err)
    with pytest.raises(exception.DeviceNotFound, match='VFs of it only'):
        privileged_mdev.create(UUID, CARD, 'qat-1', 1.0)
    assert kernel.writes == []


KEYS = {
    'num_vfs': 2,
    'vgpu_type': 'A40-1Q',
    'mdev_types': ['nvidia-558'],
}
FUNCTIONS = {
    'plain': {'totalvfs': 0},
    'PF': {'totalvfs': 2},
    'PF with too few': {'totalvfs': 1},
    'bridge': {'pci_class': 0x060400},
}


@given(
    keys=st.sets(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2),
    kind=st.sampled_from(sorted(FUNCTIONS)),
    driver=st.sampled_from([None, 'nvidia', 'vfio-pci', 'qat']),
    address=st.sampled_from([CARD, '*', '6b:00', {'bus': '6b'}]),
)
@settings(
    max_examples=examples.costly(25),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_no_entry_with_parts_offers_a_whole(
    kernel, keys, kind, driver, address
):
    if (kernel.pci / 'devices' / CARD).exists():
        kernel.take_off(CARD)
    kernel.add_function(
        CARD, **{'ids': '10de:2235', 'driver': driver, **FUNCTIONS[kind]}
    )
    entry = {'address': address, **{key: KEYS[key] for key in keys}}
    try:
        devices.spec(entry)
        (spec,) = device_spec.load(os_acc.CONF).entries
    except exception.InvalidRequest:
        assert {'num_vfs'} < keys  # they exclude each other
        return
    function = pci.get(CARD)
    assert spec_parts.asked_for(spec)
    assert not spec_parts.offers_whole(spec, function)
    os_acc.initialize(reset=True)
    for device in os_acc.get_devices():
        for handle in device.handles:
            whole = handle.handle.identity == f'pci/{CARD}'
            assert not (whole and handle.state == 'free')
    before = kernel.snapshot()
    assert devices.refused(devices.pci(CARD)) is not None
    assert kernel.snapshot() == before
