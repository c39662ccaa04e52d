# SPDX-License-Identifier: Apache-2.0

"""What an undo needs to know about mdevs and vGPU types: see undo_log."""

from __future__ import annotations

import dataclasses

from os_acc.privileged import undo_log


@dataclasses.dataclass(frozen=True)
class Mdev(undo_log.Record):
    """A mediated device that was made.

    :ivar kept: whether it stays without a VAN, for os-acc apply
    """

    parent: str
    type: str
    kept: bool = False


@dataclasses.dataclass(frozen=True)
class Vgpu(undo_log.Record):
    """The vGPU type that was set on a VF."""

    number: int


mdevs = undo_log.Records('mdevs', Mdev)
vgpus = undo_log.Records('vgpus', Vgpu)
