# SPDX-License-Identifier: Apache-2.0

"""The os-acc command: what it prints, where, and its exit codes."""

import contextlib
import importlib.metadata
import io
import json
import os
import pathlib
import re
import shlex
import sqlite3
import subprocess
import sys

import command
import pytest
from stevedore import extension
import yaml

import os_acc
from os_acc import journal
from os_acc import locking
from os_acc import progress
from os_acc.cli import app
from os_acc.cli import demo
from os_acc.cli import progress as cli_progress
from os_acc.journal import programs
from os_acc.operations import recovery

DATA = pathlib.Path(__file__).parent.parent / 'data'
FAKE = DATA / 'bound-arqs-fake.json'
REAL = DATA / 'bound-arqs-pci-mdev.json'

INSTANCE = 'ac407c84-63e6-412c-91a9-6bf933a420ad'
VANS = [
    '061c0c22-0139-4404-af0c-dad4469dc6b7',
    '55eba8b3-4994-44b8-94ef-d6b0bcc48fbd',
]
REAL_INSTANCE = '0d573cd0-f0c1-4f7d-9b6f-9a8714390489'
# The project of the ARQs of FAKE.
PROJECT = '8f936ce733994b45a37c367bad05d83d'
OTHER = 'b5a2c9a4-7b1c-4e70-8a4e-30a4c1a3a7f1'


def this_host(name):
    """The ARQs of FAKE are bound to host vm, those of REAL to node-7."""
    os_acc.CONF.set_override('host', name, 'os_acc')


class Command(command.Command):
    """The command on the ARQs of this file."""

    def plug(self, *arguments):
        return self.fine(
            'plug', INSTANCE, '--arqs', FAKE, '-f', 'json', *arguments
        )

    def vans(self, *arguments):
        """What van list says: VAN and state."""
        rows = self.fine('van', 'list', '-f', 'json', *arguments).json
        return {row['uuid']: row['state'] for row in rows}

    def journal(self):
        return journal.Journal(str(self.state_path), 5)

    def hardware(self):
        """The handles that the fake devices have in use."""
        directory = self.state_path / 'fake-hardware'
        names = os.listdir(directory) if directory.exists() else []
        return sorted(n for n in names if n.startswith('handle-'))


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    this_host('vm')
    return Command(tmp_path / 'state', capsys, monkeypatch)


@pytest.fixture
def config(tmp_path):
    """Writes a configuration file.

    :returns: the arguments that name it
    """

    def write(**groups):
        path = tmp_path / 'os-acc.conf'
        lines = []
        for group, options in groups.items():
            lines.append(f'[{group}]')
            lines += [f'{name} = {value}' for name, value in options.items()]
        path.write_text('\n'.join(lines))
        return ['--config-file', path]

    return write


@pytest.fixture
def one_state(run):
    """Two plugged VANs, of which the first was left half unplugged."""
    run.plug()
    opened = run.journal()
    opened.mark(opened.entries()[:1], 'unplugging')
    opened.close()


# --- plug


def test_plug_from_a_file(run):
    result = run.plug()
    assert [row['uuid'] for row in result.json] == VANS
    assert result.json[0] == {
        'uuid': VANS[0],
        'instance_uuid': INSTANCE,
        'state': 'plugged',
        'driver': 'fake',
        'plugin': 'libvirt',
        'handle': 'test/0000:0c:00.1',
        'device': 'fake:test:0000:0c:00.1',
        'live_migratable': None,
        'error': None,
        'guest_config': None,
    }
    assert run.vans() == dict.fromkeys(VANS, 'plugged')
    assert run.hardware() == [
        'handle-test%2F0000:0c:00.1',
        'handle-test%2F0000:0c:00.2',
    ]


def test_plug_from_standard_input(run):
    answer = FAKE.read_text()
    arguments = ('plug', INSTANCE, '--arqs', '-', '-f', 'json')
    result = run.fine(*arguments, stdin=answer)
    assert [row['uuid'] for row in result.json] == VANS
    # The list alone will do as well.
    again = run.fine(*arguments, stdin=json.dumps(json.loads(answer)['arqs']))
    assert again.out == result.out


def test_plug_again_touches_nothing(run):
    first = run.plug()
    directory = run.state_path / 'fake-hardware'
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    shown = run.fine('van', 'show', VANS[0], '-f', 'json').json
    assert run.plug().out == first.out
    assert run.fine('van', 'show', VANS[0], '-f', 'json').json == shown
    assert before == {
        path: path.stat().st_mtime_ns for path in directory.iterdir()
    }


def test_plug_of_real_devices_gives_guest_config(run):
    this_host('node-7')
    arguments = ('--driver', 'fake', '-f', 'json')
    pci, mdev = run.fine(
        'plug', REAL_INSTANCE, '--arqs', REAL, *arguments
    ).json
    assert pci['handle'] == 'pci/0000:66:00.0'
    assert 'bus="0x66"' in pci['guest_config']
    assert mdev['handle'] == 'mdev/21ceb89a-693d-421b-81d4-4e4e73b85c6d'
    assert mdev['handle'].removeprefix('mdev/') in mdev['guest_config']
    again = ('plug', REAL_INSTANCE, '--arqs', REAL, '--driver', 'fake')
    table = run.fine(*again, '--long')
    assert '<hostdev' in table.out


def test_plug_says_who_the_instance_is(run):
    run.plug()
    this_host('node-7')
    run.fine(
        *('plug', REAL_INSTANCE.upper(), '--arqs', REAL, '--driver', 'fake'),
        *('--name', 'guest', '--project-id', 'p', '--hypervisor-id', 'lpar'),
    )
    opened = run.journal()
    told = opened.entries(REAL_INSTANCE)[0].instance_info
    default = opened.entries(INSTANCE)[0].instance_info
    opened.close()
    assert (told.name, told.project_id) == ('guest', 'p')
    assert told.hypervisor_id == 'lpar'
    assert default.name == INSTANCE
    # The ARQs say it.
    assert default.project_id == PROJECT
    assert default.hypervisor_id is None


def test_plug_on_a_terminal_draws_a_bar(run, config, monkeypatch):
    monkeypatch.setenv('COLUMNS', '80')
    fake = {'devices': 'fpga0:pci:2:single', 'delays': 'program:0.1'}
    arguments = config(os_acc={'plugin': 'noop'}, os_acc_fake=fake)
    monkeypatch.setattr(type(sys.stderr), 'isatty', lambda self: True)
    this_host('node-7')
    arqs = json.loads(REAL.read_text())['arqs'][:1]
    # The fake driver chooses a device that it can program.
    from_arqs = os_acc.objects.AcceleratorRequest.from_arqs

    def without_handle(arqs):
        requests = from_arqs(arqs)
        for request in requests:
            request.handle = None
        return requests

    monkeypatch.setattr(
        os_acc.objects.AcceleratorRequest, 'from_arqs', without_handle
    )
    result = run(
        *arguments,
        *('plug', REAL_INSTANCE, '--arqs', '-', '--driver', 'fake'),
        *('--function', 'aes-256'),
        stdin=json.dumps(arqs),
    )
    assert result.code == 0
    assert result.err.count('\r') == 20
    assert '\r[' + '#' * 13 + '.' * 13 + ']  50% ' in result.err
    assert result.err.rstrip().endswith(' programming')
    assert '\r' not in result.out


# --- van list, van show


def test_van_list_where_nothing_was_plugged(run):
    result = run('van', 'list', '-f', 'json')
    assert (result.code, result.json) == (0, [])
    assert result.err.count('\n') == 1
    assert 'yet: nothing was plugged' in result.err
    assert not run.state_path.exists()


@pytest.mark.parametrize(
    ('form', 'load'), [('json', json.loads), ('yaml', yaml.safe_load)]
)
def test_van_list_for_programs(run, form, load):
    run.plug()
    rows = load(run.fine('van', 'list', '-f', form).out)
    assert [row['uuid'] for row in rows] == VANS
    assert [row['handle'] for row in rows] == [
        'test/0000:0c:00.1',
        'test/0000:0c:00.2',
    ]
    assert [row['error'] for row in rows] == [None, None]
    assert set(rows[0]) == {
        *('uuid', 'instance_uuid', 'state', 'driver', 'plugin', 'handle'),
        *('device', 'live_migratable', 'error', 'project_id'),
    }


def test_van_list_for_people(run):
    run.plug()
    lines = run.fine('van', 'list', '--long').out.splitlines()
    assert len(lines) == 6
    cells = [cell.strip() for cell in lines[3].strip('|').split('|')]
    assert cells == [
        *(VANS[0], INSTANCE, 'plugged', 'fake', 'libvirt'),
        *('test/0000:0c:00.1', 'fake:test:0000:0c:00.1', '', '', PROJECT),
    ]


def test_van_list_of_an_instance(run):
    run.plug()
    assert list(run.vans('--instance', INSTANCE)) == VANS
    assert list(run.vans('--instance', INSTANCE.upper())) == VANS
    assert run.vans('--instance', OTHER) == {}


def test_van_list_of_an_instance_with_a_misspelt_uuid(run):
    run.plug()
    line = run.fails(2, 'van', 'list', '--instance', INSTANCE[1:])
    assert f"uuid is '{INSTANCE[1:]}', expected a UUID" in line


def test_van_list_of_a_state(run, one_state):
    assert run.vans('--state', 'unplugging') == {VANS[0]: 'unplugging'}
    assert run.vans('--state', 'plugged') == {VANS[1]: 'plugged'}
    assert run.vans('--state', 'error') == {}
    both = ('--instance', OTHER, '--state', 'plugged')
    assert run.vans(*both) == {}


def test_van_list_of_a_state_that_is_none(run, one_state):
    result = run('van', 'list', '--state', 'dancing')
    assert result.code == 2
    assert "invalid choice: 'dancing'" in result.err.splitlines()[-1]


def test_van_list_changes_nothing(run, one_state):
    run.vans()
    assert run.vans() == {VANS[0]: 'unplugging', VANS[1]: 'plugged'}
    assert len(run.hardware()) == 2


def test_van_show(run):
    run.plug()
    for spelling in (VANS[1], VANS[1].upper()):
        shown = run.fine('van', 'show', spelling, '-f', 'json').json
        assert shown['uuid'] == VANS[1]
    opened = run.journal()
    van = opened.entries()[1].van
    opened.close()
    assert shown == {
        'uuid': VANS[1],
        'instance_uuid': INSTANCE,
        'instance_name': INSTANCE,
        'project_id': PROJECT,
        'state': 'plugged',
        'error': None,
        'live': False,
        'driver': 'fake',
        'plugin': 'libvirt',
        'owner': 'os-acc',
        'device': 'fake:test:0000:0c:00.2',
        'handle': 'test/0000:0c:00.2',
        'function_id': None,
        'live_migratable': None,
        'guest_config': None,
        'driver_data': {},
        'boot_id': van.boot_id,
        'created_at': str(van.created_at),
        'updated_at': str(van.updated_at),
        'device_profile_name': 'rig-da4a81d9b8ed',
        'device_profile_group_id': 0,
        'device_rp_uuid': '823f5e9e-ef5b-3461-bd09-8006cc3755d1',
        'history': shown['history'],
    }
    assert [event['step'] for event in shown['history']] == [
        'prepareVAN',
        'plug',
        'postplug',
    ]
    assert 'test/0000:0c:00.2' in run.fine('van', 'show', VANS[1]).out


def test_van_list_loads_only_what_it_needs(tmp_path):
    script = (
        'import json, os, sys; from os_acc.cli import app; '
        'code = app.main(sys.argv[1:]); '
        'found = [sorted(sys.modules), dict(os.environ)]; '
        'print(json.dumps(found), file=sys.stderr)'
    )
    command = [sys.executable, '-W', 'ignore', '-c', script]
    name = 'EVENTLET_NO_GREENDNS'
    done = subprocess.run(
        [*command, '--state-path', str(tmp_path), 'van', 'list'],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        env={k: v for k, v in os.environ.items() if k != name},
    )
    loaded, environment = json.loads(done.stderr.splitlines()[-1])
    assert 'os_acc.cli.van' in loaded
    # The command of `os-acc run` gets the environment that its caller has.
    assert name not in environment
    assert 'eventlet' in loaded
    assert not {'dns', 'eventlet.support.greendns'} & set(loaded)
    heavy = ('acc_plug_', 'lxml', 'libvirt', 'oslo_privsep', 'pyudev')
    ours = ('attach', 'cli.recover', 'discovery', 'doctor', 'drivers')
    heavy += tuple(f'os_acc.{name}' for name in ours)
    assert [name for name in loaded if name.startswith(heavy)] == []


def test_van_show_of_a_van_without_handle(run):
    run.plug()
    opened = run.journal()
    (entry, _) = opened.entries()
    entry.van.handle = None
    opened.save(entry.van)
    opened.close()
    shown = run.fine('van', 'show', VANS[0], '-f', 'json').json
    assert shown['handle'] is None


# --- unplug


def test_unplug_all(run):
    run.plug()
    assert run.fine('unplug', INSTANCE).out == 'released 2\n'
    assert run.vans() == {}
    assert run.hardware() == []
    again = f'released 0: instance {INSTANCE} has none\n'
    assert run.fine('unplug', INSTANCE).out == again


def test_unplug_some(run):
    run.plug()
    some = run.fine('unplug', INSTANCE, '--van', VANS[0])
    assert some.out == 'released 1\n'
    assert run.vans() == {VANS[1]: 'plugged'}
    assert run.hardware() == ['handle-test%2F0000:0c:00.2']
    both = [part for van in [*VANS, *VANS] for part in ('--van', van)]
    assert run.fine('unplug', INSTANCE, *both).out == 'released 1\n'
    assert run.vans() == {}


def test_unplug_of_another_instance_releases_nothing(run):
    run.plug()
    result = run('unplug', OTHER, '--van', VANS[0])
    assert (result.code, OTHER in result.err) == (0, True)
    assert result.out == f'released 0: instance {OTHER} has none of these\n'
    assert run.vans() == dict.fromkeys(VANS, 'plugged')


# --- device list, host show


def test_device_list_is_empty_here(run):
    result = run('device', 'list', '-f', 'json')
    assert (result.code, result.json) == (0, [])


def test_device_list(run, config):
    fake = {'devices': 'nic0:pci:4, fpga0:test:2:single', 'discover': True}
    arguments = config(os_acc_fake=fake)
    run.plug()
    nic, fpga = run.fine(*arguments, 'device', 'list', '-f', 'json').json
    assert nic == {
        'address': 'nic0',
        'driver': 'fake',
        'vendor_id': 'fa4e',
        'product_id': '0000',
        'resource_class': 'CUSTOM_FAKE_PCI',
        'traits': ['CUSTOM_FAKE_DEVICE'],
        'numa_node': None,
        'handles_total': 4,
        'handles_free': 4,
        'programming': 'none',
        'function_id': None,
        'health': 'ok',
        'not_free': {},
    }
    assert (fpga['address'], fpga['programming']) == ('fpga0', 'single')
    table = run.fine(*arguments, 'device', 'list').out
    assert 'nic0' in table
    assert 'fpga0' in table


def test_device_list_shows_what_is_free(run, config):
    fake = {'devices': 'nic0:pci:4', 'discover': True}
    arguments = config(os_acc={'plugin': 'noop'}, os_acc_fake=fake)
    os_acc.initialize()
    os_acc.CONF.set_override('devices', ['nic0:pci:4'], 'os_acc_fake')
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.plug(
        os_acc.objects.InstanceInfo(uuid=OTHER, name='', project_id=''),
        [os_acc.objects.AcceleratorRequest(uuid=VANS[0], driver='fake')],
    )
    os_acc.CONF.clear_override('devices', 'os_acc_fake')
    (nic,) = run.fine(*arguments, 'device', 'list', '-f', 'json').json
    assert (nic['handles_free'], nic['handles_total']) == (3, 4)
    assert nic['not_free'] == {'used': 1}
    assert '1 used' in run.fine(*arguments, 'device', 'list', '--long').out
    shown = run.fine(*arguments, 'device', 'show', 'nic0', '-f', 'json').json
    (taken,) = (each for each in shown['handles'] if each['state'] == 'used')
    assert taken == {
        'handle': 'pci/ffff:00:00.0',
        'state': 'used',
        'holder': VANS[0],
        'reason': f'instance {OTHER} has it',
        'region': None,
    }
    table = run.fine(*arguments, 'device', 'show', 'nic0').out
    assert 'pci/ffff:00:00.1: free' in table
    assert (
        f'pci/ffff:00:00.0: used, instance {OTHER} has it (VAN {VANS[0]})'
        in table
    )


def test_device_list_where_a_driver_fails(run, config):
    run.plug()
    fake = {'discover': True, 'fail': 'get_devices'}
    result = run(*config(os_acc_fake=fake), 'device', 'list', '-f', 'json')
    # What the other drivers found is shown all the same.
    assert (result.code, result.json) == (1, [])
    assert result.err.count('\n') == 1
    assert result.err.startswith('DiscoveryFailed: ')
    assert "driver 'fake'" in result.err


def host_show(run, *arguments):
    rows = run.fine(*arguments, 'host', 'show', '-f', 'json').json
    return {(row['kind'], row['name']): row for row in rows}


def test_host_show(run):
    rows = host_show(run)
    handles = 'TestHandle 1.0, PCIHandle 1.0, MdevHandle 1.0, DRCHandle 1.0'
    assert rows['driver', 'fake'] == {
        'kind': 'driver',
        'name': 'fake',
        'handles': handles,
        'guest_config': None,
        'status': 'loaded',
    }
    assert rows['plugin', 'noop']['status'] == 'loaded'
    assert rows['plugin', 'libvirt']['status'] == "loaded, this host's plugin"
    assert not run.state_path.exists()


def test_host_show_names_the_plugin_of_the_configuration(run, config):
    rows = host_show(run, *config(os_acc={'plugin': 'noop'}))
    assert rows['plugin', 'noop']['status'] == "loaded, this host's plugin"
    assert rows['plugin', 'libvirt']['status'] == 'loaded'


def test_host_show_names_what_did_not_load(run, monkeypatch, tmp_path):
    (tmp_path / 'acc_broken.py').write_text('raise OSError("no such bus")')
    monkeypatch.syspath_prepend(tmp_path)
    for group, name in (('plugins', 'broken'), ('drivers', 'gone')):
        namespace = f'os_acc.{group}'
        known = extension.ExtensionManager(namespace).list_entry_points()
        value = 'acc_broken:X' if name == 'broken' else 'acc_not_there:X'
        added = importlib.metadata.EntryPoint(name, value, namespace)
        monkeypatch.setitem(
            extension.ExtensionManager.ENTRY_POINT_CACHE,
            namespace,
            [*known, added],
        )
    rows = host_show(run)
    assert rows['plugin', 'broken'] == {
        'kind': 'plugin',
        'name': 'broken',
        'handles': None,
        'guest_config': None,
        'status': 'not loaded: OSError: no such bus',
    }
    assert rows['driver', 'gone']['status'] == (
        "not loaded: ModuleNotFoundError: No module named 'acc_not_there'"
    )
    assert rows['plugin', 'noop']['status'] == 'loaded'


@pytest.mark.parametrize(
    'arguments',
    [('host', 'show'), ('device', 'list'), ('van', 'list'), ('recover',)],
)
def test_a_process_of_its_own(tmp_path, arguments):
    """Where nothing was imported or registered before by other tests."""
    script = 'import sys; from os_acc.cli import app; sys.exit(app.main())'
    command = [sys.executable, '-W', 'ignore', '-c', script]
    command += ['--state-path', str(tmp_path / 'state')]
    done = subprocess.run(
        [*command, *arguments, '-f', 'json'],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), list)


def test_state_path_of_the_configuration(run, config, monkeypatch, tmp_path):
    monkeypatch.setattr(Command, 'general', [])
    arguments = config(os_acc={'state_path': tmp_path / 'configured'})
    os_acc.CONF.clear_override('state_path', 'os_acc')
    run.fine(*arguments, 'plug', INSTANCE, '--arqs', FAKE)
    assert 'journal.db' in os.listdir(tmp_path / 'configured')
    monkeypatch.undo()
    run.state_path = tmp_path / 'configured'
    assert run.vans() == dict.fromkeys(VANS, 'plugged')


# --- recover


def recovered(result):
    return {
        row['van_uuid'] or row['instance_uuid']: row['result']
        for row in result.json
    }


def journal_line(run, number):
    return f'Journal {run.state_path}/journal.db: {number} VANs or instances\n'


def nothing_to_recover(run):
    result = run('recover', '-f', 'json')
    return (result.code, result.json, result.err) == (
        0,
        [],
        f'Journal {run.state_path}/journal.db: nothing to do\n',
    )


def test_recover_where_nothing_is_to_do(run):
    run.plug()
    assert nothing_to_recover(run)
    assert run.vans() == dict.fromkeys(VANS, 'plugged')


def test_recover_releases_what_is_half_done(run, one_state):
    result = run('recover', '-f', 'json')
    assert result.code == 0
    assert result.json == [
        {
            'van_uuid': VANS[0],
            'instance_uuid': INSTANCE,
            'result': 'released',
            'error': None,
        }
    ]
    assert run.vans() == {VANS[1]: 'plugged'}
    assert run.hardware() == ['handle-test%2F0000:0c:00.2']


def test_recover_after_a_reboot(run):
    run.plug()
    opened = run.journal()
    for entry in opened.entries():
        entry.van.boot_id = 'before'
        opened.save(entry.van)
    opened.close()
    result = run('recover', '-f', 'json')
    assert result.code == 0
    assert recovered(result) == dict.fromkeys(VANS, 'prepared again')
    assert nothing_to_recover(run)


def test_recover_that_leaves_something(run, config, one_state):
    arguments = config(os_acc_fake={'fail': 'unprepareVAN'})
    result = run(*arguments, 'recover', '-f', 'json')
    assert (result.code, result.err) == (3, journal_line(run, 1))
    assert recovered(result) == {VANS[0]: 'failed'}
    assert 'told to fail at unprepareVAN' in result.json[0]['error']
    assert run.vans() == {VANS[0]: 'error', VANS[1]: 'plugged'}
    assert recovered(run('recover', '-f', 'json')) == {VANS[0]: 'released'}


def test_recover_leaves_alone_what_is_worked_on(run, one_state):
    with locking.Locks(str(run.state_path / 'locks'), 5).instance(INSTANCE):
        result = run('recover', '-f', 'json')
    assert recovered(result) == {
        INSTANCE: 'skipped: another process holds its lock'
    }
    assert run.vans()[VANS[0]] == 'unplugging'


def test_recover_shows_the_error_that_ended_an_instance(run, monkeypatch):
    report = os_acc.objects.RecoveryReport(
        released=[],
        restored=[],
        failed=[],
        busy=[],
        unreadable={OTHER: 'no class GoneHandle'},
        errors={INSTANCE: 'RuntimeError: boom'},
    )
    run.plug()
    monkeypatch.setattr(recovery, 'recover', lambda host: report)
    result = run('recover', '-f', 'json')
    assert (result.code, result.err) == (3, journal_line(run, 2))
    told = {r['instance_uuid']: (r['result'], r['error']) for r in result.json}
    assert told == {
        OTHER: ('unreadable', 'no class GoneHandle'),
        INSTANCE: ('failed', 'RuntimeError: boom'),
    }


def damage(run):
    """Spoil an index of the journal, as a bad block of the disk might."""
    path = run.state_path / 'journal.db'
    with contextlib.closing(sqlite3.connect(path)) as db:
        (page,) = db.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'van_device'"
        ).fetchone()
    content = bytearray(path.read_bytes())
    start = (page - 1) * 4096
    content[start : start + 64] = b'\xa5' * 64
    path.write_bytes(content)


def test_a_damaged_journal_and_the_way_out(run):
    run.plug()
    opened = run.journal()
    for region in ('0', '1', '2'):
        opened.save_program(
            programs.Program(
                device='fpga0',
                region=region,
                function_id='aes',
                digest=None,
                state=programs.PROGRAMMED,
                boot_id='x',
                error=None,
            )
        )
    opened.close()
    damage(run)
    line = run.fails(1, 'plug', INSTANCE, '--arqs', FAKE)
    assert line.startswith('JournalError: ')
    assert f'--state-path {run.state_path} recover' in line
    (aside,) = run.state_path.glob('journal.db.damaged-*')
    assert str(aside) in line
    for arguments in (['van', 'list'], ['recover'], ['unplug', INSTANCE]):
        assert str(aside) in run.fails(1, *arguments)
    result = run('recover', '--rebuild', '-f', 'json')
    assert (result.code, result.json) == (0, [])
    assert result.err.startswith(
        'New journal: 2 VANs and the records of 3 programmed regions were '
        'read and kept, 0 rows conflicted'
    )
    assert result.err.count('\n') == 1
    assert run.vans() == dict.fromkeys(VANS, 'plugged')
    run.plug()
    assert run.fine('unplug', INSTANCE).out == 'released 2\n'
    assert run.hardware() == []


def test_looking_at_a_damaged_journal_moves_nothing(run):
    run.plug()
    damage(run)
    before = sorted(os.listdir(run.state_path))
    assert 'it is damaged' in run.fails(1, 'van', 'list')
    assert sorted(os.listdir(run.state_path)) == before


@pytest.mark.parametrize(
    'arguments',
    [
        ('van', 'list'),
        ('events',),
        ('device', 'free', 'x'),
        ('plug', INSTANCE, '--arqs', FAKE),
        ('recover',),
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_remedy_of_a_damaged_journal_works(run, arguments):
    """It works as it is shown, whichever command has found the damage."""
    run.plug()
    damage(run)
    line = run.fails(1, *arguments)
    (shown,) = re.findall('Run "os-acc (.*? recover --rebuild)"', line)
    words = shlex.split(shown)
    at = words.index('--state-path')
    assert words[at + 1] == str(run.state_path)
    result = run(*words[at + 2 :])
    assert (result.code, 'read and kept' in result.err) == (0, True)
    assert run.vans() == dict.fromkeys(VANS, 'plugged')


def test_rebuild_where_a_journal_is(run):
    run.plug()
    line = run.fails(1, 'recover', '--rebuild')
    assert 'nothing to rebuild' in line
    assert run.vans() == dict.fromkeys(VANS, 'plugged')


# --- demo


def test_demo(run, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, 'DELAYS', command.SHORT_DELAYS)
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    before = os.listdir(tmp_path)
    out = run.fine('demo').out
    lines = out.splitlines()
    assert lines[-3] == '   released 3; left in the journal: 0 VANs'
    assert os.listdir(tmp_path) == before
    assert not run.state_path.exists()

    plug, again, failed, unplug = (
        lines.index(next(line for line in lines if line.startswith(start)))
        for start in (
            '== plug: three',
            '== plug again',
            '== plug for web-2',
            '== unplug web-1',
        )
    )
    assert out.count('<hostdev ') == out.count('</hostdev>') == 3
    assert out.count('<hostdev mode="subsystem" type="pci"') == 2
    assert out.count('<hostdev mode="subsystem" type="mdev"') == 1
    assert '   the same 3 VANs: True' in lines[again:failed]

    def steps(first, last):
        """(step, which of the three, how it ended), in order."""
        pattern = r' +at [0-9.]+ s +(\w+) +VAN \w+ \((.*)\) +(\w+)'
        found = (re.fullmatch(pattern, line) for line in lines[first:last])
        return [match.groups() for match in found if match]

    pci, mdev, fpga = 'a PCI function', 'a mediated device', 'an FPGA function'
    done = steps(plug, again)
    assert sorted(done[:3]) == sorted(
        ('prepareVAN', name, 'done') for name in (pci, mdev, fpga)
    )
    assert done[3:] == [
        (step, name, 'done')
        for step in ('plug', 'postplug')
        for name in (pci, mdev, fpga)
    ]
    # Nothing is done again.
    assert steps(again, failed) == []
    undone = steps(failed, unplug)
    assert undone[6:8] == [
        ('postplug', pci, 'done'),
        ('postplug', mdev, 'failed'),
    ]
    last_first = [('unplug', name, 'done') for name in (fpga, mdev, pci)]
    at_once = [('unprepareVAN', name, 'done') for name in (fpga, mdev, pci)]
    assert undone[8:11] == last_first
    assert sorted(undone[11:]) == sorted(at_once)
    assert any('PlugException: ' in line for line in lines[failed:unplug])
    assert '   web-2 has 0 VANs' in lines[failed:unplug]
    assert lines[unplug - 2] == (
        '   A plug that fails leaves nothing behind. web-1 keeps its 3 VANs.'
    )
    unplugged = steps(unplug, len(lines))
    assert unplugged[:3] == last_first
    assert sorted(unplugged[3:]) == sorted(at_once)


# --- errors and exit codes


def arqs_with(**values):
    """The ARQs as JSON, the first with other values."""
    answer = json.loads(FAKE.read_text())
    answer['arqs'][0].update(values)
    return json.dumps(answer)


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        ('{"arqs": [', 'InvalidRequest: plug: --arqs'),
        ('', 'a readable file with JSON'),
        ('{"hosts": []}', 'a JSON list of ARQs'),
        ('{"arqs": []}', 'a JSON list of ARQs'),
        ('[]', 'a JSON list of ARQs'),
        ('"text"', 'a JSON list of ARQs'),
        ('[7]', 'ARQ is 7, expected a dict'),
        (arqs_with(state='Initial'), f'ARQNotBound: ARQ {VANS[0]}: state'),
        (arqs_with(attach_handle_type='USB'), 'attach_handle_type'),
        (arqs_with(instance_uuid=OTHER), f'ARQ {VANS[0]}: instance_uuid'),
        (arqs_with(uuid=VANS[1]), 'each request once'),
    ],
)
def test_wrong_arqs(run, text, says):
    line = run.fails(2, 'plug', INSTANCE, '--arqs', '-', stdin=text)
    assert says in line
    assert run.hardware() == []


def test_arqs_of_another_host(run):
    this_host('node-7')
    line = run.fails(2, 'plug', INSTANCE, '--arqs', FAKE)
    assert f"ARQ {VANS[0]}: hostname is 'vm', expected this host" in line
    assert "'node-7'" in line


def test_arqs_that_are_nested_without_end(run, tmp_path):
    path = tmp_path / 'arqs.json'
    path.write_text('[' * 100_000)
    line = run.fails(2, 'plug', INSTANCE, '--arqs', path)
    assert f"--arqs is '{path}', expected a readable file with JSON" in line


def test_an_error_is_not_as_long_as_its_value(run, tmp_path):
    arq = {'uuid': VANS[0], 'state': 'Bound', 'attach_handle_type': 'PCI'}
    arq['attach_handle_info'] = {'domain': 'f' * 1_000_000}
    path = tmp_path / 'arqs.json'
    path.write_text(json.dumps([arq]))
    line = run.fails(2, 'plug', INSTANCE, '--arqs', path)
    assert f'ARQ {VANS[0]}: attach_handle_info.domain is' in line
    assert 'expected 1 to 8 hex digits' in line
    assert len(line) < 500


def test_interrupted_while_it_starts(run, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(app.OSAccApp, '__init__', interrupt)
    result = run('van', 'list')
    assert (result.code, result.out, result.err) == (130, '', '')


def test_the_state_path_is_of_the_directory_one_is_in(
    run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'here').mkdir()
    run.state_path = 'here'
    run.plug()
    assert (tmp_path / 'here' / 'journal.db').exists()


def test_arqs_without_a_project(run, tmp_path):
    arqs = json.loads(FAKE.read_text())
    content = arqs['arqs'] if isinstance(arqs, dict) else arqs
    for each in content:
        each['project_id'] = None
    path = tmp_path / 'arqs.json'
    path.write_text(json.dumps(content))
    run.fine('plug', INSTANCE, '--arqs', path)
    opened = run.journal()
    told = opened.entries(INSTANCE)[0].instance_info
    opened.close()
    assert told.project_id == ''


def test_arqs_with_a_key_twice(run, tmp_path):
    path = tmp_path / 'arqs.json'
    path.write_text('[{"uuid": 1, "uuid": 2}]')
    line = run.fails(2, 'plug', INSTANCE, '--arqs', path)
    assert "the key 'uuid' occurs twice" in line


def test_arqs_that_are_no_text(run, tmp_path):
    path = tmp_path / 'arqs'
    path.write_bytes(b'\xff\xfe{')
    assert str(path) in run.fails(2, 'plug', INSTANCE, '--arqs', path)


@pytest.mark.parametrize(
    ('arguments', 'says'),
    [
        (['plug', INSTANCE, '--arqs', '/no/such/file'], '/no/such/file'),
        (['plug', INSTANCE, '--arqs', '/'], 'directory'),
        (['plug', 'web-1', '--arqs', FAKE], "uuid is 'web-1'"),
        (['plug', OTHER, '--arqs', FAKE], OTHER),
        (
            ['plug', INSTANCE, '--arqs', FAKE, '--driver', 'nope'],
            "NoMatchingDriver: No driver for driver name 'nope'",
        ),
        (
            ['plug', INSTANCE, '--arqs', FAKE, '--driver', '../x'],
            "driver is '../x'",
        ),
        (['unplug', INSTANCE[:-1]], f"uuid is '{INSTANCE[:-1]}'"),
        (['unplug', INSTANCE, '--van', 'x'], "is 'x', expected"),
    ],
)
def test_wrong_input(run, arguments, says):
    assert says in run.fails(2, *arguments)


def test_van_show_of_a_van_that_is_not_there(run):
    run.plug()
    line = run.fails(4, 'van', 'show', OTHER)
    assert OTHER in line
    assert 'see van list' in line


def test_a_plugin_that_is_not_there(run, config):
    arguments = config(os_acc={'plugin': 'nope'})
    line = run.fails(2, *arguments, 'plug', INSTANCE, '--arqs', FAKE)
    assert '[os_acc] plugin in ' in line
    assert "'nope' is not installed; did you mean 'noop'?" in line


def test_a_van_that_was_plugged_for_another_handle(run):
    run.plug()
    answer = arqs_with(attach_handle_type='PCI')
    arguments = ('plug', INSTANCE, '--arqs', '-', '--driver', 'fake')
    line = run.fails(1, *arguments, stdin=answer)
    assert 'pci/0000:0c:00.1' in line
    assert 'with which it was plugged' in line
    assert run.vans() == dict.fromkeys(VANS, 'plugged')


@pytest.mark.parametrize(
    'arguments',
    [
        ['plug'],
        ['plug', INSTANCE],
        ['unplug'],
        ['van', 'show'],
        ['recover', '--nonsense'],
        ['van', 'list', '-f', 'nonsense'],
    ],
)
def test_wrong_arguments(run, arguments):
    result = run(*arguments)
    assert (result.code, result.out) == (2, '')
    assert 'error: ' in result.err.splitlines()[-1]


def test_no_command(run):
    result = run()
    assert result.code == 2
    assert 'usage: ' in result.out + result.err
    assert '  van list ' in result.out + result.err


def test_an_unknown_command(run):
    assert run('dance').code == 2
    assert run('van', 'dance').code == 2


def test_a_configuration_file_that_is_not_there(run):
    arguments = ['--config-file', '/no/such/file']
    assert '/no/such/file' in run.fails(2, *arguments, 'van', 'list')


def test_a_wrong_value_in_the_configuration(run, config):
    arguments = config(os_acc={'journal_timeout': 'soon'})
    assert 'journal_timeout' in run.fails(2, *arguments, 'recover')


def test_a_driver_that_fails(run, config):
    arguments = config(os_acc_fake={'fail': 'postplug'})
    line = run.fails(1, *arguments, 'plug', INSTANCE, '--arqs', FAKE)
    assert line.startswith('PlugException: ')
    assert 'told to fail at postplug' in line
    assert run.vans() == {}
    assert run.hardware() == []


def test_an_unplug_that_fails(run, config):
    run.plug()
    arguments = config(os_acc_fake={'fail': f'unprepareVAN@{VANS[1]}'})
    line = run.fails(1, *arguments, 'unplug', INSTANCE)
    assert line.startswith('UnplugException: ')
    assert VANS[1] in line
    assert run.vans() == {VANS[1]: 'error'}


def test_a_device_that_another_instance_has(run):
    run.plug()
    answer = json.loads(FAKE.read_text())
    for arq, uuid in zip(answer['arqs'], [OTHER, REAL_INSTANCE], strict=True):
        arq.update(uuid=uuid, instance_uuid=OTHER)
    line = run.fails(5, 'plug', OTHER, '--arqs', '-', stdin=json.dumps(answer))
    assert f'busy: instance {INSTANCE} (VAN {VANS[0]}, plugged)' in line
    assert run.vans() == dict.fromkeys(VANS, 'plugged')


def test_a_state_path_that_cannot_be(run, tmp_path):
    (tmp_path / 'file').touch()
    run.state_path = tmp_path / 'file' / 'state'
    line = run.fails(1, 'plug', INSTANCE, '--arqs', FAKE)
    assert line.startswith('JournalError: ')
    assert str(run.state_path) in line


def test_a_message_of_several_lines_is_one_line(run, monkeypatch):
    def initialize(owner):
        raise os_acc.exception.JournalError(path='p', reason='one\n  two\n')

    monkeypatch.setattr(os_acc, 'initialize', initialize)
    arguments = ['plug', INSTANCE, '--arqs', FAKE]
    assert run.fails(1, *arguments) == ('JournalError: Journal p: one two\n')


def test_debug_gives_the_trace(run):
    arguments = ['plug', INSTANCE, '--arqs', '/no/such/file']
    result = run('--debug', *arguments)
    assert result.code == 2
    assert 'Traceback (most recent call last)' in result.err
    assert 'FileNotFoundError' in result.err
    assert result.err.splitlines()[-1].startswith('InvalidRequest: ')


def test_verbose_gives_the_log(run):
    result = run('-v', 'plug', INSTANCE, '--arqs', FAKE)
    assert result.code == 0
    assert f'[instance: {INSTANCE}] [van: {VANS[0]}] plugged' in result.err


def test_arguments_of_the_process(run, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['os-acc', '--version'])
    with pytest.raises(SystemExit) as caught:
        app.main()
    assert caught.value.code == 0
    installed = importlib.metadata.version('os-acc')
    assert capsys.readouterr().out.split()[-1] == installed


def test_help_names_the_commands(run):
    result = run('--help')
    assert result.code == 0
    names = ('plug', 'unplug', 'van list', 'van forget', 'recover')
    for name in names:
        assert re.search(rf'^  {name} ', result.out, re.MULTILINE)


# --- another user's journal


@pytest.fixture
def owner(run, monkeypatch):
    """The state path is plugged on, and then another user's."""
    run.plug()
    if os.geteuid() == 0:
        os.chown(run.state_path, 12345, -1)
        return 12345
    owner = os.geteuid()
    monkeypatch.setattr(os, 'geteuid', lambda: owner + 1)
    return owner


@pytest.mark.parametrize(
    'arguments',
    [
        ['plug', INSTANCE, '--arqs', FAKE],
        ['unplug', INSTANCE],
        ['recover'],
        ['recover', '--rebuild'],
        ['van', 'forget', VANS[0], '--yes'],
    ],
)
def test_only_the_owner_changes(run, owner, arguments):
    line = run.fails(1, *arguments)
    assert line.startswith('JournalError: ')
    assert f'belongs to user id {owner}' in line
    assert f'sudo -u "#{owner}"' in line
    assert run.vans() == dict.fromkeys(VANS, 'plugged')
    assert len(run.hardware()) == 2


# --- the bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def event(status, fraction=None, message=None):
    return progress.Progress(
        INSTANCE, VANS[0], 'prepareVAN', status, fraction, message
    )


EVENTS = [
    event('started'),
    event('running', 0.0, 'programming'),
    event('running', 0.5, 'programming'),
    event('running', 1.0),
    event('done', 1.0),
    event('done', 1.0),
]


def test_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv('COLUMNS', '80')
    stream = Terminal()
    bar = cli_progress.Bar(stream)
    for each in EVENTS:
        bar(each)
    van = VANS[0][:8]
    assert stream.getvalue() == (
        '\r'
        + f'[{"." * 26}]   0% VAN {van} programming'.ljust(79)
        + f'\r[{"#" * 13}{"." * 13}]  50% VAN {van} programming'.ljust(80)
        + f'\r[{"#" * 26}] 100% VAN {van}'.ljust(80)
        + '\n'
    )


def test_bar_ends_its_line_after_a_failure():
    stream = Terminal()
    bar = cli_progress.Bar(stream)
    bar(event('running', 0.25))
    bar(event('failed', message='no'))
    assert stream.getvalue().endswith('\n')
    bar(event('running', 0.25))
    assert not stream.getvalue().endswith('\n')


def test_no_bar_for_what_does_not_say_how_far_it_is():
    stream = Terminal()
    bar = cli_progress.Bar(stream)
    for each in (event('started'), event('running'), event('done')):
        bar(each)
    assert stream.getvalue() == ''


def test_no_bar_where_there_is_no_terminal():
    stream = io.StringIO()
    bar = cli_progress.Bar(stream)
    for each in EVENTS:
        bar(each)
    assert stream.getvalue() == ''


@pytest.mark.parametrize(
    ('fraction', 'shown'),
    [(-1.0, '  0%'), (7.0, '100%'), (None, '  0%'), (0.999, '100%')],
)
def test_bar_keeps_within_its_width(fraction, shown):
    line = cli_progress.draw(event('running', fraction), 120)
    assert line.startswith('[')
    assert line.index(']') == 31
    assert line[32:].strip().startswith(shown.strip())


# --- device program


@pytest.fixture
def fpgas(config):
    devices = 'fpga0:pci:2:single, fpga1:pci:2:dynamic'
    return config(os_acc_fake={'devices': devices, 'discover': True})


def test_device_program(run, fpgas):
    arguments = (*fpgas, 'device', 'program', 'fpga0', '--function', 'aes')
    assert run.fine(*arguments).out == 'programmed\n'
    assert run.fine(*arguments).out == 'already programmed\n'
    shown = run.fine(*fpgas, 'device', 'show', 'fpga0', '-f', 'json').json
    assert shown['function_id'] == shown['function'] == 'aes'
    assert shown['programming'] == 'single'
    assert shown['users'] == []
    assert shown['can_be_programmed_now'] == 'yes'


def test_device_program_of_a_region(run, fpgas):
    arguments = (*fpgas, 'device', 'program', 'fpga1', '--function', 'aes')
    assert "expected one of '0', '1'" in run.fails(2, *arguments)
    assert run.fine(*arguments, '--region', '1').out == 'programmed\n'
    shown = run.fine(*fpgas, 'device', 'show', 'fpga1', '-f', 'json').json
    assert 'function aes' in shown['regions'][1]
    assert shown['regions'][0] == '0: state ok, can be programmed now yes'


def test_device_program_in_vain(run, fpgas):
    program = (*fpgas, 'device', 'program')
    assert 'bitstream' in run.fails(2, *program, 'fpga0')
    error = run.fails(4, *program, 'nowhere', '--function', 'aes')
    assert error.startswith('DeviceNotFound')
    assert 'allowed_folders' in run.fails(
        1, *program, 'fpga0', '--bitstream', '/etc/passwd'
    )
    error = run.fails(2, *program, 'fpga0', '--bitstream', 'ftp://u:pw@h/x')
    assert 'pw' not in error
