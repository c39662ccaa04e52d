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

_SEE = 'see "Two users" in the documentation'


def findings(conf: cfg.ConfigOpts) -> Iterator[finding.Finding]:
    """Say whether the state path is shared, and what keeps its users out."""
    folder = conf.os_acc.state_path
    try:
        found = os.stat(folder)
    except FileNotFoundError:
        return
    except PermissionError:
        yield finding.Finding(
            SUBJECT, finding.ERROR, sharing.unreachable(folder), _SEE
        )
        return
    if state_files.is_shared(found):
        yield from _shared(conf, folder, found)
    else:
        yield _private(folder, found)


def _private(folder: str, found: os.stat_result) -> finding.Finding:
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
        f'{text}. Its group can write to it, but os-acc shares a folder with '
        'its group only if the mode is 2770',
        f'run as root: chmod 2770 {folder}; or, if only one user needs it: '
        f'chmod 0700 {folder}',
    )


def _shared(
    conf: cfg.ConfigOpts, folder: str, found: os.stat_result
) -> Iterator[finding.Finding]:
    whose = state_files.group(found.st_gid)
    if not state_files.is_member(found.st_gid):
        yield finding.Finding(
            SUBJECT, finding.ERROR, sharing.not_member(found), _SEE
        )
        return
    yield finding.Finding(
        SUBJECT,
        finding.OK,
        f'it is shared with {whose}: each user in this group can make os-acc '
        'act on the devices that it offers',
    )
    locks, cache = opts.lock_path(conf), bitstream_opts.cache_path(conf)
    for place in (locks, cache):
        yield from _folder(place, found.st_gid)
    journal = glob.escape(journal_file.path_in(folder)) + '*'
    for pattern in (
        journal,
        *(os.path.join(glob.escape(each), '*') for each in (locks, cache)),
    ):
        for path in sorted(glob.glob(pattern)):
            if state_files.NEW not in path:
                yield from _file(path)


def _folder(path: str, gid: int) -> Iterator[finding.Finding]:
    """Check the folder of the locks or of the bitstreams."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return  # os-acc makes it as the folder above demands
    if state_files.is_shared(found) and found.st_gid == gid:
        return
    yield finding.Finding(
        SUBJECT,
        finding.ERROR,
        f'{path} is not shared with {state_files.group(gid)}: it belongs to '
        f'{state_files.user(found.st_uid)} and '
        f'{state_files.group(found.st_gid)}, with mode '
        f'{stat.S_IMODE(found.st_mode):04o}',
        f'run as root: install -d -m 2770 -o '
        f'{state_files.user_name(found.st_uid)} -g '
        f'{state_files.group_name(gid)} {path}',
    )


def _file(path: str) -> Iterator[finding.Finding]:
    if reason := state_files.wrong(path):
        yield finding.Finding(
            SUBJECT,
            finding.ERROR,
            f'not all users can use {path}: {reason}',
            f'run as root: {state_files.fix(path)}; or restart the service '
            'that it belongs to',
        )
