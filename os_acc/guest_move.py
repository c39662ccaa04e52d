# SPDX-License-Identifier: Apache-2.0

"""What a plugin does to move a guest to another host."""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os_acc import objects

#: The host from which a guest moves.
SOURCE = 'source'
#: The host to which a guest moves.
TARGET = 'target'


class GuestMove(abc.ABC):
    """Moves the guest of one instance from this host to another.

    A plugin returns it from guest_move(). os-acc makes these calls between
    those of os_acc.migration. The guest is moved while it runs::

        carry()

    or it is stopped, and started again::

        define(), stop(), forget(), start()

    Until forget(), discard() and restart() undo the latter.

    :ivar runs: whether the guest ran when this object was made
    """

    runs: bool

    @abc.abstractmethod
    def obstacles(
        self, way: str, vans: Sequence[objects.VAN]
    ) -> Collection[str]:
        """Say what is in the way. It changes nothing.

        :param way: live, replug or cold
        :param vans: those of the guest, which move with it
        :raises HypervisorError: if a hypervisor does not answer
        """

    @abc.abstractmethod
    def shared_files(self, way: str) -> Collection[str]:
        """The paths of the files that must be the same on both hosts."""

    @abc.abstractmethod
    def carry(
        self,
        vans_source: Sequence[objects.VAN],
        vans_target: Sequence[objects.VAN],
        seconds: float,
        stopped: Callable[[], bool],
    ) -> None:
        """Move the running guest. Afterwards, where() says where it is.

        :param vans_source: those that it moves with; none if they are detached
        :param vans_target: what they are on the target
        :param seconds: how long it may take
        :param stopped: whether to give up
        :raises HypervisorError: if the hypervisor refuses, or gives up
        :raises Timeout: if it has taken too long
        """

    @abc.abstractmethod
    def where(self) -> str | None:
        """Say where the guest is, after a carry() that has ended or failed.

        A guest that a failed carry() has left paused here goes on.

        :returns: SOURCE, TARGET, or None if that cannot be told
        """

    @abc.abstractmethod
    def define(
        self,
        vans_source: Sequence[objects.VAN],
        vans_target: Sequence[objects.VAN],
    ) -> None:
        """Define the guest on the target, with the devices of the target.

        :raises HypervisorError: if the hypervisor refuses
        """

    @abc.abstractmethod
    def discard(self) -> None:
        """Remove from the target what define() has defined."""

    @abc.abstractmethod
    def stop(self, seconds: float, stopped: Callable[[], bool]) -> None:
        """Shut the guest down, and keep it from starting by itself here.

        :param seconds: how long the guest may take
        :param stopped: whether to give up
        :raises Timeout: if the guest has not ended in time
        :raises HypervisorError: if the hypervisor refuses
        """

    @abc.abstractmethod
    def restart(self) -> None:
        """Undo stop(): start the guest here if it ran.

        :raises HypervisorError: if the hypervisor refuses
        """

    @abc.abstractmethod
    def forget(self) -> None:
        """Remove the guest, which does not run, from this host.

        :raises HypervisorError: if the hypervisor refuses, or the guest runs
        """

    @abc.abstractmethod
    def start(self) -> None:
        """Start the guest on the target if it ran here.

        :raises HypervisorError: if the hypervisor refuses
        """
