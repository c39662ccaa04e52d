# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Checks the state path: its owner, the journal and the VANs in it."""

from __future__ import annotations

from collections.abc import Iterator
import os

from os_acc import exception
from os_acc import finding
from os_acc import health
from os_acc import host as host_module
from os_acc import journal
from os_acc import objects
from os_acc.devices import boot
from os_acc.journal import health as rows
from os_acc.objects import van as states


def subject(host: host_module.Host) -> str:
    """Return the subject of the findings about the state path itself."""
    return f'state path {host.conf.os_acc.state_path}'


def findings(host: host_module.Host) -> Iterator[finding.Finding]:
    """Check the state path and each VAN."""
    try:
        host_module.check_owner(host.conf)
    except exception.JournalError as err:
        yield finding.Finding(
            subject(host),
            finding.WARNING,
            str(err),
            'run this command as the user of the service; if services run as '
            'several users, see "Two users" in the documentation',
        )
    try:
        vans = host.journal.vans().objects
        unreadable = host.journal.unreadable()
        exists = host.journal.exists()
    except exception.JournalError as err:
        yield finding.Finding(
            subject(host),
            finding.ERROR,
            str(err),
            'check the folder, and the free space on its disk. If the journal '
            'is damaged, run os-acc recover to set it aside, and then os-acc '
            'recover --rebuild to start a new one',
        )
        return
    if exists:
        yield from _vans(host, vans, unreadable)
    else:
        yield _without_journal(host)


def _vans(
    host: host_module.Host,
    vans: list[objects.VAN],
    unreadable: list[journal.UnreadableRow],
) -> Iterator[finding.Finding]:
    text = f'the journal holds {len(vans)} VANs'
    if unreadable:
        text += f', and {len(unreadable)} rows that are unreadable'
    yield finding.Finding(subject(host), finding.OK, text)
    for row in unreadable:
        yield finding.Finding(
            f'VAN {row.van_uuid}',
            finding.ERROR,
            f'instance {row.instance_uuid}: it is unreadable: {row.reason} '
            f'(handle {row.handle}, device {row.device})',
            'reinstall or upgrade the package that wrote it; if that is '
            f'impossible, run os-acc van forget {row.van_uuid}',
        )
    booted = boot.boot_id()
    for van in vans:
        yield from _van(host, van, booted)
    for found in host.journal.unhealthy():
        if health.counts(found):
            yield unhealthy(found)


def unhealthy(found: rows.Health) -> finding.Finding:
    """Report a device that is given to nobody."""
    reason = health.reason_of(found)
    return finding.Finding(
        f'device {found.device}',
        finding.WARNING if found.cause == rows.REBOOT else finding.ERROR,
        reason.text,
        reason.remedy,
    )


def _van(
    host: host_module.Host, van: objects.VAN, booted: str
) -> Iterator[finding.Finding]:
    """Report what is wrong with a VAN; nothing if it is in order."""
    name, whose = f'VAN {van.uuid}', f'instance {van.instance_uuid}'
    if van.driver not in host.extensions.drivers:
        yield finding.Finding(
            name,
            finding.ERROR,
            f'{whose}: its driver {van.driver!r} is not loaded, so it cannot '
            'be released',
            'reinstall the package of the driver; if that is impossible, run '
            f'os-acc van forget {van.uuid}',
        )
    elif van.state == states.ERROR:
        yield finding.Finding(
            name,
            finding.ERROR,
            f'{whose}: {van.error}',
            'remove the cause, then run os-acc recover or os-acc unplug '
            f'{van.instance_uuid}',
        )
    elif van.state != states.PLUGGED:
        yield finding.Finding(
            name,
            finding.WARNING,
            f'{whose}: its state is {van.state}',
            'if no service is working on this VAN now, run os-acc recover',
        )
    elif van.boot_id != booted:
        yield finding.Finding(
            name,
            finding.WARNING,
            f'{whose}: the host was rebooted after the VAN was prepared',
            'run os-acc recover, or start the service, which does the same',
        )


def _without_journal(host: host_module.Host) -> finding.Finding:
    text = 'there is no journal yet: nothing was plugged'
    path = host.conf.os_acc.state_path
    while not os.path.exists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        problem = f'{path} is not a folder'
    elif not os.access(path, os.W_OK | os.X_OK):
        problem = f'user id {os.geteuid()} may not write in {path}'
    else:
        return finding.Finding(subject(host), finding.OK, text)
    return finding.Finding(
        subject(host),
        finding.ERROR,
        f'{text}, and it cannot be created: {problem}',
        'create the folder and give it to the user of the service, or set '
        '[os_acc] state_path',
    )
