# SPDX-License-Identifier: Apache-2.0

"""The plugins and drivers of this host, and the handle types they speak."""

from __future__ import annotations

from collections.abc import Collection

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc.attach import plan


def describe(
    host: host_module.Host, permitted: Collection[str] | None
) -> objects.HostInfo:
    """See os_acc.host_info."""
    described, errors = [], dict(host.extensions.errors)
    for name, plugin in sorted(host.extensions.plugins.items()):
        try:
            described.append(plan.takes(plugin))
        except exception.NoMatchingPlugin as err:
            errors[f'plugin {name}'] = err.kwargs['reason']
    drivers = []
    for name, driver in sorted(host.extensions.drivers.items()):
        try:
            drivers.append(_driver_info(driver))
        except exception.InvalidRequest as err:
            errors[f'driver {name}'] = str(err)
    made = objects.HostInfo(
        plugin_info=described, driver_info=drivers, load_errors=errors
    )
    if permitted is not None:
        made.filter_handle_types(permitted)
    return made


def _driver_info(driver: driver_base.DriverBase) -> objects.HostDriverInfo:
    """Describe a driver by its handle_types."""
    types: object = driver.handle_types
    if not isinstance(types, tuple | list):
        raise _wrong_types(driver, 'a tuple of names of handle classes')
    described = []
    for name in types:
        try:
            described.append(objects.HostHandleInfo.of(name))
        except exception.UnsupportedHandle as err:
            raise _wrong_types(
                driver, f'names of handle classes; {name!r} is not one'
            ) from err
    return objects.HostDriverInfo(
        driver_name=driver.name, handle_info=described
    )


def _wrong_types(
    driver: driver_base.DriverBase, expected: str
) -> exception.InvalidRequest:
    return exception.InvalidRequest(
        subject=f'driver {driver.name!r}',
        field='handle_types',
        value=driver.handle_types,
        expected=expected,
    )
