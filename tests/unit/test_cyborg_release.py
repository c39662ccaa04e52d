# SPDX-License-Identifier: Apache-2.0

"""The driver cyborg keeps the rules that the driver pci keeps."""

from __future__ import annotations

import errno

import cyborg_host
from cyborg_stand_in import FPGA
from cyborg_stand_in import OTHER
from cyborg_stand_in import VFS
from cyborg_stand_in import cause
from cyborg_stand_in import device
from cyborg_stand_in import found
from cyborg_stand_in import gpu
from cyborg_stand_in import plug
from cyborg_stand_in import slot
from cyborg_stand_in import stand_in_host  # noqa: F401, fixture "here"
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.kernel import chip as chips
from os_acc.privileged import notes


def put(here) -> None:
    """Put the card with one function into its slot again."""
    here.kernel.add_function(OTHER, '8086:09c4', 0x120000)


def noted() -> list[str]:
    return sorted(name for name in notes.files.names() if 'pci-' in name)


def test_a_function_that_is_gone_is_let_go(here):
    instance, _ = plug(devices.pci(OTHER))
    assert noted() == [f'pci-{OTHER}']
    here.kernel.remove_function(OTHER)
    assert os_acc.unplug(instance) == 1
    put(here)
    assert noted() == []
    plug(devices.pci(OTHER))


def test_another_function_at_the_address_is_left_alone(here):
    instance, _ = plug(devices.pci(OTHER))
    here.kernel.remove_function(OTHER)
    here.kernel.add_function(OTHER, '8086:10d3', 0x020000)
    assert os_acc.unplug(instance) == 1
    assert noted() == []
    here.kernel.remove_function(OTHER)
    put(here)


def test_another_function_at_the_address_is_not_taken(here):
    """A card was replaced, or the numbers of the buses have changed."""
    plug(devices.pci(OTHER))
    here.kernel.reboot()
    here.kernel.write(str(here.kernel.file(FPGA, 'sriov_numvfs')), '2')
    here.kernel.remove_function(OTHER)
    here.kernel.add_function(OTHER, '8086:ffff', 0x120000)
    report = os_acc.recover()
    assert 'ffff' in report.failed[0].error
    here.kernel.remove_function(OTHER)
    put(here)


def test_a_function_of_one_time_use_is_reserved(here):
    devices.spec({'address': '*', 'one_time_use': True})
    instance, _ = plug(devices.pci(OTHER))
    os_acc.unplug(instance)
    (handle,) = found()[OTHER].handles
    assert handle.state == 'reserved'
    assert isinstance(cause(devices.pci(OTHER)), exception.DeviceBusy)


def test_no_more_mdevs_than_max_instances(here):
    devices.spec({'address': '*', 'max_instances': 1, 'mdev_types': 'acme-1'})
    with cyborg_host.creating(here.kernel, devices.GPU):
        plug(gpu())
        assert isinstance(cause(gpu()), exception.DeviceBusy)
    (kind,) = found()[devices.GPU].mdev_types
    assert (kind.capacity, kind.available) == (0, 0)


def test_a_vf_that_comes_back_late(here, monkeypatch):
    """The service that makes the VFs may end after os-acc has started."""
    from os_acc.kernel import pci

    instance, _ = plug(devices.pci(VFS[0]))
    here.kernel.reboot()
    asked = []
    real = pci.find

    def find(address: str):
        asked.append(address)
        if len(asked) == 5:
            file = here.kernel.file(FPGA, 'sriov_numvfs')
            here.kernel.write(str(file), '2')
        return real(address)

    monkeypatch.setattr(pci, 'find', find)
    assert len(os_acc.recover().restored) == 1
    assert os_acc.unplug(instance) == 1


def test_a_part_of_a_group_while_the_guest_runs(here):
    """The guest keeps the group of both open, for the other function."""
    pair = ['0000:0e:00.0', '0000:0e:00.1']
    for each in pair:
        here.kernel.add_function(each, '8086:09c4', 0x120000, group=60)
    here.find(
        device('plain', pair[0], ['PCI', slot(pair[0])]),
        device('plain', pair[1], ['PCI', slot(pair[1])]),
    )
    requests = [devices.pci(each, managed=True) for each in pair]
    instance, _ = plug(*requests)
    for each in pair:
        here.kernel.bind(each, 'vfio-pci')
    guest = here.kernel.hold(here.kernel.node(pair[0]))
    here.kernel.open_function(guest, pair[1])
    assert os_acc.unplug(instance, [requests[0]]) == 1
    here.kernel.end(guest)
    for each in pair:
        here.kernel.unbind(each)
    assert os_acc.unplug(instance) == 1
    for each in pair:
        here.kernel.remove_function(each)


def test_what_the_plugin_has_to_know(here):
    devices.spec({'address': '*', 'vfio_driver': 'acme-vfio-pci'})
    here.kernel.without_groups()
    _, (van,) = plug(devices.pci(OTHER))
    assert van.driver_data['vfio_driver'] == 'acme-vfio-pci'
    assert van.driver_data['iommufd'] == 'yes'


@pytest.mark.parametrize('kind', ['cyborg', 'pci', 'mdev'])
def test_the_journal_has_a_device_before_root_notes_it(
    here, monkeypatch, kind
):
    """Else the note would outlive a crash, and nobody would delete it."""
    request = devices.pci(OTHER)
    if kind == 'pci':
        request = devices.pci(devices.PF, managed=True)
    elif kind == 'mdev':
        request = gpu()
        create = here.kernel.sys / 'class/mdev_bus' / devices.GPU
        create /= 'mdev_supported_types/acme-1/create'
        here.kernel.write(str(create), request.handle.uuid)
    before = []
    real = {'mdev': notes.MDEV}.get(kind, notes.PCI), notes.note

    def note(noted_kind, name, *args, **values):
        if noted_kind == real[0]:
            (van,) = os_acc.get_vans()
            before.append((van.handle.identity.partition('/')[2], name))
        real[1](noted_kind, name, *args, **values)

    monkeypatch.setattr(notes, 'note', note)
    plug(request)
    assert before and all(saved == name for saved, name in before)
    os_acc.unplug(
        objects.InstanceInfo(uuid=os_acc.get_vans()[0].instance_uuid)
    )
    if kind == 'mdev':
        path = here.kernel.mdev / request.handle.uuid / 'remove'
        here.kernel.write(str(path), '1')


def test_a_card_that_cannot_be_read_comes_last(here, monkeypatch):
    real = chips.of

    def of(function):
        if function.address == FPGA:
            raise OSError(errno.EIO, 'Input/output error', 'vpd')
        return real(function)

    monkeypatch.setattr(chips, 'of', of)
    _, (van,) = plug(devices.wanted('FPGA'))
    assert van.device == OTHER
