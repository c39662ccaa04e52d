# SPDX-License-Identifier: Apache-2.0

"""Disks between two tenants, by os_acc's own calls, on a kernel of files."""

from __future__ import annotations

import uuid

import command
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.kernel import pci
from os_acc.privileged.pci import functions as privileged
from os_acc.privileged.pci import storage_calls
from os_acc.testing import mortal

RAID = '0000:07:00.0'
VFIO = 'vfio-pci'
HOST = {'address': '*'}
BY_COMMAND = {'address': '*', 'command_empties': True}


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    kernel.add_driver('megaraid_sas')
    kernel.add_function(RAID, '1000:0016', 0x010400, 'megaraid_sas')
    devices.spec(HOST)
    os_acc.initialize()
    return kernel


@pytest.fixture
def drive(here):
    made = here.drives.at(devices.DISK)
    made.namespaces[1].fill()
    return made


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    return command.Command(tmp_path / 'state', capsys, monkeypatch)


def plug(address=devices.DISK):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(address)])
    return instance


def refusal(address, **values) -> Exception:
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(devices.instance(), [devices.pci(address, **values)])
    assert caught.value.undo_errors == []
    assert not os_acc.get_vans()
    cause = caught.value.__cause__
    assert isinstance(cause, Exception)
    return cause


def write(drive) -> None:
    drive.namespaces[1].fill(b'secret')


def has_secret(drive) -> bool:
    return any(b'secret' in d for d in drive.namespaces[1].data.values())


def test_root_refuses_what_cannot_be_emptied(here):
    """The operator has bound it, and the caller asked nothing before."""
    here.unbind(RAID)
    here.bind(RAID, VFIO)
    with pytest.raises(exception.DeviceError) as caught:
        storage_calls.hand_out(RAID, str(uuid.uuid4()), 2.0)
    assert caught.value.kwargs['reason'].startswith(
        'it stores data (class 0104), and os-acc itself can erase only'
    )


def test_emptied_before_the_host_sees_it(here, drive):
    instance = plug()
    assert drive.formatted == []
    write(drive)
    seen = []
    drive.hooks[0x80] = lambda: seen.append(here.driver_of(devices.DISK))
    before = len(here.writes)
    assert os_acc.unplug(instance) == 1
    assert seen == [VFIO]
    assert not has_secret(drive)
    assert here.driver_of(devices.DISK) == 'nvme'
    assert any(name.endswith('nvme/bind') for name, _ in here.writes[before:])


def test_a_drive_that_cannot_be_emptied_is_bound_as_before(here, drive):
    drive.oacs = 0
    before = here.snapshot()
    err = refusal(devices.DISK)
    assert isinstance(err, exception.DeviceError)
    assert 'supports neither Format NVM nor' in str(err)
    assert 'cleaning_command' in str(err)
    assert here.snapshot() == before


def test_one_that_the_operator_has_bound_is_checked_too(here, drive):
    drive.oacs = 0
    devices.spec({'address': devices.DISK, 'bind': 'none'}, HOST)
    here.unbind(devices.DISK)
    here.bind(devices.DISK, VFIO)
    assert 'cannot be erased' in str(refusal(devices.DISK))
    drive.oacs = 2
    instance = plug()
    write(drive)
    os_acc.unplug(instance)
    assert not has_secret(drive)
    assert here.driver_of(devices.DISK) == VFIO
    here.unbind(devices.DISK)


def test_with_a_command_it_is_given_out_all_the_same(here, drive, tmp_path):
    drive.oacs = 0
    devices.spec(BY_COMMAND)
    said = tmp_path / 'said'
    conf = os_acc.CONF
    conf.set_override(
        'cleaning_command', f"sh -c 'echo $0 >> {said}' {{address}}", 'os_acc'
    )
    instance = plug()
    os_acc.unplug(instance)
    assert said.read_text().split() == [devices.DISK]
    conf.set_override('cleaning_command', 'false', 'os_acc')
    drive.oacs = 2
    instance = plug()
    with pytest.raises(exception.UnplugException, match='exit code 1'):
        os_acc.unplug(instance)
    assert here.driver_of(devices.DISK) == VFIO
    conf.set_override('cleaning_command', 'true', 'os_acc')
    os_acc.unplug(instance)
    assert len(drive.formatted) == 2


def test_other_storage_needs_a_command(here):
    before = here.snapshot()
    err = refusal(RAID)
    assert isinstance(err, exception.DeviceError)
    assert 'it stores data (class 0104)' in str(err)
    assert here.snapshot() == before
    (device,) = [d for d in os_acc.get_devices() if d.address == RAID]
    assert device.handles_free == 0
    os_acc.CONF.set_override('cleaning_command', 'true', 'os_acc')
    devices.spec(BY_COMMAND)
    (device,) = [d for d in os_acc.get_devices() if d.address == RAID]
    assert device.handles_free == 1
    os_acc.unplug(plug(RAID))
    assert here.snapshot() == before


def test_a_command_for_other_devices_does_not_count(here, drive):
    """It may be meant for GPUs: that it succeeds says nothing of drives."""
    os_acc.CONF.set_override('cleaning_command', 'true', 'os_acc')
    devices.spec({'address': devices.GPU, 'command_empties': True}, HOST)
    drive.oacs = 0
    before = here.snapshot()
    assert '"command_empties": true' in str(refusal(RAID))
    assert '"command_empties": true' in str(refusal(devices.DISK))
    (device,) = [d for d in os_acc.get_devices() if d.address == RAID]
    assert device.handles_free == 0
    with pytest.raises(exception.DeviceError, match='class 0104'):
        privileged.take(RAID, VFIO, [], devices.instance().uuid, 2.0)
    assert here.snapshot() == before


def test_an_entry_that_no_longer_says_so(here):
    os_acc.CONF.set_override('cleaning_command', 'true', 'os_acc')
    devices.spec(BY_COMMAND)
    instance = plug(RAID)
    devices.spec(HOST)
    with pytest.raises(exception.UnplugException, match='command_empties'):
        os_acc.unplug(instance)
    assert here.driver_of(RAID) == VFIO
    devices.spec(BY_COMMAND)
    os_acc.unplug(instance)


def test_root_refuses_other_storage_by_itself(here):
    before = here.snapshot()
    with pytest.raises(exception.DeviceError, match='class 0104'):
        privileged.take(RAID, VFIO, [], devices.instance().uuid, 2.0)
    assert here.snapshot() == before


def test_a_kernel_without_groups(here, drive):
    """The built-in cleaning needs them: it is told before it is touched."""
    here.without_groups()
    before = len(here.writes)
    assert 'no VFIO groups' in str(refusal(devices.DISK))
    assert here.writes[before:] == []
    (device,) = [d for d in os_acc.get_devices() if d.address == devices.DISK]
    assert device.handles_free == 0
    os_acc.CONF.set_override('cleaning_command', 'true', 'os_acc')
    devices.spec(BY_COMMAND)
    (device,) = [d for d in os_acc.get_devices() if d.address == devices.DISK]
    assert device.handles_free == 1


def test_a_kernel_that_shows_only_then_that_it_has_no_groups(here, drive):
    """The module vfio is loaded by the first plug."""
    before = here.snapshot()
    here.fail('*/driver_override', here.without_groups)
    assert 'no VFIO groups' in str(refusal(devices.DISK))
    assert here.snapshot() == before


def test_libvirt_would_show_the_data_to_the_host(here, drive):
    err = refusal(devices.DISK, managed=True)
    assert 'bind = libvirt' in str(err)


def test_a_group_that_is_shared(here):
    here.add_function('0000:08:00.0', '1b36:0010', 0x010802, 'nvme', group=70)
    here.add_function('0000:08:00.1', '8086:10d3', 0x020000, group=70)
    err = refusal('0000:08:00.0')
    assert 'shares its IOMMU group with 0000:08:00.1' in str(err)
    devices.spec(BY_COMMAND)
    os_acc.CONF.set_override('cleaning_command', 'true', 'os_acc')
    os_acc.unplug(plug('0000:08:00.0'))
    assert here.drives.at('0000:08:00.0').opened == 0


def test_a_bridge_in_the_group_does_not_matter(here):
    here.add_function('0000:08:00.0', '1b36:0010', 0x010802, 'nvme', group=70)
    here.add_function('0000:08:1f.0', '8086:3420', 0x060400, group=70)
    os_acc.unplug(plug('0000:08:00.0'))


def test_not_emptied_it_stays_in_error_and_on_vfio(here, drive):
    instance = plug()
    write(drive)
    drive.effective = False
    with pytest.raises(exception.UnplugException) as caught:
        os_acc.unplug(instance)
    assert isinstance(caught.value.__cause__, exception.CleaningFailed)
    assert 'reads as before' in str(caught.value)
    (van,) = os_acc.get_vans(instance)
    assert van.state == 'error'
    with pytest.raises(exception.PlugException) as caught:
        plug()
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    # Not even a caller that skips the clean-up gets it to the host's driver.
    with (
        devices.acting(),
        pytest.raises(exception.CleaningFailed, match="guest's data"),
    ):
        privileged.give_back(devices.DISK, '1b36:0010', 2.0)
    assert here.driver_of(devices.DISK) == VFIO
    drive.effective = True
    assert [v.uuid for v in os_acc.recover().released] == [van.uuid]
    assert not has_secret(drive)
    assert here.driver_of(devices.DISK) == 'nvme'


def test_killed_while_it_is_erased(here, drive):
    instance = plug()
    write(drive)

    def die() -> None:
        raise mortal.Crash

    drive.hooks[0x80] = die
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance)
    assert here.driver_of(devices.DISK) == VFIO
    assert has_secret(drive)
    with pytest.raises(exception.PlugException):
        plug()
    del drive.hooks[0x80]
    os_acc.initialize(reset=True)
    assert not os_acc.get_vans()
    assert not has_secret(drive)


def test_after_a_reboot_it_is_emptied_on_vfio(here, drive):
    """The host's driver has seen it at boot; the next guest does not."""
    instance = plug()
    write(drive)
    drive.effective = False
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance)
    here.reboot()
    drive.effective = True
    assert here.driver_of(devices.DISK) == 'nvme'
    before = here.snapshot()
    os_acc.initialize(reset=True)
    assert not os_acc.get_vans()
    assert not has_secret(drive)
    assert here.snapshot() == before


def test_emptied_only_once(here, drive):
    """A crash between the erase and the end of the release."""
    instance = plug()
    here.fail('*/nvme/bind', 5)
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance)
    assert len(drive.formatted) == 1
    os_acc.unplug(instance)
    assert len(drive.formatted) == 1
    assert here.driver_of(devices.DISK) == 'nvme'
    # The next guest's data are erased again.
    os_acc.unplug(plug())
    assert len(drive.formatted) == 2


def test_bound_to_its_driver_by_hand(here, drive):
    instance = plug()
    write(drive)
    function = here.pci / 'devices' / devices.DISK
    here.unbind(devices.DISK)
    here.write(str(function / 'driver_override'), '\n')
    here.bind(devices.DISK, 'nvme')
    os_acc.unplug(instance)
    assert not has_secret(drive)
    assert here.driver_of(devices.DISK) == 'nvme'


def test_bound_to_a_driver_of_somebody_else(here, drive):
    here.add_driver('uio_pci_generic')
    instance = plug()
    here.unbind(devices.DISK)
    here.bind(devices.DISK, 'uio_pci_generic')
    with pytest.raises(exception.UnplugException, match='was not erased'):
        os_acc.unplug(instance)
    here.unbind(devices.DISK)
    os_acc.unplug(instance)
    assert drive.formatted
    assert here.driver_of(devices.DISK) == 'nvme'


def test_progress_is_reported(here, drive, monkeypatch):
    from os_acc.kinds.pci.driver import release

    monkeypatch.setattr(release, '_REPORT_EVERY', 0.01)
    drive.oacs, drive.sanicap, drive.sanitize_polls = 0, 2, 6
    instance = plug()
    seen = []
    os_acc.unplug(
        instance,
        progress=lambda p: seen.append((p.step, p.fraction, p.message)),
    )
    assert any(
        step == 'unprepareVAN' and message == 'Sanitize' and 0 < fraction < 1
        for step, fraction, message in seen
        if fraction is not None
    )


class TestBetweenTenants:
    @pytest.fixture(autouse=True)
    def _vfio(self, here):
        os_acc.CONF.set_override('between_tenants', 'vfio', 'os_acc_pci')

    def test_stays_and_is_taken_again_without_rebinding(self, here, drive):
        instance = plug()
        write(drive)
        os_acc.unplug(instance)
        assert here.driver_of(devices.DISK) == VFIO
        assert not has_secret(drive)
        before = len(here.writes)
        again = plug()
        assert here.writes[before:] == []
        write(drive)
        os_acc.unplug(again)
        assert here.driver_of(devices.DISK) == VFIO
        assert not has_secret(drive)

    def test_switching_back_gives_it_to_its_first_driver(self, here, drive):
        before = here.snapshot()
        os_acc.unplug(plug())
        instance = plug()
        os_acc.CONF.set_override('between_tenants', 'host', 'os_acc_pci')
        os_acc.unplug(instance)
        assert here.snapshot() == before

    def test_device_spec_goes_first(self, here, drive):
        devices.spec(
            {'address': devices.DISK, 'between_tenants': 'host'}, HOST
        )
        os_acc.unplug(plug())
        assert here.driver_of(devices.DISK) == 'nvme'

    def test_vfs_that_os_acc_made_are_removed(self, here):
        devices.spec({'address': devices.PF, 'num_vfs': 2}, HOST)
        before = here.snapshot()
        os_acc.unplug(plug(devices.VFS[0]))
        assert here.snapshot() == before

    def test_after_a_reboot_it_is_the_hosts(self, here, drive):
        os_acc.unplug(plug())
        here.reboot()
        before = here.snapshot()
        os_acc.initialize(reset=True)
        os_acc.CONF.set_override('between_tenants', 'host', 'os_acc_pci')
        os_acc.unplug(plug())
        assert here.snapshot() == before

    def test_it_counts_as_free(self, here, drive, run):
        os_acc.unplug(plug())
        found = {d.address: d.handles_free for d in os_acc.get_devices()}
        assert found[devices.DISK] == 1
        result = run('device', 'show', devices.DISK, '-f', 'json')
        assert result.json['status'] == 'free; it stays bound to vfio-pci'

    def test_device_free_gives_it_back(self, here, drive, run):
        before = here.snapshot()
        instance = plug()
        result = run('device', 'free', devices.DISK)
        assert result.code != 0
        assert instance.uuid in result.err
        os_acc.unplug(instance)
        result = run('device', 'free', devices.DISK)
        assert result.code == 0, result.err
        assert 'it is bound to nvme again' in result.out
        assert here.snapshot() == before


def once() -> None:
    devices.spec({'address': devices.GPU, 'one_time_use': True}, HOST)


def free_handles() -> int:
    (found,) = [d for d in os_acc.get_devices() if d.address == devices.GPU]
    return found.handles_free


class TestOneTimeUse:
    def test_reserved_until_it_is_freed(self, here, run):
        once()
        assert free_handles() == 1
        instance = plug(devices.GPU)
        os_acc.unplug(instance)
        assert not os_acc.get_vans()
        assert free_handles() == 0
        # Also for another process, and after a reboot.
        here.reboot()
        os_acc.initialize(reset=True)
        err = refusal(devices.GPU)
        assert isinstance(err, exception.DeviceBusy)
        assert f'os-acc device free {devices.GPU}' in str(err)
        assert instance.uuid in str(err)
        with pytest.raises(exception.PlugException) as caught:
            os_acc.plug(devices.instance(), [devices.wanted('PGPU')])
        assert 'it is reserved' in str(caught.value)
        result = run('device', 'list', '-f', 'json')
        rows = {row['address']: row['not_free'] for row in result.json}
        assert rows[devices.GPU] == {'reserved': 1}
        result = run('device', 'free', devices.GPU)
        assert result.code == 0, result.err
        assert 'it is not reserved any more' in result.out
        assert free_handles() == 1
        os_acc.unplug(plug(devices.GPU))
        assert free_handles() == 0

    def test_a_crash_before_the_row_is_deleted_keeps_it(self, here):
        once()
        instance = plug(devices.GPU)
        here.fail('*/unbind', 5)
        with pytest.raises(exception.UnplugException):
            os_acc.unplug(instance)
        os_acc.initialize(reset=True)
        assert not os_acc.get_vans()
        assert free_handles() == 0

    def test_a_plug_that_never_bound_it_does_not_count(self, here):
        once()
        here.fail('*/driver_override', 5)
        with pytest.raises(exception.PlugException):
            plug(devices.GPU)
        assert free_handles() == 1

    def test_nothing_to_free(self, here, run):
        result = run('device', 'free', devices.GPU)
        assert result.code == 2
        assert 'a device that is reserved' in result.err

    def test_a_vf_is_shown_with_its_pf(self, here, run):
        devices.spec(
            {'address': devices.PF, 'num_vfs': 2, 'one_time_use': True}
        )
        os_acc.unplug(plug(devices.VFS[0]))
        result = run('device', 'list', '-f', 'json')
        rows = {row['address']: row['not_free'] for row in result.json}
        assert rows[devices.PF] == {'reserved': 1}
        shown = run('device', 'show', devices.PF, '-f', 'json').json
        states = {each['handle']: each['state'] for each in shown['handles']}
        assert states[f'pci/{devices.VFS[0]}'] == 'reserved'
        os_acc.unplug(plug(devices.VFS[1]))
        assert run('device', 'free', devices.VFS[0]).code == 0
        os_acc.unplug(plug(devices.VFS[0]))
        assert pci.find(devices.VFS[0]) is None
