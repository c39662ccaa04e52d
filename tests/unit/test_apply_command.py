# SPDX-License-Identifier: Apache-2.0

"""os-acc apply, os-acc export, and what os-acc recover does with both."""

from __future__ import annotations

import json
import threading

import applied
import command
import devices
import pytest
import waits

import os_acc
from os_acc.kernel import sriov

FUNCTIONS = [('fpga', '0', 'aes')]


@pytest.fixture
def here(kernel, tmp_path):
    return applied.Host(kernel, tmp_path)


@pytest.fixture
def run(here, capsys, monkeypatch):
    path = os_acc.CONF.os_acc.state_path
    return command.Command(path, capsys, monkeypatch)


@pytest.fixture
def write(tmp_path):
    def written(*offered, functions=()):
        path = tmp_path / 'host.json'
        path.write_text(json.dumps(applied.document(offered, functions)))
        return path

    return written


def test_apply_and_check(run, here, write):
    path = write(applied.pf(), functions=FUNCTIONS)
    assert run('apply', path, '--check').code == 2
    assert here.vfs() == [0, 0]
    rows = run.fine('apply', path, '-f', 'json').json
    assert [each['result'] for each in rows] == ['changed'] * 3
    assert rows[1] == {
        'part': 'vfs',
        'name': devices.PF,
        'before': '0 VFs',
        'after': '2 VFs, kept',
        'result': 'changed',
        'reason': None,
    }
    assert here.vfs() == [2, 0]
    assert run('apply', path, '--check').code == 0
    rows = run.fine('apply', path, '-f', 'json').json
    assert [each['result'] for each in rows] == ['unchanged'] * 3


def test_diff(run, here, write):
    run.fine('apply', write(applied.pf()))
    result = run('apply', write(applied.pf(number=3)), '--check', '--diff')
    lines = result.err.splitlines()
    assert f'vfs {devices.PF}' in lines
    assert '- 2 VFs, kept' in lines
    assert '+ 3 VFs, kept' in lines
    assert '+ ' + json.dumps(applied.pf(number=3)) in lines


@pytest.mark.parametrize('check', [False, True])
def test_a_wrong_document(run, here, tmp_path, check):
    """2 is "would change" with --check, so there it is 1."""
    path = tmp_path / 'host.yaml'
    path.write_text('version: 1\nofered: []\n')
    result = run('apply', path, *['--check'] * check)
    assert result.code == (1 if check else 2)
    assert f'{path}, line 2' in ' '.join(result.err.split())
    assert "did you mean 'offered'?" in ' '.join(result.err.split())


def test_somebody_is_in_the_way(run, here, write, monkeypatch):
    run.fine('apply', write(applied.pf()))
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.VFS[0])])
    path = write(applied.pf(number=3), functions=FUNCTIONS)
    result = run('apply', path, '-f', 'json')
    assert result.code == 3
    (row,) = (e for e in result.json if e['result'] == 'in the way')
    assert instance.uuid in row['reason']
    assert here.inside()[0] == 'aes'
    waits.pass_at_once(monkeypatch)
    result = run('apply', path, '--wait', '30', '-f', 'json')
    assert result.code == 3
    assert 'Waiting for at most' in result.err


def test_wait(run, here, write):
    """It ends once the instance has let go."""
    run.fine('apply', write(applied.pf()))
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.VFS[0])])
    path = write(applied.pf(number=3))
    host = os_acc._host
    told = threading.Event()

    def unplug():
        told.wait(120)
        from os_acc.attach import release

        release.unplug(host, instance, None, False, None)

    thread = threading.Thread(target=unplug)
    thread.start()
    from os_acc.cli import apply

    say = apply.Apply.say
    try:
        run._monkeypatch.setattr(
            apply.Apply, 'say', lambda self, t: (told.set(), say(self, t))
        )
        result = run('apply', path, '--wait', '20', '-f', 'json')
    finally:
        told.set()
        thread.join()
    assert result.code == 0
    assert 'in the way' not in result.out
    assert sriov.count(devices.PF) == 3


def test_what_has_failed_ends_the_wait(run, here, write, monkeypatch):
    """It would fail again, even if another device is in use."""
    run.fine('apply', write(applied.pf()))
    os_acc.plug(devices.instance(), [devices.pci(devices.VFS[0])])
    path = write(applied.pf(number=3), applied.pf(applied.OTHER, 99))
    monkeypatch.setattr(
        'os_acc.cli.waiting.time.sleep', lambda seconds: pytest.fail('waits')
    )
    result = run('apply', path, '--wait', '30', '-f', 'json')
    assert result.code == 3
    assert {each['result'] for each in result.json} >= {'in the way', 'failed'}
    assert 'Waiting' not in result.err


def test_export_is_the_state(run, here, write, tmp_path):
    """Applied at once it changes nothing, also on a host of device_spec."""
    path = tmp_path / 'exported.json'
    path.write_text(run.fine('export').out)
    assert run('apply', path, '--check').code == 0
    here.kernel.add_function(devices.GPU, '10de:1eb8', 0x030200)
    here.kernel.add_function(devices.NIC, '8086:10d3', 0x020000, 'e1000e')
    devices.spec(applied.pf(), {'address': devices.GPU})
    run.fine('device', 'deny', devices.NIC)
    run.fine('apply', write(applied.pf(), functions=FUNCTIONS))
    found = run.fine('export').json
    assert found['functions'] == [
        {'device': 'fpga', 'region': '0', 'function': 'aes'}
    ]
    assert applied.pf() in found['offered']
    assert {'address': devices.GPU} in found['offered']
    path.write_text(json.dumps(found))
    assert run('apply', path, '--check').code == 0


def test_recover_applies_again(run, here, write):
    run.fine('apply', write(applied.pf(), functions=FUNCTIONS))
    here.kernel.reboot()
    assert here.vfs() == [0, 0]
    result = run('recover')
    assert f'vfs {devices.PF}: changed' in result.err
    assert here.vfs() == [2, 0]
    assert 'vfs' not in run('recover').err
