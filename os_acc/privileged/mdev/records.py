# SPDX-License-Identifier: Apache-2.0

"""What an undo needs to know of mdevs and vGPU types: see record."""

from __future__ import annotations

import dataclasses

from os_acc.privileged import record


@dataclasses.dataclass(frozen=True)
class Mdev(record.Record):
    """A mediated device that was made."""

    parent: str
    type: str


@dataclasses.dataclass(frozen=True)
class Vgpu(record.Record):
    """The vGPU type that was set on a VF."""

    number: int


mdevs = record.Records('mdevs', Mdev)
vgpus = record.Records('vgpus', Vgpu)
