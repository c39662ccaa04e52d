# SPDX-License-Identifier: Apache-2.0

"""os_acc.apply(): what is offered, VFs, and the functions of regions."""

from __future__ import annotations

import errno
import json
import pathlib

import applied
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import reserved
from os_acc.journal import desired
from os_acc.kernel import pci
from os_acc.programming import hooks
from os_acc.spec import device_spec

FUNCTIONS = [('fpga', '0', 'aes'), ('fpga', '1', 'sha'), ('card', '', 'gzip')]


@pytest.fixture
def here(kernel, tmp_path):
    return applied.Host(kernel, tmp_path)


def file() -> pathlib.Path:
    directory = os_acc.CONF.os_acc.device_spec_dir
    return pathlib.Path(directory) / '40-os-acc-applied.json'


def test_all_parts(here):
    report = here.apply(applied.pf(), functions=FUNCTIONS)
    assert report.results() == {'changed'}
    assert [each.part for each in report.steps] == [
        'offered',
        'vfs',
        'functions',
        'functions',
        'functions',
    ]
    assert here.state() == (
        [2, 0],
        ['aes', 'sha', 'gzip'],
        {devices.PF: 2},
    )
    found = device_spec.load(os_acc.CONF).find(pci.get(devices.PF))
    assert found is not None
    assert found.source == f'{file()}, entry 1'


def test_twice(here):
    here.apply(applied.pf(), functions=FUNCTIONS)
    writes = list(here.kernel.writes)
    times = [here.hardware.times(n) for n in ('fpga.0', 'fpga.1', 'card')]
    before = file().stat()
    report = here.apply(applied.pf(), functions=FUNCTIONS)
    assert report.results() == {'unchanged'}
    assert here.kernel.writes == writes
    assert times == [1, 1, 1]
    assert times == [
        here.hardware.times(n) for n in ('fpga.0', 'fpga.1', 'card')
    ]
    assert file().stat() == before


def test_a_check_changes_nothing(here):
    before = here.state()
    report = here.apply(applied.pf(), functions=FUNCTIONS, check=True)
    assert report.results() == {'would change'}
    assert here.state() == before
    assert not file().exists()
    assert os_acc._host.journal.desired() is None
    here.apply(applied.pf(), functions=FUNCTIONS)
    report = here.apply(applied.pf(), functions=FUNCTIONS, check=True)
    assert report.results() == {'unchanged'}


@pytest.mark.parametrize('number', [1, 4])
def test_another_number_of_vfs(here, number):
    here.apply(applied.pf(), applied.pf(applied.OTHER, 3))
    report = here.apply(
        applied.pf(number=number), applied.pf(applied.OTHER, 3)
    )
    assert here.vfs() == [number, 3]
    assert applied.results(report)[applied.OTHER] == 'unchanged'


def test_a_pf_that_the_document_has_no_more(here):
    before = here.kernel.snapshot()
    here.apply(applied.pf(), applied.pf(applied.OTHER, 3))
    here.apply(applied.pf(applied.OTHER, 3))
    assert here.vfs() == [0, 3]
    here.apply()
    assert here.kernel.snapshot() == before
    assert not file().exists()
    assert os_acc._host.journal.kept_vfs() == {}


def test_vfs_that_somebody_else_has_made(here):
    """They count, and os-acc does not remove them."""
    numvfs = here.kernel.pci / 'devices' / devices.PF / 'sriov_numvfs'
    here.kernel.write(str(numvfs), '2')
    here.apply(applied.pf())
    assert here.vfs() == [2, 0]
    report = here.apply(applied.pf(number=3))
    (step,) = (each for each in report.steps if each.part == 'vfs')
    assert step.result == 'in the way'
    assert f'VF {devices.VFS[0]}: it is bound to qat' in step.reason
    assert here.apply().results() == {'changed'}
    assert here.vfs() == [2, 0]
    assert os_acc._host.journal.kept_vfs() == {}


# --- who is in the way


def test_vfs_that_a_van_has(here):
    """The rest is done, and a later apply does what was left."""
    here.apply(applied.pf())
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(devices.VFS[1])])
    wanted = [applied.pf(number=4), applied.pf(applied.OTHER, 3)]
    check = here.apply(*wanted, functions=FUNCTIONS, check=True)
    report = here.apply(*wanted, functions=FUNCTIONS)
    for each in (check, report):
        (step,) = (s for s in each.steps if s.name == devices.PF)
        assert van.uuid in step.reason
        assert instance.uuid in step.reason
    assert applied.results(report) == {
        str(file()): 'changed',
        devices.PF: 'in the way',
        applied.OTHER: 'changed',
        'fpga 0': 'changed',
        'fpga 1': 'changed',
        'card': 'changed',
    }
    assert here.vfs() == [2, 3]
    os_acc.unplug(instance)
    assert here.vfs() == [2, 3], 'the VFs of a document stay'
    report = here.apply(*wanted, functions=FUNCTIONS)
    assert report.results() == {'changed', 'unchanged'}
    assert here.vfs() == [4, 3]


def test_a_function_that_an_instance_replaces(here):
    """The function of the document comes back when the instance has gone."""
    wanted = [(*name, 'aes') for *name, _ in FUNCTIONS]
    here.apply(functions=wanted)
    assert os_acc.apply_again() is None
    instance = devices.instance()
    os_acc.plug(instance, [applied.fake_request('sha')])
    assert sorted(here.inside()) == ['aes', 'aes', 'sha']
    assert 'in the way' in os_acc.apply_again().results()
    os_acc.unplug(instance)
    assert os_acc.apply_again().results() == {'changed', 'unchanged'}
    assert here.inside() == ['aes'] * 3
    assert os_acc.apply_again() is None


def test_vfs_that_a_van_has_are_let_go_later(here):
    here.apply(applied.pf())
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.VFS[1])])
    assert here.apply().results() == {'changed', 'in the way'}
    assert here.vfs() == [2, 0]
    os_acc.unplug(instance)
    os_acc.initialize(reset=True)
    assert here.vfs() == [0, 0]


def test_vfs_that_were_made_for_a_van_stay(here):
    """Without a document they are removed with the last VAN."""
    devices.spec(applied.pf())
    for apply in (False, True):
        instance = devices.instance()
        os_acc.plug(instance, [devices.pci(devices.VFS[1])])
        if apply:
            report = here.apply(applied.pf())
            assert report.results() == {'changed'}
        os_acc.unplug(instance)
        assert here.vfs() == [2 * apply, 0]


def test_a_pf_that_a_van_has(here):
    entry = {'address': devices.PF}
    here.apply(entry)
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.PF)])
    report = here.apply(applied.pf())
    assert applied.results(report)[devices.PF] == 'in the way'
    assert here.vfs() == [0, 0]
    os_acc.unplug(instance)
    os_acc.initialize(reset=True)
    assert here.vfs() == [2, 0]


def test_a_region_that_a_van_has(here):
    here.apply(functions=FUNCTIONS)
    instance = devices.instance()
    os_acc.plug(instance, [applied.fake_request('aes')])
    wanted = [('fpga', '0', 'gzip'), ('fpga', '1', 'gzip')]
    used, free = here.apply(functions=wanted, check=True).steps
    assert instance.uuid in used.reason
    assert free.reason is None, 'an instance has the other region'
    report = here.apply(functions=wanted)
    assert applied.results(report) == {
        'fpga 0': 'in the way',
        'fpga 1': 'changed',
    }
    assert instance.uuid in report.steps[0].reason
    assert here.inside() == ['aes', 'gzip', 'gzip']
    os_acc.unplug(instance)
    here.apply(functions=wanted)
    assert here.inside() == ['gzip', 'gzip', 'gzip']


def test_a_service_finishes_what_was_in_the_way(here):
    here.apply(functions=FUNCTIONS)
    assert os_acc.apply_again() is None
    instance = devices.instance()
    os_acc.plug(instance, [applied.fake_request('aes')])
    here.apply(functions=[('fpga', '0', 'gzip')])
    report = os_acc.apply_again()
    assert report is not None
    assert report.results() == {'in the way'}
    os_acc.unplug(instance)
    report = os_acc.apply_again()
    assert report is not None
    assert report.results() == {'changed'}
    assert here.inside() == ['gzip', 'sha', 'gzip']
    assert os_acc.apply_again() is None


def test_a_document_that_is_applied_meanwhile_stays(here, monkeypatch):
    """A service that has just read the earlier one does not bring it back."""
    journal = os_acc._host.journal
    earlier = applied.document(functions=[('card', '', 'aes')])
    journal.save_desired(desired.Desired(json.dumps(earlier)))
    read = type(journal).desired
    newer = [{'device': 'fpga', 'project': 'a-project'}]

    def read_slowly(self):
        found = read(self)
        if newer:
            here.apply(functions=FUNCTIONS, reserved=[newer.pop()])
        return found

    with monkeypatch.context() as patch:
        patch.setattr(type(journal), 'desired', read_slowly)
        os_acc.apply_again()
    assert here.inside() == ['aes', 'sha', 'gzip']
    assert reserved.read(journal)


def test_a_service_does_not_repeat_what_has_failed(here):
    here.apply(applied.pf())
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.VFS[1])])
    here.kernel.fail(f'*/{applied.OTHER}/sriov_numvfs', errno.ENOMEM)
    wanted = [applied.pf(number=3), applied.pf(applied.OTHER)]
    report = here.apply(*wanted)
    assert report.results() == {'changed', 'in the way', 'failed'}
    report = os_acc.apply_again()
    assert report is not None
    assert applied.results(report)[applied.OTHER] == 'failed'
    assert here.vfs() == [2, 0]
    os_acc.initialize(reset=True)
    assert here.vfs() == [2, 2]


# --- failures


@pytest.mark.parametrize('complete', [True, False])
def test_a_check_tells_a_device_that_is_not_there(here, complete):
    """Unless a driver cannot say which devices there are."""
    if not complete:
        os_acc.CONF.set_override('devices', ['card:nothing'], 'os_acc_fake')
    (found,) = here.apply(functions=[('crad', '', 'aes')], check=True).steps
    assert found.result == ('failed' if complete else 'would change')
    (found,) = here.apply(functions=[('crad', '', 'aes')]).steps
    assert (found.result, 'no driver' in found.reason) == ('failed', True)


def test_a_check_tells_a_region_that_the_device_lacks(here):
    wanted = [('fpga', '', 'aes')]
    for check in (True, False):
        (step,) = here.apply(functions=wanted, check=check).steps
        assert step.result == 'failed'
        assert "region is None, expected one of '0', '1'" in step.reason
    assert 'aes' not in here.inside()


def test_vfs_that_cannot_be_made(here):
    """The VFs of before are made again, and the rest is done."""
    here.apply(applied.pf())
    here.kernel.fail('*/sriov_numvfs', lambda: None)  # the removal
    here.kernel.fail('*/sriov_numvfs', errno.ENOMEM)
    report = here.apply(applied.pf(number=3), functions=FUNCTIONS)
    assert applied.results(report)[devices.PF] == 'failed'
    assert here.state() == (
        [2, 0],
        ['aes', 'sha', 'gzip'],
        {devices.PF: 2},
    )
    here.apply(applied.pf(number=3), functions=FUNCTIONS)
    assert here.vfs() == [3, 0]


def test_more_vfs_than_the_pf_can_have(here):
    report = here.apply(applied.pf(number=99))
    (step,) = (each for each in report.steps if each.part == 'vfs')
    assert step.result == 'failed'
    assert '99' in step.reason
    assert here.state()[2] == {}


def test_a_device_that_is_not_there(here):
    report = here.apply(functions=[('none', '', 'aes'), *FUNCTIONS])
    assert applied.results(report)['none'] == 'failed'
    assert 'no driver reports' in report.steps[0].reason
    assert here.inside() == ['aes', 'sha', 'gzip']


def test_a_document_that_is_refused_is_not_kept(here):
    here.apply(applied.pf())
    kept = os_acc._host.journal.desired()
    # Other files of the directory are wrong: nothing may be offered now.
    (file().parent / '90-wrong.json').write_text('{')
    with pytest.raises(exception.InvalidRequest):
        here.apply(applied.pf(number=3))
    assert os_acc._host.journal.desired() == kept
    assert here.vfs() == [2, 0]


@pytest.mark.parametrize(
    ('address', 'said'),
    [('0000:99:00.0', 'this host has none'), (devices.GPU, 'SR-IOV')],
)
@pytest.mark.parametrize('check', [True, False])
def test_an_address_without_a_pf(here, address, said, check):
    here.kernel.add_function(devices.GPU, '10de:1eb8', 0x030200)
    report = here.apply(applied.pf(address), applied.pf(), check=check)
    found = {each.name: each for each in report.steps}
    assert found[address].result == 'failed'
    assert said in found[address].reason
    assert here.vfs() == ([0, 0] if check else [2, 0])


def test_a_pf_that_has_left_keeps_its_vfs_in_the_journal(here):
    here.apply(applied.pf())
    here.kernel.take_off(devices.PF)
    assert applied.results(here.apply(applied.pf()))[devices.PF] == 'failed'
    assert os_acc._host.journal.kept_vfs() == {devices.PF: 2}


def test_another_process_applies_one(here):
    os_acc.CONF.set_override('lock_timeout', 0.0, 'os_acc')
    os_acc.initialize(reset=True)
    with os_acc._host.locks.document(0):
        with pytest.raises(exception.LockTimeout, match='os-acc pools'):
            here.apply(applied.pf())
    here.apply(applied.pf())
    assert here.vfs() == [2, 0]


# --- crashes and reboots


def test_a_reboot(here):
    here.apply(applied.pf(), functions=FUNCTIONS)
    here.kernel.reboot()
    assert here.vfs() == [0, 0]
    os_acc.initialize(reset=True)
    assert here.state() == (
        [2, 0],
        ['aes', 'sha', 'gzip'],
        {devices.PF: 2},
    )


def test_a_reboot_with_a_van(here):
    here.apply(applied.pf())
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.VFS[1])])
    here.kernel.reboot()
    os_acc.initialize(reset=True)
    assert here.vfs() == [2, 0]
    assert here.kernel.driver_of(devices.VFS[1]) == 'vfio-pci'
    os_acc.unplug(instance)
    assert here.vfs() == [2, 0]


def test_a_reader_applies_nothing(here):
    here.apply(applied.pf())
    here.kernel.reboot()
    os_acc._host.close()
    os_acc._host = None
    os_acc.initialize(read_only=True)
    assert here.vfs() == [0, 0]
    with pytest.raises(exception.ReadOnly):
        here.apply(applied.pf())
    report = here.apply(applied.pf(), check=True)
    assert applied.results(report)[devices.PF] == 'would change'


@pytest.mark.timeout(600)
def test_a_crash_before_each_write(here, monkeypatch):
    """A restart of the service, or the next apply, finishes what was begun."""
    # Hooks write nothing, and to find them takes longer than a boundary.
    monkeypatch.setattr(hooks, 'call', lambda event: None)
    one = ([applied.pf()], FUNCTIONS[:1])
    two = (
        [applied.pf(number=3), applied.pf(applied.OTHER)],
        [('fpga', '0', 'sha')],
    )

    def apply(document):
        return here.apply(*document[0], functions=document[1])

    apply(two)
    kept = os_acc._host.journal.kept_vfs()
    number, died = 0, True
    while died:
        apply(one)
        died = applied.dies_at(
            here.kernel, monkeypatch, number, lambda: apply(two)
        )
        os_acc.initialize(reset=True)
        if '"num_vfs": 3' not in os_acc._host.journal.desired().document:
            apply(two)
        assert here.vfs() == [3, 2], number
        assert os_acc._host.journal.kept_vfs() == kept, number
        assert here.hardware.function_of('fpga.0') == 'sha', number
        assert apply(two).results() == {'unchanged'}, number
        number += 1
    assert number > 20
