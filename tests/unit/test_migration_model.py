# SPDX-License-Identifier: Apache-2.0

"""Random migrations between 2 to 4 hosts, with kills, aborts and reboots.

No device is in two guests, and none is lost.
"""

from __future__ import annotations

import contextlib
import pathlib
import random
import tempfile
import uuid

import examples
import hypothesis
from hypothesis import strategies as st
import moving_hosts
import pytest

import os_acc
from os_acc import exception
from os_acc import migration

STEPS = 60


class Move:
    """A migration of an instance.

    :ivar next: the number of the next step
    :ivar caller: whether its caller lives
    """

    def __init__(self, source, target, live):
        self.uuid = str(uuid.uuid4())
        self.source, self.target, self.live = source, target, live
        self.next, self.caller, self.plan = 0, True, None


class Model:
    """Instances on hosts, and what may happen to them."""

    def __init__(self, hosts, seed):
        self.hosts, self.random = hosts, random.Random(seed)
        self.counts, self.infos, self.moves = {}, {}, {}
        self.done = {'moved': 0, 'aborted': 0, 'killed': 0, 'refused': 0}

    def step(self):
        act = self.random.choice(
            [
                self.create,
                self.begin,
                self.begin,
                *[self.go_on] * 40,
                self.abort,
                self.caller_dies,
                self.operator,
                self.operator,
                self.delete,
                self.restart,
                self.reboot,
                self.wait,
                self.hypervisor,
                self.start,
            ]
        )
        act()
        self.hosts.check(self.counts)
        for name in self.hosts.names:
            self.hosts.check_devices(name)

    def call(self, name, act):
        """Make a call, which may be killed.

        :returns: whether it has succeeded
        """
        kills = self.random.random() < 0.2
        kill_at = self.random.randrange(8) if kills else None
        try:
            killed = self.hosts.call(name, act, kill_at)
        except exception.ExceptionBase:
            self.done['refused'] += 1
            return False
        if killed:
            self.done['killed'] += 1
            self.hosts.mortal.revive()
            self.hosts.check(self.counts)
            self.hosts.restart(name)
        return not killed

    def _any(self, among):
        return self.random.choice(sorted(among)) if among else None

    def create(self):
        name = self._any(self.hosts.names)
        count = self.random.randint(1, 2)
        with contextlib.suppress(exception.PlugException):
            info = self.hosts.new(name, count)
            self.counts[info.uuid], self.infos[info.uuid] = count, info

    def begin(self):
        each = self._any(set(self.counts) - set(self.moves))
        if each is None:
            self.create()
            return
        (source,) = self.hosts.states(each)
        target = self._any(set(self.hosts.names) - {source})
        live = self.hosts.guests.runs.get(each) == source
        self.moves[each] = Move(
            source, target, live and self.random.random() < 0.5
        )

    def _of_living(self):
        found = {each for each, move in self.moves.items() if move.caller}
        return self._any(found)

    def go_on(self):
        """The caller makes the next step, once or again."""
        each = self._of_living()
        if each is None:
            self.begin()
            return
        move, info = self.moves[each], self.infos[each]
        if move.next and self.random.random() < 0.1:
            move.next -= 1  # it has lost the answer
        acts = [
            (move.source, lambda: self._describe(each)),
            (
                move.target,
                lambda: migration.prepare(info, move.plan, move.uuid),
            ),
            (
                move.source,
                lambda: migration.hand_over(info, move.uuid, live=move.live),
            ),
            (None, lambda: self._move(each)),
            (
                move.target,
                lambda: migration.switch(info, move.uuid, live=move.live),
            ),
            (move.source, lambda: migration.finish(info, move.uuid)),
        ]
        name, act = acts[move.next]
        if name is None:
            act()
        elif not self.call(name, act):
            if self.random.random() < 0.5:
                self._abort(each)
            return
        move.next += 1
        if move.next == len(acts):
            del self.moves[each]
            self.done['moved'] += 1
            assert set(self.hosts.states(each)) == {move.target}
            self._start(each)

    def _describe(self, each):
        move = self.moves[each]
        move.plan = migration.describe(self.infos[each])

    def _move(self, each):
        guests, move = self.hosts.guests, self.moves[each]
        if not move.live:
            self.hosts.stop_guest(each)
        elif guests.runs.get(each) == move.source:
            self.hosts.move_guest(each, move.target)

    def abort(self):
        each = self._of_living()
        if each is not None:
            self._abort(each)

    def caller_dies(self):
        each = self._of_living()
        if each is not None:
            self.moves[each].caller = False

    def operator(self):
        """Somebody looks at a migration without a caller."""
        found = {each for each, move in self.moves.items() if not move.caller}
        each = self._any(found)
        if each is not None:
            self._abort(each)

    def _abort(self, each):
        """On the target first; where it has switched, the source finishes."""
        move, info = self.moves[each], self.infos[each]
        move.caller = False
        states = self.hosts.states(each)
        if states.get(move.target) == {'plugged'}:
            settle = migration.finish
        else:
            try:
                self.hosts.call(
                    move.target, lambda: migration.abort(info, move.uuid)
                )
            except exception.ExceptionBase:
                if self.hosts.guests.runs.get(each) != move.target:
                    return  # its hypervisor does not answer
                with contextlib.suppress(exception.ExceptionBase):
                    self.hosts.call(
                        move.target,
                        lambda: migration.switch(info, move.uuid),
                    )
                return
            settle = migration.abort
            runs = self.hosts.guests.runs
            if move.live and runs.get(each) == move.target:
                self.hosts.move_guest(each, move.source)
            elif move.live and each not in runs:
                # What is attached again needs a guest that runs.
                self.hosts.guests.there[each] = {move.source}
                runs[each] = move.source
        if self.call(move.source, lambda: settle(info, move.uuid)):
            (owner,) = self.hosts.states(each)
            del self.moves[each]
            self.done['aborted'] += owner == move.source
            self._start(each)

    def _start(self, each):
        (owner,) = self.hosts.states(each)
        if self.hosts.guests.runs.get(each) != owner:
            self.hosts.start_guest(each, owner)

    def start(self):
        """A guest without a migration is started or stopped."""
        each = self._any(set(self.counts) - set(self.moves))
        if each is None:
            return
        if each in self.hosts.guests.runs:
            self.hosts.stop_guest(each)
        else:
            self._start(each)

    def delete(self):
        each = self._any(set(self.counts) - set(self.moves))
        if each is None:
            return
        (owner,) = self.hosts.states(each)
        self.hosts.stop_guest(each)
        with self.hosts.on(owner):
            assert os_acc.unplug(self.infos[each]) == self.counts.pop(each)

    def restart(self):
        self.hosts.restart(self._any(self.hosts.names))

    def reboot(self):
        self.hosts.reboot(self._any(self.hosts.names))

    def wait(self):
        self.hosts.wait(self.random.choice([60, 3700]))

    def hypervisor(self):
        """It stops to answer, or answers again."""
        self.hosts.guests.silent ^= {self._any(self.hosts.names)}

    def end(self):
        """All is settled, and then released."""
        self.hosts.guests.silent.clear()
        for each in list(self.moves):
            for _ in range(20):
                if each in self.moves:
                    self._abort(each)
            assert each not in self.moves, self.hosts.states(each)
        for each in list(self.counts):
            (owner,) = self.hosts.states(each)
            self._start(each)
            self.hosts.check({each: self.counts[each]})
            self.hosts.stop_guest(each)
            with self.hosts.on(owner):
                assert os_acc.unplug(self.infos[each])
        for name in self.hosts.names:
            with self.hosts.on(name):
                assert not os_acc.get_vans()
            self.hosts.check_devices(name)


def run(seed, steps):
    """Run the model on new hosts.

    :returns: how often something happened
    """
    with (
        tempfile.TemporaryDirectory() as directory,
        pytest.MonkeyPatch.context() as patch,
    ):
        hosts = moving_hosts.Hosts(
            pathlib.Path(directory), patch, 2 + seed % 3
        )
        try:
            model = Model(hosts, seed)
            for _ in range(steps):
                model.step()
            model.end()
            return model.done
        finally:
            hosts.close()


@hypothesis.settings(max_examples=examples.costly(6))
@hypothesis.given(seed=st.integers(0, 1 << 32))
def test_random_migrations(seed):
    run(seed, STEPS)


def test_the_model_does_all_of_it():
    """One long run, in which each kind of end is there."""
    done = run(1, 300)
    assert min(done.values()) > 0, done
