# SPDX-License-Identifier: Apache-2.0

"""Calls to Cyborg's drivers, and the devices that they discovered last."""

from __future__ import annotations

from collections.abc import Callable
import threading
import time
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc import objects
from os_acc.kernel import reset
from os_acc.kinds.cyborg.driver import listing as cyborg_listing
from os_acc.kinds.cyborg.driver import process as cyborg_process

#: The options of the driver cyborg.
OPTS = (
    cfg.ListOpt(
        'enabled_drivers',
        default=[],
        help="Names of Cyborg's drivers to use: entry points of the group "
        'cyborg.accelerator.driver, such as intel_fpga_driver. If the list '
        'is empty, os-acc uses none of them and starts no process.',
    ),
    cfg.StrOpt(
        'python',
        default='',
        sample_default='<the one that os-acc runs in>',
        help='Path of the Python interpreter of the environment in which '
        'Cyborg is installed.',
    ),
    cfg.ListOpt(
        'config_files',
        default=[],
        help="Cyborg's configuration files, such as "
        '/etc/cyborg/cyborg.conf. Some of its drivers have options there.',
    ),
    cfg.FloatOpt(
        'timeout',
        default=60.0,
        min=0.1,
        help="Time limit in seconds for Cyborg's drivers to discover their "
        'devices or to create a mediated device. At the limit they are '
        'killed, with all processes that they have started.',
    ),
    cfg.FloatOpt(
        'program_timeout',
        default=1800.0,
        min=0.1,
        help="Time limit in seconds for Cyborg's drivers to program a device. "
        'At the limit they are killed, as for timeout.',
    ),
    cfg.FloatOpt(
        'discovery_interval',
        default=60.0,
        min=0,
        help="Seconds for which the devices that Cyborg's drivers discovered "
        'are remembered, to decide whether a request is for one of them.',
    ),
    cfg.StrOpt(
        'reset',
        default=reset.AUTO,
        choices=reset.CHOICES,
        help='Whether a PCI function is reset between two instances.',
    ),
)


class Source:
    """Calls Cyborg's drivers and keeps what they found for a while."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self._helpers: cyborg_process.Helpers | None = None
        self._start_lock = threading.Lock()
        # When it expires, on time.monotonic(), and the devices.
        self._last: tuple[float, list[cyborg_listing.Found]] | None = None

    def find(
        self,
        matches: Callable[[cyborg_listing.Found], bool],
        fresh: bool = False,
    ) -> list[cyborg_listing.Found]:
        """List the devices that match.

        :raises DiscoveryFailed: if no device matches and one of Cyborg's
            drivers failed: its devices might have matched, and the request
            must not go to a driver that fits less well
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
        """The first device that matches; if none does, discover again."""
        for fresh in (False, True):
            for found in self.find(matches, fresh):
                return found
        names = ', '.join(self.config.enabled_drivers) or 'none is enabled'
        raise exception.DeviceNotFound(
            wanted=wanted, reason=f"none of Cyborg's drivers has it ({names})"
        )

    def at(self, address: str) -> cyborg_listing.Found:
        """Return the device with an address; raises as get()."""
        return self.get(lambda found: found.address == address, address)

    def forget(self) -> None:
        """Forget the devices: they may have changed."""
        self._last = None

    def discover(self) -> tuple[list[cyborg_listing.Found], dict[str, str]]:
        """Have Cyborg's drivers discover their devices now."""
        return cyborg_listing.read(
            self.call(
                'discover', self.config.timeout, 'discover their devices'
            )
        )

    def create_mdev(self, handle: objects.MdevHandle) -> None:
        """Have Cyborg create a mediated device."""
        self.call(
            'create_mdev',
            self.config.timeout,
            f'create mdev {handle.uuid}',
            parent=handle.parent,
            kind=handle.type,
            uuid=handle.uuid,
        )

    def call(
        self, method: str, seconds: float, what: str, **params: Any
    ) -> Any:
        """Call a method of the helper process, see process.Helpers.call."""
        with self._start_lock:
            if self._helpers is None:
                self._helpers = cyborg_process.Helpers(
                    self.config.python,
                    self.config.enabled_drivers,
                    self.config.config_files,
                )
        return self._helpers.call(method, seconds, what, **params)


def joined(errors: dict[str, str]) -> str:
    """Join the errors of Cyborg's drivers into one text."""
    return '; '.join(
        f"Cyborg's {name}: {text}" for name, text in sorted(errors.items())
    )
