# SPDX-License-Identifier: Apache-2.0

"""Loading a kernel module, as root."""

from __future__ import annotations

import os
import subprocess

from os_acc import exception
from os_acc.kernel import modules


def load_driver(module: str, seconds: float) -> str:
    """Load the module of a PCI driver, unless the driver is there already.

    Needs CAP_SYS_MODULE.

    :returns: the driver's name as the kernel spells it
    """
    if not modules.is_name(module):
        raise exception.InvalidRequest(
            subject='kernel module',
            field='name',
            value=module,
            expected='letters, digits, - and _',
        )
    if (name := modules.loaded_driver(module)) is not None:
        return name
    load(module, seconds)
    if (name := modules.loaded_driver(module)) is None:
        raise exception.DeviceError(
            device=f'kernel module {module}',
            reason='it is loaded, but provides no PCI driver of its name',
        )
    return name


def load(module: str, seconds: float) -> None:
    """Load a module with modprobe(8)."""
    path = f'{os.environ.get("PATH", "")}:/usr/sbin:/sbin'
    try:
        subprocess.run(
            ['modprobe', '--', module],
            check=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, 'PATH': path},
        )
    except subprocess.TimeoutExpired as err:
        raise exception.Timeout(
            what=f'modprobe {module}', seconds=seconds
        ) from err
    except (OSError, subprocess.CalledProcessError) as err:
        text = getattr(err, 'stderr', None) or str(err)
        raise exception.DeviceError(
            device=f'kernel module {module}',
            reason=f'modprobe: {text.strip()}',
        ) from err
