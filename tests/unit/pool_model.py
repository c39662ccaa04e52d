# SPDX-License-Identifier: Apache-2.0

"""A host of regions without a device: pools against a random load.

Run it for longer: python tests/unit/pool_model.py STEPS SEED
"""

from __future__ import annotations

import collections
import dataclasses
import random
import sys
import time

from os_acc.desired import documents
from os_acc.desired import filling

FUNCTIONS = ('aes', 'sha', 'gzip', 'fft')
REST = 10
DEMAND_AGE = 100


@dataclasses.dataclass
class Slot:
    """A region: what it holds, who has it, and until when it rests."""

    name: str
    traits: frozenset[str]
    function: str | None = None
    used: bool = False
    broken: bool = False
    rests_until: int = 0
    programmed: list[int] = dataclasses.field(default_factory=list)

    def region(self, now):
        return filling.Region(
            self.name,
            'fpga',
            self.name,
            self.function,
            used=self.used,
            free=not self.used and not self.broken,
            fixed=now < self.rests_until,
            kinds=(filling.Kind(traits=self.traits),),
        )


class Model:
    """The host, its load, and what must be true at each moment."""

    def __init__(self, seed, slots=8):
        self.random = random.Random(seed)
        self.now, self.calm = 0, False
        self.slots = [
            Slot(str(n), frozenset({'FAST'} if n % 3 == 0 else ()))
            for n in range(slots)
        ]
        self.pools = [
            documents.Pool('aes', min_free=2, max=4),
            documents.Pool('sha', traits=('FAST',), min_free=1),
            documents.Pool('gzip', on_demand=True),
        ]
        self.demand = dict.fromkeys(FUNCTIONS, -1000)
        self.seen = collections.Counter()

    def states(self):
        regions = [each.region(self.now) for each in self.slots]
        found = []
        for pool in self.pools:
            recent = self.now - self.demand[pool.function] < DEMAND_AGE
            wanted = max(pool.least, int(pool.on_demand and recent))
            found.append(filling.state_of(pool, wanted, True, regions))
        return found, regions

    def step(self):
        self.now += 1
        act = self.random.choice(
            [
                *[self.plug, self.unplug, self.tick] * 2,
                *[self.fail, self.mend],
            ]
        )
        act()
        self.seen[act.__name__] += 1

    def plug(self):
        """In the order of choice of Contents.rank()."""
        function = self.random.choice(FUNCTIONS)
        kept = {each.function for each in self.pools}
        free = [s for s in self.slots if not s.used and not s.broken]
        if not free:
            self.demand[function] = self.now
            return
        chosen = min(
            free,
            key=lambda s: (
                s.function != function,
                s.function is not None,
                s.function in kept,
            ),
        )
        if chosen.function != function:
            chosen.function = function
            chosen.rests_until = self.now + REST
        chosen.used = True

    def unplug(self):
        used = [each for each in self.slots if each.used]
        if used:
            self.random.choice(used).used = False

    def fail(self):
        """A region fails, and is healthy again later."""
        idle = [each for each in self.slots if not each.used]
        if idle and self.random.random() < 0.2:
            self.random.choice(idle).broken = True

    def mend(self):
        for each in self.slots:
            each.broken = False

    def tick(self):
        """Let the pools program; one in ten ends in a failure or a kill."""
        tried = set()
        while True:
            states, regions = self.states()
            found = filling.find(
                states, [each for each in regions if each.name not in tried]
            )
            if found is None:
                break
            pool, region = found
            tried.add(region.name)
            self.program(pool, region, states)
            if not self.calm and self.random.random() < 0.05:
                self.seen['killed'] += 1
                return
        self.check_kept(tried)

    def program(self, pool, region, before):
        slot = self.slots[int(region.name)]
        assert not slot.used and not slot.broken, 'it was in use'
        assert self.now >= slot.rests_until, 'it flaps'
        assert slot.function != pool.function
        failed = not self.calm and self.random.random() < 0.1
        slot.function = None if failed else pool.function
        slot.rests_until = self.now + REST
        slot.programmed.append(self.now)
        self.seen['programmed'] += 1
        after, _ = self.states()
        for old, new in zip(before, after, strict=True):
            if old.pool is not pool and new.free < old.free:
                assert new.free >= new.wanted, 'another pool needed it'
            if new.pool is pool and not failed:
                assert new.free == old.free + 1 <= new.wanted
                assert pool.max is None or len(new.held) <= pool.max

    def check_kept(self, tried):
        """No pool lacks a region that it could have."""
        states, _ = self.states()
        spare = {s.pool.function: s.free - s.wanted for s in states}
        serving = {s.pool.function: s.pool for s in states}
        for state in states:
            pool = state.pool
            if state.free >= state.wanted or (
                pool.max is not None and len(state.held) >= pool.max
            ):
                continue
            for slot in self.slots:
                other = serving.get(slot.function)
                needed = (
                    other is not None
                    and slot.traits >= set(other.traits)
                    and spare[slot.function] <= 0
                )
                assert (
                    slot.used
                    or slot.broken
                    or self.now < slot.rests_until
                    or slot.name in tried
                    or not slot.traits >= set(pool.traits)
                    or needed
                ), f'{slot.name} could serve {pool.function}'

    def settle(self):
        """Without a load and failures, one tick does all that can be done."""
        self.mend()
        self.calm = True
        self.now += REST + DEMAND_AGE
        self.tick()
        before = self.seen['programmed']
        for _ in range(5):
            self.now += REST
            self.tick()
        assert self.seen['programmed'] == before, 'it flaps'
        self.calm = False


def run(steps, seed):
    """Run a model; it raises AssertionError where it is wrong."""
    model = Model(seed)
    for number in range(steps):
        model.step()
        if number % 1000 == 999:
            model.settle()
    return model


if __name__ == '__main__':
    STEPS, SEED = map(int, sys.argv[1:])
    START = time.monotonic()
    DONE = run(STEPS, SEED)
    SECONDS = time.monotonic() - START
    sys.stdout.write(f'{STEPS} steps in {SECONDS:.1f} s: {DONE.seen}\n')
