# SPDX-License-Identifier: Apache-2.0

"""os-acc plug with selectors, names, --json and --wait."""

from __future__ import annotations

import threading
import time
import types

import pytest
import standalone
from standalone import MDEV
from standalone import PCI
import waits

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.cli import base
from os_acc.cli import errors
from os_acc.cli import exit_codes
from os_acc.cli import waiting
from os_acc.state import instance_names

OTHER = 'b5a2c9a4-7b1c-4e70-8a4e-30a4c1a3a7f1'


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    return standalone.make(tmp_path, capsys, monkeypatch)


def plug(run, *arguments, name='web/1', resource_class=PCI):
    return run.fine(
        'plug', name, '--resource-class', resource_class, '--json', *arguments
    ).json


# --- selectors and names


def test_plug_by_name_is_idempotent(run):
    first = plug(run, '--count', 2)
    uuid = instance_names.instance_uuid('web/1')
    assert first['instance'] == {'uuid': uuid, 'name': 'web/1'}
    assert [van['uuid'] for van in first['vans']] == [
        instance_names.request_uuid(uuid, position) for position in range(2)
    ]
    assert plug(run, '--count', 2) == first
    assert len(run.handles()) == 2
    (found,) = {van['instance_name'] for van in run.vans()}
    assert found == 'web/1'
    assert run.vans('--instance', 'web/1') == run.vans()
    assert run.vans('--instance', 'web') == []
    # More of the same are added.
    assert plug(run, '--count', 3)['vans'][:2] == first['vans']
    answer = run.fine('unplug', 'web/1', '--json').json
    assert answer == {
        'instance': first['instance'],
        'released': 3,
        'released_by_recovery': 0,
    }
    assert run.handles() == []


def test_a_uuid_stays_a_uuid(run):
    assert plug(run, name=OTHER.upper())['instance']['uuid'] == OTHER
    assert run.fine('unplug', OTHER).out == 'released 1\n'


def test_the_table_shows_the_uuid(run):
    arguments = ('--resource-class', PCI, '-c', 'Instance', '-f', 'value')
    shown = run.fine('plug', 'web', *arguments).out
    assert shown == instance_names.instance_uuid('web') + '\n'


def test_van_show_by_name(run):
    (van,) = plug(run, name='one')['vans']
    plug(run, '--count', 2, name='two')
    shown = run.fine('van', 'show', 'one', '-f', 'json').json
    assert (shown['uuid'], shown['instance_name']) == (van['uuid'], 'one')
    assert 'only one' in run.fails(2, 'van', 'show', 'two')


def test_fewer_than_before(run):
    vans = plug(run, '--count', 3)['vans']
    line = run.fails(2, 'plug', 'web/1', '--resource-class', PCI)
    assert 'count is 1, expected at least 3, as many as it has' in line
    assert all(van['uuid'] in line for van in vans[1:])
    assert len(run.handles()) == 3


def test_other_devices_than_before(run):
    plug(run)
    arguments = ('plug', 'web/1', '--resource-class', MDEV)
    assert 'unplug it first' in run.fails(1, *arguments)
    arguments = ('plug', 'web/1', '--resource-class', PCI)
    line = run.fails(1, *arguments, '--trait', 'CUSTOM_X')
    assert 'unplug it first' in line


def test_options_of_the_request(run):
    run.configure(devices='fpga0:pci:2:single')
    arguments = ['--function', 'aes', '--driver', 'fake', '--plugin', 'cdi']
    arguments += ['--trait', 'CUSTOM_FAKE_DEVICE'] * 2
    (van,) = plug(run, *arguments)['vans']
    assert (van['function_id'], van['plugin']) == ('aes', 'cdi')
    assert van['guest_config'].endswith(van['uuid'])
    assert van['handle'] == {
        'class': 'PCIHandle',
        'identity': 'pci/ffff:00:00.0',
        'address': 'ffff:00:00.0',
        'managed': None,
        'physical_network': None,
    }


@pytest.mark.parametrize(
    ('arguments', 'says'),
    [
        (['--resource-class', PCI, '--trait', ''], "trait is ''"),
        (['--resource-class', PCI, '--trait', 'low'], "trait is 'low'"),
        (['--resource-class', ''], "resource class is ''"),
        (['--resource-class', 'x y'], "resource class is 'x y'"),
        (['--resource-class', 'NOBODY'], 'No driver'),
        (['--resource-class', PCI, '--os-cloud', 'x'], '--os-cloud is for'),
        (['--arqs', '-', '--trait', 'X'], '--trait is for --resource-class'),
        (['--arqs', '-', '--count', '2'], '--count is for --resource-class'),
        (['--from-cyborg', '--count', '2'], '--count is for'),
        (['--arqs', '-'], "uuid is 'web'"),
    ],
)
def test_wrong_input(run, arguments, says):
    assert says in run.fails(2, 'plug', 'web', *arguments)
    answer = run('plug', 'web', *arguments, '--json')
    assert (answer.code, answer.err) == (2, '')
    assert says in answer.json['error']['message']
    assert answer.json['error']['exit_code'] == 2


@pytest.mark.parametrize('count', ['0', '-1', '257', 'x', '1.5'])
def test_a_wrong_count(run, count):
    arguments = ['plug', 'web', '--resource-class', PCI, '--count', count]
    assert 'expected 1 to 256' in run(*arguments).err
    answer = run(*arguments, '--json')
    assert (answer.code, answer.err) == (2, '')
    assert answer.json['error']['type'] == 'WrongArguments'


# --- --json


@pytest.mark.parametrize(
    'command',
    [
        ['plug', 'web', '--resource-class', PCI],
        ['unplug', 'web'],
        ['van', 'list'],
    ],
)
def test_a_configuration_that_cannot_be_read(run, command):
    for text in (None, 'nonsense', '[os_acc]\njournal_timeout = soon\n'):
        if text is None:
            run.path.unlink()
        else:
            run.path.write_text(text)
        answer = run(*command, '--json')
        assert (answer.code, answer.err) == (2, ''), text
        assert answer.json['error']['exit_code'] == 2


def test_an_error_says_what_is_behind_it(run):
    plug(run, '--count', 3)
    answer = run('plug', 'b', '--resource-class', PCI, '--json')
    assert (answer.code, answer.err) == (5, '')
    error = answer.json['error']
    assert (error['type'], error['cause']) == (
        'PlugException',
        'DeviceNotFound',
    )
    assert error['may_pass'] is True


def test_an_error_that_nobody_expects(run, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError('a fault\nof os-acc')

    monkeypatch.setattr(base, 'instance_info', fail)
    answer = run('--debug', 'unplug', 'web', '--json')
    assert answer.code == 1
    assert 'Traceback' in answer.err
    assert answer.json['error']['message'] == 'RuntimeError: a fault of os-acc'


def test_the_state_and_unreadable_rows(run):
    (van,) = plug(run)['vans']
    assert run.vans('--state', 'error') == []
    (listed,) = run.vans('--state', 'plugged')
    assert listed == {**van, 'instance_name': 'web/1', 'project_id': ''}


# --- --wait


def test_a_device_that_becomes_free(run, monkeypatch):
    plug(run, '--count', 3)
    tried = []

    def free(tell):
        tried.append(time.monotonic())
        os_acc.CONF.set_override(
            'devices', ['nic0:pci:3', 'nic1:pci:1'], 'os_acc_fake'
        )

    monkeypatch.setattr(waiting, 'release_ended', free)
    result = run('plug', 'b', '--resource-class', PCI, '--json', '--wait')
    assert result.code == 0
    assert result.err == (
        'Waiting for at most 300 s: no fake device has a free handle\n'
    )
    assert len(tried) == 1


def test_no_device_becomes_free(run, monkeypatch):
    plug(run, '--count', 3)
    waits.pass_at_once(monkeypatch)
    result = run('plug', 'b', '--resource-class', PCI, '--wait', '30')
    assert result.code == 5
    told, line = result.err.splitlines()
    assert told.startswith('Waiting for at most')
    assert line.startswith('PlugException')
    assert len(run.handles()) == 3


def retry(errors, seconds=60.0, prepare=lambda: None):
    """Raise these errors in turn.

    :returns: what was told
    """
    told: list[str] = []
    left = list(errors)

    def act():
        if left:
            raise left.pop(0)
        return 'done'

    assert waiting.retry(act, seconds, told.append, prepare) == 'done'
    return told


BUSY = exception.DeviceBusy(device='a', holder='b')


def own_pauses(monkeypatch):
    """The pauses of waiting, which do not pass, and of nothing else."""
    pauses: list[float] = []
    own = types.SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic)
    monkeypatch.setattr(waiting, 'time', own)
    return pauses


def test_what_is_waited_for(monkeypatch):
    pauses = own_pauses(monkeypatch)
    locked = exception.LockTimeout(what='the lock of device x', seconds=1)
    journal = exception.JournalBusy(path='p', seconds=1)
    told = retry([BUSY, BUSY, journal, locked, BUSY])
    assert len(told) == 4  # a reason is told when it changes
    assert 'b has it' in told[0]
    assert 'another writer' in told[1]
    # The pauses grow.
    assert pauses[0] <= 0.3
    assert pauses[-1] > pauses[0]


def test_the_pauses_do_not_grow_for_ever(monkeypatch):
    pauses = own_pauses(monkeypatch)
    retry([BUSY] * 200, 100_000.0)
    assert 0.5 <= min(pauses[20:]) < max(pauses) <= 1.5


@pytest.mark.parametrize(
    'error',
    [
        exception.InvalidRequest('no'),
        exception.DeviceError(device='a', reason='b'),
        exception.PlugException(
            instance='i', err='e', undo_errors=[exception.Timeout('t')]
        ),
    ],
)
def test_what_does_not_pass(error):
    with pytest.raises(type(error)):
        retry([error])


def test_without_wait_it_tries_once():
    with pytest.raises(exception.DeviceBusy):
        retry([BUSY], None)


def test_release_ended_raises_nothing(monkeypatch):
    def fail():
        raise exception.JournalBusy(path='p', seconds=1)

    monkeypatch.setattr(waiting.os_acc, 'recover', fail)
    waiting.release_ended(print)


def test_many_wait_for_few():
    """See tests/functional/test_run.py for many processes."""
    most, now, lock = 3, [0], threading.Lock()

    def act():
        with lock:
            if now[0] >= most:
                raise BUSY
            now[0] += 1
        time.sleep(0.02)
        with lock:
            now[0] -= 1
        return 'done'

    done: list[str] = []

    def work():
        done.append(waiting.retry(act, 100.0, lambda text: None))

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert done == ['done'] * 12


# --- what no device of this host could ever serve


@pytest.mark.parametrize(
    ('words', 'end', 'code'),
    [(['plug', 'web'], [], 4), (['run'], ['--', 'true'], 125)],
)
def test_a_misspelt_trait_is_not_waited_for(run, words, end, code):
    selectors = ['--resource-class', PCI, '--trait', 'CUSTOM_NOPE']
    line = run.fails(code, *words, *selectors, '--wait', '20', *end)
    assert 'No device of this host, free or not' in line
    assert 'CUSTOM_NOPE' in line


def test_what_others_have_is_waited_for(run):
    plug(run, '--count', '3')
    selectors = ['--resource-class', PCI, '--wait', '3']
    result = run('plug', 'web/2', *selectors)
    assert result.code == 5, result
    assert result.err.startswith('Waiting for at most')


def test_a_named_device_that_is_gone(clean):
    error = exception.DeviceNotFound(wanted='0000:3b:00.0', reason='gone')
    request = objects.AcceleratorRequest(
        uuid='0f5d1c7e-6a83-4b0e-9c59-5f3f1c9be001',
        handle=objects.PCIHandle(address='0000:3b:00.0'),
    )

    def act():
        raise error

    with pytest.raises(errors.NoSuchDevice) as caught:
        waiting.retry(act, 20.0, print, requests=[request])
    assert exit_codes.of(caught.value) == exit_codes.NOT_FOUND
    assert not waiting.may_pass(caught.value)
