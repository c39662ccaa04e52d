# SPDX-License-Identifier: Apache-2.0

"""What an undo needs to know about NVMe-oF connections: see undo_log."""

from __future__ import annotations

import dataclasses
from typing import Any

from os_acc.privileged import undo_log


@dataclasses.dataclass(frozen=True)
class Connection(undo_log.Record):
    """The connections of an instance to a subsystem of an NVMe-oF target.

    :ivar nqn: of the subsystem
    :ivar instance: its UUID
    :ivar portals: those that nobody was connected to before, each as address,
        port and transport
    :ivar namespaces: the world wide names of those that the instance has by
        these connections
    """

    nqn: str
    instance: str
    portals: list[list[Any]]
    namespaces: list[str]


connections = undo_log.Records('connections', Connection)
