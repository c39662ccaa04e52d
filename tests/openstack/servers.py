# SPDX-License-Identifier: Apache-2.0

"""Servers with accelerators, and what each service says of them."""

from __future__ import annotations

from collections.abc import Sequence
import json
import pathlib
from typing import Any
import uuid

import guest
import layout
from openstack.compute.v2.server import Server
import processes
import views

#: The trait of the devices of Cyborg's fake driver.
TRAIT = 'CUSTOM_FAKE_DEVICE'
#: How many of them the one fake device has.
ALL = 16


class Servers(views.Views):
    """Makes servers as the user demo, and looks at them as admin."""

    def __init__(self) -> None:
        super().__init__()
        self._flavors: dict[str, str] = {}

    def flavor(self, count: int, **more: str) -> str:
        """Return the flavor with so many accelerators.

        :param count: how many accelerators its device profile requests
        :param more: further keys of the profile's group, such as bitstream_id
            for accel:bitstream_id
        """
        group = {
            f'resources:{views.DEVICES}': str(count),
            f'trait:{TRAIT}': 'required',
        }
        group.update({f'accel:{key}': value for key, value in more.items()})
        key = json.dumps(group)
        if key not in self._flavors:
            name = f'accelerated-{uuid.uuid4().hex[:8]}'
            made = self.admin.accelerator.post(
                '/device_profiles', json=[{'name': name, 'groups': [group]}]
            )
            assert made.status_code == 201, made.text
            self._flavors[key] = self.create_flavor(
                name, {'accel:device_profile': name}
            )
        return self._flavors[key]

    def create_flavor(self, name: str, extra_specs: dict[str, str]) -> str:
        flavor = self.admin.compute.create_flavor(
            name=name, ram=128, vcpus=1, disk=1
        )
        self.admin.compute.create_flavor_extra_specs(flavor, extra_specs)
        return str(flavor.id)

    def begin(self, flavor: str) -> Server:
        """Ask for a server, and do not wait for it."""
        image = self.demo.image.find_image(guest.IMAGE)
        return self.demo.compute.create_server(
            name='server',
            image_id=image.id,
            flavor_id=flavor,
            networks='none',
        )

    def create(self, flavor: str) -> Server:
        """Create a server and wait until it is ACTIVE."""
        return self.wait(self.begin(flavor), 'ACTIVE')

    def get(self, server: Server) -> Server:
        """Read a server again. Administrators see all of its fault."""
        return self.admin.compute.get_server(server.id)

    def wait(self, server: Server, *statuses: str) -> Server:
        """Wait until a server has one of the statuses, and no task.

        :raises AssertionError: if it goes to ERROR, unless that is expected
        """

        def reached() -> Server | None:
            found = self.get(server)
            done = found.status in statuses and found.task_state is None
            if found.status == 'ERROR' and not done:
                assert 'ERROR' in statuses, found.fault
            return found if done else None

        return processes.wait_until(
            f'server {server.id} is {" or ".join(statuses)}', reached
        )

    def delete(self, server: Server) -> None:
        """Delete a server and wait until it is gone."""
        self.demo.compute.delete_server(server.id)
        self.wait_until_gone(server)

    def wait_until_gone(self, server: Server) -> None:
        processes.wait_until(
            f'server {server.id} is deleted',
            lambda: server.id not in self.existing(),
        )

    def existing(self) -> list[str]:
        """Return the UUIDs of all servers."""
        return [
            each.id
            for each in self.admin.compute.servers(
                details=False, all_projects=True
            )
        ]

    def console(self, server: Server) -> str:
        """Return what the guest wrote to its console."""
        output = self.demo.compute.get_server_console_output(server)
        return str(output['output'])


def os_acc(
    *arguments: str, conf: pathlib.Path = layout.NOVA_COMPUTE_CONF
) -> str:
    """Run the command os-acc on a compute host.

    :param conf: the configuration of the host's nova-compute
    """
    return processes.run(
        layout.nova_program('os-acc'), '--config-file', str(conf), *arguments
    )


def vans(
    server: Server | None = None,
    conf: pathlib.Path = layout.NOVA_COMPUTE_CONF,
) -> list[dict[str, Any]]:
    """Return the VANs of a server, or all, as "os-acc van list" shows them.

    :param conf: see os_acc()
    """
    chosen = [] if server is None else ['--instance', server.id]
    found: list[dict[str, Any]] = json.loads(
        os_acc('van', 'list', '-f', 'json', *chosen, conf=conf)
    )
    return found


def states(found: Sequence[dict[str, Any]]) -> set[str]:
    """Return the states of VANs."""
    return {van['state'] for van in found}


def ids(found: Sequence[dict[str, Any]]) -> set[str]:
    """Return the UUIDs of VANs. A VAN has the UUID of its ARQ."""
    return {str(uuid.UUID(van['uuid'])) for van in found}
