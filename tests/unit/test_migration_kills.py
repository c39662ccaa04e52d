# SPDX-License-Identifier: Apache-2.0

"""A process is killed before each change of a migration, on either host.

Afterwards exactly one host has each device, whoever settles it: the caller
who goes on or aborts, recover(), or an operator.
"""

from __future__ import annotations

import contextlib
import uuid

import moving_hosts
import pytest

import os_acc
from os_acc import exception
from os_acc import migration

COUNT = 2
SOURCE, TARGET = 'a', 'b'


@pytest.fixture
def hosts(clean, tmp_path, monkeypatch):
    made = moving_hosts.Hosts(tmp_path, monkeypatch, 2)
    yield made
    made.close()


class Move:
    """A migration and its caller."""

    def __init__(self, hosts, info, live=False, source=SOURCE, target=TARGET):
        self.hosts, self.info, self.live = hosts, info, live
        self.uuid = str(uuid.uuid4())
        self.source, self.target = source, target
        with hosts.on(source):
            self.plan = migration.describe(info)
        self.steps = [
            (target, self.prepare),
            (source, self.hand_over),
            (target, self.switch),
            (source, self.finish),
        ]

    def prepare(self):
        migration.prepare(self.info, self.plan, self.uuid)

    def hand_over(self):
        migration.hand_over(self.info, self.uuid, live=self.live)

    def switch(self):
        # Before the target has it, the guest no longer has it elsewhere.
        runs = self.hosts.guests.runs.get(self.info.uuid)
        if self.live and runs != self.target:
            self.hosts.move_guest(self.info.uuid, self.target)
        elif not self.live:
            self.hosts.stop_guest(self.info.uuid)
        migration.switch(self.info, self.uuid, live=self.live)

    def finish(self):
        if self.info.uuid not in self.hosts.guests.runs:
            self.hosts.start_guest(self.info.uuid, self.target)
        migration.finish(self.info, self.uuid)

    def abort_here(self):
        migration.abort(self.info, self.uuid)

    def abort(self):
        """Abort it, or finish it if the target has switched."""
        hosts, info = self.hosts, self.info
        try:
            hosts.call(self.target, self.abort_here)
        except exception.MigrationConflict as err:
            assert 'finish it instead' in str(err)
            hosts.call(self.target, lambda: migration.switch(info, self.uuid))
            hosts.call(self.source, lambda: migration.finish(info, self.uuid))
            return
        if self.live and hosts.guests.runs.get(info.uuid) == self.target:
            hosts.move_guest(info.uuid, self.source)
        if self.info.uuid not in hosts.guests.runs and self.live:
            hosts.guests.runs[info.uuid] = self.source
        hosts.call(self.source, self.abort_here)


def retry(move, number):
    """The caller goes on."""
    for host, act in move.steps[number:]:
        move.hosts.call(host, act)


def abort(move, number):
    """The caller aborts."""
    move.abort()


def leave(move, number):
    """The caller has died: time goes by, and an operator looks."""
    for name in move.hosts.names:
        move.hosts.restart(name)
    check(move)
    move.hosts.wait()
    for name in move.hosts.names:
        move.hosts.restart(name)
        check(move)
    move.abort()


def check(move):
    move.hosts.check({move.info.uuid: COUNT})


def settled(move):
    """Exactly one host has the devices, and can give them to the guest."""
    hosts, uuid_ = move.hosts, move.info.uuid
    states = hosts.states(uuid_)
    (owner,) = states
    assert states[owner] == {'plugged'}
    for name in hosts.names:
        hosts.check_devices(name)
    if hosts.guests.runs.get(uuid_) != owner:
        hosts.start_guest(uuid_, owner)
    check(move)
    return owner


def remove(hosts, info, owner):
    hosts.stop_guest(info.uuid)
    with hosts.on(owner):
        assert os_acc.unplug(info) == COUNT
    for name in hosts.names:
        hosts.check_devices(name)


@pytest.mark.parametrize('live', [False, True], ids=['cold', 'replug'])
@pytest.mark.parametrize('then', [retry, abort, leave])
def test_a_kill_before_each_change(hosts, live, then):
    kills = 0
    for number in range(4):
        killed, place = True, 0
        while killed:
            info = hosts.new(SOURCE, COUNT)
            move = Move(hosts, info, live)
            for host, act in move.steps[:number]:
                hosts.call(host, act)
            host, act = move.steps[number]
            killed = hosts.call(host, act, place)
            hosts.mortal.revive()
            check(move)
            hosts.restart(host)
            check(move)
            then(move, number)
            check(move)
            remove(hosts, info, settled(move))
            kills += killed
            place += 1
    assert kills >= 15


def test_a_kill_before_each_change_of_abort(hosts):
    for live in (False, True):
        for where in (TARGET, SOURCE):
            killed, place = True, 0
            while killed:
                info = hosts.new(SOURCE, COUNT)
                move = Move(hosts, info, live)
                for host, act in move.steps[:2]:
                    hosts.call(host, act)
                if where == SOURCE:
                    hosts.call(TARGET, move.abort_here)
                killed = hosts.call(where, move.abort_here, place)
                hosts.mortal.revive()
                check(move)
                hosts.restart(where)
                check(move)
                move.abort()
                assert settled(move) == SOURCE
                remove(hosts, info, SOURCE)
                place += 1


def test_a_kill_in_the_recovery_that_settles(hosts):
    """Of the target whose guest runs, and of one that has none."""
    for runs in (True, False):
        killed, place = True, 0
        while killed:
            info = hosts.new(SOURCE, COUNT)
            move = Move(hosts, info)
            for host, act in move.steps[:2]:
                hosts.call(host, act)
            hosts.stop_guest(info.uuid)
            if runs:
                hosts.move_guest(info.uuid, TARGET)
            hosts.wait()
            killed = hosts.call(TARGET, os_acc.recover, place)
            hosts.mortal.revive()
            check(move)
            hosts.restart(TARGET)
            check(move)
            with contextlib.suppress(exception.MigrationConflict):
                move.abort()
            assert settled(move) == (TARGET if runs else SOURCE)
            remove(hosts, info, TARGET if runs else SOURCE)
            place += 1
