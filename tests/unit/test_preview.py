# SPDX-License-Identifier: Apache-2.0
"""plug and unplug with --dry-run: what would be done, and nothing is."""

from __future__ import annotations

import json
import os
import uuid

import command
import devices
import previews
import pytest

import os_acc
from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc.objects import van as states
from os_acc.operations import preview

CLASS = 'CUSTOM_FAKE_PCI'


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    return kernel


@pytest.fixture
def fake(here):
    """Fake devices of one class: nic0 with two handles, nic1 with one."""
    os_acc.CONF.set_override(
        'devices', ['nic0:pci:2', 'nic1:pci:1'], 'os_acc_fake'
    )
    os_acc.CONF.set_override('discover', True, 'os_acc_fake')
    return here


@pytest.fixture
def look(here):
    """Make a preview of a plug, as (action, handle, devices, obstacle)."""

    def look(instance, *requests, **kwargs):
        opened = host_module.Host.open(os_acc.CONF, read_only=True)
        before = here.snapshot()
        planned = preview.plug(opened, instance, list(requests), **kwargs)
        opened.close()
        assert here.snapshot() == before
        assert [each.van for each in planned] == [r.uuid for r in requests]
        return [
            (each.action, each.handle, each.devices, each.obstacle)
            for each in planned
        ]

    return look


def test_a_device_is_chosen(fake, look):
    requests = [devices.wanted(CLASS) for _ in range(4)]
    of_both = ('plug', None, ['nic0', 'nic1'], None)
    assert look(devices.instance(), *requests) == [
        of_both,
        of_both,
        ('plug', None, ['nic1', 'nic0'], None),
        ('plug', None, [], f'no device of {CLASS} has a free handle left'),
    ]
    os_acc.plug(devices.instance(), requests[:2])
    assert look(devices.instance(), devices.wanted(CLASS)) == [
        ('plug', None, ['nic1'], None)
    ]


def test_no_device_fits(fake, look):
    request = devices.wanted(CLASS, 'CUSTOM_FAST')
    (found,) = look(devices.instance(), request)
    assert found[3] == (
        f"driver 'fake' lists no device of {CLASS} with these traits"
    )


def test_the_driver_cannot_say(fake, look):
    os_acc.CONF.set_override('fail', ['get_devices'], 'os_acc_fake')
    (found,) = look(devices.instance(), devices.wanted(CLASS))
    assert 'get_devices' in found[3]


def test_a_handle_that_is_named(here, look):
    request = devices.pci(devices.GPU)
    handle = f'pci/{devices.GPU}'
    free = ('plug', handle, [devices.GPU], None)
    assert look(devices.instance(), request) == [free]
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [request])
    (found,) = look(devices.instance(), devices.pci(devices.GPU))
    assert found[:3] == free[:3]
    assert found[3].startswith('its handle is not free: used')
    assert van.uuid in found[3]


def test_a_handle_that_is_not_offered(here, look):
    devices.spec({'address': devices.NIC})
    (found,) = look(devices.instance(), devices.pci(devices.GPU))
    assert found[3].startswith(f"driver 'pci' does not list {devices.GPU}: ")
    assert 'device_spec' in found[3]
    (found,) = look(devices.instance(), devices.pci('0000:99:00.0'))
    assert found[3] == "driver 'pci' does not list 0000:99:00.0"


def test_a_driver_that_cannot_show_a_device(here, look, monkeypatch):
    def fail(*_):
        raise ValueError('no')

    monkeypatch.setattr(
        'os_acc.kinds.pci.driver.driver.PCIDriver.show_device', fail
    )
    (found,) = look(devices.instance(), devices.pci('0000:99:00.0'))
    assert found[3] == 'ValueError: no'


def test_a_test_handle(here, look):
    request = objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), handle=objects.TestHandle(name='one')
    )
    assert look(devices.instance(), request) == [
        ('plug', request.handle.identity, [], None)
    ]


@pytest.mark.parametrize('discover', [True, False])
def test_the_fake_driver_takes_any_handle(here, look, discover):
    """As for bound ARQs with --driver fake."""
    os_acc.CONF.set_override('discover', discover, 'os_acc_fake')
    requests = [devices.pci('0000:99:00.0'), devices.mdev('none-1')]
    requests[1].handle.parent = '0000:98:00.0'
    for request in requests:
        request.driver = 'fake'
    instance = devices.instance()
    assert [(a, o) for a, _, _, o in look(instance, *requests)] == [
        ('plug', None),
        ('plug', None),
    ]
    assert len(os_acc.plug(instance, requests)) == 2


def test_a_driver_whose_discovery_is_off(fake, look):
    os_acc.CONF.set_override('discover', False, 'os_acc_fake')
    request, other = devices.wanted(CLASS), devices.wanted('CUSTOM_OTHER')
    request.driver = other.driver = 'fake'
    instance = devices.instance()
    assert look(instance, request) == [('plug', None, [], None)]
    assert len(os_acc.plug(instance, [request])) == 1
    (found,) = look(devices.instance(), other)
    assert 'lists no device of CUSTOM_OTHER' in found[3]


def test_a_slot_of_a_host_whose_discovery_is_off(here, look):
    os_acc.CONF.set_override('plugin', 'powervm', 'os_acc')
    handle = objects.DRCHandle(drc_index=0x21030011)
    request = objects.AcceleratorRequest(uuid=str(uuid.uuid4()), handle=handle)
    assert look(devices.instance(), request)[0][3] is None


def test_a_mediated_device(here, look):
    request = devices.mdev('mtty-2')
    handle = request.handle.identity
    assert look(devices.instance(), request) == [
        ('plug', handle, ['mtty'], None)
    ]
    kind = here.sys / 'class/mdev_bus/mtty/mdev_supported_types/mtty-2'
    (kind / 'available_instances').write_text('0\n')
    (found,) = look(devices.instance(), request)
    assert found[3] == 'no more of type mtty-2 can be created'
    (found,) = look(devices.instance(), devices.mdev('mtty-9'))
    assert found[3].startswith("driver 'mdev' does not list mtty")


def test_what_is_plugged_already(here, look):
    instance, request = devices.instance(), devices.pci(devices.GPU)
    os_acc.plug(instance, [request])
    handle = f'pci/{devices.GPU}'

    def action(**kwargs):
        (found,) = look(instance, request, **kwargs)
        assert found[1:3] == (handle, [devices.GPU])
        return found[0], found[3]

    assert action() == ('nothing', None)
    here.write(str(here.pci / 'drivers/vfio-pci/unbind'), devices.GPU)
    assert action() == ('prepare again', None)
    assert 'the guest runs' in action(live=True)[1]
    here.boot()
    assert action() == ('prepare again', None)
    with pytest.raises(exception.InvalidRequest, match='unplug it first'):
        look(instance, request, plugin='libvirt')


def test_only_the_attachment_is_lost(here, look, monkeypatch):
    instance, request = devices.instance(), devices.pci(devices.GPU)
    os_acc.plug(instance, [request])
    monkeypatch.setattr('acc_plug_noop.NoopPlugin.is_intact', lambda *_: False)
    assert look(instance, request)[0][0] == 'attach again'

    def fail(*_):
        raise ValueError('no')

    monkeypatch.setattr('acc_plug_noop.NoopPlugin.is_intact', fail)
    assert look(instance, request)[0][3] == 'ValueError: no'


def test_what_is_half_done(here, look, run):
    instance, request = devices.instance(), devices.pci(devices.GPU)
    (van,) = os_acc.plug(instance, [request])
    van.state = states.UNPLUGGING
    os_acc._host.journal.save(van)
    assert look(instance, request)[0][0] == 'release, then plug'
    result = run('unplug', instance.uuid, '--dry-run')
    assert (result.code, result.err) == (
        0,
        f'Recovery would first look at instance {instance.uuid} (os-acc '
        'recover)\n',
    )


# --- the command


@pytest.fixture
def run(fake, capsys, monkeypatch):
    path = os_acc.CONF.os_acc.state_path
    return command.Command(path, capsys, monkeypatch)


def test_plug(run, tmp_path):
    run.state_path = tmp_path / 'none'
    arguments = ['web-1', '--resource-class', CLASS, '--dry-run']
    result = run.fine('plug', *arguments, '-f', 'json')
    (row,) = result.json
    assert (row['would'], row['driver'], row['plugin'], row['device']) == (
        'plug',
        'fake',
        'noop',
        'nic0 or nic1',
    )
    answer = run.fine('plug', *arguments, '--json').json
    assert answer['dry_run'] is True
    assert answer['vans'][0]['devices'] == ['nic0', 'nic1']
    assert answer['vans'][0]['van'] == row['uuid']
    assert not os.path.exists(run.state_path)


def test_an_obstacle(run):
    arguments = ['web-1', '--resource-class', CLASS, '--count', '4']
    result = run('plug', *arguments, '--dry-run', '-f', 'json')
    assert result.code == 1
    assert 'no device' in json.loads(result.out)[3]['obstacle']
    assert run('plug', *arguments, '--dry-run', '--json').code == 1


def test_fewer_than_the_instance_has(run):
    arguments = ['web-1', '--resource-class', CLASS]
    run.fine('plug', *arguments, '--count', '2', '-f', 'json')
    assert 'count is 1' in run.fails(2, 'plug', *arguments, '--dry-run')


def test_unplug(run):
    instance = 'web-1'
    none = run.fine('unplug', instance, '--dry-run')
    assert none.out == 'would release nothing\n'
    plugged = run.fine(
        'plug',
        *(instance, '--resource-class', CLASS, '--count', '2'),
        *('-f', 'json'),
    ).json
    # The drivers work side by side: either VAN may get the first function.
    assert {row['handle'] for row in plugged} == {
        f'pci/ffff:00:00.{place}' for place in range(2)
    }
    vans = [row['uuid'] for row in plugged]
    lines = run.fine('unplug', instance, '--dry-run').out.splitlines()
    assert lines == [
        f'would unplug VAN {row["uuid"]}: driver fake, plugin noop, device '
        f'{row["handle"]} of nic0, state plugged'
        for row in reversed(plugged)
    ]
    answer = run.fine(
        'unplug', instance, '--van', vans[0], '--dry-run', '--json'
    ).json
    assert [each['van'] for each in answer['vans']] == vans[:1]
    assert len(run.fine('van', 'list', '-f', 'json').json) == 2


def test_unplug_without_its_plugin(run):
    instance = 'web-1'
    run.fine('plug', instance, '--resource-class', CLASS, '-f', 'json')
    (van,) = os_acc.get_vans()
    van.plugin = 'gone'
    os_acc._host.journal.save(van)
    result = run('unplug', instance, '--dry-run')
    assert result.code == 1
    assert "; obstacle: Plugin 'gone' is unavailable" in result.out


# --- what the choice asks of a device that is free


def test_a_type_that_has_only_some_of_the_traits(here, tmp_path):
    """The device has the traits of all its types, a type only its own."""
    types = ['mtty-1', 'mtty-2']
    devices.spec(
        {
            'address': 'mtty',
            'mdev_types': types,
            'resource_class': 'CUSTOM_TTY',
        }
    )
    one, two = (f'CUSTOM_MDEV_MTTY_{n}' for n in (1, 2))
    assert {one, two} <= set(os_acc.get_devices()[0].traits)
    wanted = devices.wanted('CUSTOM_TTY', one, two)
    assert previews.agrees(tmp_path, [wanted]) is None
    assert previews.agrees(tmp_path, [devices.wanted('CUSTOM_TTY', two)])


@pytest.mark.parametrize('number', [1, 2])
def test_each_type_has_its_class(here, tmp_path, number):
    previews.check(tmp_path, devices.wanted(f'CUSTOM_MDEV_MTTY_{number}'))


def test_a_mediated_device_that_others_have_made(here, look):
    """A request without a handle gets a new one, and no other."""
    path = here.sys / 'class/mdev_bus/mtty/mdev_supported_types/mtty-2'
    os_acc.plug(devices.instance(), [devices.mdev('mtty-2')])
    (path / 'available_instances').write_text('0\n')
    wanted = devices.wanted('CUSTOM_MDEV_MTTY_2')
    (found,) = look(devices.instance(), wanted)
    assert found[3] is not None


def test_a_mediated_device_that_nova_has_to_make(here, look):
    os_acc.CONF.set_override('owner', 'external', 'os_acc_mdev')
    (found,) = look(devices.instance(), devices.mdev('mtty-2'))
    assert 'owner = external' in found[3]


def test_a_physical_network(here, tmp_path):
    """A VF is free, and is on another network than the port needs."""
    devices.spec(
        {
            'address': devices.PF,
            'num_vfs': 2,
            'resource_class': 'CUSTOM_VF',
            'physical_network': 'left',
        }
    )

    request = devices.pci(devices.VFS[0])
    request.handle.physical_network = 'right'
    (there,) = [d for d in os_acc.get_devices() if d.address == devices.PF]
    assert there.handles_free == 2
    assert previews.agrees(tmp_path, [request]) is None
    request.handle.physical_network = 'left'
    assert previews.agrees(tmp_path, [request])


def test_a_handle_that_another_request_names(fake, tmp_path):
    """No request gets by choice what another one of the plug names."""
    os_acc.CONF.set_override('devices', ['nic0:pci:1'], 'os_acc_fake')
    (device,) = [d for d in os_acc.get_devices() if d.address == 'nic0']
    named = objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), handle=device.handles[0].handle, driver='fake'
    )
    chosen = devices.wanted(CLASS)
    assert previews.agrees(tmp_path, [chosen, named]) is None


def test_a_function_for_a_device_that_takes_none(fake, tmp_path):
    request = devices.wanted(CLASS)
    request.function_id, request.driver = 'aes', 'fake'
    assert previews.agrees(tmp_path, [request]) is None


def test_a_function_that_exists_goes_before_a_vf(here):
    other = '0000:41:00.0'
    here.add_function(other, '8086:4940', 0x0B4000, 'qat')
    common = {'resource_class': 'CUSTOM_X'}
    devices.spec(
        {'address': devices.PF, 'num_vfs': 2, **common},
        {'address': other, **common},
    )
    wanted = devices.wanted('CUSTOM_X')
    (planned,) = preview.plug(os_acc._host, devices.instance(), [wanted])
    (van,) = os_acc.plug(devices.instance(), [wanted])
    assert planned.devices[0] == van.device == other
