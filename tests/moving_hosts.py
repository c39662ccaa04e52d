# SPDX-License-Identifier: Apache-2.0

"""Several hosts in one process, each with a journal, fake devices and guests.

A call on a host can be killed before each of its changes: see Hosts.call().
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import datetime
import math
import os
import pathlib
import types
from typing import Any
import uuid

from oslo_utils import timeutils

import acc_plug_noop
import os_acc
from os_acc import exception
from os_acc import fixture
from os_acc import journal
from os_acc import loader
from os_acc import objects
from os_acc import opts
from os_acc import plugin
from os_acc.attach import recorder
from os_acc.journal import store
from os_acc.kernel import sysfs
from os_acc.kinds.fake.driver.driver import FakeDriver
from os_acc.kinds.fake.driver.hardware import Hardware
from os_acc.testing import mortal

HANDLES = 3
WHOLE = {'plugged', 'incoming', 'outgoing'}


class Guests:
    """The guests of all hosts.

    :ivar runs: the host on which the guest of an instance runs
    :ivar there: the hosts on which a guest of an instance exists
    :ivar devices: the VANs whose devices the guest has
    :ivar moving: the instances whose guest is being moved live just now
    :ivar silent: the hosts whose hypervisor does not answer
    """

    def __init__(self) -> None:
        self.runs: dict[str, str] = {}
        self.there: dict[str, set[str]] = {}
        self.devices: dict[str, set[str]] = {}
        self.moving: set[str] = set()
        self.silent: set[str] = set()


class GuestPlugin(plugin.PluginBase):
    """Attaches devices to the guests."""

    def __init__(self, host: str, hosts: Hosts) -> None:
        super().__init__(None)
        self.name, self.host, self.hosts = 'guests', host, hosts

    def describe(self) -> objects.HostPluginInfo:
        return objects.HostPluginInfo(
            plugin_name=self.name,
            handle_info=[
                objects.HostHandleInfo.of(name)
                for name in ('TestHandle', 'MdevHandle')
            ],
        )

    def _answer(self) -> Guests:
        if self.host in self.hosts.guests.silent:
            raise exception.HypervisorError(what=self.host, reason='silent')
        return self.hosts.guests

    def has_guest(self, instance_info):
        return self.host in self._answer().there.get(instance_info.uuid, ())

    def runs_guest(self, instance_info):
        if instance_info.uuid in self._answer().moving:
            return None
        return self._answer().runs.get(instance_info.uuid) == self.host

    def plug(self, van, instance_info, live) -> None:
        van.guest_config = van.handle.identity
        if live:
            guests = self._answer()
            if guests.runs.get(van.instance_uuid) != self.host:
                if self.has_guest(instance_info):
                    return  # it starts with what its host gives it
                raise exception.HypervisorError(
                    what=self.host, reason='no such guest'
                )
            with self.hosts.mortal.change('attach'):
                guests.devices[van.instance_uuid].add(van.uuid)

    def migration_map(self, vans_source, vans_target):
        new = {van.uuid: van.guest_config for van in vans_target}
        return objects.MigrationMap(
            format='guests',
            changes=[
                objects.MigrationChange(
                    uuid=van.uuid,
                    source=van.guest_config,
                    target=new[van.uuid],
                )
                for van in vans_source
            ],
        )

    def redefine(self, definition, migration_map):
        new = {each.source: each.target for each in migration_map.changes}
        return ' '.join(new.get(each, each) for each in definition.split())

    def unplug(self, van, instance_info, live) -> None:
        if live:
            guests = self._answer()
            if guests.runs.get(van.instance_uuid) == self.host:
                with self.hosts.mortal.change('detach'):
                    guests.devices[van.instance_uuid].discard(van.uuid)


class Hosts:
    """Hosts that are called a, b, ...

    :param directory: an empty one
    :param patch: pytest's monkeypatch
    """

    def __init__(
        self, directory: pathlib.Path, patch: Any, count: int
    ) -> None:
        self.names = 'abcd'[:count]
        self.directory, self.mortal = directory, mortal.Mortal()
        self.guests = Guests()
        self.kind = 'test'
        # Also for the threads of a call, which do not have its context.
        self.here = ''
        self.boots = dict.fromkeys(self.names, 0)
        self.now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        patch.setattr(timeutils, 'utcnow', lambda with_timezone: self.now)
        patch.setattr(sysfs, 'boot_id', self._boot_id)
        # A slow call would write its events earlier: one more change.
        patch.setattr(recorder, 'LONG_CALL', math.inf)
        patch.setattr(loader, 'load_all', self._load)
        for owner, name, label in (
            (journal.Journal, 'save', mortal.SAVE),
            (store.Store, '_in_transaction', mortal.COMMIT),
        ):
            mortal.watch_calls(patch, self.mortal, owner, name, label)
        self._fixture = fixture.OSAccFixture(str(directory / 'state'))
        os_acc.CONF.set_default('plugin', 'guests', opts.GROUP)
        self._fixture.setUp()
        os_acc.CONF.set_override('max_workers', 1, opts.GROUP)

    def close(self) -> None:
        self.mortal.revive()
        self._fixture.cleanUp()

    def _boot_id(self) -> str:
        return f'boot-{self.here}-{self.boots.get(self.here, 0)}'

    def _load(self) -> loader.Extensions:
        here = self.here
        driver = FakeDriver.load('fake')
        driver.config = types.SimpleNamespace(
            devices=[f'fake0:{self.kind}:{HANDLES}'],
            discover=True,
            hardware_path=self._hardware(here),
            delays={},
            fail=[],
        )
        plugins = {
            'guests': GuestPlugin(here, self),
            'noop': acc_plug_noop.NoopPlugin.load('noop'),
        }
        return loader.Extensions({'fake': driver}, plugins, {})

    def _hardware(self, name: str) -> str:
        return str(self.directory / f'hardware-{name}')

    @contextlib.contextmanager
    def on(self, name: str) -> Iterator[None]:
        before, self.here = self.here, name
        try:
            with self._fixture.host(name):
                yield
        finally:
            self.here = before

    def call(
        self, name: str, act: Callable[[], Any], kill_at: int | None = None
    ) -> bool:
        """Make a call on a host.

        :param kill_at: the process ends before this change, 0 is the first
        :returns: whether it has ended; restart() starts the next one
        """
        with self.on(name):
            self.mortal.changes.clear()
            if kill_at is not None:
                self.mortal.crash_at(kill_at)
            state = str(self.directory / 'state')
            try:
                with mortal.watch_files(
                    self.mortal, str(self.directory), state
                ):
                    act()
            except (mortal.Crash, exception.ExceptionBase):
                if not self.mortal.dead:
                    raise
            finally:
                self.mortal.calm()
        return self.mortal.dead

    def restart(self, name: str) -> None:
        """The next process, which recovers."""
        self.mortal.revive()
        self._fixture.stop(name)
        with self.on(name):
            pass

    def reboot(self, name: str) -> None:
        """The devices lose all, and the guests end."""
        self.boots[name] += 1
        for path in pathlib.Path(self._hardware(name)).glob('handle-*'):
            os.unlink(path)
        for instance, where in list(self.guests.runs.items()):
            if where == name:
                self.stop_guest(instance)
        self.restart(name)

    def wait(self, seconds: float = 3601) -> None:
        self.now += datetime.timedelta(seconds=seconds)

    def new(self, name: str, count: int) -> objects.InstanceInfo:
        """Plug and start an instance."""
        info = objects.InstanceInfo(uuid=str(uuid.uuid4()), name='guest')
        requests = [
            objects.AcceleratorRequest(
                uuid=str(uuid.uuid4()),
                resource_class=f'CUSTOM_FAKE_{self.kind.upper()}',
            )
            for _ in range(count)
        ]
        with self.on(name):
            os_acc.plug(info, requests)
        self.start_guest(info.uuid, name)
        return info

    def start_guest(self, instance: str, name: str) -> None:
        """Start it with what its host gives it."""
        vans = self.vans(name, instance)
        assert {van.state for van in vans} == {'plugged'}
        self.guests.runs[instance] = name
        self.guests.there[instance] = {name}
        self.guests.devices[instance] = {van.uuid for van in vans}

    def stop_guest(self, instance: str) -> None:
        self.guests.runs.pop(instance, None)
        self.guests.devices[instance] = set()

    def move_guest(self, instance: str, name: str) -> None:
        """Move a running guest that has no devices."""
        assert not self.guests.devices[instance]
        self.guests.runs[instance] = name
        self.guests.there[instance] = {name}

    def begin_live(self, instance: str, name: str) -> None:
        """Begin to move a running guest with its devices to another host."""
        self.guests.moving.add(instance)
        self.guests.there[instance].add(name)

    def end_live(self, instance: str, name: str) -> None:
        """The guest runs on one of the two hosts, and has ended on the other.

        Its devices are those of the host where it runs.
        """
        self.guests.moving.discard(instance)
        self.guests.runs[instance] = name
        self.guests.there[instance] = {name}

    def vans(self, name: str, instance: str) -> list[objects.VAN]:
        with self.on(name):
            return list(os_acc.get_vans(instance))

    def move_guest_cold(self, instance: str, name: str) -> None:
        """Start it on another host, which gives it nothing yet."""
        self.stop_guest(instance)
        self.move_guest(instance, name)

    def states(self, instance: str) -> dict[str, set[str]]:
        """The states of an instance's VANs, on the hosts that have any."""
        found = {
            name: {van.state for van in self.vans(name, instance)}
            for name in self.names
        }
        return {name: states for name, states in found.items() if states}

    def all_vans(self) -> dict[str, list[objects.VAN]]:
        """The VANs of all hosts."""
        found = {}
        for name in self.names:
            with self.on(name):
                found[name] = list(os_acc.get_vans())
        return found

    def check(self, counts: dict[str, int]) -> None:
        """One owner at most of each instance, and nothing is lost.

        :param counts: the number of accelerators of each
        """
        found = self.all_vans()
        for instance, count in counts.items():
            there = {
                name: {
                    v.uuid: v.state
                    for v in vans
                    if v.instance_uuid == instance
                }
                for name, vans in found.items()
            }
            owners = [n for n in there if 'plugged' in there[n].values()]
            assert len(owners) <= 1, there
            assert any(
                len(states) == count and set(states.values()) <= WHOLE
                for states in there.values()
            ), there
            if had := self.guests.devices.get(instance):
                where = self.guests.runs[instance]
                assert had <= there[where].keys(), (where, there)

    def check_devices(self, name: str) -> None:
        """The journal and the hardware of a host agree.

        What is being moved is prepared again after a reboot when it is needed.
        """
        with self.on(name):
            vans = os_acc.get_vans()
            now = sysfs.boot_id()
        held = {van.handle.identity: van.uuid for van in vans}
        lost = {v.handle.identity for v in vans if v.boot_id != now}
        used = Hardware(self._hardware(name)).in_use()
        assert held.keys() - lost <= used.keys() <= held.keys()
        assert {each: use['van'] for each, use in used.items()} == {
            each: held[each] for each in used
        }
        assert not lost & {
            v.handle.identity for v in vans if v.state == 'plugged'
        }
