# SPDX-License-Identifier: Apache-2.0

"""Accelerators that Placement places, without Cyborg."""

from __future__ import annotations

from layout import FPGAS
from layout import LOCAL_DEVICES
import processes
from servers import TRAIT
from servers import Servers
from servers import ids
from servers import states
from servers import vans

#: The resource class of the local device, made by os-acc's driver fake.
LOCAL_CLASS = 'CUSTOM_FAKE_TEST'


def test_flavors_with_resources(servers: Servers) -> None:
    processes.wait_until(
        f'the host has {LOCAL_CLASS}',
        lambda: (
            servers.inventory().get(LOCAL_CLASS) == LOCAL_DEVICES + len(FPGAS)
        ),
    )
    flavor = servers.create_flavor(
        'local',
        {
            f'resources:{LOCAL_CLASS}': str(LOCAL_DEVICES),
            f'trait:{TRAIT}': 'required',
        },
    )

    server = servers.create(flavor)

    before = vans(server)
    assert states(before) == {'plugged'}, before
    assert len({van['handle'] for van in before}) == LOCAL_DEVICES
    assert servers.arqs() == []
    assert servers.allocated(server.id, LOCAL_CLASS) == LOCAL_DEVICES

    # Another server does not get the same devices.
    refused = servers.wait(servers.begin(flavor), 'ERROR')
    assert 'No valid host' in refused.fault['message']

    servers.demo.compute.reboot_server(server, 'HARD')
    servers.wait(server, 'ACTIVE')
    assert ids(vans(server)) == ids(before)
    assert states(vans(server)) == {'plugged'}
