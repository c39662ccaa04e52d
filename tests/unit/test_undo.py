# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The stack of undos."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.attach import undo


class Acts:
    """Makes acts that note that they were done, and fail if they shall."""

    def __init__(self):
        self.done = []

    def __call__(self, name, error=None):
        def act():
            self.done.append(name)
            if error is not None:
                raise error

        return act


def failure(van, step='unplug'):
    return exception.StepFailed(van=van, step=step, actor='a', err='e')


@pytest.fixture
def acts():
    return Acts()


@pytest.fixture
def stack():
    return undo.UndoStack()


def test_last_first(stack, acts):
    for van in ('a', 'b', 'c'):
        stack.push(van, acts(van))
    assert stack.unwind() == {}
    assert acts.done == ['c', 'b', 'a']


def test_goes_on_after_a_failure_and_says_all(stack, acts):
    first, second = failure('c'), failure('a')
    stack.push('a', acts('a', second))
    stack.push('b', acts('b'))
    stack.push('c', acts('c', first))
    failed = stack.unwind()
    assert acts.done == ['c', 'b', 'a']
    assert failed == {'c': first, 'a': second}
    assert list(failed) == ['c', 'a']


def test_a_failure_stops_what_comes_next_for_that_van_only(stack, acts):
    error = failure('a')
    stack.push('a', acts('unprepare a', failure('a', 'unprepareVAN')))
    stack.push('b', acts('unprepare b'))
    stack.push('a', acts('unplug a', error))
    stack.push('b', acts('unplug b'))
    assert stack.unwind() == {'a': error}
    assert acts.done == ['unplug b', 'unplug a', 'unprepare b']


def test_done_once(stack, acts):
    stack.push('a', acts('a'))
    stack.push('b', acts('b', failure('b')))
    stack.unwind()
    assert stack.unwind() == {}
    assert acts.done == ['b', 'a']


def test_used_again(stack, acts):
    stack.push('a', acts('a', failure('a')))
    stack.unwind()
    stack.push('a', acts('again'))
    assert stack.unwind() == {}
    assert acts.done == ['a', 'again']


def test_nothing_to_do(stack):
    assert stack.unwind() == {}


def test_an_interrupt_leaves_the_rest_to_be_done(stack, acts):
    stack.push('a', acts('a'))
    stack.push('b', acts('b', KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        stack.unwind()
    assert stack.unwind() == {}
    assert acts.done == ['b', 'a']
