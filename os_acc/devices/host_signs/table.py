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

from collections.abc import Iterator
from typing import Any

from os_acc.devices import host_refusals
from os_acc.devices import pci
from os_acc.devices import reasons
from os_acc.devices.host_signs import block_signs
from os_acc.devices.host_signs import function_signs
from os_acc.devices.host_signs import interface_signs
from os_acc.devices.host_signs import port_signs
from os_acc.devices.host_signs import sign
from os_acc.devices.host_signs import snapshot

Reason = reasons.Reason
Snapshot = snapshot.Snapshot

#: In the order in which they are asked. A module of signs adds its own.
SIGNS: tuple[sign.Sign, ...] = (
    *function_signs.SIGNS,
    *interface_signs.SIGNS,
    *port_signs.SIGNS,
    *block_signs.SIGNS,
)


def uses(function: pci.Function, host: Snapshot) -> Iterator[Reason]:
    """Say what the host uses a PCI function for, by all signs.

    :returns: a reason for each use; a file that cannot be read is one
    """
    try:
        errors = host.errors_of(function.address)
    except OSError as err:
        yield _unreadable(err, '/sys/class')
        return
    for each_error in errors:
        yield _unreadable(each_error, '/sys/class/block/NAME')
    for each in SIGNS:
        if isinstance(each, sign.FunctionSign):
            yield from _said(each, host, function)
        elif isinstance(each, sign.InterfaceSign):
            for name in host.interfaces_of(function.address):
                yield from _said(each, host, name)
        elif isinstance(each, sign.BlockSign):
            for name in host.blocks_of(function.address):
                yield from _said(each, host, name)


def block_uses(name: str, host: Snapshot) -> Iterator[Reason]:
    """Say what the host uses a block device for. See uses()."""
    for each in SIGNS:
        if isinstance(each, sign.BlockSign):
            yield from _said(each, host, name)


def _said(each: Any, host: Snapshot, subject: Any) -> Iterator[Reason]:
    """What a sign says of a block device, an interface or a function."""
    try:
        reason = each.find(host, subject)
    except (OSError, ValueError) as err:
        reason = _unreadable(err, each.file)
    if reason is not None:
        yield reason


def _unreadable(err: OSError | ValueError, file: str) -> Reason:
    """Say that a sign cannot be read.

    :param file: the file of the sign, if the error does not name one
    """
    if isinstance(err, OSError):
        return host_refusals.UNREADABLE.say(
            file=err.filename or file, error=err.strerror or err
        )
    return host_refusals.UNREADABLE.say(file=file, error=err)
