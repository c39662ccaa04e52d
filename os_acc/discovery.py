# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What there is on this host: devices, drivers, plugins."""

from __future__ import annotations

from collections.abc import Collection
import logging

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc import progress
from os_acc.attach import plan as validation

LOG = logging.getLogger(__name__)


def devices(host: host_module.Host) -> list[objects.Device]:
    """See os_acc.get_devices."""
    found: list[objects.Device] = []
    catch_all: list[objects.Device] = []
    errors = []
    for name, driver in sorted(host.extensions.drivers.items()):
        try:
            devices = list(driver.get_devices())
            for each in devices:
                if not isinstance(each, objects.Device):
                    raise TypeError(
                        f'get_devices() gave a {type(each).__name__}, '
                        'expected objects.Device'
                    )
        except Exception as err:
            LOG.exception('Discovery by driver %r failed', name)
            found.extend(getattr(err, 'devices', ()))
            errors.append(f'driver {name!r}: {exception.describe(err)}')
        else:
            (catch_all if driver.generic else found).extend(devices)
    # Each device once: a specific driver's claim goes first here too.
    known = {device.address for device in found}
    found += [each for each in catch_all if each.address not in known]
    if errors:
        # Not swallowed: a device that is missing in a report looks lost.
        raise exception.DiscoveryFailed(found, errors='; '.join(errors))
    return found


def program_device(
    host: host_module.Host,
    address: str,
    bitstream: str | None,
    function_id: str | None,
    region: str | None,
    callback: progress.Callback | None,
) -> bool:
    """See os_acc.program_device."""
    wanted = objects.Device(address=address, driver='any')
    if function_id is not None:
        wanted.function_id = function_id  # raises where it is no name
    if bitstream is None and function_id is None:
        raise exception.InvalidRequest(
            subject='os_acc.program_device',
            field='bitstream',
            value=None,
            expected='a bitstream or a function_id',
        )
    driver = _driver_of(host, wanted.address)
    reporter = progress.Reporter(callback)

    def tell(
        status: str, fraction: float | None = None, message: str | None = None
    ) -> None:
        reporter(
            progress.Progress(
                instance_uuid='',
                van_uuid='',
                step='program_device',
                status=status,
                fraction=fraction,
                message=message,
                device=wanted.address,
            )
        )

    tell(progress.STARTED)
    try:
        done = driver.program_device(
            wanted.address,
            bitstream,
            function_id,
            region,
            lambda fraction, text: tell(progress.RUNNING, fraction, text),
        )
    except BaseException as err:
        tell(progress.FAILED, message=exception.describe(err))
        raise
    tell(progress.DONE, 1.0)
    return done


def _driver_of(host: host_module.Host, address: str) -> driver_base.DriverBase:
    """The driver that programs a device.

    :raises DeviceNotFound: none does
    """
    try:
        there = devices(host)
    except exception.DiscoveryFailed as err:
        there = err.devices
    for device in there:
        if device.address == address:
            return host.extensions.driver(device.driver)
    raise exception.DeviceNotFound(
        wanted=address, reason='no driver knows such a device on this host'
    )


def info(
    host: host_module.Host, permitted: Collection[str] | None
) -> objects.HostInfo:
    """See os_acc.host_info."""
    described, errors = [], dict(host.extensions.errors)
    for name, plugin in sorted(host.extensions.plugins.items()):
        try:
            described.append(validation.takes(plugin))
        except exception.NoMatchingPlugin as err:
            errors[f'plugin {name}'] = err.kwargs['reason']
    made = objects.HostInfo(
        plugin_info=described,
        driver_info=[
            objects.HostDriverInfo(
                driver_name=name,
                handle_info=[
                    objects.HostHandleInfo.of(handle)
                    for handle in driver.handle_types
                ],
            )
            for name, driver in sorted(host.extensions.drivers.items())
        ],
        load_errors=errors,
    )
    if permitted is not None:
        made.filter_handle_types(permitted)
    return made
