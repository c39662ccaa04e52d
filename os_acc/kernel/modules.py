# SPDX-License-Identifier: Apache-2.0

"""Kernel modules: the VFIO drivers, and which modules are there."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import fnmatch
import functools
import os
import re

from os_acc.kernel import pci
from os_acc.kernel import sysfs

VFIO_PCI = 'vfio-pci'

# modprobe.d(5). The last value of an option counts.
MODPROBE_DIRECTORIES = (
    '/usr/lib/modprobe.d',
    '/run/modprobe.d',
    '/etc/modprobe.d',
)

_TRUE = re.compile('[yt1]|on', re.I)

_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9_-]{0,63}')


def vfio_driver(modalias: str) -> str:
    """The VFIO driver for a function: a variant for its kind, or vfio-pci.

    A variant driver has aliases ``vfio_pci:...`` in place of ``pci:...`` for
    the functions that it supports (PCI_DRIVER_OVERRIDE_DEVICE_VFIO in
    include/linux/pci.h). The alias with the fewest wildcards wins, as in
    libvirt. The alias of vfio-pci itself matches every function.
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
    """Whether a driver is vfio-pci or, by modules.alias, a variant of it.

    See vfio.is_bound() for a function that is bound.
    """
    return same(name, VFIO_PCI) or any(
        same(name, module) for _, module in _vfio_aliases()
    )


def is_name(text: str) -> bool:
    """Whether a text can be the name of a module or driver."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def same(name: str, other: str) -> bool:
    """Whether two names mean one module: '-' and '_' are equal."""
    return name.replace('-', '_') == other.replace('-', '_')


def _vfio_aliases() -> Sequence[tuple[str, str]]:
    path = _list_of('modules.alias')
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
    """The name of a module's PCI driver as the kernel spells it, if loaded."""
    for name in (module, module.replace('_', '-'), module.replace('-', '_')):
        if os.path.isdir(pci.driver_directory(name)):
            return name
    return None


def is_installed(module: str) -> bool:
    """Whether this kernel has a module, as a file or built in: depmod(8)."""
    for name in ('modules.dep', 'modules.builtin'):
        with (
            contextlib.suppress(OSError),
            open(_list_of(name), encoding='utf-8') as file,
        ):
            for line in file:
                path = line.partition(':')[0].strip()
                found = os.path.basename(path).partition('.ko')[0]
                if found and same(found, module):
                    return True
    return False


def _list_of(name: str) -> str:
    """The path of a list that depmod(8) makes for the running kernel."""
    return os.path.join(sysfs.LIB_MODULES, os.uname().release, name)


def is_on(module: str, option: str) -> bool:
    """Whether a flag of a module is set, or would be when it is loaded.

    The kernel shows the value for a loaded module. For another one, this reads
    the kernel's command line and the files of modprobe.d(5), as modprobe does.
    """
    name = module.replace('-', '_')
    value = sysfs.read(f'{sysfs.SYS}/module/{name}/parameters/{option}')
    if value is None and not os.path.isdir(f'{sysfs.SYS}/module/{name}'):
        value = _configured(name, option)
    # kstrtobool() in lib/kstrtox.c
    return value is not None and _TRUE.match(value) is not None


def _configured(module: str, option: str) -> str | None:
    found = None
    for line in _option_lines():
        words = line.split()
        if words[:1] == ['options'] and same(words[1], module):
            for word in words[2:]:
                key, _, value = word.partition('=')
                if same(key, option):
                    found = value or 'y'
    for word in (sysfs.read(f'{sysfs.PROC}/cmdline') or '').split():
        key, _, value = word.partition('=')
        if same(key, f'{module}.{option}'):
            found = value or 'y'
    return found


def _option_lines() -> Iterator[str]:
    """The lines of modprobe's files with at least two words.

    Of two files of one name, the later directory's counts. A backslash at the
    end of a line joins the next one to it.
    """
    files = {
        name: os.path.join(directory, name)
        for directory in MODPROBE_DIRECTORIES
        for name in sysfs.names(directory)
        if name.endswith('.conf')
    }
    for _, path in sorted(files.items()):
        # What cannot be read does not count as set.
        text = sysfs.read_if_possible(path).replace('\\\n', '')
        yield from (x for x in text.splitlines() if len(x.split()) > 1)
