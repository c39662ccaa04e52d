# SPDX-License-Identifier: Apache-2.0

"""Programming a device with a command of its vendor, as root.

The commands come from the daemon's own ``[os_acc] device_spec``. A caller only
names the device, the region, the file and the function.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
import re

from os_acc import exception
from os_acc.kernel import pci
from os_acc.privileged import arguments
from os_acc.privileged import command
from os_acc.privileged import context
from os_acc.privileged.fpga import root_copy
from os_acc.privileged.fpga import turn
from os_acc.spec import commands as spec_commands
from os_acc.spec import device_spec
from os_acc.texts import forms

_NAME = re.compile(r'[A-Za-z0-9_][A-Za-z0-9_.:+@=-]{0,254}')
_WORD = re.compile(r'[\w.-]+')

# What the program commands that run now have written, by device and region.
_running: dict[tuple[str, str], command.Output] = {}


@context.entry
def check(address: str, region: str, path: str) -> None:
    """Check that programming can begin.

    :param region: of a dynamic device; else ''
    :raises DeviceBusy: if a guest has the device open, or an earlier command
        for it has not ended
    :raises BitstreamError: if the file is in none of the allowed directories
    :raises DeviceError: if the command does not exist
    """
    function, spec = _device(address, region)
    program = spec.program[0]
    if not os.access(program, os.X_OK):
        raise exception.DeviceError(
            device=address, reason=f'{program}: there is no such command'
        )
    turn.check_unused(function, region)
    with turn.taken(function, region):
        pass
    with root_copy.opened(path):
        pass


@context.entry
def program(
    address: str,
    region: str,
    path: str,
    digest: str,
    function_id: str | None,
    seconds: float,
) -> bool:
    """Program a device, then check its function with the check command.

    :param function_id: the function that the device must have afterwards;
        None if it is unknown: the check is skipped
    :param seconds: for each of the two commands
    :returns: whether the command says that the host must be rebooted before
        the function can be used. Then the check is skipped too
    :raises DeviceError: if a command fails or does not end in time, or the
        device has another function
    """
    function, spec = _device(address, region)
    seconds = arguments.seconds(seconds)
    values = _values(function, region, function_id)
    with turn.taken(function, region) as held:
        turn.check_unused(function, region)
        with (
            root_copy.opened(path) as (real, file),
            root_copy.made(file, os.path.basename(real), digest) as copy,
            _telling(address, region) as output,
        ):
            values['file'] = copy.path
            run(
                address,
                spec.program,
                values,
                seconds,
                [*held, copy.lock],
                output,
            )
        reboot = output.asks_for_reboot
        if spec.check and function_id is not None and not reboot:
            _verify(address, spec.check, values, seconds, held)
    return reboot


@context.entry
def clear(address: str, region: str, seconds: float) -> None:
    """Remove the function from a device."""
    function, spec = _device(address, region)
    seconds = arguments.seconds(seconds)
    root_copy.sweep()
    with turn.taken(function, region) as held:
        turn.check_unused(function, region)
        values = _values(function, region, None)
        run(address, spec.clear, values, seconds, held)


@context.entry
def percent(address: str, region: str) -> float | None:
    """How much of a running program() is done, as its command says.

    :returns: 0.0 to 100.0; None if the device is not being programmed, if its
        command says nothing, or if its entry of device_spec has no progress
    """
    _, spec = _device(address, region)
    output = _running.get((address, region))
    if output is None or spec.progress is None:
        return None
    return spec_commands.percent(spec.progress, output.text)


@context.entry
def sweep() -> bool:
    """Remove the copies of images that a killed daemon has left.

    :returns: whether none is left; a command that still runs keeps its copy
    """
    return root_copy.sweep()


@contextlib.contextmanager
def _telling(address: str, region: str) -> Iterator[command.Output]:
    """Let percent() see the output of a command."""
    output = command.Output()
    _running[address, region] = output
    try:
        yield output
    finally:
        _running.pop((address, region), None)


def run(
    address: str,
    template: Sequence[str],
    values: Mapping[str, str],
    seconds: float,
    held: Sequence[int],
    output: command.Output | None = None,
) -> command.Output:
    """Run a command of device_spec. See command.run()."""
    if not template:
        raise exception.DeviceError(
            device=address, reason='device_spec has no command to do this'
        )
    words = [_filled(word, values) for word in template]
    return command.run(address, words, seconds, held, output)


def _verify(
    address: str,
    template: Sequence[str],
    values: Mapping[str, str],
    seconds: float,
    held: Sequence[int],
) -> None:
    """Check with the check command that a device has a function.

    If the command is given {function_id}, its exit code is the answer.
    Otherwise its output must contain the function's id.
    """
    output = run(address, template, values, seconds, held)
    if any('{function_id}' in word for word in template):
        return
    text = output.text
    # Compare whole words: aes256 in the output does not mean aes.
    words = {*_WORD.findall(text), *text.split()}
    found = {forms.function_id(word.strip('.,;-')) for word in words}
    if forms.function_id(values['function_id']) not in found:
        raise exception.DeviceError(
            device=address,
            reason=f'{template[0]}: the device does not have function '
            f'{values["function_id"]}: {output.end}',
        )


def _device(
    address: str, region: str
) -> tuple[pci.Function, device_spec.Spec]:
    return turn.device(address, region, device_spec.PROGRAMMER_COMMAND)


def _values(
    function: pci.Function, region: str, function_id: str | None
) -> dict[str, str]:
    if function_id is not None and (
        not isinstance(function_id, str) or not _NAME.fullmatch(function_id)
    ):
        arguments.refuse('function_id', function_id, 'a name')
    domain, bus, rest = function.address.split(':')
    device, _, number = rest.partition('.')
    return {
        'address': function.address,
        'domain': domain,
        'bus': bus,
        'device': device,
        'function': number,
        'region': region,
        'function_id': function_id or '',
    }


def _filled(word: str, values: Mapping[str, str]) -> str:
    return re.sub(r'\{(\w+)\}', lambda match: values.get(match[1], ''), word)
