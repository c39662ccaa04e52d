# SPDX-License-Identifier: Apache-2.0

"""plug --wait: waiting commands are served in their order."""

from __future__ import annotations

import os
import pathlib
import signal
import time

import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.cli import queueing
from os_acc.cli import waiting
from os_acc.testing import children

CLASS = 'CUSTOM_CARD'
BUSY = exception.DeviceBusy(device='card', holder='somebody')

# No test waits so long, unless something is wrong.
LONG = 300.0


class Card:
    """One device, which waiting processes get by waiting.retry()."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.locks = path / 'locks'
        self.locks.mkdir()
        self.taken = path / 'taken'
        self.served = path / 'served'
        self.served.touch()
        os_acc.CONF.set_override('lock_path', str(self.locks), 'os_acc')

    def take(self) -> None:
        """Get the card, as a plug does; at most one process has it."""
        try:
            os.close(os.open(self.taken, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            raise BUSY from None

    def wait(self, name: str, *traits: str, resource_class=CLASS) -> int:
        """Start a process that waits, and see it join the queue."""

        def work() -> None:
            waiting.retry(
                self.take,
                LONG,
                lambda text: None,
                requests=[devices.wanted(resource_class, *traits)],
            )
            with open(self.served, 'a') as file:
                file.write(f'{name}\n')
            self.taken.unlink()
            os._exit(0)

        before = self.tickets()
        pid = children.start(work)
        until(lambda: self.tickets() - before)
        return pid

    def tickets(self) -> set[str]:
        return {
            each.name
            for each in self.locks.iterdir()
            if each.name.startswith('os-acc-waiter-')
        }

    def order(self) -> list[str]:
        return self.served.read_text().split()


def until(done) -> None:
    deadline = time.monotonic() + LONG
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def card(clean, tmp_path, monkeypatch):
    # The requests are of no real driver.
    monkeypatch.setattr('os_acc.cli.waiting._check_exists', lambda *args: None)
    monkeypatch.setattr(queueing, 'PAUSE', 0.02)
    monkeypatch.setattr(waiting, '_FIRST_PAUSE', 0.01)
    return Card(tmp_path)


def test_the_early_one_goes_first(card):
    """One early process and 6 later ones; the functional test has 20."""
    card.take()
    names = ['early', *map(str, range(6))]
    waiting_ones = [card.wait(name) for name in names]
    card.taken.unlink()
    assert [children.wait(pid) for pid in waiting_ones] == [0] * 7
    assert card.order() == names
    assert card.tickets() == set()


def test_a_later_one_does_not_overtake(card):
    """It comes when the card has just become free."""
    card.take()
    early = card.wait('early')
    os.kill(early, signal.SIGSTOP)
    card.taken.unlink()
    later = card.wait('later')
    os.kill(early, signal.SIGCONT)
    assert [children.wait(pid) for pid in (early, later)] == [0, 0]
    assert card.order() == ['early', 'later']


def test_one_that_is_killed_blocks_nobody(card):
    card.take()
    killed = card.wait('killed')
    later = [card.wait(name) for name in 'abc']
    os.kill(killed, signal.SIGKILL)
    children.wait(killed)
    os.kill(later[1], signal.SIGKILL)
    children.wait(later[1])
    card.taken.unlink()
    assert [children.wait(later[n]) for n in (0, 2)] == [0, 0]
    assert card.order() == ['a', 'c']
    # Also those that were left behind are gone.
    assert card.tickets() == set()


def test_one_that_waits_for_something_else_blocks_nobody(card):
    """Another class, or a trait that the later one does not need."""
    locks = str(card.locks)
    tickets = [
        queueing.Ticket(locks, [devices.wanted('CUSTOM_OTHER')]),
        queueing.Ticket(locks, [devices.wanted(CLASS, 'CUSTOM_FAST')]),
    ]
    card.take()
    plain = card.wait('plain')
    card.taken.unlink()
    assert children.wait(plain) == 0
    for each in tickets:
        each.close()


@pytest.mark.parametrize(
    ('early', 'later', 'first'),
    [
        ((), (), False),
        ((), ('CUSTOM_FAST',), False),
        (('CUSTOM_FAST',), ('CUSTOM_FAST', 'CUSTOM_BIG'), False),
        (('CUSTOM_FAST',), (), True),
        (('CUSTOM_FAST',), ('CUSTOM_BIG',), True),
    ],
)
def test_traits(card, early, later, first):
    """Who could take each device that the later one could goes first."""
    one = queueing.Ticket(str(card.locks), [devices.wanted(CLASS, *early)])
    two = queueing.Ticket(str(card.locks), [devices.wanted(CLASS, *later)])

    def work() -> None:
        # A ticket of another process is read from its file.
        os._exit(two.is_first())

    assert one.is_first()
    assert children.wait(children.start(work)) == first
    two.close()
    one.close()


def test_a_device_that_is_named(card):
    """Those that name it wait for each other, and not for the others."""
    named = queueing.Ticket(str(card.locks), [devices.pci(devices.GPU)])

    def is_first(request) -> bool:
        ticket = queueing.Ticket(str(card.locks), [request])
        pid = children.start(lambda: os._exit(ticket.is_first()))
        found = children.wait(pid)
        ticket.close()
        return bool(found)

    assert not is_first(devices.pci(devices.GPU))
    assert is_first(devices.pci(devices.NIC))
    assert is_first(devices.wanted(CLASS))
    named.close()


def test_one_that_tries_for_long_lets_the_next_one_try(card, monkeypatch):
    """It programs a device, and another device may be free."""
    early = queueing.Ticket(str(card.locks), [devices.wanted(CLASS)])
    later = queueing.Ticket(str(card.locks), [devices.wanted(CLASS)])

    def is_first() -> bool:
        pid = children.start(lambda: os._exit(later.is_first()))
        return bool(children.wait(pid))

    with early.attempt():
        assert not is_first()
        monkeypatch.setattr(queueing, 'LONG', -1.0)
        assert is_first()
    assert not is_first()
    later.close()
    early.close()


def test_the_time_is_up_before_its_turn(card):
    early = queueing.Ticket(str(card.locks), [devices.wanted(CLASS)])
    told: list[str] = []
    with pytest.raises(exception.LockTimeout, match='earlier commands'):
        waiting.retry(
            card.take, 0.3, told.append, requests=[devices.wanted(CLASS)]
        )
    assert 'earlier commands wait for the same devices' in told[0]
    assert not card.taken.exists()
    early.close()
    waiting.retry(
        card.take, 0.3, told.append, requests=[devices.wanted(CLASS)]
    )
    assert card.tickets() == set()


def test_a_lock_directory_that_cannot_be_used(card):
    os_acc.CONF.set_override('lock_path', str(card.served / 'x'), 'os_acc')

    def act():
        raise BUSY

    with pytest.raises(exception.JournalError, match='lock directory'):
        waiting.retry(act, 9.0, print, requests=[devices.wanted(CLASS)])


def test_no_lock_directory_is_made_before_the_first_try(card):
    """The state path may be mistyped."""
    directory = card.path / 'mistyped'
    os_acc.CONF.set_override('lock_path', str(directory), 'os_acc')
    waiting.retry(card.take, 9.0, print, requests=[devices.wanted(CLASS)])
    assert not directory.exists()
