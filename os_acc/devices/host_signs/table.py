# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""All signs by which the host shows that it uses a PCI function.

This is the one place that answers "what of this host depends on this PCI
function?". The documentation takes its table from here.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import functools

from os_acc.devices import host_refusals
from os_acc.devices import pci
from os_acc.devices import reasons
from os_acc.devices.host_signs import block_signs
from os_acc.devices.host_signs import boot_signs
from os_acc.devices.host_signs import console_signs
from os_acc.devices.host_signs import function_signs
from os_acc.devices.host_signs import interface_signs
from os_acc.devices.host_signs import kernel_signs
from os_acc.devices.host_signs import port_signs
from os_acc.devices.host_signs import rdma_signs
from os_acc.devices.host_signs import service_signs
from os_acc.devices.host_signs import sign
from os_acc.devices.host_signs import snapshot

Reason = reasons.Reason
Snapshot = snapshot.Snapshot

#: In the order in which they are asked. A module of signs adds its own.
SIGNS: tuple[sign.Sign, ...] = (
    *console_signs.SIGNS,
    *function_signs.SIGNS,
    *interface_signs.SIGNS,
    *rdma_signs.SIGNS,
    *port_signs.SIGNS,
    *block_signs.SIGNS,
    *boot_signs.SIGNS,
    *service_signs.SIGNS,
    *kernel_signs.SIGNS,
)


def uses(function: pci.Function, host: Snapshot) -> Iterator[Reason]:
    """Say what the host uses a PCI function for, by all signs.

    :returns: a reason for each use; a file that cannot be read is one
    """
    for each in SIGNS:
        if isinstance(each, sign.FunctionSign):
            yield from _said(functools.partial(each.find, host, function))
        elif isinstance(each, sign.InterfaceSign):
            for name in host.interfaces_of(function.address):
                yield from _said(functools.partial(each.find, host, name))
        elif isinstance(each, sign.BlockSign):
            for name in host.blocks_of(function.address):
                yield from _said(functools.partial(each.find, host, name))


def block_uses(name: str, host: Snapshot) -> Iterator[Reason]:
    """Say what the host uses a block device for. See uses()."""
    for each in SIGNS:
        if isinstance(each, sign.BlockSign):
            yield from _said(functools.partial(each.find, host, name))


def _said(find: Callable[[], Reason | None]) -> Iterator[Reason]:
    try:
        reason = find()
    except OSError as err:
        if err.filename is None:
            raise
        reason = host_refusals.UNREADABLE.say(
            file=err.filename, error=err.strerror
        )
    if reason is not None:
        yield reason
