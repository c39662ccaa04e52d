# SPDX-License-Identifier: Apache-2.0

"""Checks the options, the drivers and the plugins: what loads and reports."""

from __future__ import annotations

from collections.abc import Iterator
import functools

from oslo_config import cfg

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import finding
from os_acc import host as host_module
from os_acc import loader
from os_acc import opts
from os_acc.doctor import guard
from os_acc.operations import discovery
from os_acc.operations import host_info
from os_acc.options import values


def invalid(
    conf: cfg.ConfigOpts, extensions: loader.Extensions
) -> Iterator[finding.Finding]:
    """Yield a finding for each invalid option.

    A Host cannot be made if there is one.
    """
    for fault in opts.faults(conf, extensions.options()):
        yield finding.Finding(
            'configuration',
            finding.ERROR,
            fault,
            'fix this first: nothing else was checked',
        )


def unknown(host: host_module.Host) -> Iterator[finding.Finding]:
    """Yield a finding for each line that sets an unknown option."""
    for each in opts.unknown(host.conf, host.extensions.options()):
        yield finding.Finding(
            'configuration',
            finding.ERROR if each.mistyped else finding.WARNING,
            each.text,
            'correct the name, or remove the line: it is ignored',
        )


def loaded(host: host_module.Host) -> Iterator[finding.Finding]:
    """Report what did not load, and whether the configured ones are loaded."""
    extensions = host.extensions
    for name, error in sorted(extensions.errors.items()):
        yield finding.Finding(
            name,
            finding.ERROR,
            f'it cannot be loaded: {error}',
            f'reinstall the package of {name}',
        )
    chosen = host.conf.os_acc.plugin
    if chosen in extensions.plugins:
        yield finding.Finding(
            f'plugin {chosen}', finding.OK, "it is this host's plugin"
        )
    elif f'plugin {chosen}' not in extensions.errors:
        yield finding.Finding(
            f'plugin {chosen}',
            finding.ERROR,
            'there is no such plugin; the loaded plugins are: '
            + ', '.join(sorted(extensions.plugins))
            + values.meant(chosen, extensions.plugins),
            f'set {_place(host, "plugin")} to one that is installed',
        )
    for name in host.conf.os_acc.drivers:
        if name not in extensions.drivers:
            yield finding.Finding(
                f'driver {name}',
                finding.WARNING,
                f'{_place(host, "drivers")} names it, but it is not loaded; '
                'the loaded drivers are: '
                f'{", ".join(sorted(extensions.drivers))}'
                f'{values.meant(name, extensions.drivers)}',
                'install it, or correct the name',
            )


def _place(host: host_module.Host, name: str) -> str:
    return values.place(host.conf, opts.GROUP, opts.option(name))


def findings(host: host_module.Host) -> Iterator[finding.Finding]:
    """Report the findings and faults of the drivers and the plugins in use."""
    extensions = host.extensions
    yield from guard.guarded('host_info', lambda: _declared(host))
    for name, driver in sorted(extensions.drivers.items()):
        subject = f'driver {name}'
        yield from guard.guarded(subject, driver.diagnose)
        yield from _devices(subject, driver)
    plugins_of = _plugins_of_vans(host)
    used = {host.conf.os_acc.plugin, *(plugins_of or {}).values()}
    for name, plugin in sorted(extensions.plugins.items()):
        subject = f'plugin {name}'
        if name in used:
            yield from guard.guarded(subject, plugin.diagnose)
        if plugins_of is not None:
            yield from guard.guarded(
                subject, functools.partial(plugin.leftovers, plugins_of.keys())
            )


def _plugins_of_vans(host: host_module.Host) -> dict[str, str | None] | None:
    """The plugin of each VAN, by the VAN's UUID.

    :returns: None for the plugin of an unreadable row; None if the journal
        cannot be read, which the module state reports
    """
    found: dict[str, str | None] = {}
    try:
        for row in host.journal.unreadable():
            found[row.van_uuid] = None
        for van in host.journal.vans():
            found[van.uuid] = van.plugin
    except exception.JournalError:
        return None
    return found


def _declared(host: host_module.Host) -> Iterator[finding.Finding]:
    """Report a wrong describe() of a plugin or handle_types of a driver."""
    faults = host_info.describe(host, None).load_errors
    for name, text in sorted(faults.items()):
        if name not in host.extensions.errors:
            yield finding.Finding(
                name, finding.ERROR, text, f'upgrade the package of {name}'
            )


def _devices(
    subject: str, driver: driver_base.DriverBase
) -> Iterator[finding.Finding]:
    """Report how many devices a driver lists, and what is wrong with them."""
    examined = discovery.examine(driver)
    if examined.devices:
        free = sum(each.handles_free for each in examined.devices)
        total = sum(each.handles_total for each in examined.devices)
        yield finding.Finding(
            f'devices of {subject}',
            finding.OK,
            f'discovery lists {len(examined.devices)}, with {free} of {total} '
            'handles free',
        )
    for fault in examined.faults:
        yield finding.Finding(
            subject,
            finding.ERROR,
            fault,
            'not all of its devices are listed; fix the cause, or upgrade the '
            f'package of {subject}',
        )
