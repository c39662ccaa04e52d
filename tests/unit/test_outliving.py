# SPDX-License-Identifier: Apache-2.0

"""os_acc.deadlines.outliving: acts that may outlive their caller."""

from __future__ import annotations

import os
import re
import threading
import time

import pytest

from os_acc import exception
from os_acc.deadlines import outliving

THING = 'domain d'


@pytest.fixture
def turns():
    return outliving.Turns()


@pytest.fixture
def left(turns):
    """An act whose caller has given up. It ends when the event is set."""
    go_on, abandoned = threading.Event(), []

    def act(event):
        go_on.wait(30)
        abandoned.append(event.is_set())
        return 'late'

    with pytest.raises(exception.Timeout, match=r'Waited 0\.1 s for the act'):
        turns.run(THING, act, 0.1, 'the act')
    yield go_on, abandoned
    go_on.set()
    # It logs how it has ended, which is not for the next test to see.
    turns.wait(THING, 30)


def test_it_returns_what_the_act_returns(turns):
    told = []
    assert turns.run(THING, lambda event: told.append(event) or 5, 5, 'x') == 5
    assert not told[0].is_set()


def test_it_raises_what_the_act_raises(turns):
    def fail(_):
        raise KeyError('k')

    with pytest.raises(KeyError, match='k'):
        turns.run(THING, fail, 5, 'x')
    turns.wait(THING, 0)


def test_a_timeout_of_the_act_itself(turns):
    def fail(_):
        raise exception.Timeout(what='something else', seconds=7)

    with pytest.raises(exception.Timeout, match='something else'):
        turns.run(THING, fail, 5, 'x')


def test_the_act_is_told_that_its_caller_has_given_up(turns, left, caplog):
    go_on, abandoned = left
    go_on.set()
    turns.wait(THING, 5)
    assert abandoned == [True]
    assert re.search(
        r'Stopped waiting for the act\. It ended after \d+\.\d s$',
        caplog.text.rstrip(),
    )


def test_a_failure_after_the_caller_has_given_up_is_logged(turns, caplog):
    go_on = threading.Event()

    def fail(_):
        go_on.wait(30)
        raise ValueError('too bad')

    with pytest.raises(exception.Timeout):
        turns.run(THING, fail, 0.1, 'the act')
    go_on.set()
    turns.wait(THING, 5)
    assert 'Stopped waiting for the act. It failed' in caplog.text
    assert ' s: ValueError: too bad' in caplog.text


def test_the_next_act_waits_for_its_turn(turns, left):
    go_on, _ = left
    done = []
    with pytest.raises(
        exception.Timeout,
        match=r'Waited 0\.1 s for an earlier operation on domain d to end',
    ):
        turns.run(THING, done.append, 0.1, 'another act')
    with pytest.raises(exception.Timeout, match='Waited 0 s for an earlier'):
        turns.wait(THING, 0)
    assert turns.run('domain e', lambda _: 1, 5, 'elsewhere') == 1
    go_on.set()
    assert turns.run(THING, lambda _: 2, 5, 'the next act') == 2
    # An act that did not get its turn in time never begins.
    assert done == []


@pytest.mark.parametrize(('seconds', 'turn'), [(30, 0.2), (0.2, 30)])
def test_the_wait_for_the_turn_has_its_own_limit(turns, left, seconds, turn):
    start = time.monotonic()
    with pytest.raises(exception.Timeout, match='an earlier operation'):
        turns.run(THING, lambda _: 1, seconds, 'x', turn_seconds=turn)
    assert time.monotonic() - start < 25


def test_one_at_a_time(turns):
    inside, most = [], []

    def act(_):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()

    threads = [
        threading.Thread(target=turns.run, args=(THING, act, 30, 'x'))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_a_forked_child_has_no_acts_and_another_id(turns, left):
    mine = outliving.process()
    assert mine == outliving.process()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            turns.wait(THING, 0)
            os.write(writer, outliving.process().encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    theirs = os.read(reader, 100).decode()
    os.close(reader)
    assert len(theirs) == len(mine)
    assert theirs != mine
