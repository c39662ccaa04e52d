# SPDX-License-Identifier: Apache-2.0

"""What an undo needs to know of device files: see record."""

from __future__ import annotations

import dataclasses

from os_acc.privileged import record


@dataclasses.dataclass(frozen=True)
class DeviceFile(record.Record):
    """A device file whose owner or permissions were changed.

    :ivar name: of the accelerator that the file is of
    :ivar inode: another file at the same path has another one
    :ivar before: user id, group id and permissions before
    :ivar ours: the same, as they were to be set
    """

    name: str
    path: str
    inode: int
    before: list[int]
    ours: list[int]


device_files = record.Records('device-files', DeviceFile)
