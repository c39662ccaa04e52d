# SPDX-License-Identifier: Apache-2.0

"""The records by which root restores compute partitions: see undo_log."""

from __future__ import annotations

import dataclasses

from os_acc.privileged import undo_log


@dataclasses.dataclass(frozen=True)
class Partitions(undo_log.Record):
    """The compute partitions of an AMD GPU, which were changed.

    :ivar ids: vendor:product
    :ivar before: its mode before
    :ivar mode: the mode that was to be set
    """

    ids: str
    before: str
    mode: str


partitions = undo_log.Records('partitions', Partitions)
