# SPDX-License-Identifier: Apache-2.0

"""The locks: between threads, between processes, after a kill."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time

import pytest

from os_acc import exception
from os_acc import locking

# Processes that share nothing with this one, as nova-compute and the Cyborg
# agent. They are forked from a process that has done nothing but imports.
PROCESSES = multiprocessing.get_context('forkserver')
PROCESSES.set_forkserver_preload(['os_acc.locking', 'pytest'])


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / 'locks')


@pytest.fixture
def locks(path):
    return locking.Locks(path, 60)


def increment(locks, counter, times):
    """Count in a file in a way that loses counts unless locked."""
    for _ in range(times):
        with locks.device('0000:0c:00.1'):
            with open(counter, encoding='ascii') as file:
                count = int(file.read())
            with open(counter, 'w', encoding='ascii') as file:
                file.write(str(count + 1))


def work(path, counter, times):
    """What a process of the stress test does."""
    increment(locking.Locks(path, 60), counter, times)


def hold(path, there):
    """What a process that never lets go does."""
    with locking.Locks(path, 60).instance('i'):
        there.set()
        time.sleep(120)


def wait(path, started, got):
    """What a process that waits for the holder does."""
    started.set()
    with locking.Locks(path, 60).instance('i'):
        got.set()


@pytest.fixture
def holder(path):
    """Another process, which holds instance i."""
    there = PROCESSES.Event()
    process = PROCESSES.Process(target=hold, args=(path, there), daemon=True)
    process.start()
    assert there.wait(30)
    yield process
    process.kill()
    process.join(30)


class Inside:
    """How many are inside at once, at the most."""

    def __init__(self):
        self.now = self.most = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def enter(self):
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.01)
        yield
        with self._lock:
            self.now -= 1


def in_threads(*acts):
    threads = [threading.Thread(target=act, daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


class TestThreads:
    @pytest.mark.parametrize('kind', ['instance', 'device'])
    def test_one_at_a_time(self, locks, kind):
        inside = Inside()

        def act():
            for _ in range(5):
                with getattr(locks, kind)('x'), inside.enter():
                    pass

        in_threads(*[act] * 4)
        assert inside.most == 1

    def test_two_of_one_directory_exclude_each_other(self, path):
        inside = Inside()

        def act():
            with locking.Locks(path, 60).device('x'), inside.enter():
                pass

        in_threads(*[act] * 4)
        assert inside.most == 1

    def test_others_are_free(self, locks, tmp_path):
        with contextlib.ExitStack() as stack:
            stack.enter_context(locks.instance('x'))
            stack.enter_context(locks.device('x'))
            stack.enter_context(locks.instance('y'))
            elsewhere = locking.Locks(str(tmp_path / 'other'), 0)
            stack.enter_context(elsewhere.instance('x'))

    def test_taken_again_afterwards(self, locks):
        for _ in range(3):
            with locks.instance('x', wait=False):
                pass

    def test_let_go_when_the_body_raises(self, locks, path):
        with pytest.raises(KeyError):
            with locks.instance('x'):
                raise KeyError
        with locks.instance('x', wait=False):
            pass
        assert os.listdir(path) == []

    def test_waits_until_it_is_free(self, locks):
        taken, done = threading.Event(), []

        def first():
            with locks.instance('x'):
                taken.set()
                time.sleep(0.2)
                done.append('first')

        def second():
            taken.wait(30)
            with locks.instance('x'):
                done.append('second')

        in_threads(first, second)
        assert done == ['first', 'second']


@contextlib.contextmanager
def held_by_a_thread(lock):
    """Another thread of this process holds a lock."""
    there, done = threading.Event(), threading.Event()

    def act():
        with lock:
            there.set()
            done.wait(60)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    assert there.wait(30)
    try:
        yield
    finally:
        done.set()
        thread.join(30)


class TestReentry:
    """A thread that wants its own lock again would wait for itself."""

    @pytest.mark.parametrize('kind', ['instance', 'device'])
    def test_fails_at_once(self, locks, kind):
        with getattr(locks, kind)('x'):
            start = time.monotonic()
            with pytest.raises(exception.LockHeld) as caught:
                with getattr(locks, kind)('x'):
                    pytest.fail('got it twice')
            assert time.monotonic() - start < 5
        assert f'already holds the lock of {kind} x' in str(caught.value)
        assert isinstance(caught.value, RuntimeError)
        with getattr(locks, kind)('x'):
            pass

    def test_by_another_object_and_spelling_of_the_directory(
        self, locks, path
    ):
        with locks.device('x'):
            with pytest.raises(exception.LockHeld):
                with locking.Locks(path + '/.', 60).device('x'):
                    pytest.fail('got it twice')

    def test_without_waiting_it_is_held_as_by_any(self, locks):
        with locks.instance('x'), locks.device('y'):
            with pytest.raises(exception.Timeout):
                with locks.instance('x', wait=False):
                    pytest.fail('got it twice')
            with pytest.raises(exception.Timeout):
                with locks.device('y', timeout=0):
                    pytest.fail('got it twice')

    def test_one_that_failed_holds_nothing(self, path):
        locks = locking.Locks(path, 0.05)
        with held_by_a_thread(locks.device('x')):
            for _ in range(2):
                with pytest.raises(exception.Timeout):
                    with locks.device('x'):
                        pytest.fail('got it twice')


class TestTimeout:
    @pytest.mark.parametrize('kind', ['instance', 'device'])
    def test_says_what_it_waited_for(self, path, kind):
        locks = locking.Locks(path, 0.2)
        with held_by_a_thread(getattr(locks, kind)('x')):
            start = time.monotonic()
            with pytest.raises(exception.Timeout) as caught:
                with getattr(locks, kind)('x'):
                    pytest.fail('got it twice')
        assert 0.15 < time.monotonic() - start < 10
        assert str(caught.value) == f'Waited 0.2 s for the lock of {kind} x'

    def test_of_another_process(self, path, holder):
        start = time.monotonic()
        with pytest.raises(exception.Timeout) as caught:
            with locking.Locks(path, 0.3).instance('i'):
                pytest.fail('got it twice')
        assert 0.25 < time.monotonic() - start < 10
        assert str(caught.value) == 'Waited 0.3 s for the lock of instance i'

    def test_no_wait(self, locks, holder):
        with locks.instance('j'):
            for name in ('i', 'j'):
                start = time.monotonic()
                with pytest.raises(
                    exception.Timeout, match=f'instance {name}'
                ):
                    with locks.instance(name, wait=False):
                        pytest.fail('got it twice')
                assert time.monotonic() - start < 5

    def test_nobody_waits_for_a_move(self, locks):
        with locks.move('x'), locks.instance('x'):
            start = time.monotonic()
            with pytest.raises(exception.LockTimeout, match='move x'):
                with locks.move('x'):
                    pytest.fail('got it twice')
            assert time.monotonic() - start < 5

    def test_one_that_gave_up_holds_nothing(self, path):
        locks = locking.Locks(path, 0.05)
        with held_by_a_thread(locks.instance('x')):
            for _ in range(3):
                with pytest.raises(exception.Timeout):
                    with locks.instance('x'):
                        pytest.fail('got it twice')
        with locks.instance('x', wait=False):
            pass


class TestProcesses:
    def test_killed_holder(self, locks, holder):
        with pytest.raises(exception.Timeout):
            with locks.instance('i', wait=False):
                pytest.fail('got it twice')
        holder.kill()
        holder.join(30)
        with locks.instance('i', wait=False):
            pass

    def test_waiter_gets_it_from_a_killed_holder(self, locks, holder):
        threading.Timer(0.2, holder.kill).start()
        start = time.monotonic()
        with locks.instance('i'):
            assert time.monotonic() - start < 30

    def test_stress(self, path, tmp_path):
        """Each release unlinks the file that the others wait on."""
        counter = tmp_path / 'counter'
        counter.write_text('0', encoding='ascii')
        processes = [
            PROCESSES.Process(target=work, args=(path, counter, 50))
            for _ in range(4)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(90)
            assert process.exitcode == 0
        assert counter.read_text(encoding='ascii') == '200'
        assert os.listdir(path) == []

    def test_waiter_on_an_unlinked_file(self, path, holder):
        """It holds that file's lock, and yet must not get in.

        Here the file is taken from under its holder, who is not to be waited
        for any more, and a third one is in by a new file.
        """
        (file,) = os.listdir(path)
        started, got = PROCESSES.Event(), PROCESSES.Event()
        waiter = PROCESSES.Process(target=wait, args=(path, started, got))
        waiter.start()
        assert started.wait(30)
        assert not got.wait(0.3)  # by now it waits on the file that is there
        os.unlink(os.path.join(path, file))
        with locking.Locks(path, 60).instance('i'):
            holder.kill()
            holder.join(30)
            assert not got.wait(0.5)
        assert got.wait(30)
        waiter.join(30)
        assert waiter.exitcode == 0
        assert os.listdir(path) == []


class TestFiles:
    def test_directory_is_made(self, tmp_path):
        path = tmp_path / 'a' / 'b'
        with locking.Locks(str(path), 1).device('x'):
            assert [f.name for f in path.iterdir()] == ['os-acc-device-x']

    def test_they_do_not_pile_up(self, locks, path):
        for number in range(20):
            with locks.instance(f'i{number}'), locks.device(f'd{number}'):
                assert len(os.listdir(path)) == 2
        assert os.listdir(path) == []

    @pytest.mark.parametrize(
        'name', ['../x', '/etc/x', 'a/b', '..', 'a b', '0000:0c:00.1', '%2f']
    )
    def test_any_name_stays_in_the_directory(self, locks, path, name):
        with locks.device(name):
            (file,) = os.listdir(path)
            assert file.startswith('os-acc-device-')
            assert locks.path == path
            with pytest.raises(exception.Timeout):
                with locking.Locks(path, 0).device(name):
                    pytest.fail('got it twice')
        assert os.listdir(path) == []
        assert os.listdir(os.path.dirname(path)) == ['locks']

    def test_names_are_kept_apart(self, locks, path):
        names = ('a/b', 'a%2Fb', 'a-b', 'a_b', 'a b')
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(locks.device(name))
            assert len(os.listdir(path)) == len(names)

    def test_unwritable_directory(self, tmp_path):
        (tmp_path / 'file').write_text('', encoding='ascii')
        path = str(tmp_path / 'file' / 'locks')
        for _ in range(2):  # nothing is left held
            with pytest.raises(exception.JournalError) as caught:
                with locking.Locks(path, 0.2).instance('x'):
                    pytest.fail('got a lock without a file')
            assert str(caught.value).startswith(
                f'Journal {path}: cannot use lock directory: '
            )
        (tmp_path / 'file').unlink()
        with locking.Locks(path, 0.2).instance('x'):
            pass

    def test_directory_in_place_of_the_file(self, locks, path):
        os.makedirs(os.path.join(path, 'os-acc-instance-x'))
        with pytest.raises(
            exception.JournalError, match='cannot use lock directory'
        ):
            with locks.instance('x'):
                pytest.fail('got a lock without a file')

    def test_file_that_went_away_while_held(self, locks, path):
        with locks.instance('x'):
            os.unlink(os.path.join(path, 'os-acc-instance-x'))
        with locks.instance('x', wait=False):
            pass


class Interrupt(BaseException):
    pass


def test_a_wait_that_is_interrupted_drops_no_later_lock(path, holder):
    """Its open file would, when the garbage collector closes it."""

    def handler(*_):
        raise Interrupt

    locks, kept = locking.Locks(path, 20), []
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with locks.instance('i'):
            pytest.fail('another process holds it')
    except Interrupt as err:
        kept.append(err)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    holder.kill()
    holder.join()
    started, got = PROCESSES.Event(), PROCESSES.Event()
    with locks.instance('i'):
        kept.clear()
        gc.collect()
        waiter = PROCESSES.Process(target=wait, args=(path, started, got))
        waiter.start()
        assert started.wait(30)
        assert not got.wait(0.5)
    assert got.wait(30)
    waiter.join(30)


def test_two_spellings_of_a_directory_are_one_lock(tmp_path):
    path = str(tmp_path / 'locks')
    with held_by_a_thread(locking.Locks(path, 1).device('d')):
        with pytest.raises(exception.Timeout):
            with locking.Locks(path + '/.', 0.05).device('d'):
                pass


def test_a_name_that_is_too_long_for_a_file(tmp_path):
    locks = locking.Locks(str(tmp_path), 0.05)
    with locks.device('+' * 255):
        with locks.device('+' * 254):
            pass
        with pytest.raises(exception.LockHeld):
            with locks.device('+' * 255):
                pass


def test_a_fork_does_not_inherit_what_another_thread_holds(tmp_path):
    locks = locking.Locks(str(tmp_path), 5)
    holding, done = threading.Event(), threading.Event()

    def hold():
        with locks.instance('i'):
            holding.set()
            done.wait(300)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holding.wait(300)
    pid = os.fork()
    if pid == 0:
        try:
            with locks.instance('i'):
                os._exit(0)
        finally:
            os._exit(1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
