# SPDX-License-Identifier: Apache-2.0

"""os_acc.nova: what a compute driver of Nova needs."""

from __future__ import annotations

import subprocess
import sys
import types
import uuid

from lxml import etree
import pytest

import os_acc
from os_acc import exception
from os_acc import nova
from os_acc import objects

INSTANCE = '9a5b6c1e-0f3d-4c52-8f4e-2f6f1a3b7c10'
PORT = '6f2c2f0c-3a94-4c9c-8d0e-7c55d0a0e101'
XML = '<hostdev mode="subsystem" type="pci"><alias name="ua-acc-1"/></hostdev>'

# As Cyborg's API and Nova's get_device_profile_groups() return them.
GROUPS = [
    {'resources:FPGA': '1', 'trait:CUSTOM_FPGA': 'required'},
    {
        'resources:FPGA': '2',
        'accel:function_id': '3AFE',
        'accel:bitstream_id': PORT,
    },
]


def arq(number: int, group: int | None = 0, **values):
    return {
        'uuid': f'0f5d1c7e-6a83-4b0e-9c59-5f3f1c9be00{number}',
        'state': 'Bound',
        'device_profile_name': 'crypto',
        'device_profile_group_id': group,
        'hostname': None,
        'instance_uuid': INSTANCE,
        'attach_handle_type': 'TEST_PCI',
        'attach_handle_info': {
            'domain': '0',
            'bus': '3b',
            'device': '2',
            'function': str(number),
        },
        **values,
    }


@pytest.fixture
def instance():
    """The attributes of Nova's Instance that are used."""
    return types.SimpleNamespace(
        uuid=INSTANCE,
        name='instance-0000002a',
        project_id='project',
        image_ref='',
    )


def test_nova_is_not_imported():
    script = (
        'import sys, os_acc.nova; '
        'print({n.split(".")[0] for n in sys.modules} & {"nova", "lxml"})'
    )
    command = [sys.executable, '-W', 'ignore', '-c', script]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ('set()\n', '')


def test_instance_info(instance):
    info = nova.instance_info(instance)
    assert (info.uuid, info.name) == (INSTANCE, 'instance-0000002a')
    assert (info.project_id, info.image_id) == ('project', None)
    instance.image_ref = PORT
    assert nova.instance_info(instance).image_id == PORT
    assert nova.instance_info(info) is info
    instance.uuid = 'web-1'
    with pytest.raises(exception.InvalidRequest, match='web-1'):
        nova.instance_info(instance)


class TestRequests:
    def test_plain(self):
        (made,) = nova.requests([arq(1)])
        assert made.uuid == arq(1)['uuid']
        assert isinstance(made.handle, objects.TestHandle)
        assert (made.function_id, made.bitstream) == (None, None)
        assert made.port_uuid is None
        assert nova.requests([]) == []

    def test_functions_come_by_the_group_of_the_arq(self):
        made = nova.requests(
            [arq(1, 1), arq(2, 0), arq(3, 1)],
            profile_groups={'crypto': GROUPS, 'other': []},
        )
        assert [r.function_id for r in made] == ['3AFE', None, '3AFE']
        assert [r.bitstream for r in made] == [PORT, None, PORT]

    @pytest.mark.parametrize(
        ('resources', 'function_id', 'warned'),
        [
            ('resources:FPGA', 'd8424dc4-a4a3', True),
            ('resources:FPGA', 'd8424dc4a4a3', False),
            ('resources:CUSTOM_FPGA', 'd8424dc4-a4a3', False),
        ],
    )
    def test_a_function_id_that_cyborg_cannot_bind(
        self, caplog, resources, function_id, warned
    ):
        group = {resources: '1', 'accel:function_id': function_id}
        nova.requests([arq(1, 0)], profile_groups={'crypto': [group]})
        assert ('has hyphens' in caplog.text) is warned
        assert ('BindStarted' in caplog.text) is warned
        assert ('Write d8424dc4a4a3 in' in caplog.text) is warned

    def test_a_profile_that_is_missing(self):
        with pytest.raises(
            exception.InvalidRequest, match='device_profile_name'
        ):
            nova.requests([arq(1)], profile_groups={'other': GROUPS})

    def test_ports(self):
        ports = {arq(2)['uuid'].upper(): PORT, str(uuid.uuid4()): PORT}
        made = nova.requests([arq(1), arq(2)], ports)
        assert [r.port_uuid for r in made] == [None, PORT]
        with pytest.raises(exception.InvalidRequest, match='no-uuid'):
            nova.requests([arq(1)], {'no-uuid': PORT})

    def test_an_arq_that_failed(self):
        failed = arq(
            1,
            state='BindFailed',
            attach_handle_type='',
            attach_handle_info={},
        )
        with pytest.raises(exception.ARQNotBound, match='BindFailed'):
            nova.requests([failed])


class TestPlugged:
    def test_the_block_succeeds(self, host, instance):
        wanted = nova.requests([arq(1), arq(2)])
        with nova.plugged(instance, wanted) as vans:
            assert [van.uuid for van in vans] == [r.uuid for r in wanted]
        assert list(host.states().values()) == ['plugged'] * 2

    def test_the_block_fails(self, host, instance):
        with pytest.raises(RuntimeError, match='no domain'):
            with nova.plugged(instance, nova.requests([arq(1)])):
                raise RuntimeError('no domain')
        assert host.states() == {}

    def test_the_block_is_interrupted(self, host, instance):
        with pytest.raises(KeyboardInterrupt):
            with nova.plugged(instance, nova.requests([arq(1)])):
                raise KeyboardInterrupt
        assert host.states() == {}

    def test_what_was_there_before_stays(self, host, instance):
        before = nova.requests([arq(1)])
        os_acc.plug(nova.instance_info(instance), before)
        wanted = nova.requests([arq(1), arq(2)])
        with pytest.raises(RuntimeError):
            with nova.plugged(instance, wanted):
                raise RuntimeError
        assert host.states() == {before[0].uuid: 'plugged'}

    @pytest.mark.parametrize('runs', [True, False])
    def test_a_guest_that_runs_nevertheless(self, host, instance, runs):
        with pytest.raises(RuntimeError):
            with nova.plugged(instance, nova.requests([arq(1)]), lambda: runs):
                raise RuntimeError
        assert list(host.states().values()) == ['plugged'] * runs

    def test_a_failing_unplug_hides_nothing(self, host, instance, caplog):
        host.calls.on('unprepareVAN', OSError('in use'))
        with pytest.raises(RuntimeError, match='no domain'):
            with nova.plugged(instance, nova.requests([arq(1)])):
                raise RuntimeError('no domain')
        assert list(host.states().values()) == ['error']
        assert 'were not unplugged' in caplog.text

    def test_whether_the_guest_runs_is_unknown(self, host, instance, caplog):
        def is_running():
            raise OSError('libvirt is gone')

        with pytest.raises(RuntimeError, match='no domain'):
            with nova.plugged(instance, nova.requests([arq(1)]), is_running):
                raise RuntimeError('no domain')
        assert list(host.states().values()) == ['plugged']
        assert 'libvirt is gone' in caplog.text

    def test_nothing_to_plug_needs_no_journal(self, clean, instance):
        with nova.plugged(instance, []) as vans:
            assert list(vans) == []

    def test_a_plug_that_fails(self, host, instance):
        host.calls.on('prepareVAN', RuntimeError('no card'))
        with pytest.raises(exception.PlugException, match='no card'):
            with nova.plugged(instance, nova.requests([arq(1)])):
                raise AssertionError
        assert host.states() == {}


class TestDevices:
    def test_as_in_the_journal_without_ports_and_empty_ones(self):
        vans = [
            objects.VAN(uuid=arq(1)['uuid'], guest_config=XML),
            objects.VAN(uuid=arq(2)['uuid'], guest_config=XML),
            objects.VAN(uuid=arq(3)['uuid'], guest_config=None),
        ]
        ports = {arq(2)['uuid'].upper(): PORT}
        for given in (vans, objects.VANList(objects=vans)):
            (device,) = nova.devices(given, ports)
            assert device.van_uuid == arq(1)['uuid']
            assert etree.tostring(device.format_dom()).decode() == XML
            assert device.to_xml() == XML
        assert len(nova.devices(vans)) == 2

    def test_what_is_no_xml(self):
        van = objects.VAN(uuid=arq(1)['uuid'], guest_config='{"slot": 1}')
        (device,) = nova.devices([van])
        with pytest.raises(exception.InvalidRequest, match='guest_config'):
            device.format_dom()
