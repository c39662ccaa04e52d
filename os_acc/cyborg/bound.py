# SPDX-License-Identifier: Apache-2.0
"""Which attach handles of this host Cyborg has bound to ARQs."""

from __future__ import annotations

from collections.abc import Collection
import dataclasses
import json
from typing import Any

from os_acc import exception
from os_acc.cyborg import api as api_module
from os_acc.cyborg import names
from os_acc.cyborg import report

BOUND = 'Bound'
# ARQs in these states may have an attach handle, which the API does not show:
# a handle is allocated before the ARQ is Bound, and stays when that fails.
_STARTED = 'BindStarted'
_PENDING = (_STARTED, 'BindFailed', 'UnbindFailed', 'Deleting')


@dataclasses.dataclass(frozen=True)
class ARQ:
    """A bound ARQ."""

    uuid: str
    instance_uuid: str | None
    handle: report.Handle


@dataclasses.dataclass(frozen=True)
class Bound:
    """What is bound on this host.

    :ivar arqs: by the name of the deployable and the key of the handle
    :ivar pending: the deployables that may have a bound handle
    :ivar deployables: those of os-acc with ARQs on this host, by name, as
        Cyborg's API shows them
    :ivar started: the UUID of an ARQ that is being bound, by the name of its
        deployable
    :ivar counts: num_accelerators of each deployable of os-acc that Cyborg has
        for this host, by name
    """

    arqs: dict[tuple[str, str], ARQ]
    pending: frozenset[str]
    deployables: dict[str, dict[str, Any]]
    started: dict[str, str] = dataclasses.field(default_factory=dict)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)

    def of(self, deployable: str) -> list[ARQ]:
        """List the bound ARQs of a deployable."""
        return [
            arq for (name, _), arq in self.arqs.items() if name == deployable
        ]

    def keeps(self, deployable: str, key: str) -> bool:
        """Say whether a handle is bound, or may be."""
        return deployable in self.pending or (deployable, key) in self.arqs

    def uses(self, deployable: str) -> bool:
        """Say whether any handle of a deployable is bound, or may be."""
        return deployable in self.pending or bool(self.of(deployable))


NOTHING = Bound({}, frozenset(), {})


def ask(
    api: api_module.API,
    host: str,
    hosts: Collection[str],
    alone: bool = False,
) -> Bound:
    """Ask Cyborg what is bound on this host.

    :param host: [DEFAULT] host of Cyborg
    :param hosts: the names that this host has in ARQs
    :param alone: the agent has no other driver than os-acc's
    """
    if not api.sees_all():
        raise _wrong(
            "the user in the agent's configuration is not an administrator, "
            'and would not see the ARQs of all projects'
        )
    # In this order: an ARQ that is bound in between then does not count as one
    # of an unknown deployable.
    arqs = [each for each in api.arqs() if each.get('hostname') in hosts]
    ours = {
        each.get('rp_uuid'): each
        for each in api.deployables()
        if each.get('driver_name') == names.DRIVER
    }
    found: dict[tuple[str, str], ARQ] = {}
    pending: set[str] = set()
    used: dict[str, dict[str, Any]] = {}
    started: dict[str, str] = {}
    for arq in arqs:
        deployable = ours.get(arq.get('device_rp_uuid'))
        if deployable is None:
            if alone and arq.get('state') in (BOUND, *_PENDING):
                raise _wrong(
                    f'ARQ {arq.get("uuid")} of instance '
                    f'{arq.get("instance_uuid")} has a device that another '
                    'driver of the agent reported. Cyborg would delete the '
                    'device. Add that driver to [agent] enabled_drivers until '
                    'the instance is deleted'
                )
            continue  # it is another driver's
        name = str(deployable['name'])
        if arq.get('state') == BOUND:
            try:
                handle = report.of_arq(arq)
            except ValueError as err:
                raise _wrong(str(err)) from err
            found[name, handle.key] = ARQ(
                str(arq['uuid']), arq.get('instance_uuid'), handle
            )
        elif arq.get('state') in _PENDING:
            pending.add(name)
            if arq.get('state') == _STARTED:
                started[name] = str(arq.get('uuid'))
        else:
            continue
        used[name] = deployable
    start = names.deployable(host, '')
    counts = {
        str(each['name']): each.get('num_accelerators') or 0
        for each in ours.values()
        if str(each['name']).startswith(start)
    }
    return Bound(found, frozenset(pending), used, started, counts)


def check_started(bound: Bound, made: report.Report) -> None:
    """Check that a report has the handles of all ARQs that are being bound.

    Cyborg does not show which handle such an ARQ has.

    :raises RemoteServiceError: if the report may lack one. Nothing may be
        reported then
    """
    there = {each.name: each for _, each in report.deployables(made)}
    for name, uuid in sorted(bound.started.items()):
        part, count = there.get(name), bound.counts.get(name, 0)
        if part is not None and (part.shared or len(part.handles) >= count):
            continue
        raise _wrong(
            f'ARQ {uuid} is {_STARTED}, and its attach handle may be one of '
            f'deployable {name} that is gone. Nothing is reported until the '
            'bind has ended'
        )


def still(api: api_module.API, arq: ARQ) -> bool:
    """Ask Cyborg whether an ARQ is still bound to its handle."""
    there = api.arq(arq.uuid)
    if there is None or there.get('state') != BOUND:
        return False
    try:
        return report.of_arq(there).key == arq.handle.key
    except ValueError:
        return False


def rebuilt(
    api: api_module.API,
    bound: Bound,
    present: report.Report,
    host: str,
    hosts: Collection[str],
) -> report.Report:
    """Rebuild what an earlier process reported, as far as it is bound."""
    made: report.Report = {}
    recorded: report.Report | None = None
    for name, deployable in sorted(bound.deployables.items()):
        arqs = bound.of(name)
        if not arqs:
            continue
        device = _device_of(name, host, present)
        if device is None:
            if recorded is None:
                recorded = _recorded(api, hosts)
            device = _device_of(name, host, recorded)
        if device is None:
            raise _wrong(
                f'it shows no device of the deployable {name}, which has '
                f'ARQ {arqs[0].uuid}'
            )
        own = made.setdefault(
            device.address, dataclasses.replace(device, deployables={})
        )
        resource_class, traits = _attributes(deployable)
        parts = {
            **own.deployables,
            name: report.Deployable(
                name,
                resource_class,
                traits,
                {arq.handle.key: arq.handle for arq in arqs},
                len(arqs),
                arqs[0].handle.type == report.MDEV,
            ),
        }
        made[device.address] = dataclasses.replace(own, deployables=parts)
    return made


def _device_of(
    deployable: str, host: str, devices: report.Report
) -> report.Device | None:
    """Find the device of a deployable by the name."""
    fits = [
        device
        for address, device in devices.items()
        if f'{deployable}_'.startswith(f'{names.deployable(host, address)}_')
    ]
    return max(fits, key=lambda each: len(each.address), default=None)


def _recorded(api: api_module.API, hosts: Collection[str]) -> report.Report:
    """The devices that Cyborg has recorded for os-acc on this host."""
    made = {}
    for each in api.devices():
        address = report.address_in(each.get('vendor_board_info'))
        if address is not None and each.get('hostname') in hosts:
            made[address] = report.Device(
                address,
                str(each['type']),
                str(each['vendor']),
                str(each['model']),
                str(each['std_board_info']),
                str(each['vendor_board_info']),
                {},
            )
    return made


def _attributes(deployable: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The resource class and the traits of a deployable."""
    resource_class, traits = '', []
    try:
        for each in json.loads(deployable['attributes_list']):
            for key, value in each.items():
                if key == 'rc':
                    resource_class = value
                else:
                    traits.append(value)
    except (AttributeError, KeyError, TypeError, ValueError):
        resource_class = ''
    if not resource_class:
        raise _wrong(
            f'it shows no resource class of deployable {deployable["name"]}'
        )
    return resource_class, tuple(sorted(traits))


def _wrong(reason: str) -> exception.RemoteServiceError:
    return exception.RemoteServiceError(service='accelerator', reason=reason)
