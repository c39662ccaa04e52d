# SPDX-License-Identifier: Apache-2.0

"""All signs by which the host shows that it uses a PCI function.

This is the one place that answers "what of this host depends on this PCI
function?". The documentation takes its table from here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from os_acc.availability.host_signs import block_signs
from os_acc.availability.host_signs import boot_signs
from os_acc.availability.host_signs import console_signs
from os_acc.availability.host_signs import function_signs
from os_acc.availability.host_signs import network_signs
from os_acc.availability.host_signs import port_signs
from os_acc.availability.host_signs import service_signs
from os_acc.availability.host_signs import sign
from os_acc.availability.host_signs.snapshot import Snapshot
from os_acc.kernel import pci
from os_acc.refusals import host_refusals
from os_acc.refusals.reasons import Reason

#: They are checked by kind: host, function, interface, block device; within a
#: kind in this order. Each module of signs adds its own.
SIGNS: tuple[sign.Sign, ...] = (
    *console_signs.SIGNS,
    *function_signs.SIGNS,
    *network_signs.SIGNS,
    *port_signs.SIGNS,
    *block_signs.SIGNS,
    *boot_signs.SIGNS,
    *service_signs.SIGNS,
)


# There are thousands of functions, so the signs are sorted once.
_OF_HOST = [each for each in SIGNS if isinstance(each, sign.HostSign)]
_OF_FUNCTION = [each for each in SIGNS if isinstance(each, sign.FunctionSign)]
_OF_INTERFACE = [x for x in SIGNS if isinstance(x, sign.InterfaceSign)]
_OF_BLOCK = [each for each in SIGNS if isinstance(each, sign.BlockSign)]


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
    by_address, of_all = host.once(_of_host)
    yield from of_all
    yield from by_address.get(function.address, ())
    for each in _OF_FUNCTION:
        yield from _reason_of(each, host, function)
    for name in host.interfaces_of(function.address):
        yield from interface_uses(name, host)
    for name in host.blocks_of(function.address):
        yield from block_uses(name, host)


def interface_uses(name: str, host: Snapshot) -> Iterator[Reason]:
    """Say what the host uses a network interface for. See uses()."""
    for each in _OF_INTERFACE:
        yield from _reason_of(each, host, name)


def block_uses(name: str, host: Snapshot) -> Iterator[Reason]:
    """Say what the host uses a block device for. See uses()."""
    for each in _OF_BLOCK:
        yield from _reason_of(each, host, name)


def _of_host(host: Snapshot) -> tuple[dict[str, list[Reason]], list[Reason]]:
    """The uses by address, and those that count for every function."""
    found: dict[str, list[Reason]] = defaultdict(list)
    of_all = []
    for each in _OF_HOST:
        try:
            for address, reason in each.find(host).items():
                found[address].append(reason)
        except (OSError, ValueError) as err:
            of_all.append(_unreadable(err, each.file))
    return found, of_all


def _reason_of(
    of_one: sign.BlockSign | sign.InterfaceSign | sign.FunctionSign,
    host: Snapshot,
    subject: Any,
) -> Iterator[Reason]:
    """What a sign says about a block device, an interface or a function."""
    try:
        reason = of_one.find(host, subject)
    except (OSError, ValueError) as err:
        reason = _unreadable(err, of_one.file)
    if reason is not None:
        yield reason


def _unreadable(err: OSError | ValueError, file: str) -> Reason:
    """Say that the file of a sign, or the one of the error, is unreadable."""
    said: object = err
    if isinstance(err, OSError):
        file, said = err.filename or file, err.strerror or err
    return host_refusals.UNREADABLE.reason(file=file, error=said)
