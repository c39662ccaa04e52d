# SPDX-License-Identifier: Apache-2.0
"""Checks, as root, that the user of the service can start the daemon."""

from __future__ import annotations

from collections.abc import Iterator
import json
import os
import pwd
import subprocess
import sys

from oslo_config import cfg

from os_acc import finding

_TIMEOUT = 60.0


def findings(conf: cfg.ConfigOpts) -> Iterator[finding.Finding]:
    """Start the privsep daemon as the owner of the state path.

    A check by root says nothing about the service: root needs no sudo. So
    this does it in a process of the service's user. Nothing is checked if
    this process is not root, or if root itself owns the state path.
    """
    try:
        owner = os.stat(conf.os_acc.state_path).st_uid
    except OSError:
        return
    if os.geteuid() != 0 or owner == 0:
        return
    try:
        user = pwd.getpwuid(owner)
    except KeyError:
        yield finding.Finding(
            'privsep daemon of the service',
            finding.WARNING,
            f'user id {owner}, which owns {conf.os_acc.state_path}, has no '
            'name on this host',
            'give the directory to the user of the service',
        )
        return
    subject = f'privsep daemon of user {user.pw_name}'
    error = _error(conf, user)
    if error is None:
        yield finding.Finding(
            subject, finding.OK, 'this user can start it, and it is root'
        )
    else:
        yield finding.Finding(
            subject,
            finding.ERROR,
            error,
            f'allow {user.pw_name} to start the privsep daemon: see "The '
            'privileged half" in the documentation',
        )


def _error(conf: cfg.ConfigOpts, user: pwd.struct_passwd) -> str | None:
    try:
        # S603: the arguments are this module's, and paths of root.
        done = subprocess.run(  # noqa: S603
            [
                sys.executable,
                '-m',
                'os_acc.doctor.daemon_of_user',
                *(conf.config_file or ()),
                # The default directories need not exist.
                *filter(os.path.isdir, getattr(conf, 'config_dir', ())),
            ],
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=os.getgrouplist(user.pw_name, user.pw_gid),
            cwd='/',
            env={
                'PATH': os.environ.get('PATH', os.defpath),
                'HOME': user.pw_dir,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return f'it did not start within {_TIMEOUT:g} s'
    except OSError as err:
        return f'{sys.executable} cannot be run as this user: {err.strerror}'
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = done.stderr.strip().splitlines() or ['it said nothing']
        return f'the check ended with exit code {done.returncode}: {said[-1]}'
    if answer['error'] is not None:
        return str(answer['error'])
    if answer['user'] != 0 or answer['missing']:
        return (
            f'it runs as user id {answer["user"]} and lacks '
            f'{", ".join(answer["missing"]) or "nothing else"}'
        )
    return None
