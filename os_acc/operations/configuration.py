# SPDX-License-Identifier: Apache-2.0

"""Checks the whole configuration, before a device is looked for."""

from __future__ import annotations

from collections.abc import Iterator

from oslo_config import cfg

from os_acc import exception
from os_acc import loader
from os_acc import opts
from os_acc.options import values
from os_acc.spec import device_spec


def check(conf: cfg.ConfigOpts, extensions: loader.Extensions) -> None:
    """Check the values, the names of options and groups, and device_spec.

    It is for commands. A service starts with a name that os-acc does not
    know: the file may be for a later version.
    """
    groups = extensions.options()
    values_wrong = opts.faults(conf, groups)
    found = [*values_wrong]
    found += [x.text for x in opts.unknown(conf, groups) if x.mistyped]
    if not values_wrong:
        found += _names(conf, extensions)
        try:
            device_spec.load(conf)
        except exception.InvalidRequest as err:
            found.append(str(err))
    if found:
        raise exception.InvalidRequest(f'configuration: {"; ".join(found)}')


def _names(
    conf: cfg.ConfigOpts, extensions: loader.Extensions
) -> Iterator[str]:
    """Yield the names of a plugin and of drivers that are not installed."""
    for namespace, option in (
        (loader.PLUGINS, 'plugin'),
        (loader.DRIVERS, 'drivers'),
    ):
        loaded = (
            extensions.plugins if option == 'plugin' else (extensions.drivers)
        )
        known = {*loader.names(namespace), *loaded}
        value = opts.value(conf, option)
        for name in [value] if isinstance(value, str) else value:
            if name not in known:
                near = values.meant(name, known)
                yield (
                    f'{values.place(conf, opts.GROUP, opts.option(option))}: '
                    f'{name!r} is not installed'
                    f'{near or "; there is " + ", ".join(sorted(known))}'
                )
