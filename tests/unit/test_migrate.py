# SPDX-License-Identifier: Apache-2.0

"""os-acc migrate: the order of the steps, failures, kills, and what is left.

The hosts, their guests and devices are those of moving_hosts; the calls on
the target go through the texts that the command reads and writes.
"""

from __future__ import annotations

import json
import uuid

import moving_hosts
import pytest

import os_acc
from os_acc import exception
from os_acc import guest_move
from os_acc import migration
from os_acc import objects
from os_acc.cli import migrate
from os_acc.cli import migration_target
from os_acc.journal import events
from os_acc.moving import calls
from os_acc.moving import carrying
from os_acc.moving import remote
from os_acc.texts import ways

SOURCE, TARGET = 'a', 'b'
COUNT = 2
UNTIL_SWITCH = {
    ways.COLD: ['prepare', 'define', 'stop', 'hand_over', 'switch'],
    ways.REPLUG: ['prepare', 'hand_over', 'carry', 'switch'],
}


class Guest(guest_move.GuestMove):
    """A guest of moving_hosts.

    :ivar fails: by method, what it raises
    :ivar is_lost: nobody can tell where it is
    """

    def __init__(self, hosts, instance, calls):
        self.hosts, self.uuid, self.calls = hosts, instance, calls
        self.guests = hosts.guests
        self.runs = instance in hosts.guests.runs
        self.fails, self.is_lost = {}, False
        self.defined = False

    def _call(self, name):
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]

    def obstacles(self, way, vans):
        return self.fails.get('obstacles', [])

    def shared_files(self, way):
        return []

    def carry(self, vans_source, vans_target, seconds, stopped):
        self._call('carry')
        assert not vans_source
        assert not vans_target
        with self.hosts.mortal.change('carry'):
            self.hosts.move_guest(self.uuid, TARGET)
        if 'after carry' in self.fails:
            raise self.fails['after carry']

    def where(self):
        if self.is_lost:
            return None
        runs = self.guests.runs.get(self.uuid)
        if runs == TARGET:
            return guest_move.TARGET
        return guest_move.SOURCE

    def define(self, vans_source, vans_target):
        self._call('define')
        assert [v.uuid for v in vans_source] == [v.uuid for v in vans_target]
        with self.hosts.mortal.change('define'):
            self.guests.there[self.uuid].add(TARGET)

    def discard(self):
        self._call('discard')
        with self.hosts.mortal.change('discard'):
            self.guests.there[self.uuid].discard(TARGET)

    def stop(self, seconds, stopped):
        self._call('stop')
        with self.hosts.mortal.change('stop'):
            self.hosts.stop_guest(self.uuid)

    def restart(self):
        self._call('restart')
        if self.runs:
            with self.hosts.mortal.change('restart'):
                self.hosts.start_guest(self.uuid, SOURCE)

    def forget(self):
        self._call('forget')
        with self.hosts.mortal.change('forget'):
            self.guests.there[self.uuid].discard(SOURCE)

    def start(self):
        self._call('start')
        if self.runs:
            # What it is started with is what its definition there has.
            with self.hosts.on(TARGET):
                assert {v.state for v in os_acc.get_vans(self.uuid)} == {
                    'plugged'
                }
            with self.hosts.mortal.change('start'):
                self.guests.runs[self.uuid] = TARGET
                self.guests.there[self.uuid] = {TARGET}
                self.guests.devices[self.uuid] = {
                    van.uuid for van in self.hosts.vans(TARGET, self.uuid)
                }


class Move:
    """A move of one instance, and the calls that it makes.

    :ivar fails: by call on the target, what happens: an error, or a function
        that is called in its place with the call itself
    """

    def __init__(self, hosts, way, runs=True, info=None):
        self.hosts, self.way, self.calls = hosts, way, []
        self.info = info or hosts.new(SOURCE, COUNT)
        if not runs:
            hosts.stop_guest(self.info.uuid)
        self.guest = Guest(hosts, self.info.uuid, self.calls)
        self.fails, self.steps, self.stop_at = {}, [], None
        self.uuid = str(uuid.uuid4())

    def _ask(self, name, **arguments):
        """Make a call on the target, as os_acc.moving.remote does."""
        self.calls.append(name)
        line = json.dumps(
            {'protocol': remote.PROTOCOL, 'call': name, **arguments}
        )

        def call():
            with self.hosts.on(TARGET):
                answer = migration_target.answer_to(
                    line.encode(), lambda: None
                )
            return json.loads(json.dumps(answer))

        acting = self.fails.get(name)
        if isinstance(acting, Exception):
            raise acting
        answer = call() if acting is None else acting(call)
        if error := answer.get('error'):
            raise exception.TargetError(
                error['class'], error['code'], target='b', reason=error['text']
            )
        return answer

    def run(self):
        """Make the move, as a process on the source does.

        :returns: what is left
        """
        with self.hosts.on(SOURCE):
            here = os_acc.this_host()
            plan = migration.describe(self.info)
            made = carrying.Carrying(
                here,
                self.info,
                list(os_acc.get_vans(self.info)),
                self.way,
                self.guest,
                carrying.Target(self._ask, self.info, plan, self.uuid),
                self.uuid,
                5.0,
                tell=lambda step, seconds: self.steps.append(step),
                stopped=lambda: self.stop_at in self.calls,
            )
            return made.move()

    def is_at(self, name):
        """Whether all is on a host, and nothing on the other one."""
        assert self.hosts.states(self.info.uuid) == {name: {'plugged'}}
        assert self.hosts.guests.there[self.info.uuid] == {name}
        if self.guest.runs:
            assert self.hosts.guests.runs[self.info.uuid] == name
            assert len(self.hosts.guests.devices[self.info.uuid]) == COUNT
        for each in (SOURCE, TARGET):
            self.hosts.check_devices(each)
        return True


@pytest.fixture
def hosts(clean, tmp_path, monkeypatch):
    made = moving_hosts.Hosts(tmp_path, monkeypatch, 2)
    yield made
    made.close()


def gone():
    return exception.TargetError(target='b', reason='gone')


def refused():
    return exception.HypervisorError(what='test', reason='refused')


@pytest.mark.parametrize('way', [ways.COLD, ways.REPLUG])
def test_it_moves(hosts, way):
    move = Move(hosts, way)
    assert move.run() == []
    assert move.is_at(TARGET)
    assert len(move.steps) == {ways.COLD: 8, ways.REPLUG: 5}[way]


def test_a_guest_that_is_off_stays_off(hosts):
    move = Move(hosts, ways.COLD, runs=False)
    assert move.run() == []
    assert move.is_at(TARGET)
    assert move.info.uuid not in hosts.guests.runs


@pytest.mark.parametrize(
    ('way', 'at'),
    [(way, at) for way, steps in UNTIL_SWITCH.items() for at in steps],
)
def test_a_failure_undoes_all(hosts, monkeypatch, way, at):
    move = Move(hosts, way)
    if at in ('prepare', 'switch'):
        move.fails[at] = gone()
    elif at == 'hand_over':
        from os_acc.moving import moves

        def fail(*_):
            raise refused()

        monkeypatch.setattr(moves, 'hand_over', fail)
    else:
        move.guest.fails[at] = refused()
    if (way, at) == (ways.REPLUG, 'switch'):
        # Its guest is on the target, and cannot be undone.
        with pytest.raises(exception.MoveException, match='on the target'):
            move.run()
        assert hosts.states(move.info.uuid) == {
            SOURCE: {'outgoing'},
            TARGET: {'incoming'},
        }
        assert 'abort' not in move.calls
        return
    with pytest.raises(exception.MoveException) as error:
        move.run()
    assert 'all is undone' in str(error.value)
    assert error.value.undo_errors == []
    assert move.is_at(SOURCE)


def test_the_target_is_undone_first(hosts):
    move = Move(hosts, ways.COLD)
    move.fails['switch'] = gone()
    with pytest.raises(exception.MoveException):
        move.run()
    undone = move.calls[move.calls.index('switch') + 1 :]
    assert undone == ['abort', 'discard', 'restart']


@pytest.mark.parametrize('way', [ways.COLD, ways.REPLUG])
@pytest.mark.parametrize('live', [True, False])
def test_what_is_plugged_meanwhile_is_not_left_behind(hosts, way, live):
    """The target has prepared nothing for it, so nothing moves."""
    move = Move(hosts, way)
    extra = str(uuid.uuid4())

    def plug(call):
        with hosts.on(SOURCE):
            os_acc.plug(
                move.info,
                [
                    objects.AcceleratorRequest(
                        uuid=extra, resource_class='CUSTOM_FAKE_TEST'
                    )
                ],
                live=live,
            )
        return call()

    move.fails['prepare'] = plug
    with pytest.raises(exception.MoveException) as error:
        move.run()
    assert f'VAN {extra} was plugged since' in str(error.value)
    assert 'all is undone' in str(error.value)
    assert hosts.states(move.info.uuid) == {SOURCE: {'plugged'}}
    assert len(hosts.vans(SOURCE, move.info.uuid)) == COUNT + 1
    assert hosts.guests.runs[move.info.uuid] == SOURCE


def test_what_somebody_else_has_released_is_not_taken_back(hosts):
    """Another instance has the devices: the undo must not say that all is
    undone."""
    move = Move(hosts, ways.COLD)

    def released(call):
        with hosts.on(SOURCE):
            migration.finish(move.info, move.uuid)
        raise gone()

    move.fails['switch'] = released
    with pytest.raises(exception.MoveException) as error:
        move.run()
    assert 'all is undone' not in str(error.value)
    assert '2 VANs were handed over, and 0 taken back' in str(error.value)


@pytest.mark.parametrize('way', [ways.COLD, ways.REPLUG])
def test_a_target_that_cannot_be_undone_keeps_the_source_from_it(hosts, way):
    move = Move(hosts, way)
    move.fails['abort'] = gone()
    move.fails['switch'] = gone()
    move.guest.fails['carry'] = refused()
    with pytest.raises(exception.MoveException) as error:
        move.run()
    assert [str(each) for each in error.value.undo_errors] == [
        'Target b: gone'
    ]
    assert 'os-acc migration abort' in str(error.value)
    assert hosts.states(move.info.uuid) == {
        SOURCE: {'outgoing'},
        TARGET: {'incoming'},
    }
    assert 'restart' not in move.calls


def test_before_the_hand_over_the_guest_goes_on_all_the_same(hosts):
    move = Move(hosts, ways.COLD)
    move.fails['abort'] = gone()
    move.guest.fails['stop'] = refused()
    with pytest.raises(exception.MoveException, match='gone'):
        move.run()
    assert hosts.states(move.info.uuid)[SOURCE] == {'plugged'}
    assert hosts.guests.runs[move.info.uuid] == SOURCE


def test_an_answer_that_is_lost_after_the_switch(hosts):
    """The target has switched, and says so when it is asked to abort."""
    move = Move(hosts, ways.COLD)

    def lost(call):
        call()
        raise gone()

    move.fails['switch'] = lost
    assert move.run() == []
    assert move.is_at(TARGET)


@pytest.mark.parametrize(
    'answer', [{}, {'vans': 5}, {'vans': {}}, {'vans': None}, {'vans': [1]}]
)
@pytest.mark.parametrize('call', ['prepare', 'switch'])
def test_an_answer_of_something_else(hosts, call, answer):
    """It is no success, so the move is undone."""
    move = Move(hosts, ways.COLD)
    move.fails[call] = lambda _: answer
    with pytest.raises(exception.MoveException, match='wrong answer: vans'):
        move.run()
    assert move.is_at(SOURCE)


def test_an_answer_with_other_vans(hosts):
    move = Move(hosts, ways.COLD)

    def other(call):
        made = objects.VANList.obj_from_primitive(call()['vans'])
        return {
            'vans': objects.VANList(
                objects=made.objects[1:]
            ).obj_to_primitive()
        }

    move.fails['prepare'] = other
    with pytest.raises(exception.MoveException, match='expected the VANs'):
        move.run()
    assert move.is_at(SOURCE)


@pytest.mark.parametrize('way', [ways.COLD, ways.REPLUG])
@pytest.mark.parametrize('error', [BrokenPipeError(), OSError(28, 'full')])
def test_a_reader_that_is_gone_stops_no_move(hosts, way, error):
    """os-acc migrate ... | head -1"""
    move = Move(hosts, way)

    class Steps(list):
        def append(self, step):
            raise error

    move.steps = Steps()
    assert move.run() == []
    assert move.is_at(TARGET)


def test_the_guest_has_moved_although_libvirt_says_no(hosts):
    move = Move(hosts, ways.REPLUG)
    move.guest.fails['after carry'] = refused()
    assert move.run() == []
    assert move.is_at(TARGET)


def test_nobody_knows_where_the_guest_is(hosts):
    """Then neither host may give it the devices."""
    move = Move(hosts, ways.REPLUG)
    move.guest.fails['carry'] = refused()
    move.guest.is_lost = True
    with pytest.raises(exception.MoveException, match='on one host'):
        move.run()
    assert 'abort' not in move.calls
    assert hosts.states(move.info.uuid) == {
        SOURCE: {'outgoing'},
        TARGET: {'incoming'},
    }


def test_a_start_that_fails_after_the_switch_is_said(hosts):
    move = Move(hosts, ways.COLD)
    move.guest.fails['start'] = refused()
    (left,) = move.run()
    assert left.endswith('test: refused')
    assert hosts.states(move.info.uuid) == {TARGET: {'plugged'}}


def test_a_guest_that_stays_here_is_not_started_on_the_target(hosts):
    """It may run here: somebody has started it again."""
    move = Move(hosts, ways.COLD)
    move.guest.fails['forget'] = refused()
    forget, start = move.run()
    assert forget.endswith('test: refused')
    assert start.startswith('start the guest on the target: not done')
    assert 'start' not in move.calls
    assert hosts.states(move.info.uuid) == {TARGET: {'plugged'}}


def test_the_undo_of_a_second_move_starts_no_guest(hosts):
    """Both have waited until the guest is off, and the first hands it over."""
    first = Move(hosts, ways.COLD)
    second = Move(hosts, ways.COLD, info=first.info)
    errors = []

    def meanwhile(call):
        second.fails['prepare'] = lambda _: {
            'vans': objects.VANList(
                objects=hosts.vans(SOURCE, first.info.uuid)
            ).obj_to_primitive()
        }
        with pytest.raises(exception.MoveException) as error:
            second.run()
        errors.extend(error.value.undo_errors)
        assert 'all is undone' not in str(error.value)
        return call()

    first.fails['switch'] = meanwhile
    second.fails['abort'] = lambda _: {'aborted': 0}
    assert first.run() == []
    assert 'restart' not in second.calls
    assert any('is not started on this host' in str(e) for e in errors)
    assert first.is_at(TARGET)


def test_two_commands_do_not_move_one_instance_at_once(hosts):
    info = hosts.new(SOURCE, COUNT)
    with hosts.on(SOURCE):
        here = os_acc.this_host()
        with migrate.alone(here, info.uuid):
            with pytest.raises(
                exception.MigrationConflict, match='another os-acc migrate'
            ):
                with migrate.alone(here, info.uuid):
                    pytest.fail('both move it')
        with migrate.alone(here, info.uuid):
            pass


@pytest.mark.parametrize('at', ['prepare', 'define', 'stop'])
def test_an_interruption_undoes_all(hosts, at):
    move = Move(hosts, ways.COLD)
    move.stop_at = at
    with pytest.raises(KeyboardInterrupt):
        move.run()
    assert 'switch' not in move.calls
    assert move.is_at(SOURCE)


class Interrupted:
    """A call that a signal interrupts when it has taken the lock.

    Python calls the handler between any two instructions, so also after the
    lock was taken and before the block that releases it has begun.
    """

    def __init__(self, made):
        self._made = made

    def __enter__(self):
        self._made.__enter__()
        raise KeyboardInterrupt

    def __exit__(self, *_):
        pytest.fail('the block has not begun')


@pytest.mark.parametrize(
    'at', [events.PREPARE, events.HAND_OVER, events.SWITCH]
)
def test_an_interruption_that_leaves_a_lock_held(hosts, monkeypatch, at):
    begun = calls.Call.begun

    def interrupted(call, operation, *args):
        made = begun(call, operation, *args)
        return Interrupted(made) if operation == at else made

    monkeypatch.setattr(calls.Call, 'begun', interrupted)
    move = Move(hosts, ways.COLD)
    with pytest.raises(exception.MoveException) as error:
        move.run()
    assert error.value.undo_errors == []
    assert move.is_at(SOURCE)


def test_an_interruption_in_the_switch_is_too_late(hosts):
    move = Move(hosts, ways.COLD)
    move.stop_at = 'switch'
    assert move.run() == []
    assert move.is_at(TARGET)


def settle(move):
    """What an operator does after the command was killed.

    It is what doc/source/migration.rst says.
    """
    hosts, info, uuid_ = move.hosts, move.info, move.uuid
    found = hosts.states(info.uuid)
    runs = hosts.guests.runs.get(info.uuid)
    if found.get(TARGET) == {'incoming'}:
        if runs == TARGET:
            hosts.call(TARGET, lambda: migration.switch(info, uuid_, True))
        else:
            hosts.call(TARGET, lambda: migration.abort(info, uuid_))
    found = hosts.states(info.uuid)
    if found.get(SOURCE) == {'outgoing'}:
        act = migration.finish if TARGET in found else migration.abort
        hosts.call(SOURCE, lambda: act(info, uuid_))
    (owner,) = hosts.states(info.uuid)
    hosts.guests.there[info.uuid] = {owner}
    if info.uuid not in hosts.guests.runs:
        hosts.start_guest(info.uuid, owner)


@pytest.mark.parametrize('way', [ways.COLD, ways.REPLUG])
def test_a_kill_before_each_change(hosts, way):
    killed = 0
    while True:
        move = Move(hosts, way)
        hosts.mortal.changes.clear()
        hosts.mortal.crash_at(killed)
        try:
            move.run()
        except BaseException:
            if not hosts.mortal.dead:
                raise
        is_dead = hosts.mortal.dead
        hosts.mortal.calm()
        for name in (SOURCE, TARGET):
            hosts.restart(name)
        settle(move)
        (owner,) = hosts.states(move.info.uuid)
        assert move.is_at(owner)
        if not is_dead:
            break
        for name in (SOURCE, TARGET):
            with hosts.on(name):
                os_acc.unplug(move.info)
        killed += 1
    assert killed > 12
