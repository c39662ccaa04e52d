# SPDX-License-Identifier: Apache-2.0

"""The calls on the target: a process there, its answers, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import uuid

import pytest

from os_acc import exception
from os_acc import objects
from os_acc.cli import exit_codes
from os_acc.cli import migration_target
from os_acc.moving import remote

SECONDS = 120.0
SUBJECT = dict.fromkeys(
    ['line', 'protocol', 'call', 'instance', 'files'], 'migration target'
)
SUBJECT['plan'] = 'os_acc.migration.prepare'
# Answers each call with its own arguments, and does what "call" says.
PROGRAM = """
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if asked['call'] == 'die':
        print('it is broken', file=sys.stderr)
        sys.exit(3)
    if asked['call'] == 'sleep':
        time.sleep(1000)
    if asked['call'] == 'chat':
        print('Welcome to two', flush=True)
    if asked['call'] == 'twice':
        print('{}\\n{}', flush=True)
        continue
    if asked['call'] == 'nest':
        print('[' * 100000, flush=True)
        continue
    if asked['call'] == 'fail':
        asked = {'error': {'class': 'DeviceBusy', 'text': 'no', 'code': 5}}
    asked['pid'] = os.getpid()
    print(json.dumps(asked), flush=True)
"""


@pytest.fixture
def target():
    made = remote.Remote([sys.executable, '-c', PROGRAM], 'two', SECONDS)
    yield made
    made.close()


def test_one_process_answers_all_calls(target):
    first = target.call('look', files=['/a\nb'])
    assert first.pop('protocol') == remote.PROTOCOL
    assert target.call('switch')['pid'] == first.pop('pid')
    assert first == {'call': 'look', 'files': ['/a\nb']}


def test_its_error(target):
    with pytest.raises(exception.TargetError, match='Target two: no') as err:
        target.call('fail')
    assert err.value.name == 'DeviceBusy'
    made = exception.MoveException(instance='i', err='e')
    made.__cause__ = err.value
    assert exit_codes.of(made) == exit_codes.BUSY


def test_a_process_that_has_ended_is_started_again(target):
    before = target.call('look')['pid']
    with pytest.raises(exception.TargetError, match='it is broken') as err:
        target.call('die')
    # Nobody knows whether the call was done.
    assert err.value.name == ''
    assert target.call('look')['pid'] != before


def test_an_answer_that_does_not_come():
    made = remote.Remote([sys.executable, '-c', PROGRAM], 'two', 0.5)
    with pytest.raises(exception.TargetError, match='no answer for'):
        made.call('sleep')


def test_a_process_that_does_not_read_the_call(monkeypatch):
    """A pipe takes 64 KiB, and a plan may have more."""
    monkeypatch.setattr(remote, '_END', 0.1)
    made = remote.Remote(['sleep', '60'], 'two', 0.5)
    begun = time.monotonic()
    with pytest.raises(exception.TargetError, match='no answer for'):
        made.call('prepare', plan='x' * 2**20)
    assert time.monotonic() - begun < 30


def test_a_line_that_came_unasked_answers_no_call(target):
    assert target.call('twice') == {}
    with pytest.raises(exception.TargetError, match='which was not'):
        target.call('switch')
    assert target.call('switch')['call'] == 'switch'


def test_a_long_call_and_its_answer(target):
    assert target.call('look', plan='x' * 2**20)['plan'] == 'x' * 2**20


@pytest.mark.parametrize('call', ['look', 'die', 'chat', 'none'])
def test_no_file_stays_open(tmp_path, call):
    """However the process ends: by close(), by itself, or never begun."""
    command = [sys.executable, '-c', PROGRAM]
    if call == 'none':
        command = [str(tmp_path / 'none')]
    made = remote.Remote(command, 'two', SECONDS)
    before = len(os.listdir('/proc/self/fd'))
    with contextlib.suppress(exception.TargetError):
        made.call(call)
    made.close()
    assert len(os.listdir('/proc/self/fd')) == before


def test_an_answer_that_is_none_of_os_acc(target):
    with pytest.raises(exception.TargetError, match='Welcome to two'):
        target.call('chat')


def test_a_command_that_is_missing(tmp_path):
    made = remote.Remote([str(tmp_path / 'none')], 'two', SECONDS)
    with pytest.raises(exception.TargetError, match='No such file'):
        made.call('look')


@pytest.mark.parametrize(
    ('asked', 'field'),
    [
        (b'{', 'line'),
        (b'\xff', 'line'),
        (b'[]', 'line'),
        ({'protocol': 2}, 'protocol'),
        ({'call': 'finish'}, 'call'),
        ({'call': ['look']}, 'call'),
        ({'call': 'look', 'instance': None}, 'instance'),
        ({'call': 'look', 'instance': {}}, 'instance'),
        ({'call': 'look', 'instance': {'a': 1}}, 'instance'),
        ({'call': 'look', 'files': 'a'}, 'files'),
        ({'call': 'look', 'files': [1]}, 'files'),
        ({'call': 'look', 'files': []}, 'plan'),
    ],
)
def test_a_wrong_call_is_refused(clean, asked, field):
    """Before anything is touched: os_acc is not even initialized."""
    if isinstance(asked, dict):
        info = objects.InstanceInfo(uuid=str(uuid.uuid4()))
        usual = {
            'protocol': remote.PROTOCOL,
            'instance': info.obj_to_primitive(),
            'migration_uuid': str(uuid.uuid4()),
        }
        asked = json.dumps({**usual, **asked}).encode()
    error = migration_target.answer_to(asked, lambda: None)['error']
    assert error['class'] == 'InvalidRequest'
    assert error['text'].startswith(f'{SUBJECT[field]}: {field}')
    assert error['code'] == exit_codes.WRONG_USAGE


def test_an_answer_that_no_reader_can_read(target):
    with pytest.raises(exception.TargetError, match='expected an answer'):
        target.call('nest')


@pytest.mark.parametrize(
    'error', ['no', False, {}, {'class': 5}, {'class': 'X', 'text': None}]
)
def test_an_error_that_is_none_of_os_acc(target, error):
    with pytest.raises(exception.TargetError) as err:
        target.call('look', error=error)
    assert 'wrong answer: error is' in str(err.value)
    assert (err.value.name, err.value.code) == ('', 1)


@pytest.mark.parametrize('code', [0, True, 256, 77777, -1, 'x', None])
def test_an_error_never_ends_as_a_success(target, code):
    """And none of its text controls the terminal."""
    error = {'class': 'X', 'text': '\x1b[2Jno\nway', 'code': code}
    with pytest.raises(exception.TargetError) as err:
        target.call('look', error=error)
    assert str(err.value) == r'Target two: \x1b[2Jno way'
    assert err.value.code == 1
