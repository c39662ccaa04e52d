# SPDX-License-Identifier: Apache-2.0
"""Compares the VANs of this host with the ARQs that Cyborg has.

This module asks nobody and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

from os_acc import exception
from os_acc import journal
from os_acc import objects
from os_acc.objects import device as device_objects

BOUND = 'Bound'

#: The ARQ of a VAN does not exist any more.
ARQ_GONE = 'arq-gone'
#: As ARQ_GONE, and the handle of the VAN is bound to another ARQ.
HANDLE_REBOUND = 'handle-rebound'
#: The ARQ of a VAN is not bound, or not to the instance and handle of the VAN.
ARQ_DIFFERS = 'arq-differs'
#: The ARQ of a VAN is bound to another host.
OTHER_HOST = 'other-host'
#: The handle of a bound ARQ is that of a VAN of another request.
HANDLE_TAKEN = 'handle-taken'
#: No device of this host has the handle of a bound ARQ.
HANDLE_GONE = 'handle-gone'
#: The host uses the handle of a bound ARQ, or it is kept back.
HANDLE_UNUSABLE = 'handle-unusable'
#: A bound ARQ has values that os-acc does not understand.
ARQ_MALFORMED = 'arq-malformed'


@dataclasses.dataclass
class Difference:
    """Something that differs.

    :ivar problem: one of the constants above, or of os_acc.cyborg.check
    :ivar details: what is wrong: one or more sentences
    :ivar advice: what an operator can do
    :ivar van: the UUID of a VAN of this host
    :ivar arq: the UUID of an ARQ
    :ivar instance: the UUID of the instance of the VAN, else of the ARQ
    :ivar device: the identity of an attach handle, or the name of a resource
        provider
    :ivar fixed: whether it was repaired
    :ivar result: what the repair did, or why it was not done; None: no repair
        was wanted
    """

    problem: str
    details: str
    advice: str
    van: str | None = None
    arq: str | None = None
    instance: str | None = None
    device: str | None = None
    fixed: bool = False
    result: str | None = None


def is_of_arq(entry: journal.Entry) -> bool:
    """Say whether a VAN was plugged for an ARQ.

    A request that was made from an ARQ has its state, which is Bound. A
    selector has none.
    """
    return bool(entry.request.state == BOUND)


def compare(
    entries: Sequence[journal.Entry],
    holders: Mapping[str, journal.Holder],
    arqs: Iterable[Mapping[str, Any]],
    devices: Sequence[objects.Device] | None,
    host_name: str,
) -> list[Difference]:
    """List the differences between the VANs and the ARQs.

    :param holders: the VANs that have a handle, even unreadable ones, by the
        identity of the handle
    :param arqs: those of all hosts, in all states
    :param devices: the devices of this host; None: unknown, so that handles
        without a device are not found
    """
    return list(
        _Comparison(entries, holders, arqs, devices, host_name).differences()
    )


@dataclasses.dataclass(frozen=True)
class _BoundARQ:
    """A bound ARQ of this host."""

    uuid: str
    instance: str | None
    handle: objects.AttachHandle


class _Comparison:
    def __init__(
        self,
        entries: Sequence[journal.Entry],
        holders: Mapping[str, journal.Holder],
        arqs: Iterable[Mapping[str, Any]],
        devices: Sequence[objects.Device] | None,
        host_name: str,
    ) -> None:
        self._entries = list(filter(is_of_arq, entries))
        self._vans = {entry.van.uuid: entry.van for entry in entries}
        self._holders = holders
        self._arqs = {str(arq.get('uuid')): arq for arq in arqs}
        self._host = host_name
        self._handles = None if devices is None else _Handles(devices)
        self._malformed: list[Difference] = []
        self._mine = list(self._read())
        self._by_handle = {arq.handle.identity: arq for arq in self._mine}

    def _read(self) -> Iterator[_BoundARQ]:
        for uuid, arq in self._arqs.items():
            if arq.get('state') != BOUND or arq.get('hostname') != self._host:
                continue
            try:
                request = objects.AcceleratorRequest.from_arq(arq)
            except exception.InvalidRequest as err:
                self._malformed.append(
                    Difference(
                        ARQ_MALFORMED,
                        str(err),
                        "Delete the instance, or correct Cyborg's database",
                        arq=uuid,
                        instance=arq.get('instance_uuid'),
                    )
                )
            else:
                handle = request.handle
                assert handle is not None
                yield _BoundARQ(request.uuid, request.instance_uuid, handle)

    def differences(self) -> Iterator[Difference]:
        explained: set[str] = set()
        for entry in self._entries:
            found = self._of_van(entry)
            if found is not None:
                if found.problem == HANDLE_REBOUND and found.arq is not None:
                    explained.add(found.arq)
                yield found
        yield from self._malformed
        for arq in self._mine:
            if arq.uuid not in explained:
                yield from self._of_arq(arq)

    def _of_van(self, entry: journal.Entry) -> Difference | None:
        """Compare a VAN with its ARQ."""
        van = entry.van
        arq = self._arqs.get(van.uuid)
        if arq is None:
            return self._gone(entry)
        handle = _identity(entry)
        differs = []
        problem = ARQ_DIFFERS
        if arq.get('state') != BOUND:
            differs.append(f'its state is {arq.get("state")}')
        elif arq.get('hostname') != self._host:
            problem = OTHER_HOST
            differs.append(f'it is bound to host {arq.get("hostname")}')
        elif arq.get('instance_uuid') != van.instance_uuid:
            differs.append(f'it is bound to instance {arq["instance_uuid"]}')
        mine = [each for each in self._mine if each.uuid == van.uuid]
        if mine and handle != mine[0].handle.identity:
            differs.append(f'its handle is {mine[0].handle.identity}')
        if not differs:
            return None
        return Difference(
            problem,
            f'The VAN is {van.state}, but its ARQ has changed: '
            + ', and '.join(differs),
            _UNPLUG.format(instance=van.instance_uuid, van=van.uuid),
            van=van.uuid,
            arq=van.uuid,
            instance=van.instance_uuid,
            device=handle,
        )

    def _gone(self, entry: journal.Entry) -> Difference:
        van, handle = entry.van, _identity(entry)
        made = Difference(
            ARQ_GONE,
            f'The VAN is {van.state}, but its ARQ no longer exists',
            _UNPLUG.format(instance=van.instance_uuid, van=van.uuid),
            van=van.uuid,
            arq=van.uuid,
            instance=van.instance_uuid,
            device=handle,
        )
        new = self._by_handle.get(handle or '')
        if new is not None:
            made.problem, made.arq = HANDLE_REBOUND, new.uuid
            made.details += (
                f', and its handle is bound to ARQ {new.uuid} of instance '
                f'{new.instance}, which cannot be plugged'
            )
        return made

    def _of_arq(self, arq: _BoundARQ) -> Iterator[Difference]:
        """Look for who has the handle of a bound ARQ, and for its device."""
        handle = arq.handle.identity
        made = Difference(
            HANDLE_TAKEN,
            '',
            '',
            arq=arq.uuid,
            instance=arq.instance,
            device=handle,
        )
        holder = self._holders.get(handle)
        if holder is not None and holder.van_uuid != arq.uuid:
            made.van = holder.van_uuid
            made.details = (
                f'The handle of the ARQ belongs to VAN {holder.van_uuid} of '
                f'instance {holder.instance_uuid}'
            )
            made.advice = _UNPLUG.format(
                instance=holder.instance_uuid, van=holder.van_uuid
            )
            yield made
            return
        if self._handles is None:
            return
        problem, reason = self._handles.fault(arq.handle)
        if problem is not None:
            made.problem = problem
            made.details = f'The handle is bound to the ARQ, but {reason}'
            made.advice = (
                'Make it usable again, or delete the instance'
                if problem == HANDLE_UNUSABLE
                else 'Bring the device back, or delete the instance'
            )
            if arq.uuid in self._vans:
                made.van = arq.uuid
            yield made


_UNPLUG = (
    'If the instance no longer needs it: os-acc unplug {instance} --van {van}'
)


def _identity(entry: journal.Entry) -> str | None:
    handle = entry.van.handle or entry.request.handle
    return None if handle is None else str(handle.identity)


class _Handles:
    """The attach handles that the devices of this host have."""

    def __init__(self, devices: Sequence[objects.Device]) -> None:
        self._found = {
            each.handle.identity: each
            for device in devices
            for each in device.handles
        }
        self._types = {
            (device.address, kind.name)
            for device in devices
            for kind in device.mdev_types
        }
        self._has_test = any(
            isinstance(each.handle, objects.TestHandle)
            for each in self._found.values()
        )

    def fault(
        self, handle: objects.AttachHandle
    ) -> tuple[str | None, str | None]:
        """Say what is wrong with a handle: the problem, and the reason."""
        found = self._found.get(handle.identity)
        if found is None:
            if self._can_be(handle):
                return None, None
            return HANDLE_GONE, (
                'no device of this host that [os_acc] device_spec offers has '
                'it'
            )
        reason = f'it is not usable: {found.reason or found.state}'
        if found.state == device_objects.ABSENT:
            return HANDLE_GONE, reason
        if found.state in (device_objects.HOST, device_objects.RESERVED):
            return HANDLE_UNUSABLE, reason
        return None, None

    def _can_be(self, handle: objects.AttachHandle) -> bool:
        """Say whether a handle can be made, or belongs to no real device."""
        if isinstance(handle, objects.MdevHandle):
            return (handle.parent, handle.type) in self._types
        # The fake driver takes any test handle unless it discovers devices.
        return isinstance(handle, objects.TestHandle) and not self._has_test
