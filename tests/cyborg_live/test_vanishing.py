# SPDX-License-Identifier: Apache-2.0

"""Devices and services that go away, and come back.

In all of these, Cyborg's API goes on to answer, and what is bound stays bound.
What is gone goes from Cyborg and Placement when its ARQ is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
import time
from typing import Any

import hardware
import layout
import live
import nova_part
import pytest

from os_acc.cyborg import names

MADE = names.deployable(layout.HOST, hardware.MADE)
GPU = names.deployable(layout.HOST, hardware.GPU)
#: Seconds for which Placement is down.
DOWN = 30


@pytest.fixture
def all_there(
    cloud: live.Live, nova: nova_part.Nova
) -> Iterator[dict[str, dict[str, int]]]:
    """Put back all devices after a test.

    :returns: what Placement shows of the devices while all are there
    """
    before = nova.providers()
    yield before
    if cloud.kernel.driver_of(hardware.GPU) is None:
        with cloud.kernel.changed():
            hardware.add_gpu(cloud.kernel)
    for arq in nova.arqs():
        nova.delete(arq['instance_uuid'])
    cloud.kernel.set_vfs(hardware.MADE, hardware.MADE_VFS)
    cloud.report()
    assert nova.providers() == before


def expect_bound(nova: nova_part.Nova, arqs: list[dict[str, Any]]) -> None:
    """Check that Cyborg answers, and shows the ARQs as before."""
    assert _sorted(nova.arqs()) == _sorted(arqs)
    for arq in arqs:
        assert nova.arqs(arq['instance_uuid'])


def _sorted(arqs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(arqs, key=lambda arq: str(arq['uuid']))


def test_all_vfs_removed(
    cloud: live.Live,
    nova: nova_part.Nova,
    all_there: dict[str, dict[str, int]],
) -> None:
    instances = [
        nova.boot(nova_part.group(hardware.MADE_CLASS)) for _ in range(2)
    ]
    arqs = nova.arqs()

    cloud.kernel.set_vfs(hardware.MADE, 0)
    cloud.report()

    expect_bound(nova, arqs)
    assert nova.providers()[MADE][hardware.MADE_CLASS] == 2
    live.plug(instances[0], code=4)
    assert live.vans() == []

    nova.delete(instances[0])
    cloud.report()
    expect_bound(nova, nova.arqs(instances[1]))
    assert nova.providers()[MADE][hardware.MADE_CLASS] == 1

    nova.delete(instances[1])
    cloud.report()
    assert MADE not in nova.providers()


def test_gpu_pulled(
    cloud: live.Live,
    nova: nova_part.Nova,
    all_there: dict[str, dict[str, int]],
) -> None:
    instance = nova.boot(nova_part.group(hardware.GPU_CLASS))
    arqs = nova.arqs()

    cloud.kernel.pull(hardware.GPU)
    cloud.report()

    expect_bound(nova, arqs)
    live.plug(instance, code=4)
    nova.delete(instance)
    cloud.report()
    assert GPU not in nova.providers()


def test_plugged_gpu_pulled(
    cloud: live.Live,
    nova: nova_part.Nova,
    all_there: dict[str, dict[str, int]],
) -> None:
    instance = nova.boot(nova_part.group(hardware.GPU_CLASS))
    live.plug(instance)
    arqs = nova.arqs()

    cloud.kernel.pull(hardware.GPU)
    cloud.report()

    expect_bound(nova, arqs)
    live.unplug(instance)
    cloud.report()
    expect_bound(nova, arqs)
    nova.delete(instance)
    cloud.report()
    assert GPU not in nova.providers()


def test_fewer_vfs(
    cloud: live.Live,
    nova: nova_part.Nova,
    all_there: dict[str, dict[str, int]],
) -> None:
    """Of four bound VFs, two go."""
    instances = [
        nova.boot(nova_part.group(hardware.MADE_CLASS)) for _ in range(4)
    ]
    arqs = nova.arqs()

    cloud.kernel.set_vfs(hardware.MADE, 2)
    cloud.report()

    expect_bound(nova, arqs)
    # Two of the handles work.
    plugged = [
        each for each in instances if live.try_to_plug(each).returncode == 0
    ]
    assert len(plugged) == 2
    for instance in plugged:
        live.unplug(instance)
    for instance in instances:
        nova.delete(instance)
    # One report without the deployable, and one with the VFs that are left.
    cloud.report()
    assert MADE not in nova.providers()
    cloud.report()
    assert nova.providers()[MADE] == {hardware.MADE_CLASS: 2}
    # Both can be bound.
    more = [nova.boot(nova_part.group(hardware.MADE_CLASS)) for _ in range(2)]
    for instance in more:
        live.plug(instance)
        live.unplug(instance)
        nova.delete(instance)


def test_agent_restarted(
    cloud: live.Live,
    nova: nova_part.Nova,
    all_there: dict[str, dict[str, int]],
) -> None:
    instance = nova.boot(
        nova_part.group(hardware.PF_CLASS), nova_part.group(hardware.GPU_CLASS)
    )
    live.plug(instance)
    arqs, known = nova.arqs(), _deployables()

    cloud.agent.stop()
    live.unplug(instance)
    cloud.start_agent()

    expect_bound(nova, arqs)
    assert _deployables() == known
    assert nova.providers() == all_there
    assert len(live.plug(instance)) == 2


def test_gone_while_the_agent_is_down(
    cloud: live.Live,
    nova: nova_part.Nova,
    all_there: dict[str, dict[str, int]],
) -> None:
    """The agent keeps what it has never seen itself."""
    instance = nova.boot(nova_part.group(hardware.GPU_CLASS))
    arqs = nova.arqs()

    cloud.agent.kill()
    cloud.kernel.pull(hardware.GPU)
    cloud.start_agent()

    expect_bound(nova, arqs)
    nova.delete(instance)
    cloud.report()
    assert GPU not in nova.providers()


def test_conductor_restarted(
    cloud: live.Live,
    nova: nova_part.Nova,
    all_there: dict[str, dict[str, int]],
) -> None:
    instance = nova.boot(nova_part.group(hardware.MADE_CLASS, 2))
    arqs = nova.arqs()

    cloud.conductor.kill()
    cloud.ask_for_report()
    expect_bound(nova, arqs)
    cloud.start_conductor()
    cloud.wait_for_report()

    expect_bound(nova, arqs)
    assert nova.providers() == all_there
    assert len(live.plug(instance)) == 2


def test_rabbit_killed(
    cloud: live.Live,
    nova: nova_part.Nova,
    all_there: dict[str, dict[str, int]],
) -> None:
    instance = nova.boot(nova_part.group(hardware.MADE_CLASS, 2))
    arqs = nova.arqs()

    cloud.rabbit.kill()
    cloud.ask_for_report()
    expect_bound(nova, arqs)
    assert len(live.plug(instance)) == 2
    cloud.start_rabbit()
    cloud.wait_for_report()

    expect_bound(nova, arqs)
    assert nova.providers() == all_there
    # Cyborg binds again.
    other = nova.boot(nova_part.group(hardware.GPU_CLASS))
    assert len(live.plug(other)) == 1


def test_placement_down(
    cloud: live.Live,
    nova: nova_part.Nova,
    all_there: dict[str, dict[str, int]],
) -> None:
    instance = nova.boot(nova_part.group(hardware.MADE_CLASS, 2))
    arqs = nova.arqs()

    cloud.placement.stop()
    cloud.ask_for_report()
    end = time.monotonic() + DOWN
    assert len(live.plug(instance)) == 2
    while time.monotonic() < end:
        expect_bound(nova, arqs)
        time.sleep(2)
    cloud.start_placement()
    cloud.wait_for_report()

    expect_bound(nova, arqs)
    assert nova.providers() == all_there


def _deployables() -> list[tuple[Any, ...]]:
    """Return the deployables in Cyborg's database, and their handles."""
    return live.sql(
        'SELECT deployables.uuid, name, attach_handles.uuid FROM deployables '
        'JOIN attach_handles ON attach_handles.deployable_id = deployables.id '
        'ORDER BY attach_handles.id'
    )
