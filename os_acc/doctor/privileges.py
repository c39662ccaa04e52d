# SPDX-License-Identifier: Apache-2.0

"""Checks that the privsep daemon starts and has the capabilities it needs."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import os

from oslo_config import cfg

from os_acc import exception
from os_acc import finding
from os_acc.spec import device_spec

_SUBJECT = 'privsep daemon'


def findings() -> Iterator[finding.Finding]:
    """Start the daemon, and check its user and capabilities."""
    try:
        from os_acc.privileged import context

        user, missing = context.whoami()
    except (exception.ExceptionBase, ImportError) as err:
        yield finding.Finding(
            _SUBJECT,
            finding.ERROR,
            exception.describe(err),
            f'allow user id {os.geteuid()} to start the privsep daemon: see '
            '"The privileged half" in the documentation',
        )
        return
    if user != 0:
        yield finding.Finding(
            _SUBJECT,
            finding.ERROR,
            f'it runs as user id {user}, but only root may write to sysfs',
            'unset [os_acc_privileged] user',
        )
    elif missing:
        yield finding.Finding(
            _SUBJECT,
            finding.ERROR,
            f'it lacks {", ".join(missing)}: it cannot see which process has '
            'a device open',
            'unset [os_acc_privileged] capabilities; in a container, use the '
            "host's PID namespace",
        )
    else:
        yield _users(context.check_users)
    try:
        context.check_directory()
    except exception.ExceptionBase as err:
        yield finding.Finding(
            'record of the privsep daemon',
            finding.ERROR,
            exception.describe(err),
            'remove it: the daemon creates it again; see "The record of the '
            'privileged half" in the documentation',
        )
    yield from _offers()


def _users(check: Callable[[], None]) -> finding.Finding:
    """Check that the daemon can see who has a device open."""
    try:
        check()
    except exception.ExceptionBase as err:
        return finding.Finding(
            _SUBJECT,
            finding.ERROR,
            'it has its capabilities, but every plug will fail: '
            f'{exception.describe(err)}',
            'let root read /proc/PID/fd of all processes: check for a user '
            'namespace, a security module or a seccomp rule that forbids it',
        )
    return finding.Finding(
        _SUBJECT,
        finding.OK,
        'it starts, and has the capabilities that it needs',
    )


def _offers() -> Iterator[finding.Finding]:
    """Check that the daemon reads the same device_spec as this process."""
    from os_acc.privileged import offers

    advice = (
        'let the daemon read files of root that nobody else can write: see '
        '"The privileged half" in the documentation'
    )
    try:
        number = offers.count()
    except exception.ExceptionBase as err:
        if isinstance(
            device_spec.load_for_vans(cfg.CONF), device_spec.Unreadable
        ):
            return  # nobody can read it: os_acc.doctor.entries says why
        yield finding.Finding(
            f'{_SUBJECT}: device_spec',
            finding.ERROR,
            f'it offers nothing: {exception.describe(err)}',
            advice,
        )
        return
    own = len(device_spec.load(cfg.CONF).entries)
    if number != own:
        yield finding.Finding(
            f'{_SUBJECT}: device_spec',
            finding.WARNING,
            f'it reads {number} entries, but this process reads {own}',
            'start the daemon with the configuration files of the service',
        )
