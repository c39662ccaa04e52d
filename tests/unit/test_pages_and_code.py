# SPDX-License-Identifier: Apache-2.0

"""What the pages say about states and errors is what the code does."""

from __future__ import annotations

import contextlib
import re
import sqlite3

from pages import SOURCE
import pytest

import os_acc
from os_acc import exception
from os_acc.objects import van as states

#: The drawing's name of a VAN whose row is deleted.
RELEASED = 'released'


def drawn():
    """The boxes and the arrows of the drawing of a VAN's states."""
    text = (SOURCE / 'introduction.rst').read_text()
    (drawing,) = [
        each
        for each in re.split(r'^(?=\S)', text, flags=re.MULTILINE)
        if 'box preparing' in each
    ]
    boxes = re.findall(r'box (\w+) ', drawing)
    arrows = re.findall(r'arrow (\w+) (\w+)', drawing)
    return boxes, arrows


def test_the_drawing_has_all_states():
    boxes, _ = drawn()
    assert sorted(boxes) == sorted(
        # Those of a move are on a page of their own.
        {*states.STATES, RELEASED} - {states.PREPARED, *states.MOVING}
    )


class Watched:
    """A journal that notes each change of a VAN's state."""

    def __init__(self, path):
        self.path = path
        self.run(
            'CREATE TABLE seen (old TEXT, new TEXT)',
            'CREATE TRIGGER changed AFTER UPDATE OF state ON van '
            'WHEN old.state <> new.state BEGIN '
            'INSERT INTO seen VALUES (old.state, new.state); END',
            'CREATE TRIGGER deleted AFTER DELETE ON van BEGIN '
            f"INSERT INTO seen VALUES (old.state, '{RELEASED}'); END",
        )

    def run(self, *statements):
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            with db:
                return [db.execute(each).fetchall() for each in statements]

    def seen(self):
        (rows,) = self.run('SELECT DISTINCT old, new FROM seen')
        return set(rows)


@pytest.fixture
def watched(host):
    return Watched(f'{os_acc.CONF.os_acc.state_path}/journal.db')


class Killed(BaseException):
    """Stands for the end of the process: nothing is undone."""


def crash(monkeypatch, host, step, instance, requests):
    """Plug, and end the process in a step."""
    from os_acc.attach import release

    with monkeypatch.context() as patch:
        patch.setattr(release, 'release', lambda *_: release.Released())
        host.calls.on(step, Killed())
        with pytest.raises((Killed, exception.PlugException)):
            os_acc.plug(instance, requests)
    host.calls.clear()


def test_the_drawing_has_the_ways_that_a_van_takes(host, watched, monkeypatch):
    calls = host.calls
    broken = RuntimeError('broken')
    instance, requests = host.instance(), host.requests(1)
    # All is well.
    os_acc.plug(instance, requests)
    os_acc.unplug(instance)
    # A step fails, or the process ends.
    for step in ('prepareVAN', 'plug', 'postplug'):
        calls.on(step, broken)
        with pytest.raises(exception.PlugException):
            os_acc.plug(instance, requests)
        calls.clear()
        crash(monkeypatch, host, step, instance, requests)
        host.restart()
        assert os_acc.get_vans().objects == []
    # An undo fails, and is tried again.
    for step in ('unplug', 'unprepareVAN'):
        os_acc.plug(instance, requests)
        calls.on(step, broken)
        with pytest.raises(exception.UnplugException):
            os_acc.unplug(instance)
        calls.clear()
        assert os_acc.recover().released
    # The process ends while a driver undoes its half.
    os_acc.plug(instance, requests)
    with monkeypatch.context() as patch:
        patch.setattr(
            'os_acc.journal.journal.Journal.settle', lambda *_a, **_k: None
        )
        calls.on('unprepareVAN', Killed())
        with pytest.raises((Killed, exception.UnplugException)):
            os_acc.unplug(instance)
    calls.clear()
    host.restart()
    assert os_acc.get_vans().objects == []
    _, arrows = drawn()
    assert watched.seen() == set(arrows)


def errors():
    return {
        name
        for name, found in vars(exception).items()
        if isinstance(found, type)
        and issubclass(found, exception.ExceptionBase)
        and not name.startswith('_')
    }


def test_every_error_has_an_entry():
    text = (SOURCE / 'troubleshooting.rst').read_text()
    found = re.findall(r'^\.\. os-acc-error:: (\w+)\n\n   \w', text, re.M)
    assert sorted(found) == sorted(errors())
