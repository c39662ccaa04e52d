# SPDX-License-Identifier: Apache-2.0

"""Which kind gives out device files under a name: the name tells it.

A kind whose handles are device files of its own has a module ``names``, whose
``split()`` knows the names that it makes. All other names are devfile's.
"""

from __future__ import annotations

from os_acc import kinds


def kind_of(name: str) -> str | None:
    """The kind that makes such names of its own.

    :param name: of a DeviceFileHandle
    :returns: None if the driver devfile has it
    """
    for kind, names in kinds.having('names').items():
        if names.split(name) is not None:
            return kind
    return None
