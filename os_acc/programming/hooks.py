# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Hooks: entry points that are called after a device was programmed."""

from __future__ import annotations

import contextvars
import functools
from importlib import metadata
import logging

from oslo_config import cfg

from os_acc import exception
from os_acc.devices import waiting

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

#: The group of the entry points.
GROUP = 'os_acc.programmed'


def call(device: str, function_id: str | None) -> None:
    """Call every hook. A hook that fails is logged and changes nothing.

    :param device: the address of the device
    :param function_id: its new function; None: it was cleared
    """
    for hook in metadata.entry_points(group=GROUP):
        try:
            waiting.at_most(
                # The hook runs in another thread, with the same context.
                functools.partial(
                    contextvars.copy_context().run,
                    _call,
                    hook,
                    device,
                    function_id,
                ),
                CONF.os_acc.hook_timeout,
                f'hook {hook.name!r} of {GROUP}',
            )
        except Exception as err:
            LOG.error(
                'Hook %r of %s failed for device %s and function %s: %s',
                hook.name,
                GROUP,
                device,
                function_id,
                exception.describe(err),
            )


def _call(
    hook: metadata.EntryPoint, device: str, function_id: str | None
) -> None:
    hook.load()(device, function_id)
