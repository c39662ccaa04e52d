# SPDX-License-Identifier: Apache-2.0

"""The os-acc command tells what happened, and changes nothing it need not."""

import os
import pathlib
import sqlite3

import command
import pytest

import os_acc
from os_acc import journal
from os_acc.cli import exit_codes
from os_acc.cli import names
from os_acc.journal import database
from os_acc.privileged import context
from os_acc.privileged import privsep

DATA = pathlib.Path(__file__).parent.parent / 'data'
FAKE = DATA / 'bound-arqs-fake.json'
INSTANCE = 'ac407c84-63e6-412c-91a9-6bf933a420ad'
VANS = [
    '061c0c22-0139-4404-af0c-dad4469dc6b7',
    '55eba8b3-4994-44b8-94ef-d6b0bcc48fbd',
]
OTHER = 'b5a2c9a4-7b1c-4e70-8a4e-30a4c1a3a7f1'


class Command(command.Command):
    def plug(self):
        return self.fine('plug', INSTANCE, '--arqs', FAKE, '-f', 'json')

    def leave(self, *vans):
        """Leave VANs half unplugged, as a killed command does."""
        opened = journal.Journal(str(self.state_path), 5)
        left = [e for e in opened.entries() if e.van.uuid in vans]
        opened.mark(left, 'unplugging')
        opened.close()

    def vans(self):
        rows = self.fine('van', 'list', '-f', 'json').json
        return {row['uuid']: row['state'] for row in rows}


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    os_acc.CONF.set_override('host', 'vm', 'os_acc')
    return Command(tmp_path / 'state', capsys, monkeypatch)


# --- what a recovery did before the command


def told(van):
    return (
        f'Recovery before this command: VAN {van} of instance {INSTANCE} '
        f'(test/0000:0c:00.{VANS.index(van) + 1}) released\n'
    )


def test_unplug_that_the_recovery_has_completed(run):
    run.plug()
    run.leave(*VANS)
    result = run('unplug', INSTANCE)
    assert (result.code, result.out) == (
        0,
        'released 2 (2 by the recovery before this command)\n',
    )
    assert sorted(result.err.splitlines(True)) == sorted(map(told, VANS))


def test_unplug_that_the_recovery_has_begun(run):
    run.plug()
    run.leave(VANS[0])
    result = run('unplug', INSTANCE, '--json')
    assert result.json['released'] == 2
    assert result.json['released_by_recovery'] == 1
    assert result.err == told(VANS[0])


def test_unplug_counts_only_what_it_was_asked_for(run):
    run.plug()
    run.leave(VANS[0])
    result = run('unplug', INSTANCE, '--van', VANS[1])
    assert (result.out, result.err) == ('released 1\n', told(VANS[0]))


def test_plug_says_what_the_recovery_did(run):
    run.plug()
    run.leave(VANS[1])
    result = run('plug', INSTANCE, '--arqs', FAKE, '-f', 'json')
    assert (result.code, result.err) == (0, told(VANS[1]))


# --- a mistyped state path


@pytest.mark.parametrize('arguments', [['recover'], ['unplug', INSTANCE]])
def test_no_journal_is_made(run, arguments):
    result = run(*arguments)
    assert result.code == 0
    assert f'There is no journal {run.state_path}/journal.db' in result.err
    assert 'nothing' in result.err
    assert not run.state_path.exists()


def test_van_forget_makes_no_journal(run):
    assert OTHER in run.fails(4, 'van', 'forget', OTHER, '--yes')
    assert not run.state_path.exists()


# --- a journal that sqlite cannot open


@pytest.fixture
def closed(run, monkeypatch):
    """Make the file system of the journal read-only, or its disk full."""
    run.plug()
    real = os.statvfs
    connect = sqlite3.connect

    def close(flag=0, free=1 << 20):
        def statvfs(path):
            found = list(real(path))
            if str(path).startswith(str(run.state_path)):
                found[4], found[8] = free // found[1], found[8] | flag
            return os.statvfs_result(found)

        def refuse(name, *args, **kwargs):
            if str(run.state_path) in str(name):
                err = sqlite3.OperationalError('unable to open database file')
                err.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
                raise err
            return connect(name, *args, **kwargs)

        monkeypatch.setattr(os, 'statvfs', statvfs)
        monkeypatch.setattr(database.sqlite3, 'connect', refuse)

    return close


READ_ONLY = 'is mounted read-only'
FULL = 'is full'


@pytest.mark.parametrize(
    ('how', 'why'),
    [({'flag': os.ST_RDONLY}, READ_ONLY), ({'free': 0}, FULL)],
)
@pytest.mark.parametrize(
    'arguments',
    [
        ('van', 'list'),
        ('events',),
        ('events', '--follow'),
        ('plug', INSTANCE, '--arqs', FAKE),
    ],
)
def test_where_sqlite_cannot_make_files(run, closed, how, why, arguments):
    closed(**how)
    line = run.fails(1, *arguments)
    assert 'cannot open it: unable to open database file' in line
    assert why in line
    assert 'may not read and write it' not in line


def test_a_journal_that_cannot_be_opened_for_another_reason(run, closed):
    closed()
    line = run.fails(1, 'van', 'list')
    assert 'unable to open database file' in line


# --- UUIDs and their first characters


def test_prefixes(run):
    run.plug()
    assert (
        run.fine('van', 'show', VANS[0][:8], '-f', 'json').json['uuid']
        == (VANS[0])
    )
    for called in (INSTANCE[:8], INSTANCE[:20], INSTANCE[:10].upper()):
        rows = run.fine('van', 'list', '--instance', called, '-f', 'json').json
        assert len(rows) == 2
    done = run.fine('unplug', INSTANCE[:8], '--van', VANS[0][:9])
    assert done.out == 'released 1\n'
    assert run.vans() == {VANS[1]: 'plugged'}
    # A new instance may have such a name. It is not the instance.
    line = run.fails(2, 'plug', INSTANCE[:8], '--arqs', FAKE)
    assert f'the UUID of instance {INSTANCE} begins with these' in line
    assert run.vans() == {VANS[1]: 'plugged'}


def test_a_prefix_of_nothing(run):
    run.plug()
    assert 'ffffffff' in run.fails(4, 'van', 'show', 'ffffffff')
    assert 'see van list' in run.fails(4, 'van', 'show', 'no-such-instance')
    line = run.fails(4, 'unplug', INSTANCE, '--van', 'ffffffff')
    assert f'a VAN of instance {INSTANCE}' in line
    # A short word is a name of an instance, and never a part of a UUID.
    result = run('unplug', INSTANCE[:7])
    assert result.code == 0
    assert f"no record of an instance '{INSTANCE[:7]}'" in result.err
    assert result.out == f'released 0: instance {INSTANCE[:7]} has none\n'
    assert len(run.vans()) == 2


def test_an_ambiguous_prefix():
    known = [f'abcdabcd-000{n}-{OTHER[14:]}' for n in (0, 1)]
    with pytest.raises(os_acc.exception.InvalidRequest) as caught:
        names.van(known, 'abcdabcd', 'van forget: VAN')
    assert exit_codes.of(caught.value) == exit_codes.WRONG_USAGE
    assert '2 UUIDs begin with these' in str(caught.value)
    assert known[0] in str(caught.value)
    assert names.van(known, 'ABCDABCD0001', 'van forget: VAN') == known[1]


@pytest.mark.parametrize(
    ('text', 'start'),
    [
        (OTHER.upper(), OTHER),
        (OTHER.replace('-', ''), OTHER),
        (OTHER[:8], OTHER[:8]),
        (OTHER[:9], OTHER[:8]),
        (OTHER[:30], OTHER[:30]),
        (OTHER[:31], None),
        (OTHER.replace('-', '')[:14], OTHER[:16]),
        (OTHER[:7], None),
        (OTHER + '0', None),
        ('web-1', None),
        ('', None),
    ],
)
def test_the_beginning_of_a_uuid(text, start):
    assert names.beginning(text) == start


def test_every_command_takes_the_same_prefixes(run):
    run.plug()
    short = ('van', 'show', VANS[0][:7]), ('van', 'forget', VANS[0][:7])
    short += (('unplug', INSTANCE, '--van', VANS[0][:7]),)
    short += (('events', '--van', VANS[0][:7]),)
    for arguments in short:
        line = run.fails(2, *arguments)
        assert 'a UUID, or the first 8 or more characters of one' in line
    digits = VANS[0].replace('-', '')[:9]
    for called in (VANS[0][:8], digits, VANS[0][:10].upper()):
        shown = run.fine('van', 'show', called, '-f', 'json').json
        assert shown['uuid'] == VANS[0]
        found = run.fine('events', '--van', called, '--json').json['events']
        assert {each['van_uuid'] for each in found} == {VANS[0]}


def test_the_first_characters_of_a_mediated_device():
    known = ['abcdabcd-' + OTHER[9:], 'abcdabce-' + OTHER[9:]]
    assert names.mediated_device(known, 'abcdabcd') == known[0]
    for other in ('abcd', 'nic0', '0000:3b:02.1', OTHER):
        assert names.mediated_device(known, other) == other
    with pytest.raises(os_acc.exception.InvalidRequest, match='2 UUIDs'):
        names.mediated_device([OTHER, OTHER[:-1] + '0'], OTHER[:8])


# --- exit codes


def test_codes_of_causes():
    busy = os_acc.exception.DeviceBusy(device='x', reason='y')
    err = os_acc.exception.PlugException(instance='i', err='e')
    assert exit_codes.of(err) == exit_codes.FAILED
    err.__cause__ = busy
    assert exit_codes.of(err) == exit_codes.BUSY
    err.undo_errors = [busy]
    assert exit_codes.of(err) == exit_codes.FAILED
    missing = os_acc.exception.DeviceNotFound(wanted='w', reason='r')
    unplug = os_acc.exception.UnplugException(instance='i', err='e')
    unplug.__cause__ = missing
    assert exit_codes.of(unplug) == exit_codes.BUSY
    assert exit_codes.of(missing) == exit_codes.NOT_FOUND


def test_the_table_of_the_documentation():
    page = DATA.parent.parent / 'doc/source/cli.rst'
    text = ' '.join(page.read_text().split())
    for code, meaning in exit_codes.MEANINGS.items():
        assert f' {code} {meaning} ' in text


# --- the privileged daemon


def test_a_helper_whose_caller_has_ended_says_nothing(monkeypatch):
    told = []
    act = privsep.tell_unless_caller_ended
    for err in (ConnectionRefusedError(111, 'refused'), OSError(5, 'i/o')):
        act(lambda *args: told.append(args), type(err), err, None)
    assert [kind for kind, _, _ in told] == [OSError]


def test_a_process_waits_for_the_daemon_that_it_starts(monkeypatch):
    registered = []
    monkeypatch.setattr(
        context.atexit, 'register', lambda *args: registered.append(args)
    )
    monkeypatch.setattr(context, 'load', lambda: None)
    context.start_in_background()
    ((join, seconds),) = registered
    assert seconds == privsep.LONGEST_WAIT
    join(seconds)
