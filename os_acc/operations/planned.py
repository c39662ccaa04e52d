# SPDX-License-Identifier: Apache-2.0

"""What would be done with one VAN."""

from __future__ import annotations

import dataclasses

PLUG = 'plug'
NOTHING = 'nothing'
PREPARE_AGAIN = 'prepare again'
ATTACH_AGAIN = 'attach again'
RELEASE_AND_PLUG = 'release, then plug'
UNPLUG = 'unplug'


@dataclasses.dataclass(frozen=True)
class Planned:
    """What would be done with one VAN.

    :ivar van: its UUID
    :ivar action: one of the constants of this module
    :ivar driver: name of the driver, which would do the device half
    :ivar plugin: name of the plugin, which would do the instance half
    :ivar state: the state of the VAN in the journal; None: it has none yet
    :ivar handle: the attach handle; None: the driver would choose it
    :ivar devices: the address of the device; if the driver would choose one,
        its choice comes first, and then the others that fit; empty if none
        fits
    :ivar obstacle: why it would fail, as far as a look can tell; None: there
        is no such reason
    """

    van: str
    action: str
    driver: str
    plugin: str
    state: str | None = None
    handle: str | None = None
    devices: list[str] = dataclasses.field(default_factory=list)
    obstacle: str | None = None
