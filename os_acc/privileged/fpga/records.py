# SPDX-License-Identifier: Apache-2.0

"""What an undo needs to know about FPGAs: see undo_log."""

from __future__ import annotations

import dataclasses

from os_acc.privileged import undo_log


@dataclasses.dataclass(frozen=True)
class DflCard(undo_log.Record):
    """A card whose ports or driver os-acc is changing. See dfl_ports.

    :ivar released: the numbers of the ports that were to be released
    :ivar unbound: whether it was to be unbound from its driver and bound again
    """

    released: list[int]
    unbound: bool


@dataclasses.dataclass(frozen=True)
class Removal(undo_log.Record):
    """A chip whose functions are being removed from the bus.

    :ivar buses: the buses to scan, so that its functions are found again
    """

    buses: list[str]


@dataclasses.dataclass(frozen=True)
class DflPort(undo_log.Record):
    """A port of a card whose programming has begun and has not succeeded.

    :ivar failed: True: it has failed; False: it may still be under way
    """

    failed: bool


dfl_cards = undo_log.Records('dfl-cards', DflCard)
removals = undo_log.Records('removals', Removal)
dfl_ports = undo_log.Records('dfl-ports', DflPort)
