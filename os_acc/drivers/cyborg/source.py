# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Cyborg's drivers: what they have found, and calls to them."""

from __future__ import annotations

from collections.abc import Callable
import threading
import time
from typing import Any

from os_acc import exception
from os_acc import objects
from os_acc.drivers.cyborg import listing as cyborg_listing
from os_acc.drivers.cyborg import process as cyborg_process


class Source:
    """Asks Cyborg's drivers, and remembers for a while what they found.

    :param config: the values of the driver's options
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self._helpers: cyborg_process.Helpers | None = None
        self._start_lock = threading.Lock()
        # Good until then, on time.monotonic().
        self._last: tuple[float, list[cyborg_listing.Found]] | None = None

    def find(
        self,
        matches: Callable[[cyborg_listing.Found], bool],
        fresh: bool = False,
    ) -> list[cyborg_listing.Found]:
        """The devices that match.

        :param fresh: not what was found up to discovery_interval ago
        :raises DiscoveryFailed: none does, and a driver could not tell of
            its own; taken for a no, a device could go to a less fitting one
        """
        last = self._last
        errors: dict[str, str] = {}
        if last is not None and not fresh and time.monotonic() < last[0]:
            devices = last[1]
        else:
            devices, errors = self.discover()
            if not errors:
                until = time.monotonic() + self.config.discovery_interval
                self._last = until, devices
        matching = [found for found in devices if matches(found)]
        if errors and not matching:
            raise exception.DiscoveryFailed(message=joined(errors))
        return matching

    def get(
        self, matches: Callable[[cyborg_listing.Found], bool], wanted: str
    ) -> cyborg_listing.Found:
        """The device that matches.

        :param wanted: for the error
        :raises DeviceNotFound: there is none
        """
        for fresh in (False, True):
            for found in self.find(matches, fresh):
                return found
        names = ', '.join(self.config.enabled_drivers) or 'none is enabled'
        raise exception.DeviceNotFound(
            wanted=wanted, reason=f"none of Cyborg's drivers has it: {names}"
        )

    def at(self, address: str) -> cyborg_listing.Found:
        """The device with that address. As get()."""
        return self.get(lambda found: found.address == address, address)

    def forget(self) -> None:
        """What was found is not so any more."""
        self._last = None

    def discover(self) -> tuple[list[cyborg_listing.Found], dict[str, str]]:
        return cyborg_listing.read(
            self.call(
                'discover', self.config.timeout, 'discover their devices'
            )
        )

    def create_mdev(self, handle: objects.MdevHandle) -> None:
        self.call(
            'create_mdev',
            self.config.timeout,
            f'make mdev {handle.uuid}',
            parent=handle.parent,
            kind=handle.type,
            uuid=handle.uuid,
        )

    def call(
        self, method: str, seconds: float, what: str, **params: Any
    ) -> Any:
        with self._start_lock:
            if self._helpers is None:
                self._helpers = cyborg_process.Helpers(
                    self.config.python,
                    self.config.enabled_drivers,
                    self.config.config_files,
                )
        return self._helpers.call(method, seconds, what, **params)


def joined(errors: dict[str, str]) -> str:
    return '; '.join(
        f"Cyborg's {name}: {text}" for name, text in sorted(errors.items())
    )
