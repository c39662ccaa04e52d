# SPDX-License-Identifier: Apache-2.0

"""The privileged half's own record: what it undoes, and after which crash."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import uuid

import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.kernel import mdev
from os_acc.kernel import sriov
from os_acc.privileged import operation_lock
from os_acc.privileged import root_folder
from os_acc.privileged.kernel import vf_number
from os_acc.privileged.mdev import devices as privileged_mdev
from os_acc.privileged.pci import bindings
from os_acc.privileged.pci import functions as privileged_pci
from os_acc.privileged.pci import vfs as privileged_vfs
from os_acc.testing import mortal

INSTANCE = str(uuid.uuid4())
CARD, IDS = devices.NIC, '8086:10d3'
VF, VF_IDS = devices.VFS[0], '8086:37c8'
VGPU = '0000:43:00.4'


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    devices.spec({'address': devices.PF, 'num_vfs': 2}, {'address': '*'})
    os_acc.initialize()
    return kernel


def take(address=CARD) -> str:
    return privileged_pci.take(address, 'vfio-pci', [], INSTANCE, 2.0)


def records(kernel) -> list[str]:
    """The names of all records."""
    directory = kernel.root / 'run/os-acc'
    kinds = ('functions', 'vfs', 'mdevs', 'vgpus', 'ports')
    return sorted(
        path.name for kind in kinds for path in (directory / kind).glob('*')
    )


def crashes(kernel, act, at: int, after: bool) -> bool:
    """Run an act in a process that dies at a write.

    :returns: False if the act makes fewer writes
    """
    kernel.crash_at(at, after)
    try:
        act()
    except mortal.Crash:
        return True
    finally:
        kernel.revive()
    return False


def crash_everywhere(kernel, act):
    """Run an act once for each place at which the process can die.

    After each time this gives whether it died; the caller undoes the act. The
    last time it does not die.
    """
    for after in (False, True):
        number, died = 0, True
        while died:
            died = crashes(kernel, act, number, after)
            yield died
            number += 1
        assert number > 1


# --- crashes


@pytest.mark.parametrize('again', [False, True])
def test_take_that_is_interrupted_is_undone(here, again):
    before = here.snapshot()
    for _ in crash_everywhere(here, take):
        if again:
            take()
            assert here.driver_of(CARD) == 'vfio-pci'
        assert privileged_pci.give_back(CARD, IDS, 2.0)
        assert here.snapshot() == before
        assert records(here) == []


@pytest.mark.parametrize('again', ['give back', 'take'])
@pytest.mark.parametrize('override', ['(null)', 'other'])
def test_a_give_back_that_is_interrupted_is_finished(here, again, override):
    here.write_file(
        f'sys/bus/pci/devices/{CARD}/driver_override', f'{override}\n'
    )
    before = here.snapshot()
    take()
    for died in crash_everywhere(
        here, lambda: privileged_pci.give_back(CARD, IDS, 2.0)
    ):
        if again == 'take':
            take()
        left = died or again == 'take'
        assert privileged_pci.give_back(CARD, IDS, 2.0) == left
        assert here.snapshot() == before
        assert records(here) == []
        # Nothing is left to do.
        assert not privileged_pci.give_back(CARD, IDS, 2.0)
        take()


def test_vfs_whose_creation_is_interrupted_are_removed(here):
    before = here.snapshot()

    def create():
        privileged_vfs.create_vfs(devices.PF, 2, 2.0)

    for _ in crash_everywhere(here, create):
        assert privileged_vfs.remove_vfs(devices.PF, 2.0) == []
        assert here.snapshot() == before
        assert records(here) == []


def test_vfs_whose_removal_is_interrupted_are_removed(here):
    before = here.snapshot()
    privileged_vfs.create_vfs(devices.PF, 2, 2.0)
    for _ in crash_everywhere(
        here, lambda: privileged_vfs.remove_vfs(devices.PF, 2.0)
    ):
        assert privileged_vfs.remove_vfs(devices.PF, 2.0) == []
        assert here.snapshot() == before
        assert records(here) == []
        privileged_vfs.create_vfs(devices.PF, 2, 2.0)


def test_an_mdev_whose_creation_is_interrupted_is_removed(here):
    for after in (False, True):
        assert crashes(
            here,
            lambda: privileged_mdev.create(INSTANCE, 'mtty', 'mtty-1', 2.0),
            0,
            after,
        )
        assert privileged_mdev.remove(INSTANCE, 'mtty', 'mtty-1', 0, 2.0)
        assert mdev.devices() == []
        assert records(here) == []


# --- only what os-acc did is undone


def test_a_give_back_after_the_journal_was_lost(here):
    """The record knows the driver that was there first."""
    before = here.snapshot()
    take()
    take()
    privileged_pci.give_back(CARD, IDS, 2.0)
    assert here.snapshot() == before


def test_somebody_else_has_bound_it_between_two_takes(here):
    take()
    here.add_driver('other')
    here.unbind(CARD)
    here.write(str(here.pci / f'devices/{CARD}/driver_override'), '\n')
    here.bind(CARD, 'other')
    take()
    assert here.driver_of(CARD) == 'vfio-pci'
    here.allowed = lambda address, driver: True
    privileged_pci.give_back(CARD, IDS, 2.0)
    assert here.driver_of(CARD) == 'other'


def test_vans_of_an_earlier_version_are_an_error_with_a_remedy(here):
    """They have no record. Root changes nothing."""
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(CARD)])
    bindings.functions.delete(CARD)
    with pytest.raises(exception.UnplugException, match='no record') as caught:
        os_acc.unplug(instance)
    assert here.driver_of(CARD) == 'vfio-pci'
    # The error says which commands root has to run.
    bus = f'{here.sys}/bus/pci'
    for text, path in (
        ('', f'{bus}/devices/{CARD}/driver_override'),
        (CARD, f'{bus}/drivers/vfio-pci/unbind'),
        (CARD, f'{bus}/drivers_probe'),
    ):
        assert ' '.join(f'echo {text} > {path}'.split()) in str(caught.value)
        here.write(path, text or '\n')
    assert here.driver_of(CARD) == 'e1000e'
    assert len(os_acc.recover().released) == 1


def test_a_crash_between_give_back_and_the_journal(here, monkeypatch):
    """It was bound to VFIO before, and is so again: nothing is left to do."""
    here.bind(devices.GPU, 'vfio-pci')
    before = here.snapshot()
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    with devices.acting():
        privileged_pci.give_back(devices.GPU, '10de:1eb8', 2.0)
    assert os_acc.unplug(instance) == 1
    assert here.snapshot() == before


def test_a_record_of_another_boot_does_not_count(here):
    """/run of a container may outlive a reboot of the host."""
    privileged_vfs.create_vfs(devices.PF, 2, 2.0)
    here.boot()
    assert privileged_vfs.remove_vfs(devices.PF, 2.0) == [
        'os-acc has no record of creating them'
    ]
    assert privileged_vfs.made_vfs(devices.PF, 2.0) == 0
    assert sriov.count(devices.PF) == 2


def test_another_device_at_the_address(here):
    take()
    path = here.pci / 'devices' / CARD / 'modalias'
    path.write_text(path.read_text().replace('d000010D3', 'd00000099'))
    assert not privileged_pci.give_back(CARD, '8086:0099', 2.0)
    assert here.driver_of(CARD) == 'vfio-pci'


def test_vfs_that_somebody_else_made_instead_stay(here):
    privileged_vfs.create_vfs(devices.PF, 2, 2.0)
    path = here.pci / 'devices' / devices.PF
    here.write(f'{path}/sriov_numvfs', '0')
    here.write(f'{path}/sriov_numvfs', '3')
    (why,) = privileged_vfs.remove_vfs(devices.PF, 2.0)
    assert 'changed their number to 3' in why
    assert sriov.count(devices.PF) == 3
    assert sriov.autoprobe(devices.PF) == '1'


def test_an_mdev_that_somebody_else_made_meanwhile_is_not_ours(
    here, monkeypatch
):
    request = devices.mdev()
    create = privileged_mdev.create

    def late(name, parent, kind, *others):
        path = f'{mdev.parent_directory(parent)}/mdev_supported_types/{kind}'
        here.write(f'{path}/create', name)
        return create(name, parent, kind, *others)

    monkeypatch.setattr(privileged_mdev, 'create', late)
    with pytest.raises(exception.PlugException, match='somebody else') as err:
        os_acc.plug(devices.instance(), [request])
    assert err.value.undo_errors == []
    assert [each.uuid for each in mdev.devices()] == [request.handle.uuid]


def test_an_mdev_of_an_earlier_version(here):
    request, instance = devices.mdev(), devices.instance()
    os_acc.plug(instance, [request])
    privileged_mdev.mdevs.delete(request.handle.uuid)
    with pytest.raises(exception.UnplugException, match='echo 1 > '):
        os_acc.unplug(instance)
    assert mdev.find(request.handle.uuid)
    here.write(f'{mdev.directory(request.handle.uuid)}/remove', '1')
    assert len(os_acc.recover().released) == 1


def test_a_vgpu_type_that_somebody_else_set_stays(here):
    path = here.add_function(VGPU, '10de:2235', 0x030200, 'nvidia')
    (path / 'nvidia').mkdir()
    (path / 'nvidia/creatable_vgpu_types').write_text('558 : A40-8Q\n')
    kind = path / 'nvidia/current_vgpu_type'
    kind.write_text('558\n')
    devices.spec({'address': VGPU, 'vgpu_type': 'A40-8Q'})
    privileged_mdev.set_vgpu_type(VGPU, 558, 2.0)
    assert not privileged_mdev.clear_vgpu_type(VGPU, 558, 0, 2.0)
    assert kind.read_text() == '558\n'
    kind.write_text('0\n')
    privileged_mdev.set_vgpu_type(VGPU, 558, 2.0)
    assert privileged_mdev.clear_vgpu_type(VGPU, 558, 0, 2.0)
    assert kind.read_text() == '0\n'
    assert records(here) == []


# --- VFs


def test_a_vf_goes_back_to_its_driver_without_autoprobe(here):
    path = here.pci / 'devices' / devices.PF
    here.write(f'{path}/sriov_drivers_autoprobe', '0')
    here.write(f'{path}/sriov_numvfs', '2')
    vf = here.pci / 'devices' / VF
    # As an administrator binds it.
    here.write(f'{vf}/driver_override', 'qat')
    here.write(str(here.pci / 'drivers_probe'), VF)
    here.write(f'{vf}/driver_override', '\n')
    before = here.snapshot()
    assert here.driver_of(VF) == 'qat'
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    assert os_acc.unplug(instance) == 1
    assert here.snapshot() == before


def test_vfs_that_stay_get_their_autoprobe_and_are_removed_later(here):
    before = here.snapshot()
    first, second = devices.instance(), devices.instance()
    os_acc.plug(first, [devices.pci(VF)])
    assert sriov.autoprobe(devices.PF) == '0'
    other = devices.VFS[1]
    here.write(str(here.pci / f'devices/{other}/driver_override'), 'vfio-pci')
    here.write(str(here.pci / 'drivers_probe'), other)
    assert os_acc.unplug(first) == 1
    assert sriov.count(devices.PF) == 2
    assert sriov.autoprobe(devices.PF) == '1'
    assert not os_acc.get_vans()
    # No VAN knows any more who made them, but the privileged half does.
    os_acc.plug(second, [devices.pci(VF)])
    here.unbind(other)
    assert os_acc.unplug(second) == 1
    assert here.snapshot() == before
    assert records(here) == []


def test_vfs_that_are_kept_come_back_after_a_reboot(here):
    instance, other = devices.instance(), devices.VFS[1]
    os_acc.plug(instance, [devices.pci(VF)])
    here.bind(other, 'vfio-pci')
    os_acc.unplug(instance)
    os_acc.plug(instance, [devices.pci(VF)])
    here.reboot()
    assert len(os_acc.recover().restored) == 1
    assert here.driver_of(VF) == 'vfio-pci'


def test_device_spec_has_no_num_vfs_any_more(here):
    """The VAN keeps its VF until it is released."""
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    before = sriov.count(devices.PF)
    here.reboot()
    devices.spec({'address': '*'})
    assert len(os_acc.recover().restored) == 1
    assert sriov.count(devices.PF) == before


def test_device_spec_has_another_num_vfs(here):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    here.reboot()
    devices.spec({'address': devices.PF, 'num_vfs': 4}, {'address': '*'})
    assert len(os_acc.recover().restored) == 1
    assert sriov.count(devices.PF) == 4
    os_acc.unplug(instance)
    assert sriov.count(devices.PF) == 0


# --- take asks again


def test_take_asks_who_has_it_open(here):
    here.bind(devices.GPU, 'vfio-pci')
    pid = here.hold(here.node(devices.GPU))
    with pytest.raises(exception.DeviceBusy, match=f'process {pid}'):
        take(devices.GPU)
    here.end(pid)
    assert take(devices.GPU) == 'vfio-pci'


def test_take_asks_what_libvirt_domains_have(here):
    here.write_file(
        'libvirt/g.xml',
        '<domstatus><domain><name>g</name><uuid>u</uuid><devices>'
        '<hostdev type="pci"><source><address domain="0" bus="0x02" '
        'slot="0" function="0"/></source></hostdev></devices></domain>'
        '</domstatus>',
    )
    with pytest.raises(exception.DeviceBusy, match='libvirt domain g'):
        take(devices.GPU)


def test_take_binds_nothing_that_the_operator_binds(here):
    devices.spec({'address': CARD, 'bind': 'none'})
    with pytest.raises(exception.InvalidRequest, match='bind = none'):
        take()


def test_no_vfs_on_a_pf_that_is_bound_to_vfio(here):
    here.unbind(devices.PF)
    here.bind(devices.PF, 'vfio-pci')
    with pytest.raises(exception.DeviceBusy, match='VFIO driver'):
        privileged_vfs.create_vfs(devices.PF, 2, 2.0)


# --- deadlines


def test_the_step_that_takes_too_long_is_named(here):
    # A tenth of it is left for the error of the step.
    os_acc.CONF.set_override('device_timeout', 3.0, 'os_acc')
    instance = devices.instance()
    del here.native[devices.GPU]  # probing it does nothing
    here.native[devices.GPU] = None
    here.allowed = lambda address, driver: False
    with pytest.raises(
        exception.PlugException,
        match=f'driver vfio-pci to bind PCI function {devices.GPU}',
    ):
        os_acc.plug(instance, [devices.pci(devices.GPU)])
    del here.allowed
    os_acc.plug(instance, [devices.pci(CARD)])
    here.explicit_bind = lambda address, driver: None
    with pytest.raises(
        exception.UnplugException,
        match=f'driver e1000e to bind PCI function {CARD} again',
    ):
        os_acc.unplug(instance)
    del here.explicit_bind
    os_acc.CONF.set_override('device_timeout', 60.0, 'os_acc')
    assert len(os_acc.recover().released) == 1


def test_vfs_that_do_not_appear_are_named(here, monkeypatch):
    os_acc.CONF.set_override('device_timeout', 1.5, 'os_acc')
    monkeypatch.setattr(vf_number, '_complete', lambda pf, number: False)
    with pytest.raises(
        exception.PlugException, match=f'2 VFs of {devices.PF}'
    ):
        os_acc.plug(devices.instance(), [devices.pci(VF)])


# --- the directory


def directory() -> str:
    os.makedirs(root_folder.PATH, mode=0o700)
    return root_folder.PATH


def writable():
    os.chmod(directory(), 0o777)


def a_link():
    os.symlink('/', root_folder.PATH)


def a_link_below():
    os.symlink('/', f'{directory()}/functions')


def a_file():
    with open(root_folder.PATH, 'w', encoding='ascii'):
        pass


@pytest.mark.parametrize('state', [writable, a_link, a_link_below, a_file])
def test_a_directory_that_others_could_change(here, state):
    state()
    before = here.snapshot()
    with pytest.raises(exception.PrivilegeError, match=root_folder.PATH):
        take()
    assert here.snapshot() == before


def test_a_directory_of_another_user(here, monkeypatch):
    directory()
    monkeypatch.setattr(os, 'geteuid', lambda: 4711)
    with pytest.raises(exception.PrivilegeError, match='belongs to user id'):
        take()


def test_nobody_else_can_open_what_is_in_it(here):
    mask = os.umask(0)  # as in the daemon
    try:
        take()
    finally:
        os.umask(mask)
    for top, directories, files in os.walk(root_folder.PATH):
        assert os.stat(top).st_mode & 0o777 == 0o700
        assert directories or files
        for name in files:
            assert os.stat(f'{top}/{name}').st_mode & 0o777 == 0o600


@pytest.mark.parametrize('name', ['', '/vendor'])
def test_a_lock_that_any_user_can_hold_does_not_matter(here, name):
    """flock(2) on a directory or file of sysfs takes no privilege."""
    fd = os.open(f'{here.pci}/devices/{CARD}{name}', os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert take() == 'vfio-pci'
    assert privileged_pci.give_back(CARD, IDS, 2.0)
    os.close(fd)


def test_a_link_in_the_place_of_a_lock(here, tmp_path):
    path = f'{here.pci}/devices/{CARD}'
    with operation_lock.held(path, 1.0):
        pass
    lock = f'{root_folder.PATH}/locks/{CARD}'
    os.unlink(lock)
    os.symlink(tmp_path / 'elsewhere', lock)
    with pytest.raises(exception.PrivilegeError, match=os.strerror(40)):
        with operation_lock.held(path, 1.0):
            pass
    assert errno.ELOOP == 40


@pytest.mark.parametrize('name', ['../x', '', '.', '..', 'a/b', '.x'])
def test_names_that_are_paths(here, name):
    with pytest.raises(exception.InvalidRequest):
        bindings.functions.read(name)


@pytest.mark.parametrize(
    'text', ['', '{', '{}', '{"boot_id": "BOOT", "before": {"x": 1}}']
)
def test_a_record_that_cannot_be_read(here, text):
    """Nothing is done on the strength of it."""
    take()
    path = f'{root_folder.PATH}/functions/{CARD}'
    with open(path, encoding='utf-8') as file:
        boot_id = json.load(file)['boot_id']
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text.replace('BOOT', boot_id))
    with pytest.raises(exception.PrivilegeError, match=path):
        privileged_pci.give_back(CARD, IDS, 2.0)
    assert here.driver_of(CARD) == 'vfio-pci'
