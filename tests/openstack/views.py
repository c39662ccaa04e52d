# SPDX-License-Identifier: Apache-2.0

"""What Cyborg and Placement say of accelerators."""

from __future__ import annotations

from typing import Any

import catalog
import layout

#: The resource class of the devices of Cyborg's fake driver.
DEVICES = 'FPGA'


class Views:
    """Looks into Cyborg and Placement as admin.

    :ivar admin: the connection of the user admin
    :ivar demo: the connection of the user demo, who has the servers
    """

    def __init__(self) -> None:
        self.admin = catalog.connect()
        self.demo = catalog.connect(catalog.DEMO)

    def arqs(self, server: str | None = None) -> list[dict[str, Any]]:
        """Return the ARQs of a server, or all ARQs, as Cyborg shows them.

        :param server: its UUID
        """
        params = {} if server is None else {'instance': server}
        answer = self.admin.accelerator.get(
            '/accelerator_requests', params=params
        )
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()['arqs']
        return found

    def allocated(self, server: str, kind: str = DEVICES) -> int:
        """Return how many accelerators Placement has allocated.

        :param server: the UUID of the server that has them
        :param kind: their resource class
        """
        answer = self.admin.placement.get(f'/allocations/{server}')
        allocations = answer.json()['allocations'].values()
        return sum(each['resources'].get(kind, 0) for each in allocations)

    def inventory(self) -> dict[str, int]:
        """Return the totals that the host has, by resource class."""
        placement = self.admin.placement
        found: dict[str, int] = {}
        for provider in placement.resource_providers():
            # the compute node, and os-acc's devices below it
            if provider.name != layout.HOST and not provider.name.startswith(
                f'{layout.HOST}_os-acc_'
            ):
                continue
            for each in placement.resource_provider_inventories(provider):
                name = each.resource_class
                found[name] = found.get(name, 0) + each.total
        return found

    def usages(self) -> dict[str, dict[str, int]]:
        """Return what is allocated, by the name of the resource provider."""
        found = {}
        for provider in self.admin.placement.resource_providers():
            answer = self.admin.placement.get(
                f'/resource_providers/{provider.id}/usages'
            )
            usages = answer.json()['usages']
            used = {name: count for name, count in usages.items() if count}
            if used:
                found[provider.name] = used
        return found
