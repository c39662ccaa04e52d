# SPDX-License-Identifier: Apache-2.0

"""Where the kernel's targets are set up: configfs."""

from __future__ import annotations

import errno
import os

from os_acc.kernel import sysfs


def root(module: str, name: str) -> str:
    """The directory in configfs of a part of the kernel.

    A module makes its directory when it is loaded. A container may have a
    sysfs of its own, without configfs: then a target's exports are not seen.

    :param module: the kernel module that makes the directory
    :raises OSError: if the module is loaded and the directory is not here
    """
    directory = f'{sysfs.SYS}/kernel/config/{name}'
    loaded = os.path.isdir(f'{sysfs.SYS}/module/{module}')
    if loaded and not os.path.isdir(directory):
        raise OSError(
            errno.ENOENT,
            f'the kernel has {module}, and configfs is not mounted here',
            directory,
        )
    return directory
