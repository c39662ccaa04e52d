# SPDX-License-Identifier: Apache-2.0

"""The identity of the current boot of the host."""

from __future__ import annotations

import os

from os_acc.kernel import sysfs


def boot_id() -> str:
    """The UUID of the current boot of the host.

    The kernel makes a new random one at each boot: drivers/char/random.c,
    proc(5).

    :raises OSError: if this is not Linux, or /proc is not mounted
    """
    path = os.path.join(sysfs.PROC, 'sys/kernel/random/boot_id')
    with open(path, encoding='ascii') as file:
        return file.read().strip()
