# SPDX-License-Identifier: Apache-2.0

"""Checks the state path: its owner, the journal and the VANs in it."""

from __future__ import annotations

from collections.abc import Iterator
import os

from os_acc import exception
from os_acc import finding
from os_acc import health
from os_acc import host as host_module
from os_acc import journal
from os_acc.doctor import vans as van_checks
from os_acc.journal import health as rows
from os_acc.kernel import file_system


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
    yield from _file_system(host.conf.os_acc.state_path)
    yield from _space(host.conf.os_acc.state_path)
    try:
        entries = host.journal.entries()
        unreadable = host.journal.unreadable()
        exists = host.journal.exists()
    except exception.JournalError as err:
        yield finding.Finding(
            subject(host),
            finding.ERROR,
            str(err),
            'do what the error says; if it says nothing, check the directory '
            'and the free space on its disk',
        )
        return
    if exists:
        yield from _vans(host, entries, unreadable)
    else:
        yield _without_journal(host)


# Why the journal should not be on a file system, and what to do.
_UNFIT = {
    file_system.VOLATILE: (
        'its files are gone after a reboot, and os-acc then does not know '
        'which VANs there were',
        'set [os_acc] state_path to a directory on a local disk',
    ),
    file_system.LAYERED: (
        'it is of a container or a live system, and its files are gone with '
        'it: os-acc then does not know which devices instances have',
        'mount a directory of the host at [os_acc] state_path, and let all '
        'services of the host use it',
    ),
    file_system.REMOTE: (
        'SQLite cannot share a journal safely on a file system that other '
        'hosts use, and each host needs its own journal',
        'set [os_acc] state_path to a directory on a local disk',
    ),
}


def _file_system(path: str) -> Iterator[finding.Finding]:
    """Report a file system on which the journal is not kept or not safe."""
    kind = file_system.type_of(path)
    unfit = _UNFIT.get(file_system.nature(kind)) if kind is not None else None
    if unfit is not None:
        yield finding.Finding(
            f'file system of the journal {path}',
            finding.WARNING,
            f'it is {kind}: {unfit[0]}',
            unfit[1],
        )


# Below these, little else needs to be written until the journal cannot be.
_BYTES = 50 * 2**20
_INODES = 1000


def _space(path: str) -> Iterator[finding.Finding]:
    """Report a file system that is almost full."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return  # there is no directory yet, or the next check says the reason
    free = disk.f_bavail * disk.f_frsize
    # btrfs has no limit, and says that it has 0 inodes.
    few = disk.f_files > 0 and disk.f_favail < _INODES
    if free < _BYTES or few:
        yield finding.Finding(
            f'file system of the journal {path}',
            finding.WARNING,
            f'it has only {free // 2**20} MiB'
            + (f' and {disk.f_favail} inodes' if few else '')
            + ' free: if it is full, nothing can be plugged or released',
            'delete files there that are not of os-acc, or make it larger',
        )


def _vans(
    host: host_module.Host,
    entries: list[journal.Entry],
    unreadable: list[journal.UnreadableRow],
) -> Iterator[finding.Finding]:
    text = f'the journal holds {len(entries)} VANs'
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
    for entry in entries:
        yield from van_checks.findings(host, entry)
    yield from _host_services(entries)
    for found in host.journal.unhealthy():
        if health.counts(found):
            yield unhealthy(found)


def _host_services(
    entries: list[journal.Entry],
) -> Iterator[finding.Finding]:
    """Report the devices that services of the host itself have."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        if (name := entry.instance_info.host_service) is not None:
            handle = entry.van.handle
            found.setdefault(name, []).append(
                handle.identity if handle is not None else entry.van.state
            )
    for name, devices in found.items():
        yield finding.Finding(
            f'service {name} of this host',
            finding.OK,
            f'it has {", ".join(devices)}',
        )


def unhealthy(found: rows.Health) -> finding.Finding:
    """Report a device that is given to nobody."""
    reason = health.reason_of(found)
    return finding.Finding(
        f'device {found.device}',
        finding.WARNING if found.cause == rows.REBOOT else finding.ERROR,
        reason.text,
        reason.remedy,
    )


def _without_journal(host: host_module.Host) -> finding.Finding:
    text = 'there is no journal yet: nothing was plugged'
    path = host.conf.os_acc.state_path
    while not os.path.exists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        problem = f'{path} is not a directory'
    elif not os.access(path, os.W_OK | os.X_OK):
        problem = f'user id {os.geteuid()} may not write to {path}'
    else:
        return finding.Finding(subject(host), finding.OK, text)
    return finding.Finding(
        subject(host),
        finding.ERROR,
        f'{text}, and it cannot be created: {problem}',
        'create the directory and give it to the user of the service, or set '
        '[os_acc] state_path',
    )
