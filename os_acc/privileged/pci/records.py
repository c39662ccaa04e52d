# SPDX-License-Identifier: Apache-2.0

"""What an undo needs to know about PCI functions: see undo_log."""

from __future__ import annotations

import dataclasses
from typing import Any

from os_acc.privileged import undo_log


@dataclasses.dataclass(frozen=True)
class Function(undo_log.Record):
    """A PCI function that was bound to VFIO, or to its host_driver.

    :ivar ids: vendor:product
    :ivar driver: its driver before; None if it had none
    :ivar override: its driver_override before; None if it was unset
    :ivar vfio_driver: the driver that it was to be bound to
    """

    ids: str
    driver: str | None
    override: str | None
    vfio_driver: str


@dataclasses.dataclass(frozen=True)
class Port(undo_log.Record):
    """The settings of a NIC's VF that were changed on its PF.

    :ivar ids: vendor:product
    :ivar ours: what was set, by the names of rtnetlink.SETTINGS
    :ivar before: what was there before, by the same names
    """

    ids: str
    ours: dict[str, Any]
    before: dict[str, Any]


functions = undo_log.Records('functions', Function)
ports = undo_log.Records('ports', Port)
