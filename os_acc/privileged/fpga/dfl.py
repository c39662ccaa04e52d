# SPDX-License-Identifier: Apache-2.0

"""Programming a DFL card through the kernel, as root.

A caller names the device, its region, the image and the function. Which
devices may be programmed in this way is in the daemon's own ``[os_acc]
device_spec``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from typing import BinaryIO

from os_acc import exception
from os_acc.bitstreams import gbs as bitstream_gbs
from os_acc.bitstreams import options as bitstream_opts
from os_acc.deadlines import waiting
from os_acc.kernel import dfl
from os_acc.kernel import pci
from os_acc.privileged import arguments
from os_acc.privileged import context
from os_acc.privileged import function_notes
from os_acc.privileged import offers
from os_acc.privileged import operation_lock
from os_acc.privileged.fpga import dfl_ioctl
from os_acc.privileged.fpga import dfl_ports
from os_acc.privileged.fpga import root_copy
from os_acc.privileged.fpga import turn
from os_acc.spec import device_spec

_FUNCTION = re.compile(r'[0-9A-Fa-f-]{32,36}')
_DIGEST = re.compile('[0-9a-f]{64}')


@context.entry
def check(address: str, region: str, path: str, seconds: float) -> None:
    """Check that programming can begin.

    If an earlier call was killed while it bound the PF to its driver again,
    this completes it.

    :param region: of a dynamic device, the number of a port; else ''
    :param seconds: how long binding the PF again may take
    :raises DeviceBusy: if the device is open, or is being programmed
    :raises BitstreamError: if the image is in none of the allowed directories,
        is not a GBS, or was built for another interface
    :raises DeviceError: if the PF is not bound to dfl-pci, or has no such port
    """
    function = _device(address, region)
    seconds = arguments.seconds(seconds)
    turn.check_unused(function, region)
    with (
        function_notes.locked(function, 0.5 * seconds),
        turn.taken(function, ''),
    ):
        dfl_ports.complete_binding(function, 0.5 * seconds)
    card = _card(function)
    _port(card, region)
    with root_copy.opened(path) as (real, file):
        name = os.path.basename(real)
        image = bitstream_gbs.read(file, name)
        image.check_fits(card.interface_id, name)


@context.entry
def program(
    address: str,
    region: str,
    path: str,
    digest: str,
    function_id: str | None,
    seconds: float,
) -> None:
    """Program a port, then read its function where the kernel shows it.

    :param function_id: the function that the image must have; None: any
    :raises BitstreamError: as check(), also if the image has another function
        or checksum. Nothing was changed
    :raises DeviceError: if the card refuses, or its port stays in reset
    """
    function = _device(address, region)
    seconds = arguments.seconds(seconds)
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        arguments.refuse('digest', digest, 'a SHA-256')
    if function_id is not None and (
        not isinstance(function_id, str)
        or not _FUNCTION.fullmatch(function_id)
    ):
        arguments.refuse('function_id', function_id, 'a UUID')
    deadline = waiting.Deadline(seconds)

    def act() -> None:
        _bind_if_stuck(function, region, deadline)
        with (
            turn.taken(function, ''),
            root_copy.opened(path) as (real, file),
        ):
            turn.check_unused(function, region)
            name = os.path.basename(real)
            data = _content(file, name, digest)
            head = bytes(data[: bitstream_gbs.HEAD])
            image = bitstream_gbs.parse(head, len(data), name)
            card = _card(function)
            image.check_fits(card.interface_id, name)
            image.check_has(function_id, name)
            # Another process may have programmed another port meanwhile.
            dfl_ports.settle(card)
            _program(card, _port(card, region), data, image)

    waiting.at_most(act, seconds, f'{address} to be programmed')


@context.entry
def heal(address: str, region: str, seconds: float) -> bool:
    """Bind the PF to its driver again, so that all ports work.

    VFs that os-acc has made are made again, if no VAN has one of them yet.

    :param region: the one whose programming failed; else ''
    :returns: whether it was done. It is not done if a process has the card
        open, or one of its VFs is used
    """
    function = _device(address, region)
    seconds = arguments.seconds(seconds)
    deadline = waiting.Deadline(seconds)

    def act() -> bool:
        with contextlib.ExitStack() as stack:
            for each in (address, *function.vf_addresses):
                lock = operation_lock.held(
                    pci.directory(each), deadline.left(0.2)
                )
                stack.enter_context(lock)
            stack.enter_context(turn.taken(function, ''))
            dfl_ports.complete_binding(function, deadline.left(0.5))
            return dfl_ports.bind_with_vfs(pci.get(address), deadline.left())

    return waiting.at_most(act, seconds, f'{address} to be bound again')


@context.entry
def recover(seconds: float) -> bool:
    """Finish binding PFs again, if the process that did so was killed.

    :param seconds: how long to wait for each
    :returns: True: none is left
    :raises DeviceError, Timeout: if it failed. The others are bound
    """
    seconds = arguments.seconds(seconds)
    failure = None
    for address in dfl_ports.cards.names():
        try:
            known = dfl_ports.cards.read(address)
            function = pci.find(address)
            if known is None or not known.unbound or function is None:
                continue
            with (
                function_notes.locked(function, 0.5 * seconds),
                turn.taken(function, ''),
            ):
                dfl_ports.complete_binding(pci.get(address), 0.5 * seconds)
        except exception.ExceptionBase as err:
            failure = err
    if failure is not None:
        raise failure
    return True


def _bind_if_stuck(
    function: pci.Function, region: str, deadline: waiting.Deadline
) -> None:
    """Bind the PF again if the port is stuck after an earlier failure."""
    with (
        function_notes.locked(function, deadline.left(0.3)),
        turn.taken(function, ''),
    ):
        dfl_ports.complete_binding(function, deadline.left(0.5))
        card = _card(function)
        port = _port(card, region)
        dfl_ports.settle(card)
        stuck = dfl_ports.is_stuck(card, port)
        if not stuck and not dfl_ports.lacks_driver(card):
            return
        if dfl_ports.is_unused(function):
            dfl_ports.bind_again(function, deadline.left(0.5))
        elif stuck:
            raise exception.DeviceError(
                device=f'port {port} of {card.address}',
                reason='it has stayed in reset since its programming failed. '
                f'The PF must be bound to {dfl.DRIVER} again, and that is '
                'possible when it has no VFs and no program has the card open',
            )


def _program(
    card: dfl.Card, port: int, data: bytearray, image: bitstream_gbs.Image
) -> None:
    """Program a port and look at it. The caller holds the turn."""
    dfl_ports.begin(card, port)
    try:
        dfl_ioctl.program(card, port, data, image.offset)
        _check_result(card, port, image)
    except exception.DeviceError:
        dfl_ports.fail(card, port)
        raise
    dfl_ports.succeed(card, port)


def _check_result(
    card: dfl.Card, port: int, image: bitstream_gbs.Image
) -> None:
    """Check that a port has the function of an image.

    Linux 6.1 answers that the programming has succeeded even if the port
    stays in reset.
    """
    now = dfl.find(card.address)
    there = now.port(port) if now is not None else None
    if there is None:
        return  # a VF has it, so the kernel does not show its function
    if there.in_reset:
        reason = 'the port stays in reset after its programming'
    elif there.afu_id != image.functions[0]:
        reason = (
            f'it was programmed with {image.functions[0]}, but has '
            f'{there.afu_id}'
        )
    else:
        return
    raise exception.DeviceError(
        device=f'port {port} of {card.address}', reason=reason
    )


def _content(file: BinaryIO, name: str, digest: str) -> bytearray:
    """Read an image into memory, so that nobody can change it any more."""
    most = bitstream_opts.max_bytes(offers.configuration())
    data = bytearray(file.read(most + 1))
    if len(data) > most:
        raise exception.BitstreamError(
            bitstream=name, reason=f'it has grown to more than {most} bytes'
        )
    if hashlib.sha256(data).hexdigest() != digest:
        raise exception.BitstreamError(
            bitstream=name,
            # Do not tell the caller the checksum of a file that it may not be
            # allowed to read.
            reason=f'it was changed: its sha256 is not {digest}',
        )
    return data


def _device(address: str, region: str) -> pci.Function:
    function, _ = turn.device(address, region, device_spec.PROGRAMMER_DFL)
    return function


def _card(function: pci.Function) -> dfl.Card:
    card = dfl.find(function.address)
    if card is None:
        raise exception.DeviceError(
            device=function.address,
            reason=f'it is not bound to {dfl.DRIVER}, or is not a PF of a DFL '
            'card',
        )
    return card


def _port(card: dfl.Card, region: str) -> int:
    """The number of the port of a region."""
    if region == '' and card.number_of_ports == 1:
        return 0
    if region == '' or int(region) >= card.number_of_ports:
        raise exception.DeviceError(
            device=card.address,
            reason=f'the card has {card.number_of_ports} ports: '
            + (
                'its entry of device_spec needs "programming": "dynamic"'
                if region == ''
                else f'there is no region {region}'
            ),
        )
    return int(region)
