# SPDX-License-Identifier: Apache-2.0

"""Work queues that a document sets up ahead of time, on a kernel of files."""

from __future__ import annotations

import errno
import uuid

import applied
import devices
import idxd_model
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.availability import nothing_offered
from os_acc.desired import export
from os_acc.doctor import entries
from os_acc.journal import desired
from os_acc.operations import preview
from os_acc.privileged.idxd import devices as privileged
from os_acc.privileged.idxd import notes as records
from os_acc.privileged.idxd import setup as idxd_setup
from os_acc.spec import device_spec

DSA, OTHER = '0000:6a:01.0', '0000:6f:01.0'
ENTRY = {'idxd': DSA, 'wq_count': 4, 'wq_groups': 2}


@pytest.fixture
def model(kernel):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    return idxd_model.Idxd(kernel)


@pytest.fixture
def dsa(model):
    made = model.add(DSA)
    devices.spec(ENTRY)
    os_acc.initialize(reset=True)
    return made


def apply(*addresses, check=False, **settings):
    """Apply a document with an entry that settings change."""
    return os_acc.apply(
        {
            'version': 1,
            'offered': [ENTRY | settings],
            'work_queues': [{'device': each} for each in addresses],
        },
        check=check,
    )


def step(report, name=DSA):
    (found,) = (
        each
        for each in report.steps
        if (each.part, each.name) == ('work_queues', name)
    )
    return found


def layout(dsa):
    """The groups of the work queues and the engines, and the sizes."""
    return (
        [each.group for each in dsa.queues],
        dsa.engines,
        {each.size for each in dsa.queues if each.size},
    )


def wanted():
    return devices.wanted('CUSTOM_DSA')


def test_set_up_and_undone(dsa, kernel):
    before = dsa.snapshot()
    would = step(apply(DSA.upper(), check=True))
    assert would.result == 'would change'
    assert dsa.snapshot() == before
    done = step(apply(DSA))
    assert (done.result, done.before) == ('changed', 'not set up')
    assert done.after == '4 work queues of 32 entries, dedicated, in 2 groups'
    assert done.after == would.after
    assert dsa.state == 'enabled'
    assert layout(dsa) == ([0, 1] * 2 + [-1] * 4, [0, 1] * 2, {32})
    writes = list(kernel.writes)
    assert apply(DSA, check=True).results() == {'unchanged'}
    again = step(apply(DSA))
    assert (again.result, again.after) == ('unchanged', done.after)
    assert kernel.writes == writes
    apply()
    assert dsa.snapshot() == before
    assert records.idxd_devices.names() == []
    assert apply().steps == []


def test_an_instance_leaves_it_set_up(dsa):
    """The dry run, the list and the plug agree; no other one may take it."""
    apply(DSA)
    before = dsa.snapshot()
    (device,) = os_acc.get_devices()
    assert (device.handles_total, device.handles_free) == (4, 4)
    assert not nothing_offered.find(
        device_spec.load(os_acc.CONF), entries.holders(os_acc._host.journal)
    )
    guest, request = devices.instance(), wanted()
    (planned,) = preview.plug(os_acc._host, guest, [request])
    assert planned.obstacle is None
    (van,) = os_acc.plug(guest, [request])
    assert van.handle.name == f'{DSA}-wq0'
    assert apply(DSA).results() == {'unchanged'}
    os_acc.unplug(guest)
    assert dsa.snapshot() == before
    assert 'work queues' in str(devices.refused(devices.pci(DSA)))


def test_it_was_set_up_for_an_instance(dsa):
    """It stays, or goes, as the newest document says."""
    before = dsa.snapshot()
    for keeps in (True, False):
        guest = devices.instance()
        os_acc.plug(guest, [wanted()])
        if keeps:
            assert apply(DSA).results() == {'changed'}
            assert apply(DSA).results() == {'unchanged'}
        else:
            assert apply().results() == {'changed'}
            assert dsa.state == 'enabled', 'the instance has a work queue'
        os_acc.unplug(guest)
        assert (dsa.state == 'enabled') == keeps
    assert dsa.snapshot() == before


def test_another_layout(dsa):
    """It waits until no instance has a work queue."""
    apply(DSA)
    guest = devices.instance()
    (van,) = os_acc.plug(guest, [wanted()])
    for check in (True, False):
        found = step(apply(DSA, wq_count=2, check=check))
        assert van.uuid in found.reason
    assert found.result == 'in the way'
    assert layout(dsa)[2] == {32}
    os_acc.unplug(guest)
    assert layout(dsa)[2] == {32}
    assert os_acc.apply_again().results() == {'changed', 'unchanged'}
    assert layout(dsa) == ([0, 1] + [-1] * 6, [0, 1] * 2, {64})


@pytest.mark.parametrize(
    ('number', 'values', 'result'),
    [
        # It has a group, and no entries yet.
        (5, {'group': 0}, 'would change'),
        (5, {'size': 8}, 'would change'),
        (1, {'dedicated': False}, 'would change'),
        # Whoever has it has set its mode.
        (
            1,
            {'dedicated': False, 'type': 'user', 'name': 'mine'},
            'unchanged',
        ),
    ],
)
def test_one_queue_is_not_as_it_was_set_up(dsa, number, values, result):
    apply(DSA)
    vars(dsa.queues[number]).update(values)
    dsa.show()
    assert step(apply(DSA, check=True)).result == result


@pytest.mark.parametrize('group', [-1, 0])
def test_an_engine_is_not_as_it_was_set_up(dsa, group):
    apply(DSA)
    dsa.engines[1] = group
    dsa.show()
    assert step(apply(DSA, check=True)).result == 'would change'


def test_a_device_that_has_stopped_is_not_set_up(dsa):
    apply(DSA)
    dsa.state = 'halted'
    dsa.show()
    found = step(apply(DSA, check=True))
    assert found.result == 'failed'
    assert 'the state of dsa0 is halted' in found.reason


def test_what_was_let_go_is_not_let_go_again(model, dsa):
    """Also if a user of another device is still in the way."""
    other = model.add(OTHER)

    def act(count, *addresses):
        entries = [ENTRY, {'idxd': OTHER, 'wq_count': count}]
        named = [{'device': each} for each in addresses]
        made = {'version': 1, 'offered': entries, 'work_queues': named}
        return os_acc.apply(made)

    act(4, DSA, OTHER)
    guest = devices.instance()
    handle = objects.DeviceFileHandle(name=f'{OTHER}-wq0', files=[])
    request = objects.AcceleratorRequest(uuid=str(uuid.uuid4()), handle=handle)
    os_acc.plug(guest, [request])
    first = act(2, OTHER)
    assert (step(first).result, dsa.state) == ('changed', 'disabled')
    assert step(first, OTHER).result == 'in the way'
    again = act(2, OTHER)
    assert again.results() == {'unchanged', 'in the way'}
    assert step(again, OTHER).result == 'in the way'
    os_acc.unplug(guest)
    os_acc.apply_again()
    assert layout(other)[2] == {64}


@pytest.mark.parametrize('name', ['bind', 'wq0.1/size', 'engine0.1/group_id'])
def test_the_kernel_refuses_another_layout(dsa, kernel, name):
    """The one of before is there again."""
    apply(DSA)
    before = dsa.snapshot()
    kernel.fail(f'*/{name}', errno.EIO)
    report = apply(DSA, wq_count=2)
    assert step(report).result == 'failed'
    assert dsa.snapshot() == before
    assert apply(DSA, wq_count=2).results() == {'changed', 'unchanged'}
    apply()
    assert dsa.state == 'disabled'


def test_the_kernel_refuses_the_first_layout(dsa, kernel):
    before = dsa.snapshot()
    kernel.fail('*/wq0.1/size', errno.EIO)
    assert apply(DSA).results() == {'failed'}
    assert dsa.snapshot() == before


def test_somebody_else_has_set_it_up(dsa, kernel):
    """Also in the same way: to disable it would be wrong."""
    apply(DSA)
    records.idxd_devices.delete(DSA)
    os_acc._host.journal.save_desired(None)
    before = dsa.snapshot()
    for check in (True, False):
        found = step(apply(DSA, check=check))
        assert 'somebody else has enabled dsa0' in found.reason
    assert found.result == 'in the way'
    apply()
    assert dsa.snapshot() == before


def test_what_others_add_stays(dsa):
    apply(DSA)
    queue = dsa.queues[3]
    queue.type, queue.name = 'user', 'mine'
    dsa.show()
    found = step(apply(DSA, wq_count=2))
    assert found.result == 'in the way'
    assert "'mine'" in found.reason
    apply()
    assert (dsa.state, queue.name) == ('enabled', 'mine')


def test_what_cannot_be(model, dsa):
    devices_before = dsa.snapshot()
    for addresses, settings, text in (
        ([DSA], {'wq_size': 128}, '4 work queues of 128 entries'),
        ([OTHER], {}, OTHER),
    ):
        for check in (True, False):
            found = step(
                apply(*addresses, check=check, **settings), *addresses
            )
            assert found.result == 'failed'
            assert text in found.reason
    model.add(OTHER)
    assert 'device_spec does not offer' in step(apply(OTHER), OTHER).reason
    assert dsa.snapshot() == devices_before


def test_a_wrong_address(dsa):
    with pytest.raises(exception.InvalidRequest) as caught:
        apply('dsa0')
    assert caught.value.kwargs['field'] == 'work_queues[0].device'
    with pytest.raises(exception.InvalidRequest, match='each device once'):
        apply(DSA, DSA.upper())


def test_root_checks_its_arguments(dsa):
    for call in (privileged.keep, privileged.let_go):
        with pytest.raises(exception.InvalidRequest):
            call('dsa0', 5)
        with pytest.raises(exception.DeviceNotFound):
            call(OTHER, 5)
    devices.spec({'idxd': OTHER})
    with pytest.raises(exception.DeviceNotFound, match='device_spec'):
        privileged.keep(DSA, 5)
    assert dsa.state == 'disabled'


def test_after_a_reboot(model, dsa):
    apply(DSA)
    guest = devices.instance()
    (van,) = os_acc.plug(guest, [wanted()])
    model.reboot((1,))
    os_acc.initialize(reset=True)
    assert dsa.queues[0].name == f'os-acc-{van.uuid}'
    os_acc.unplug(guest)
    assert layout(dsa)[2] == {32}
    assert dsa.state == 'enabled'
    model.reboot((0,))
    os_acc.initialize(reset=True)
    assert dsa.state == 'enabled'
    apply()
    assert dsa.state == 'disabled'


def test_a_device_that_has_gone(dsa, kernel):
    apply(DSA)
    kernel.remove_function(DSA)
    assert step(apply(DSA)).result == 'failed'
    assert apply(check=True).results() == {'unchanged'}
    assert apply().results() == {'unchanged'}
    assert apply().steps == []


@pytest.mark.parametrize('recorded', [True, False])
def test_a_check_of_an_undo(dsa, recorded):
    """It asks root what is to be undone."""
    apply(DSA)
    if not recorded:
        records.idxd_devices.delete(DSA)
    result = 'change' if recorded else 'unchanged'
    assert step(apply(check=True)).result.removeprefix('would ') == result
    assert records.idxd_devices.names() == [DSA] * recorded
    assert step(apply()).result.removesuffix('d') == result.removesuffix('d')
    assert (dsa.state == 'disabled') == recorded


def test_a_check_of_an_undo_for_an_instance(dsa):
    """The device stays set up for it. That is a change, but only one."""
    apply(DSA)
    os_acc.plug(devices.instance(), [wanted()])
    assert step(apply(check=True)).result == 'would change'
    assert step(apply()).result == 'changed'
    assert apply().steps == []


def test_a_question_while_it_is_set_up_undoes_nothing(dsa, monkeypatch):
    """Root asks without the lock, while a VAN gets its first work queue."""
    start, asked = idxd_setup.start, []

    def asks_first(*args):
        asked.append(privileged.lets_go(DSA))
        start(*args)

    monkeypatch.setattr(idxd_setup, 'start', asks_first)
    os_acc.plug(instance := devices.instance(), [wanted()])
    assert asked == [True]
    assert records.idxd_devices.names() == [DSA]
    assert layout(dsa) == ([0, 1] * 2 + [-1] * 4, [0, 1] * 2, {32})
    os_acc.unplug(instance)
    assert dsa.state == 'disabled'


def test_export(dsa):
    apply(DSA)
    found = export.export(os_acc._host)
    assert found['work_queues'] == [{'device': DSA}]
    assert os_acc.apply(found, check=True).results() == {'unchanged'}


def test_a_journal_of_an_earlier_version():
    row = desired.Desired('{"vgpus": [{"device": "a"}], "let_go": ["b"]}')
    assert row.devices_of('vgpus') == ['a', 'b']
    assert row.devices_of('work_queues') == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize('undone', [False, True])
def test_a_crash_before_each_write(dsa, kernel, monkeypatch, undone):
    """A restart, or the next apply, finishes what was begun."""
    before = dsa.snapshot()

    def act():
        return apply() if undone else apply(DSA, wq_count=2)

    number, died = 0, True
    while died:
        apply(DSA)
        died = applied.dies_at(kernel, monkeypatch, number, act)
        os_acc.initialize(reset=True)
        act()
        assert act().results() <= {'unchanged'}, number
        if undone:
            assert dsa.snapshot() == before, number
            assert records.idxd_devices.names() == [], number
        else:
            assert layout(dsa)[2] == {64}, number
        number += 1
    assert number > 5
