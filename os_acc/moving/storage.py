# SPDX-License-Identifier: Apache-2.0

"""Whether the files of a guest are the same ones on two hosts."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
import os
import stat
from typing import Any

#: What target hosts look at most.
MAX_FILES = 1024


def look(paths: Iterable[str]) -> dict[str, int | None]:
    """Look at files on this host.

    :returns: by path, the inode of a file, 0 for a device, or None if there
        is none; what this process may not see is left out
    """
    found: dict[str, int | None] = {}
    for path in paths:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            found[path] = None
        except (OSError, ValueError):
            continue
        else:
            is_device = stat.S_ISBLK(status.st_mode)
            found[path] = 0 if is_device else status.st_ino
    return found


def differences(
    here: Mapping[str, int | None], there: Mapping[str, Any]
) -> list[str]:
    """Say which files the two hosts do not share, as far as can be seen.

    A file that is shared has the same inode on all hosts.

    :param here: what look() has found on this host
    :param there: what it has found on the other host
    """
    found = []
    for path, inode in here.items():
        if inode is None or path not in there or there[path] == inode:
            continue
        what = 'has no' if there[path] is None else 'has another'
        found.append(
            f'the target {what} {path}: os-acc moves no disk, so that both '
            'hosts must share it'
        )
    return found
