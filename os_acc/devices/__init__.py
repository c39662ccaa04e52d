# SPDX-License-Identifier: Apache-2.0

"""The earlier place of four modules, for drivers of other distributions.

``from os_acc.devices import sysfs`` still works, with a DeprecationWarning
that names the module's present place.
"""

from __future__ import annotations

import importlib
import types
from typing import Final
import warnings

_MOVED: Final = {
    'chip': 'os_acc.kernel',
    'device_spec': 'os_acc.spec',
    # Tests of drivers set its PATH.
    'root_folder': 'os_acc.privileged',
    'sysfs': 'os_acc.kernel',
}


def __getattr__(name: str) -> types.ModuleType:
    package = _MOVED.get(name)
    if package is None:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    warnings.warn(
        f'os_acc.devices.{name} is now {package}.{name}',
        DeprecationWarning,
        stacklevel=2,
    )
    return importlib.import_module(f'{package}.{name}')
