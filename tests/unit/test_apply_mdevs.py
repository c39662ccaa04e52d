# SPDX-License-Identifier: Apache-2.0

"""Mediated devices that a document makes ahead of time."""

from __future__ import annotations

import errno
import uuid

import applied
import devices
import pytest

import acc_plug_libvirt
import os_acc
from os_acc import exception
from os_acc import migration
from os_acc import objects
from os_acc.desired import export
from os_acc.journal import desired as rows
from os_acc.kernel import mdev
from os_acc.operations import preview
from os_acc.privileged import cleaning
from os_acc.privileged.mdev import devices as privileged

PARENT, KIND = 'mtty', 'mtty-1'


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    os_acc.initialize(reset=True)
    return kernel


def apply(number=0, kind=KIND, check=False, **more):
    """Apply a document that offers what the host offers already."""
    item = {'device': PARENT, 'type': kind, 'count': number}
    return os_acc.apply(
        {
            'version': 1,
            'offered': export.export(os_acc._host)['offered'],
            'mdevs': [item | more] if number else [],
        },
        check=check,
    )


def results(report):
    return [each.result for each in report.steps if each.part == 'mdevs']


def there():
    return sorted(each.uuid for each in mdev.devices())


def wanted():
    return devices.wanted('CUSTOM_MDEV_MTTY_1')


def named(name):
    handle = objects.MdevHandle(uuid=name, parent=PARENT, type=KIND)
    return objects.AcceleratorRequest(uuid=str(uuid.uuid4()), handle=handle)


def test_made_and_removed(here):
    before = here.snapshot()
    assert results(apply(2, check=True)) == ['would change'] * 2
    assert there() == []
    report = apply(2)
    assert [(e.name, e.before, e.after, e.result) for e in report.steps] == [
        (f'mtty mtty-1 {number}', 'not there', 'there', 'changed')
        for number in range(2)
    ]
    assert {(e.parent, e.type) for e in mdev.devices()} == {(PARENT, KIND)}
    those, writes = there(), list(here.writes)
    assert len(those) == 2
    assert results(apply(2, check=True)) == ['unchanged'] * 2
    assert results(apply(2)) == ['unchanged'] * 2
    assert here.writes == writes
    assert results(apply(1)) == ['changed', 'unchanged']
    assert len(there()) == 1
    apply()
    assert here.snapshot() == before
    assert privileged.mdevs.names() == []
    assert apply().steps == []


def test_a_journal_with_a_number_that_is_now_refused(here):
    """An earlier version accepted 2.0. Another document replaces it."""
    apply(2)
    made = there()
    document = {'version': 1}
    document['offered'] = export.export(os_acc._host)['offered']
    journal = os_acc._host.journal
    text = journal.desired().document.replace('"count": 2', '"count": 2.0')
    assert '2.0' in text
    journal.save_desired(rows.Desired(text))
    (step,) = os_acc.apply_again().steps
    assert step.result == 'failed'
    assert 'mdevs[0].count is 2.0' in step.reason
    assert there() == made
    one = [{'device': PARENT, 'type': KIND}]
    assert 'changed' in results(os_acc.apply(document | {'mdevs': one}))
    assert len(there()) == 1
    journal.save_desired(rows.Desired(text))
    assert 'changed' in results(os_acc.apply(document))
    assert there() == []


def test_a_request_gets_one_that_is_there(here):
    """The dry run agrees; a further request gets a new one."""
    apply(2)
    those = there()
    guest, requests = devices.instance(), [wanted() for _ in range(3)]
    before = preview.plug(os_acc._host, guest, requests)
    assert [each.obstacle for each in before] == [None] * 3
    vans = list(os_acc.plug(guest, requests))
    new = [each.uuid for each in vans if each.handle.uuid == each.uuid]
    assert len(new) == 1
    assert sorted(each.handle.uuid for each in vans) == sorted([*those, *new])
    assert results(apply(2)) == ['unchanged'] * 2
    os_acc.unplug(guest)
    assert there() == those
    with pytest.raises(exception.PlugException):
        os_acc.plug(guest, [devices.wanted('CUSTOM_MDEV_MTTY_9')])
    apply()
    assert there() == []


def test_a_request_that_names_one(here):
    apply(1)
    (name,) = there()
    guest = devices.instance()
    os_acc.plug(guest, [named(name)])
    os_acc.unplug(guest)
    assert there() == [name]
    apply()
    os_acc.plug(guest, [named(name)])
    assert results(apply(1)) == ['changed'], 'it was made for an instance'
    os_acc.unplug(guest)
    assert there() == [name]
    apply()
    assert there() == []


def test_one_that_an_instance_has_is_removed_later(here):
    apply(1)
    guest = devices.instance()
    (van,) = os_acc.plug(guest, [wanted()])
    for check in (True, False):
        (step,) = apply(check=check).steps
        assert van.uuid in step.reason
    assert step.result == 'in the way'
    other, (second,) = devices.instance(), [wanted()]
    os_acc.plug(other, [second])
    os_acc.unplug(guest)
    assert results(os_acc.apply_again()) == ['changed']
    (left,) = os_acc.get_vans(other)
    assert there() == [left.handle.uuid]


def test_one_that_a_program_has_open(here):
    """Root looks itself."""
    apply(1)
    (name,) = there()
    group = (here.mdev / name / 'iommu_group').readlink().name
    pid = here.hold(here.root / f'dev/vfio/{group}')
    (step,) = apply().steps
    assert (step.result, there()) == ('in the way', [name])
    assert str(pid) in step.reason
    here.end(pid)
    assert results(os_acc.apply_again()) == ['changed']
    assert there() == []


def test_after_a_reboot(here):
    apply(2)
    those = there()
    guest = devices.instance()
    (van,) = os_acc.plug(guest, [wanted()])
    here.reboot()
    assert there() == []
    os_acc.initialize(reset=True)
    assert there() == those
    (back,) = os_acc.get_vans(guest)
    assert back.handle.uuid == van.handle.uuid
    os_acc.unplug(guest)
    assert there() == those
    apply()
    assert there() == []


def test_kept_while_its_van_is_released(here, monkeypatch):
    """Root looks again with the lock of the parent held."""
    guest = devices.instance()
    (van,) = os_acc.plug(guest, [named(str(uuid.uuid4()))])
    name, run = van.handle.uuid, cleaning.run_command

    def clean(address):
        assert privileged.keep(name, PARENT, KIND, 5.0) is True
        return run(address)

    monkeypatch.setattr(cleaning, 'run_command', clean)
    os_acc.unplug(guest)
    assert there() == [name]
    assert privileged.mdevs.read(name).kept is True


def test_others_have_made_one(here):
    """It is not taken over, and not removed."""
    apply(1)
    (name,) = there()
    privileged.mdevs.delete(name)
    os_acc._host.journal.save_desired(None)
    (step,) = apply(1).steps
    assert (step.result, there()) == ('in the way', [name])
    assert 'somebody else has created it' in step.reason
    for check in (True, False):
        assert results(apply(check=check)) == ['unchanged']
    assert there() == [name]


def test_one_that_has_gone(here):
    """There is nothing to remove. Root's record goes."""
    apply(1)
    (name,) = there()
    here.write(str(here.sys / 'bus/mdev/devices' / name / 'remove'), '1')
    assert there() == []
    for check in (True, False):
        assert privileged.mdevs.names() == [name]
        assert results(apply(check=check)) == ['unchanged']
    assert privileged.mdevs.names() == []


def test_the_kernel_refuses(here):
    here.fail('*/create', errno.EIO)
    assert results(apply(1)) == ['failed']
    assert privileged.mdevs.names() == []
    assert results(apply(1)) == ['changed']


def test_more_than_fit(here):
    """As many as fit are made; the others wait for room."""
    for check in (True, False):
        found = results(apply(13, 'mtty-2', check=check))
        if check:
            assert found == ['would change'] * 13
        else:
            assert found == ['changed'] * 12 + ['in the way']
    apply(11, 'mtty-2')
    assert len(there()) == 11


def test_what_goes_makes_room(here):
    """One call is enough: what the document has no more goes first."""
    apply(12, 'mtty-2')
    report = apply(24, check=True)
    assert {each.reason for each in report.steps} == {None}
    assert results(apply(24)) == ['changed'] * 36
    assert results(apply(24)) == ['unchanged'] * 24


@pytest.mark.parametrize(
    ('values', 'text'),
    [({'kind': 'mtty-9'}, 'mtty-9'), ({'device': 'none'}, 'none')],
)
def test_what_cannot_be(here, values, text):
    for check in (True, False):
        (step,) = apply(1, check=check, **values).steps
        assert step.result == 'failed'
        assert text in step.reason


@pytest.mark.parametrize(
    ('values', 'field'),
    [
        ({'device': 'a/b'}, 'mdevs[0].device'),
        ({'type': '..'}, 'mdevs[0].type'),
        ({'count': 0}, 'mdevs[0].count'),
        ({'amount': 1}, 'mdevs[0].amount'),
    ],
)
def test_a_wrong_document(here, values, field):
    with pytest.raises(exception.InvalidRequest) as caught:
        apply(1, **values)
    assert caught.value.kwargs['field'] == field


def test_each_type_once(here):
    item = {'device': PARENT, 'type': KIND}
    with pytest.raises(exception.InvalidRequest, match='each type once'):
        os_acc.apply({'version': 1, 'mdevs': [item, item]})


def test_root_checks_its_arguments(here):
    name = str(uuid.uuid4())
    for call in (privileged.keep, privileged.let_go):
        for wrong in (('x', PARENT, KIND), (name, '../x', KIND)):
            with pytest.raises(exception.InvalidRequest):
                call(*wrong, 5)
    with pytest.raises(exception.DeviceNotFound):
        privileged.keep(name, PARENT, 'mtty-9', 5)
    guest = devices.instance()
    (van,) = os_acc.plug(guest, [wanted()])
    with pytest.raises(exception.DeviceBusy, match='VAN'):
        privileged.let_go(van.handle.uuid, PARENT, KIND, 5)
    os_acc.unplug(guest)


def test_export(here):
    apply(2)
    found = export.export(os_acc._host)
    assert found['mdevs'] == [{'device': PARENT, 'type': KIND, 'count': 2}]
    assert set(results(os_acc.apply(found, check=True))) == {'unchanged'}


@pytest.mark.timeout(600)
def test_a_crash_before_each_write(here, monkeypatch):
    """A restart, or the next apply, finishes what was begun."""

    def act():
        return apply(1, 'mtty-2')

    number, died = 0, True
    while died:
        apply(1)
        died = applied.dies_at(here, monkeypatch, number, act)
        os_acc.initialize(reset=True)
        act()
        assert set(results(act())) == {'unchanged'}, number
        assert [each.type for each in mdev.devices()] == ['mtty-2'], number
        assert len(privileged.mdevs.names()) == 1, number
        number += 1
    assert number > 5


# --- a migration that fails


@pytest.fixture
def no_guest(monkeypatch):
    for name in ('has_guest', 'runs_guest'):
        monkeypatch.setattr(
            acc_plug_libvirt.LibvirtPlugin, name, lambda *_: False
        )


def tried(info, van_uuid):
    """Prepare an mdev on this host as the target, and abort it again.

    :returns: the UUID of the mdev
    """
    move = str(uuid.uuid4())
    plan = objects.MigrationPlan(
        instance_uuid=info.uuid,
        way='live',
        obstacles=[],
        accelerators=[
            objects.MigrationAccelerator(
                uuid=van_uuid,
                driver='mdev',
                handle_type='MdevHandle',
                mdev_type=KIND,
                way='live',
                request=objects.AcceleratorRequest(
                    uuid=van_uuid, resource_class='CUSTOM_MDEV_MTTY_1'
                ),
            )
        ],
    )
    (van,) = migration.prepare(info, plan, move)
    assert there() == [van.handle.uuid]
    assert migration.abort(info, move) == 1
    return van.handle.uuid


def made(here):
    """Which mdevs were made and removed, in this order."""
    return [
        text if name.endswith('/create') else 'removed'
        for name, text in here.writes
        if name.endswith(('/create', '/remove'))
    ]


def test_the_target_makes_it_anew_for_the_next_try(here, no_guest):
    """The kernel's mtty can load no state after a migration that failed."""
    info, van_uuid = devices.instance(), str(uuid.uuid4())
    for _ in range(2):
        here.writes.clear()
        name = tried(info, van_uuid)
        assert made(here) == [name, 'removed']
        assert there() == []


def test_one_that_is_kept_is_made_anew_too(here, no_guest):
    apply(1)
    (kept,) = there()
    info, van_uuid = devices.instance(), str(uuid.uuid4())
    for _ in range(2):
        here.writes.clear()
        assert tried(info, van_uuid) == kept
        assert made(here) == ['removed', kept]
        assert there() == [kept]
    here.writes.clear()
    os_acc.plug(info, [wanted()])
    os_acc.unplug(info)
    assert made(here) == []
    apply(0)
    assert there() == []
