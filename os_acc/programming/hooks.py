# SPDX-License-Identifier: Apache-2.0

"""Hooks: entry points that are called after a device was programmed."""

from __future__ import annotations

import dataclasses
import functools
from importlib import metadata
import logging
from typing import Any

from oslo_config import cfg
from stevedore import named

from os_acc import exception
from os_acc.deadlines import waiting

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

#: The group of the entry points.
GROUP = 'os_acc.programmed'

#: The values of ProgrammedEvent.state.
PROGRAMMED, CLEARED, ERROR = 'programmed', 'cleared', 'error'


@dataclasses.dataclass(frozen=True)
class ProgrammedEvent:
    """The event that a hook gets. The same event may be delivered more than
    once.

    :ivar device: the address of the device
    :ivar driver: the name of os-acc's driver for it
    :ivar chip_serial: the serial number of its chip; None if unknown
    :ivar region: the region that was programmed; empty for the whole device
    :ivar function_id: the function that it has now; None: none, or unknown
    :ivar state: ``programmed``, ``cleared`` or ``error``
    :ivar reason: why the state is ``error``, else None
    :ivar handles: the identities of the attach handles that give access to
        the function, such as 'pci/0000:3b:00.1'
    """

    device: str
    driver: str
    chip_serial: str | None
    region: str
    function_id: str | None
    state: str
    reason: str | None = None
    handles: tuple[str, ...] = ()


def call(event: ProgrammedEvent) -> None:
    """Call every hook. A hook that fails is logged and changes nothing."""
    # stevedore reads the installed packages once per process. None of the
    # hooks is imported here: each is loaded when it is called.
    found = named.NamedExtensionManager[Any](GROUP, names=[])
    for hook in found.list_entry_points():
        try:
            waiting.at_most(
                functools.partial(_call, hook, event),
                CONF.os_acc.hook_timeout,
                f'hook {hook.name!r} of {GROUP}',
            )
        except Exception as err:
            LOG.error(
                'Hook %r of %s failed for %s: %s',
                hook.name,
                GROUP,
                event,
                exception.describe(err),
            )


def _call(hook: metadata.EntryPoint, event: ProgrammedEvent) -> None:
    hook.load()(event)
