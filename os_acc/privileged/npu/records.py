# SPDX-License-Identifier: Apache-2.0

"""What an interrupted reset of an NPU needs to know: see undo_log."""

from __future__ import annotations

import dataclasses

from os_acc.privileged import undo_log


@dataclasses.dataclass(frozen=True)
class Reset(undo_log.Record):
    """An NPU whose driver is being unbound and bound again.

    :ivar ids: vendor:product
    :ivar driver: the kernel driver
    """

    ids: str
    driver: str


resets = undo_log.Records('npu-resets', Reset)
