# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Which file system a folder is on, by mountinfo of proc(5)."""

from __future__ import annotations

import os
import re

from os_acc.devices import sysfs

# File systems whose files are gone after a reboot.
_VOLATILE = frozenset({'tmpfs', 'ramfs', 'rootfs'})
_ESCAPE = re.compile(r'\\([0-7]{3})')


def type_of(path: str) -> str | None:
    """The type of the file system of a path, which need not exist yet.

    :returns: such as ``tmpfs``; None if the kernel shows no mounts
    """
    real = os.path.realpath(path)
    found, longest = None, -1
    with open(
        f'{sysfs.PROC}/self/mountinfo', encoding='utf-8', errors='replace'
    ) as file:
        for line in file:
            fields = line.split()
            if '-' not in fields[6:-1]:
                continue
            # The kernel writes blanks and backslashes in octal digits.
            place = _ESCAPE.sub(lambda m: chr(int(m[1], 8)), fields[4])
            inside = place.rstrip('/') + '/'
            # Of two mounts on one folder, the later one hides the other.
            if f'{real}/'.startswith(inside) and len(inside) >= longest:
                longest = len(inside)
                found = fields[fields.index('-', 6) + 1]
    return found


def is_volatile(kind: str) -> bool:
    """Whether the files of such a file system are gone after a reboot."""
    return kind in _VOLATILE
