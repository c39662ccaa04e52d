# SPDX-License-Identifier: Apache-2.0

"""Checks which users can use the state path, and each file in it."""

from __future__ import annotations

from collections.abc import Iterator
import glob
import os
import stat

from oslo_config import cfg

from os_acc import finding
from os_acc import opts
from os_acc.bitstreams import options as bitstream_opts
from os_acc.journal import file as journal_file
from os_acc.state import files as state_files
from os_acc.state import sharing

SUBJECT = 'users of the state path'


def findings(conf: cfg.ConfigOpts) -> Iterator[finding.Finding]:
    """Say whether the state path is shared, and what keeps its users out."""
    directory = conf.os_acc.state_path
    try:
        found = os.stat(directory)
    except FileNotFoundError:
        return
    except PermissionError:
        yield finding.Finding(
            SUBJECT,
            finding.ERROR,
            sharing.unreachable(directory),
            sharing.PAGE,
        )
        return
    if not state_files.is_shared(found):
        yield _private(directory, found)
    elif not state_files.is_member(found.st_gid):
        yield finding.Finding(
            SUBJECT, finding.ERROR, sharing.refusal(directory), sharing.PAGE
        )
    else:
        yield finding.Finding(
            SUBJECT,
            finding.OK,
            f'it is shared with {state_files.group(found.st_gid)}: each user '
            'in this group can make os-acc act on the devices that it offers',
        )
        for path in _made(conf):
            yield from _closed(path, found.st_gid)


def _private(directory: str, found: os.stat_result) -> finding.Finding:
    mode = stat.S_IMODE(found.st_mode)
    text = (
        f'only {state_files.user(found.st_uid)} can use it: its mode is '
        f'{mode:04o}'
    )
    if not mode & stat.S_IWGRP:
        return finding.Finding(SUBJECT, finding.OK, text)
    return finding.Finding(
        SUBJECT,
        finding.WARNING,
        f'{text}. Its group can write to it, but os-acc shares a directory '
        f'with '
        'its group only if the mode is 2770',
        f'run as root: chmod 2770 {directory}; or, if only one user needs it: '
        f'chmod 0700 {directory}',
    )


def _made(conf: cfg.ConfigOpts) -> Iterator[str]:
    """Name what os-acc has made: the journal, the locks and the cache."""
    directory = conf.os_acc.state_path
    yield from sorted(
        glob.glob(glob.escape(journal_file.path_in(directory)) + '*')
    )
    for place in (opts.lock_path(conf), bitstream_opts.cache_path(conf)):
        yield os.path.realpath(place)
        yield from sorted(glob.glob(os.path.join(glob.escape(place), '*')))


def _closed(path: str, gid: int) -> Iterator[finding.Finding]:
    """Report a file or directory that not all users of the group can use."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    directory = stat.S_ISDIR(found.st_mode)
    mode = stat.S_IMODE(found.st_mode)
    needed = state_files.mode_in(gid, directory)
    if (
        (directory or stat.S_ISREG(found.st_mode))
        and found.st_gid == gid
        # Nobody else may write, not even if the directory keeps others out.
        and mode & (needed | stat.S_IWOTH) == needed
    ) or state_files.NEW in path:
        return
    yield finding.Finding(
        SUBJECT,
        finding.ERROR,
        f'not all users can use {path}: it belongs to '
        f'{state_files.user(found.st_uid)} and '
        f'{state_files.group(found.st_gid)} with mode {mode:04o}, expected '
        f'{state_files.group(gid)} and mode {needed:04o}',
        sharing.PAGE,
    )
