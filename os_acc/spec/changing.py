# SPDX-License-Identifier: Apache-2.0

"""Writes files of [os_acc] device_spec_dir, for ``os-acc device allow``."""

from __future__ import annotations

import errno
import json
from multiprocessing import connection
import os
import signal
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc.spec import device_spec
from os_acc.spec import files as spec_files
from os_acc.spec import values as spec_values
from os_acc.state import atomic_file

# See keep_root().
_root: _RootWriter | None = None


def path_of(directory: str, name: str) -> str:
    """The file that ``os-acc device allow`` and ``deny`` write for a device.

    :param name: a PCI address in its canonical form, or the name of a parent
        of mediated devices: without slashes
    """
    return os.path.join(directory, f'50-os-acc-{name}.json')


def check_names(entry: dict[str, Any], name: str) -> None:
    """Check that an entry can be read, and names one device and no other.

    :param name: the device: a PCI address in its canonical form, the path of a
        device file, or another name
    :raises InvalidRequest: if it cannot be read, or names something else: an
        address of fewer parts, such as 1f, names many functions, and a path
        is a glob, so that x[1] names x1
    """
    (spec,) = device_spec.parse(json.dumps(entry))
    said = spec.address.complete or spec.address.name
    if 'devices' in entry:
        (said,) = spec.devices
    if said != name or set(name) & set('*?['):
        spec_values.refuse(
            next(iter(entry)),
            name,
            'the whole PCI address of one function, dddd:bb:ss.f, the path of '
            'one device file without *, ? and [, or the name of another '
            'device; as an entry of device_spec, this names others',
        )


def add(conf: cfg.ConfigOpts, path: str, *entries: dict[str, Any]) -> None:
    """Write a file of device_spec_dir with entries that can be read.

    :raises InvalidRequest: if an entry is refused. The file then stays as it
        was
    """
    text = json.dumps(entries if len(entries) > 1 else entries[0])
    device_spec.parse(text)
    before = spec_files.read(path)
    write(path, text + '\n')
    try:
        device_spec.load(conf)
    except exception.InvalidRequest:
        if before is None:
            remove(path)
        else:
            write(path, before)
        raise


def keep_root(path: str) -> None:
    """Make write() and remove() act as root on a file from now on.

    Call it as root, before this process becomes another user.
    """
    global _root
    _root = _RootWriter(path)


def write(path: str, text: str) -> None:
    """Write a file, atomically. See path_of() and add().

    The directory is made if it does not exist.
    """
    _change(path, text)


def remove(path: str) -> bool:
    """Remove a file that write() has made.

    :returns: False if it does not exist
    """
    return _change(path, None)


def _change(path: str, text: str | None) -> bool:
    try:
        if _root is not None and _root.path == path:
            return _root.write(text)
        return _write_or_remove(path, text)
    except OSError as err:
        raise exception.PrivilegeError(
            reason=f'{path} cannot be changed: {err.strerror}. Run the '
            'command as root'
        ) from err


def _write_or_remove(path: str, text: str | None) -> bool:
    """Write a file of device_spec_dir, or remove it.

    :param text: None: remove it
    """
    if text is None:
        return atomic_file.remove(path)
    atomic_file.write(path, text, 0o644, 0o755)
    return True


class _RootWriter:
    """Forks a process that stays root, and only writes one file.

    ``os-acc apply`` must write what is offered as root, after it has written
    the journal as the journal's owner. The process ends when this one does.

    Make it while this process has one thread, and is root.

    :param path: of the only file that it writes
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._connection, other = connection.Pipe()
        if os.fork():
            other.close()
            return
        try:
            self._connection.close()
            _serve(other, path)
        finally:
            os._exit(0)

    def write(self, text: str | None) -> bool:
        """Do what _write_or_remove() does."""
        try:
            self._connection.send_bytes(json.dumps(text).encode())
            answer = json.loads(self._connection.recv_bytes())
        except EOFError as err:
            raise BrokenPipeError(
                errno.EPIPE, 'the process that writes as root has ended'
            ) from err
        if 'errno' in answer:
            raise OSError(answer['errno'], os.strerror(answer['errno']))
        return bool(answer['done'])


def _serve(asked: connection.Connection, path: str) -> None:
    """Write what is asked for, until the other process has ended."""
    # Ctrl-C reaches this process too, and the other one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            text = json.loads(asked.recv_bytes())
        except EOFError:
            return
        answer: dict[str, int]
        try:
            answer = {'done': _write_or_remove(path, text)}
        except OSError as err:
            answer = {'errno': err.errno or 0}
        asked.send_bytes(json.dumps(answer).encode())
