# SPDX-License-Identifier: Apache-2.0

"""Rows of the journal that this os-acc cannot read, and van forget."""

from __future__ import annotations

import os
import pathlib
import sqlite3

import command
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import locking
from os_acc import objects
from os_acc.kernel import pci
from os_acc.objects import base as objects_base
from os_acc.objects import fields
from os_acc.privileged import context

DATA = pathlib.Path(__file__).parent.parent / 'data'
FAKE = DATA / 'bound-arqs-fake.json'
INSTANCE = 'ac407c84-63e6-412c-91a9-6bf933a420ad'
VANS = [
    '061c0c22-0139-4404-af0c-dad4469dc6b7',
    '55eba8b3-4994-44b8-94ef-d6b0bcc48fbd',
]
OTHER = 'b5a2c9a4-7b1c-4e70-8a4e-30a4c1a3a7f1'
REASON = 'GoneHandle'


class GoneHandle(objects.AttachHandle):
    """A handle class of a package that is removed later."""

    VERSION = '1.0'

    fields = {'name': fields.NameField()}

    @property
    def identity(self) -> str:
        return f'gone/{self.name}'


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    """The command; two VANs are plugged."""
    os_acc.CONF.set_override('host', 'vm', 'os_acc')  # as the ARQs have it
    made = command.Command(tmp_path / 'state', capsys, monkeypatch)
    made.fine('plug', INSTANCE, '--arqs', FAKE)
    return made


def opened(run):
    return journal.Journal(str(run.state_path), 5)


@pytest.fixture
def unreadable(run):
    """The first VAN has a handle of a class that is gone."""
    change(run, lambda van: setattr(van, 'handle', GoneHandle(name='x7')))
    objects_base.VersionedObjectRegistry.obj_classes().pop('GoneHandle')


@pytest.fixture(autouse=True)
def forgotten():
    """No other test knows the class."""
    yield
    objects_base.VersionedObjectRegistry.obj_classes().pop('GoneHandle', None)


@pytest.fixture
def no_daemon(monkeypatch):
    def fail():
        raise exception.PrivilegeError(reason='no daemon')

    monkeypatch.setattr(context, 'whoami', fail)


@pytest.fixture
def without_driver(run):
    """The first VAN was made by a driver that is not installed."""
    change(run, lambda van: setattr(van, 'driver', 'acme'))


def change(run, act):
    """Change the first VAN in the journal."""
    objects_base.VersionedObjectRegistry.register(GoneHandle)
    held = opened(run)
    van = held.entries()[0].van
    act(van)
    held.save(van)
    held.close()


def states(run, *arguments):
    rows = run.fine('van', 'list', '-f', 'json', *arguments).json
    return {row['uuid']: row['state'] for row in rows}


BOTH = {VANS[0]: 'unreadable', VANS[1]: 'plugged'}


@pytest.mark.parametrize('value', ["X'00'", '7', """'{"name": "host:x'"""])
def test_an_instance_that_is_no_text(run, value):
    """Its VAN keeps its handle, and those of the others are still known."""
    held = opened(run)
    with sqlite3.connect(held.path) as db:
        db.execute(
            f'UPDATE van SET instance = {value} WHERE uuid = ?', [VANS[0]]
        )
    assert {each.van_uuid for each in held.handles()} == set(VANS)
    held.close()


@pytest.mark.parametrize('name', ['handle', 'device'])
def test_a_handle_that_is_no_text(run, name):
    """Nobody knows what the VAN has: no device is given out or reported."""
    with sqlite3.connect(opened(run).path) as db:
        db.execute(f"UPDATE van SET {name} = X'00' WHERE uuid = ?", [VANS[0]])
    text = f'VAN {VANS[0]} of instance {INSTANCE} cannot be read: its {name}'
    listed = run('device', 'list')
    assert (listed.code, text in listed.err) == (1, True)
    with pytest.raises(exception.JournalError, match=text):
        opened(run).handles()
    assert VANS[0] in run.fine('van', 'list', '-f', 'json').out
    assert states(run)[VANS[0]] == 'unreadable'
    assert run('unplug', INSTANCE).code == 1
    assert states(run) == {VANS[0]: 'unreadable'}
    run.fine('van', 'forget', VANS[0], '--yes')
    assert states(run) == {}


@pytest.mark.parametrize('group', [None, 77])
@pytest.mark.parametrize('name', ['handle', 'device'])
def test_what_is_damaged_keeps_no_other_van(kernel, name, group):
    """It is released. The damaged one is not, and no row is deleted."""
    functions = '0000:91:00.0', '0000:92:00.0'
    kernel.add_function(functions[0], '10de:1eb8', 0x030200)
    for each in functions[1], '0000:92:00.1':
        kernel.add_function(each, '10de:1eb8', 0x030200, group=group)
    devices.spec({'vendor_id': '10de'})
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize(reset=True)
    wanted = [
        objects.AcceleratorRequest(
            uuid=uuid, handle=objects.PCIHandle(address=address)
        )
        for uuid, address in zip(VANS, functions, strict=True)
    ]
    first = objects.InstanceInfo(uuid=INSTANCE)
    second = objects.InstanceInfo(uuid=OTHER)
    for instance, request in zip((first, second), wanted, strict=True):
        os_acc.plug(instance, [request])
    with sqlite3.connect(os_acc._host.journal.path) as db:
        db.execute(f"UPDATE van SET {name} = X'00' WHERE uuid = ?", [VANS[0]])
    assert os_acc.unplug(second) == 1
    assert pci.get(functions[1]).driver != 'vfio-pci'
    with pytest.raises(exception.UnplugException, match='cannot be read: '):
        os_acc.unplug(first)
    assert pci.get(functions[0]).driver == 'vfio-pci'


def test_van_list(run, unreadable):
    rows = run.fine('van', 'list', '-f', 'json').json
    (row,) = [row for row in rows if row['uuid'] == VANS[0]]
    assert REASON in row.pop('error')
    assert row == {
        'uuid': VANS[0],
        'instance_uuid': INSTANCE,
        'state': 'unreadable',
        'driver': None,
        'plugin': None,
        'handle': 'gone/x7',
        'device': 'fake:test:0000:0c:00.1',
        'live_migratable': None,
        'project_id': None,
    }
    assert states(run) == BOTH
    assert states(run, '--instance', INSTANCE) == BOTH
    assert states(run, '--instance', OTHER) == {}
    assert states(run, '--state', 'unreadable') == {VANS[0]: 'unreadable'}
    assert states(run, '--state', 'plugged') == {VANS[1]: 'plugged'}
    assert REASON in run.fine('van', 'list').out


def test_unplug_dry_run(run, unreadable):
    line = run.fails(1, 'unplug', INSTANCE, '--dry-run')
    assert f'VAN {VANS[0]}' in line
    assert run.fine('unplug', INSTANCE, '--van', VANS[1], '--dry-run')


def test_van_show(run, unreadable):
    shown = run.fine('van', 'show', VANS[0], '-f', 'json').json
    assert REASON in shown.pop('error')
    assert shown.pop('history')[0]['step'] == 'prepareVAN'
    assert shown == {
        'uuid': VANS[0],
        'instance_uuid': INSTANCE,
        'state': 'unreadable',
        'state_in_journal': 'plugged',
        'device': 'fake:test:0000:0c:00.1',
        'handle': 'gone/x7',
    }
    shown = run.fine('van', 'show', VANS[1], '-f', 'json').json
    assert shown['state'] == 'plugged'


def test_a_class_that_a_driver_brings_is_readable(
    run, unreadable, monkeypatch
):
    """van list loads no driver, unless it meets a class it does not know."""
    from os_acc import loader

    load_all = loader.load_all

    def load():
        objects_base.VersionedObjectRegistry.register(GoneHandle)
        return load_all()

    monkeypatch.setattr(loader, 'load_all', load)
    assert states(run) == dict.fromkeys(VANS, 'plugged')


def test_device_list(run, unreadable, tmp_path):
    path = tmp_path / 'os-acc.conf'
    path.write_text(
        '[os_acc_fake]\ndevices = nic0:pci:4, gpu0:mdev:4\ndiscover = True\n'
    )
    result = run('--config-file', path, 'device', 'list', '-f', 'json')
    assert result.code == 0
    assert {row['address'] for row in result.json} == {'nic0', 'gpu0'}
    (line,) = result.err.splitlines()
    assert line.startswith(
        f'VAN {VANS[0]} of instance {INSTANCE} is unreadable: '
    )
    assert REASON in line
    assert '(handle gone/x7, device fake:test:0000:0c:00.1)' in line


@pytest.mark.parametrize('address', ['x7', 'fake:test:0000:0c:00.1'])
def test_device_show(run, unreadable, address):
    shown = run.fine('device', 'show', address, '-f', 'json').json
    (text,) = shown['unreadable_vans']
    assert text.startswith(f'{VANS[0]} of instance {INSTANCE}: ')


def test_doctor(run, unreadable, no_daemon):
    rows = run('doctor', '-f', 'json').json
    (row,) = [row for row in rows if row['subject'] == f'VAN {VANS[0]}']
    assert row['verdict'] == 'error'
    assert row['finding'].startswith(f'instance {INSTANCE}: it is unreadable')
    assert REASON in row['finding']
    assert 'handle gone/x7' in row['finding']
    assert f'os-acc van forget {VANS[0]}' in row['what_to_do']
    (row,) = [row for row in rows if row['subject'].startswith('state path')]
    assert row['finding'] == (
        'the journal holds 1 VANs, and 1 rows that are unreadable'
    )


def test_doctor_names_a_van_without_driver(run, without_driver, no_daemon):
    rows = run('doctor', '-f', 'json').json
    (row,) = [row for row in rows if row['subject'] == f'VAN {VANS[0]}']
    assert row['verdict'] == 'error'
    assert "its driver 'acme' is not loaded" in row['finding']
    assert f'os-acc van forget {VANS[0]}' in row['what_to_do']


# --- van forget


def test_forget_an_unreadable_van(run, unreadable):
    result = run.fine('van', 'forget', VANS[0].upper(), '--yes')
    lines = result.out.splitlines()
    assert lines[0].startswith(
        f'VAN {VANS[0]} cannot be released: its row in the journal is '
        'unreadable: '
    )
    assert REASON in lines[0]
    assert lines[1:5] == [
        f'  instance  {INSTANCE}',
        '  driver    unknown',
        '  handle    gone/x7',
        '  device    fake:test:0000:0c:00.1',
    ]
    assert 'Nothing is undone' in result.out
    assert 'assigned to the guest, bound to VFIO' in result.out
    assert lines[-1] == 'forgotten'
    assert states(run) == {VANS[1]: 'plugged'}
    # The device itself is as it was.
    names = os.listdir(run.state_path / 'fake-hardware')
    assert 'handle-test%2F0000:0c:00.1' in names


def test_forget_a_van_whose_driver_is_gone(run, without_driver):
    result = run.fine('van', 'forget', VANS[0], '--yes')
    lines = result.out.splitlines()
    assert "driver 'acme' is missing: the loaded drivers are: " in lines[0]
    assert lines[2:4] == [
        '  driver    acme',
        '  handle    test/0000:0c:00.1',
    ]
    assert lines[-1] == 'forgotten'
    assert states(run) == {VANS[1]: 'plugged'}


def test_forget_a_van_whose_plugin_is_gone(run):
    change(run, lambda van: setattr(van, 'plugin', 'acme'))
    assert run('unplug', INSTANCE, '--van', VANS[0]).code == 1
    result = run.fine('van', 'forget', VANS[0], '--yes')
    assert "plugin 'acme' is missing: the loaded plugins are: " in result.out
    assert states(run) == {VANS[1]: 'plugged'}


def test_forget_logs_the_ids(run, unreadable):
    result = run('-v', 'van', 'forget', VANS[0], '--yes')
    assert result.code == 0
    assert (
        f'[instance: {INSTANCE}] [van: {VANS[0]}] deleted from the journal: '
        'handle gone/x7 on device fake:test:0000:0c:00.1 was not released'
    ) in result.err


def test_forget_refuses_what_can_be_released(run, unreadable):
    line = run.fails(2, 'van', 'forget', VANS[1], '--yes')
    assert line.startswith(f'InvalidRequest: VAN {VANS[1]} can be read')
    assert f'os-acc unplug {INSTANCE} --van {VANS[1]}' in line
    assert states(run) == BOTH


def test_forget_without_a_terminal_needs_yes(run, unreadable):
    result = run('van', 'forget', VANS[0], stdin='y\n')
    assert result.code == 2
    assert 'standard input is not a terminal' in result.err
    assert '--yes' in result.err
    assert 'Nothing is undone' in result.out
    assert states(run) == BOTH


@pytest.mark.parametrize(
    ('answer', 'code', 'left'),
    [
        ('y\n', 0, {VANS[1]: 'plugged'}),
        ('Yes\n', 0, {VANS[1]: 'plugged'}),
        ('n\n', 1, BOTH),
        ('\n', 1, BOTH),
        ('', 1, BOTH),
    ],
)
def test_forget_asks_on_a_terminal(run, unreadable, answer, code, left):
    result = run('van', 'forget', VANS[0], stdin=answer, terminal=True)
    assert result.code == code
    assert 'Forget it? [y/N] ' in result.out
    assert result.out.endswith('not forgotten\n' if code else 'forgotten\n')
    assert states(run) == left


@pytest.mark.parametrize(
    ('van', 'code', 'says'),
    [
        (OTHER, 4, 'see os-acc van list'),
        ('web-1', 2, "VAN is 'web-1', expected a UUID"),
    ],
)
def test_forget_what_is_not_there(run, unreadable, van, code, says):
    assert says in run.fails(code, 'van', 'forget', van, '--yes')
    assert states(run) == BOTH


def test_forget_waits_for_the_instance(run, unreadable, tmp_path):
    path = tmp_path / 'os-acc.conf'
    path.write_text('[os_acc]\nlock_timeout = 0.1\n')
    os_acc.CONF.clear_override('lock_timeout', 'os_acc')
    with locking.Locks(str(run.state_path / 'locks'), 5).instance(INSTANCE):
        result = run('--config-file', path, 'van', 'forget', VANS[0], '--yes')
    assert result.code == 1
    assert f'the lock of instance {INSTANCE}' in result.err
    assert states(run) == BOTH


def test_forget_looks_again_once_it_has_the_lock(run, unreadable, monkeypatch):
    """Another process may have released or changed the VAN meanwhile."""
    held = opened(run)
    instance = locking.Locks.instance

    def take(self, uuid, wait=True):
        held.forget(VANS[0])
        return instance(self, uuid, wait)

    monkeypatch.setattr(locking.Locks, 'instance', take)
    result = run('van', 'forget', VANS[0], '--yes')
    held.close()
    assert result.code == 4
    assert 'forgotten' not in result.out.splitlines()


def test_forget_only_as_the_owner(run, unreadable, monkeypatch):
    owner = os.stat(run.state_path).st_uid
    monkeypatch.setattr(os, 'geteuid', lambda: owner + 1)
    line = run.fails(1, 'van', 'forget', VANS[0], '--yes')
    assert f'belongs to user id {owner}' in line


def test_help_of_forget(run):
    result = run('van', 'forget', '--help')
    assert result.code == 0
    assert '--yes' in result.out
