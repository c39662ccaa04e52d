# SPDX-License-Identifier: Apache-2.0

"""What the target host of a migration must provide: written and read.

The source writes the plan, and the target reads it. It comes over a network,
so that each value is checked like any other input.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import re
from typing import Any
from typing import NoReturn
from typing import TypeVar

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import objects
from os_acc import schemas
from os_acc.attach import plan
from os_acc.bitstreams import reference
from os_acc.objects import base
from os_acc.objects import van as states

MAX_ACCELERATORS = 256
# The longest list and the longest text in a plan, which may come from a host
# that is not to be trusted.
_LONGEST_LIST = 256
_LONGEST_TEXT = 4096

# What a request keeps on another host. The device that it names does not.
_KEPT = (
    'resource_class',
    'traits',
    'driver',
    'function_id',
    'bitstream',
    'port_uuid',
)

_Keys = list[str | int]
_Object = TypeVar('_Object', bound=base.VersionedObject)


def describe(
    host: host_module.Host, instance_info: objects.InstanceInfo
) -> objects.MigrationPlan:
    """See os_acc.migration.describe."""
    accelerators = [
        _accelerator(host, entry) for entry in source(host, instance_info)
    ]
    ways = [each.way for each in accelerators]
    return objects.MigrationPlan(
        instance_uuid=instance_info.uuid,
        way=max(ways, key=driver_base.WAYS.index),
        obstacles=[
            f'VAN {each.uuid}: {each.obstacle}'
            for each in accelerators
            if each.obstacle is not None
        ],
        accelerators=accelerators,
    )


def source(
    host: host_module.Host, instance_info: objects.InstanceInfo
) -> list[journal.Entry]:
    """What an instance has on the source, before or after the hand-over."""
    plan.check_instance(instance_info)
    uuid = instance_info.uuid
    plan.check_readable(host, uuid)
    entries = host.journal.entries(uuid)
    for entry in entries:
        if (name := entry.instance_info.host_service) is not None:
            raise exception.MigrationConflict(
                instance=name, reason='it is a service of this host'
            )
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
    return entries


def read(
    source_plan: Any, instance_uuid: str
) -> list[objects.MigrationAccelerator]:
    """Check a plan.

    :param source_plan: a MigrationPlan, or its primitive
    :raises InvalidRequest: if it is wrong; the error names the field and the
        value, and what was expected
    """
    if isinstance(source_plan, objects.MigrationPlan):
        source_plan = source_plan.obj_to_primitive()
    made = _read(objects.MigrationPlan, source_plan, ['plan'])
    if made.instance_uuid != instance_uuid:
        _refuse(
            ['plan', 'instance_uuid'],
            made.instance_uuid,
            f'{instance_uuid}, the instance to prepare',
        )
    for number, each in enumerate(made.accelerators):
        _check_accelerator(each, ['plan', 'accelerators', number])
    if made.obstacles:
        _refuse(['plan', 'obstacles'], made.obstacles, 'none')
    return made.accelerators


def chosen(
    wanted: Sequence[objects.MigrationAccelerator],
    requests: Sequence[objects.AcceleratorRequest] | None,
) -> list[objects.AcceleratorRequest]:
    """What to prepare for each accelerator, in the order of the plan.

    :param requests: what the caller has chosen; None: what the plan asks for
    """
    if requests is None:
        return [each.request for each in wanted]
    if (
        isinstance(requests, str | bytes | Mapping)
        or not isinstance(requests, Sequence)
        or not all(isinstance(e, objects.AcceleratorRequest) for e in requests)
    ):
        _refuse(
            ['requests'],
            requests,
            'a list of os_acc.objects.AcceleratorRequest',
        )
    by_uuid = {each.uuid: each for each in requests}
    uuids = [each.uuid for each in wanted]
    if sorted(by_uuid) != sorted(uuids) or len(by_uuid) != len(requests):
        _refuse(
            ['requests'],
            [each.uuid for each in requests],
            f'one with each UUID of the plan: {", ".join(uuids)}',
        )
    return [by_uuid[uuid] for uuid in uuids]


def check_prepared(
    wanted: objects.MigrationAccelerator, van: objects.VAN
) -> None:
    """Check what a driver of the target has prepared.

    :raises MigrationConflict: if the guest cannot go on with it
    """
    for name, old, new in zip(
        ('driver', 'handle', 'mdev type'),
        (wanted.driver, wanted.handle_type, wanted.mdev_type),
        (van.driver, *_handle_of(van)),
        strict=True,
    ):
        if old != new:
            raise exception.MigrationConflict(
                instance=van.instance_uuid,
                reason=f'VAN {van.uuid}: the {name} is {new} on this '
                f'host, and {old} on the source',
            )


def _accelerator(
    host: host_module.Host, entry: journal.Entry
) -> objects.MigrationAccelerator:
    van = entry.van
    driver = host.extensions.driver(van.driver)
    request = _request(driver, van, entry.request)
    handle_type, mdev_type = _handle_of(van)
    return objects.MigrationAccelerator(
        uuid=van.uuid,
        driver=van.driver,
        handle_type=handle_type,
        mdev_type=mdev_type,
        way=_way(host, driver, van),
        live_migratable=van.live_migratable,
        left_behind=driver.left_behind(van),
        obstacle=_obstacle(request),
        request=request,
    )


def _request(
    driver: driver_base.DriverBase,
    van: objects.VAN,
    asked: objects.AcceleratorRequest,
) -> objects.AcceleratorRequest:
    """What is asked of the target; only what is set."""
    found = {name: getattr(asked, name) for name in _KEPT}
    if asked.handle is not None:
        # Another host has another handle: any device of the same class.
        for device in driver.get_devices():
            if device.address == van.device:
                found['resource_class'] = device.resource_class
                found['traits'] = list(device.traits)
    if asked.port is not None:
        found['port'] = asked.port.obj_clone()
    if asked.physical_network is not None:
        found.setdefault('port', objects.PortBinding())
        found['port'].physical_network = asked.physical_network
    return objects.AcceleratorRequest(
        uuid=van.uuid,
        **{name: value for name, value in found.items() if value},
    )


def _obstacle(request: objects.AcceleratorRequest) -> str | None:
    """Why an accelerator cannot move; None: nothing is in the way."""
    if request.bitstream is not None:
        found = reference.parse(request.bitstream)
        if isinstance(found, reference.Web) and found.is_masked:
            return (
                'the URL of its bitstream has a secret, which the journal '
                'does not keep'
            )
    if not request.resource_class and not request.driver:
        return 'its request names a device of this host, of no known class'
    return None


def _way(
    host: host_module.Host,
    driver: driver_base.DriverBase,
    van: objects.VAN,
) -> str:
    """The best way in which a VAN can move.

    A guest moves live only with a device whose state the kernel can save, and
    if the plugin knows what changes in its definition.
    """
    way = driver.moves
    plugin = host.extensions.plugin(van.plugin)
    if way == driver_base.LIVE and not (
        van.live_migratable
        and driver.left_behind(van) is None
        and plugin.migration_map([van], [van]) is not None
    ):
        way = driver_base.REPLUG
    if way != driver_base.COLD and not plugin.supports_live:
        way = driver_base.COLD
    return way


def _handle_of(van: objects.VAN) -> tuple[str, str | None]:
    """The class of a VAN's handle, and the type of its mediated device."""
    handle: Any = van.handle  # a VAN that is prepared has one
    mdev_type = handle.type if isinstance(handle, objects.MdevHandle) else None
    return handle.obj_name(), mdev_type


def _check_accelerator(
    found: objects.MigrationAccelerator, keys: _Keys
) -> None:
    """Check what no field can check alone."""
    request, asked = found.request, [*keys, 'request']
    if found.obstacle is not None:
        _refuse([*keys, 'obstacle'], found.obstacle, 'None: it cannot move')
    if request.uuid != found.uuid:
        _refuse(
            [*asked, 'uuid'],
            request.uuid,
            f'{found.uuid}, the UUID of the VAN',
        )
    try:
        if request.bitstream is not None:
            reference.parse(request.bitstream)
    except exception.InvalidRequest as err:
        _refuse_field(err, [*asked, 'bitstream'])
    try:
        if request.port is not None:
            request.port.settings()
    except exception.InvalidRequest as err:
        _refuse_field(err, [*asked, 'port', err.kwargs['field']])


def _read(cls: type[_Object], found: Any, keys: _Keys) -> _Object:
    """Read an object from its primitive, each field by itself."""
    made = cls.partial()
    for name, value in _data(cls, found, keys).items():
        # A later minor version may have more fields.
        if name in cls.fields:
            _set(made, name, value, [*keys, name])
    for name in cls.fields:
        try:
            getattr(made, name)
        except exception.InvalidRequest as err:
            _refuse_field(err, [*keys, name])
    return made


def _data(
    cls: type[base.VersionedObject], found: Any, keys: _Keys
) -> Mapping[str, Any]:
    """The fields in a primitive of an object."""
    if not isinstance(found, Mapping):
        _refuse(
            keys, found, f'an os_acc.objects.{cls.__name__} or its primitive'
        )
    major = cls.VERSION.partition('.')[0]
    for part, pattern, expected in (
        ('name', cls.__name__, cls.__name__),
        ('namespace', 'os_acc', 'os_acc'),
        ('version', rf'{major}\.[0-9]{{1,9}}', f'a version {major}.x'),
    ):
        key = f'{cls.OBJ_SERIAL_NAMESPACE}.{part}'
        value = found.get(key)
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            _refuse([*keys, key], value, expected)
    key = f'{cls.OBJ_SERIAL_NAMESPACE}.data'
    data = found.get(key)
    if not isinstance(data, Mapping):
        _refuse([*keys, key], data, 'an object with the fields')
    return data


def _set(
    made: base.VersionedObject, name: str, value: Any, keys: _Keys
) -> None:
    """Set a field to what its primitive says."""
    if name == 'accelerators':
        if not isinstance(value, list | tuple) or not (
            0 < len(value) <= MAX_ACCELERATORS
        ):
            _refuse(keys, value, f'a list of 1 to {MAX_ACCELERATORS}')
        value = [
            _read(objects.MigrationAccelerator, each, [*keys, number])
            for number, each in enumerate(value)
        ]
    elif name == 'request':
        value = _read(objects.AcceleratorRequest, value, keys)
    elif name == 'port' and value is not None:
        value = _read(objects.PortBinding, value, keys)
    elif name == 'handle' and value is not None:
        _refuse(keys, value, 'None: the target chooses the handle')
    items = value if isinstance(value, list | tuple) else [value]
    if len(items) > _LONGEST_LIST:
        _refuse(keys, value, f'a list of at most {_LONGEST_LIST}')
    if any(isinstance(e, str) and len(e) > _LONGEST_TEXT for e in items):
        _refuse(keys, value, f'at most {_LONGEST_TEXT} characters')
    try:
        setattr(made, name, value)
    except exception.InvalidRequest as err:
        _refuse_field(err, keys)
    except ValueError:
        _refuse(keys, value, _expected(made.fields[name], value))


def _expected(field: Any, value: Any) -> str:
    """Say what a field takes: any if None is wrong, else one of oslo's."""
    if value is None:
        return 'a value'
    schema = field.get_schema()
    if 'enum' in schema:
        return ' or '.join(schema['enum'])
    return 'a list of strings' if 'array' in schema['type'] else 'a string'


def _refuse_field(err: exception.InvalidRequest, keys: _Keys) -> NoReturn:
    """Name the whole field in the error of an object."""
    _refuse(keys, err.kwargs['value'], err.kwargs['expected'])


def _refuse(keys: _Keys, value: Any, expected: str) -> NoReturn:
    raise exception.InvalidRequest(
        subject='os_acc.migration.prepare',
        field=schemas.named(keys),
        value=value,
        expected=expected,
    )
