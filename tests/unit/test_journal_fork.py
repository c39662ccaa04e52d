# SPDX-License-Identifier: Apache-2.0


"""The journal across forks: parent and child both write, nothing is lost."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

import pytest
from test_journal import make_entry
from test_journal import raw
from test_journal import uuids

from os_acc import exception
from os_acc import journal
from os_acc.journal import forking
from os_acc.journal import rows


class Interrupt(BaseException):
    pass


@pytest.fixture
def opened(tmp_path):
    made = journal.Journal(str(tmp_path / 'state'), 10)
    yield made
    made.close()


def end(status):
    """End a forked child, and save the coverage that was measured in it."""
    if 'coverage' in sys.modules:
        measured = sys.modules['coverage'].Coverage.current()
        if measured is not None:
            measured.stop()
            measured.save()
    os._exit(status)


def fork(work, seconds=30):
    """Do work in a forked child, which a hang cannot outlive.

    :returns: its process id
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        signal.alarm(seconds)
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            end(status)
    return pid


def wait(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def add(opened, count=1):
    """Add so many rows, each in a transaction of its own."""
    for _ in range(count):
        opened.add([make_entry()])


def test_child_and_parent_go_on(opened):
    """As a service does that initializes before it forks its workers."""
    first = make_entry()
    opened.add([first])

    def child():
        assert uuids(opened.entries())[0] == first.van.uuid
        add(opened, 20)
        assert len(opened.entries()) >= 21

    children = [fork(child) for _ in range(3)]
    add(opened, 20)
    for pid in children:
        wait(pid)
    assert len(opened.entries()) == 81
    with raw(opened.path) as db:
        assert db.execute('PRAGMA integrity_check').fetchone() == ('ok',)


def test_the_child_outlives_its_parent(opened, tmp_path):
    """What it wrote was once lost: sqlite had the parent's locks in mind."""
    add(opened)

    def middle():
        grandchild = fork(functools.partial(add, opened, 5))
        opened.close()
        os._exit(0 if grandchild else 1)

    wait(fork(middle))
    deadline = time.monotonic() + 20
    while len(opened.entries()) < 6 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(opened.entries()) == 6


def test_forks_while_other_threads_write_and_read(opened):
    stop, counts, errors = threading.Event(), [], []

    def write():
        count = 0
        try:
            while not stop.is_set():
                add(opened)
                opened.entries()
                count += 1
        except BaseException as err:
            errors.append(err)
        counts.append(count)

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        children = [fork(functools.partial(add, opened, 3)) for _ in range(8)]
        for pid in children:
            wait(pid)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert errors == []
    assert len(opened.entries()) == sum(counts) + 8 * 3


@contextlib.contextmanager
def used_by_a_thread(path):
    """Keep a thread inside forking.in_use() during the block.

    :returns: an event that ends the thread when it is set
    """
    begun, done = threading.Event(), threading.Event()

    def use():
        with forking.in_use(path):
            begun.set()
            assert done.wait(120)

    thread = threading.Thread(target=use)
    thread.start()
    try:
        assert begun.wait(60)
        yield done
    finally:
        done.set()
        thread.join(120)


def test_a_fork_waits_for_a_transaction(opened):
    """And not for a thread that waits for another process."""
    with used_by_a_thread(opened.path) as done:
        timer = threading.Timer(0.3, done.set)
        timer.start()
        start = time.monotonic()
        pid = fork(functools.partial(add, opened))
        assert 0.2 < time.monotonic() - start < 9
    wait(pid)
    timer.join(120)


def test_a_fork_does_not_wait_for_a_waiting_writer(opened):
    with raw(opened.path) as db:
        db.execute('BEGIN IMMEDIATE')
        thread = threading.Thread(target=add, args=[opened])
        thread.start()
        time.sleep(0.1)
        start = time.monotonic()
        pid = fork(lambda: None)
        assert time.monotonic() - start < 5
        wait(pid)
        db.execute('COMMIT')
    thread.join(120)
    assert len(opened.entries()) == 1


def check_refused(opened):
    for call in (opened.entries, functools.partial(add, opened)):
        with pytest.raises(exception.JournalError, match='was forked while'):
            call()
    with pytest.raises(exception.JournalError, match='was forked while'):
        journal.Journal(os.path.dirname(opened.path), 5)


def test_a_fork_inside_a_use_of_the_same_thread(opened):
    """A signal handler may do so: it must not wait for its own thread."""
    add(opened)
    with forking.in_use(opened.path):
        pid = fork(functools.partial(check_refused, opened))
    wait(pid)
    add(opened)
    assert len(opened.entries()) == 2
    pid = fork(functools.partial(add, opened))
    wait(pid)


def test_a_use_that_ends_in_the_child(opened):
    """The child may leave the block in which its parent forked."""
    add(opened)
    block = forking.in_use(opened.path)
    with block:
        pid = fork(lambda: block.__exit__(None, None, None))
        wait(pid)
    add(opened)
    assert len(opened.entries()) == 2


def test_a_fork_inside_a_write(opened, monkeypatch):
    """A write of a forked child is given up, and its parent's is done."""
    update, pids = rows.insert, []

    def insert(db, row):
        monkeypatch.setattr(rows, 'insert', update)
        pids.append(os.fork())
        if pids == [0]:
            signal.alarm(30)
            raise Interrupt
        update(db, row)

    monkeypatch.setattr(rows, 'insert', insert)
    entry = make_entry()
    try:
        opened.add([entry])
    except BaseException as err:
        if pids == [0]:
            end(0 if isinstance(err, Interrupt) else 1)
        raise
    if pids == [0]:
        end(1)
    wait(pids[0])
    assert opened.entries() == [entry]
    with raw(opened.path) as db:
        assert db.execute('PRAGMA integrity_check').fetchone() == ('ok',)


def test_a_transaction_that_does_not_end(opened, monkeypatch):
    monkeypatch.setattr(forking, 'LONGEST_WAIT', 0.2)
    add(opened)
    with used_by_a_thread(opened.path):
        wait(fork(functools.partial(check_refused, opened)))
        # The parent is as before.
        add(opened)
    wait(fork(functools.partial(add, opened)))
    assert len(opened.entries()) == 3


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_a_fork_whose_wait_is_interrupted(opened):
    """Python forks all the same, while another thread uses a connection."""
    add(opened)

    def handler(*_):
        raise Interrupt

    with used_by_a_thread(opened.path):
        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            wait(fork(functools.partial(check_refused, opened)))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    wait(fork(functools.partial(add, opened)))
    assert len(opened.entries()) == 2


def test_multiprocessing(opened):
    context = multiprocessing.get_context('fork')
    children = [
        context.Process(target=add, args=[opened, 5]) for _ in range(2)
    ]
    for child in children:
        child.start()
    add(opened, 5)
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    assert len(opened.entries()) == 15


@pytest.mark.parametrize('preexec', [None, lambda: None])
def test_subprocess(opened, preexec):
    add(opened)
    command = [sys.executable, '-c', 'print(1)']
    assert subprocess.check_output(command, preexec_fn=preexec) == b'1\n'
    add(opened)
    assert len(opened.entries()) == 2


def test_a_closed_journal_stays_closed_in_the_child(opened):
    opened.close()

    def child():
        with pytest.raises(exception.JournalError, match='closed'):
            opened.entries()

    wait(fork(child))


def test_a_reader_forks_too(opened):
    add(opened)
    with contextlib.closing(
        journal.Journal(os.path.dirname(opened.path), 5, read_only=True)
    ) as reader:
        assert len(reader.entries()) == 1

        def child():
            assert len(reader.entries()) == 1
            add(opened)
            assert len(reader.entries()) == 2

        wait(fork(child))
        assert len(reader.entries()) == 2
