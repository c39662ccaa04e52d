# SPDX-License-Identifier: Apache-2.0

"""os-acc pools and os-acc demand, and the figures of both."""

from __future__ import annotations

import datetime
import json

import applied
import command
import pytest

import os_acc

FPGA = ['--resource-class', 'CUSTOM_FAKE_PCI', '--function']


@pytest.fixture
def run(kernel, tmp_path, capsys, monkeypatch):
    applied.Host(kernel, tmp_path)
    os_acc.CONF.set_override('devices', ['fpga:pci:2:dynamic'], 'os_acc_fake')
    path = tmp_path / 'host.json'
    pools = [
        {'function': 'aes', 'max': 1},
        {'function': 'sha', 'min_free': 2},
        {'function': 'fft', 'hours': _never(), 'traits': ['CUSTOM_A']},
    ]
    path.write_text(json.dumps({'version': 1, 'pools': pools}))
    state = os_acc.CONF.os_acc.state_path
    made = command.Command(state, capsys, monkeypatch)
    made.fine('apply', path)
    return made


def _never():
    """Hours that are not now, also if the next hour begins in this test."""
    hour = datetime.datetime.now().astimezone().hour
    return f'{(hour + 3) % 24}-{(hour + 4) % 24}'


def shown(run):
    rows = run.fine('pools', '-f', 'json').json
    return [
        (r['function'], r['wanted'], r['free'], r['held'], r['state'])
        for r in rows
    ]


def test_pools(run):
    assert shown(run) == [
        ('aes', 1, 0, 0, 'short'),
        ('sha', 2, 0, 0, 'short'),
        ('fft', 1, 0, 0, 'short, and waits'),
    ]
    result = run('pools', '--keep', '-f', 'json')
    assert (result.code, result.err) == (
        0,
        'fpga 0: aes: changed\nfpga 1: sha: changed\n',
    )
    assert result.json[0]['regions'] == ['fpga 0']
    run.fine('plug', 'web', *FPGA, 'aes')
    assert shown(run)[:2] == [
        ('aes', 1, 0, 1, 'at its maximum'),
        ('sha', 2, 1, 1, 'short'),
    ]
    run.fine('pools', '--keep')


def test_a_programming_that_fails(run):
    os_acc.CONF.set_override('fail', ['program'], 'os_acc_fake')
    result = run('pools', '--keep')
    assert result.code == 3
    assert 'fpga 0: aes: failed: ' in result.err
    assert shown(run)[0][-1] == 'short, and failed in 1'


def test_demand(run):
    assert run.fine('demand', '-f', 'json').json == []
    for name in ('one', 'two'):
        run.fine('plug', name, *FPGA, 'sha')
    for function in ('aes', 'fft', 'aes'):
        assert run('plug', 'three', *FPGA, function).code
    rows = run.fine('demand', '-f', 'json').json
    assert [(r['function_id'], r['count']) for r in rows] == [
        ('aes', 2),
        ('fft', 1),
    ]
    assert rows[0]['resource_class'] == 'CUSTOM_FAKE_PCI'
    assert rows[0]['first_at'] < rows[0]['last_at']
    assert (
        'os_acc_demand_total{function_id="aes",'
        'resource_class="CUSTOM_FAKE_PCI",traits=""} 2.0'
    ) in run.fine('metrics').out
