# SPDX-License-Identifier: Apache-2.0

"""Imports every module of the distribution.

    python tests/import_all.py

CI runs it on each Python. It finds a module that no unit test imports there.
"""

from __future__ import annotations

from collections.abc import Iterator
import importlib
import importlib.util
import pkgutil
import sys

PACKAGES = (
    'os_acc',
    'os_acc_command',
    'acc_plug_cdi',
    'acc_plug_libvirt',
    'acc_plug_noop',
    'acc_plug_powervm',
)


# Only these modules import Cyborg, which is not installed on each Python.
WITH_CYBORG = 'os_acc.cyborg.agent.'


def modules() -> Iterator[str]:
    without_cyborg = importlib.util.find_spec('cyborg') is None
    for name in PACKAGES:
        package = importlib.import_module(name)
        yield name
        for module in pkgutil.walk_packages(package.__path__, f'{name}.'):
            # That would run the module.
            if not module.name.endswith('.__main__') and not (
                without_cyborg and module.name.startswith(WITH_CYBORG)
            ):
                yield module.name


def load() -> int:
    """Import them all. Returns how many there are."""
    names = list(modules())
    for name in names:
        importlib.import_module(name)
    return len(names)


def main() -> None:
    sys.stdout.write(f'{load()} modules imported\n')


if __name__ == '__main__':
    main()
