# SPDX-License-Identifier: Apache-2.0

"""The users and groups of this host."""

from __future__ import annotations

import grp
import pwd


def number_of(kind: str, name: str) -> int | None:
    """The number of a 'user' or 'group'; None if the host has none."""
    if name.isdigit():
        return int(name)
    try:
        if kind == 'user':
            return pwd.getpwnam(name).pw_uid
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None
