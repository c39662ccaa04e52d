# SPDX-License-Identifier: Apache-2.0

"""For Nova's scheduler: hosts and devices that have the function already.

Programming a device takes from seconds to minutes, and removes the function
that it has. So a flavor with ``os_acc:function_id`` goes to a host whose
device has this function, or else to one whose device has none.

A host has several allocation candidates, one for each device that could serve.
Nova takes the first one, so the best is put there. Nova asks its weighers only
if several hosts are left, but its filters always. So there are both.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import logging
from typing import Any

from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova.scheduler import filters
from nova.scheduler import weights
from nova.scheduler.client import report

import os_acc
from os_acc import exception
from os_acc.placement import flavor
from os_acc.placement import functions
from os_acc_nova import options as _options  # noqa: F401 (registers them)

LOG = logging.getLogger(__name__)

# GET /resource_providers takes traits from this microversion on.
_MICROVERSION = '1.18'

#: The weights of a device for one function.
PROGRAMMED, EMPTY, OTHER = 1.0, 0.5, 0.0


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """A function that a group of the flavor requests.

    :ivar classes: the resource classes of the group
    :ivar holders: the providers that have the function
    """

    classes: frozenset[str]
    holders: frozenset[str]


class FunctionWeigher(weights.BaseHostWeigher):
    """Prefers hosts that need not program a device, then empty devices."""

    minval = OTHER
    maxval = PROGRAMMED

    def weight_multiplier(self, host_state: Any) -> float:
        """How much this counts relative to Nova's other weighers."""
        chosen: float = os_acc.CONF.os_acc_nova.function_weight_multiplier
        return chosen

    def weigh_objects(
        self, weighed_obj_list: Iterable[Any], weight_properties: Any
    ) -> list[float]:
        """Weigh all hosts of a request.

        :param weight_properties: Nova's RequestSpec
        """
        return _weigh_all(
            [each.obj for each in weighed_obj_list], weight_properties
        )

    def _weigh_object(self, obj: Any, weight_properties: Any) -> float:
        """Nova's base class requires this method, which nobody calls."""
        raise NotImplementedError


class FunctionFilter(filters.BaseHostFilter):
    """Removes no host: it puts the best device of each host first."""

    def filter_all(
        self, filter_obj_list: Iterable[Any], spec_obj: Any
    ) -> list[Any]:
        """Sort the allocation candidates of all hosts of a request.

        :param spec_obj: Nova's RequestSpec
        """
        hosts = list(filter_obj_list)
        _weigh_all(hosts, spec_obj)
        return hosts


def _weigh_all(hosts: Sequence[Any], spec: Any) -> list[float]:
    """Sort the candidates of hosts; return the weight of each host."""
    try:
        wanted = _wanted(spec)
        empty = _holders(functions.EMPTY) if wanted else frozenset()
    except (exception.ExceptionBase, keystone.ClientException) as err:
        LOG.error('Functions of devices are not weighed: %s', err)
        wanted = []
    if not wanted:
        return [OTHER] * len(hosts)
    return [_weigh(host, wanted, empty) for host in hosts]


def _weigh(
    host: Any, wanted: Sequence[_Wanted], empty: frozenset[str]
) -> float:
    """Sort the candidates of a host; return the weight of the best one."""

    def weight(candidate: dict[str, Any]) -> float:
        return _weight(candidate, wanted, empty)

    host.allocation_candidates.sort(key=weight, reverse=True)
    return max(map(weight, host.allocation_candidates), default=OTHER)


def _weight(
    candidate: dict[str, Any],
    wanted: Sequence[_Wanted],
    empty: frozenset[str],
) -> float:
    """The mean of what the candidate offers for each function."""
    found = []
    for each in wanted:
        providers = {
            uuid
            for uuid, allocation in candidate['allocations'].items()
            if each.classes & allocation['resources'].keys()
        }
        if providers & each.holders:
            found.append(PROGRAMMED)
        else:
            found.append(EMPTY if providers & empty else OTHER)
    return sum(found) / len(found)


def _wanted(spec: Any) -> list[_Wanted]:
    """Read which functions the flavor of a request names.

    :raises InvalidRequest: see flavor.groups()
    """
    return [
        _Wanted(
            frozenset(group.resources),
            _holders(functions.trait(group.programs[flavor.FUNCTION])),
        )
        for group in flavor.groups(spec.flavor.extra_specs)
        if flavor.FUNCTION in group.programs
    ]


def _holders(trait: str) -> frozenset[str]:
    """The UUIDs of the providers of all hosts that have a trait.

    A trait that no provider ever had is unknown to Placement, and refused.
    """
    answer = report.report_client_singleton().get(
        f'/resource_providers?required={trait}',
        version=_MICROVERSION,
        global_request_id=nova_context.get_admin_context().global_id,
    )
    if answer.status_code != 200:
        LOG.debug('No provider has %s: %s', trait, answer.text)
        return frozenset()
    found = answer.json()['resource_providers']
    return frozenset(each['uuid'] for each in found)
