# SPDX-License-Identifier: Apache-2.0


"""Writes of several threads, commits that fail, a file that is replaced."""

from __future__ import annotations

from concurrent import futures
import contextlib
import os
import signal
import sqlite3
import threading
import time

import pytest
from test_journal import make_entry
from test_journal import new_uuid
from test_journal import raw
from test_journal import read_again
from test_journal import test_handle as named
from test_journal import uuids

from os_acc import exception
from os_acc import journal
from os_acc.journal import database
from os_acc.journal import desired
from os_acc.journal import file as journal_file


@pytest.fixture
def state_path(tmp_path):
    return str(tmp_path / 'state')


@pytest.fixture
def opened(state_path):
    made = journal.Journal(state_path, 10)
    yield made
    made.close()


class Connection(sqlite3.Connection):
    """Fails or interrupts the commits that it is told to."""

    fail: BaseException | None = None
    durable = False
    #: Raised by the first statement after a commit that failed.
    then: BaseException | None = None
    #: Called before each transaction, and before each commit.
    before_begin = before_commit = staticmethod(lambda: None)
    #: Returns an error that rolls the whole transaction back, or None.
    before_statement = staticmethod(lambda statement: None)

    def execute(self, statement, *values):
        cls = type(self)
        if (fatal := cls.before_statement(statement)) is not None:
            super().execute('ROLLBACK')
            raise fatal
        if statement == 'BEGIN IMMEDIATE':
            cls.before_begin()
        if statement != 'COMMIT':
            if cls.then is not None and cls.fail is None:
                err, cls.then = cls.then, None
                raise err
            return super().execute(statement, *values)
        cls.before_commit()
        err, cls.fail = cls.fail, None
        if err is not None and not cls.durable:
            raise err
        done = super().execute(statement)
        if err is not None:
            raise err
        return done


@pytest.fixture
def connection(monkeypatch):
    connect = sqlite3.connect

    class Fresh(Connection):
        pass

    def make(path, **kwargs):
        # Only os-acc's connections: those of raw() are another process's.
        if kwargs.get('uri'):
            kwargs['factory'] = Fresh
        return connect(path, **kwargs)

    monkeypatch.setattr(sqlite3, 'connect', make)
    return Fresh


@contextlib.contextmanager
def held_up(opened):
    """Another process writes: those who write now wait together."""
    with raw(opened.path) as db:
        db.execute('BEGIN IMMEDIATE')
        yield
        db.execute('COMMIT')


def all_at_once(opened, *acts):
    """Call acts in threads, which have to wait for each other."""
    with futures.ThreadPoolExecutor(len(acts)) as pool:
        with held_up(opened):
            running = [pool.submit(act) for act in acts]
            time.sleep(0.3)
            assert not any(future.done() for future in running)
        futures.wait(running, 30)
    return [future.exception(0) for future in running]


# --- writes of several threads


def test_writes_of_several_threads(opened):
    entries = [make_entry() for _ in range(8)]
    errors = all_at_once(
        opened, *[lambda e=entry: opened.add([e]) for entry in entries]
    )
    assert errors == [None] * 8
    assert sorted(uuids(opened.entries())) == sorted(uuids(entries))


def test_one_that_fails_undoes_nothing_of_the_others(opened):
    opened.add([make_entry(claim='taken')])
    good = [make_entry() for _ in range(3)]
    # All or none of its own rows.
    bad = [make_entry(), make_entry(claim='taken')]
    errors = all_at_once(
        opened,
        lambda: opened.add(good[:1]),
        lambda: opened.add(bad),
        lambda: opened.add(good[1:2]),
        lambda: opened.save(make_entry().van),
        lambda: opened.add(good[2:]),
    )
    assert isinstance(errors[1], exception.DeviceBusy)
    assert isinstance(errors[3], exception.JournalError)
    assert [errors[at] for at in (0, 2, 4)] == [None] * 3
    assert sorted(uuids(opened.entries())[1:]) == sorted(uuids(good))


def test_an_error_of_a_commit_reaches_its_writer_only(connection, opened):
    def add():
        opened.add([make_entry()])

    connection.fail = sqlite3.OperationalError('disk I/O error')
    errors = all_at_once(opened, add, add, add)
    assert sorted(map(str, errors)) == [
        f'Journal {opened.path}: disk I/O error',
        'None',
        'None',
    ]
    assert len(opened.entries()) == 2


def test_an_error_of_sqlite_has_the_name_of_its_cause(connection, opened):
    """'disk I/O error' is all that sqlite's text says of thirty causes."""
    err = sqlite3.OperationalError('disk I/O error')
    err.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    err.sqlite_errorname = 'SQLITE_IOERR_FSYNC'
    connection.fail = err
    with pytest.raises(exception.JournalError) as caught:
        opened.add([make_entry()])
    assert 'disk I/O error (SQLITE_IOERR_FSYNC)' in str(caught.value)


def test_a_transaction_that_sqlite_rolls_back(connection, opened):
    """sqlite may do so if the disk is full. No row of it is on the disk."""
    good = [make_entry(), make_entry()]
    opened.add(good)

    updates = []

    def roll_back(statement):
        updates.append(statement.startswith('UPDATE'))
        if sum(updates) == 2:
            connection.before_statement = staticmethod(lambda *_: None)
            return sqlite3.OperationalError('database or disk is full')
        return None

    connection.before_statement = staticmethod(roll_back)
    with pytest.raises(exception.JournalError, match='disk is full'):
        opened.mark(good, 'unplugging')
    assert opened.entries() == good
    assert [each.van.state for each in opened.entries()] == ['preparing'] * 2
    opened.mark(good, 'unplugging')
    assert [each.van.state for each in opened.entries()] == ['unplugging'] * 2


def test_an_error_closes_the_idle_connections_too(connection, opened):
    """On a full disk, closing the last one deletes the write-ahead log."""
    opened.add([make_entry()])
    together = threading.Barrier(3, timeout=300)

    def wait(statement):
        if statement.startswith('SELECT * FROM van'):
            together.wait()

    connection.before_statement = staticmethod(wait)
    with futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: opened.entries(), range(3)))
    connection.before_statement = staticmethod(lambda _: None)
    assert os.path.exists(f'{opened.path}-wal')
    connection.fail = sqlite3.OperationalError('database or disk is full')
    # The look whether it is there all the same leaves one idle connection.
    connection.then = sqlite3.OperationalError('disk I/O error')
    with pytest.raises(exception.JournalError, match='disk is full'):
        opened.add([make_entry()])
    assert not os.path.exists(f'{opened.path}-wal')
    assert len(opened.entries()) == 1


def test_an_error_of_a_commit_that_worked_is_none(connection, opened):
    """Whoever asks the journal finds that all is there."""
    first, second = make_entry(state='plugged'), make_entry()
    opened.add([first, second])
    connection.durable = True

    def failing(act):
        connection.fail = sqlite3.OperationalError('disk I/O error')
        act()
        assert connection.fail is None

    failing(lambda: opened.add([make_entry()]))
    assert len(opened.entries()) == 3
    first.van.guest_config = 'new'
    failing(lambda: opened.save_all([first.van, second.van]))
    failing(lambda: opened.mark([first], 'unplugging'))
    assert opened.entries()[0].van.state == 'unplugging'
    failing(lambda: opened.settle([first.van], [(second.van, 'stuck')]))
    found = opened.entries()[0]
    assert (found.van.uuid, found.van.error) == (second.van.uuid, 'stuck')
    failing(lambda: opened.forget(second.van.uuid))
    assert len(opened.entries()) == 1


@pytest.mark.parametrize('durable', [True, False])
def test_what_the_devices_shall_have(connection, opened, durable):
    """An error of a commit tells whether the document is there."""
    assert opened.desired() is None
    assert opened.kept_vfs() == {}
    wanted = desired.Desired('{"version": 1}', 'boot')
    for act, read, before, after in (
        (lambda: opened.save_desired(wanted), opened.desired, None, wanted),
        (lambda: opened.keep_vfs('pf', 2), opened.kept_vfs, {}, {'pf': 2}),
        (lambda: opened.keep_vfs('pf', None), opened.kept_vfs, None, {}),
        (lambda: opened.save_desired(None), opened.desired, None, None),
    ):
        connection.durable = durable
        connection.fail = sqlite3.OperationalError('disk I/O error')
        if durable:
            act()
        else:
            with pytest.raises(exception.JournalError):
                act()
            if before is not None:
                assert read() == before
            act()
        assert read() == after


@pytest.mark.parametrize('durable', [True, False])
def test_an_interrupt_in_the_commit(connection, opened, durable):
    """settle() removes what is left, whether it is there or not."""
    entry = make_entry(claim='h')
    connection.durable, connection.fail = durable, KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        opened.add([entry])
    assert len(opened.entries()) == durable
    opened.settle([entry.van], [])
    opened.add([make_entry(claim='h')])
    assert len(opened.entries()) == 1


@pytest.mark.parametrize('durable', [True, False])
def test_an_interrupt_of_one_thread_only(connection, opened, durable):
    entries = [make_entry() for _ in range(4)]
    connection.durable, connection.fail = durable, KeyboardInterrupt()
    errors = all_at_once(
        opened, *[lambda e=entry: opened.add([e]) for entry in entries]
    )
    interrupted = [err for err in errors if err is not None]
    assert [type(err) for err in interrupted] == [KeyboardInterrupt]
    there = uuids(opened.entries())
    for entry, err in zip(entries, errors, strict=True):
        assert (entry.van.uuid in there) == (err is None or durable)


def test_an_interrupt_after_a_commit_that_failed(connection, opened):
    """The thread cannot find out whether the write is there."""
    entries = [make_entry() for _ in range(3)]
    connection.fail = sqlite3.OperationalError('disk I/O error')
    connection.then = KeyboardInterrupt()
    errors = all_at_once(
        opened, *[lambda e=entry: opened.add([e]) for entry in entries]
    )
    assert sorted(type(err).__name__ for err in errors) == [
        'KeyboardInterrupt',
        'NoneType',
        'NoneType',
    ]
    assert len(opened.entries()) == 2


def test_an_interrupted_write_is_not_done_later(connection, opened):
    """Its caller may have undone it by then."""
    begin, commit = threading.Event(), threading.Event()
    connection.before_begin = staticmethod(lambda: begin.wait(120))
    connection.before_commit = staticmethod(lambda: commit.wait(120))
    connection.fail = KeyboardInterrupt()

    def handler(*_):
        raise TimeoutError('no longer')

    before = signal.signal(signal.SIGALRM, handler)
    with futures.ThreadPoolExecutor(2) as pool:
        try:
            leading = pool.submit(opened.add, [make_entry()])
            time.sleep(0.2)
            pool.submit(lambda: time.sleep(0.3) or begin.set())
            signal.setitimer(signal.ITIMER_REAL, 0.8)
            with pytest.raises(TimeoutError, match='no longer'):
                opened.add([make_entry()])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            commit.set()
    assert isinstance(leading.exception(10), KeyboardInterrupt)
    later = make_entry()
    opened.add([later])
    assert opened.entries() == [later]


def test_waiting_together_has_an_end(state_path):
    with contextlib.closing(journal.Journal(state_path, 0.2)) as made:
        with futures.ThreadPoolExecutor(4) as pool, held_up(made):
            running = [pool.submit(made.add, [make_entry()]) for _ in range(4)]
            for future in running:
                assert isinstance(future.exception(5), exception.JournalBusy)
        assert made.entries() == []
        made.add([make_entry()])


def test_waiting_for_a_thread_that_writes_has_an_end(connection, state_path):
    begun, end = threading.Event(), threading.Event()

    def wait():
        begun.set()
        end.wait(30)

    with contextlib.closing(journal.Journal(state_path, 0.2)) as made:
        connection.before_commit = staticmethod(wait)
        with futures.ThreadPoolExecutor(1) as pool:
            writing = pool.submit(made.add, [make_entry()])
            assert begun.wait(300)
            with pytest.raises(exception.JournalBusy, match=r'0\.2'):
                made.add([make_entry()])
            end.set()
            assert writing.result(300) is None
        assert len(made.entries()) == 1


def test_readers_do_not_wait_for_a_writer_of_this_process(opened):
    opened.add([make_entry()])
    with futures.ThreadPoolExecutor(1) as pool, held_up(opened):
        writing = pool.submit(opened.add, [make_entry()])
        time.sleep(0.1)
        assert len(opened.entries()) == len(opened.handles()) + 1 == 1
        # The writer waits still, and its wait has an end.
        assert not writing.done()
    assert writing.result(300) is None
    assert len(opened.entries()) == 2


def test_threads_that_end_leave_no_connections(opened):
    descriptors = f'/proc/{os.getpid()}/fd'
    for _ in range(3):
        barrier = threading.Barrier(12)

        def work(at=barrier):
            at.wait(300)
            opened.add([make_entry()])
            opened.entries()

        threads = [threading.Thread(target=work) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
    links = [
        os.readlink(os.path.join(descriptors, name))
        for name in os.listdir(descriptors)
        if os.path.islink(os.path.join(descriptors, name))
    ]
    # sqlite itself reuses the files of connections that are closed while
    # another one has a lock.
    assert 0 < links.count(opened.path) <= 12


# --- a file that is replaced


def test_a_journal_that_is_set_aside_while_in_use(opened, state_path):
    first = make_entry()
    opened.add([first])
    aside = journal_file.set_aside(opened.path, journal_file.DAMAGED)
    for call in (opened.entries, lambda: opened.add([make_entry()])):
        with pytest.raises(exception.JournalError) as caught:
            call()
        assert aside in str(caught.value)
        assert 'recover --rebuild' in str(caught.value)
    assert not os.path.exists(opened.path)
    assert journal_file.rebuild(state_path, 1) == (1, 0, 0)
    # The service goes on, in the new one.
    assert opened.entries() == [first]
    opened.add([make_entry()])
    assert len(read_again(state_path)) == 2
    opened.close()
    with contextlib.closing(
        sqlite3.connect(aside.replace('damaged', 'rebuilt'))
    ) as db:
        assert db.execute('SELECT count(*) FROM van').fetchone() == (1,)


def test_a_journal_that_is_removed_while_in_use(opened, state_path):
    opened.add([make_entry()])
    for end in ('', '-wal', '-shm'):
        os.unlink(opened.path + end)
    for call in (opened.entries, lambda: opened.add([make_entry()])):
        with pytest.raises(exception.JournalError) as caught:
            call()
        assert 'it was removed while in use' in str(caught.value)
        assert 'restart the service' in str(caught.value)
    assert os.listdir(state_path) == []


def test_a_journal_replaced_by_a_damaged_one(opened):
    opened.add([make_entry()])
    journal_file.set_aside(opened.path, '.old-')
    with open(opened.path, 'w', encoding='utf-8') as file:
        file.write('no journal\n' * 1000)
    with pytest.raises(exception.JournalError, match='it is damaged'):
        opened.entries()
    assert os.path.exists(opened.path)


def test_a_journal_that_is_renamed_during_a_commit(
    connection, opened, monkeypatch
):
    """Its row is in a file that nobody reads any more."""
    opened.add([make_entry()])
    identity, calls = database.identity, []

    def renamed(path):
        calls.append(path)
        # The first call comes before the transaction.
        if len(calls) == 2:
            journal_file.set_aside(path, journal_file.DAMAGED)
        return identity(path)

    monkeypatch.setattr(database, 'identity', renamed)
    with pytest.raises(exception.JournalError, match='renamed or replaced'):
        opened.add([make_entry(instance=new_uuid(), handle=named('h'))])


def test_a_journal_replaced_while_it_is_opened(
    opened, state_path, tmp_path, monkeypatch
):
    """Later connections read the new file, not the old one."""
    other = str(tmp_path / 'other')
    with contextlib.closing(journal.Journal(other, 10)) as made:
        made.add([make_entry()])
        expected = made.entries()
    opened.close()
    connect = database.connect

    def replace(path):
        monkeypatch.setattr(database, 'connect', connect)
        db = connect(path)
        for name in os.listdir(other):
            os.replace(
                os.path.join(other, name), os.path.join(state_path, name)
            )
        return db

    with contextlib.closing(journal.Journal(state_path, 10)) as made:
        monkeypatch.setattr(database, 'connect', replace)
        assert made.entries() == expected
        assert database.connect is connect


def test_a_journal_removed_just_after_its_check(opened, monkeypatch):
    aside = opened.path + '.aside'
    os.rename(opened.path, aside)
    prepare = journal_file.prepare

    def remove(*args, **kwargs):
        os.rename(aside, opened.path)
        prepare(*args, **kwargs)
        os.unlink(opened.path)

    monkeypatch.setattr(journal_file, 'prepare', remove)
    with pytest.raises(exception.JournalError, match='has just been removed'):
        opened.entries()


def test_a_damaged_journal_that_cannot_be_renamed(state_path, monkeypatch):
    with contextlib.closing(journal.Journal(state_path, 10)) as made:
        path = made.path
    with open(path, 'w', encoding='utf-8') as file:
        file.write('no journal\n' * 1000)

    def fail(*_args, **_kwargs):
        raise PermissionError(1, 'Operation not permitted')

    for name in ('link', 'rename'):
        monkeypatch.setattr(os, name, fail)
    with pytest.raises(exception.JournalError, match='cannot rename it'):
        journal.Journal(state_path, 10)
    assert os.path.exists(path)


def test_a_journal_that_was_never_created(tmp_path):
    """Only a journal that is opened for reading may be missing."""
    opened = journal.Journal(str(tmp_path / 'state'), 10)
    opened.close()
    reading = journal.Journal(str(tmp_path / 'none'), 10, read_only=True)
    assert reading.entries() == []
    reading.read_only = False
    with pytest.raises(exception.JournalMissing):
        reading.entries()
    reading.close()


def test_more_readers_than_connections_that_are_kept(connection, opened):
    """Each reader has its own connection; the surplus ones are closed."""
    opened.add([make_entry()])
    together = threading.Barrier(8, timeout=300)
    closed = []

    def wait(statement):
        if statement.startswith('SELECT * FROM van'):
            together.wait()

    connection.before_statement = staticmethod(wait)
    close = sqlite3.Connection.close
    connection.close = lambda self: (closed.append(self), close(self))
    with futures.ThreadPoolExecutor(8) as pool:
        running = [pool.submit(opened.entries) for _ in range(8)]
        assert [len(future.result(30)) for future in running] == [1] * 8
    assert len(closed) == 4
