# SPDX-License-Identifier: Apache-2.0

"""Servers that do not get their accelerators."""

from __future__ import annotations

from collections.abc import Iterator
import json
import pathlib
import uuid

import guest
import processes
import pytest
from servers import ALL
from servers import Servers
from servers import os_acc
from servers import states
from servers import vans


def test_two_servers_for_one_device(servers: Servers) -> None:
    """Each of the two wants the whole device, while the other is built."""
    flavor = servers.flavor(ALL)
    first = servers.begin(flavor)
    # Placement 16 can allocate one unit twice, to two requests that arrive
    # within 0.2 s (seen once). Cyborg then binds neither of them.
    processes.wait_until(
        'an allocation of the first server',
        lambda: servers.allocated(first.id) == ALL,
    )
    pair = [first, servers.begin(flavor)]

    ended = [servers.wait(each, 'ACTIVE', 'ERROR') for each in pair]

    assert sorted(each.status for each in ended) == ['ACTIVE', 'ERROR']
    winner, loser = sorted(ended, key=lambda each: each.status)
    assert 'No valid host' in loser.fault['message']
    assert len(vans(winner)) == ALL
    assert states(vans(winner)) == {'plugged'}
    assert vans(loser) == []

    # The device is free again when the server is deleted.
    servers.delete(winner)
    servers.delete(loser)
    assert len(vans(servers.create(flavor))) == ALL


@pytest.fixture
def holder(servers: Servers, tmp_path: pathlib.Path) -> Iterator[str]:
    """Let the administrator take a handle that Cyborg gives to servers.

    :returns: the UUID of the instance that has it
    """
    instance = str(uuid.uuid4())
    arqs = tmp_path / 'arqs.json'
    arqs.write_text(json.dumps([_arq(instance)]))
    os_acc('plug', instance, '--arqs', str(arqs))
    yield instance
    os_acc('unplug', instance)


def test_a_device_that_another_has_already(
    servers: Servers, holder: str
) -> None:
    flavor = servers.flavor(ALL)

    refused = servers.wait(servers.begin(flavor), 'ERROR')

    assert 'is busy' in refused.fault['message'], refused.fault
    # All that was plugged for the server was undone, and no more.
    assert [van['instance_uuid'] for van in vans()] == [holder]


def _arq(instance: str) -> dict[str, object]:
    """Return an ARQ with the first handle of Cyborg's fake device."""
    return {
        'uuid': str(uuid.uuid4()),
        'state': 'Bound',
        'instance_uuid': instance,
        'device_profile_name': 'administrator',
        'device_profile_group_id': 0,
        'attach_handle_type': 'TEST_PCI',
        'attach_handle_info': {
            'domain': '0000',
            'bus': '0c',
            'device': '0',
            'function': '1',
        },
    }


def test_a_device_that_cannot_be_programmed(servers: Servers) -> None:
    """Cyborg's fake driver cannot program, so the ARQ is BindFailed."""
    image = servers.demo.image.find_image(guest.IMAGE)
    flavor = servers.flavor(1, bitstream_id=image.id)

    server = servers.wait(servers.begin(flavor), 'ERROR')

    # Nova itself gives up if it learns of the failure while it waits. If the
    # binding failed before, Nova goes on, and the compute driver refuses the
    # ARQ.
    message = server.fault['message']
    assert (
        'Failure getting accelerator' in message or 'BindFailed' in message
    ), message
    assert vans() == []
