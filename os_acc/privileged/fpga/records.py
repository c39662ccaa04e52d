# SPDX-License-Identifier: Apache-2.0

"""What an undo needs to know of FPGAs: see record."""

from __future__ import annotations

import dataclasses

from os_acc.privileged import record


@dataclasses.dataclass(frozen=True)
class DflCard(record.Record):
    """A card whose ports or driver os-acc is changing. See dfl_ports.

    :ivar released: the numbers of the ports that were to be released
    :ivar unbound: whether it was to be unbound from its driver and bound again
    """

    released: list[int]
    unbound: bool


@dataclasses.dataclass(frozen=True)
class Removal(record.Record):
    """A chip whose functions are being removed from the bus.

    :ivar buses: the buses to scan, so that its functions are found again
    """

    buses: list[str]


@dataclasses.dataclass(frozen=True)
class DflPort(record.Record):
    """A port of a card whose programming has begun and has not succeeded.

    :ivar failed: True: it has failed; False: it may still be under way
    """

    failed: bool


dfl_cards = record.Records('dfl-cards', DflCard)
removals = record.Records('removals', Removal)
dfl_ports = record.Records('dfl-ports', DflPort)
