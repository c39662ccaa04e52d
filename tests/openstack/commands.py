# SPDX-License-Identifier: Apache-2.0

"""What an administrator sees with the command openstack."""

from __future__ import annotations

import json
from typing import Any

import layout
import processes

#: The newest version of Placement's API that osc-placement knows.
_PLACEMENT_VERSION = '1.29'


def openstack(*arguments: str) -> Any:
    """Run the command openstack as admin.

    :returns: its output; None: it has none
    """
    cloud = layout.cloud('admin')
    variables = {
        f'OS_{name.upper()}': value for name, value in cloud['auth'].items()
    }
    output = processes.run(
        layout.nova_program('openstack'),
        *arguments,
        env={
            **variables,
            'OS_REGION_NAME': cloud['region_name'],
            'OS_IDENTITY_API_VERSION': '3',
            'OS_PLACEMENT_API_VERSION': _PLACEMENT_VERSION,
        },
    )
    return json.loads(output) if output.strip() else None


def providers(host: str) -> dict[str, str]:
    """Return the provider of a compute node, and those below it.

    :returns: their UUIDs by name; empty if there is none
    """
    for node in _list('resource', 'provider', 'list', '--name', host):
        return _providers('--in-tree', node['uuid'])
    return {}


def holders(trait: str) -> set[str]:
    """Return the names of the providers that have a trait."""
    if not _list('trait', 'list', '--name', f'in:{trait}'):
        return set()  # Placement would refuse the name
    return set(_providers('--required', trait))


def _providers(*options: str) -> dict[str, str]:
    found = _list('resource', 'provider', 'list', *options)
    return {each['name']: each['uuid'] for each in found}


def traits(provider: str) -> set[str]:
    """Return the traits of a provider, given by its UUID."""
    return {
        each['name']
        for each in _list('resource', 'provider', 'trait', 'list', provider)
    }


def allocated(server: str) -> dict[str, dict[str, int]]:
    """Return what a server has: resource class and amount, by provider."""
    return {
        each['resource_provider']: each['resources']
        for each in _list('resource', 'provider', 'allocation', 'show', server)
    }


def _list(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = openstack(*arguments, '-f', 'json')
    return found
