# SPDX-License-Identifier: Apache-2.0

"""Reads the mediated devices of a document. See mdevs."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

from os_acc import exception
from os_acc import schemas
from os_acc.kernel import mdev
from os_acc.kernel import pci


@dataclasses.dataclass(frozen=True)
class Mdevs:
    """Mediated devices that exist before an instance requests one.

    :ivar device: the name of their parent
    :ivar type: the name of their type
    :ivar count: how many
    """

    device: str
    type: str
    count: int = 1

    @property
    def label(self) -> str:
        return f'{self.device} {self.type}'


def read(items: Sequence[dict[str, Any]], place: schemas.Place) -> list[Mdevs]:
    """Check and normalise the names of parents and types."""
    made = []
    for number, item in enumerate(items):
        each = Mdevs(**item)
        if pci.is_address(each.device.lower()):
            each = dataclasses.replace(each, device=each.device.lower())
        for field in ('device', 'type'):
            try:
                mdev.check_name(getattr(each, field), field)
            except exception.InvalidRequest as err:
                raise schemas.at(err, ['mdevs', number, field], place) from err
        made.append(each)
    return made
