# SPDX-License-Identifier: Apache-2.0

"""The accelerators that a flavor of Nova requests, without Cyborg.

The extra specs of a flavor form groups, as in Nova (ResourceRequest in
nova/scheduler/utils.py): ``resources1:CUSTOM_FPGA=1`` and
``trait1:CUSTOM_FPGA_AES=required`` are of group ``1``, and keys without a
suffix are of one more group.
"""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import re
import uuid

from os_acc import exception
from os_acc import objects
from os_acc.objects import device as device_objects
from os_acc.placement import inventory
from os_acc.placement import provider_config

_KEY = re.compile(r'(resources|trait|os_acc)([a-zA-Z0-9_-]{1,64})?:(.*)')

#: The keys of a group that say what to program, without ``os_acc`` and the
#: suffix of the group.
FUNCTION = 'function_id'
BITSTREAM = 'bitstream'


@dataclasses.dataclass
class Group:
    """One group of a flavor's extra specs.

    :ivar suffix: its suffix; empty for the group without one
    :ivar resources: the amounts by custom resource class
    :ivar traits: the required traits
    :ivar programs: what to program: FUNCTION and BITSTREAM
    """

    suffix: str
    resources: dict[str, int] = dataclasses.field(default_factory=dict)
    traits: set[str] = dataclasses.field(default_factory=set)
    programs: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Kind:
    """What the devices of one resource class have in common.

    :ivar traits: the traits of any of them
    :ivar programmable: whether any of them can be programmed
    """

    traits: set[str] = dataclasses.field(default_factory=set)
    programmable: bool = False


def groups(
    extra_specs: Mapping[str, str], image_traits: Iterable[str] = ()
) -> list[Group]:
    """Read the extra specs of a flavor.

    :param image_traits: the traits that the image requires (its property
        traits_required); they are of the group without a suffix
    :returns: the groups, sorted by suffix
    :raises InvalidRequest: if a key of os_acc is unknown
    """
    found: dict[str, Group] = {'': Group('', traits=set(image_traits))}
    for key, value in extra_specs.items():
        match = _KEY.fullmatch(key)
        if match is None:
            continue
        prefix, suffix, name = match[1], match[2] or '', match[3]
        group = found.setdefault(suffix, Group(suffix))
        if prefix == 'trait':
            if value == 'required':
                group.traits.add(name)
        elif prefix == 'os_acc':
            if name not in (FUNCTION, BITSTREAM):
                raise exception.InvalidRequest(
                    subject='flavor',
                    field=key,
                    # Not the value: it may be a URL with a password.
                    value='(given)',
                    expected=f'os_acc{suffix}:{FUNCTION} or '
                    f'os_acc{suffix}:{BITSTREAM}',
                )
            group.programs[name] = value
        elif inventory.CUSTOM.fullmatch(name) and (amount := _amount(value)):
            group.resources[name] = amount
    return [found[suffix] for suffix in sorted(found)]


def _amount(value: str) -> int:
    """An amount; 0 if it is none. Nova does not request such a value."""
    return int(value) if re.fullmatch('[0-9]+', str(value)) else 0


def amounts(asked: Iterable[Group]) -> collections.Counter[str]:
    """Add up what groups request, by custom resource class."""
    total: collections.Counter[str] = collections.Counter()
    for group in asked:
        total.update(group.resources)
    return total


def request_uuids(instance_uuid: str, number: int) -> list[str]:
    """List the UUIDs that the first requests of an instance have.

    :param number: how many accelerators its flavor requests
    """
    namespace = uuid.UUID(instance_uuid)
    return [
        str(uuid.uuid5(namespace, f'accelerator {position}'))
        for position in range(number)
    ]


def kinds(devices: Iterable[objects.Device]) -> dict[str, Kind]:
    """Sort devices by their custom resource class."""
    found: dict[str, Kind] = collections.defaultdict(Kind)
    for device in devices:
        if inventory.CUSTOM.fullmatch(device.resource_class):
            kind = found[device.resource_class]
            kind.traits |= inventory.traits_of(device)
            kind.programmable |= (
                device.programming != device_objects.PROGRAMMING_NONE
            )
    return dict(found)


def requests(
    instance_uuid: str,
    asked: Collection[Group],
    allocated: Mapping[str, int],
    devices: Iterable[objects.Device],
    published: provider_config.Published,
) -> list[objects.AcceleratorRequest]:
    """Make a selector for each accelerator of a flavor.

    A resource class does not belong to os-acc if no device and no
    provider.yaml of os-acc has it, such as a software licence. Nor does it if
    nothing is allocated from this compute node: then the instance has it from
    another resource provider.

    :param asked: see groups()
    :param allocated: what Placement has allocated to the instance from the
        resource provider of this compute node, by resource class
    :param devices: the devices of this host
    :param published: see provider_config.published()
    :returns: the selectors. A repeated call gives them the same UUIDs
    :raises InvalidRequest: if the flavor contradicts the allocation, or
        requests a function for nothing that can be programmed
    :raises DeviceNotFound: if no device of this host has a resource class or
        trait that the provider.yaml has
    """
    found = kinds(devices)
    ours = {
        name
        for name in found.keys() | published.classes
        if allocated.get(name, 0)
    }
    _check_amounts(instance_uuid, asked, allocated, ours)
    made: list[objects.AcceleratorRequest] = []
    for group in asked:
        wanted = sorted(group.resources.keys() & ours)
        _check_found(group, wanted, found, published)
        _check_programs(group, wanted, found)
        made += [
            _selector(instance_uuid, group, name, found[name])
            for name in _each(group, wanted)
        ]
    uuids = request_uuids(instance_uuid, len(made))
    for request, each in zip(made, uuids, strict=True):
        request.uuid = each
    return made


def _each(group: Group, wanted: Iterable[str]) -> Iterator[str]:
    for name in wanted:
        for _ in range(group.resources[name]):
            yield name


def _selector(
    instance_uuid: str, group: Group, name: str, kind: Kind
) -> objects.AcceleratorRequest:
    made = objects.AcceleratorRequest.partial(
        instance_uuid=instance_uuid,
        resource_class=name,
        # The others are traits of the host, or of devices of another class.
        traits=sorted(group.traits & kind.traits),
    )
    if kind.programmable:
        made.function_id = group.programs.get(FUNCTION)
        made.bitstream = group.programs.get(BITSTREAM)
    return made


def _check_amounts(
    instance_uuid: str,
    asked: Iterable[Group],
    allocated: Mapping[str, int],
    ours: Iterable[str],
) -> None:
    total = amounts(asked)
    for name in sorted(ours):
        if total[name] and total[name] != allocated[name]:
            raise exception.InvalidRequest(
                subject=f'instance {instance_uuid}',
                field=f'resources:{name} of its flavor',
                value=total[name],
                expected=f'{allocated[name]}, the amount that Placement has '
                'allocated on this host; if another provider of the host, '
                'such as a device of Cyborg, offers this resource class too, '
                'give it another one',
            )


def _check_found(
    group: Group,
    wanted: Collection[str],
    found: Mapping[str, Kind],
    published: provider_config.Published,
) -> None:
    """Check that what provider.yaml promised is still there."""
    for name in wanted:
        if name not in found:
            _not_found(f'resource class {name}')
    if not wanted:
        return
    traits: set[str] = set()
    traits.update(*(kind.traits for kind in found.values()))
    for trait in sorted((group.traits & published.traits) - traits):
        _not_found(f'{" or ".join(wanted)} with trait {trait}')


def _not_found(wanted: str) -> None:
    raise exception.DeviceNotFound(
        wanted=wanted,
        reason=f'{provider_config.FILE} offers it, but no device of this host '
        'has it. Run os-acc provider-config --install again, and restart '
        'nova-compute',
    )


def _check_programs(
    group: Group, wanted: Iterable[str], found: Mapping[str, Kind]
) -> None:
    for key, value in sorted(group.programs.items()):
        if not any(found[name].programmable for name in wanted):
            raise exception.InvalidRequest(
                subject='flavor',
                field=f'os_acc{group.suffix}:{key}',
                value='(given)' if key == BITSTREAM else value,
                expected=f'resources{group.suffix}: of a resource class whose '
                'devices on this host can be programmed',
            )
