# SPDX-License-Identifier: Apache-2.0

"""All that runs as root: narrow calls, made through oslo.privsep.

``from os_acc.privileged import held``, which tests of services have, goes on
working: the module is ``notes`` now.
"""

from __future__ import annotations

import importlib
import types
import warnings


def __getattr__(name: str) -> types.ModuleType:
    if name != 'held':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    warnings.warn(
        f'{__name__}.held is now {__name__}.notes',
        DeprecationWarning,
        stacklevel=2,
    )
    return importlib.import_module(f'{__name__}.notes')
