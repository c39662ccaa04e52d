# SPDX-License-Identifier: Apache-2.0

"""Requests for the very devices that Placement has allocated.

An allocation names the provider, and so the device. It does not say for which
group of the flavor a provider was chosen; see _assign().
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import itertools

from os_acc import exception
from os_acc import objects
from os_acc.kinds.mdev.driver import driver as mdev
from os_acc.objects import device as device_objects
from os_acc.placement import flavor
from os_acc.placement import inventory

#: What Placement has allocated to an instance, by place (see
#: inventory.place()) and resource class.
Allocated = Mapping[str, Mapping[str, int]]


@dataclasses.dataclass(frozen=True)
class _Need:
    """What one group requests of one resource class.

    Placement takes all of it from one provider.

    :ivar uuids: those of the requests, one for each unit
    """

    group: flavor.Group
    name: str
    uuids: Sequence[str]

    @property
    def amount(self) -> int:
        return len(self.uuids)


def requests(
    instance_uuid: str,
    asked: Collection[flavor.Group],
    allocated: Allocated,
    offered: Mapping[str, inventory.Provider],
    vans: Mapping[str, objects.VAN],
    taken: Collection[str] = (),
) -> list[objects.AcceleratorRequest]:
    """Make a request for each accelerator of a flavor.

    :param asked: see flavor.groups()
    :param offered: see inventory.providers()
    :param vans: those that the instance has, by UUID. Each keeps its handle
    :param taken: the identities of free handles that must not be chosen
    :returns: the requests. Each names its handle, unless the driver reports
        only how many handles its device has
    """
    for place in sorted(allocated.keys() - offered.keys()):
        raise _gone(place, allocated[place])
    allocated_classes = {name for each in allocated.values() for name in each}
    _check_amounts(instance_uuid, asked, allocated, allocated_classes)
    needs = _needs(instance_uuid, asked, allocated_classes)
    places = _assign(instance_uuid, needs, allocated, offered, vans)
    _check_programs(asked, needs, places, offered)
    used = {each.handle.identity for each in vans.values() if each.handle}
    used.update(taken)
    made = []
    for need, place in zip(needs, places, strict=True):
        for uuid in need.uuids:
            request = _request(
                uuid, need, place, offered[place].parts, vans.get(uuid), used
            )
            request.instance_uuid = instance_uuid
            made.append(request)
    return made


def _needs(
    instance_uuid: str,
    asked: Collection[flavor.Group],
    allocated_classes: Collection[str],
) -> list[_Need]:
    named = [
        (group, name)
        for group in asked
        for name in sorted(group.resources.keys() & allocated_classes)
    ]
    total = sum(group.resources[name] for group, name in named)
    uuids = iter(flavor.request_uuids(instance_uuid, total))
    return [
        _Need(
            group,
            name,
            list(itertools.islice(uuids, group.resources[name])),
        )
        for group, name in named
    ]


def _check_amounts(
    instance_uuid: str,
    asked: Collection[flavor.Group],
    allocated: Allocated,
    allocated_classes: Collection[str],
) -> None:
    total = flavor.amounts(asked)
    for name in sorted(allocated_classes):
        amount = sum(each.get(name, 0) for each in allocated.values())
        if total[name] != amount:
            raise exception.InvalidRequest(
                subject=f'instance {instance_uuid}',
                field=f'resources:{name} of its flavor',
                value=total[name],
                expected=f'{amount}, the amount that Placement has allocated '
                "from os-acc's devices on this host; if another provider of "
                'the host, such as a device of Cyborg, offers this resource '
                'class too, give it another one',
            )


def _assign(
    instance_uuid: str,
    needs: Sequence[_Need],
    allocated: Allocated,
    offered: Mapping[str, inventory.Provider],
    vans: Mapping[str, objects.VAN],
) -> list[str]:
    """Find the place of each need, so that all of the allocation is used.

    The traits of a group may be those of another provider of the allocation if
    the group has no suffix, and a trait that a deployer has set is unknown
    here. So a solution with all known traits is tried first, and then any
    other. What is plugged stays where it is.
    """
    known = {t for each in offered.values() for t in each.traits}

    def fits(need: _Need, place: str) -> bool:
        addresses = {part.device.address for part in offered[place].parts}
        return need.group.traits & known <= offered[place].traits and all(
            vans[uuid].device in addresses
            for uuid in need.uuids
            if uuid in vans
        )

    for wanted in (fits, lambda need, place: True):
        left = {place: dict(each) for place, each in allocated.items()}
        found = _search(needs, left, wanted)
        if found is not None:
            return found
    raise exception.InvalidRequest(
        subject=f'instance {instance_uuid}',
        field='resources of its flavor',
        value=[f'{need.name}={need.amount}' for need in needs],
        expected='amounts that fit what Placement has allocated: '
        + '; '.join(
            f'{place}: {dict(each)}'
            for place, each in sorted(allocated.items())
        ),
    )


def _search(
    needs: Sequence[_Need],
    left: Mapping[str, dict[str, int]],
    fits: Callable[[_Need, str], bool],
) -> list[str] | None:
    """Find a place for each need by trying; None: there is no solution.

    :param left: what is left of the allocation; it is as before afterwards
    """
    if not needs:
        return []
    need, *others = needs
    for place in sorted(left):
        amounts = left[place]
        if amounts.get(need.name, 0) < need.amount or not fits(need, place):
            continue
        amounts[need.name] -= need.amount
        rest = _search(others, left, fits)
        amounts[need.name] += need.amount
        if rest is not None:
            return [place, *rest]
    return None


def _check_programs(
    asked: Collection[flavor.Group],
    needs: Sequence[_Need],
    places: Sequence[str],
    offered: Mapping[str, inventory.Provider],
) -> None:
    """Check that a function is requested for what can be programmed."""
    able = {
        need.group.suffix
        for need, place in zip(needs, places, strict=True)
        if any(_is_programmable(part) for part in offered[place].parts)
    }
    for group in asked:
        for key, value in sorted(group.programs.items()):
            if group.suffix not in able:
                raise exception.InvalidRequest(
                    subject='flavor',
                    field=f'os_acc{group.suffix}:{key}',
                    value='(given)' if key == flavor.BITSTREAM else value,
                    expected=f'resources{group.suffix}: of a resource class '
                    'whose devices on this host can be programmed',
                )


def _is_programmable(part: inventory.Part) -> bool:
    return bool(part.device.programming != device_objects.PROGRAMMING_NONE)


def _request(
    uuid: str,
    need: _Need,
    place: str,
    parts: Sequence[inventory.Part],
    van: objects.VAN | None,
    used: set[str],
) -> objects.AcceleratorRequest:
    """Make a request for one unit of a need.

    :param van: the one that is plugged for it already
    :param used: the identities of handles that are taken; the one that is
        chosen is added
    """
    of_class = [p for p in parts if p.device.resource_class == need.name]
    able = {t for part in of_class for t in inventory.traits_of(part.device)}
    # The others are traits of the host, or set by a deployer.
    traits = need.group.traits & able
    for part in of_class:
        if not traits <= inventory.traits_of(part.device):
            continue
        handles = (
            [van.handle] if van is not None else _free(uuid, part, traits)
        )
        for handle in handles:
            if van is None and handle is not None:
                if handle.identity in used:
                    continue
                used.add(handle.identity)
            return _made(uuid, need, part, handle, traits)
    raise exception.DeviceNotFound(
        wanted=f'resource class {need.name} on device {place}',
        reason=_why(of_class),
    )


def _made(
    uuid: str,
    need: _Need,
    part: inventory.Part,
    handle: objects.AttachHandle | None,
    traits: Collection[str],
) -> objects.AcceleratorRequest:
    made = objects.AcceleratorRequest.partial(
        uuid=uuid,
        resource_class=need.name,
        traits=sorted(traits),
        driver=part.device.driver,
        handle=handle,
    )
    if _is_programmable(part):
        made.function_id = need.group.programs.get(flavor.FUNCTION)
        made.bitstream = need.group.programs.get(flavor.BITSTREAM)
    return made


def _free(
    uuid: str, part: inventory.Part, traits: Collection[str]
) -> Iterator[objects.AttachHandle | None]:
    """The free handles of a part; None: the driver chooses one itself."""
    device = part.device
    if device.mdev_types:
        for kind in inventory.mdev_types(device):
            others = {
                mdev.type_trait(each.name)
                for each in device.mdev_types
                if each is not kind
            }
            if kind.available and not others & set(traits):
                yield objects.MdevHandle(
                    uuid=uuid, parent=device.address, type=kind.name
                )
    elif not device.handles:
        yield None
    for each in part.handles:
        if each.state == device_objects.FREE and not device.mdev_types:
            yield each.handle


def _why(parts: Sequence[inventory.Part]) -> str:
    reasons = [
        f'{each.handle.identity}: {each.reason or each.state}'
        for part in parts
        for each in part.handles
        if each.state != device_objects.FREE
    ]
    return '; '.join(reasons) or 'it has no free handle of this class'


def _gone(place: str, amounts: Mapping[str, int]) -> exception.DeviceNotFound:
    return exception.DeviceNotFound(
        wanted=' and '.join(f'resource class {n}' for n in sorted(amounts))
        + f' on device {place}',
        reason='Placement has allocated it, but this host has no such device '
        'now',
    )
