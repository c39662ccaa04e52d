# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Step 1 of plug: refuse what cannot work, and touch nothing."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NoReturn

from oslo_config import cfg

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import loader
from os_acc import objects
from os_acc import plugin as plugin_base
from os_acc.objects import base
from os_acc.programming import bitstreams


@dataclasses.dataclass(frozen=True)
class Plan:
    """A request that can be tried, and who is to do it."""

    request: objects.AcceleratorRequest
    driver: driver_base.DriverBase
    plugin: plugin_base.PluginBase


def _refuse(field: str, value: Any, expected: str, subject: str) -> NoReturn:
    raise exception.InvalidRequest(
        subject=subject, field=field, value=value, expected=expected
    )


def check_instance(instance_info: Any) -> None:
    """:raises InvalidRequest: it is no InstanceInfo, or lacks a value"""
    _check_object(instance_info, objects.InstanceInfo, 'instance_info')


def _check_object(
    value: Any, cls: type[base.VersionedObject], name: str
) -> None:
    if not isinstance(value, cls):
        _refuse(name, value, f'an os_acc.objects.{cls.obj_name()}', 'os_acc')
    for field in cls.fields:
        getattr(value, field)  # raises InvalidRequest where one is missing


def check_requests(requests: Any) -> list[objects.AcceleratorRequest]:
    """Take the caller's requests apart.

    :returns: them, as a list
    :raises InvalidRequest: no list, something else in it, or the same VAN or
        handle twice
    """
    if isinstance(requests, str | bytes | dict) or not isinstance(
        requests, Iterable
    ):
        _refuse('requests', requests, 'a list of AcceleratorRequest', 'os_acc')
    listed = list(requests)
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


def plan(
    instance_info: objects.InstanceInfo,
    requests: Sequence[objects.AcceleratorRequest],
    live: bool,
    extensions: loader.Extensions,
    conf: cfg.ConfigOpts,
) -> list[Plan]:
    """Check all of a plug, and choose a driver for each request.

    :returns: a plan for each request, in their order
    :raises ExceptionBase: any of those that os_acc.plug names
    """
    check_instance(instance_info)
    requests = check_requests(requests)
    if not requests:
        _refuse('requests', [], 'at least one', 'os_acc.plug')
    plugin = extensions.plugin(conf.os_acc.plugin)
    if live:
        check_live(plugin)
    taken = takes(plugin)
    plans = []
    for request in requests:
        _check_binding(request, instance_info)
        driver = extensions.driver_for(request, conf.os_acc.drivers)
        _check_programs(request, driver)
        _check_handle(request, driver, taken)
        plans.append(Plan(request, driver, plugin))
    return plans


def _check_programs(
    request: objects.AcceleratorRequest, driver: driver_base.DriverBase
) -> None:
    for field in ('function_id', 'bitstream'):
        if getattr(request, field) is not None and not driver.programs:
            _refuse(
                field,
                '(given)' if field == 'bitstream' else request.function_id,
                f'none: driver {driver.name!r}, which is for this request, '
                'programs nothing',
                f'request {request.uuid}',
            )


def takes(plugin: plugin_base.PluginBase) -> objects.HostPluginInfo:
    """What a plugin takes.

    :raises NoMatchingPlugin: it cannot say
    """
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
    """:raises LiveNotSupported: the plugin cannot; or what it raises"""
    if not plugin.supports_live:
        raise exception.LiveNotSupported(plugin=plugin.name)
    plugin.check_live()


def _check_binding(
    request: objects.AcceleratorRequest, instance_info: objects.InstanceInfo
) -> None:
    subject = f'ARQ {request.uuid}'
    if request.state not in (None, 'Bound'):
        raise exception.ARQNotBound(
            subject=subject,
            field='state',
            value=request.state,
            expected="'Bound'",
        )
    if request.instance_uuid not in (None, instance_info.uuid):
        _refuse(
            'instance_uuid',
            request.instance_uuid,
            f'the instance it is for, {instance_info.uuid}',
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
            handle=f'any of driver {driver.name!r}',
            takes=', '.join(i.handle_object_name for i in takes.handle_info),
        )


def check_handle(
    handle: objects.AttachHandle, takes: objects.HostPluginInfo
) -> None:
    """See whether a plugin takes a handle.

    :raises UnsupportedHandle: not such a one, or not in its version
    """
    takes.get_handle(handle.obj_name()).get_common_version()


def check_same(
    request: objects.AcceleratorRequest, before: objects.AcceleratorRequest
) -> None:
    """See whether a request is the one that its VAN was plugged for.

    :raises InvalidRequest: it wants something else
    """
    for name in request.SELECTORS:
        new, old = (_comparable(getattr(r, name)) for r in (request, before))
        if new != old:
            _refuse(
                name,
                _shown(name, new),
                f'{_shown(name, old)!r}, as it was plugged with (unplug it '
                'first)',
                f'request {request.uuid}',
            )


def _shown(name: str, value: Any) -> Any:
    """What an error may tell: a URL can have a password in it."""
    return bitstreams.label(value) if name == 'bitstream' else value


def _comparable(value: Any) -> Any:
    if isinstance(value, objects.AttachHandle):
        return value.identity
    return sorted(value) if isinstance(value, list) else value
