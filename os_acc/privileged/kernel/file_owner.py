# SPDX-License-Identifier: Apache-2.0

"""Changing owner and permissions of an open device file, as root."""

from __future__ import annotations

import os


def set_owner(fd: int, uid: int, gid: int) -> None:
    """Change owner and group of a file that opened() has opened, as root.

    fchown(2) refuses a descriptor of O_PATH; the link in /proc stands for the
    same file.
    """
    os.chown(f'/proc/self/fd/{fd}', uid, gid)


def set_mode(fd: int, mode: int) -> None:
    """Change the permissions of a file. See set_owner()."""
    os.chmod(f'/proc/self/fd/{fd}', mode)
