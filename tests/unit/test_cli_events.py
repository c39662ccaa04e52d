# SPDX-License-Identifier: Apache-2.0

"""os-acc events and metrics, and the history in van show."""

import errno
import json
import os
import sqlite3
import sys
import threading
import types

from command import Command
import prometheus_client
from prometheus_client import parser
import pytest

from os_acc import driver
from os_acc import exception
from os_acc import journal
from os_acc.cli import events as following
from os_acc.cli import history
from os_acc.journal import database
from os_acc.journal import events
from os_acc.kinds.fake.driver import driver as fake

CONF = """
[os_acc]
plugin = noop
[os_acc_fake]
devices = nic0:pci:4, gpu0:mdev:2
discover = True
"""


class Runner(Command):
    """The command on a host with two fake devices."""

    @property
    def general(self):
        directory = self.state_path.parent
        (directory / 'try.conf').write_text(CONF)
        return ['--config-file', str(directory / 'try.conf'), *super().general]

    def plug(self, name, count=1):
        return self.fine(
            'plug', name, '--resource-class', 'CUSTOM_FAKE_PCI',
            '--count', count, '--json',
        ).json['vans']  # fmt: skip

    def events(self, *arguments):
        return self.fine('events', '--json', *arguments).json['events']

    def journal(self):
        return journal.Journal(str(self.state_path), 5, program='nova')


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    return Runner(tmp_path / 'state', capsys, monkeypatch)


def steps(found):
    return [(e['operation'], e['step'], e['result']) for e in found]


PLUGGED = [
    ('plug', 'prepareVAN', 'done'),
    ('plug', 'plug', 'done'),
    ('plug', 'postplug', 'done'),
    ('plug', None, 'done'),
]


def test_what_happened(run):
    (van,) = run.plug('web')
    found = run.events()
    assert steps(found) == PLUGGED
    assert found[0]['van_uuid'] == van['uuid']
    assert found[0]['program'] == 'os-acc'
    assert found[0]['user'] and found[0]['pid']
    assert found[-1]['instance_uuid'] == van['instance_uuid']
    (one,) = json.loads(
        run.fine('events', '-f', 'json', '--van', van['uuid']).out
    )[:1]
    assert (
        one.items()
        >= {
            'subject': f'VAN {van["uuid"]}',
            'step': 'prepareVAN',
            'seconds': found[0]['seconds'],
            'at': found[0]['at'],
            'error': None,
        }.items()
    )


def test_filters(run):
    (one,), (two,) = run.plug('web'), run.plug('db')
    assert steps(run.events('--van', one['uuid'])) == PLUGGED[:3]
    assert steps(run.events('--van', one['uuid'][:8].upper())) == PLUGGED[:3]
    for called in ('db', two['instance_uuid'], two['instance_uuid'][:9]):
        assert steps(run.events('--instance', called)) == PLUGGED
    assert len(run.events('--device', 'nic0')) == 6
    assert len(run.events('--device', two['handle']['identity'])) == 3
    assert run.events('--device', 'gpu0') == []
    first = run.events()[0]['at']
    assert len(run.events('--since', first)) == 8
    assert run.events('--since', first.replace('Z', '-01:00')) == []
    for age in ('90s', '1h', '2w'):
        assert len(run.events('--since', age)) == 8
    assert run.events('--since', '0s') == []


@pytest.mark.parametrize(
    ('arguments', 'text'),
    [
        (['--van', 'web'], 'first 8 or more'),
        (['--since', 'yesterday'], 'such as 90s'),
        (['--since', '999999999w'], 'such as 90s'),
        (['--instance', '95cfe13a-41d1-4b79-8ce3-2922b1cb953'], 'UUID'),
        (['--van', '0f5d1c7e'], 'more characters: 2 UUIDs begin'),
        (['--instance', '0f5d1c7e'], 'more characters: 2 UUIDs begin'),
        (['--follow', '-f', 'csv'], 'JSON with --json'),
        (['--follow', '--json', '--since', '?'], 'such as 90s'),
    ],
)
def test_wrong_input(run, arguments, text):
    made = run.journal()
    uuids = [f'0f5d1c7e-6a83-4b0e-9c59-5f3f1c9be00{n}' for n in (1, 2)]
    made.note([event(van_uuid=u, instance_uuid=u) for u in uuids])
    made.close()
    assert text in run.fails(2, 'events', *arguments)


def event(**values):
    return events.Event(
        **{
            'at': '2026-01-02T03:04:05.678Z',
            'operation': 'plug',
            'step': None,
            'result': 'done',
            **values,
        }
    )


def test_the_table_has_at_most_80_columns(run):
    van = '0f5d1c7e-6a83-4b0e-9c59-5f3f1c9be001'
    made = run.journal()
    made.note(
        [
            event(step='unprepareVAN', van_uuid=van, seconds=99.9),
            event(operation='recover', van_uuid=van, result='restored'),
            event(operation='unplug', instance_uuid=van, seconds=12345.6),
            event(operation='unhealthy', device='0000:3b:00.0'),
            event(operation='program', device='a/very/long/address/of/one'),
        ]
    )
    made.close()
    table = run.fine('events').out
    assert all(len(line) <= 80 for line in table.splitlines())
    for text in (
        '| 2026-01-02 03:04:05 | unprepareVAN | done     | 99.900  | VAN 0f',
        '| recover      | restored |         | VAN 0f5d1c7e ',
        '| unplug (all) | done     | 12346   | instance 0f5d1c7e ',
        '| 0000:3b:00.0 ',
        '| a/very/long/add... ',
    ):
        assert text in table
    long = run.fine('events', '--long').out
    for text in (van, 'a/very/long/address/of/one', 'nova', 'Extension'):
        assert text in long
    subjects = run.fine('events', '-f', 'value', '-c', 'subject').out
    assert subjects.splitlines()[2:4] == [
        f'instance {van}',
        'device 0000:3b:00.0',
    ]


def test_no_journal_yet(run):
    result = run('events')
    assert (result.code, 'no journal' in result.err) == (0, True)
    assert not run.state_path.exists()


class StopError(Exception):
    """Ends --follow, as Ctrl-C does."""


def follow(run, monkeypatch, *arguments, meanwhile=lambda: None):
    """Run events --follow until it has looked twice."""
    pauses = []

    def sleep(_):
        pauses.append(1)
        if len(pauses) == 2:
            raise KeyboardInterrupt
        meanwhile()

    with monkeypatch.context() as patch:
        patch.setattr(following, 'time', types.SimpleNamespace(sleep=sleep))
        return run('events', '--follow', *arguments)


def test_follow(run, monkeypatch):
    made = run.journal()
    made.note([event(operation=f'n{n}', device='f1') for n in range(12)])
    failed = event(
        step='prepareVAN',
        result='failed',
        van_uuid='0f5d1c7e-6a83-4b0e-9c59-5f3f1c9be001',
        device='f1',
        seconds=1.5,
        extension='fake',
        error='DeviceError',
        reason='it does not answer ' * 9,
    )
    done = follow(run, monkeypatch, meanwhile=lambda: made.note([failed]))
    lines = done.out.splitlines()
    assert done.code == 130
    assert [line.split()[2] for line in lines[:10]] == [
        f'n{n}' for n in range(2, 12)
    ]
    assert lines[10] == (
        '2026-01-02 03:04:05  prepareVAN    failed      1.500 s  VAN 0f5d1c7e'
    )
    assert lines[11].startswith('    DeviceError: it does not answer')
    assert all(len(line) <= 80 for line in lines)
    hint = '1 events have an error: --long shows it\n'
    assert run('events').err == hint
    assert run('events', '--long').err == ''
    assert run('events', '-f', 'csv').err == ''
    detailed = follow(run, monkeypatch, '--since', '2025-01-01', '--long').out
    assert '    nova as ' in detailed
    assert '    extension fake' in detailed
    assert ' n0 ' in detailed
    # --json: an object in each line
    found = follow(run, monkeypatch, '--json', '--device', 'f1').out
    assert json.loads(found.splitlines()[-1])['error'] == 'DeviceError'
    made.close()


def test_follow_where_there_is_no_journal_yet(run, monkeypatch):
    def begin():
        made = run.journal()
        made.note([event(operation='first', device='f1')])
        made.close()

    done = follow(run, monkeypatch, meanwhile=begin)
    assert ' first ' in done.out
    assert 'no journal' in done.err


def test_follow_when_the_journal_was_made_anew(run, monkeypatch):
    """The numbers of its events begin at 1 again."""
    made = run.journal()
    made.note([event(operation=f'n{n}', device='f1') for n in range(3)])
    made.close()

    def replace():
        for each in run.state_path.glob('journal*'):
            each.unlink()
        made = run.journal()
        made.note([event(operation='anew', device='f1')])
        made.close()

    done = follow(run, monkeypatch, meanwhile=replace)
    assert [line.split()[2] for line in done.out.splitlines()] == [
        'n0',
        'n1',
        'n2',
        'anew',
    ]


def test_an_event_cannot_control_the_terminal():
    found = event(
        error='DeviceError', reason='it said \33]0;x\7', device='a\33c'
    )
    shown = ''.join(history.lines(found, details=True))
    assert shown.isprintable()
    assert r'\x1b' in shown


def test_follow_shows_a_step_that_has_begun(run, monkeypatch):
    (van,) = run.plug('web')
    made = run.journal()

    def unplug():
        made.mark(made.entries(), 'unplugging')

    for chosen in (
        ('--van', van['uuid'][:8]),
        ('--instance', 'web'),
        ('--instance', van['instance_uuid']),
        ('--device', van['device'].upper()),
        ('--device', van['handle']['address']),
    ):
        made.mark(made.entries(), 'plugged')
        out = follow(run, monkeypatch, *chosen, meanwhile=unplug).out
        begun = [line for line in out.splitlines() if ' begun ' in line]
        assert len(begun) == 1
        assert ' unplug ' in begun[0]
        assert begun[0].endswith(f'VAN {van["uuid"][:8]}')
    others = ('--instance', 'other'), ('--van', 'f' * 8), ('--device', 'x')
    for chosen in others:
        assert ' begun ' not in follow(run, monkeypatch, *chosen).out
    line = follow(run, monkeypatch, '--json').out.splitlines()[-1]
    event = json.loads(line)
    assert (event['operation'], event['step']) == ('unplug', 'unplug')
    assert (event['result'], event['seq']) == ('begun', None)
    made.close()


@pytest.fixture
def read_only_disk(run):
    """Where sqlite cannot make its files beside the journal.

    Call it to make the disk writable again.
    """
    statvfs, connect = os.statvfs, sqlite3.connect
    patch = pytest.MonkeyPatch()

    def look(name):
        found = list(statvfs(name))
        found[8] |= os.ST_RDONLY
        return os.statvfs_result(found)

    def refuse(name, *args, **kwargs):
        if str(run.state_path) in str(name):
            err = sqlite3.OperationalError('unable to open database file')
            err.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise err
        return connect(name, *args, **kwargs)

    def start():
        patch.setattr(os, 'statvfs', look)
        patch.setattr(database.sqlite3, 'connect', refuse)
        return patch.undo

    yield start
    patch.undo()


def test_a_reader_sees_what_is_written_after_a_failure(run, read_only_disk):
    """It read a copy from its first failure on."""
    run.plug('web')
    reader = journal.Journal(str(run.state_path), 5, read_only=True)
    writable = read_only_disk()
    for _ in range(2):
        with pytest.raises(exception.JournalError, match='read-only'):
            reader.events()
    writable()
    before = len(reader.events())
    made = run.journal()
    made.note([event(operation='later', device='f1')])
    made.close()
    assert len(reader.events()) == before + 1
    assert reader.events()[-1].operation == 'later'
    reader.close()


def test_van_show_has_the_history(run):
    (van,) = run.plug('web')
    shown = run.fine('van', 'show', van['uuid'], '-f', 'json').json
    assert steps(shown['history']) == PLUGGED[:3]
    for name in (
        'device_profile_name',
        'device_profile_group_id',
        'device_rp_uuid',
    ):
        assert shown[name] is None
    table = run.fine('van', 'show', van['uuid']).out
    assert 'prepareVAN done 0.' in table
    failed = event(result='failed', error='OSError', step='plug')
    assert history.History([failed]).human_readable() == (
        '2026-01-02 03:04:05 plug failed OSError'
    )


def test_forget_and_free_are_events(run, monkeypatch):
    (van,) = run.plug('web')
    made = run.journal()
    made.save_unhealthy(unhealthy())
    with pytest.MonkeyPatch.context() as patch:
        from os_acc import loader

        load = loader.load_all

        def without_fake():
            found = load()
            return loader.Extensions(
                {n: d for n, d in found.drivers.items() if n != 'fake'},
                found.plugins,
                found.errors,
            )

        patch.setattr(loader, 'load_all', without_fake)
        assert run('van', 'forget', van['uuid'], '--yes').code == 0
    run.fine('device', 'free', 'f1')
    made.close()
    forgotten, freed = run.events()[-2:]
    assert (forgotten['operation'], forgotten['van_uuid']) == (
        'forget',
        van['uuid'],
    )
    assert "driver 'fake' is missing" in forgotten['reason']
    assert (freed['operation'], freed['device']) == ('free', 'f1')


def test_free_tells_what_it_has_done_before_it_fails(run, monkeypatch):
    """The device waits for a power cycle, which only the reboot ends."""
    from os_acc.journal import health
    from os_acc.kernel import sysfs

    run.plug('web')
    monkeypatch.setattr(
        driver.DriverBase, 'free_device', lambda *_: ['it was erased']
    )
    made = run.journal()
    made.save_unhealthy(
        health.Health('f1', health.REBOOT, 'aes', sysfs.boot_id(), '2026', 'x')
    )
    made.close()
    result = run('device', 'free', 'f1')
    assert result.code != 0
    assert 'power-cycle the host' in result.err
    assert 'f1: it was erased' in result.out
    freed = run.events()[-1]
    assert (freed['operation'], freed['device']) == ('free', 'f1')
    assert 'it was erased' in freed['reason']


def unhealthy():
    from os_acc.journal import health

    return health.Health('f1', health.CLEANING, 'not clean', 'b', '2026', 'x')


# --- metrics


def samples(text):
    """The samples of a text of Prometheus, by name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics(run):
    run.plug('web', 3)
    failed = run(
        '--config-file', failing(run), 'plug', 'db', '--resource-class',
        'CUSTOM_FAKE_PCI',
    )  # fmt: skip
    assert failed.code == 1
    run.fine('unplug', 'web')
    run.plug('web', 3)
    text = run.fine('metrics').out
    found = samples(text)
    device = (('driver', 'fake'), ('resource_class', 'CUSTOM_FAKE_PCI'))
    assert found['os_acc_vans', ('state', 'plugged')] == 3
    assert found['os_acc_vans', ('state', 'error')] == 0
    assert found['os_acc_devices', *device] == 1
    assert found['os_acc_devices_free', *device] == 1
    assert found['os_acc_handles', *device] == 4
    assert found['os_acc_handles_free', *device] == 1
    assert found[('os_acc_discovery_failed',)] == 0
    for call, result, count in (
        ('plug', 'done', 2),
        ('plug', 'failed', 1),
        ('unplug', 'done', 1),
        ('unplug', 'failed', 0),
    ):
        name, of = f'os_acc_{call}_duration_seconds', ('result', result)
        assert found[f'{name}_count', of] == count
        assert found[f'{name}_bucket', ('le', '+Inf'), of] == count
        assert (found[f'{name}_sum', of] > 0) == (count > 0)
    assert (
        found[
            'os_acc_failures_total',
            ('error', 'RuntimeError'),
            ('extension', 'fake'),
            ('operation', 'plug'),
            ('step', 'postplug'),
        ]
        == 1
    )
    assert found['os_acc_recovered_vans_total', ('result', 'released')] == 0


def failing(run):
    """A configuration in which the driver fake fails."""
    path = run.state_path.parent / 'failing.conf'
    path.write_text('[os_acc_fake]\nfail = postplug\n')
    return path


def test_metrics_after_a_recovery(run):
    run.plug('web', 2)
    opened = run.journal()
    opened.mark(opened.entries(), 'unplugging')
    opened.close()
    before = samples(run.fine('metrics').out)
    assert before['os_acc_vans', ('state', 'unplugging')] == 2
    assert run('recover').code == 0
    found = samples(run.fine('metrics').out)
    for result, count in (('released', 2), ('restored', 0), ('failed', 0)):
        name = 'os_acc_recovered_vans_total'
        assert found[name, ('result', result)] == count
    assert found['os_acc_vans', ('state', 'unplugging')] == 0


def test_metrics_tell_whether_there_is_a_journal(run):
    found = samples(run.fine('metrics').out)
    assert found[('os_acc_journal_exists',)] == 0
    run.fine('plug', 'web', '--resource-class', 'CUSTOM_FAKE_PCI')
    found = samples(run.fine('metrics').out)
    assert found[('os_acc_journal_exists',)] == 1


def test_metrics_to_a_file(run, tmp_path):
    path = tmp_path / 'os_acc.prom'
    path.write_text('of an earlier run')
    assert run.fine('metrics', '--output', path).out == ''
    assert ('os_acc_vans', ('state', 'plugged')) in samples(path.read_text())
    assert [n for n in os.listdir(tmp_path) if n.startswith('os_acc')] == [
        'os_acc.prom'
    ]
    wrong = run.fails(2, 'metrics', '--output', tmp_path / 'no' / 'x.prom')
    assert 'a regular file to replace (No such file' in wrong


@pytest.mark.parametrize('kind', ['pipe', 'directory', 'device'])
def test_metrics_replace_regular_files_only(run, tmp_path, kind):
    path = tmp_path / 'here'
    if kind == 'pipe':
        os.mkfifo(path)
    elif kind == 'directory':
        path.mkdir()
    else:
        path.symlink_to('/dev/null')
    before = os.stat(path)
    wrong = run.fails(2, 'metrics', '--output', path)
    assert 'a new file, or a regular file to replace' in wrong
    after = os.stat(path)
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


def test_metrics_keep_a_link(run, tmp_path):
    real, link = tmp_path / 'real.prom', tmp_path / 'link.prom'
    real.write_text('of an earlier run')
    link.symlink_to(real)
    run.fine('metrics', '--output', link)
    assert link.is_symlink()
    assert 'os_acc_vans' in real.read_text()


def test_metrics_replace_the_link_of_another_user(run, tmp_path, monkeypatch):
    """It could lead to any file, which root would overwrite."""
    victim, link = tmp_path / 'passwd', tmp_path / 'os_acc.prom'
    victim.write_text('root:x:0:0')
    link.symlink_to(victim)
    if os.geteuid() == 0:
        os.lchown(link, 65534, 65534)
    else:
        monkeypatch.setattr(os, 'geteuid', lambda: 65534)
    run.fine('metrics', '--output', link)
    assert victim.read_text() == 'root:x:0:0'
    assert not link.is_symlink()
    assert 'os_acc_vans' in link.read_text()


def test_metrics_follow_no_link_in_the_place_of_the_new_file(
    run, tmp_path, monkeypatch
):
    victim, path = tmp_path / 'passwd', tmp_path / 'os_acc.prom'
    victim.write_text('root:x:0:0')
    # The name that prometheus_client gives the new file.
    there = f'{path}.{os.getpid()}.{threading.current_thread().ident}'
    os.symlink(victim, there)
    run.fine('metrics', '--output', path)
    assert victim.read_text() == 'root:x:0:0'


def test_metrics_on_a_full_disk(run, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, 'replace', fail)
    path = tmp_path / 'new' / 'os_acc.prom'
    path.parent.mkdir()
    # Not the code for wrong arguments: the next attempt may succeed.
    error = run.fails(1, 'metrics', '--output', path)
    assert error == f"OSError: [Errno 28] No space left on device: '{path}'\n"
    assert list(path.parent.iterdir()) == []


def test_metrics_where_a_driver_fails(run, monkeypatch):
    def fail(_):
        raise OSError('no answer')

    monkeypatch.setattr(fake.FakeDriver, 'get_devices', fail)
    result = run('metrics')
    assert (result.code, 'no answer' in result.err) == (0, True)
    assert samples(result.out)[('os_acc_discovery_failed',)] == 1


def test_metrics_without_the_package(run, monkeypatch):
    assert prometheus_client is not None
    monkeypatch.setitem(sys.modules, 'prometheus_client', None)
    error = run.fails(1, 'metrics')
    assert 'prometheus_client' in error
    assert "pip install 'os-acc[metrics]'" in error
    assert exception.MissingPackage.__name__ in error
