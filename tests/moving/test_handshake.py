# SPDX-License-Identifier: Apache-2.0

"""The service of a host is killed in each step of a move, at each moment.

It dies before each write of its journal, with real devices, and two libvirtd.
It starts again, both hosts recover, and an operator ends what is left as
doc/source/migration.rst says. Then one host has the devices, and runs the
guest.
"""

from __future__ import annotations

import itertools

from hosts import Ended
from hosts import Host
from moving import Instance
import pytest

STEPS = ('prepare', 'hand_over', 'switch', 'finish')
#: More than any step writes.
MOST = 40


class Move:
    """A move of an instance, by the steps of the handshake.

    :param live: it is moved while it runs, without its devices: replug. Else
        it is shut down: cold
    """

    def __init__(
        self, instance: Instance, source: Host, target: Host, live: bool
    ) -> None:
        self._instance, self._live = instance, live
        self.source, self.target = source, target
        self.calls = {
            'prepare': lambda: instance.prepare_target(source, target),
            'hand_over': lambda: instance.hand_over(source, live),
            'switch': lambda: instance.switch(target, live),
            'finish': lambda: instance.finish(source),
        }

    def host(self, step: str) -> Host:
        """The host that does a step."""
        return self.target if step in ('prepare', 'switch') else self.source

    def do(self, step: str) -> None:
        """Do a step, after what comes before it in the hypervisors."""
        if step == 'switch':
            self._leave()
        if step == 'finish' and not self._live:
            self.start(self.target, self.source)
        self.calls[step]()

    def _leave(self) -> None:
        if self._live:
            self._instance.begin(self.source, self.target, with_device=False)
            self.source.result()
        else:
            self.source.virsh('destroy', self._instance.guest.name)

    def start(self, host: Host, other: Host) -> None:
        """Start the guest on a host, where it does not run."""
        name = self._instance.guest.name
        self._instance.define(host)
        other.virsh('undefine', name, check=False)
        host.virsh('start', name)

    def settle(self) -> Host:
        """Recover on both hosts, and end what is left then.

        :returns: the host that has the devices
        """
        instance, source, target = self._instance, self.source, self.target
        which = {'instance': instance.uuid, 'move': instance.move}
        for host in (target, source):
            host.call('recover', migration_timeout=1.0)
        states = {van.state for van in target.vans(instance.uuid)}
        assert states in (set(), {'incoming'}, {'plugged'})
        if states == {'incoming'}:
            target.call('abort', **which)
        moved = states == {'plugged'}
        states = {van.state for van in source.vans(instance.uuid)}
        assert states in (set(), {'outgoing'}, {'plugged'})
        if states == {'outgoing'}:
            source.call('finish' if moved else 'abort', **which)
        owner, other = (target, source) if moved else (source, target)
        if not owner.state(instance.guest.name).startswith('running'):
            self.start(owner, other)
        return owner


@pytest.mark.timeout(5000)
@pytest.mark.parametrize('live', [False, True], ids=['cold', 'replug'])
@pytest.mark.parametrize('step', STEPS)
def test_a_kill(both, report, step, live):
    source, target = both.one, both.two
    for number in itertools.count():
        assert number < MOST
        move = Move(both, source, target, live)
        for each in STEPS[: STEPS.index(step)]:
            move.do(each)
        host = move.host(step)
        host.call('die_at', number=number)
        try:
            move.do(step)
            is_done = True
        except Ended:
            is_done = False
        # Also if the step is done: the next write could be the one.
        host.kill_agent()
        host.start_agent()
        if is_done:
            break
        owner = move.settle()
        other = target if owner is source else source
        both.lives_on(owner, other, None)
        both.check(
            *(
                'plugged' if each is owner else None
                for each in (both.one, both.two)
            )
        )
        source, target = owner, other
    report(f'{step}: {number} kills')
    assert number > 0
