# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Undo: last first, going on after a failure, saying all that failed."""

from __future__ import annotations

from collections.abc import Callable

from os_acc import exception


class UndoStack:
    """Acts to be done in reverse, each for one VAN.

    What fails for one VAN stops the further acts for that VAN only: a device
    that the guest would not let go of must not be taken from under it.
    """

    def __init__(self) -> None:
        self._acts: list[tuple[str, Callable[[], None]]] = []

    def push(self, van_uuid: str, act: Callable[[], None]) -> None:
        """Add an act; it raises StepFailed when it fails."""
        self._acts.append((van_uuid, act))

    def unwind(self) -> dict[str, exception.StepFailed]:
        """Do them all, and forget them.

        :returns: the VANs for which an act failed, and how
        """
        failed: dict[str, exception.StepFailed] = {}
        while self._acts:
            van_uuid, act = self._acts.pop()
            if van_uuid in failed:
                continue
            try:
                act()
            except exception.StepFailed as err:
                failed[van_uuid] = err
        return failed
