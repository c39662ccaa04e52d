# SPDX-License-Identifier: Apache-2.0

"""Step 1 of plug: check everything, choose the drivers, touch nothing."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NoReturn

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import objects
from os_acc import opts
from os_acc import plugin as plugin_base
from os_acc.bitstreams import reference as bitstream_reference
from os_acc.objects import base
from os_acc.objects import fields
from os_acc.objects import van as states
from os_acc.texts import forms


@dataclasses.dataclass(frozen=True)
class Plan:
    """A request that passed the checks, with its driver and plugin."""

    request: objects.AcceleratorRequest
    driver: driver_base.DriverBase
    plugin: plugin_base.PluginBase


def _refuse(field: str, value: Any, expected: str, subject: str) -> NoReturn:
    raise exception.InvalidRequest(
        subject=subject, field=field, value=value, expected=expected
    )


def check_instance(instance_info: Any) -> None:
    """Check the type and the fields of an InstanceInfo."""
    _check_object(instance_info, objects.InstanceInfo, 'instance_info')


def _check_object(
    value: Any, cls: type[base.VersionedObject], name: str
) -> None:
    if not isinstance(value, cls):
        _refuse(name, value, f'an os_acc.objects.{cls.obj_name()}', 'os_acc')
    for field in cls.fields:
        getattr(value, field)  # raises InvalidRequest if it is missing


def check_requests(requests: Any) -> list[objects.AcceleratorRequest]:
    """Check the requests of a plug against each other.

    :raises InvalidRequest: if requests is not a list, an item is not an
        AcceleratorRequest, or two items have the same uuid or handle
    """
    listed = _listed(requests, 'a list of AcceleratorRequest')
    uuids: set[str] = set()
    handles: dict[str, str] = {}
    for request in listed:
        _check_object(request, objects.AcceleratorRequest, 'request')
        subject = f'request {request.uuid}'
        if request.uuid in uuids:
            _refuse('uuid', request.uuid, 'each request once', subject)
        uuids.add(request.uuid)
        if request.handle is None:
            continue
        _check_object(request.handle, type(request.handle), 'handle')
        handle = request.handle.identity
        if handle in handles:
            _refuse(
                'handle',
                handle,
                f'a handle of its own, not that of {handles[handle]}',
                subject,
            )
        handles[handle] = request.uuid
    return listed


def van_uuids(wanted: Any) -> set[str]:
    """Return the UUIDs of the VANs that the caller of unplug names.

    :param wanted: AcceleratorRequests, VANs and UUIDs, in any mixture
    """
    expected = 'a list of AcceleratorRequests, VANs or UUIDs'
    found: set[str] = set()
    for item in _listed(wanted, expected):
        if isinstance(item, objects.AcceleratorRequest | objects.VAN):
            found.add(item.uuid)
        else:
            found.add(van_uuid(item, 'requests', expected))
    return found


def van_uuid(value: Any, field: str, expected: str = 'a UUID') -> str:
    """Return a UUID in its canonical form."""
    try:
        return fields.UUID().coerce(None, field, value)
    except exception.InvalidRequest:
        _refuse(field, value, expected, 'os_acc')


def check_readable(host: host_module.Host, instance_uuid: str) -> None:
    """Check that all rows of an instance in the journal can be read."""
    for row in host.journal.unreadable(instance_uuid):
        raise unreadable(host, row)


def check_settled(entries: Iterable[journal.Entry]) -> None:
    """Check that an instance is not being moved."""
    for entry in entries:
        van = entry.van
        if van.state in states.MOVING:
            raise exception.MigrationConflict(
                instance=van.instance_uuid,
                reason=f'VAN {van.uuid} is {van.state} (migration '
                f'{van.migration_uuid}); settle it first: os-acc migration '
                f'finish {van.instance_uuid}, or os-acc migration abort '
                f'{van.instance_uuid}',
            )


def unreadable(
    host: host_module.Host, row: journal.UnreadableRow
) -> exception.JournalUnreadable:
    """Make the error for a row that cannot be read."""
    return exception.JournalUnreadable(
        path=host.journal.path,
        reason=f'VAN {row.van_uuid} of instance {row.instance_uuid} cannot be '
        f'read: {row.reason}. If a package was removed, reinstall it, or '
        f'delete the row: os-acc van forget {row.van_uuid}',
    )


def _listed(value: Any, expected: str) -> list[Any]:
    if isinstance(value, str | bytes | dict) or not isinstance(
        value, Iterable
    ):
        _refuse('requests', value, expected, 'os_acc')
    return list(value)


def plan(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    requests: Sequence[objects.AcceleratorRequest],
    live: bool,
    plugin_name: str | None = None,
) -> list[Plan]:
    """Check the arguments of plug, and choose a driver for each request.

    :param plugin_name: None: that of the host's configuration; for a service
        of the host itself, noop
    """
    check_instance(instance_info)
    requests = check_requests(requests)
    if not requests:
        _refuse('requests', [], 'at least one', 'os_acc.plug')
    if plugin_name is None:
        plugin_name = (
            host.conf.os_acc.plugin
            if instance_info.host_service is None
            else 'noop'
        )
    plugin = host.extensions.plugin(plugin_name)
    if live:
        check_live(plugin)
    taken = takes(plugin)
    plans = []
    for request in requests:
        check_binding(request, instance_info.uuid, opts.host(host.conf))
        driver = _driver_of(host, instance_info, request)
        _check_programs(request, driver)
        _check_cleaning(host, request, driver)
        _check_port(request, driver)
        _check_handle(request, driver, taken)
        plans.append(Plan(request, driver, plugin))
    return plans


def _driver_of(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    request: objects.AcceleratorRequest,
) -> driver_base.DriverBase:
    """Choose the driver of a request.

    A VAN that is plugged keeps its driver, even if that no longer claims such
    a request, because device_spec has changed or cannot be read.
    """
    try:
        return host.extensions.driver_for(request, host.conf.os_acc.drivers)
    except (exception.NoMatchingDriver, exception.AmbiguousDriver):
        for entry in host.journal.entries(instance_info.uuid):
            van = entry.van
            if (
                van.uuid == request.uuid
                and van.state == states.PLUGGED
                and request.driver in (None, van.driver)
            ):
                return host.extensions.driver(van.driver)
        raise


def _check_programs(
    request: objects.AcceleratorRequest, driver: driver_base.DriverBase
) -> None:
    for field in ('function_id', 'bitstream'):
        if getattr(request, field) is not None and not driver.programs:
            _refuse(
                field,
                '(given)' if field == 'bitstream' else request.function_id,
                f'none, because driver {driver.name!r}, which handles this '
                'request, does not program devices',
                f'request {request.uuid}',
            )
    if request.bitstream is not None:
        bitstream_reference.parse(request.bitstream, f'request {request.uuid}')


def _check_cleaning(
    host: host_module.Host,
    request: objects.AcceleratorRequest,
    driver: driver_base.DriverBase,
) -> None:
    """Refuse a kind of device that cleaning_command cannot clean."""
    if host.conf.os_acc.cleaning_command and not driver.cleans:
        _refuse(
            '[os_acc] cleaning_command',
            host.conf.os_acc.cleaning_command,
            f'none, because driver {driver.name!r}, which handles this '
            'request, cannot run it between two tenants',
            f'request {request.uuid}',
        )


def _check_port(
    request: objects.AcceleratorRequest, driver: driver_base.DriverBase
) -> None:
    """Check what a request says of its network port."""
    if request.port is None:
        return
    if not driver.sets_ports:
        _refuse(
            'port',
            '(given)',
            f'none, because driver {driver.name!r}, which handles this '
            'request, does not set up network ports',
            f'request {request.uuid}',
        )
    # Both raise InvalidRequest for values that contradict each other.
    request.port.settings()
    _ = request.physical_network


def takes(plugin: plugin_base.PluginBase) -> objects.HostPluginInfo:
    """Ask a plugin which handles it takes."""
    try:
        described: object = plugin.describe()
    except Exception as err:
        text = f'its describe() raised {exception.describe(err)}'
        raise exception.NoMatchingPlugin(
            plugin=plugin.name, reason=text
        ) from err
    if not isinstance(described, objects.HostPluginInfo):
        raise exception.NoMatchingPlugin(
            plugin=plugin.name,
            reason=f'its describe() gave a {type(described).__name__}, '
            'expected objects.HostPluginInfo',
        )
    return described


def check_live(plugin: plugin_base.PluginBase) -> None:
    """Check that a plugin can attach devices to a running guest now."""
    if not plugin.supports_live:
        raise exception.LiveNotSupported(plugin=plugin.name)
    plugin.check_live()


def check_binding(
    request: objects.AcceleratorRequest, instance_uuid: str, host_name: str
) -> None:
    """Check that an ARQ is bound to an instance and to this host."""
    subject = f'ARQ {request.uuid}'
    if request.state not in (None, 'Bound'):
        raise exception.ARQNotBound(
            subject=subject,
            field='state',
            value=request.state,
            expected="'Bound'",
        )
    if request.instance_uuid not in (None, instance_uuid):
        _refuse(
            'instance_uuid',
            request.instance_uuid,
            f'the instance that is plugged, {instance_uuid}',
            subject,
        )
    if request.hostname not in (None, host_name):
        _refuse(
            'hostname',
            request.hostname,
            f'this host, {host_name!r} ([os_acc] host)',
            subject,
        )


def _check_handle(
    request: objects.AcceleratorRequest,
    driver: driver_base.DriverBase,
    takes: objects.HostPluginInfo,
) -> None:
    if request.handle is not None:
        check_handle(request.handle, takes)
    elif driver.handle_types and not any(
        takes.has_handle(name) for name in driver.handle_types
    ):
        raise exception.UnsupportedHandle(
            taker=str(takes),
            handle=f'the handles of driver {driver.name!r}',
            takes=', '.join(i.handle_object_name for i in takes.handle_info),
        )


def check_handle(
    handle: objects.AttachHandle, takes: objects.HostPluginInfo
) -> None:
    """Check that a plugin takes a handle."""
    takes.get_handle(handle.obj_name()).get_common_version()


def check_same(
    request: objects.AcceleratorRequest, before: objects.AcceleratorRequest
) -> None:
    """Check that a repeated request asks for the same as before."""
    for name in request.SELECTORS:
        new, old = (
            _comparable(name, getattr(r, name)) for r in (request, before)
        )
        if new != old:
            _refuse(
                name,
                new,
                f'{old!r}, the value with which it was plugged (unplug it '
                'first)',
                f'request {request.uuid}',
            )


def check_plugin(wanted: str | None, van: objects.VAN) -> None:
    """Check that a repeated plug names the plugin of the first one."""
    if wanted is not None and wanted != van.plugin:
        _refuse(
            'plugin',
            wanted,
            f'{van.plugin!r}, the plugin with which it was plugged (unplug '
            'it first)',
            f'request {van.uuid}',
        )


def _comparable(name: str, value: Any) -> Any:
    """Give the form in which the field of a request is compared."""
    if isinstance(value, objects.AttachHandle):
        return value.identity
    if isinstance(value, list):
        return sorted(value)
    if value is not None and name == 'bitstream':
        # The journal does not have the secrets of a URL.
        return bitstream_reference.masked(value)
    if value is not None and name == 'function_id':
        return forms.function_id(value)
    return value
