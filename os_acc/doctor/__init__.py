# SPDX-License-Identifier: Apache-2.0

"""Finds what is wrong on this host, and says what to do about it.

The doctor changes nothing: it creates, binds and recovers nothing and loads no
kernel module. An error in one check becomes a finding, and the other checks
still run.
"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc import finding
from os_acc import host as host_module
from os_acc.doctor import entries
from os_acc.doctor import extensions
from os_acc.doctor import guard
from os_acc.doctor import privileges
from os_acc.doctor import reservations
from os_acc.doctor import service_user
from os_acc.doctor import state
from os_acc.doctor import users


def findings(host: host_module.Host) -> Iterator[finding.Finding]:
    """Check the whole host, except for the configuration.

    :param host: made with read_only=True, so that it can be made although the
        journal is damaged. It cannot be made if extensions.invalid()
        finds a fault
    """
    before: list[finding.Finding] = []
    for each in _of_host(host):
        before.append(each)
        yield each
    yield from guard.once(extensions.findings(host), before)


def _of_host(host: host_module.Host) -> Iterator[finding.Finding]:
    """Check all but what the drivers and plugins report."""
    yield from guard.guarded('configuration', lambda: extensions.unknown(host))
    yield from guard.guarded(
        'drivers and plugins', lambda: extensions.loaded(host)
    )
    yield from guard.guarded(state.subject(host), lambda: state.findings(host))
    yield from guard.guarded(users.SUBJECT, lambda: users.findings(host.conf))
    yield from guard.guarded('privsep daemon', privileges.findings)
    yield from guard.guarded(
        'privsep daemon of the service',
        lambda: service_user.findings(host.conf),
    )
    yield from guard.guarded(entries.SUBJECT, lambda: entries.findings(host))
    yield from guard.guarded(
        reservations.SUBJECT, lambda: reservations.findings(host)
    )
