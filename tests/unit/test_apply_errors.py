# SPDX-License-Identifier: Apache-2.0

"""os-acc apply: an error of one step, or of finding it, stops no other."""

from __future__ import annotations

import errno

import applied
import command
import devices
import pytest
import vgpu_card

import os_acc
from os_acc.desired import partitions
from os_acc.desired import vfs
from os_acc.kernel import vgpu
from os_acc.kernel import vgpu_cards

VF, OTHER = '0000:41:00.4', '0000:41:00.5'


@pytest.fixture
def here(kernel, tmp_path):
    return applied.Host(kernel, tmp_path)


@pytest.fixture
def run(here, capsys, monkeypatch):
    path = os_acc.CONF.os_acc.state_path
    return command.Command(path, capsys, monkeypatch)


def told(report):
    return {
        (each.part, each.name): (each.result, each.reason)
        for each in report.steps
    }


def broken(*args, **kwargs):
    raise OSError(errno.EIO, 'Input/output error')


WHY = 'OSError: [Errno 5] Input/output error'


@pytest.fixture
def bitstream(here, tmp_path):
    os_acc.CONF.set_override(
        'allowed_folders', [str(tmp_path)], 'os_acc_bitstreams'
    )
    path = tmp_path / 'aes.bin'
    path.write_text('aes')
    return path


def with_bitstream(path, *others):
    first = {'device': 'fpga', 'region': '0', 'function': 'aes'}
    made = applied.document(functions=others)
    made['functions'].insert(0, first | {'bitstream': str(path)})
    return made


def test_a_bitstream_that_has_gone(here, bitstream):
    """Of a function that the region holds: only its own step fails."""
    assert os_acc.apply(with_bitstream(bitstream)).results() == {'changed'}
    bitstream.unlink()
    wanted = with_bitstream(bitstream, ('card', '', 'gzip'))
    wanted['pools'] = [{'function': 'fft'}]
    for check, other in (
        (True, 'would change'),
        (False, 'changed'),
    ):
        found = told(os_acc.apply(wanted, check=check))
        assert [result for result, _ in found.values()] == [
            'failed',
            other,
            other,
        ]
        _, reason = found['functions', 'fpga 0']
        assert str(bitstream) in reason
    assert here.inside() == ['aes', None, 'gzip']
    bitstream.write_text('aes')
    assert os_acc.apply(wanted).results() == {'unchanged'}


@pytest.mark.parametrize('inside', [None, 'gzip'])
def test_a_bitstream_that_was_never_there(here, bitstream, inside):
    """Of a function to program: the check says what the real call does."""
    if inside is not None:
        here.apply(functions=[('fpga', '0', inside)])
    bitstream.unlink()
    wanted = with_bitstream(bitstream, ('card', '', 'gzip'))
    expected, done = (
        told(os_acc.apply(wanted, check=True)),
        os_acc.apply(wanted),
    )
    result, reason = expected['functions', 'fpga 0']
    assert (result, reason) == told(done)['functions', 'fpga 0']
    assert result == 'failed'
    assert str(bitstream) in reason
    assert expected['functions', 'card'] == ('would change', None)
    assert here.inside() == [inside, None, 'gzip']


@pytest.mark.parametrize('check', [True, False])
def test_a_part_whose_steps_are_not_found(here, monkeypatch, check):
    monkeypatch.setattr(vfs.sriov, 'count', broken)
    report = here.apply(
        applied.pf(), functions=[('card', '', 'gzip')], check=check
    )
    found = told(report)
    assert found['vfs', 'everything else'] == ('failed', WHY)
    done = 'would change' if check else 'changed'
    assert found['functions', 'card'] == (done, None)


def test_steps_before_the_one_that_is_not_found(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(vgpu_cards, 'PATH', str(tmp_path / 'missing.xml'))
    types = {558: ('NVIDIA A40-1Q', 1)}
    card = vgpu_card.Card(kernel, '0000:41:00.0', types, size=48, vfs=3)
    entry = {'vendor_id': '10de', 'vgpu_type': 'NVIDIA A40-1Q'}
    devices.spec(entry)
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize(reset=True)

    def apply(*wanted, **more):
        made = {'version': 1, 'offered': [entry], **more}
        made['vgpus'] = [{'device': each} for each in wanted]
        return os_acc.apply(made)

    assert apply(VF, OTHER).results() == {'changed'}
    with monkeypatch.context() as patch:
        patch.setattr(vgpu, 'current', broken)
        report = apply(pools=[{'function': 'a'}])
        assert told(report) == {
            ('vgpus', 'everything else'): ('failed', WHY),
            ('pools', 'a'): ('changed', None),
        }
    # What was not undone is undone by the next one.
    assert card.kind_of(VF) == card.kind_of(OTHER) == 558
    assert applied.results(apply()) == {
        VF: 'changed',
        OTHER: 'changed',
        'a': 'changed',
    }
    assert card.kind_of(VF) == card.kind_of(OTHER) == 0


def test_an_unexpected_error_of_a_step(here, monkeypatch, caplog):
    monkeypatch.setattr(vfs, '_keep', broken)
    found = told(here.apply(applied.pf(), functions=[('card', '', 'gzip')]))
    assert found['vfs', devices.PF] == ('failed', WHY)
    assert found['functions', 'card'] == ('changed', None)
    assert f'vfs {devices.PF} failed' in caplog.text
    assert 'Traceback' in caplog.text


# --- after a reboot


def test_a_service_reports_an_unexpected_error(here, monkeypatch, caplog):
    here.apply(applied.pf())
    here.kernel.reboot()
    monkeypatch.setattr('os_acc.desired.applying.offer', broken)
    (step,) = os_acc.apply_again().steps
    assert (step.part, step.result, step.reason) == ('document', 'failed', WHY)
    assert 'The document of os-acc apply is not applied' in caplog.text


def test_recover_says_what_has_failed(run, here):
    here.apply(functions=[('nosuch', '', 'aes'), ('card', '', 'gzip')])
    here.kernel.reboot()
    result = run('recover')
    assert result.code == 3
    assert 'functions nosuch: failed (' in result.err
    assert 'functions card: unchanged\n' in result.err


def test_recover_with_a_bitstream_that_has_gone(run, here, bitstream):
    os_acc.apply(with_bitstream(bitstream, ('card', '', 'gzip')))
    bitstream.unlink()
    here.kernel.reboot()
    result = run('recover')
    assert result.code == 3
    assert 'functions fpga 0: failed (' in result.err
    assert str(bitstream) in result.err.replace('\n', '')
    assert 'functions card: unchanged' in result.err


def test_recover_repeats_what_has_failed(run, here, bitstream):
    """Also in the same boot: the operator has repaired the cause."""
    os_acc.apply(with_bitstream(bitstream))
    content = bitstream.read_bytes()
    bitstream.unlink()
    here.kernel.reboot()
    assert run('recover').code == 3
    assert run('recover').code == 3
    bitstream.write_bytes(content)
    result = run('recover')
    assert result.code == 0, result.err
    assert 'functions' not in result.err


def test_recover_says_who_is_in_the_way(run, here):
    """That is done later, and changes no exit code."""
    here.apply(functions=[('fpga', '0', 'aes')])
    instance = devices.instance()
    os_acc.plug(instance, [applied.fake_request('aes')])
    here.apply(functions=[('fpga', '0', 'gzip')])
    result = run('recover')
    assert result.code == 0
    assert 'functions fpga 0: in the way (' in result.err
    assert instance.uuid in result.err


def test_partitions_that_are_not_found_stop_no_service(here, monkeypatch):
    monkeypatch.setattr(partitions.amd_partitions, 'mode', broken)
    card = '0000:c1:00.0'
    made = applied.document(functions=[('card', '', 'gzip')])
    made['partitions'] = [{'device': card, 'compute': 'CPX'}]
    assert os_acc.apply(made).results() == {'failed', 'changed'}
    here.kernel.reboot()
    os_acc.initialize(reset=True)
    assert here.inside()[2] == 'gzip'
