# SPDX-License-Identifier: Apache-2.0

"""What an undo needs to know about work queues: see undo_log."""

from __future__ import annotations

import dataclasses
from typing import Any

from os_acc.privileged import undo_log


@dataclasses.dataclass(frozen=True)
class IdxdDevice(undo_log.Record):
    """A device of Intel DSA or IAA that was set up and enabled.

    :ivar ids: vendor:product
    :ivar mode: of each work queue, as size
    :ivar queues: the group of each work queue, by its number in digits
    :ivar engines: the group of each engine, by its number in digits
    :ivar kept: whether it stays enabled without a VAN, for os-acc apply
    """

    ids: str
    mode: str
    size: int
    queues: dict[str, int]
    engines: dict[str, int]
    kept: bool = False


@dataclasses.dataclass(frozen=True)
class IdxdQueue(undo_log.Record):
    """A work queue of Intel DSA or IAA that was configured and enabled.

    :ivar ids: vendor:product
    :ivar van: the UUID of the VAN that has it
    :ivar before: what its files contained before, by their names
    """

    ids: str
    van: str
    before: dict[str, str]


@dataclasses.dataclass(frozen=True)
class IdxdFiles(undo_log.Record):
    """The device files that a work queue has had for a VAN in this boot.

    The kernel forgets who has a work queue open when it is disabled, and gives
    it another number when it is enabled again.

    :ivar files: path, major number, minor number and place of each; the place
        is what open_files.place_of() returns
    """

    van: str
    files: list[list[Any]]


idxd_devices = undo_log.Records('idxd-devices', IdxdDevice)
idxd_queues = undo_log.Records('idxd-queues', IdxdQueue)
idxd_files = undo_log.Records('idxd-files', IdxdFiles)
