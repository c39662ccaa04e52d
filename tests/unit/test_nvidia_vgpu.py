# SPDX-License-Identifier: Apache-2.0

"""vGPUs on VFs: the driver nvidia_vgpu, on a kernel of files."""

from __future__ import annotations

import errno

import devices
import pytest
import vgpu_card

import os_acc
from os_acc import exception
from os_acc import health
from os_acc.journal import health as health_rows
from os_acc.kernel import vgpu_cards
from os_acc.privileged import notes

PF = '0000:41:00.0'
VF, OTHER = '0000:41:00.4', '0000:41:00.5'

# A part of what an A40 has.
TYPES = {
    558: ('NVIDIA A40-1Q', 1),
    559: ('NVIDIA A40-2Q', 2),
    564: ('NVIDIA A40-24Q', 24),
    565: ('NVIDIA A40-48Q', 48),
}


@pytest.fixture(autouse=True)
def no_vgpu_manager(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(vgpu_cards, 'PATH', str(tmp_path / 'missing.xml'))


@pytest.fixture
def card(kernel) -> vgpu_card.Card:
    made = vgpu_card.Card(kernel, PF, TYPES, size=48, vfs=7)
    devices.spec({'vendor_id': '10de', 'vgpu_type': 'NVIDIA A40-1Q'})
    os_acc.initialize()
    return made


@pytest.fixture
def here(card):
    return card.kernel


def cause(*requests) -> Exception:
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(devices.instance(), list(requests))
    assert caught.value.undo_errors == []
    return caught.value.__cause__


def states(device) -> dict[str, str]:
    """The state of each handle, by the function's last digit."""
    return {each.handle.address[-1]: each.state for each in device.handles}


def test_set_and_taken_away(card, here):
    before = here.snapshot()
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(VF)])
    # The specific driver goes before pci.
    assert (van.driver, van.device) == ('nvidia_vgpu', PF)
    assert card.kind_of(VF) == 558
    # A managed one would take the node down.
    assert van.handle.managed is False
    assert 'managed="no"' in van.guest_config
    assert here.driver_of(VF) == 'nvidia'
    assert os_acc.unplug(instance) == 1
    assert here.snapshot() == before


def test_an_unhealthy_card(card, here):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    journal = os_acc._get().journal
    health.mark(journal, PF, health_rows.GONE, 'it does not answer')
    for wanted in (devices.pci(OTHER), devices.wanted('VGPU')):
        assert 'it does not answer' in str(cause(wanted))
    (device,) = os_acc.get_devices()
    assert (device.health, device.handles_free) == ('unhealthy', 0)
    assert set(states(device).values()) == {'used', 'reserved'}
    assert os_acc.unplug(instance) == 1


def test_after_a_reboot_a_van_keeps_its_vgpu_of_an_unhealthy_card(card):
    os_acc.plug(devices.instance(), [devices.pci(VF)])
    journal = os_acc._get().journal
    health.mark(journal, PF, health_rows.GONE, 'it does not answer')
    card.reboot()
    card.sriov_manage()
    os_acc.initialize(reset=True)
    (van,) = os_acc.get_vans()
    assert (van.state, van.error) == ('plugged', None)
    assert card.kind_of(VF) == 558


def test_an_unhealthy_card_without_vans(card, here):
    journal = os_acc._get().journal
    health.mark(journal, PF, health_rows.GONE, 'it does not answer')
    for wanted in (devices.pci(VF), devices.wanted('VGPU')):
        assert 'it does not answer' in str(cause(wanted))
    (device,) = os_acc.get_devices()
    assert (device.health, device.handles_free) == ('unhealthy', 0)


def test_two_vfs_of_one_iommu_group(card, here):
    path = (here.pci / 'devices' / OTHER).resolve()
    (path / 'iommu_group').unlink()
    here.into_group(path, int(here.group_of(VF)))
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    text = str(cause(devices.pci(OTHER)))
    assert f'instance {instance.uuid} has pci/{VF} of the same IOMMU' in text
    assert states(os_acc.get_devices()[0])['5'] == 'used'
    assert len(os_acc.plug(instance, [devices.pci(OTHER)])) == 1


def test_selected(card, here):
    (device,) = os_acc.get_devices()
    assert (device.address, device.resource_class) == (PF, 'VGPU')
    assert (device.handles_total, device.handles_free) == (7, 7)
    assert device.traits == ['CUSTOM_VGPU_NVIDIA_A40_1Q']
    instance = devices.instance()
    vans = os_acc.plug(
        instance, [devices.wanted('VGPU', *device.traits) for _ in range(7)]
    )
    assert {van.handle.address for van in vans} == set(card.vfs)
    (device,) = os_acc.get_devices()
    assert (device.handles_total, device.handles_free) == (7, 0)
    assert {each.holder for each in device.handles} == {v.uuid for v in vans}
    assert isinstance(cause(devices.wanted('VGPU')), exception.DeviceNotFound)
    os_acc.unplug(instance)


def test_a_handle_of_another_kind(card):
    request = devices.mdev(parent=PF)
    request.driver = 'nvidia_vgpu'
    assert isinstance(cause(request), exception.UnsupportedHandle)


class TestCapacity:
    """The framebuffer limits the number of vGPUs, not the number of VFs."""

    @pytest.fixture(params=['device_spec', 'vgpu manager'])
    def limited(self, request, card, monkeypatch) -> vgpu_card.Card:
        entry = {'vendor_id': '10de', 'vgpu_type': 'NVIDIA A40-24Q'}
        if request.param == 'device_spec':
            entry['max_instances'] = 2
        else:
            card.install_config(monkeypatch)
        devices.spec(entry)
        return card

    def test_two_not_seven(self, limited):
        (device,) = os_acc.get_devices()
        assert (device.handles_total, device.handles_free) == (2, 2)
        assert states(device) == {'4': 'free', '5': 'free'}
        first, second = devices.instance(), devices.instance()
        # Any VF of the card can have one.
        os_acc.plug(first, [devices.pci(limited.vfs[6])])
        (device,) = os_acc.get_devices()
        assert (device.handles_total, device.handles_free) == (2, 1)
        assert sorted(states(device).values()) == ['free', 'used']
        os_acc.plug(second, [devices.wanted('VGPU')])
        (device,) = os_acc.get_devices()
        assert (device.handles_total, device.handles_free) == (2, 0)
        err = cause(devices.wanted('VGPU'))
        assert isinstance(err, exception.DeviceNotFound)
        os_acc.unplug(first)
        assert os_acc.get_devices()[0].handles_free == 1
        os_acc.unplug(second)

    def test_the_doctor_of_a_full_card(self, limited):
        """That a card is full is normal."""
        limited.preset(VF, 564)
        limited.preset(OTHER, 564)
        assert not _diagnosis()
        limited.write(OTHER, 0)
        assert not _diagnosis()

    def test_no_more_are_free_than_fit(self, card, monkeypatch):
        """A vGPU of another size leaves less room in mixed-size mode."""
        card.mixed = True
        card.install_config(monkeypatch)
        devices.spec({'vendor_id': '10de', 'vgpu_type': '567'})
        card.types = {**TYPES, 567: ('NVIDIA A40-12Q', 12)}
        card.install_config(monkeypatch)
        card.preset(VF, 564)
        card.preset(OTHER, 559)
        card.show()
        (device,) = os_acc.get_devices()
        # 22 GB are left: one of 12 GB fits, and the others would not.
        assert device.handles_free == 1
        assert list(states(device).values()).count('absent') == 3

    def test_fewer_than_fit(self, card):
        """The operator may allow fewer than the framebuffer does."""
        devices.spec(
            {'vendor_id': '10de', 'vgpu_type': '558', 'max_instances': 1}
        )
        os_acc.plug(devices.instance(), [devices.pci(VF)])
        err = cause(devices.pci(OTHER))
        assert isinstance(err, exception.DeviceBusy)
        assert 'at most 1 vGPUs of this type' in str(err)
        assert card.kind_of(OTHER) == 0

    def test_another_size_takes_the_room(self, limited):
        """In the default mode, all vGPUs of a card have one size."""
        limited.preset(VF, 565)
        (device,) = os_acc.get_devices()
        assert device.handles_free == 0
        assert states(device)['4'] == 'used'
        assert 'free' not in states(device).values()

    def test_of_an_unknown_number(self, card):
        """Without a limit, the doctor says that one is needed."""
        devices.spec({'vendor_id': '10de', 'vgpu_type': '564'})
        (device,) = os_acc.get_devices()
        assert device.handles_total == 7
        found = [f for f in _diagnosis() if 'is unknown' in f.text]
        assert [f.verdict for f in found] == ['warning']
        assert 'max_instances' in found[0].advice

    @pytest.mark.parametrize('value', [0, -1, 'many', True, 1.5])
    def test_a_bad_limit(self, card, value):
        devices.spec({'vgpu_type': '558', 'max_instances': value})
        with pytest.raises(exception.ExceptionBase, match='max_instances'):
            os_acc.get_devices()


class TestMixedSizes:
    @pytest.fixture
    def card(self, kernel, monkeypatch) -> vgpu_card.Card:
        made = vgpu_card.Card(kernel, PF, TYPES, size=48, vfs=7, mixed=True)
        made.install_config(monkeypatch)
        devices.spec(
            {'address': VF, 'vgpu_type': '564', 'resource_class': 'VGPU'},
            {
                'address': PF,
                'vgpu_type': 'NVIDIA A40-2Q',
                'resource_class': 'CUSTOM_SMALL',
            },
        )
        os_acc.initialize()
        return made

    def test_side_by_side(self, card):
        by_class = {d.resource_class: d for d in os_acc.get_devices()}
        assert by_class['VGPU'].handles_free == 1
        assert by_class['CUSTOM_SMALL'].handles_free == 6
        instance = devices.instance()
        os_acc.plug(
            instance,
            [devices.wanted('VGPU'), devices.wanted('CUSTOM_SMALL')],
        )
        assert sorted(map(card.kind_of, card.vfs)) == [0] * 5 + [559, 564]
        os_acc.unplug(instance)
        assert not any(map(card.kind_of, card.vfs))

    def test_what_the_large_ones_leave(self, card):
        for vf in card.vfs[1:]:
            card.preset(vf, 559)
        # 6 x 2 GB of 48 GB are taken: a vGPU of 24 GB fits.
        by_class = {d.resource_class: d for d in os_acc.get_devices()}
        assert by_class['VGPU'].handles_free == 1
        for vf in card.vfs[1:3]:
            card.write(vf, 0)
        card.preset(card.vfs[1], 564)
        by_class = {d.resource_class: d for d in os_acc.get_devices()}
        assert by_class['VGPU'].handles_free == 0


class TestWholeGPU:
    """A VF that is for vGPUs is never given out as a whole GPU."""

    @pytest.mark.parametrize(
        'entry', [{}, {'vgpu_type': '558'}, {'bind': 'none'}]
    )
    @pytest.mark.parametrize('driver', [None, 'pci'])
    def test_not_for_pgpu(self, card, here, entry, driver):
        devices.spec({'vendor_id': '10de', **entry})
        before = here.snapshot()
        request = devices.wanted('PGPU')
        request.driver = driver
        assert isinstance(cause(request), exception.DeviceNotFound)
        assert here.snapshot() == before
        for device in os_acc.get_devices():
            assert device.driver != 'pci' or not device.handles_free

    def test_not_by_address(self, card, here):
        devices.spec({'vendor_id': '10de'})
        request = devices.pci(VF)
        request.driver = 'pci'
        err = cause(request)
        assert isinstance(err, exception.DeviceError)
        assert 'nvidia_vgpu' in str(err)
        assert here.driver_of(VF) == 'nvidia'

    def test_not_by_the_privileged_half(self, card, here):
        from os_acc.privileged.pci import functions as privileged

        devices.spec({'vendor_id': '10de'})
        with pytest.raises(exception.DeviceError, match='keeps for a vGPU'):
            privileged.take(VF, 'vfio-pci', [], devices.instance().uuid, 1.0)
        assert here.driver_of(VF) == 'nvidia'


class TestPreset:
    """The operator has set the types before, as in Nova's A16 example."""

    @pytest.fixture(
        params=[
            {'vgpu_type': '559'},
            {'vgpu_type': 'NVIDIA A40-2Q'},
            {'bind': 'none'},
        ]
    )
    def card(self, request, card, monkeypatch) -> vgpu_card.Card:
        card.install_config(monkeypatch)
        devices.spec(
            {'address': VF, 'resource_class': 'CUSTOM_A', **request.param}
        )
        card.preset(VF, 559)
        return card

    @pytest.mark.parametrize('by_class', [False, True])
    def test_used_and_kept(self, card, here, by_class):
        before = here.snapshot()
        (device,) = os_acc.get_devices()
        assert (device.handles_total, device.handles_free) == (1, 1)
        request = devices.wanted('CUSTOM_A') if by_class else devices.pci(VF)
        instance = devices.instance()
        (van,) = os_acc.plug(instance, [request])
        assert (van.driver, van.handle.managed) == ('nvidia_vgpu', False)
        assert van.handle.address == VF
        (device,) = os_acc.get_devices()
        assert (device.handles_total, device.handles_free) == (1, 0)
        assert os_acc.unplug(instance) == 1
        # os-acc did not set the type, so it does not clear it.
        assert here.snapshot() == before
        assert card.kind_of(VF) == 559
        assert not here.writes

    def test_a_guest_of_somebody_else_has_it(self, card, here):
        here.hold(here.node(VF))
        (vfio,) = (here.sys / 'class/vfio').iterdir()
        assert vfio.name in here.node(VF)
        err = cause(devices.pci(VF))
        assert isinstance(err, exception.DeviceBusy)
        assert card.kind_of(VF) == 559

    def test_not_given_on_while_the_guest_has_it(self, card, here, tmp_path):
        said = tmp_path / 'said'
        run = f"sh -c 'echo $0 >> {said}' {{address}}"
        os_acc.CONF.set_override('cleaning_command', run, 'os_acc')
        instance = devices.instance()
        os_acc.plug(instance, [devices.pci(VF)])
        pid = here.hold(here.node(VF))
        with pytest.raises(exception.UnplugException) as caught:
            os_acc.unplug(instance)
        assert 'has ' in str(caught.value.__cause__)
        assert not said.exists()
        here.end(pid)
        assert os_acc.unplug(instance) == 1
        assert said.read_text() == f'{VF}\n'
        assert card.kind_of(VF) == 559

    def test_after_a_reboot(self, card, here):
        instance = devices.instance()
        os_acc.plug(instance, [devices.pci(VF)])
        card.reboot()
        card.sriov_manage()
        # The operator's service sets the type again.
        card.preset(VF, 559)
        assert len(os_acc.recover().restored) == 1
        assert os_acc.unplug(instance) == 1
        assert card.kind_of(VF) == 559

    def test_not_set_after_a_reboot(self, card, here):
        instance = devices.instance()
        os_acc.plug(instance, [devices.pci(VF)])
        card.reboot()
        card.sriov_manage()
        os_acc.CONF.set_override('device_timeout', 0.1, 'os_acc')
        report = os_acc.recover()
        assert not report.restored
        assert 'preset vGPU type 559' in report.failed[0].error
        assert card.kind_of(VF) == 0
        card.preset(VF, 559)
        os_acc.unplug(instance)


def test_without_a_preset_type(card):
    devices.spec({'address': VF, 'bind': 'none'})
    (device,) = os_acc.get_devices()
    assert states(device) == {'4': 'absent'}
    err = cause(devices.pci(VF))
    assert isinstance(err, exception.DeviceError)
    assert 'no vGPU type is set' in str(err)


def test_one_that_has_another_type(card):
    card.preset(VF, 559)
    err = cause(devices.pci(VF))
    assert isinstance(err, exception.DeviceBusy)
    assert '559' in str(err)
    assert card.kind_of(VF) == 559


def test_a_type_that_siblings_leave_no_room_for(card):
    card.preset(OTHER, 559)
    err = cause(devices.pci(VF))
    assert isinstance(err, exception.DeviceNotFound)
    assert '559 (NVIDIA A40-2Q)' in str(err)
    card.write(OTHER, 0)
    card.preset(OTHER, 565)
    devices.spec({'vendor_id': '10de', 'vgpu_type': '558'})
    assert 'none' in str(cause(devices.pci(VF)))


def test_types_that_the_driver_cannot_tell(card, here, monkeypatch):
    """creatable_vgpu_types answers EINVAL if the vGPU manager fails."""
    from os_acc.kernel import sysfs

    real = sysfs.read

    def read(path: str) -> str | None:
        if path.endswith('creatable_vgpu_types'):
            raise OSError(errno.EINVAL, 'Invalid argument')
        return real(path)

    monkeypatch.setattr(sysfs, 'read', read)
    (device,) = os_acc.get_devices()
    assert device.handles_free == 0
    assert isinstance(cause(devices.pci(VF)), exception.DeviceNotFound)


def test_a_type_that_no_longer_fits_reads_back_as_0(card, here):
    here.fail('*/current_vgpu_type', lambda: card.preset(OTHER, 565))
    err = cause(devices.pci(VF))
    assert isinstance(err, exception.DeviceError)
    assert card.kind_of(VF) == 0


def test_not_taken_from_the_next_owner(card):
    """A stale release must not kill another's vGPU on the same VF."""
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    card.write(VF, 0)
    card.preset(VF, 559)
    assert os_acc.unplug(instance) == 1
    assert card.kind_of(VF) == 559


def test_refused_while_the_guest_goes_down(card, here):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    here.fail('*/current_vgpu_type', errno.EPERM)
    assert os_acc.unplug(instance) == 1
    assert card.kind_of(VF) == 0


def test_after_a_reboot(card):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    card.reboot()
    card.sriov_manage()
    assert len(os_acc.recover().restored) == 1
    assert card.kind_of(VF) == 558
    assert os_acc.unplug(instance) == 1
    assert card.kind_of(VF) == 0


def test_vfs_that_appear_after_a_reboot(card, here, monkeypatch):
    """sriov-manage may end after os-acc has started."""
    from os_acc.kernel import pci

    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    card.reboot()
    asked = []
    real = pci.find

    def find(address: str):
        asked.append(address)
        if len(asked) == 5:
            card.sriov_manage()
        return real(address)

    monkeypatch.setattr(pci, 'find', find)
    assert len(os_acc.recover().restored) == 1
    assert card.kind_of(VF) == 558


def test_vfs_that_do_not_appear(card, here):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    card.reboot()
    os_acc.CONF.set_override('device_timeout', 0.1, 'os_acc')
    report = os_acc.recover()
    assert not report.restored
    assert 'sriov-manage' in report.failed[0].error
    # The VF is gone, and so is the vGPU.
    assert os_acc.unplug(instance) == 1


def test_without_a_type_in_device_spec(card):
    devices.spec({'vendor_id': '10de'})
    err = cause(devices.pci(VF))
    assert 'vgpu_type' in str(err)
    assert all(device.driver == 'pci' for device in os_acc.get_devices())
    (found,) = devices.problems()
    assert 'no vgpu_type' in found.text


def test_shown(card, here, monkeypatch):
    from os_acc import loader

    card.preset(VF, 559)
    directory = here.pci / 'devices' / VF / 'nvidia'
    (directory / 'gpu_instance_id').write_text('3\n')
    driver = loader.load_all().drivers['nvidia_vgpu']
    shown = driver.show_device(VF)
    assert (shown['vgpu type'], shown['vgpu type name']) == (559, None)
    assert shown['vgpu types possible'] == []
    assert (shown['gpu instance'], shown['placement']) == ('3', None)
    assert driver.show_device(OTHER)['vgpu types possible'] == [
        '559 (NVIDIA A40-2Q)'
    ]
    assert driver.show_device(PF) is None
    card.install_config(monkeypatch)
    assert driver.show_device(VF)['vgpu type name'] == 'NVIDIA A40-2Q'
    assert driver.show_device(OTHER)['vgpu type name'] is None


def _diagnosis():
    return list(os_acc._host.extensions.drivers['nvidia_vgpu'].diagnose())


@pytest.mark.parametrize('preset', [False, True])
def test_a_vf_that_is_gone_is_let_go(card, preset):
    """Otherwise no other journal of the host gets it again."""
    if preset:
        card.preset(VF, 558)
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    assert notes.files.names() == [f'vgpu-{VF}']
    card.reboot()
    assert os_acc.unplug(instance) == 1
    assert notes.files.names() == []


def test_on_a_kernel_without_groups(card, here):
    here.without_groups()
    (van,) = os_acc.plug(devices.instance(), [devices.pci(VF)])
    assert 'iommufd="yes"' in van.guest_config
