# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Accelerators that a flavor requests without Cyborg, and Placement places."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

import nova.conf

from os_acc import nova as calls
from os_acc import objects

CONF = nova.conf.CONF


def to_requests(
    instance: Any,
    image_meta: Any,
    allocations: Mapping[str, Any] | None,
    nodes: Callable[[], Collection[str]],
) -> list[objects.AcceleratorRequest]:
    """Make requests for what a flavor requests of os-acc's devices.

    :param image_meta: Nova's ImageMeta
    :param allocations: the allocations of the instance, by the UUID of the
        resource provider, as Nova gives them to its driver. During an
        evacuation, the allocations on the source host are among them
    :param nodes: returns the UUIDs of the compute nodes of this host. The
        devices of os-acc are inventory of these nodes. Nova and Cyborg report
        their own devices as other resource providers
    :raises InvalidRequest, DeviceNotFound, DiscoveryFailed: see
        os_acc.nova.allocated_requests
    """
    custom = {
        provider: allocation['resources']
        for provider, allocation in (allocations or {}).items()
        if any(name.startswith('CUSTOM_') for name in allocation['resources'])
    }
    if not custom:
        return []
    allocated: collections.Counter[str] = collections.Counter()
    for provider in custom.keys() & set(nodes()):
        allocated.update(custom[provider])
    if not allocated:
        return []
    return calls.allocated_requests(
        instance,
        allocated,
        image_meta.properties.get('traits_required', []),
        CONF.compute.provider_config_location,
    )
