# SPDX-License-Identifier: Apache-2.0

"""The compute driver of contrib/os-acc-nova, on a stand-in for Nova.

os-acc, its journal and the walk are real. The driver and plugin of os-acc
record their calls, and Nova is reduced to what nova_double has.
"""

from __future__ import annotations

import inspect
import logging
import sys
import types
import uuid

from lxml import etree
import nova_double
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.journal import desired

ALIAS = 'ua-acc-{}'


def _guest_config(van):
    if isinstance(van.handle, objects.TestHandle):
        return None
    device = etree.Element('hostdev', mode='subsystem')
    if isinstance(van.handle, objects.MdevHandle):
        etree.SubElement(device, 'address', uuid=van.handle.uuid)
    # What Nova's own classes for hostdevs lose.
    etree.SubElement(device, 'driver', iommufd='yes')
    etree.SubElement(device, 'rom', bar='off')
    etree.SubElement(device, 'alias', name=ALIAS.format(van.uuid))
    return etree.tostring(device, encoding='unicode')


class Site:
    """A host with Nova's stand-in and os-acc, and what happened there.

    :ivar log: the steps of Nova and of os-acc, in one order
    """

    def __init__(self, host, modules) -> None:
        self.host = host
        self.cyborg = modules.cyborg
        self.placement = modules.placement
        self.records = modules.records
        self.module = modules.driver
        self.log: list[str] = []
        self.driver = self.new_driver()
        self.driver.init_host('host-1')
        self.driver.process_instances_at_startup(None, [])
        self.log.clear()
        for step in ('prepareVAN', 'plug', 'unplug', 'unprepareVAN'):
            host.calls.on(step, lambda van, s=step: self.log.append(s))

    def new_driver(self):
        driver = self.module.LibvirtDriver(None)
        driver.log = self.log
        return driver

    def fails(self, step, error) -> None:
        self.host.calls.on(step, error)

    def spawn(self, instance, arqs=(), network_info=()):
        self.driver.spawn(
            None,
            instance,
            None,
            None,
            None,
            {},
            network_info=network_info,
            accel_info=list(arqs),
        )

    def hard_reboot(self, instance, arqs=(), network_info=()):
        self.driver.reboot(
            None, instance, network_info, 'HARD', accel_info=list(arqs)
        )

    def devices(self, instance) -> list[str]:
        xml = self.driver.domains[instance.uuid].xml
        return [
            etree.tostring(device, encoding='unicode')
            for device in etree.fromstring(xml).find('devices')
        ]


@pytest.fixture
def site(host, monkeypatch, tmp_path):
    host.plugin.takes = ('TestHandle', 'PCIHandle', 'MdevHandle')
    plug = host.plugin.plug

    def plug_xml(van, instance_info, live) -> None:
        plug(van, instance_info, live)
        van.guest_config = _guest_config(van)

    monkeypatch.setattr(host.plugin, 'plug', plug_xml)
    modules = nova_double.install(monkeypatch, tmp_path / 'nova')
    modules.cyborg.profiles['crypto'] = [{'resources:FPGA': '1'}]
    yield Site(host, modules)
    nova_double.uninstall()
    for name in ('host', 'state_path'):
        os_acc.CONF.clear_default(name, 'os_acc')


@pytest.fixture
def instance():
    return new_instance()


def new_instance():
    return types.SimpleNamespace(
        uuid=str(uuid.uuid4()),
        name='instance-1',
        display_name='web-1',
        project_id='project',
        image_ref=None,
        image_meta=types.SimpleNamespace(properties={}),
        task_state=None,
        flavor=types.SimpleNamespace(
            extra_specs={'accel:device_profile': 'crypto'}
        ),
    )


def pci(instance, bus='3b', function=1, **values):
    return {
        'uuid': str(uuid.uuid4()),
        'state': 'Bound',
        'device_profile_name': 'crypto',
        'device_profile_group_id': 0,
        'hostname': 'node-1',
        'device_rp_uuid': str(uuid.uuid4()),
        'instance_uuid': instance.uuid,
        'attach_handle_uuid': str(uuid.uuid4()),
        'attach_handle_type': 'PCI',
        'attach_handle_info': {
            'domain': '0',
            'bus': bus,
            'device': '2',
            'function': str(function),
        },
        **values,
    }


def mdev(instance, function=0):
    arq = pci(instance, '41', function, attach_handle_type='MDEV')
    arq['attach_handle_info']['asked_type'] = 'nvidia-63'
    return arq


def configs(instance) -> list[str]:
    return [van.guest_config for van in os_acc.get_vans(instance.uuid)]


def test_nova_finds_the_driver_below_nova_virt(site):
    shim = sys.modules['nova.virt.os_acc']
    assert shim.LibvirtDriver is site.module.LibvirtDriver


def test_a_guest_starts_with_its_devices_as_os_acc_made_them(site, instance):
    arqs = [pci(instance), mdev(instance)]
    site.spawn(instance, arqs)
    assert site.devices(instance) == configs(instance)
    for device, arq in zip(site.devices(instance), arqs, strict=True):
        assert 'iommufd="yes"' in device
        assert 'bar="off"' in device
        assert ALIAS.format(arq['uuid']) in device


def test_the_image_is_made_before_a_device_is_programmed(site, instance):
    site.spawn(instance, [pci(instance)])
    assert site.log == [
        'create image',
        'prepareVAN',
        'plug',
        'guest config',
        'launch',
        'after boot',
    ]


def test_an_instance_without_accelerators_is_left_alone(site, instance):
    site.spawn(instance)
    site.hard_reboot(instance)
    site.driver.destroy(None, instance, [])
    assert not {'prepareVAN', 'unprepareVAN'} & set(site.log)


def test_the_function_comes_from_the_device_profile(site, instance):
    site.host.driver.programs = True
    site.cyborg.profiles['crypto'] = [{'accel:function_id': 'aes'}]
    site.host.calls.on(
        'prepareVAN', lambda van: setattr(van, 'function_id', 'aes')
    )
    site.spawn(instance, [pci(instance)])
    (entry,) = os_acc._host.journal.entries(instance.uuid)
    assert entry.request.function_id == 'aes'


def test_cyborg_programs_if_os_acc_must_not(site, instance):
    site.cyborg.profiles['crypto'] = [{'accel:function_id': 'aes'}]
    os_acc.CONF.set_override('program', False, 'os_acc_nova')
    site.spawn(instance, [pci(instance)])
    (entry,) = os_acc._host.journal.entries(instance.uuid)
    assert entry.request.function_id is None


def test_what_a_failed_spawn_plugged_is_unplugged(site, instance):
    site.driver.fail_at = 'launch'
    with pytest.raises(RuntimeError, match='no'):
        site.spawn(instance, [pci(instance)])
    assert configs(instance) == []
    assert site.log[-1] == 'unprepareVAN'


def test_a_guest_that_runs_keeps_its_devices_if_spawn_fails(site, instance):
    site.driver.fail_at = 'after boot'
    with pytest.raises(RuntimeError, match='no'):
        site.spawn(instance, [pci(instance)])
    assert configs(instance) == site.devices(instance)


def test_a_failed_unplug_does_not_hide_why_the_spawn_failed(
    site, instance, caplog
):
    site.driver.fail_at = 'launch'
    site.fails('unprepareVAN', exception.DeviceBusy(device='d', holder='x'))
    with pytest.raises(RuntimeError, match='no'):
        site.spawn(instance, [pci(instance)])
    assert 'x has it' in caplog.text
    assert instance.uuid in caplog.text


@pytest.mark.parametrize(
    'error',
    [
        exception.DeviceBusy(device='0000:3b:02.1', holder='VAN 1'),
        exception.DeviceNotFound(wanted='0000:3b:02.1', reason='gone'),
        exception.DeviceError(device='0000:3b:02.1', reason='died'),
    ],
)
def test_another_host_is_tried_if_the_device_is_at_fault(
    site, instance, error
):
    site.fails('prepareVAN', error)
    with pytest.raises(nova_double.NovaException) as caught:
        site.spawn(instance, [pci(instance)])
    # Nova schedules again after any error except BuildAbortException.
    assert not isinstance(caught.value, nova_double.BuildAbortException)
    assert caught.value.code == 500
    # Nova cuts the text at 255 characters.
    assert str(error) in str(caught.value)[:255]
    assert isinstance(caught.value.__cause__, exception.PlugException)
    assert instance.uuid not in site.driver.domains


def test_another_host_is_tried_if_this_one_lacks_a_driver(site, instance):
    site.host.driver.claims = False
    with pytest.raises(nova_double.NovaException, match='No driver') as got:
        site.spawn(instance, [pci(instance)])
    assert not isinstance(got.value, nova_double.BuildAbortException)


def test_no_other_host_is_tried_if_the_request_is_invalid(site, instance):
    arq = pci(instance)
    arq['attach_handle_info']['bus'] = 'zz'
    with pytest.raises(
        nova_double.BuildAbortException, match=r'attach_handle_info\.bus'
    ):
        site.spawn(instance, [arq])
    site.fails(
        'prepareVAN',
        exception.InvalidRequest(
            subject='request', field='traits', value=1, expected='others'
        ),
    )
    with pytest.raises(nova_double.BuildAbortException, match='traits'):
        site.spawn(instance, [pci(instance)])


def test_another_host_is_tried_if_the_binding_failed(site, instance):
    arq = pci(instance, state='BindFailed')
    with pytest.raises(nova_double.NovaException, match='BindFailed') as got:
        site.spawn(instance, [arq])
    assert not isinstance(got.value, nova_double.BuildAbortException)
    assert instance.uuid not in site.driver.domains


def test_a_hard_reboot_is_never_aborted_as_a_build(site, instance):
    arq = pci(instance)
    arq['attach_handle_info']['bus'] = 'zz'
    site.spawn(instance)
    with pytest.raises(nova_double.NovaException, match='bus') as caught:
        site.hard_reboot(instance, [arq])
    assert not isinstance(caught.value, nova_double.BuildAbortException)


def test_a_hard_reboot_unplugs_nothing(site, instance):
    arqs = [pci(instance), mdev(instance)]
    site.spawn(instance, arqs)
    before = site.devices(instance)
    site.log.clear()
    site.hard_reboot(instance, arqs)
    assert site.devices(instance) == before
    assert site.log == ['destroy', 'cleanup', 'guest config', 'launch']


def test_a_hard_reboot_plugs_when_the_old_domain_is_gone(site, instance):
    site.spawn(instance)
    site.log.clear()
    site.hard_reboot(instance, [pci(instance)])
    assert site.log.index('cleanup') < site.log.index('prepareVAN')
    assert site.log.index('prepareVAN') < site.log.index('launch')


def test_a_failed_hard_reboot_unplugs_nothing(site, instance):
    arqs = [pci(instance)]
    site.spawn(instance, arqs)
    site.driver.fail_at = 'launch'
    with pytest.raises(RuntimeError):
        site.hard_reboot(instance, arqs)
    assert 'unprepareVAN' not in site.log
    site.driver.fail_at = None
    site.hard_reboot(instance, arqs)
    assert site.devices(instance) == configs(instance)


def test_a_delete_during_a_hard_reboot_unplugs(site, instance):
    other = new_instance()
    site.spawn(instance, arqs := [pci(instance)])
    site.spawn(other, [pci(other, '3c')])
    do = site.driver._do

    def delete_other(step) -> None:
        do(step)
        if step == 'guest config':
            site.driver._do = do
            site.driver.destroy(None, other, [])

    site.driver._do = delete_other
    site.hard_reboot(instance, arqs)
    assert configs(other) == []
    assert configs(instance) == site.devices(instance)


def without_token():
    """The context in which nova-compute repeats a delete when it starts."""
    return types.SimpleNamespace(auth_token=None, user_auth_plugin=None)


def test_a_repeated_delete_deletes_the_arqs(site, instance):
    site.spawn(instance, arqs := [pci(instance)])
    site.cyborg.arqs[instance.uuid] = arqs
    instance.task_state = 'deleting'
    site.driver.destroy(without_token(), instance, [])
    assert configs(instance) == []
    assert site.cyborg.arqs == {}


@pytest.mark.parametrize(
    ('state', 'token', 'profile'),
    [
        # The ARQs of an evacuated instance belong to its new host.
        ('rebuilding', None, 'crypto'),
        (None, None, 'crypto'),
        # Nova deletes them itself.
        ('deleting', 'token of the user', 'crypto'),
        ('deleting', None, None),
    ],
)
def test_the_arqs_of_other_instances_stay(
    site, instance, state, token, profile
):
    site.spawn(instance, arqs := [pci(instance)])
    site.cyborg.arqs[instance.uuid] = arqs
    instance.task_state = state
    instance.flavor.extra_specs['accel:device_profile'] = profile
    context = without_token()
    context.auth_token = token
    site.driver.destroy(context, instance, [])
    assert site.cyborg.arqs == {instance.uuid: arqs}


def test_arqs_that_cannot_be_deleted_do_not_stop_a_delete(
    site, instance, caplog
):
    site.spawn(instance, [pci(instance)])
    instance.task_state = 'deleting'
    site.driver.destroy(without_token(), instance, [])
    assert configs(instance) == []
    assert f'[instance: {instance.uuid}] its ARQs were not' in caplog.text
    assert '[service_user]' in caplog.text


def test_power_on_plugs_like_a_hard_reboot(site, instance):
    site.spawn(instance, arqs := [pci(instance)])
    site.driver.power_on(None, instance, [], accel_info=arqs)
    assert site.devices(instance) == configs(instance)
    assert len(configs(instance)) == 1


def test_a_changed_device_profile_does_not_stop_a_reboot(site, instance):
    site.spawn(instance, arqs := [pci(instance)])
    site.cyborg.profiles.clear()
    site.hard_reboot(instance, arqs)
    assert site.devices(instance) == configs(instance)


def test_a_guest_from_before_os_acc_is_adopted(site, instance):
    arq = mdev(instance)
    site.spawn(instance)
    domain = site.driver.domains[instance.uuid]
    own = str(uuid.uuid4())
    domain.xml = (
        '<domain><devices>'
        f'<hostdev><address uuid="{arq["attach_handle_uuid"]}"/></hostdev>'
        f'<hostdev><address uuid="{own}"/></hostdev>'
        '</devices></domain>'
    )
    site.hard_reboot(instance, [arq])
    nova_s, ours = site.devices(instance)
    assert own in nova_s
    assert [ours] == configs(instance)


def test_after_a_boot_of_the_host_the_journal_has_the_devices(site, instance):
    site.spawn(instance, [pci(instance), mdev(instance)])
    before = site.devices(instance)
    site.host.restart()
    site.driver = site.new_driver()
    site.driver.init_host('host-1')
    site.driver.process_instances_at_startup(None, [instance])
    site.driver.resume_state_on_host_boot(None, instance, [], None)
    assert site.devices(instance) == before


def test_a_rescued_guest_keeps_its_devices(site, instance):
    site.spawn(instance, [pci(instance), mdev(instance)])
    before = site.devices(instance)
    site.log.clear()
    site.driver.rescue(None, instance, [], None, None, None, None)
    assert site.devices(instance) == before
    site.driver.unrescue(None, instance)
    assert site.devices(instance) == before
    assert not {'prepareVAN', 'plug', 'unprepareVAN'} & set(site.log)


def test_the_devices_are_released_last(site, instance):
    site.spawn(instance, [pci(instance)])
    site.log.clear()
    site.driver.destroy(None, instance, [])
    assert site.log == ['destroy', 'cleanup', 'unplug', 'unprepareVAN']
    assert configs(instance) == []


def test_a_failed_release_is_told_and_tried_again(site, instance):
    site.spawn(instance, [pci(instance)])
    site.fails('unprepareVAN', exception.DeviceBusy(device='d', holder='QEMU'))
    with pytest.raises(nova_double.NovaException, match='QEMU has it'):
        site.driver.destroy(None, instance, [])
    site.host.calls.hooks.clear()
    site.driver.destroy(None, instance, [])
    assert configs(instance) == []


def test_a_failed_release_does_not_keep_nova_compute_from_starting(
    site, instance, caplog
):
    """Nova destroys evacuated instances while it starts."""
    site.spawn(instance, [pci(instance)])
    site.fails('unprepareVAN', exception.DeviceBusy(device='d', holder='QEMU'))
    starting = site.new_driver()
    starting.init_host('host-1')
    starting.destroy(None, instance, [])
    starting.process_instances_at_startup(None, [])
    assert 'QEMU has it' in caplog.text
    with pytest.raises(nova_double.NovaException, match='QEMU has it'):
        starting.destroy(None, instance, [])


def test_vans_of_lost_instances_are_released_at_the_start(
    site, instance, caplog
):
    in_database, in_hypervisor, lost = instance, new_instance(), new_instance()
    for bus, each in enumerate((in_database, in_hypervisor, lost), 0x10):
        site.spawn(each, [pci(each, f'{bus:x}')])
    starting = site.new_driver()
    starting.domains = {in_hypervisor.uuid: site.driver.domains[lost.uuid]}
    starting.init_host('host-1')
    with caplog.at_level(logging.WARNING):
        found = starting.process_instances_at_startup(None, [in_database])
    assert found == [in_database]
    left = {van.instance_uuid for van in os_acc.get_vans()}
    assert left == {in_database.uuid, in_hypervisor.uuid}
    assert lost.uuid in caplog.text


def test_the_periodic_task_finishes_a_document_of_apply(site):
    """Somebody was in the way of it, or the command was interrupted."""
    journal = os_acc._host.journal
    journal.save_desired(desired.Desired('{"version": 1}'))
    site.driver.get_available_resource('node-1')
    assert journal.desired().settled is not None
    assert site.log == ['get_available_resource']


def test_mdevs_of_os_acc_are_no_mdevs_of_nova(site, instance):
    arq = mdev(instance)
    own = str(uuid.uuid4())
    site.driver.own_mdevs = [own]
    site.spawn(instance, [arq])
    ours = arq['attach_handle_uuid']
    assigned = site.driver._get_all_assigned_mediated_devices
    assert assigned(instance) == {own: instance.uuid}
    assert assigned() == {own: instance.uuid, ours: instance.uuid}
    site.hard_reboot(instance, [arq])
    assert assigned(instance) == {own: instance.uuid}
    assert len(site.devices(instance)) == 2
    # Without a domain, the mdev is not free either.
    site.driver.domains.clear()
    free = site.driver._get_existing_mdevs_not_assigned([own, ours])
    assert free == {own}


def test_nova_warns_of_a_gpu_that_both_manage(site, instance):
    arq = mdev(instance)
    site.spawn(instance, [pci(instance), arq])
    assert site.driver.warned == [arq['attach_handle_info']]


def test_the_vif_is_the_device_of_a_network_port(site, instance):
    arq = pci(instance)
    other = pci(instance, '3c')
    site.cyborg.arqs[instance.uuid] = [arq, other]
    vifs = [
        {'id': str(uuid.uuid4()), 'profile': {'arq_uuid': arq['uuid']}},
        {'id': str(uuid.uuid4()), 'profile': None},
        {'id': str(uuid.uuid4())},
    ]
    tags = ['interface', 'interface', 'interface', 'hostdev']
    # Nova gives the ARQs of ports in a hard reboot, and not in a create.
    for run, arqs in (
        (site.spawn, [other]),
        (site.hard_reboot, [other, arq]),
        (site.hard_reboot, []),
    ):
        run(instance, arqs, vifs)
        found = [etree.fromstring(each).tag for each in site.devices(instance)]
        assert found == tags
        assert len(configs(instance)) == 2
        (entry,) = [
            entry
            for entry in os_acc._host.journal.entries(instance.uuid)
            if entry.van.uuid == arq['uuid']
        ]
        assert entry.request.port_uuid == vifs[0]['id']


def test_what_an_earlier_stay_left_is_no_part_of_a_new_guest(site, instance):
    site.spawn(instance, [pci(instance)])
    site.driver.domains.clear()
    arq = pci(instance, '3c')
    site.spawn(instance, [arq])
    (device,) = site.devices(instance)
    assert ALIAS.format(arq['uuid']) in device
    site.driver.destroy(None, instance, [])
    assert configs(instance) == []


def test_the_defaults_are_those_of_nova(site, tmp_path):
    os_acc.CONF.clear_override('state_path', 'os_acc')
    assert os_acc.CONF.os_acc.state_path == str(tmp_path / 'nova' / 'os-acc')
    assert os_acc.CONF.os_acc.host == 'node-1'
    os_acc.CONF.set_override('state_path', '/srv/os-acc', 'os_acc')
    site.new_driver().init_host('host-1')
    assert os_acc.CONF.os_acc.state_path == '/srv/os-acc'


def test_an_invalid_option_is_an_invalid_configuration(site, monkeypatch):
    monkeypatch.setattr(os_acc, '_host', None)
    os_acc.CONF.set_override('state_path', 'relative', 'os_acc')
    with pytest.raises(nova_double.InvalidConfiguration, match='state_path'):
        site.new_driver().init_host('host-1')


def _without_method(cls):
    cls._get_all_assigned_mediated_devices = None


def _with_another_argument(cls):
    def cleanup(
        self,
        context,
        instance,
        network_info,
        block_device_info=None,
        destroy_disks=True,
        migrate_data=None,
        destroy_vifs=True,
        destroy_secrets=True,
        keep=False,
    ):
        pass

    cls.cleanup = cleanup


def _with_the_config_before_destroy(cls):
    def _hard_reboot(
        self,
        context,
        instance,
        network_info,
        share_info,
        block_device_info=None,
        accel_info=None,
    ):
        self._get_all_assigned_mediated_devices(instance)
        self._get_guest_xml()
        self.destroy()
        self._create_guest_with_network()

    cls._hard_reboot = _hard_reboot


def _with_a_revert_that_asks_for_no_config(cls):
    def finish_revert_migration(
        self,
        context,
        instance,
        network_info,
        migration,
        block_device_info=None,
        power_on=True,
        share_info=None,
    ):
        self._create_guest_with_network()

    cls.finish_revert_migration = finish_revert_migration


def _without_cleanup(cls):
    def destroy(self):
        self._destroy()

    cls.destroy = destroy


@pytest.mark.parametrize(
    ('change', 'text'),
    [
        (
            _without_method,
            'has no method _get_all_assigned_mediated_devices',
        ),
        (_with_another_argument, r'cleanup takes \(.*, keep\), expected'),
        (
            _with_the_config_before_destroy,
            '_hard_reboot uses _get_all_assigned_mediated_devices, '
            '_get_guest_xml, destroy',
        ),
        (
            _with_a_revert_that_asks_for_no_config,
            'finish_revert_migration uses _create_guest_with_network of ',
        ),
        (_without_cleanup, 'destroy uses _destroy of _destroy, cleanup'),
    ],
)
def test_another_nova_is_refused(site, change, text):
    compatibility = sys.modules['os_acc_nova.compatibility']

    class Another(nova_double.LibvirtDriver):
        pass

    compatibility.check(Another)
    change(Another)
    # Nova logs an ImportError, and nova-compute ends.
    with pytest.raises(ImportError, match=text):
        compatibility.check(Another)


def test_what_is_checked_is_what_the_driver_uses(site):
    """A method that is overridden or called is in the list of the check."""
    compatibility = sys.modules['os_acc_nova.compatibility']
    base = nova_double.LibvirtDriver
    own = site.module.LibvirtDriver
    own = {**vars(own.__base__), **vars(own)}
    used = set()
    for name, method in own.items():
        if not inspect.isfunction(method):
            continue
        if hasattr(base, name):
            used.add(name)
        used |= {n for n in method.__code__.co_names if hasattr(base, n)}
    assert used - set(dir(object)) <= set(compatibility.METHODS)
    for name in used & set(own) - {'__init__'}:
        expected = ('self', *compatibility.METHODS[name])
        assert tuple(inspect.signature(own[name]).parameters) == expected
