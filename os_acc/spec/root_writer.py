# SPDX-License-Identifier: Apache-2.0

"""Writes one file as root, for a command that goes on as another user.

``os-acc apply`` must write what is offered as root, after it has written the
journal as the journal's owner. So it forks a process that stays root, and that
does nothing but write this file.
"""

from __future__ import annotations

import errno
import json
from multiprocessing import connection
import os
import signal

from os_acc.state import atomic_file


def write(path: str, text: str | None) -> bool:
    """Write a file of device_spec_dir, or remove it.

    :param text: None: remove it
    """
    if text is None:
        return atomic_file.remove(path)
    atomic_file.write(path, text, 0o644, 0o755)
    return True


class RootWriter:
    """Forks the process. It ends when this one does.

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
        """Do what the function write() does."""
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
            answer = {'done': write(path, text)}
        except OSError as err:
            answer = {'errno': err.errno or 0}
        asked.send_bytes(json.dumps(answer).encode())
