# SPDX-License-Identifier: Apache-2.0

"""Asks nova-compute to report its devices at once after a programming.

Nova reports once a minute. Any process of the host may program a device, such
as the command os-acc. So the hook replaces a file, which nova-compute watches:
see reporting. Nothing here imports Nova.
"""

from __future__ import annotations

import os

import os_acc
from os_acc.programming import hooks
from os_acc.state import atomic_file

_FILE = 'report-devices'


def ask(event: hooks.ProgrammedEvent) -> None:
    """Ask nova-compute to report. An entry point of os_acc.programmed.

    :param event: which device was programmed or cleared
    :raises OSError: if the file cannot be written
    """
    # A new file: nova-compute and root must be able to replace each other's.
    atomic_file.write(_path(), f'{event.device}\n', 0o644, 0o755)


def asked() -> tuple[int, int] | None:
    """Identify the last time when nova-compute was asked; None: never."""
    try:
        found = os.stat(_path())
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _path() -> str:
    return os.path.join(os_acc.CONF.os_acc.state_path, _FILE)
