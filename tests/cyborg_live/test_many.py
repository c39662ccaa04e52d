# SPDX-License-Identifier: Apache-2.0

"""Many instances at the same time."""

from __future__ import annotations

from concurrent import futures

from conftest import expect_nothing_left
import hardware
import live
import nova_part

INSTANCES, EACH = 10, 5


def test_many(cloud: live.Live, nova: nova_part.Nova) -> None:
    group = nova_part.group(hardware.MANY_CLASS, EACH)
    with futures.ThreadPoolExecutor(INSTANCES) as executor:
        instances = list(
            executor.map(lambda _: nova.boot(group), range(INSTANCES))
        )
        plugged = list(executor.map(live.plug, instances))

        assert [len(each) for each in plugged] == [EACH] * INSTANCES
        found = [van for vans in plugged for van in vans]
        assert {van['state'] for van in found} == {'plugged'}
        assert len({van['handle'] for van in found}) == INSTANCES * EACH
        assert {van['uuid'] for van in found} == {
            arq['uuid'] for arq in nova.arqs()
        }
        cloud.report()
        assert {arq['state'] for arq in nova.arqs()} == {'Bound'}
        assert sum(
            used[hardware.MANY_CLASS] for used in nova.usages().values()
        ) == (INSTANCES * EACH)

        list(executor.map(live.unplug, instances))
        list(executor.map(nova.delete, instances))
    expect_nothing_left(nova)
