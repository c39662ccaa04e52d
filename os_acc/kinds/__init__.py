# SPDX-License-Identifier: Apache-2.0

"""One directory for each kind of device, with all that only this kind needs.

Code that serves all kinds asks module() and having() for the parts of a kind,
so that no list but ALL has to name a new one. A part is imported when it is
first asked for; nothing registers itself.
"""

from __future__ import annotations

from collections.abc import Mapping
import functools
import importlib
import importlib.util
import types

#: The kinds, by the names of their directories.
ALL = (
    'cyborg',
    'devfile',
    'drc',
    'fake',
    'fpga',
    'idxd',
    'mdev',
    'npu',
    'nvme_of',
    'pci',
    'vgpu',
)

#: The package of what runs as root. A kind has a directory in it, too.
ROOT = 'os_acc.privileged'


def module(kind: str, part: str, room: str = __name__) -> types.ModuleType:
    """A part of a kind, such as its claims."""
    return importlib.import_module(f'{room}.{kind}.{part}')


@functools.cache
def having(part: str) -> Mapping[str, types.ModuleType]:
    """A part of each kind that has it, by the name of the kind."""
    return {
        kind: module(kind, part)
        for kind in ALL
        if importlib.util.find_spec(f'{__name__}.{kind}.{part}') is not None
    }
