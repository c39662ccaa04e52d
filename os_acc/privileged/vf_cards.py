# SPDX-License-Identifier: Apache-2.0

"""What cards need before VFs of their PFs are made, and after these are gone.

Whoever makes VFs asks all of them, and does not know which cards there are.
"""

from __future__ import annotations

from typing import Final
from typing import Protocol

from os_acc.kernel import pci
from os_acc.privileged.fpga import dfl_ports


class Card(Protocol):
    """A kind of card. Each call does nothing if the PF is not such a card."""

    def before_vfs(
        self, pf: pci.Function, number: int, seconds: float, /
    ) -> None:
        """Prepare a PF that has no VFs, with its operation lock held.

        :param number: how many VFs are about to be made
        :param seconds: how long it may take
        :raises DeviceBusy, DeviceError, Timeout: if they cannot be made now
        """

    def after_vfs(self, pf: pci.Function, seconds: float, /) -> None:
        """Undo before_vfs(), with the operation lock of the PF held.

        :param seconds: how long it may take
        :raises DeviceBusy, DeviceError, Timeout: if that failed
        """


#: A list of names, not a registry: one that is missing is seen here.
ALL: Final[tuple[Card, ...]] = (dfl_ports,)
