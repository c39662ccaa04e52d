# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Kernel modules: which there are for VFIO, and loading one."""

from __future__ import annotations

from collections.abc import Sequence
import fnmatch
import functools
import os
import re
import subprocess

from os_acc import exception
from os_acc.devices import pci
from os_acc.devices import sysfs

VFIO_PCI = 'vfio-pci'

_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9_-]{0,63}')


def vfio_driver(modalias: str) -> str:
    """The VFIO driver for a function: a variant made for it, or vfio-pci.

    Variant drivers say what they are for by aliases ``vfio_pci:...`` where
    others have ``pci:...`` (drivers/vfio/pci/Kconfig, PCI_DRIVER_OVERRIDE_
    DEVICE_VFIO in include/linux/pci.h). As libvirt does, the one with the
    fewest wildcards wins; one that takes everything is vfio-pci itself.

    :param modalias: the function's, ``pci:v...``
    """
    kind, _, ids = modalias.partition(':')
    best, least = VFIO_PCI, None
    for pattern, module in _vfio_aliases():
        if kind == 'pci' and fnmatch.fnmatchcase(ids, pattern):
            wild = pattern.count('*')
            if least is None or wild < least:
                best, least = module, wild
    return VFIO_PCI if same(best, VFIO_PCI) else best


def is_vfio_driver(name: str) -> bool:
    """Whether a driver is vfio-pci or a variant of it."""
    return same(name, VFIO_PCI) or any(
        same(name, module) for _, module in _vfio_aliases()
    )


def is_name(text: str) -> bool:
    """Whether a text can be the name of a module or driver."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def same(name: str, other: str) -> bool:
    """Whether two names are one module's: '-' and '_' are the same."""
    return name.replace('-', '_') == other.replace('-', '_')


def _vfio_aliases() -> Sequence[tuple[str, str]]:
    path = os.path.join(sysfs.LIB_MODULES, os.uname().release, 'modules.alias')
    try:
        changed = os.stat(path).st_mtime_ns
    except OSError:
        return ()
    return _parse(path, changed)


@functools.lru_cache(maxsize=4)
def _parse(path: str, _changed: int) -> Sequence[tuple[str, str]]:
    """The ``vfio_pci:`` lines of modules.alias, depmod.d(5)."""
    found = []
    with open(path, encoding='utf-8', errors='replace') as file:
        for line in file:
            if line.startswith('alias vfio_pci:'):
                _, alias, module = line.split(maxsplit=2)
                found.append((alias.partition(':')[2], module.strip()))
    return tuple(found)


def loaded_driver(module: str) -> str | None:
    """The name under which a module's PCI driver is there, or None."""
    for name in (module, module.replace('_', '-'), module.replace('-', '_')):
        if os.path.isdir(pci.driver_folder(name)):
            return name
    return None


def is_installed(module: str) -> bool:
    """Whether this kernel has a module, as a file or built in.

    By modules.dep and modules.builtin, depmod(8).
    """
    folder = os.path.join(sysfs.LIB_MODULES, os.uname().release)
    for name in ('modules.dep', 'modules.builtin'):
        try:
            with open(os.path.join(folder, name), encoding='utf-8') as file:
                for line in file:
                    path = line.partition(':')[0].strip()
                    found = os.path.basename(path).partition('.ko')[0]
                    if found and same(found, module):
                        return True
        except OSError:
            continue
    return False


def load_driver(module: str, seconds: float) -> str:
    """See that a PCI driver is there; load its module if it is not.

    Needs CAP_SYS_MODULE.

    :returns: the driver's name as the kernel spells it
    :raises DeviceError: it is not to be had
    :raises Timeout: modprobe did not end
    """
    if not is_name(module):
        raise exception.InvalidRequest(
            subject='kernel module',
            field='name',
            value=module,
            expected='letters, digits, - and _',
        )
    if (name := loaded_driver(module)) is not None:
        return name
    load(module, seconds)
    if (name := loaded_driver(module)) is None:
        raise exception.DeviceError(
            device=f'kernel module {module}',
            reason='it is loaded, and brings no PCI driver of its name',
        )
    return name


def load(module: str, seconds: float) -> None:
    """modprobe(8)."""
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
