# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""This host: its journal, locks, drivers and plugins, put together."""

from __future__ import annotations

from collections.abc import Collection
import logging

from oslo_config import cfg

from os_acc import attach
from os_acc import exception
from os_acc import journal as journal_module
from os_acc import loader
from os_acc import locking
from os_acc import objects
from os_acc import opts

LOG = logging.getLogger(__name__)


def attacher(conf: cfg.ConfigOpts) -> attach.Attacher:
    """Open the journal, load drivers and plugins, and connect them.

    :raises JournalError: the journal cannot be opened
    """
    journal = journal_module.Journal(
        conf.os_acc.state_path, conf.os_acc.journal_timeout
    )
    locks = locking.Locks(opts.lock_path(conf), conf.os_acc.lock_timeout)
    extensions = loader.load_all()
    for driver in extensions.drivers.values():
        driver.connect(locks.device, journal.vans_on, journal.requests_of)
    return attach.Attacher(extensions, journal, locks, conf)


def devices(extensions: loader.Extensions) -> list[objects.Device]:
    """See os_acc.get_devices."""
    found: list[objects.Device] = []
    errors = []
    for name, driver in sorted(extensions.drivers.items()):
        try:
            found.extend(driver.get_devices())
        except Exception as err:
            LOG.exception('Discovery by driver %r failed', name)
            found.extend(getattr(err, 'devices', ()))
            errors.append(f'driver {name!r}: {exception.describe(err)}')
    if errors:
        # Not swallowed: a device that is missing in a report looks lost.
        raise exception.DiscoveryFailed(found, errors='; '.join(errors))
    return found


def info(
    extensions: loader.Extensions, permitted: Collection[str] | None
) -> objects.HostInfo:
    """See os_acc.host_info."""
    made = objects.HostInfo(
        plugin_info=[
            plugin.describe()
            for _, plugin in sorted(extensions.plugins.items())
        ],
        driver_info=[
            objects.HostDriverInfo(
                driver_name=name,
                handle_info=[
                    objects.HostHandleInfo.of(handle)
                    for handle in driver.handle_types
                ],
            )
            for name, driver in sorted(extensions.drivers.items())
        ],
        load_errors=extensions.errors,
    )
    if permitted is not None:
        made.filter_handle_types(permitted)
    return made
