# SPDX-License-Identifier: Apache-2.0

"""The disk of the journal is really full: a small tmpfs, which needs root.

The devices are on another disk. Whenever the disk fills up, either the device
is in its first state, or the journal says that there is something to undo.
"""

import contextlib
import errno
import itertools
import os
import sqlite3
import subprocess
import uuid

import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.kinds.fake.driver import hardware as fake_hardware


class Disk:
    """A small tmpfs. 3 MiB are some hundred commits.

    :param size: as mount's option size has it
    """

    def __init__(self, path, size='3m'):
        self.path = path
        self.filler = path / 'filler'
        path.mkdir()
        options = f'size={size},mode=0700'
        subprocess.run(
            ['mount', '-t', 'tmpfs', '-o', options, 'os-acc-test', path],
            check=True,
        )

    def fill(self, *_):
        """Write until the disk has no free byte."""
        with open(self.filler, 'ab', buffering=0) as file:
            for size in (4096, 1):
                with pytest.raises(OSError) as caught:
                    while True:
                        file.write(b'\xa5' * size)
                assert caught.value.errno == errno.ENOSPC

    def free(self):
        self.filler.unlink()

    def umount(self):
        subprocess.run(['umount', '--lazy', self.path], check=True)


class Host:
    def __init__(self, disk, hardware):
        self.disk = disk
        self.hardware = fake_hardware.Hardware(str(hardware))
        hardware.mkdir()
        conf = os_acc.CONF
        conf([], project='os-acc', default_config_files=[])
        conf.set_override('state_path', str(disk.path / 'state'), 'os_acc')
        conf.set_override('plugin', 'noop', 'os_acc')
        os_acc.initialize(reset=True)
        # Another process looks, too. Else os-acc's connection, which it
        # closes after an error, would be the last one: then sqlite deletes
        # its write-ahead log, and there is space again.
        self.other = sqlite3.connect(disk.path / 'state' / 'journal.db')
        self.other.execute('SELECT * FROM van').fetchall()
        conf.set_override('hardware_path', str(hardware), 'os_acc_fake')
        conf.set_override('devices', ['dev0:pci:8:single'], 'os_acc_fake')
        self.instance = objects.InstanceInfo(
            uuid=uuid.uuid4(), name='guest', project_id='project'
        )
        self.requests = [
            objects.AcceleratorRequest(
                uuid=uuid.uuid4(), driver='fake', function_id='aes'
            )
            for _ in range(3)
        ]

    def plug(self):
        return os_acc.plug(self.instance, self.requests)

    def unplug(self):
        return os_acc.unplug(self.instance)

    def in_use(self):
        """Return the UUIDs of the VANs that use a device."""
        return {use['van'] for use in self.hardware.in_use().values()}

    @staticmethod
    def states():
        return {van.uuid: van.state for van in os_acc.get_vans()}

    def nothing_is_forgotten(self):
        """Check that the journal has each VAN that a device has."""
        assert self.in_use() <= set(self.states())

    def works(self):
        """Check that all works when there is room again."""
        self.disk.free()
        os_acc.recover()
        assert set(self.states().values()) <= {'plugged'}
        assert self.in_use() == set(self.states())
        vans = self.plug()
        assert [van.state for van in vans] == ['plugged'] * 3
        assert self.in_use() == {r.uuid for r in self.requests}
        assert self.unplug() == 3
        assert self.states() == {}
        assert self.in_use() == set()

    @staticmethod
    def uuids(requests):
        return {request.uuid for request in requests}


@pytest.fixture
def host(tmp_path):
    disk = Disk(tmp_path / 'disk')
    try:
        made = Host(disk, tmp_path / 'hardware')
        yield made
        made.other.close()
    finally:
        if os_acc._host is not None:
            os_acc._host.close()
            os_acc._host = None
        os_acc.CONF.reset()
        for group in ('os_acc', 'os_acc_fake'):
            for option in os_acc.CONF[group]:
                os_acc.CONF.clear_override(option, group)
        disk.umount()


def fill_when(host, monkeypatch, kind, step, before=False, at=0):
    """Fill the disk at a call of the driver or plugin.

    :param before: True: before the call; False: after the call
    :param at: the number of the call
    """
    extensions = os_acc._host.extensions
    actor = (
        extensions.drivers['fake']
        if kind == 'driver'
        else extensions.plugins['noop']
    )
    act, calls, numbers = getattr(actor, step), [], itertools.count()

    def acted(*arguments):
        calls.append(arguments)
        now = next(numbers) == at
        if now and before:
            host.disk.fill()
        act(*arguments)
        if now and not before:
            host.disk.fill()

    monkeypatch.setattr(actor, step, acted)
    return calls


def is_about_the_journal(err):
    """Check that the cause and the undo errors name the journal."""
    assert isinstance(err.__cause__, exception.JournalError)
    assert '/state' in str(err)


def test_full_before_the_first_journal(tmp_path, host):
    os_acc.CONF.set_override(
        'state_path', str(host.disk.path / 'other'), 'os_acc'
    )
    host.disk.fill()
    with pytest.raises(exception.JournalError) as caught:
        os_acc.initialize(reset=True)
    assert 'cannot create it' in str(caught.value)
    assert not [
        name
        for _, _, names in os.walk(host.disk.path / 'other')
        for name in names
    ]
    host.disk.free()
    os_acc.initialize(reset=True)
    host.disk.fill()
    host.works()


def test_full_before_plug(host):
    host.disk.fill()
    with pytest.raises(exception.PlugException) as caught:
        host.plug()
    is_about_the_journal(caught.value)
    assert host.in_use() == set()
    assert host.states() == {}
    host.works()


def test_full_when_an_opened_library_starts_again(host):
    host.plug()
    host.disk.fill()
    os_acc.initialize(reset=True)
    assert host.states() == dict.fromkeys(host.in_use(), 'plugged')
    host.works()


def test_full_before_a_driver_saves(host, monkeypatch):
    """A driver that cannot save the VAN does not touch the device."""
    calls = fill_when(host, monkeypatch, 'driver', 'prepareVAN', before=True)
    with pytest.raises(exception.PlugException) as caught:
        host.plug()
    assert calls
    is_about_the_journal(caught.value)
    assert caught.value.undo_errors
    host.nothing_is_forgotten()
    host.works()


@pytest.mark.parametrize(
    ('kind', 'step', 'at'),
    [
        # The next thing to write down: plugging; plugged.
        ('driver', 'prepareVAN', 2),
        ('plugin', 'plug', 0),
        ('plugin', 'plug', 2),
        ('driver', 'postplug', 2),
    ],
)
def test_full_while_plugging(host, monkeypatch, kind, step, at):
    calls = fill_when(host, monkeypatch, kind, step, at=at)
    with pytest.raises(exception.PlugException) as caught:
        host.plug()
    assert len(calls) == 3
    is_about_the_journal(caught.value)
    # The devices are released, but the journal could not be written.
    assert host.in_use() == set()
    assert caught.value.undo_errors
    for err in caught.value.undo_errors:
        assert isinstance(err, exception.JournalError)
    assert set(host.states()) == host.uuids(host.requests)
    assert 'plugged' not in host.states().values()
    host.works()


def test_full_before_unplug(host):
    host.plug()
    host.disk.fill()
    with pytest.raises(exception.UnplugException) as caught:
        host.unplug()
    is_about_the_journal(caught.value)
    # No step was started.
    assert host.in_use() == host.uuids(host.requests)
    assert host.states() == dict.fromkeys(host.in_use(), 'plugged')
    host.disk.free()
    assert host.unplug() == 3
    host.disk.fill()
    host.works()


@pytest.mark.parametrize(
    ('kind', 'step', 'at', 'before'),
    [
        ('plugin', 'unplug', 0, True),
        ('plugin', 'unplug', 2, False),
        ('driver', 'unprepareVAN', 0, True),
        ('driver', 'unprepareVAN', 2, False),
    ],
)
def test_full_while_unplugging(host, monkeypatch, kind, step, at, before):
    host.plug()
    fill_when(host, monkeypatch, kind, step, before, at)
    with pytest.raises(exception.UnplugException) as caught:
        host.unplug()
    is_about_the_journal(caught.value)
    host.nothing_is_forgotten()
    assert set(host.states()) == host.uuids(host.requests)
    assert 'plugged' not in host.states().values()
    host.works()


def test_alone_it_makes_space_by_its_own_log(host, monkeypatch):
    """The last commit is tried again, without its events."""
    host.other.close()
    os_acc.initialize(reset=True)
    host.plug()
    host.unplug()
    fill_when(host, monkeypatch, 'plugin', 'plug', at=2)
    try:
        host.plug()
    except exception.PlugException as err:
        is_about_the_journal(err)
        assert host.in_use() == set()
    else:
        assert set(host.states().values()) == {'plugged'}
        assert host.in_use() == host.uuids(host.requests)
    host.nothing_is_forgotten()
    host.works()


def test_alone_it_writes_its_rollback(host, monkeypatch):
    """The rollback is written although the disk is full.

    The file of the journal has room for these rows: it had them before.
    """
    host.other.close()
    os_acc.initialize(reset=True)
    host.plug()
    host.unplug()
    with contextlib.closing(sqlite3.connect(os_acc._host.journal.path)) as db:
        db.execute('PRAGMA wal_checkpoint(TRUNCATE)')
    plugin = os_acc._host.extensions.plugins['noop']
    monkeypatch.setattr(plugin, 'plug', raises_at(2))
    fill_when(host, monkeypatch, 'plugin', 'plug', at=1)
    with pytest.raises(exception.PlugException, match='refused'):
        host.plug()
    assert host.in_use() == set()
    assert host.states() == {}
    host.works()


def raises_at(number):
    """Return a method of the plugin whose call of this number fails, once."""
    numbers = itertools.count()

    def plug(*_):
        if next(numbers) == number:
            raise RuntimeError('the hypervisor has refused it')

    return plug


def test_unplug_again_after_it_was_full(host, monkeypatch):
    """unplug itself finishes the work, without recover()."""
    host.plug()
    fill_when(host, monkeypatch, 'driver', 'unprepareVAN', at=1)
    with pytest.raises(exception.UnplugException):
        host.unplug()
    assert host.in_use() == set()
    host.disk.free()
    assert host.unplug() == 3
    assert host.states() == {}


def test_plug_again_after_it_was_full(host, monkeypatch):
    fill_when(host, monkeypatch, 'plugin', 'plug', at=1)
    with pytest.raises(exception.PlugException):
        host.plug()
    host.disk.free()
    assert [van.state for van in host.plug()] == ['plugged'] * 3
    assert host.in_use() == host.uuids(host.requests)


def test_other_instances_stay_as_they_are(host, monkeypatch):
    other = objects.InstanceInfo(
        uuid=uuid.uuid4(), name='other', project_id='project'
    )
    (theirs,) = os_acc.plug(
        other,
        [
            objects.AcceleratorRequest(
                uuid=uuid.uuid4(), driver='fake', function_id='aes'
            )
        ],
    )
    fill_when(host, monkeypatch, 'driver', 'postplug', at=1)
    with pytest.raises(exception.PlugException):
        host.plug()
    assert list(os_acc.get_vans(other)) == [theirs]
    assert host.in_use() == {theirs.uuid}
    host.disk.free()
    os_acc.recover()
    assert list(os_acc.get_vans()) == [theirs]
    assert os_acc.unplug(other) == 1
    assert host.in_use() == set()


def test_full_while_recovering(host, monkeypatch):
    host.plug()
    fill_when(host, monkeypatch, 'plugin', 'unplug')
    with pytest.raises(exception.UnplugException):
        host.unplug()
    monkeypatch.undo()
    # The disk is still full. A process that starts now must not fail.
    report = os_acc.recover()
    assert {van.uuid for van in report.failed} == host.uuids(host.requests)
    assert report.released == []
    host.nothing_is_forgotten()
    host.works()
