# SPDX-License-Identifier: Apache-2.0

"""Ways round the rule that an entry for parts never gives out the whole."""

from __future__ import annotations

import uuid

import devices
import idxd_model
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.kernel import pci
from os_acc.privileged import container_specs
from os_acc.privileged import function_notes
from os_acc.privileged.mdev import devices as privileged_mdev
from os_acc.privileged.pci import bindings
from os_acc.privileged.pci import functions as privileged
from os_acc.privileged.pci import storage_calls
from os_acc.spec import device_spec

CARD = '0000:6b:00.0'
SECOND = '0000:6b:00.1'
UUID = '11111111-2222-4333-8444-555555555555'
RESET = {'reset': '', 'reset_method': 'flr\n'}
QAT = {'ids': '8086:4940', 'pci_class': 0x0B4000, 'driver': 'qat'}
DRIVE = {'ids': '144d:a824', 'pci_class': 0x010802, 'driver': 'nvme'}
PARTS = [{'num_vfs': 2}, {'vgpu_type': 'T'}, {'mdev_types': ['t-1']}]
ONLY = 'of it only'


@pytest.fixture
def card(kernel):
    """A PF that has no VFs, of which VFs only are offered."""
    kernel.add_function(CARD, totalvfs=2, files=RESET, **QAT)
    devices.spec({'address': CARD, 'num_vfs': 2})
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    return kernel


# --- root is asked directly


def clean(address: str, **kwargs) -> bool:
    ids = pci.get(address).ids
    with devices.acting():
        return privileged.clean(address, ids, 'auto', 0, 2.0, **kwargs)


def calls(address: str) -> list:
    """What the privileged half does with a whole function."""
    handle = objects.PCIHandle(address=address).obj_to_primitive()
    return [
        lambda: privileged.take(address, 'vfio-pci', [], UUID, 1.0),
        lambda: privileged.hold(address),
        lambda: clean(address),
        lambda: storage_calls.hand_out(address, UUID, 1.0),
        lambda: container_specs.write(UUID, UUID, handle),
    ]


def test_a_device_with_work_queues(kernel, monkeypatch):
    idxd_model.Idxd(kernel).add(CARD)
    idxd_model.show_files(monkeypatch)
    devices.spec({'idxd': CARD}, {'address': '*'})
    os_acc.initialize()
    before = kernel.snapshot()
    for act in calls(CARD):
        with (
            devices.acting(),
            pytest.raises(exception.DeviceNotFound, match=ONLY),
        ):
            act()
    assert 'work queues' in str(devices.refused(devices.pci(CARD)))
    assert kernel.snapshot() == before


@pytest.mark.parametrize('entry', PARTS)
@pytest.mark.parametrize('driver', ['nvme', 'vfio-pci'])
def test_root_does_not_erase_a_drive(kernel, entry, driver):
    kernel.add_function(
        CARD, totalvfs=2, files=RESET, **{**DRIVE, 'driver': driver}
    )
    devices.spec({'address': CARD, **entry})
    os_acc.CONF.set_override('cleaning_command', 'true', 'os_acc')
    os_acc.initialize()
    drive = kernel.drives.at(CARD)
    before = kernel.snapshot()
    with pytest.raises(exception.DeviceNotFound, match=ONLY):
        clean(CARD)
    assert drive.formatted == []
    assert kernel.snapshot() == before


def test_root_does_not_reset_a_card(card):
    with pytest.raises(exception.DeviceNotFound, match=ONLY):
        clean(CARD)
    assert card.resets == []


def test_root_gives_it_to_no_container(card):
    """The operator has bound the PF to VFIO, which makes VFs there."""
    card.unbind(CARD)
    card.bind(CARD, 'vfio-pci')
    handle = objects.PCIHandle(address=CARD).obj_to_primitive()
    with (
        devices.acting(),
        pytest.raises(exception.DeviceNotFound, match=ONLY),
    ):
        container_specs.write(UUID, UUID, handle)


def test_root_notes_no_hand_out(kernel):
    kernel.add_function(CARD, totalvfs=2, **{**DRIVE, 'driver': 'vfio-pci'})
    devices.spec({'address': CARD, 'num_vfs': 2, 'bind': 'none'})
    os_acc.initialize()
    with (
        devices.acting(),
        pytest.raises(exception.DeviceNotFound, match=ONLY),
    ):
        storage_calls.hand_out(CARD, UUID, 1.0)


def test_it_goes_along_with_nothing(kernel):
    """A PF in the IOMMU group of another function stays with the host."""
    kernel.add_function(CARD, totalvfs=2, group=7, **QAT)
    kernel.add_function(SECOND, '8086:4942', 0x0B4000, group=7)
    devices.spec({'address': CARD, 'num_vfs': 2}, {'address': SECOND})
    os_acc.initialize()
    assert bindings.idle([CARD]) == []
    assert [each.address for each in bindings.idle([SECOND])] == [SECOND]


def test_a_note_is_of_a_vf(card):
    """After a change of the firmware, a PF is where a VF of a VAN was."""
    card.write_numvfs(CARD, 2)
    os_acc.plug(devices.instance(), [devices.pci(SECOND)])
    card.reboot()
    card.add_function(SECOND, files=RESET, **QAT)
    assert not function_notes.has(pci.get(SECOND))
    with devices.acting(), pytest.raises(exception.DeviceNotFound):
        privileged.take(SECOND, 'vfio-pci', [], UUID, 1.0)
    assert card.driver_of(SECOND) == 'qat'


def test_another_function_is_not_intact(card):
    instance, requests = devices.instance(), [devices.pci(SECOND)]
    os_acc.plug(instance, requests)
    card.take_off(CARD)
    card.add_function(SECOND, **{**QAT, 'driver': 'vfio-pci'})
    os_acc.CONF.set_override('device_timeout', 0.2, 'os_acc')
    with pytest.raises(exception.PlugException, match='this host has none'):
        os_acc.plug(instance, requests)


def test_what_is_there_now_is_not_cleaned_for_a_vf(card):
    card.write_numvfs(CARD, 2)
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(SECOND)])
    card.reboot()
    card.add_function(SECOND, files=RESET, **QAT)
    assert os_acc.unplug(instance) == 1
    assert card.resets == []
    assert card.driver_of(SECOND) == 'qat'


def test_a_mediated_device_of_a_card_for_vfs(kernel):
    """Somebody else has created it, such as Nova for a guest of its own."""
    path = kernel.add_function(CARD, totalvfs=2, **QAT)
    kernel.add_mdev_parent(path, {'qat-1': 1}, 4)
    kernel.create_mdev(path / 'mdev_supported_types/qat-1', UUID)
    devices.spec({'address': CARD, 'num_vfs': 2})
    os_acc.initialize()
    handle = objects.MdevHandle(uuid=UUID, parent=CARD, type='qat-1')
    with devices.acting():
        for act in (
            lambda: privileged_mdev.hold(UUID),
            lambda: container_specs.write(
                UUID, UUID, handle.obj_to_primitive()
            ),
        ):
            with pytest.raises(exception.DeviceNotFound, match=ONLY):
                act()


# --- companions

SOUND = '0000:6b:00.1'


@pytest.fixture
def graphics(kernel):
    kernel.add_function(
        CARD, '8086:56c0', 0x030000, 'i915', group=7, totalvfs=4
    )
    kernel.add_function(SOUND, '8086:4f92', 0x040300, 'snd', group=7)
    return kernel


def test_a_companion_of_what_is_not_given(graphics):
    devices.spec({'address': CARD, 'num_vfs': 4, 'companions': True})
    os_acc.initialize()
    with devices.acting(), pytest.raises(exception.DeviceNotFound):
        privileged.take(SOUND, 'vfio-pci', [], UUID, 1.0)
    assert graphics.driver_of(SOUND) == 'snd'


def test_a_companion_that_is_denied(graphics):
    devices.spec(
        {'address': CARD, 'companions': True},
        {'address': SOUND, 'deny': True},
    )
    os_acc.initialize()
    (handle,) = [
        handle for device in os_acc.get_devices() for handle in device.handles
    ]
    assert (handle.state, handle.handle.address) == ('absent', CARD)
    for request in (devices.pci(CARD), devices.wanted('PGPU')):
        assert f'denies its companion {SOUND}' in str(devices.refused(request))
    assert graphics.driver_of(SOUND) == 'snd'
    assert graphics.driver_of(CARD) == 'i915'
    with devices.acting(), pytest.raises(exception.DeviceNotFound):
        privileged.take(SOUND, 'vfio-pci', [], UUID, 1.0)


# --- keys that name parts in other words


@pytest.mark.parametrize('bind', [{}, {'bind': 'none'}])
@pytest.mark.parametrize('driver', ['nouveau', 'vfio-pci', None])
def test_a_number_of_instances_without_a_type(kernel, driver, bind):
    """The vGPU manager is not loaded: no types, no mediated devices."""
    kernel.add_function(CARD, '10de:1eb8', 0x030200, driver)
    devices.spec({'address': CARD, 'max_instances': 4, **bind})
    os_acc.initialize()
    for request in (devices.wanted('PGPU'), devices.pci(CARD)):
        assert devices.refused(request) is not None
    assert kernel.driver_of(CARD) == driver
    with devices.acting(), pytest.raises(exception.DeviceNotFound):
        privileged.take(CARD, 'vfio-pci', [], UUID, 1.0)
    (found,) = devices.problems()
    assert 'its entry is for' in found.text


def test_a_number_of_instances_still_limits_any_type(kernel):
    path = kernel.add_function(CARD, '10de:1eb8', 0x030200, 'nvidia')
    kernel.add_mdev_parent(path, {'nvidia-222': 1}, 16)
    devices.spec({'address': CARD, 'max_instances': 2})
    os_acc.initialize()
    (device,) = os_acc.get_devices()
    assert (device.driver, device.handles_free) == ('mdev', 2)
    for _ in range(2):
        os_acc.plug(devices.instance(), [devices.wanted('VGPU')])
    assert devices.refused(devices.wanted('VGPU')) is not None


def test_a_list_of_types_without_types(kernel):
    """It would count as an entry for the whole GPU."""
    kernel.add_function(CARD, '10de:1eb8', 0x030200, 'nvidia')
    devices.spec({'address': CARD, 'mdev_types': []})
    with pytest.raises(exception.InvalidRequest, match='at least one'):
        device_spec.load(os_acc.CONF)


# --- device_spec changes while VANs have something


@pytest.mark.parametrize('bind', ['os-acc', 'libvirt', 'none'])
@pytest.mark.parametrize('entry', PARTS)
def test_who_has_the_whole_keeps_it(kernel, bind, entry):
    kernel.add_function(CARD, totalvfs=2, files=RESET, **QAT)
    if bind == 'none':
        kernel.unbind(CARD)
        kernel.bind(CARD, 'vfio-pci')
        kernel.native[CARD] = 'vfio-pci'
    devices.spec({'address': CARD, 'bind': bind})
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(CARD)])
    devices.spec({'address': CARD, **entry})
    kernel.reboot()
    os_acc.initialize(reset=True)
    (van,) = os_acc.get_vans()
    assert van.error is None
    assert van.state == 'plugged'
    assert devices.refused(devices.pci(CARD)) is not None
    assert os_acc.unplug(instance) == 1
    assert kernel.driver_of(CARD) == ('vfio-pci' if bind == 'none' else 'qat')
    assert devices.refused(devices.pci(CARD)) is not None


def test_what_stayed_on_vfio_is_freed(kernel):
    """Until the operator frees it, no VFs can be made."""
    kernel.add_function(CARD, totalvfs=2, files=RESET, **DRIVE)
    entry = {'address': CARD, 'between_tenants': 'vfio'}
    devices.spec(entry)
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(CARD)])
    os_acc.unplug(instance)
    assert kernel.driver_of(CARD) == 'vfio-pci'
    devices.spec({'address': CARD, 'num_vfs': 2})
    with (
        devices.acting(),
        pytest.raises(exception.DeviceNotFound, match=ONLY),
    ):
        privileged.take(CARD, 'vfio-pci', [], UUID, 1.0)
    with (
        devices.acting(),
        pytest.raises(exception.DeviceNotFound, match=ONLY),
    ):
        container_specs.write(
            UUID, UUID, objects.PCIHandle(address=CARD).obj_to_primitive()
        )
    assert os_acc._host.extensions.drivers['pci'].free_device(CARD)
    assert kernel.driver_of(CARD) == 'nvme'


def test_a_drive_for_parts_is_freed(kernel):
    """os-acc device free is also for one that has failed."""
    kernel.add_function(CARD, totalvfs=2, files=RESET, **DRIVE)
    devices.spec({'address': CARD, 'num_vfs': 2})
    os_acc.initialize()
    before = kernel.snapshot()
    assert os_acc._host.extensions.drivers['pci'].free_device(CARD) == []
    assert kernel.snapshot() == before


@pytest.mark.parametrize('whole', [{}, {'resource_class': 'CUSTOM_PF'}])
def test_who_has_a_vf_keeps_it(card, whole):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(SECOND)])
    devices.spec({'address': CARD, **whole})
    card.reboot()
    os_acc.initialize(reset=True)
    (van,) = os_acc.get_vans()
    assert van.error is None
    assert card.driver_of(SECOND) == 'vfio-pci'
    assert devices.refused(devices.pci(CARD)) is not None
    assert os_acc.unplug(instance) == 1
    os_acc.plug(devices.instance(), [devices.pci(CARD)])
    assert card.driver_of(CARD) == 'vfio-pci'


# --- several entries meet


def test_the_first_entry_is_for_parts(card):
    devices.spec({'address': CARD, 'num_vfs': 2}, {'address': '*'})
    for name in ('sriov_totalvfs', 'sriov_numvfs'):
        card.file(CARD, name).unlink()
    kind = 'CUSTOM_PCI_8086_4940'
    for request in (devices.wanted(kind), devices.pci(CARD)):
        assert devices.refused(request) is not None
    assert card.driver_of(CARD) == 'qat'


def test_everything_has_parts(kernel):
    kernel.add_function(CARD, totalvfs=2, **QAT)
    kernel.add_function('0000:07:00.0', '1af4:1041', 0x0B4000)
    devices.spec({'address': '*', 'num_vfs': 2})
    os_acc.initialize()
    assert devices.refused(devices.wanted('CUSTOM_PCI_1AF4_1041')) is not None
    (van,) = os_acc.plug(
        devices.instance(), [devices.wanted('CUSTOM_PCI_8086_4940')]
    )
    assert pci.get(van.handle.address).is_vf


@pytest.mark.parametrize('number', [1, 2])
def test_vfs_that_somebody_else_has_made(card, number):
    card.write_numvfs(CARD, number)
    (van,) = os_acc.plug(
        devices.instance(), [devices.wanted('CUSTOM_PCI_8086_4940')]
    )
    assert van.handle.address == SECOND
    assert devices.refused(devices.pci(CARD)) is not None


# --- an entry for the whole stays plain


def test_a_plain_entry(kernel):
    kernel.add_function(CARD, totalvfs=2, **QAT)
    devices.spec({'address': CARD})
    os_acc.initialize()
    (van,) = os_acc.plug(
        devices.instance(), [devices.wanted('CUSTOM_PCI_8086_4940')]
    )
    assert van.handle.address == CARD


def test_arqs_of_a_pf(card):
    place = {'domain': '0000', 'bus': '6b', 'device': '00', 'function': '0'}
    request = objects.AcceleratorRequest.from_arq(
        {
            'uuid': str(uuid.uuid4()),
            'state': 'Bound',
            'attach_handle_type': 'PCI',
            'attach_handle_info': place,
        }
    )
    assert ONLY in str(devices.refused(request))
    assert card.driver_of(CARD) == 'qat'
