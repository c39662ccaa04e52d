# SPDX-License-Identifier: Apache-2.0

"""What the target host of a migration must give: written, and read again.

The source writes the document, and the target reads it. It comes over a
network, so that each value is checked like any other input.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import functools
import importlib.resources
import json
from typing import Any

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import objects
from os_acc import schemas
from os_acc.attach import plan
from os_acc.bitstreams import reference
from os_acc.objects import van as states

VERSION = 1

_SUBJECT = 'description'
# What a request keeps on another host. The device that it names does not.
_KEPT = (
    'resource_class',
    'traits',
    'driver',
    'function_id',
    'bitstream',
    'port_uuid',
)


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """An accelerator that the target must give.

    :ivar driver: the driver that must give it
    :ivar handle_type: the class of its attach handle
    :ivar mdev_type: the type of a mediated device. The hypervisor compares
        none, and another one fails in the middle of a migration
    """

    request: objects.AcceleratorRequest
    driver: str
    handle_type: str
    mdev_type: str | None

    def check(self, van: objects.VAN) -> None:
        """Check what a driver of the target has prepared.

        :raises MigrationConflict: if the guest cannot go on with it
        """
        wanted = (self.driver, self.handle_type, self.mdev_type)
        found = (van.driver, *_handle_of(van))
        for name, old, new in zip(
            ('driver', 'handle', 'mdev type'), wanted, found, strict=True
        ):
            if old != new:
                raise exception.MigrationConflict(
                    instance=van.instance_uuid,
                    reason=f'VAN {van.uuid}: the {name} is {new} on this '
                    f'host, and {old} on the source',
                )


@functools.cache
def schema() -> dict[str, Any]:
    """The JSON schema of a description."""
    file = importlib.resources.files('os_acc.moving') / 'schema.json'
    found: dict[str, Any] = json.loads(file.read_text(encoding='utf-8'))
    return found


def describe(
    host: host_module.Host, instance_info: objects.InstanceInfo
) -> dict[str, Any]:
    """See os_acc.migration.describe."""
    plan.check_instance(instance_info)
    uuid = instance_info.uuid
    plan.check_readable(host, uuid)
    entries = host.journal.entries(uuid)
    if not entries:
        raise exception.MigrationConflict(
            instance=uuid, reason='it has no accelerators on this host'
        )
    for entry in entries:
        if entry.van.state not in (states.PLUGGED, states.OUTGOING):
            raise exception.MigrationConflict(
                instance=uuid,
                reason=f'VAN {entry.van.uuid} is {entry.van.state}, expected '
                'plugged',
            )
    accelerators = [_accelerator(host, entry) for entry in entries]
    ways = [each['way'] for each in accelerators]
    return {
        'version': VERSION,
        'instance_uuid': uuid,
        'way': max(ways, key=driver_base.WAYS.index),
        'accelerators': accelerators,
    }


def read(document: Any, instance_uuid: str) -> list[Accelerator]:
    """Check a description, and make the requests for the target.

    :param instance_uuid: the instance that it must be of
    :raises InvalidRequest: if it is wrong; the error names the key and the
        value, and what was expected
    """
    schemas.check(schema(), document, lambda keys: _SUBJECT)
    if document['instance_uuid'] != instance_uuid:
        raise exception.InvalidRequest(
            subject=_SUBJECT,
            field='instance_uuid',
            value=document['instance_uuid'],
            expected=f'{instance_uuid}, the instance to prepare',
        )
    return [
        _read(each, ['accelerators', number])
        for number, each in enumerate(document['accelerators'])
    ]


def _accelerator(
    host: host_module.Host, entry: journal.Entry
) -> dict[str, Any]:
    van = entry.van
    driver = host.extensions.driver(van.driver)
    request = _request(driver, van, entry.request)
    handle_type, mdev_type = _handle_of(van)
    return {
        'uuid': van.uuid,
        'driver': van.driver,
        'handle_type': handle_type,
        'mdev_type': mdev_type,
        'way': _way(host, driver, van),
        'live_migratable': van.live_migratable,
        'left_behind': driver.left_behind(van),
        'obstacle': _obstacle(request),
        'request': request,
    }


def _request(
    driver: driver_base.DriverBase,
    van: objects.VAN,
    asked: objects.AcceleratorRequest,
) -> dict[str, Any]:
    """What is asked of the target; only what is set."""
    found = {name: getattr(asked, name) for name in _KEPT}
    if asked.handle is not None:
        # Another host has another handle: any device of the same class.
        for device in driver.get_devices():
            if device.address == van.device:
                found['resource_class'] = device.resource_class
                found['traits'] = list(device.traits)
    if asked.port is not None:
        found['port'] = {
            name: value
            for name in asked.port.fields
            if (value := getattr(asked.port, name)) is not None
        }
    if asked.physical_network is not None:
        found.setdefault('port', {})['physical_network'] = (
            asked.physical_network
        )
    return {name: value for name, value in found.items() if value}


def _obstacle(request: Mapping[str, Any]) -> str | None:
    """Why an accelerator cannot move; None: nothing is in the way."""
    bitstream = request.get('bitstream')
    if bitstream is not None:
        found = reference.parse(bitstream)
        if isinstance(found, reference.Web) and found.is_masked:
            return (
                'the URL of its bitstream has a secret, which the journal '
                'does not keep'
            )
    if not request.get('resource_class') and not request.get('driver'):
        return 'its request names a device of this host, of no known class'
    return None


def _way(
    host: host_module.Host,
    driver: driver_base.DriverBase,
    van: objects.VAN,
) -> str:
    """The best way in which a VAN can move."""
    way = driver.moves
    if way == driver_base.LIVE and van.live_migratable is False:
        way = driver_base.REPLUG
    plugin = host.extensions.plugin(van.plugin)
    if way != driver_base.COLD and not plugin.supports_live:
        way = driver_base.COLD
    return way


def _handle_of(van: objects.VAN) -> tuple[str | None, str | None]:
    """The class of a VAN's handle, and the type of its mediated device."""
    if van.handle is None:
        return None, None
    mdev_type = None
    if isinstance(van.handle, objects.MdevHandle):
        mdev_type = van.handle.type
    return van.handle.obj_name(), mdev_type


def _read(found: Mapping[str, Any], keys: list[str | int]) -> Accelerator:
    values = dict(found['request'])
    inside = [*keys, 'request']
    if 'port' in values:
        with _named([*inside, 'port']):
            values['port'] = objects.PortBinding(**values['port'])
            values['port'].settings()
    with _named(keys):
        request = objects.AcceleratorRequest(uuid=found['uuid'])
    with _named(inside):
        for name, value in values.items():
            setattr(request, name, value)
        if request.bitstream is not None:
            reference.parse(request.bitstream)
    return Accelerator(
        request, found['driver'], found['handle_type'], found.get('mdev_type')
    )


@contextlib.contextmanager
def _named(keys: list[str | int]) -> Iterator[None]:
    """Name the whole key in the error of an object."""
    try:
        yield
    except exception.InvalidRequest as err:
        raise exception.InvalidRequest(
            **{
                **err.kwargs,
                'subject': _SUBJECT,
                'field': schemas.named([*keys, err.kwargs['field']]),
            }
        ) from err
