# SPDX-License-Identifier: Apache-2.0

"""What the notes of the privileged half allow, and what they do not."""

from __future__ import annotations

import math
import os
import pathlib
import threading

import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.claims import holder
from os_acc.journal import journal as journal_module
from os_acc.kernel import pci
from os_acc.privileged import device_users
from os_acc.privileged import function_notes
from os_acc.privileged import notes as root_notes
from os_acc.privileged import operation_lock
from os_acc.privileged.mdev import devices as privileged_mdev
from os_acc.privileged.pci import functions as privileged_pci
from os_acc.privileged.pci import vfs as privileged_vfs

UUID = '11111111-2222-4333-8444-555555555555'
OTHER_UUID = '11111111-2222-4333-8444-666666666666'
MDEVS_ONLY = {'address': devices.GPU, 'mdev_types': ['x']}
VFS = {'address': devices.PF, 'num_vfs': 4}
ANY = {'address': '*'}


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    os_acc.initialize()
    return kernel


def notes() -> list[str]:
    directory = pathlib.Path(root_notes.FOLDER)
    return sorted(os.listdir(directory)) if directory.exists() else []


def take(address: str = devices.GPU) -> str:
    return privileged_pci.take(address, 'vfio-pci', [], UUID, 5.0)


def refused(call) -> None:
    with pytest.raises(exception.DeviceNotFound, match='device_spec'):
        call()


def denied(address: str) -> None:
    devices.spec({'address': address, 'deny': True}, ANY)


# --- a note allows only what was given out


@pytest.mark.parametrize(
    'entry',
    [
        MDEVS_ONLY,
        {'address': devices.GPU, 'vgpu_type': 'A40-1Q'},
        {'devname': 'eth0'},
    ],
)
def test_hold_allows_no_more_than_take(here, entry):
    address = devices.NIC if 'devname' in entry else devices.GPU
    devices.spec(entry)
    refused(lambda: take(address))
    refused(lambda: privileged_pci.hold(address))
    refused(lambda: take(address))
    assert notes() == []
    assert here.writes == []


def test_a_vf_that_is_given_out_does_not_offer_its_pf(here):
    devices.spec(VFS)
    privileged_vfs.create_vfs(devices.PF, 4, 5.0)
    take(devices.VFS[0])
    devices.spec({'address': devices.NIC})
    ids = pci.get(devices.PF).ids
    refused(lambda: privileged_pci.clean(devices.PF, ids, 'auto', 0, 5.0))
    refused(lambda: privileged_pci.hold(devices.PF))
    here.reboot()
    refused(lambda: take(devices.PF))
    # The VFs come back, and no other number of them.
    with pytest.raises(exception.InvalidRequest, match='num_vfs'):
        privileged_vfs.create_vfs(devices.PF, 3, 5.0)
    privileged_vfs.create_vfs(devices.PF, 4, 5.0)
    assert take(devices.VFS[0]) == 'vfio-pci'
    refused(lambda: take(devices.VFS[1]))


def test_vfs_come_back_by_the_number_that_was_made_last(here):
    """A VAN may know only the number of an earlier boot."""
    devices.spec({**VFS, 'num_vfs': 2})
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.VFS[0])])
    devices.spec(VFS)
    here.reboot()
    assert len(os_acc.recover().restored) == 1
    denied(devices.PF)
    here.reboot()
    report = os_acc.recover()
    assert report.failed == []
    assert len(report.restored) == 1
    assert os_acc.unplug(instance) == 1
    assert notes() == []


def test_a_vgpu_that_is_given_out_is_not_offered_whole(here):
    vf = pci.get(devices.GPU)
    function_notes.note_vgpu(vf, 558)
    devices.spec()
    refused(take)
    with pytest.raises(exception.DeviceNotFound, match='device_spec'):
        privileged_mdev.set_vgpu_type(devices.GPU, 559, 5.0)


def test_a_vgpu_is_given_out_as_a_whole_function_is(here):
    gpu, pf = pci.get(devices.GPU), pci.get(devices.PF)
    assert not function_notes.has(gpu)
    assert not function_notes.renew(gpu)
    function_notes.note_vgpu(gpu, 558)
    function_notes.note_function(pf)
    for each in (gpu, pf):
        assert function_notes.has(each)
        assert function_notes.has_part(each)
        assert function_notes.renew(each)
    assert function_notes.of_function(root_notes.VGPU, gpu).number == 558
    assert not function_notes.has_part(pci.get(devices.NIC))


def test_a_note_that_names_another_van_stays(here):
    """Also one of the same instance."""
    one, other = (
        holder.Holder(UUID, '/vans.db', UUID, van)
        for van in (UUID, OTHER_UUID)
    )
    with holder.acting_for(one):
        function_notes.note_function(pci.get(devices.GPU))
    root_notes.adopt(other, devices.GPU)
    (found,) = root_notes.of_others()
    assert found.holder == one
    moved = holder.Holder(OTHER_UUID, '/else/vans.db', UUID, UUID)
    root_notes.adopt(moved, devices.GPU)
    (found,) = root_notes.of_others()
    assert found.holder == moved


# --- notes that no VAN needs


def test_vfs_that_stay_for_others_leave_no_note(here):
    devices.spec(VFS, ANY)
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.VFS[0])])
    here.bind(devices.VFS[1], 'qat')
    assert os_acc.unplug(instance) == 1
    assert len(pci.get(devices.PF).vf_addresses) == 4
    assert notes() == []
    denied(devices.PF)
    here.reboot()
    refused(lambda: privileged_vfs.create_vfs(devices.PF, 4, 5.0))
    refused(lambda: take(devices.PF))


def test_vfs_that_stayed_come_back_after_a_denial(here):
    devices.spec(VFS, ANY)
    first, second = devices.instance(), devices.instance()
    os_acc.plug(first, [devices.pci(devices.VFS[0])])
    here.bind(devices.VFS[1], 'qat')
    os_acc.unplug(first)
    os_acc.plug(second, [devices.pci(devices.VFS[0])])
    denied(devices.PF)
    here.reboot()
    assert len(os_acc.recover().restored) == 1
    assert os_acc.unplug(second) == 1
    assert notes() == []


def test_a_device_that_is_gone_leaves_no_note(here):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    here.unbind(devices.GPU)
    (here.pci / 'devices' / devices.GPU).unlink()
    assert os_acc.unplug(instance) == 1
    assert notes() == []


def test_a_claim_that_fails_leaves_no_note(here, monkeypatch):
    """With bind = libvirt the function is noted before it is prepared."""
    devices.spec({'address': devices.GPU, 'bind': 'libvirt'})

    def fail(*_):
        raise exception.DeviceError(device='x', reason='no port')

    monkeypatch.setattr('os_acc.kinds.pci.driver.port.state', fail)
    with pytest.raises(exception.PlugException):
        os_acc.plug(devices.instance(), [devices.pci(devices.GPU)])
    assert notes() == []


def test_vfs_that_another_journal_needs_keep_their_note(here):
    """Whatever the VF is given out as: without the note none comes back."""
    devices.spec(VFS)
    privileged_vfs.create_vfs(devices.PF, 4, 5.0)
    other = holder.Holder(UUID, '/other/vans.db', UUID, OTHER_UUID)
    with holder.acting_for(other):
        function_notes.note_vgpu(pci.get(devices.VFS[0]), 558)
    before = notes()
    assert f'vfs-{devices.PF}' in before
    kept = root_notes.forget_unused(
        devices.PF, lambda part: False, OTHER_UUID, lambda journal: False
    )
    assert kept == [
        f'instance {UUID} keeps {devices.VFS[0]} (VAN {OTHER_UUID} of the '
        'journal /other/vans.db)'
    ]
    assert notes() == before
    # The operator says that the journal is lost.
    lost = root_notes.forget_unused(
        devices.PF, lambda part: False, OTHER_UUID, lambda journal: True
    )
    assert lost == notes() == []


# --- what an earlier entry gave


def test_a_forced_driver_comes_back_after_a_denial(here):
    here.add_driver('mlx5_vfio_pci')
    devices.spec({'address': devices.GPU, 'vfio_driver': 'mlx5_vfio_pci'})
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    devices.spec()
    here.reboot()
    report = os_acc.recover()
    assert report.failed == []
    assert len(report.restored) == 1
    assert here.driver_of(devices.GPU) == 'mlx5_vfio_pci'
    assert os_acc.unplug(instance) == 1
    assert notes() == []


# --- a release that is tried again


@pytest.mark.parametrize(
    'entry',
    [
        {'between_tenants': 'vfio'},
        {'bind': 'libvirt'},
        {'bind': 'none'},
    ],
)
def test_a_release_is_finished_after_a_denial(here, monkeypatch, entry):
    """The row of the VAN was not deleted at the first attempt."""
    devices.spec({'address': devices.GPU, **entry})
    if 'bind' in entry:
        here.bind(devices.GPU, 'vfio-pci')
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    with monkeypatch.context() as patch:

        def full(*_, **__):
            raise exception.JournalError(path='x', reason='full')

        patch.setattr(journal_module.Journal, 'settle', full)
        with pytest.raises(exception.ExceptionBase, match='full'):
            os_acc.unplug(instance)
    assert notes() == []
    denied(devices.GPU)
    assert os_acc.unplug(instance) == 1
    assert list(os_acc.get_vans()) == []


# --- arguments


def test_seconds_are_checked_first(here):
    function = pci.get(devices.GPU)
    calls = (
        lambda: privileged_mdev.released_vgpu(devices.GPU, math.inf),
        lambda: privileged_mdev.released(UUID, math.inf),
    )
    with operation_lock.held(function.path, 1.0):
        for call in calls:
            failed = []

            def attempt(call=call, failed=failed):
                try:
                    call()
                except exception.InvalidRequest as err:
                    failed.append(err)

            thread = threading.Thread(target=attempt, daemon=True)
            thread.start()
            thread.join(120)
            assert len(failed) == 1


@pytest.mark.parametrize('parent', ['nosuchparent', 'mtty'])
@pytest.mark.parametrize('kind', ['mtty-1', 'mtty-2'])
def test_remove_leaves_the_note_of_another_mdev(here, parent, kind):
    root_notes.note(root_notes.MDEV, UUID, 'other mtty-1')
    privileged_mdev.remove(UUID, parent, kind, 0, 1.0)
    assert notes() == [f'mdev-{UUID}']


def test_let_go_leaves_the_note_of_another_device(here):
    function_notes.note_function(pci.get(devices.GPU))
    privileged_pci.let_go(devices.GPU, '8086:10d3')
    assert notes() == [f'pci-{devices.GPU}']
    for address, ids in (('../x', '10de:1eb8'), (devices.GPU, None)):
        with pytest.raises(exception.InvalidRequest):
            privileged_pci.let_go(address, ids)
    privileged_pci.let_go(devices.GPU, '10de:1eb8')
    assert notes() == []


# --- the files


def test_a_link_in_the_place_of_a_note(here, tmp_path):
    function = pci.get(devices.GPU)
    function_notes.note_function(function)
    note = pathlib.Path(root_notes.FOLDER) / f'pci-{devices.GPU}'
    elsewhere = tmp_path / 'note'
    note.rename(elsewhere)
    note.symlink_to(elsewhere)
    assert not function_notes.has(function)


def test_a_link_in_the_place_of_the_directory(here, tmp_path):
    os.symlink(tmp_path, root_notes.FOLDER)
    with pytest.raises(exception.PrivilegeError, match=root_notes.FOLDER):
        function_notes.note_function(pci.get(devices.GPU))
    assert not function_notes.has(pci.get(devices.GPU))
    assert notes() == sorted(os.listdir(tmp_path))


@pytest.mark.parametrize('text', ['', '{', '[]', '"10de:1eb8"', '{"x": 1}'])
def test_a_note_that_cannot_be_read(here, text):
    """It allows nothing, and nobody gets the device but who had it."""
    function = pci.get(devices.GPU)
    function_notes.note_function(function)
    note = pathlib.Path(root_notes.FOLDER) / f'pci-{devices.GPU}'
    note.write_text(text)
    assert not function_notes.has(function)
    with devices.acting():
        with pytest.raises(exception.DeviceBusy, match='cannot be read'):
            function_notes.note_function(function)
        assert note.read_text() == text
        device_users.adopt([[UUID, OTHER_UUID, devices.GPU]])
        function_notes.note_function(function)
    assert function_notes.has(function)


def test_reading_makes_no_directory(here):
    assert not function_notes.has(pci.get(devices.GPU))
    root_notes.forget(root_notes.PCI, devices.GPU, root_notes.Cleaned.EARLIER)
    assert root_notes.of_device(devices.GPU) == []
    assert not os.path.exists(root_notes.FOLDER)


# --- device_spec that cannot be read


BROKEN = '{"address": "*", "address": "*"}'


def broken() -> None:
    os_acc.CONF.set_override('device_spec', [BROKEN], 'os_acc')


def test_a_function_comes_back_while_device_spec_is_broken(here):
    devices.spec(ANY)
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    broken()
    here.reboot()
    assert len(os_acc.recover().restored) == 1
    assert here.driver_of(devices.GPU) == 'vfio-pci'
    assert len(os_acc.replug(instance)) == 1
    assert os_acc.unplug(instance) == 1
    assert notes() == []


def test_vfs_come_back_while_device_spec_is_broken(here):
    devices.spec(VFS, ANY)
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.VFS[0])])
    broken()
    here.reboot()
    assert len(os_acc.recover().restored) == 1
    assert os_acc.unplug(instance) == 1
    assert notes() == []


def test_an_mdev_comes_back_while_device_spec_is_broken(here):
    devices.spec(ANY)
    instance = devices.instance()
    os_acc.plug(instance, [devices.mdev('mtty-2')])
    broken()
    here.reboot()
    assert len(os_acc.recover().restored) == 1
    assert os_acc.unplug(instance) == 1


def test_nothing_new_is_given_while_device_spec_is_broken(here):
    broken()
    with pytest.raises(exception.ExceptionBase, match="'address' occurs"):
        os_acc.plug(devices.instance(), [devices.pci(devices.GPU)])
    with pytest.raises(exception.InvalidRequest, match="'address' occurs"):
        take()
