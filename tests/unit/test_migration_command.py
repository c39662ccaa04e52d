# SPDX-License-Identifier: Apache-2.0

"""os-acc migration list, check, finish and abort."""

from __future__ import annotations

import uuid

import command
import movable
import pytest

import acc_plug_noop
from os_acc import exception
from os_acc import journal
from os_acc import locking
from os_acc.cli import exit_codes

MIGRATION = str(uuid.uuid4())
PCI = ('--resource-class', 'CUSTOM_FAKE_PCI')


class Command(command.Command):
    """The command, with a configuration file of fake devices."""

    configuration = ''

    @property
    def general(self):
        return ['--config-file', self.configuration, *super().general]

    def leave(self, state):
        """Leave a migration whose caller has died."""
        opened = journal.Journal(str(self.state_path), 5)
        vans = opened.vans()
        for van in vans:
            van.state, van.migration_uuid = state, MIGRATION
        opened.save_all(vans)
        opened.close()

    def states(self):
        found = self('van', 'list', '--json').json['vans']
        return {van['state'] for van in found}


@pytest.fixture
def run(clean, tmp_path, capfd, monkeypatch):
    path = tmp_path / 'os-acc.conf'
    path.write_text(
        '[os_acc]\nplugin = noop\n[os_acc_fake]\ndevices = nic0:pci:4\n'
        'discover = True\n'
    )
    made = Command(tmp_path / 'state', capfd, monkeypatch)
    made.configuration = str(path)
    assert made('plug', 'web', *PCI, '--count', '2').code == 0
    return made


@pytest.mark.parametrize(
    ('way', 'runs', 'code'),
    [('cold', True, 2), ('replug', True, 0), ('replug', False, 0)],
)
def test_a_guest_must_shut_down_within_migration_timeout(
    run, monkeypatch, way, runs, code
):
    """The target would not switch later. A guest may be copied for longer."""
    movable.install(monkeypatch, acc_plug_noop.NoopPlugin, 'noop', runs)
    move = ('migrate', 'web', '--to', 'ssh://two', '--dry-run', '--way', way)
    assert run(*move, '--timeout', '3599').code == 0
    result = run(*move, '--timeout', '3600')
    assert result.code == code
    said = 'less than [os_acc] migration_timeout (3600)'
    assert (said in result.err.replace('\n', ' ')) is (code == 2)


def test_a_second_migrate_is_refused_at_once(run, monkeypatch):
    movable.install(monkeypatch, acc_plug_noop.NoopPlugin, 'noop', True)
    (uuid_,) = {
        van['instance_uuid']
        for van in run('van', 'list', '--json').json['vans']
    }
    locks = locking.Locks(str(run.state_path / 'locks'), 5)
    with locks.move(uuid_):
        result = run('migrate', 'web', '--to', 'ssh://two')
    assert result.code == exit_codes.BUSY
    assert 'another os-acc migrate moves it' in ' '.join(result.err.split())
    assert run.states() == {'plugged'}


def test_list(run):
    assert run('migration', 'list', '-f', 'json').json == []
    run.leave('incoming')
    (row,) = run('migration', 'list', '-f', 'json').json
    assert row.pop('changed')
    assert row.pop('instance_uuid')
    assert row == {
        'instance_name': 'web',
        'migration_uuid': MIGRATION,
        'host': 'target',
        'vans': 2,
    }


def test_check(run):
    result = run('migration', 'check', 'web', '-f', 'json')
    assert result.code == 0
    assert [each['way'] for each in result.json] == ['replug', 'replug']
    assert {each['obstacle'] for each in result.json} == {None}
    assert result.json[0]['request'] == {'resource_class': 'CUSTOM_FAKE_PCI'}


def test_check_says_what_cannot_move(run, monkeypatch):
    from os_acc.moving import plans

    monkeypatch.setattr(plans, '_obstacle', lambda request: 'it is')
    result = run('migration', 'check', 'web')
    assert result.code == 3
    assert 'it is' in result.out


def test_finish_on_the_source(run):
    run.leave('outgoing')
    result = run('migration', 'finish', 'web', '-f', 'json')
    assert [each['result'] for each in result.json] == ['released'] * 2
    assert run.states() == set()


def test_finish_on_the_target_needs_a_guest_or_a_promise(run):
    run.leave('incoming')
    result = run('migration', 'finish', 'web')
    assert result.code == 1
    assert '--handed-over' in result.err.replace('\n', ' ')
    assert run.states() == {'incoming'}
    result = run('migration', 'finish', 'web', '--handed-over', '-f', 'json')
    assert [each['result'] for each in result.json] == ['plugged'] * 2
    assert run.states() == {'plugged'}


def test_abort(run):
    run.leave('outgoing')
    result = run('migration', 'abort', 'web', '-f', 'json')
    assert [each['result'] for each in result.json] == ['plugged'] * 2
    assert run.states() == {'plugged'}
    run.leave('incoming')
    result = run('migration', 'abort', 'web', '-f', 'json')
    assert [each['result'] for each in result.json] == ['released'] * 2
    assert run.states() == set()


@pytest.mark.parametrize(
    ('state', 'name', 'is_told'),
    [
        ('outgoing', 'finish', True),
        ('incoming', 'abort', True),
        ('outgoing', 'abort', False),
    ],
)
def test_the_definition_of_a_guest_that_is_elsewhere_is_told(
    run, monkeypatch, state, name, is_told
):
    """A cold move that was killed leaves it on both hosts."""
    monkeypatch.setattr(
        acc_plug_noop.NoopPlugin,
        'undefine_command',
        lambda _, info: f'virsh undefine {info.name}',
    )
    run.leave(state)
    result = run('migration', name, 'web')
    assert result.code == (3 if is_told else 0)
    said = result.err.replace('\n', ' ')
    assert ('remove the definition here: virsh undefine web' in said) is (
        is_told
    )
    assert run.states() == (set() if is_told else {'plugged'})


def test_a_hypervisor_that_is_silent_after_the_abort(run, monkeypatch):
    def fail(*_):
        raise exception.HypervisorError(what='libvirt', reason='silent')

    monkeypatch.setattr(acc_plug_noop.NoopPlugin, 'undefine_command', fail)
    run.leave('incoming')
    result = run('migration', 'abort', 'web')
    assert result.code == 0
    assert 'is not known: libvirt: silent' in result.err.replace('\n', ' ')
    assert run.states() == set()


def test_no_abort_on_the_source_while_the_guest_is_being_moved(
    run, monkeypatch
):
    monkeypatch.setattr(acc_plug_noop.NoopPlugin, 'has_guest', lambda *_: True)
    run.leave('outgoing')
    result = run('migration', 'abort', 'web')
    assert result.code == 1
    assert 'is being moved' in result.err.replace('\n', ' ')
    assert run.states() == {'outgoing'}


@pytest.mark.parametrize('name', ['finish', 'abort'])
def test_what_is_not_moved_is_not_found(run, name):
    result = run('migration', name, 'web')
    assert result.code == 4
    assert 'os-acc migration list' in result.err.replace('\n', ' ')
    assert run.states() == {'plugged'}


def test_plug_and_dry_run_name_the_way_out(run):
    run.leave('incoming')
    for extra in ((), ('--dry-run',)):
        result = run('plug', 'web', *PCI, '--count', '2', *extra)
        assert result.code == 1
        assert 'os-acc migration abort' in result.err.replace('\n', ' ')
    assert run.states() == {'incoming'}


def test_doctor_shows_it(run, monkeypatch):
    from os_acc.cli import base
    from os_acc.doctor import vans

    run.leave('outgoing')
    opened = base.look()
    try:
        found = [
            finding
            for entry in opened.journal.entries()
            for finding in vans.findings(opened, entry)
        ]
    finally:
        opened.close()
    assert len(found) == 2
    assert all(MIGRATION in each.text for each in found)
