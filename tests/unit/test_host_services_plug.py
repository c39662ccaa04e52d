# SPDX-License-Identifier: Apache-2.0

"""Devices of services of the host itself, such as host:ovs."""

from __future__ import annotations

import uuid

import command
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import migration
from os_acc import objects
from os_acc.placement import inventory
from os_acc.state import instance_names

VF, OTHER = devices.VFS[:2]


def service(name='host:ovs'):
    return objects.InstanceInfo(
        uuid=instance_names.instance_uuid(name), name=name
    )


@pytest.fixture
def here(kernel):
    """A host with a QAT whose VFs are offered; nothing changed at the end."""
    devices.furnish(kernel)
    kernel.add_driver('qat_vf')
    devices.spec(
        {'address': devices.PF, 'num_vfs': 4, 'host_driver': 'qat_vf'},
        {'address': devices.NIC, 'host_driver': 'other_nic'},
        {'address': '*'},
    )
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    before = kernel.snapshot()
    os_acc.initialize()
    yield kernel
    for van in os_acc.get_vans():
        os_acc.unplug(objects.InstanceInfo(uuid=van.instance_uuid))
    assert kernel.snapshot() == before


def cause(instance, *requests):
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance, list(requests))
    assert caught.value.undo_errors == []
    return caught.value.__cause__


def test_bound_to_its_own_driver_and_a_guest_of_the_same_card_to_vfio(here):
    (van,) = os_acc.plug(service(), [devices.pci(VF)])
    assert here.driver_of(VF) == 'qat_vf'
    assert (van.plugin, van.live_migratable) == ('noop', False)
    os_acc.plug(devices.instance(), [devices.pci(OTHER)])
    assert here.driver_of(OTHER) == 'vfio-pci'
    with pytest.raises(exception.PlugException, match='instance host:ovs '):
        os_acc.plug(devices.instance(), [devices.pci(VF)])


def test_without_the_key_it_is_bound_to_vfio(here):
    os_acc.plug(service(), [devices.pci(devices.GPU)])
    assert here.driver_of(devices.GPU) == 'vfio-pci'


def test_it_comes_back_after_a_reboot(here):
    (van,) = os_acc.plug(service(), [devices.pci(VF)])
    here.reboot()
    assert here.driver_of(VF) is None
    assert [each.uuid for each in os_acc.recover().restored] == [van.uuid]
    assert here.driver_of(VF) == 'qat_vf'
    assert os_acc.unplug(service()) == 1
    assert here.driver_of(VF) is None


def test_it_keeps_its_driver_when_the_entry_is_gone(here):
    os_acc.plug(service(), [devices.pci(VF)])
    devices.spec({'address': '*', 'deny': True})
    here.reboot()
    assert len(os_acc.recover().restored) == 1
    assert here.driver_of(VF) == 'qat_vf'


def test_a_plug_repairs_it(here):
    request = devices.pci(VF)
    os_acc.plug(service(), [request])
    here.unbind(VF)
    os_acc.plug(service(), [request])
    assert here.driver_of(VF) == 'qat_vf'


def test_one_that_has_its_driver_and_is_used_is_not_touched(here):
    here.add_driver('other_nic')
    here.unbind(devices.NIC)
    here.bind(devices.NIC, 'other_nic')
    flags = here.file(devices.NIC, 'net/eth0/flags')
    was = flags.read_text()
    flags.write_text('0x1003\n')
    before = here.snapshot()
    os_acc.plug(service(), [devices.pci(devices.NIC)])
    assert here.snapshot() == before
    assert 'host:ovs' in str(
        cause(devices.instance(), devices.pci(devices.NIC))
    )
    os_acc.unplug(service())
    assert here.snapshot() == before
    flags.write_text(was)
    here.unbind(devices.NIC)
    here.bind(devices.NIC, 'e1000e')


def test_one_that_the_host_uses_is_not_bound_anew(here):
    here.add_driver('other_nic')
    flags = here.file(devices.NIC, 'net/eth0/flags')
    was = flags.read_text()
    flags.write_text('0x1003\n')
    err = cause(service(), devices.pci(devices.NIC))
    assert isinstance(err, exception.DeviceInUseByHost)
    assert here.driver_of(devices.NIC) == 'e1000e'
    flags.write_text(was)


def test_one_that_the_host_uses_is_not_taken_back(here):
    here.add_driver('other_nic')
    os_acc.plug(service(), [devices.pci(devices.NIC)])
    assert here.driver_of(devices.NIC) == 'other_nic'
    flags = here.file(devices.NIC, 'net/eth0/flags')
    was = flags.read_text()
    flags.write_text('0x1003\n')
    with pytest.raises(exception.UnplugException, match='eth0 is up'):
        os_acc.unplug(service())
    assert here.driver_of(devices.NIC) == 'other_nic'
    flags.write_text(was)
    assert os_acc.unplug(service()) == 1
    assert here.driver_of(devices.NIC) == 'e1000e'


@pytest.mark.parametrize('failing', ['drivers/qat_vf/bind', 'driver_override'])
def test_a_failure_is_undone(here, failing):
    here.fail(f'*/{failing}', 5)
    assert isinstance(cause(service(), devices.pci(VF)), exception.DeviceError)
    here.calm()


def test_a_drive_is_refused(here):
    devices.spec({'address': devices.DISK, 'host_driver': 'nvme'})
    err = cause(service(), devices.pci(devices.DISK))
    assert 'it stores data, and with host_driver' in str(err)
    assert here.driver_of(devices.DISK) == 'nvme'


def test_an_orphan_it_never_is_and_it_does_not_move(here):
    (van,) = os_acc.plug(service(), [devices.pci(VF)])
    guest = devices.instance()
    os_acc.plug(guest, [devices.pci(OTHER)])
    found = os_acc.release_orphans([], 0)
    assert [each.instance_uuid for each in found] == [guest.uuid]
    assert [each.uuid for each in os_acc.get_vans()] == [van.uuid]
    with pytest.raises(exception.MigrationConflict, match='service of this'):
        migration.describe(service())


def test_placement_has_it_as_reserved(here):
    os_acc.plug(service(), [devices.pci(VF)])
    made = inventory.providers(os_acc.get_devices())[devices.PF]
    (found,) = made.inventories.values()
    assert (found.total, found.reserved) == (4, 1)


def test_a_guest_with_such_a_name_is_a_guest(here):
    guest = objects.InstanceInfo(uuid=str(uuid.uuid4()), name='host:ovs')
    assert guest.host_service is None
    os_acc.plug(guest, [devices.pci(VF)])
    assert here.driver_of(VF) == 'vfio-pci'
    assert guest.uuid in str(cause(devices.instance(), devices.pci(VF)))
    assert len(os_acc.release_orphans([], 0)) == 1


@pytest.mark.parametrize('name', ['host:', 'host:  '])
def test_a_service_needs_a_name(name):
    with pytest.raises(exception.InvalidRequest, match='host:ovs'):
        instance_names.instance_uuid(name)


def test_the_commands_show_it(here, capsys, monkeypatch):
    run = command.Command(os_acc.CONF.os_acc.state_path, capsys, monkeypatch)
    (van,) = os_acc.plug(service(), [devices.pci(VF)])
    assert ' host:ovs ' in run('van', 'list').out
    (row,) = run('van', 'list', '-f', 'json').json
    assert row['instance_uuid'] == van.instance_uuid
    assert 'instance host:ovs has it' in run('device', 'show', devices.PF).out
    said = ' '.join(run('doctor').out.split())
    assert 'service host:ovs of this host: it has pci/' in said
    assert run('orphans', '--minimum-age', '0').out.strip() == '(none)'
    assert run('unplug', 'host:ovs').out == 'released 1\n'
