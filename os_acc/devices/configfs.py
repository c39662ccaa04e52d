# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Where the kernel's targets are set up: configfs."""

from __future__ import annotations

import errno
import os

from os_acc.devices import sysfs


def root(module: str, name: str) -> str:
    """The directory in configfs of a part of the kernel.

    A module makes its directory when it is loaded. A container may have a
    sysfs of its own, without configfs: then a target's exports are not seen.

    :param module: the kernel module that makes the directory
    :raises OSError: if the module is loaded and the directory is not here
    """
    folder = f'{sysfs.SYS}/kernel/config/{name}'
    loaded = os.path.isdir(f'{sysfs.SYS}/module/{module}')
    if loaded and not os.path.isdir(folder):
        raise OSError(
            errno.ENOENT,
            f'the kernel has {module}, and configfs is not mounted here',
            folder,
        )
    return folder
