# SPDX-License-Identifier: Apache-2.0

"""os_acc.migration: each call, what it refuses, and what recover() settles."""

from __future__ import annotations

import copy
import json
import uuid

import moving_hosts
import pytest

import os_acc
from os_acc import driver
from os_acc import exception
from os_acc import journal
from os_acc import migration
from os_acc import objects
from os_acc.bitstreams import reference

SOURCE, TARGET = 'a', 'b'
MIGRATION = str(uuid.uuid4())


@pytest.fixture
def hosts(clean, tmp_path, monkeypatch):
    made = moving_hosts.Hosts(tmp_path, monkeypatch, 2)
    yield made
    made.close()


@pytest.fixture
def info(hosts):
    return hosts.new(SOURCE, 2)


def described(hosts, info):
    with hosts.on(SOURCE):
        return migration.describe(info)


def prepared(hosts, info, migration_uuid=MIGRATION):
    plan = described(hosts, info)
    with hosts.on(TARGET):
        return migration.prepare(info, plan, migration_uuid)


def handed_over(hosts, info, live=False):
    prepared(hosts, info)
    with hosts.on(SOURCE):
        return migration.hand_over(info, MIGRATION, live=live)


def on(hosts, name, call, *args, **kwargs):
    with hosts.on(name):
        return call(*args, **kwargs)


def test_a_cold_move(hosts, info):
    before = hosts.vans(SOURCE, info.uuid)
    vans = prepared(hosts, info)
    assert [van.uuid for van in vans] == [van.uuid for van in before]
    assert {van.state for van in vans} == {'incoming'}
    assert {van.migration_uuid for van in vans} == {MIGRATION}
    assert all(van.guest_config for van in vans)
    with hosts.on(SOURCE):
        vans = migration.hand_over(info, MIGRATION)
    assert {van.state for van in vans} == {'outgoing'}
    hosts.stop_guest(info.uuid)
    with hosts.on(TARGET):
        assert {v.state for v in migration.switch(info, MIGRATION)} == {
            'plugged'
        }
    hosts.start_guest(info.uuid, TARGET)
    with hosts.on(SOURCE):
        assert migration.finish(info, MIGRATION) == 2
    assert hosts.states(info.uuid) == {TARGET: {'plugged'}}


def test_a_replug_detaches_and_attaches(hosts, info):
    assert len(hosts.guests.devices[info.uuid]) == 2
    handed_over(hosts, info, live=True)
    assert not hosts.guests.devices[info.uuid]
    hosts.move_guest(info.uuid, TARGET)
    on(hosts, TARGET, migration.switch, info, MIGRATION, live=True)
    assert len(hosts.guests.devices[info.uuid]) == 2
    assert on(hosts, SOURCE, migration.finish, info, MIGRATION) == 2
    # Later it is as any other VAN.
    assert on(hosts, TARGET, os_acc.unplug, info, live=True) == 2
    assert not hosts.guests.devices[info.uuid]


def test_a_replug_that_is_aborted_attaches_again(hosts, info):
    handed_over(hosts, info, live=True)
    assert on(hosts, TARGET, migration.abort, info, MIGRATION) == 2
    assert on(hosts, SOURCE, migration.abort, info, MIGRATION) == 2
    assert len(hosts.guests.devices[info.uuid]) == 2
    assert hosts.states(info.uuid) == {SOURCE: {'plugged'}}


def test_a_live_move_keeps_the_devices_in_the_guest(hosts, info):
    devices = set(hosts.guests.devices[info.uuid])
    assert len(devices) == 2
    handed_over(hosts, info)
    hosts.begin_live(info.uuid, TARGET)
    assert hosts.guests.devices[info.uuid] == devices
    hosts.end_live(info.uuid, TARGET)
    vans = on(hosts, TARGET, migration.switch, info, MIGRATION)
    assert {van.state for van in vans} == {'plugged'}
    assert on(hosts, SOURCE, migration.finish, info, MIGRATION) == 2
    assert hosts.guests.devices[info.uuid] == devices
    assert hosts.states(info.uuid) == {TARGET: {'plugged'}}
    for name in (SOURCE, TARGET):
        hosts.check_devices(name)
    # Later it is as any other VAN.
    assert on(hosts, TARGET, os_acc.unplug, info, live=True) == 2
    assert not hosts.guests.devices[info.uuid]


def test_nothing_is_released_while_the_guest_is_being_moved(hosts, info):
    """Both hosts have it then, and one of the two goes on."""
    handed_over(hosts, info)
    hosts.begin_live(info.uuid, TARGET)
    for name, call in ((SOURCE, migration.finish), (TARGET, migration.abort)):
        with pytest.raises(exception.MigrationConflict, match='being moved'):
            on(hosts, name, call, info, MIGRATION)
    assert hosts.states(info.uuid) == {
        SOURCE: {'outgoing'},
        TARGET: {'incoming'},
    }
    hosts.end_live(info.uuid, TARGET)
    with pytest.raises(exception.MigrationConflict, match='finish it instead'):
        on(hosts, TARGET, migration.abort, info, MIGRATION)


@pytest.mark.parametrize('goes_on', [SOURCE, TARGET])
def test_a_live_move_may_take_longer_than_migration_timeout(
    hosts, info, goes_on
):
    """As long as the job runs, neither host gives the devices away."""
    handed_over(hosts, info)
    hosts.begin_live(info.uuid, TARGET)
    hosts.wait()
    for name in (SOURCE, TARGET):
        report = recovered(hosts, name)
        assert not (report.released or report.restored or report.failed)
        assert not on(hosts, name, os_acc.release_orphans, [], 0).objects
    for name, call, reason in (
        (TARGET, migration.switch, 'migration_timeout'),
        (TARGET, migration.abort, 'being moved'),
        (SOURCE, migration.finish, 'being moved'),
    ):
        with conflict(reason):
            on(hosts, name, call, info, MIGRATION)
    assert hosts.states(info.uuid) == {
        SOURCE: {'outgoing'},
        TARGET: {'incoming'},
    }
    hosts.end_live(info.uuid, goes_on)
    for name in (SOURCE, TARGET):
        recovered(hosts, name)
    if goes_on == TARGET:
        assert on(hosts, SOURCE, migration.finish, info, MIGRATION) == 2
    assert hosts.states(info.uuid) == {goes_on: {'plugged'}}
    for name in (SOURCE, TARGET):
        hosts.check_devices(name)


def test_a_plugin_that_cannot_tell_does_not_hide_what_another_says(hosts):
    """The guest is shut off on the source, and still defined there."""
    info = hosts.new(SOURCE, 1)
    request = objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), resource_class='CUSTOM_FAKE_TEST'
    )
    on(hosts, SOURCE, os_acc.plug, info, [request], plugin='noop')
    handed_over(hosts, info)
    hosts.stop_guest(info.uuid)
    on(hosts, TARGET, migration.switch, info, MIGRATION)
    assert on(hosts, SOURCE, migration.finish, info, MIGRATION) == 2


def test_a_live_move_that_fails_is_tried_again(hosts, info):
    devices = set(hosts.guests.devices[info.uuid])
    handed_over(hosts, info)
    hosts.begin_live(info.uuid, TARGET)
    hosts.end_live(info.uuid, SOURCE)
    with pytest.raises(exception.MigrationConflict, match='abort it instead'):
        on(hosts, SOURCE, migration.finish, info, MIGRATION)
    assert on(hosts, TARGET, migration.abort, info, MIGRATION) == 2
    hosts.check_devices(TARGET)
    assert on(hosts, SOURCE, migration.abort, info, MIGRATION) == 2
    assert hosts.states(info.uuid) == {SOURCE: {'plugged'}}
    assert hosts.guests.devices[info.uuid] == devices
    assert len(prepared(hosts, info, str(uuid.uuid4()))) == 2


def test_a_device_is_not_prepared_again_below_a_running_guest(
    hosts, info, monkeypatch
):
    handed_over(hosts, info)
    on(hosts, TARGET, migration.abort, info, MIGRATION)
    monkeypatch.setattr(moving_hosts.FakeDriver, 'is_intact', lambda *_: False)
    with pytest.raises(exception.UnplugException, match='The guest runs'):
        on(hosts, SOURCE, migration.abort, info, MIGRATION)
    assert hosts.states(info.uuid) == {SOURCE: {'outgoing'}}


@pytest.mark.parametrize('reboots', [False, True])
def test_a_replug_whose_guest_ends_is_aborted(hosts, info, reboots):
    """Its source fails or it shuts down: its next start gets the devices."""
    handed_over(hosts, info, live=True)
    if reboots:
        hosts.reboot(SOURCE)
    else:
        hosts.stop_guest(info.uuid)
    assert on(hosts, TARGET, migration.abort, info, MIGRATION) == 2
    assert on(hosts, SOURCE, migration.abort, info, MIGRATION) == 2
    assert hosts.states(info.uuid) == {SOURCE: {'plugged'}}
    hosts.start_guest(info.uuid, SOURCE)
    assert len(hosts.guests.devices[info.uuid]) == 2
    hosts.check({info.uuid: 2})


def chosen(plan, *numbers):
    """Requests for devices of the target, in another order than the plan."""
    made = [each.request.obj_clone() for each in plan.accelerators]
    for each, number in zip(made, numbers, strict=True):
        each.handle = objects.TestHandle(name=f'fake0-{number}')
    return made[::-1]


def test_the_caller_chooses_the_devices(hosts, info):
    plan = described(hosts, info)
    for _ in range(2):
        with hosts.on(TARGET):
            vans = migration.prepare(
                info, plan, MIGRATION, requests=chosen(plan, 2, 1)
            )
        assert [van.handle.name for van in vans] == ['fake0-2', 'fake0-1']
        assert [van.uuid for van in vans] == [
            each.uuid for each in plan.accelerators
        ]
        assert {van.state for van in vans} == {'incoming'}


def test_the_definition_for_the_target(hosts, info):
    plan = described(hosts, info)
    with hosts.on(TARGET):
        vans = migration.prepare(
            info, plan, MIGRATION, requests=chosen(plan, 2, 1)
        )
    for _ in range(2):
        assert (
            on(
                hosts,
                SOURCE,
                migration.redefine,
                info,
                vans,
                'a guest with test/fake0-0 test/fake0-1 test/other',
            )
            == 'a guest with test/fake0-2 test/fake0-1 test/other'
        )
        on(hosts, SOURCE, migration.hand_over, info, MIGRATION)


def test_a_definition_that_cannot_be_made(hosts, info, monkeypatch):
    vans = prepared(hosts, info)
    act = migration.redefine
    both, one = vans.objects, objects.VANList(objects=vans.objects[:1])
    for wrong in (both, one, objects.VANList(objects=both + both[:1])):
        with pytest.raises(exception.InvalidRequest, match='vans is'):
            on(hosts, SOURCE, act, info, wrong, '')
    with pytest.raises(exception.InvalidRequest, match='definition is'):
        on(hosts, SOURCE, act, info, vans, b'')
    with pytest.raises(exception.MigrationConflict, match='no accelerators'):
        on(hosts, SOURCE, act, objects.InstanceInfo(uuid=MIGRATION), vans, '')
    monkeypatch.setattr(
        moving_hosts.GuestPlugin, 'migration_map', lambda *_: None
    )
    with pytest.raises(exception.MigrationConflict, match="'guests' cannot"):
        on(hosts, SOURCE, act, info, vans, '')


def test_a_choice_for_other_accelerators_is_refused(hosts, info):
    plan = described(hosts, info)
    both = chosen(plan, 2, 1)
    other = objects.AcceleratorRequest(uuid=uuid.uuid4(), driver='fake')
    for wrong in (both[:1], [*both, other], [both[0], other], both + both):
        with (
            hosts.on(TARGET),
            pytest.raises(exception.InvalidRequest, match='requests is'),
        ):
            migration.prepare(info, plan, MIGRATION, requests=wrong)
    assert not hosts.vans(TARGET, info.uuid)


@pytest.mark.parametrize(
    'requests', [5, 'ab', b'ab', {}, [None], [5], [objects.VAN()], object()]
)
def test_a_choice_of_something_else_is_refused(hosts, info, requests):
    plan = described(hosts, info)
    with hosts.on(TARGET), pytest.raises(exception.InvalidRequest) as error:
        migration.prepare(info, plan, MIGRATION, requests=requests)
    assert error.value.kwargs['field'] == 'requests'
    assert error.value.kwargs['expected'].startswith('a list of')
    assert hosts.states(info.uuid) == {SOURCE: {'plugged'}}


def test_a_guest_that_does_not_let_go_keeps_all(hosts, info, monkeypatch):
    first = hosts.vans(SOURCE, info.uuid)[0].uuid
    unplug = moving_hosts.GuestPlugin.unplug

    def fail(plugin, van, instance_info, live):
        if van.uuid == first and live:
            raise exception.HypervisorError(what='guest', reason='it is busy')
        unplug(plugin, van, instance_info, live)

    prepared(hosts, info)
    monkeypatch.setattr(moving_hosts.GuestPlugin, 'unplug', fail)
    with pytest.raises(exception.UnplugException, match='it is busy'):
        on(hosts, SOURCE, migration.hand_over, info, MIGRATION, live=True)
    assert len(hosts.guests.devices[info.uuid]) == 2
    assert {v.state for v in hosts.vans(SOURCE, info.uuid)} == {'plugged'}


def test_each_call_may_be_repeated(hosts, info):
    handles = {van.handle.identity for van in prepared(hosts, info)}
    assert {v.handle.identity for v in prepared(hosts, info)} == handles
    for _ in range(2):
        on(hosts, SOURCE, migration.hand_over, info, MIGRATION)
    hosts.stop_guest(info.uuid)
    for _ in range(2):
        on(hosts, TARGET, migration.switch, info, MIGRATION)
    assert on(hosts, SOURCE, migration.finish, info, MIGRATION) == 2
    assert on(hosts, SOURCE, migration.finish, info, MIGRATION) == 0
    assert on(hosts, SOURCE, migration.abort, info, MIGRATION) == 0


def sent(plan):
    """The primitive of a plan, as it comes over a network."""
    return json.loads(json.dumps(plan.obj_to_primitive()))


def test_the_plan_can_go_over_a_network(hosts, info):
    plan = described(hosts, info)
    assert (plan.way, plan.obstacles) == ('replug', [])
    assert objects.MigrationPlan.obj_from_primitive(sent(plan)) == plan
    with hosts.on(TARGET):
        first = migration.prepare(info, sent(plan), MIGRATION)
        again = migration.prepare(info, plan, MIGRATION)
    assert [v.handle.identity for v in first] == [
        v.handle.identity for v in again
    ]


def test_a_plan_of_a_later_minor_version_is_read(hosts, info):
    primitive = sent(described(hosts, info))
    primitive['versioned_object.version'] = '1.7'
    primitive['versioned_object.data']['more'] = 5
    with hosts.on(TARGET):
        assert len(migration.prepare(info, primitive, MIGRATION)) == 2


def conflict(reason):
    return pytest.raises(exception.MigrationConflict, match=reason)


def test_what_is_moved_is_nobody_elses(hosts, info):
    requests = [
        objects.AcceleratorRequest(
            uuid=van.uuid, resource_class='CUSTOM_FAKE_TEST'
        )
        for van in hosts.vans(SOURCE, info.uuid)
    ]
    handed_over(hosts, info)
    for name in (SOURCE, TARGET):
        for call in (
            lambda: os_acc.plug(info, requests),
            lambda: os_acc.replug(info),
        ):
            with conflict('os-acc migration finish'):
                on(hosts, name, call)
        hosts.wait()
        released = on(hosts, name, os_acc.release_orphans, [], 0)
        assert len(released) == 0
    other = str(uuid.uuid4())
    for name, call in (
        (SOURCE, migration.hand_over),
        (SOURCE, migration.finish),
        (TARGET, migration.switch),
    ):
        with conflict(f'by migration {other}'):
            on(hosts, name, call, info, other)


def test_only_what_was_planned_is_handed_over(hosts, info):
    plan = described(hosts, info)
    planned = [each.uuid for each in plan.accelerators]
    prepared(hosts, info)
    extra = objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), resource_class='CUSTOM_FAKE_TEST'
    )
    with hosts.on(SOURCE):
        before = [van.updated_at for van in os_acc.get_vans(info)]
        os_acc.plug(info, [extra])
        with conflict(f'VAN {extra.uuid} was plugged since'):
            migration.hand_over(info, MIGRATION, vans=planned)
        os_acc.unplug(info, [extra.uuid])
        with conflict(f'VAN {extra.uuid} was unplugged since'):
            migration.hand_over(info, MIGRATION, vans=[*planned, extra.uuid])
        assert [v.updated_at for v in os_acc.get_vans(info)] == before
        for wrong in (planned[0], [None], [5], 5, ['x']):
            with pytest.raises(exception.InvalidRequest) as error:
                migration.hand_over(info, MIGRATION, vans=wrong)
            assert error.value.kwargs['field'] == 'vans'
        assert hosts.states(info.uuid)[SOURCE] == {'plugged'}
        given = migration.hand_over(
            info, MIGRATION, vans=[each.upper() for each in planned]
        )
    assert {van.state for van in given} == {'outgoing'}


def test_calls_in_a_wrong_order_are_refused(hosts, info):
    with conflict('not prepared on this host'):
        on(hosts, TARGET, migration.switch, info, MIGRATION)
    with conflict('no accelerators on this host'):
        on(hosts, TARGET, migration.hand_over, info, MIGRATION)
    with conflict('no accelerators on this host'):
        on(hosts, TARGET, migration.describe, info)
    prepared(hosts, info)
    with conflict('is plugged, expected outgoing'):
        on(hosts, SOURCE, migration.finish, info, MIGRATION)
    with conflict('is incoming'):
        on(hosts, TARGET, migration.hand_over, info, MIGRATION)
    plan = described(hosts, info)
    with conflict('is plugged, expected incoming'):
        on(hosts, SOURCE, migration.prepare, info, plan, MIGRATION)
    on(hosts, SOURCE, migration.hand_over, info, MIGRATION)
    with conflict('its guest runs on this host; abort it'):
        on(hosts, SOURCE, migration.finish, info, MIGRATION)
    hosts.stop_guest(info.uuid)
    on(hosts, TARGET, migration.switch, info, MIGRATION)
    with conflict('switched to this host; finish it'):
        on(hosts, TARGET, migration.abort, info, MIGRATION)


def test_another_handle_or_mdev_type_is_undone(hosts, info):
    plan = described(hosts, info)
    for field, value in (
        ('driver', 'pci'),
        ('handle_type', 'PCIHandle'),
        ('mdev_type', 'nvidia-1'),
    ):
        wrong = copy.deepcopy(plan)
        setattr(wrong.accelerators[1], field, value)
        with pytest.raises(exception.PlugException, match=value):
            on(hosts, TARGET, migration.prepare, info, wrong, MIGRATION)
        assert TARGET not in hosts.states(info.uuid)
        hosts.check_devices(TARGET)


def test_too_few_devices_leave_nothing(hosts, info):
    on(hosts, TARGET, hosts.new, TARGET, 2)
    with pytest.raises(exception.PlugException, match='free handle'):
        prepared(hosts, info)
    assert hosts.states(info.uuid) == {SOURCE: {'plugged'}}
    hosts.check_devices(TARGET)


def of(*keys):
    """The keys of a field in a primitive; a number is that of an item."""
    found = []
    for key in keys:
        found += [key] if isinstance(key, int) else [DATA, key]
    return found


DATA, NAME, VERSION = (
    f'versioned_object.{each}' for each in ('data', 'name', 'version')
)
OTHER = str(uuid.uuid4())
HANDLE = objects.TestHandle(name='t').obj_to_primitive()
PORT = objects.PortBinding(vlan_qos=1).obj_to_primitive()
FIRST = of('accelerators', 0)
ASKED = [*FIRST, DATA, 'request']
WRONG = [
    ([NAME], 'VAN', NAME, 'expected MigrationPlan'),
    ([VERSION], '2.0', VERSION, 'a version 1.x'),
    ([VERSION], 1, VERSION, 'a version 1.x'),
    ([DATA], [], DATA, 'an object'),
    (of('instance_uuid'), 'x', 'instance_uuid', 'a UUID'),
    (of('instance_uuid'), OTHER, 'instance_uuid', 'instance to prepare'),
    (of('way'), 'fast', 'way', 'live or replug or cold'),
    (of('obstacles'), 'no', 'obstacles', 'a list of strings'),
    (of('obstacles'), ['no'], 'obstacles', 'none'),
    (of('accelerators'), None, 'accelerators', 'a list of 1 to 256'),
    (of('accelerators'), [], 'accelerators', 'a list of 1 to 256'),
    (of('accelerators'), [0] * 257, 'accelerators', 'a list of 1 to 256'),
    (FIRST, 5, 'accelerators[0]', 'os_acc.objects.MigrationAccelerator'),
]
WRONG_ACCELERATORS = [
    ([VERSION], '3.1', VERSION, 'a version 1.x'),
    (of('uuid'), 'x', 'uuid', 'a UUID'),
    (of('driver'), None, 'driver', 'a value'),
    (of('mdev_type'), 'a/b', 'mdev_type', ''),
    (of('live_migratable'), 'no', 'live_migratable', 'True or False'),
    (of('left_behind'), {}, 'left_behind', 'a string'),
    (of('obstacle'), 'no', 'obstacle', 'None'),
    (of('request'), None, 'request', 'os_acc.objects.AcceleratorRequest'),
]
WRONG_REQUESTS = [
    ([NAME], 'VAN', NAME, 'expected AcceleratorRequest'),
    (of('uuid'), OTHER, 'uuid', 'the UUID of the VAN'),
    (of('resource_class'), 'a/b', 'resource_class', ''),
    (of('traits'), 'T', 'traits', 'a list of strings'),
    (of('traits'), ['T'] * 257, 'traits', 'a list of at most 256'),
    (of('traits'), ['T' * 4097], 'traits', 'at most 4096 characters'),
    (of('bitstream'), '/b' * 4096, 'bitstream', 'at most 4096'),
    (of('bitstream'), 'ftp://x', 'bitstream', 'path'),
    (of('handle'), HANDLE, 'handle', 'None'),
    (of('port_uuid'), '1', 'port_uuid', 'a UUID'),
    (of('port'), 5, 'port', 'os_acc.objects.PortBinding'),
    (of('port'), PORT, 'port.vlan_qos', 'vlan'),
]


@pytest.mark.parametrize(
    'outer,prefix,cases',
    [
        ([], 'plan', WRONG),
        (FIRST, 'plan.accelerators[0]', WRONG_ACCELERATORS),
        (ASKED, 'plan.accelerators[0].request', WRONG_REQUESTS),
    ],
)
def test_a_wrong_plan_touches_nothing(hosts, info, outer, prefix, cases):
    plan = described(hosts, info)
    for keys, value, field, expected in cases:
        primitive = place = sent(plan)
        *before, last = [*outer, *keys]
        for key in before:
            place = place[key]
        place[last] = value
        with pytest.raises(exception.InvalidRequest) as caught:
            on(hosts, TARGET, migration.prepare, info, primitive, MIGRATION)
        assert caught.value.kwargs['field'] == f'{prefix}.{field}'
        assert expected in str(caught.value)
    assert TARGET not in hosts.states(info.uuid)


def test_what_is_no_plan_is_refused(hosts, info):
    for wrong in (None, [], 'plan', {}, info):
        with pytest.raises(exception.InvalidRequest, match='MigrationPlan'):
            on(hosts, TARGET, migration.prepare, info, wrong, MIGRATION)


def test_a_plan_with_a_handle_or_a_van_twice_is_refused(hosts, info):
    plan = described(hosts, info)
    plan.accelerators[1] = plan.accelerators[0]
    with pytest.raises(exception.InvalidRequest, match='each request once'):
        on(hosts, TARGET, migration.prepare, info, plan, MIGRATION)
    plan.accelerators[0].request.handle = objects.TestHandle(name='t')
    with pytest.raises(exception.InvalidRequest, match=r'request\.handle is'):
        on(hosts, TARGET, migration.prepare, info, plan, MIGRATION)
    assert TARGET not in hosts.states(info.uuid)


def test_an_unset_field_is_named(hosts, info):
    plan = described(hosts, info)
    for name in plan.fields:
        unset = objects.MigrationPlan.partial(
            **{
                each: getattr(plan, each)
                for each in plan.fields
                if each != name
            }
        )
        match = rf'plan\.{name} is None'
        with pytest.raises(exception.InvalidRequest, match=match):
            on(hosts, TARGET, migration.prepare, info, unset, MIGRATION)


def test_a_wrong_uuid_is_refused(hosts, info):
    for call in (migration.switch, migration.finish, migration.abort):
        with pytest.raises(exception.InvalidRequest, match='migration_uuid'):
            on(hosts, TARGET, call, info, 'x')


@pytest.mark.parametrize(
    'moves,migratable,live,way',
    [
        (driver.LIVE, True, True, 'live'),
        (driver.LIVE, None, True, 'replug'),
        (driver.LIVE, False, True, 'replug'),
        (driver.LIVE, True, False, 'cold'),
        (driver.REPLUG, True, True, 'replug'),
        (driver.COLD, True, True, 'cold'),
    ],
)
def test_the_way(hosts, info, monkeypatch, moves, migratable, live, way):
    """device_spec can only forbid, and a plugin without live only cold."""
    monkeypatch.setattr(moving_hosts.FakeDriver, 'moves', moves)
    monkeypatch.setattr(moving_hosts.GuestPlugin, 'supports_live', live)
    with hosts.on(SOURCE):
        entries = os_acc.this_host().journal.entries(info.uuid)
        for entry in entries:
            entry.van.live_migratable = migratable
        os_acc.this_host().journal.save_all([e.van for e in entries])
    assert described(hosts, info).way == way


@pytest.mark.parametrize(
    ('owner', 'method', 'answer'),
    [
        (moving_hosts.GuestPlugin, 'migration_map', None),
        (moving_hosts.FakeDriver, 'left_behind', 'the data of the drive'),
    ],
)
def test_what_a_live_move_needs_besides(
    hosts, info, monkeypatch, owner, method, answer
):
    with hosts.on(SOURCE):
        vans = [e.van for e in os_acc.this_host().journal.entries(info.uuid)]
        for van in vans:
            van.live_migratable = True
        os_acc.this_host().journal.save_all(vans)
    monkeypatch.setattr(moving_hosts.FakeDriver, 'moves', driver.LIVE)
    assert described(hosts, info).way == 'live'
    monkeypatch.setattr(owner, method, lambda *_: answer)
    assert described(hosts, info).way == 'replug'


def test_a_request_for_a_handle_asks_for_its_class(hosts):
    request = objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()),
        driver='fake',
    )
    info = objects.InstanceInfo(uuid=str(uuid.uuid4()))
    with hosts.on(SOURCE):
        handles = [
            each.handle
            for device in os_acc.get_devices()
            for each in device.handles
        ]
        request.handle = handles[0]
        os_acc.plug(info, [request])
    (each,) = described(hosts, info).accelerators
    assert each.request.resource_class == 'CUSTOM_FAKE_TEST'
    assert each.request.traits == ['CUSTOM_FAKE_DEVICE']
    assert each.request.handle is None
    assert len(prepared(hosts, info)) == 1


def test_a_secret_in_a_url_is_an_obstacle(hosts, info, monkeypatch):
    """The journal does not have it, so that the target could not fetch it."""
    entries = journal.Journal.entries

    def with_bitstream(self, instance_uuid):
        found = entries(self, instance_uuid)
        found[0].request.bitstream = reference.masked('https://u:p@host/x')
        return found

    monkeypatch.setattr(journal.Journal, 'entries', with_bitstream)
    plan = described(hosts, info)
    monkeypatch.undo()
    first, second = plan.accelerators
    assert 'secret' in first.obstacle
    assert second.obstacle is None
    assert plan.obstacles == [f'VAN {first.uuid}: {first.obstacle}']
    with pytest.raises(exception.InvalidRequest, match=r'\[0\].obstacle'):
        on(hosts, TARGET, migration.prepare, info, plan, MIGRATION)


def recovered(hosts, name):
    with hosts.on(name):
        return os_acc.recover()


def test_recover_waits_for_the_caller(hosts, info):
    handed_over(hosts, info)
    for name in (SOURCE, TARGET):
        report = recovered(hosts, name)
        assert not (report.released or report.restored or report.failed)
    hosts.stop_guest(info.uuid)
    hosts.wait()
    # The target has no guest; the source cannot know what the target did.
    assert len(recovered(hosts, TARGET).released) == 2
    assert not recovered(hosts, SOURCE).restored
    assert hosts.states(info.uuid) == {SOURCE: {'outgoing'}}


def test_recover_follows_the_guest(hosts, info):
    handed_over(hosts, info)
    hosts.wait()
    assert len(recovered(hosts, SOURCE).restored) == 2
    assert len(recovered(hosts, TARGET).released) == 2
    handed_over(hosts, info)
    hosts.move_guest_cold(info.uuid, TARGET)
    hosts.wait()
    assert len(recovered(hosts, TARGET).restored) == 2
    assert not recovered(hosts, SOURCE).restored
    assert on(hosts, SOURCE, migration.finish, info, MIGRATION) == 2


def test_recover_attaches_to_a_guest_that_has_moved_without(hosts, info):
    """The caller of a replug died between the move and the switch."""
    handed_over(hosts, info, live=True)
    hosts.move_guest(info.uuid, TARGET)
    hosts.wait()
    assert len(recovered(hosts, TARGET).restored) == 2
    vans = hosts.vans(TARGET, info.uuid)
    assert hosts.guests.devices[info.uuid] == {van.uuid for van in vans}


def test_a_hypervisor_that_does_not_answer_decides_nothing(hosts, info):
    handed_over(hosts, info)
    hosts.stop_guest(info.uuid)
    hosts.wait()
    hosts.guests.silent = {SOURCE, TARGET}
    for name in (SOURCE, TARGET):
        report = recovered(hosts, name)
        assert not (report.released or report.restored or report.failed)
    assert hosts.states(info.uuid) == {
        SOURCE: {'outgoing'},
        TARGET: {'incoming'},
    }


def test_a_switch_that_comes_too_late_is_refused(hosts, info):
    handed_over(hosts, info)
    hosts.stop_guest(info.uuid)
    hosts.wait()
    with conflict('migration_timeout'):
        on(hosts, TARGET, migration.switch, info, MIGRATION)
    # Where the guest runs, the devices must be.
    hosts.move_guest_cold(info.uuid, TARGET)
    vans = on(hosts, TARGET, migration.switch, info, MIGRATION)
    assert {van.state for van in vans} == {'plugged'}


def test_a_switch_without_one_of_the_prepared_vans_is_refused(hosts, info):
    """The guest's definition has the devices of all of them."""
    first = handed_over(hosts, info)[0].uuid
    hosts.stop_guest(info.uuid)
    assert on(hosts, TARGET, os_acc.unplug, info, [first]) == 1
    with conflict(f'VAN {first} was prepared .* abort the migration'):
        on(hosts, TARGET, migration.switch, info, MIGRATION)
    assert hosts.states(info.uuid)[TARGET] == {'incoming'}
    assert on(hosts, TARGET, migration.abort, info, MIGRATION) == 1
    assert on(hosts, SOURCE, migration.abort, info, MIGRATION) == 2
    assert hosts.states(info.uuid) == {SOURCE: {'plugged'}}
    hosts.check({info.uuid: 2})


def test_recover_assigns_no_part_of_the_prepared_vans(hosts, info):
    """The error says what to do with a guest that runs without one."""
    first = handed_over(hosts, info)[0].uuid
    hosts.move_guest_cold(info.uuid, TARGET)
    on(hosts, TARGET, os_acc.unplug, info, [first])
    hosts.wait()
    report = recovered(hosts, TARGET)
    assert not (report.released or report.restored or report.failed)
    with conflict('unplug its other VANs here, finish the migration on the'):
        on(hosts, TARGET, migration.switch, info, MIGRATION)
    assert on(hosts, TARGET, os_acc.unplug, info) == 1
    assert on(hosts, SOURCE, migration.finish, info, MIGRATION) == 2
    for name in (SOURCE, TARGET):
        hosts.check_devices(name)


def test_one_van_can_be_unplugged_once_the_target_has_switched(hosts, info):
    first = handed_over(hosts, info)[0].uuid
    hosts.stop_guest(info.uuid)
    on(hosts, TARGET, migration.switch, info, MIGRATION)
    on(hosts, TARGET, os_acc.unplug, info, [first])
    assert len(on(hosts, TARGET, migration.switch, info, MIGRATION)) == 1


def test_a_reboot_of_the_target_keeps_the_reservation(hosts, info):
    handles = [van.handle.identity for van in prepared(hosts, info)]
    on(hosts, SOURCE, migration.hand_over, info, MIGRATION)
    hosts.reboot(TARGET)
    hosts.stop_guest(info.uuid)
    vans = on(hosts, TARGET, migration.switch, info, MIGRATION)
    assert [van.handle.identity for van in vans] == handles
    hosts.check_devices(TARGET)


def test_a_van_that_cannot_be_prepared_again_stays_incoming(
    hosts, info, monkeypatch
):
    handed_over(hosts, info)
    hosts.reboot(TARGET)
    hosts.stop_guest(info.uuid)

    def fail(*args):
        raise RuntimeError('no such card')

    with monkeypatch.context() as patch:
        patch.setattr(moving_hosts.FakeDriver, 'prepareVAN', fail)
        with pytest.raises(exception.PlugException, match='no such card'):
            on(hosts, TARGET, migration.switch, info, MIGRATION)
    assert hosts.states(info.uuid)[TARGET] == {'incoming'}
    vans = on(hosts, TARGET, migration.switch, info, MIGRATION)
    assert {(van.state, van.error) for van in vans} == {('plugged', None)}


def test_the_events_of_both_hosts(hosts, info):
    handed_over(hosts, info)
    hosts.stop_guest(info.uuid)
    on(hosts, TARGET, migration.switch, info, MIGRATION)
    on(hosts, SOURCE, migration.finish, info, MIGRATION)

    def operations(name):
        with hosts.on(name):
            found = os_acc.this_host().journal.events()
        return [
            each.operation
            for each in found
            if each.step is None and each.result == 'done'
        ]

    assert operations(SOURCE) == ['plug', 'hand over', 'finish']
    assert operations(TARGET) == ['prepare', 'switch']


@pytest.mark.parametrize('name', [SOURCE, TARGET])
def test_a_journal_that_cannot_be_written_keeps_the_devices_of_a_move(
    hosts, info, monkeypatch, name
):
    """The rows say that nothing is undone, so nothing may be undone."""
    handed_over(hosts, info)

    def fail(self, entries, state):
        raise exception.JournalError(path='j', reason='disk is full')

    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, 'mark', fail)
        with pytest.raises(exception.UnplugException, match='disk is full'):
            on(hosts, name, os_acc.unplug, info)
    hosts.check_devices(name)
    assert hosts.states(info.uuid) == {
        SOURCE: {'outgoing'},
        TARGET: {'incoming'},
    }
    assert on(hosts, name, os_acc.unplug, info) == 2
