# SPDX-License-Identifier: Apache-2.0

"""What the authors of drivers and plugins test with: os-acc[testing].

Subclass DriverContract or PluginContract in a test module of pytest. A name
is imported when it is first used, because Kernel needs neither pytest nor
fixtures.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from os_acc.fixture import OSAccFixture
    from os_acc.testing.any_plugin import AnyPlugin
    from os_acc.testing.contracts import DriverContract
    from os_acc.testing.contracts import PluginContract
    from os_acc.testing.kernel import Kernel
    from os_acc.testing.mortal import Crash
    from os_acc.testing.mortal import Mortal
    from os_acc.testing.rules import Broken

_MODULES = {
    'AnyPlugin': 'os_acc.testing.any_plugin',
    'Broken': 'os_acc.testing.rules',
    'Crash': 'os_acc.testing.mortal',
    'DriverContract': 'os_acc.testing.contracts',
    'Kernel': 'os_acc.testing.kernel',
    'Mortal': 'os_acc.testing.mortal',
    'OSAccFixture': 'os_acc.fixture',
    'PluginContract': 'os_acc.testing.contracts',
}

__all__ = [
    'AnyPlugin',
    'Broken',
    'Crash',
    'DriverContract',
    'Kernel',
    'Mortal',
    'OSAccFixture',
    'PluginContract',
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
