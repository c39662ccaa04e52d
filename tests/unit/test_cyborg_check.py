# SPDX-License-Identifier: Apache-2.0

"""os-acc cyborg check: the rows, the exit codes, and --fix."""

from __future__ import annotations

import json
import os
import pathlib
import uuid

import cloud_double
import command
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.attach import plug
from os_acc.attach import release
from os_acc.cyborg import check
from os_acc.cyborg import differences
from os_acc.cyborg import names
from os_acc.cyborg import providers
from os_acc.operations import orphans

ROOT = pathlib.Path(__file__).parents[2]
ADDRESSES = ['0000:01:00.0', '0000:02:00.0', '0000:03:00.0']
NOTE = 'Placement was not compared'


@pytest.fixture
def cloud(clean, tmp_path, monkeypatch):
    for name in [n for n in os.environ if n.startswith('OS_')]:
        monkeypatch.delenv(name)
    with cloud_double.serving() as server:
        file = server.clouds_yaml(tmp_path)
        monkeypatch.setenv('OS_CLIENT_CONFIG_FILE', str(file))
        monkeypatch.setenv('OS_CLOUD', cloud_double.CLOUD)
        yield server


class Site:
    """A host with three PCI functions, and the cloud that it is in."""

    def __init__(self, host, cloud, run):
        self.host, self.cloud, self.run = host, cloud, run
        self.devices = {a: self.device(a) for a in ADDRESSES}
        host.driver.get_devices = self.get_devices
        self.guest: bool | None = False
        host.plugin.has_guest = lambda info: self.guest
        cloud.deployables = [
            {
                'driver_name': names.DRIVER,
                'name': names.deployable('vm', address),
            }
            for address in ADDRESSES
        ]
        cloud.devices = [
            {
                'hostname': 'vm',
                'vendor_board_info': json.dumps({'address': address}),
            }
            for address in ADDRESSES
        ]
        for address in ADDRESSES:
            name = names.deployable('vm', address)
            cloud.providers[names.provider_uuid(name)] = {
                'name': name,
                'inventories': {'CUSTOM_CARD': 1},
                'traits': ['CUSTOM_FAST'],
            }

    @staticmethod
    def device(address, **values):
        return objects.Device(
            **{
                'address': address,
                'driver': 'recording',
                'resource_class': 'CUSTOM_CARD',
                'traits': ['CUSTOM_FAST'],
                'handles_total': 1,
                'handles_free': 1,
                'handles': [
                    objects.DeviceHandleInfo(
                        handle=objects.PCIHandle(address=address)
                    )
                ],
                **values,
            }
        )

    def get_devices(self):
        vans = {v.handle.address: v.uuid for v in os_acc_vans(self.run)}
        found = []
        for address, device in self.devices.items():
            (handle,) = device.handles
            handle.holder = vans.get(address)
            handle.state = 'used' if handle.holder else 'free'
            device.handles_free = int(handle.state == 'free')
            found.append(device)
        return found

    def provider(self, address):
        name = names.deployable('vm', address)
        return self.cloud.providers[names.provider_uuid(name)]

    def arq(self, address=ADDRESSES[0], **values):
        made = cloud_double.arq(
            address=address,
            attach_handle_type='PCI',
            device_rp_uuid=names.provider_uuid(
                names.deployable('vm', address)
            ),
            **values,
        )
        self.cloud.arqs.append(made)
        return made

    def plugged(self, address=ADDRESSES[0], **values):
        arq = self.arq(address, **values)
        (request,) = objects.AcceleratorRequest.from_arqs([arq])
        os_acc.plug(objects.InstanceInfo(uuid=arq['instance_uuid']), [request])
        return arq

    def check(self, code, *arguments):
        result = self.run('cyborg', 'check', '-f', 'json', *arguments)
        assert result.code == code, result
        return result.json

    def one(self, code, *arguments):
        (row,) = self.check(code, *arguments)
        return row


def os_acc_vans(run):
    from os_acc import journal

    opened = journal.Journal(str(run.state_path), 5, read_only=True)
    try:
        return opened.vans()
    finally:
        opened.close()


@pytest.fixture
def site(host, cloud, tmp_path, capsys, monkeypatch):
    os_acc.CONF.set_override('host', 'vm', 'os_acc')
    run = command.Command(tmp_path / 'state', capsys, monkeypatch)
    return Site(host, cloud, run)


def test_nothing_differs(site):
    site.plugged()
    site.arq(ADDRESSES[1])
    site.arq(ADDRESSES[2], hostname='node-9')
    assert site.run.fine('cyborg', 'check', '-f', 'json').json == []
    assert site.run.fine('cyborg', 'check').out == '(none)\n'


def test_the_columns(site):
    arq = site.plugged()
    site.cloud.arqs.clear()
    row = site.one(3)
    assert row == {
        'problem': 'arq-gone',
        'van_uuid': arq['uuid'],
        'arq_uuid': arq['uuid'],
        'instance_uuid': arq['instance_uuid'],
        'device': f'pci/{ADDRESSES[0]}',
        'details': 'The VAN is plugged, but its ARQ no longer exists',
        'to_do': 'If the instance no longer needs it: os-acc unplug '
        f'{arq["instance_uuid"]} --van {arq["uuid"]}',
        'result': None,
    }
    assert 'arq-gone' in site.run('cyborg', 'check').out
    assert site.host.states() == {arq['uuid']: 'plugged'}


def test_a_handle_that_is_bound_anew(site):
    old = site.plugged()
    site.cloud.arqs.clear()
    new = site.arq()
    row = site.one(3)
    assert (row['problem'], row['van_uuid'], row['arq_uuid']) == (
        'handle-rebound',
        old['uuid'],
        new['uuid'],
    )
    assert new['instance_uuid'] in row['details']


def test_a_device_that_is_gone(site):
    arq = site.plugged()
    del site.devices[ADDRESSES[0]]
    row = site.one(3)
    assert (row['problem'], row['arq_uuid']) == ('handle-gone', arq['uuid'])


def test_an_arq_of_another_host(site):
    arq = site.plugged()
    arq['hostname'] = 'node-9'
    row = site.one(3)
    assert (row['problem'], row['van_uuid']) == ('other-host', arq['uuid'])
    assert 'node-9' in row['details']


def test_selectors_are_left_alone(site):
    request = objects.AcceleratorRequest(
        uuid=uuid.uuid4(), handle=objects.PCIHandle(address=ADDRESSES[0])
    )
    os_acc.plug(site.host.instance(), [request])
    # The agent does not report what a selector has, so it has no provider.
    row = site.one(3, '--fix', '--minimum-age', '0')
    name = names.deployable('vm', ADDRESSES[0])
    assert (row['problem'], row['device']) == ('provider-stale', name)
    assert '1 CUSTOM_CARD' in row['details']
    assert row['van_uuid'] is None
    del site.cloud.providers[names.provider_uuid(name)]
    assert site.check(0, '--fix', '--minimum-age', '0') == []
    assert site.host.states() == {request.uuid: 'plugged'}


def test_drivers_that_fail(site):
    def fail():
        raise RuntimeError('the bus is gone')

    site.plugged()
    site.host.driver.get_devices = fail
    result = site.run('cyborg', 'check', '-f', 'json')
    assert result.code == 3
    (row,) = result.json
    assert row['problem'] == 'discovery-failed'
    assert 'the bus is gone' in row['details']
    assert NOTE in result.err


def test_a_row_that_is_unreadable(site, monkeypatch):
    from os_acc.journal import codec

    arq = site.plugged()
    site.cloud.arqs.clear()
    site.cloud.deployables.clear()

    def fail(row):
        raise ValueError('newer')

    monkeypatch.setattr(codec, 'to_entry', fail)
    result = site.run('cyborg', 'check', '-f', 'json')
    assert (result.code, result.json) == (0, [])
    assert f'VAN {arq["uuid"]}' in result.err and 'newer' in result.err


def test_a_van_that_comes_and_goes_meanwhile(site):
    """It is plugged after the ARQs were read, or unplugged before."""
    gone = site.plugged()
    site.cloud.arqs.clear()

    service = os_acc._host
    new = cloud_double.arq(address=ADDRESSES[1], attach_handle_type='PCI')

    def hook(path):
        if path.endswith('/accelerator_requests'):
            info = objects.InstanceInfo(uuid=gone['instance_uuid'])
            release.unplug(service, info)
            info = objects.InstanceInfo(uuid=new['instance_uuid'])
            wanted = objects.AcceleratorRequest.from_arqs([new])
            plug.plug(service, info, wanted, False, None)

    site.cloud.hook = hook
    assert site.check(0) == []
    assert site.host.states() == {new['uuid']: 'plugged'}


class TestCannotList:
    def test_the_arq_is_named(self, site):
        arq, fine = site.plugged(), site.plugged(ADDRESSES[1])
        gone = site.plugged(ADDRESSES[2])
        site.cloud.arqs.pop()
        site.cloud.broken = arq['uuid']
        result = site.run('cyborg', 'check', '-f', 'json')
        assert result.code == 3
        rows = {row['arq_uuid']: row for row in result.json}
        assert rows.keys() == {arq['uuid'], gone['uuid']}
        assert rows[gone['uuid']]['problem'] == 'arq-gone'
        row = rows[arq['uuid']]
        assert row['problem'] == 'cyborg-cannot-list'
        assert row['instance_uuid'] == arq['instance_uuid']
        assert row['device'] == f'pci/{ADDRESSES[0]}'
        assert 'attach_handles, id 7' in row['details']
        assert 'With Cyborg' in row['to_do']
        assert NOTE in result.err and 'one by one' in result.err
        assert fine['uuid'] not in rows

    def test_each_row_names_its_own_attach_handle(self, site):
        """The answer to the list names the first one only."""
        first, second = site.plugged(), site.plugged(ADDRESSES[1])
        site.cloud.broken = first['uuid']
        site.cloud.broken_too[second['uuid']] = 8
        rows = {row['arq_uuid']: row['details'] for row in site.check(3)}
        assert 'attach_handles, id 7' in rows[first['uuid']]
        assert 'attach_handles, id 8' in rows[second['uuid']]

    def test_an_arq_of_another_host(self, site):
        site.plugged()
        site.cloud.broken = str(uuid.uuid4())
        row = site.one(3)
        assert (row['problem'], row['arq_uuid']) == (
            'cyborg-cannot-list',
            None,
        )

    def test_nothing_is_released(self, site):
        arq = site.plugged()
        site.cloud.arqs.clear()
        site.cloud.broken = str(uuid.uuid4())
        rows = site.check(3, '--fix', '--minimum-age', '0')
        results = {row['problem']: row['result'] for row in rows}
        assert results == {
            'cyborg-cannot-list': 'not fixed: an operator must decide',
            'arq-gone': 'not fixed: Cyborg cannot list the ARQs of the '
            'instance',
        }
        assert site.host.states() == {arq['uuid']: 'plugged'}


class TestPlacement:
    def test_no_provider(self, site):
        name = names.deployable('vm', ADDRESSES[1])
        del site.cloud.providers[names.provider_uuid(name)]
        row = site.one(3)
        assert (row['problem'], row['device']) == ('provider-missing', name)
        assert names.provider_uuid(name) in row['details']
        assert '1 CUSTOM_CARD' in row['details']

    @pytest.mark.parametrize(
        ('inventories', 'text'),
        [
            ({'CUSTOM_CARD': 2}, '2 CUSTOM_CARD; expected 1 CUSTOM_CARD'),
            ({'CUSTOM_OLD': 1}, '1 CUSTOM_OLD; expected 1 CUSTOM_CARD'),
            ({}, 'empty; expected 1 CUSTOM_CARD'),
        ],
    )
    def test_another_inventory(self, site, inventories, text):
        site.provider(ADDRESSES[1])['inventories'] = inventories
        row = site.one(3)
        assert row['problem'] == 'inventory'
        assert text in row['details']

    def test_other_traits(self, site):
        site.provider(ADDRESSES[1])['traits'] = ['CUSTOM_B', 'CUSTOM_A']
        row = site.one(3)
        assert row['problem'] == 'traits'
        assert (
            'lacks CUSTOM_FAST and has also CUSTOM_A, CUSTOM_B'
            in (row['details'])
        )

    def test_the_function_has_a_trait(self, site):
        site.devices[ADDRESSES[1]].function_id = 'aes'
        row = site.one(3)
        assert f'lacks {names.function_trait("aes")}' in row['details']
        site.provider(ADDRESSES[1])['traits'] += [names.function_trait('aes')]
        assert site.check(0) == []

    def test_a_bound_handle_that_is_gone_still_counts(self, site):
        """The agent keeps it in its report."""
        arq = site.arq()
        other = '0000:09:00.0'
        arq['device_rp_uuid'] = names.provider_uuid(
            names.deployable('vm', ADDRESSES[1])
        )
        arq['attach_handle_info']['bus'] = '09'
        site.provider(ADDRESSES[1])['inventories'] = {'CUSTOM_CARD': 2}
        row = site.one(3)
        assert (row['problem'], row['device']) == (
            'handle-gone',
            f'pci/{other}',
        )

    @pytest.mark.parametrize('driver', ['intel_fpga_driver', None])
    def test_providers_of_other_drivers_are_not_compared(self, site, driver):
        site.cloud.providers.clear()
        for each in site.cloud.deployables:
            each['driver_name'] = driver
        result = site.run('cyborg', 'check', '-f', 'json')
        assert (result.code, result.json) == (0, [])
        assert result.err.count('\n') == 1
        assert NOTE in result.err and 'host vm' in result.err

    def test_an_agent_with_another_name_of_the_host(self, site):
        """Cyborg has devices by the one name, deployables by the other."""
        os_acc.CONF.set_override('host', 'short', 'os_acc_placement')
        for each in site.cloud.deployables:
            each['name'] = 'short' + each['name'].removeprefix('vm')
        providers = list(site.cloud.providers.values())
        site.cloud.providers.clear()
        for each in providers:
            each['name'] = 'short' + each['name'].removeprefix('vm')
            uuid = names.provider_uuid(each['name'])
            site.cloud.providers[uuid] = each
        result = site.run.fine('cyborg', 'check', '-f', 'json')
        assert (result.json, result.err) == ([], '')
        providers[0]['traits'] = []
        row = site.one(3)
        assert (row['problem'], row['device']) == (
            'traits',
            names.deployable('short', ADDRESSES[0]),
        )

    def test_a_host_with_a_longer_name(self, site):
        """The deployables of host vm_2 begin with vm_ too."""
        for each in site.cloud.devices:
            each['hostname'] = 'vm_2'
        for each in site.cloud.deployables:
            each['name'] = 'vm_2' + each['name'].removeprefix('vm')
        site.cloud.providers.clear()
        assert NOTE in site.run('cyborg', 'check').err

    def test_what_is_not_reported_any_more(self, site):
        del site.devices[ADDRESSES[2]]
        row = site.one(3)
        name = names.deployable('vm', ADDRESSES[2])
        assert (row['problem'], row['device']) == ('provider-stale', name)
        # What is bound stays in the agent's report.
        arq = site.arq(ADDRESSES[2])
        row = site.one(3)
        assert (row['problem'], row['arq_uuid']) == (
            'handle-gone',
            arq['uuid'],
        )

    def test_placement_that_refuses(self, site):
        name = names.deployable('vm', ADDRESSES[0])
        path = f'/placement/resource_providers/{names.provider_uuid(name)}'
        site.cloud.failures[f'{path}/inventories'] = 403
        assert '403' in site.run.fails(1, 'cyborg', 'check')


class TestFix:
    def fix(self, site, code):
        return site.one(code, '--fix', '--minimum-age', '0')

    def test_what_is_gone_is_released(self, site):
        arq = site.plugged()
        site.cloud.arqs.clear()
        row = self.fix(site, 0)
        assert (row['van_uuid'], row['result']) == (arq['uuid'], 'released')
        assert site.host.states() == {}
        assert site.host.calls.of('unprepareVAN') == [arq['uuid']]
        assert site.check(0) == []

    def test_a_handle_that_is_bound_anew_can_then_be_plugged(self, site):
        site.plugged()
        site.cloud.arqs.clear()
        new = site.arq()
        (request,) = objects.AcceleratorRequest.from_arqs([new])
        info = objects.InstanceInfo(uuid=new['instance_uuid'])
        with pytest.raises(exception.PlugException):
            os_acc.plug(info, [request])
        assert self.fix(site, 0)['result'] == 'released'
        os_acc.plug(info, [request])
        assert site.check(0) == []

    def test_an_instance_with_another_arq(self, site):
        arq = site.plugged()
        site.cloud.arqs.clear()
        other = site.arq(
            ADDRESSES[1], instance_uuid=arq['instance_uuid'], state='Initial'
        )
        row = self.fix(site, 3)
        assert row['result'] == (
            f'not fixed: the instance still has ARQ {other["uuid"]} in Cyborg'
        )
        assert site.host.states() == {arq['uuid']: 'plugged'}

    @pytest.mark.parametrize(
        ('guest', 'text'),
        [(True, 'still has the guest'), (None, 'cannot tell')],
    )
    def test_a_guest_that_exists_or_may_exist(self, site, guest, text):
        arq = site.plugged()
        site.cloud.arqs.clear()
        site.guest = guest
        row = self.fix(site, 3)
        assert row['result'].startswith('not fixed: ')
        assert text in row['result']
        assert site.host.states() == {arq['uuid']: 'plugged'}

    def test_a_hypervisor_that_does_not_answer(self, site):
        def fail(info):
            raise RuntimeError('no libvirt')

        arq = site.plugged()
        site.cloud.arqs.clear()
        site.host.plugin.has_guest = fail
        assert 'no libvirt' in self.fix(site, 3)['result']
        assert site.host.states() == {arq['uuid']: 'plugged'}

    def test_a_plug_in_progress(self, site):
        site.plugged()
        site.cloud.arqs.clear()
        row = site.one(3, '--fix')
        assert 'changed within the last 3600 seconds' in row['result']

    def test_an_instance_that_is_worked_on(self, site):
        arq = site.plugged()
        site.cloud.arqs.clear()
        with os_acc._host.locks.instance(arq['instance_uuid']):
            row = self.fix(site, 3)
        assert 'another thread or process' in row['result']

    def test_a_release_that_fails(self, site):
        arq = site.plugged()
        site.cloud.arqs.clear()
        site.host.calls.on('unprepareVAN', RuntimeError('stuck'))
        assert 'stuck' in self.fix(site, 3)['result']
        assert site.host.states() == {arq['uuid']: 'error'}

    def test_what_is_for_an_operator_to_decide(self, site):
        arq = site.plugged()
        arq['hostname'] = 'node-9'
        row = self.fix(site, 3)
        assert row['result'] == 'not fixed: an operator must decide'

    def test_some_are_fixed_and_some_are_not(self, site):
        kept, gone = site.plugged(), site.plugged(ADDRESSES[1])
        site.cloud.arqs.remove(gone)
        kept['hostname'] = 'node-9'
        rows = site.check(3, '--fix', '--minimum-age', '0')
        assert {row['van_uuid']: row['result'] for row in rows} == {
            gone['uuid']: 'released',
            kept['uuid']: 'not fixed: an operator must decide',
        }

    def test_without_fix_nothing_is_released(self, site):
        arq = site.plugged()
        site.cloud.arqs.clear()
        site.one(3, '--minimum-age', '0')
        assert site.host.states() == {arq['uuid']: 'plugged'}


class TestReleaseVANs:
    def test_only_the_given_ones(self, host):
        host.plugin.has_guest = lambda info: False
        instance = host.instance()
        one, two = os_acc.plug(instance, host.requests(2))
        opened = os_acc._host
        (done,) = orphans.release_vans(opened, {one.uuid: instance.uuid}, 0.0)
        assert (done.uuid, done.error) == (one.uuid, None)
        assert host.states() == {two.uuid: 'plugged'}
        assert list(orphans.release_vans(opened, {}, 0.0)) == []

    @pytest.mark.parametrize('age', [-1, float('nan'), 'x'])
    def test_a_wrong_age(self, host, age):
        with pytest.raises(exception.InvalidRequest, match='minimum_age'):
            orphans.release_vans(os_acc._host, {}, age)


# --- who may ask, and who does not answer


def test_a_user_who_does_not_see_all(site):
    arq = site.plugged()
    site.cloud.roles = ['member']
    site.cloud.arqs.clear()
    for fix in ([], ['--fix', '--minimum-age', '0']):
        line = site.run.fails(2, 'cyborg', 'check', *fix)
        assert 'role admin' in line
    assert site.host.states() == {arq['uuid']: 'plugged'}


def test_a_cyborg_that_is_down(site):
    site.plugged()
    site.cloud.failures['/accelerator/v2/accelerator_requests'] = 500
    assert '500' in site.run.fails(1, 'cyborg', 'check', '--fix')


def test_before_anything_was_plugged(site, tmp_path):
    site.run.state_path = tmp_path / 'other'
    site.arq()
    assert site.check(0) == []
    assert not (tmp_path / 'other').exists()


@pytest.mark.parametrize('age', ['-1', 'nan', 'x'])
def test_a_wrong_minimum_age(site, age):
    result = site.run('cyborg', 'check', '--minimum-age', age)
    assert result.code == 2
    assert 'error: ' in result.err


def test_each_problem_is_in_the_documentation():
    page = ROOT / 'doc' / 'source' / 'with-cyborg.rst'
    section = page.read_text().partition('.. _cyborg-check:')[2]
    problems = {
        value
        for module in (check, differences, providers)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str) and name[0] != '_'
    } - {differences.BOUND}
    assert len(problems) == 14
    for problem in problems:
        assert f'\n``{problem}``' in section or f', ``{problem}``' in section
