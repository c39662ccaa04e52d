# SPDX-License-Identifier: Apache-2.0

"""Checks of both contracts: a process that dies in the middle of a call."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import functools
from typing import ClassVar

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.testing import contract_base
from os_acc.testing import mortal
from os_acc.testing import rules
from os_acc.testing import service as service_module

Service = contract_base.Service


class Crashes(contract_base.ContractBase):
    """Deaths before each change, in process.

    :cvar serve: the rule that is broken if plug fails
    :cvar undo: the rule that is broken if unplug fails
    :cvar undo_half: the rule that is broken if something is left after a
        death and a recovery
    :cvar save_first: the same, if a later save() has written what the
        recovery needed
    """

    serve: ClassVar[rules.Rule]
    undo: ClassVar[rules.Rule]
    undo_half: ClassVar[rules.Rule]
    save_first: ClassVar[rules.Rule]

    def test_a_kill_before_each_change_of_plug(self, service: Service) -> None:
        before = self.look()
        for number in range(len(self.requests())):
            whole = self.whole(service, number)
            self._check_order(service, whole)
            plug = functools.partial(self.plug_one, number)
            for place, text in self.deaths(service, plug, self.serve):
                service.restart()
                later = mortal.SAVE in whole[place:]
                rule = self.save_first if later else self.undo_half
                self.settled(rule, text)
                self.same(before, rule, f'{text}, then recovered')
            self.unplug_all(self.undo)
            self.same(before, self.undo, 'after unplug')

    def test_a_kill_before_each_change_of_unplug(
        self, service: Service
    ) -> None:
        before = self.look()
        for number in range(len(self.requests())):
            self.plugged(self.requests()[number], self.serve)
            unplug = functools.partial(self.unplug_all, self.undo)
            for _, text in self.deaths(service, unplug, self.undo):
                service.restart()
                self.settled(self.undo_half, text)
                self.unplug_all(self.undo_half)
                self.same(before, self.undo_half, f'{text}, then recovered')
                self.plugged(self.requests()[number], self.serve)
            self.same(before, self.undo, 'after unplug')

    def test_a_kill_in_the_recovery(self, service: Service) -> None:
        """The process dies in plug, and the next one in the recovery."""
        self.whole(service, 0)  # which may make directories that stay
        before = self.look()
        plug = functools.partial(self.plug_one, 0)
        number, died = 0, True
        while died:
            # Each time, because root's notes of a device that was used may
            # differ from those that a recovery has left.
            place = last_change(self.whole(service, 0))
            assert service.dies_at(place, plug), 'plug made fewer changes'
            service.stop()
            service.mortal.revive()
            died = service.dies_at(number, os_acc.initialize)
            text = f'killed in plug, and in the recovery (change {number})'
            service.restart()
            self.settled(self.undo_half, text)
            self.same(before, self.undo_half, text)
            number += 1

    def test_a_reboot_of_the_host(self, service: Service) -> None:
        number = len(self.requests())
        lost = [
            self.check_reboot(service, [self.requests()[place]], False)
            for place in range(number)
        ]
        if number > 1:
            self.check_reboot(service, self.requests(), all(lost))

    def check_reboot(
        self,
        service: Service,
        requests: list[objects.AcceleratorRequest],
        lost_each: bool,
    ) -> bool:
        """Plug requests, reboot the host, and unplug them.

        :param lost_each: whether each of them alone loses what it was given
        :returns: whether one of them did
        """
        raise NotImplementedError

    def plug_one(self, number: int) -> None:
        """Plug one of the requests into a new instance."""
        os_acc.plug(service_module.instance(), [self.requests()[number]])

    def whole(self, service: Service, number: int) -> list[str]:
        """Plug and unplug a request in a process that does not die."""
        try:
            changes = service.changes(functools.partial(self.plug_one, number))
        except exception.ExceptionBase as err:
            self.check_deadlines()
            self.serve.broken(f'os_acc.plug(): {contract_base.said(err)}')
        self.unplug_all(self.undo)
        return changes

    def deaths(
        self, service: Service, act: Callable[[], object], rule: rules.Rule
    ) -> Iterator[tuple[int, str]]:
        """Make a call in processes that die: before the first change, ...

        After each death, the caller starts the next process and looks. The
        last call, which does not die, is not yielded.

        :param rule: is broken if a call fails in a process that does not die
        :returns: the number of the death, and a text that says where it was
        """
        number = 0
        while self._dies_at(service, number, act, rule):
            done = service.mortal.changes
            last = f'after {done[-1]}' if done else 'before the first change'
            yield number, f'killed {last} (change {number})'
            number += 1

    def _dies_at(
        self,
        service: Service,
        number: int,
        act: Callable[[], object],
        rule: rules.Rule,
    ) -> bool:
        try:
            return service.dies_at(number, act)
        except exception.ExceptionBase as err:
            self.check_deadlines()
            rule.broken(contract_base.said(err))

    def _check_order(self, service: Service, changes: list[str]) -> None:
        """Check that a save comes before the first change of the hardware."""
        for number, text in enumerate(changes):
            if text == mortal.SAVE:
                return
            if text != mortal.COMMIT and not service.is_note(text):
                self.save_first.broken(
                    f'change {number}, of {text}, comes before any save()'
                )


def last_change(changes: list[str]) -> int:
    """The position after the last change that is not of the journal."""
    journal = (mortal.SAVE, mortal.COMMIT)
    places = [n for n, text in enumerate(changes) if text not in journal]
    return places[-1] + 1 if places else len(changes) - 1
