# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What keeps this host from doing its work, and what to do about it.

It only looks: nothing is made, bound, loaded or recovered.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import os
from typing import TYPE_CHECKING

from oslo_config import cfg

from os_acc import exception
from os_acc import opts
from os_acc.finding import ERROR
from os_acc.finding import OK
from os_acc.finding import WARNING
from os_acc.finding import Finding

if TYPE_CHECKING:
    from os_acc import journal as journal_module
    from os_acc import loader


def host(
    conf: cfg.ConfigOpts,
    extensions: loader.Extensions,
    journal: journal_module.Journal | None,
    owner: str | None,
    damage: str | None,
) -> Iterator[Finding]:
    """Look at all of this host.

    :param journal: opened for looking; None: there is none yet
    :param owner: why this user must not change the journal; None: it may
    :param damage: why the journal that is there cannot be opened
    """
    yield from _extensions(conf, extensions)
    yield from _state(conf, journal, owner, damage)
    yield _privileges()
    for name, driver in sorted(extensions.drivers.items()):
        yield from _guarded(f'driver {name}', driver.diagnose)
    if plugin := extensions.plugins.get(conf.os_acc.plugin):
        yield from _guarded(f'plugin {conf.os_acc.plugin}', plugin.diagnose)


def configuration(
    conf: cfg.ConfigOpts, extensions: loader.Extensions
) -> Iterator[Finding]:
    """Values of options with which nothing can be looked at."""
    for fault in opts.faults(conf, extensions.options()):
        yield Finding(
            'configuration',
            ERROR,
            fault,
            'mend this first: nothing else was looked at',
        )


def _guarded(
    subject: str, look: Callable[[], Iterable[Finding]]
) -> Iterator[Finding]:
    """A look that fails is a finding too, and stops no other."""
    try:
        yield from look()
    except Exception as err:
        yield Finding(
            subject,
            ERROR,
            exception.describe(err),
            'mend this first; the other findings of it are not complete',
        )


def _extensions(
    conf: cfg.ConfigOpts, extensions: loader.Extensions
) -> Iterator[Finding]:
    for name, error in sorted(extensions.errors.items()):
        yield Finding(
            name, ERROR, f'it does not load: {error}', 'install it anew'
        )
    chosen = conf.os_acc.plugin
    if chosen in extensions.plugins:
        yield Finding(f'plugin {chosen}', OK, "it is this host's plugin")
    elif f'plugin {chosen}' not in extensions.errors:
        names = ', '.join(sorted(extensions.plugins))
        yield Finding(
            f'plugin {chosen}',
            ERROR,
            f'there is no such plugin; loaded are: {names}',
            'set [os_acc] plugin to one that is installed',
        )
    for name in conf.os_acc.drivers:
        if name not in extensions.drivers:
            yield Finding(
                f'driver {name}',
                WARNING,
                '[os_acc] drivers names it, and it is not loaded; loaded '
                f'are: {", ".join(sorted(extensions.drivers))}',
                'install it, or mend the name',
            )


def _state(
    conf: cfg.ConfigOpts,
    journal: journal_module.Journal | None,
    owner: str | None,
    damage: str | None,
) -> Iterator[Finding]:
    subject = f'state path {conf.os_acc.state_path}'
    if owner is not None:
        yield Finding(
            subject,
            WARNING,
            owner,
            'nova-compute, Cyborg and this command must run as one user',
        )
    if damage is not None:
        yield Finding(
            subject,
            ERROR,
            damage,
            'see to the folder and to the space on its disk; if the journal '
            'is damaged: os-acc recover, which sets it aside, and then os-acc '
            'recover --rebuild',
        )
        return
    if journal is None:
        yield _without_journal(subject, conf.os_acc.state_path)
        return
    vans = [entry.van for entry in journal.entries()]
    yield Finding(subject, OK, f'the journal holds {len(vans)} VANs')
    from os_acc.devices import boot

    booted = boot.boot_id()
    for van in vans:
        subject = f'VAN {van.uuid}'
        whose = f'instance {van.instance_uuid}'
        if van.state == 'error':
            yield Finding(
                subject,
                ERROR,
                f'{whose}: {van.error}',
                'remove the cause, then os-acc recover, or os-acc unplug '
                f'{van.instance_uuid}',
            )
        elif van.state != 'plugged':
            yield Finding(
                subject,
                WARNING,
                f'{whose}: it is {van.state}',
                'if no service works on it now: os-acc recover',
            )
        elif van.boot_id != booted:
            yield Finding(
                subject,
                WARNING,
                f'{whose}: the host was rebooted since it was prepared',
                'os-acc recover, or start the service that does it',
            )


def _without_journal(subject: str, path: str) -> Finding:
    text = 'no journal yet: nothing was plugged'
    while not os.path.exists(path):
        path = os.path.dirname(path)
    if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):
        return Finding(subject, OK, text)
    return Finding(
        subject,
        ERROR,
        f'{text}; and none can be made: '
        + (
            f'user id {os.geteuid()} may not write in {path}'
            if os.path.isdir(path)
            else f'{path} is no folder'
        ),
        'make the folder, give it to the user of the service, or set '
        '[os_acc] state_path',
    )


def _privileges() -> Finding:
    subject = 'privsep daemon'
    try:
        from os_acc.privileged import context

        user, missing = context.whoami()
    except (exception.ExceptionBase, ImportError) as err:
        return Finding(
            subject,
            ERROR,
            exception.describe(err),
            f'allow user id {os.geteuid()} to start it: see "The privileged '
            'half" in the documentation',
        )
    if user != 0:
        return Finding(
            subject,
            ERROR,
            f"it runs as user id {user}: the files of sysfs are root's",
            'unset [os_acc_privileged] user',
        )
    if missing:
        return Finding(
            subject,
            ERROR,
            f'it lacks {", ".join(missing)}: who has a device open cannot be '
            'seen',
            'unset [os_acc_privileged] capabilities',
        )
    return Finding(subject, OK, 'it starts, and may do what it has to')
