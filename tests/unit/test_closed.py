# SPDX-License-Identifier: Apache-2.0

"""Closed by default: what device_spec does not offer, os-acc does not touch.

And what is denied while an instance has it stays until it is released.
"""

from __future__ import annotations

import json
import os
import pathlib

import devices
import pytest
import vendor as vendor_module

import os_acc
from os_acc import exception
from os_acc.kernel import mdev as os_mdev
from os_acc.kernel import pci
from os_acc.privileged import notes as root_notes
from os_acc.privileged import offers
from os_acc.privileged import operation_lock
from os_acc.privileged.fpga import command as privileged_programming
from os_acc.privileged.mdev import devices as privileged_mdev
from os_acc.privileged.pci import functions as privileged_pci
from os_acc.privileged.pci import storage_calls
from os_acc.privileged.pci import vfs as privileged_vfs
from os_acc.spec import device_spec

VF = '0000:41:00.4'
IDS = '8086:10d3'
UUID = '11111111-2222-4333-8444-555555555555'


@pytest.fixture
def here(kernel):
    """A host that offers nothing."""
    devices.furnish(kernel)
    devices.spec()
    os_acc.initialize()
    return kernel


def vgpus(kernel) -> None:
    """Add a card with a VF that can have a vGPU."""
    pf = kernel.add_function('0000:41:00.0', '10de:2235', 0x030200, 'nvidia')
    vf = kernel.add_function(
        VF,
        '10de:2235',
        0x030200,
        'nvidia',
        physfn='0000:41:00.0',
        files={
            'nvidia/current_vgpu_type': '0\n',
            'nvidia/creatable_vgpu_types': '558 : A40-1Q\n559 : A40-2Q\n',
        },
    )
    kernel.bind(VF, 'nvidia')
    (pf / 'virtfn0').symlink_to(vf)


def cause(*requests) -> Exception:
    """Plug in vain. Returns why."""
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(devices.instance(), list(requests))
    assert caught.value.undo_errors == []
    return caught.value.__cause__


def deny(address: str) -> None:
    """Deny a device in the directory, as an operator does."""
    directory = pathlib.Path(os_acc.CONF.os_acc.device_spec_dir)
    directory.mkdir(0o755, exist_ok=True)
    directory.chmod(0o755)
    path = directory / 'deny.json'
    path.write_text(json.dumps({'address': address, 'deny': True}))
    path.chmod(0o644)


def notes() -> list[str]:
    """The devices that the privileged half has given out."""
    directory = pathlib.Path(root_notes.FOLDER)
    return sorted(os.listdir(directory)) if directory.exists() else []


# --- nothing is offered


def test_nothing_is_listed(here):
    vgpus(here)
    assert os_acc.get_devices() == []


@pytest.mark.parametrize(
    ('driver', 'name'),
    [
        ('pci', 'PGPU'),
        ('pci', 'CUSTOM_PCI_8086_37C8'),
        ('mdev', 'CUSTOM_MDEV_MTTY_1'),
        ('fpga', 'FPGA'),
        ('nvidia_vgpu', 'VGPU'),
    ],
)
def test_nothing_is_chosen(here, driver, name):
    vgpus(here)
    before = here.snapshot()
    request = devices.wanted(name)
    request.driver = driver
    err = cause(request)
    assert isinstance(err, exception.DeviceNotFound)
    assert 'device_spec offers no' in str(err)
    assert here.snapshot() == before
    assert here.writes == []


@pytest.mark.parametrize(
    ('driver', 'address'),
    [
        ('pci', devices.GPU),
        ('pci', devices.DISK),
        ('pci', VF),
        ('nvidia_vgpu', VF),
    ],
)
def test_a_given_function_is_refused_with_the_line_to_add(
    here, driver, address
):
    vgpus(here)
    request = devices.pci(address)
    request.driver = driver
    err = cause(request)
    assert isinstance(err, exception.DeviceNotFound)
    assert f'device_spec = {{"address": "{address}", "ven' in str(err)
    assert f'os-acc device allow {address}' in str(err)
    assert here.writes == []


def test_a_given_fpga_is_refused(here):
    request = devices.pci(devices.GPU)
    request.driver = 'fpga'
    err = cause(request)
    assert isinstance(err, exception.DeviceNotFound)
    assert 'says how it is programmed' in str(err)


def test_a_given_mdev_is_refused_with_the_line_to_add(here):
    err = cause(devices.mdev())
    assert isinstance(err, exception.DeviceNotFound)
    assert 'device_spec = {"address": "mtty"}' in str(err)
    assert here.writes == []


def test_a_malformed_entry_offers_nothing(here):
    os_acc.CONF.set_override(
        'device_spec', ['{"address": "*"}', '{"adress": "x"}'], 'os_acc'
    )
    with pytest.raises(exception.DiscoveryFailed, match='adress') as caught:
        os_acc.get_devices()
    assert caught.value.devices == []
    request = devices.pci(devices.GPU)
    request.driver = 'pci'
    assert 'adress' in str(cause(request))
    assert here.writes == []


CALLS = [
    lambda: privileged_pci.take(devices.GPU, 'vfio-pci', [], UUID, 1.0),
    lambda: privileged_pci.clean(devices.DISK, '1b36:0010', 'auto', 0, 1.0),
    lambda: privileged_pci.hold(devices.GPU),
    lambda: privileged_vfs.create_vfs(devices.PF, 2, 1.0),
    lambda: privileged_mdev.create(UUID, 'mtty', 'mtty-1', 1.0),
    lambda: privileged_mdev.announce(UUID, 'mtty', 'mtty-1', 1.0),
    lambda: storage_calls.hand_out(devices.DISK, UUID, 1.0),
    lambda: privileged_mdev.set_vgpu_type(VF, 558, 1.0),
    lambda: privileged_programming.check(devices.GPU, '', '/x'),
    lambda: privileged_programming.clear(devices.GPU, '', 1.0),
]


@pytest.mark.parametrize('call', CALLS)
@pytest.mark.parametrize('denied', [False, True])
def test_the_privileged_half_refuses_by_itself(here, call, denied):
    vgpus(here)
    if denied:
        devices.spec({'address': '*'}, {'address': '*', 'deny': True})
    before = here.snapshot()
    with pytest.raises(exception.DeviceNotFound, match='device allow'):
        call()
    assert here.snapshot() == before
    assert here.writes == []
    assert notes() == []


@pytest.mark.parametrize(
    ('call', 'nothing'),
    [
        (lambda: privileged_pci.give_back(devices.NIC, IDS, 1.0), False),
        (lambda: privileged_vfs.remove_vfs(devices.PF, 1.0), []),
        (lambda: privileged_mdev.clear_vgpu_type(VF, 558, 0, 1.0), False),
    ],
)
def test_the_privileged_half_undoes_only_what_it_did(here, call, nothing):
    vgpus(here)
    path = here.pci / 'devices' / VF / 'nvidia/current_vgpu_type'
    path.write_text('558\n')
    before = here.snapshot()
    assert call() == nothing
    assert here.snapshot() == before
    assert here.writes == []


@pytest.mark.parametrize(
    'call',
    [
        lambda: privileged_mdev.released(UUID, 0),
        lambda: privileged_mdev.remove(UUID, 'mtty', 'mtty-1', 0, 1.0),
        lambda: privileged_mdev.hold(UUID),
    ],
)
def test_the_privileged_half_leaves_the_mdevs_of_others(here, call):
    path = f'{os_mdev.parent_directory("mtty")}/mdev_supported_types/mtty-1'
    here.write(f'{path}/create', UUID)
    here.writes.clear()
    with pytest.raises(exception.DeviceNotFound, match='device allow mtty'):
        call()
    assert here.writes == []


def test_the_privileged_half_checks_types(here):
    vgpus(here)
    devices.spec(
        {'address': 'mtty', 'mdev_types': ['mtty-1']},
        {'vendor_id': '10de', 'vgpu_type': 'A40-1Q'},
    )
    with pytest.raises(exception.DeviceNotFound, match='types mtty-1'):
        privileged_mdev.create(UUID, 'mtty', 'mtty-2', 1.0)
    with pytest.raises(exception.DeviceNotFound, match='type A40-1Q'):
        privileged_mdev.set_vgpu_type(VF, 559, 1.0)
    with pytest.raises(exception.DeviceNotFound, match='vGPUs of it only'):
        privileged_pci.take(VF, 'vfio-pci', [], UUID, 1.0)
    assert here.writes == []


# --- a change while an instance has a device

FUNCTIONS = [
    ({'address': devices.GPU}, devices.GPU),
    ({'address': devices.GPU, 'bind': 'libvirt'}, devices.GPU),
    ({'address': devices.PF, 'num_vfs': 2}, devices.VFS[1]),
]


def change(how: str, address: str) -> None:
    """Take a device out of device_spec, in one way or another."""
    if how == 'removed':
        devices.spec()
    elif how == 'denied':
        deny(address)
    elif how == 'malformed':
        os_acc.CONF.set_override('device_spec', ['{'], 'os_acc')
    else:
        devices.spec({'address': '*', 'mdev_types': ['nvidia-558']})


HOW = ['removed', 'denied', 'for mdevs', 'malformed']


@pytest.mark.parametrize('how', HOW)
@pytest.mark.parametrize(('entry', 'address'), FUNCTIONS)
def test_a_plugged_function_is_released(here, how, entry, address):
    before = here.snapshot()
    devices.spec(entry)
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(address)])
    assert notes() != []
    change(how, address)
    assert os_acc.unplug(instance) == 1
    assert here.snapshot() == before
    assert notes() == []
    if how != 'malformed':
        assert isinstance(
            cause(devices.pci(address)), exception.DeviceNotFound
        )


@pytest.mark.parametrize('how', HOW)
@pytest.mark.parametrize(('entry', 'address'), FUNCTIONS)
def test_a_plugged_function_comes_back_after_a_reboot(
    here, how, entry, address
):
    before = here.snapshot()
    devices.spec(entry)
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(address)])
    plugged = here.snapshot()
    change(how, address)
    here.reboot()
    report = os_acc.recover()
    assert report.failed == []
    assert len(report.restored) == 1
    assert here.snapshot() == plugged
    assert os_acc.unplug(instance) == 1
    assert here.snapshot() == before
    assert notes() == []


@pytest.mark.parametrize('how', HOW)
def test_a_function_is_released_after_a_reboot_without_recovery(here, how):
    function = here.pci / 'devices' / devices.NIC
    for name, text in {'reset': '', 'reset_method': 'flr\n'}.items():
        (function / name).write_text(text)
    before = here.snapshot()
    devices.spec({'address': devices.NIC})
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.NIC)])
    change(how, devices.NIC)
    here.reboot()
    assert os_acc.unplug(instance) == 1
    assert here.snapshot() == before
    assert here.resets == [devices.NIC]


@pytest.mark.parametrize('how', HOW)
@pytest.mark.parametrize('made', [True, False])
def test_an_mdev(here, how, made):
    """An mdev that os-acc has made, and one that was there."""
    devices.spec({'address': 'mtty'})
    instance, request = devices.instance(), devices.mdev(name=UUID)
    if not made:
        path = (
            f'{os_mdev.parent_directory("mtty")}/mdev_supported_types/mtty-1'
        )
        here.write(f'{path}/create', UUID)
    os_acc.plug(instance, [request])
    plugged = here.snapshot()
    assert notes() == [f'mdev-{UUID}']
    change(how, 'mtty')
    if made:
        here.reboot()
        assert len(os_acc.recover().restored) == 1
        assert here.snapshot() == plugged
    assert os_acc.unplug(instance) == 1
    assert (UUID in here.snapshot()) is not made
    assert notes() == []


@pytest.mark.parametrize('how', HOW)
def test_a_vgpu(here, how):
    vgpus(here)
    before = here.snapshot()
    devices.spec({'vendor_id': '10de', 'vgpu_type': 'A40-1Q'})
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    plugged = here.snapshot()
    change(how, VF)
    path = here.pci / 'devices' / VF / 'nvidia/current_vgpu_type'
    path.write_text('0\n')
    here.boot()
    assert len(os_acc.recover().restored) == 1
    assert here.snapshot() == plugged
    assert os_acc.unplug(instance) == 1
    assert here.snapshot() == before
    assert notes() == []


def test_a_denied_fpga_keeps_its_function(kernel, tmp_path):
    vendor_module.furnish(kernel)
    tool = vendor_module.Vendor(tmp_path / 'vendor')
    tool.configure('single')
    os_acc.initialize()
    instance = devices.instance()
    request = devices.pci(vendor_module.VFS[0])
    request.bitstream, request.function_id = tool.bitstream('aes'), 'aes'
    os_acc.plug(instance, [request])
    deny(vendor_module.FPGA)
    kernel.reboot()
    kernel.write(
        f'{kernel.pci}/devices/{vendor_module.FPGA}/sriov_numvfs',
        str(len(vendor_module.VFS)),
    )
    report = os_acc.recover()
    assert report.failed == []
    assert len(report.restored) == 1
    # The card has lost its function at the reboot.
    assert len(tool.calls()) == 2
    assert os_acc.unplug(instance) == 1
    assert notes() == []


def test_the_note_of_another_device_does_not_count(here):
    """Another card is in the slot."""
    devices.spec({'address': devices.GPU})
    os_acc.plug(devices.instance(), [devices.pci(devices.GPU)])
    devices.spec()
    here.reboot()
    modalias = here.pci / 'devices' / devices.GPU / 'modalias'
    text = modalias.read_text()
    modalias.write_text(text.replace('d00001EB8', 'd00002235'))
    with pytest.raises(exception.DeviceNotFound, match='device_spec'):
        privileged_pci.take(devices.GPU, 'vfio-pci', [], UUID, 1.0)


def test_release_again_after_a_crash_between_undo_and_journal(
    here, monkeypatch
):
    """The undo of a device that is not offered any more is done twice."""
    devices.spec(
        {'address': devices.PF, 'num_vfs': 2}, {'address': devices.GPU}
    )
    before = here.snapshot()
    instance = devices.instance()
    os_acc.plug(
        instance, [devices.pci(devices.GPU), devices.pci(devices.VFS[0])]
    )
    devices.spec()
    driver = os_acc._get().extensions.drivers['pci']
    release = driver.unprepareVAN

    def twice(van, instance_info):
        release(van, instance_info)
        release(van, instance_info)

    monkeypatch.setattr(driver, 'unprepareVAN', twice)
    assert os_acc.unplug(instance) == 2
    assert here.snapshot() == before


@pytest.mark.parametrize('bind', ['os-acc', 'libvirt'])
def test_the_privileged_half_refuses_what_the_driver_takes(
    here, monkeypatch, bind
):
    """The daemon reads another device_spec. Nothing is left to be undone."""
    devices.spec({'address': devices.GPU, 'bind': bind}, {'address': 'mtty'})
    path = f'{os_mdev.parent_directory("mtty")}/mdev_supported_types/mtty-1'
    here.write(f'{path}/create', UUID)
    before = here.snapshot()
    monkeypatch.setattr(offers, 'specs', device_spec.Specs)
    for request in (devices.pci(devices.GPU), devices.mdev(name=UUID)):
        assert isinstance(cause(request), exception.DeviceNotFound)
    assert here.snapshot() == before
    assert list(os_acc.get_vans()) == []
    assert notes() == []


def test_release_waits_for_an_operation_that_is_under_way(here):
    """The service was killed: its last call may go on in the daemon."""
    devices.spec({'address': devices.GPU})
    path = pci.directory(devices.GPU)
    with operation_lock.held(path, 1.0):
        with pytest.raises(exception.Timeout, match='earlier operation'):
            privileged_pci.give_back(devices.GPU, '10de:1eb8', 0.2)
    privileged_pci.give_back(devices.GPU, '10de:1eb8', 1.0)


@pytest.mark.parametrize(('entry', 'address'), FUNCTIONS)
def test_without_a_note_nothing_is_touched(here, entry, address):
    devices.spec(entry)
    before = here.snapshot()
    pathlib.Path(root_notes.FOLDER).write_text('')  # not a directory
    err = cause(devices.pci(address))
    assert isinstance(err, exception.PrivilegeError)
    assert root_notes.FOLDER in str(err)
    assert here.snapshot() == before
    assert list(os_acc.get_vans()) == []
    pathlib.Path(root_notes.FOLDER).unlink()
    os_acc.plug(devices.instance(), [devices.pci(address)])


def test_notes_of_others_do_not_count(here):
    """A user who could write notes could offer devices."""
    devices.spec({'address': devices.GPU})
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    devices.spec()
    pathlib.Path(root_notes.FOLDER).chmod(0o777)
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance)
    pathlib.Path(root_notes.FOLDER).chmod(0o700)
    assert os_acc.unplug(instance) == 1


def test_a_held_device_offers_no_other(here):
    devices.spec({'address': '*'})
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    devices.spec()
    assert isinstance(
        cause(devices.pci(devices.DISK)), exception.DeviceNotFound
    )
    assert os_acc.unplug(instance) == 1


# --- root offers less than the service


def libvirt_binds(here):
    devices.spec({'address': '*', 'bind': 'libvirt'}, {'address': 'mtty'})


def an_mdev(here):
    libvirt_binds(here)
    types = here.sys / 'class/mdev_bus/mtty/mdev_supported_types'
    here.write(str(types / 'mtty-1/create'), UUID)


def os_acc_binds(here):
    devices.spec({'address': '*'}, {'address': 'mtty'})


def bound_at_boot(here):
    """The operator lets vfio-pci have it, and it goes on to."""
    os_acc_binds(here)
    here.bind(devices.GPU, 'vfio-pci')


@pytest.mark.parametrize(
    ('offer', 'request_of'),
    [
        (os_acc_binds, lambda: devices.pci(devices.GPU)),
        (os_acc_binds, lambda: devices.pci(devices.DISK)),
        (bound_at_boot, lambda: devices.pci(devices.GPU)),
        (libvirt_binds, lambda: devices.pci(devices.GPU)),
        (libvirt_binds, lambda: devices.pci(devices.NIC)),
        (os_acc_binds, devices.mdev),
        (an_mdev, lambda: devices.mdev(name=UUID)),
    ],
)
def test_root_offers_less_than_the_service(
    here, monkeypatch, offer, request_of
):
    """The plug fails, and its undo has nothing to do."""
    offer(here)
    specs = offers.specs
    monkeypatch.setattr(offers, 'specs', lambda: device_spec.Specs(()))
    before = here.snapshot()
    err = cause(request_of())
    assert isinstance(err, exception.DeviceNotFound), err
    assert here.snapshot() == before
    assert os_acc.get_vans().objects == []
    assert notes() == []
    # Nor can an operator's command clean what root does not offer.
    function = pci.get(devices.GPU)
    with pytest.raises(exception.DeviceNotFound):
        privileged_pci.clean(function.address, function.ids, 'auto', 0, 1.0)
    monkeypatch.setattr(offers, 'specs', specs)
    instance = devices.instance()
    os_acc.plug(instance, [request_of()])
    assert os_acc.unplug(instance) == 1
