# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Programming a device with a command of its vendor, as root.

The commands come from the daemon's own ``[os_acc] device_spec``. A caller only
names the device, the region, the file and the function.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import fcntl
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from typing import BinaryIO

from oslo_config import cfg

from os_acc import bitstream_file
from os_acc import bitstream_opts as options
from os_acc import exception
from os_acc.devices import device_spec
from os_acc.devices import pci
from os_acc.devices import root_folder
from os_acc.devices import sriov
from os_acc.objects import function_id as function_ids
from os_acc.privileged import arguments
from os_acc.privileged import context
from os_acc.privileged import device_users
from os_acc.privileged import offers

# objects.device.PROGRAMMING_SINGLE. To import that module would load
# oslo.versionedobjects, and with it oslo.messaging, into the daemon.
_SINGLE = 'single'

_TAIL = 300
# Seconds for a killed process to end; after that it is left alone.
_GRACE = 5.0
_NAME = re.compile(r'[A-Za-z0-9_][A-Za-z0-9_.:+@=-]{0,254}')
_REGION = re.compile(r'0|[1-9][0-9]{0,4}')
_WORD = re.compile(r'[\w.-]+')


@context.entry
def check(address: str, region: str, path: str) -> None:
    """Check that programming can begin.

    :param region: of a dynamic device; else ''
    :param path: the bitstream
    :raises DeviceBusy: if a guest has the device open, or an earlier command
        for it has not ended
    :raises BitstreamError: if the file is in none of the allowed folders
    :raises DeviceError: if the command does not exist
    """
    function, spec = _device(address, region)
    command = spec.program
    if not os.access(command[0], os.X_OK):
        raise _failed(address, command, 'there is no such command')
    _check_unused(function, region)
    with _turn(function, region):
        pass
    with _bitstream(path):
        pass


@context.entry
def program(
    address: str,
    region: str,
    path: str,
    digest: str,
    function_id: str | None,
    seconds: float,
) -> None:
    """Program a device, then check its function with the check command.

    :param digest: the file's SHA-256
    :param function_id: the function that the device must have afterwards;
        None if it is unknown: the check is skipped
    :param seconds: for each of the two commands
    :raises DeviceBusy, BitstreamError: as check()
    :raises DeviceError: if a command fails or does not end in time, or the
        device has another function
    """
    function, spec = _device(address, region)
    seconds = arguments.seconds(seconds)
    values = _values(function, region, function_id)
    with _turn(function, region) as held:
        _check_unused(function, region)
        with (
            _bitstream(path) as (real, file),
            _copied(file, os.path.basename(real), digest) as copy,
        ):
            values['file'] = copy
            run(address, spec.program, values, seconds, held)
        if spec.check and function_id is not None:
            _verify(address, spec.check, values, seconds, held)


@context.entry
def clear(address: str, region: str, seconds: float) -> None:
    """Remove the function from a device.

    :raises DeviceBusy, DeviceError: as program()
    """
    function, spec = _device(address, region)
    seconds = arguments.seconds(seconds)
    with _turn(function, region) as held:
        _check_unused(function, region)
        values = _values(function, region, None)
        run(address, spec.clear, values, seconds, held)


def run(
    address: str,
    template: Sequence[str],
    values: Mapping[str, str],
    seconds: float,
    held: Sequence[int],
) -> str:
    """Run a command; at its deadline kill it and its children.

    :param held: the locked files of the device. The command inherits them, so
        that the device stays locked as long as the command runs, even if this
        process ends
    :returns: the command's output
    :raises DeviceError: if it fails
    """
    if not template:
        raise exception.DeviceError(
            device=address, reason='device_spec has no command to do this'
        )
    command = [_filled(word, values) for word in template]
    # A file, not a pipe: a child that survives could keep a pipe open.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd='/',
                pass_fds=held,
            )
        except OSError as err:
            raise _failed(address, command, err.strerror or str(err)) from err
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired as err:
            raise _failed(address, command, _kill(process, seconds)) from err
        output.seek(0)
        text = output.read(1 << 20).decode(errors='replace').strip()
    if code:
        said = text[-_TAIL:]
        raise _failed(address, command, f'exit code {code}: {said}')
    return text


def _kill(process: subprocess.Popen[bytes], seconds: float) -> str:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        return (
            f'not done after {seconds:g} s, and process {process.pid} cannot '
            'be killed, because it is blocked in the kernel'
        )
    return f'not done after {seconds:g} s, killed'


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
    text = run(address, template, values, seconds, held)
    if any('{function_id}' in word for word in template):
        return
    # Compare whole words: aes256 in the output does not mean aes.
    words = {*_WORD.findall(text), *text.split()}
    found = {function_ids.canonical(word.strip('.,;-')) for word in words}
    if function_ids.canonical(values['function_id']) not in found:
        raise _failed(
            address,
            template,
            f'the device does not have function {values["function_id"]}: '
            f'{text[-_TAIL:]}',
        )


def _device(
    address: str, region: str
) -> tuple[pci.Function, device_spec.Spec]:
    function = arguments.programmed(address)
    if function.is_vf:
        # Locks and checks work on the PF, not on its VFs.
        arguments.refuse('address', address, 'a device that is not a VF')
    # arguments.programmed() has checked that it is offered, or was.
    spec = offers.specs().held(function)
    if not spec.program:
        arguments.refuse('address', address, 'a device with a program command')
    _check_region(function, spec, region)
    return function, spec


def _check_region(
    function: pci.Function, spec: device_spec.Spec, region: str
) -> None:
    if spec.programming == _SINGLE:
        if region != '':
            arguments.refuse('region', region, "'': it has no regions")
        return
    future = sriov.future_addresses(function.address, spec.num_vfs or 0)
    number = max(len(function.vf_addresses), len(future), 1)
    if (
        not isinstance(region, str)
        or not _REGION.fullmatch(region)
        or int(region) >= number
    ):
        arguments.refuse('region', region, f'0 to {number - 1}')


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


def _vf_of(function: pci.Function, region: str) -> pci.Function | None:
    """The VF that gives access to a region; None if there is none."""
    vfs = function.vf_addresses
    if region and int(region) < len(vfs):
        return pci.get(vfs[int(region)])
    return None


@contextlib.contextmanager
def _turn(function: pci.Function, region: str) -> Iterator[list[int]]:
    """Lock a device with flock(2) on files that the command inherits.

    Two regions can be programmed at the same time, but not a region and the
    whole device. This is not the lock of devices.operation_lock: programming
    can take long, and other operations on the device need not wait for it.

    :raises DeviceBusy: if an earlier command for the device has not ended
    """
    vf = _vf_of(function, region)
    deadline = time.monotonic() + cfg.CONF.os_acc.device_timeout
    with contextlib.ExitStack() as stack:
        held = []
        for each, how in (
            (function, fcntl.LOCK_SH if vf else fcntl.LOCK_EX),
            (vf, fcntl.LOCK_EX),
        ):
            if each is not None:
                fd = root_folder.open_file('programming', each.address)
                stack.callback(os.close, fd)
                _lock(fd, how, deadline, function.address)
                held.append(fd)
        yield held


def _lock(fd: int, how: int, deadline: float, address: str) -> None:
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return
        except BlockingIOError as err:
            if time.monotonic() >= deadline:
                raise exception.DeviceBusy(
                    device=address,
                    reason='an earlier command for it has not ended',
                ) from err
            time.sleep(0.05)


def _check_unused(function: pci.Function, region: str) -> None:
    """Check again, under the lock, that no guest has the device open."""
    vf = _vf_of(function, region)
    parts = [vf] if vf else [function, *map(pci.get, function.vf_addresses)]
    if found := device_users.guests_of(parts):
        raise exception.DeviceBusy(
            device=function.address, reason='; '.join(found)
        )


@contextlib.contextmanager
def _bitstream(path: str) -> Iterator[tuple[str, BinaryIO]]:
    if not isinstance(path, str):
        arguments.refuse('path', path, 'the path of a bitstream')
    conf = cfg.CONF
    folders = list(conf[options.GROUP].allowed_folders)
    cache = options.cache_path(conf).rstrip('/')
    # The unprivileged user could replace the folder by a link to any other.
    if not os.path.islink(cache):
        folders.append(cache)
    with bitstream_file.opened(
        path, folders, options.max_bytes(conf)
    ) as found:
        yield found


@contextlib.contextmanager
def _copied(file: BinaryIO, name: str, digest: str) -> Iterator[str]:
    """Make a copy that only root can read, so that nobody can change the file
    between its verification and the programming.
    """
    folder = tempfile.mkdtemp(prefix='os-acc-')
    try:
        path = os.path.join(folder, name)
        with open(path, 'xb') as copy:
            most = options.max_bytes(cfg.CONF)
            found = bitstream_file.of_file(file, name, most, copy=copy)
            os.fchmod(copy.fileno(), stat.S_IRUSR)
        if found['sha256'] != digest:
            raise exception.BitstreamError(
                bitstream=name,
                # Do not tell the caller the checksum of a file that it may
                # not be allowed to read.
                reason=f'it was changed: its sha256 is not {digest}',
            )
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _failed(
    address: str, command: Sequence[str], reason: str
) -> exception.DeviceError:
    return exception.DeviceError(
        device=address, reason=f'{command[0]}: {reason}'
    )
