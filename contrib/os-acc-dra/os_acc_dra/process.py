# SPDX-License-Identifier: Apache-2.0

"""This process of the driver, among others on the same node.

During a rolling update a node has two Pods of the driver. Both are registered,
and the kubelet calls one or the other. So each process has sockets of its own,
named after its Pod, and one of them publishes the ResourceSlices.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from typing import IO

from os_acc_dra import errors
from os_acc_dra import options

#: The longest path of a socket, in bytes.
_LONGEST = 107
_DIGEST = 8
_LOCK = re.compile(r'process(?:-(?P<pod_uid>.+))?\.lock')


class Process:
    """The files of one process of the driver.

    :param directory: the kubelet's directory
    :param driver: the name of the driver
    :param pod_uid: the UID of its Pod; '': it runs in none, and is the only
        one of its kind
    :ivar endpoint: the path of the socket that the kubelet calls
    :ivar registration: the path of the socket where the kubelet finds it
    """

    def __init__(self, directory: str, driver: str, pod_uid: str = '') -> None:
        self._directory, self._driver = directory, driver
        self._data = options.data_path(directory, driver)
        self._registry = os.path.join(directory, 'plugins_registry')
        part = f'-{pod_uid}' if pod_uid else ''
        self.endpoint = _socket(self._data, f'dra{part}', '.sock')
        self.registration = _socket(
            self._registry, f'{driver}{part}', '-reg.sock'
        )
        self._own = os.path.join(self._data, f'process{part}.lock')
        # The kernel releases the locks of a process that dies.
        self._locks: dict[str, IO[str]] = {}

    def reserve(self) -> None:
        """Take the names of the sockets, and remove those of dead processes.

        gRPC takes over the socket of a living server without an error.

        :raises ConfigurationError: if another process has these names, a path
            is too long, or the directories cannot be used
        """
        for path in (self.endpoint, self.registration):
            if len(os.fsencode(path)) > _LONGEST:
                raise errors.ConfigurationError(
                    f'the path of a socket may have {_LONGEST} bytes: '
                    f'{path}. Set [os_acc_dra] driver_name or kubelet_path '
                    'to a shorter one'
                )
        try:
            os.makedirs(self._data, mode=0o750, exist_ok=True)
            os.makedirs(self._registry, exist_ok=True)
            # One process at a time makes and removes the files of processes.
            with open(os.path.join(self._data, 'start.lock'), 'w') as start:
                fcntl.flock(start, fcntl.LOCK_EX)
                if not self._lock(self._own):
                    raise errors.ConfigurationError(
                        f'another process serves {self._driver}: it has '
                        f'locked {self._own}'
                    )
                self._remove_dead()
        except OSError as err:
            raise errors.ConfigurationError(
                f"the kubelet's directory cannot be used: {err}"
            ) from err

    def _remove_dead(self) -> None:
        """Remove what processes have left that were killed."""
        for name in os.listdir(self._data):
            found = _LOCK.fullmatch(name)
            path = os.path.join(self._data, name)
            if found is None or path == self._own or not self._lock(path):
                continue
            dead = Process(
                self._directory, self._driver, found['pod_uid'] or ''
            )
            for each in (dead.registration, dead.endpoint, path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(each)
            self._locks.pop(path).close()

    def _lock(self, path: str) -> bool:
        """Lock a file, unless another process has locked it."""
        if path in self._locks:
            return True
        # It stays open: the lock ends with the process.
        file = open(path, 'w')  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._locks[path] = file
        return True

    def publishes(self) -> bool:
        """Whether this process is the one that writes the ResourceSlices.

        The first one does, until it ends. Then another one does.

        :raises OSError: if the file cannot be locked
        """
        return self._lock(os.path.join(self._data, 'publisher.lock'))

    def is_reachable(self) -> bool:
        """Whether both sockets are still there."""
        return os.path.exists(self.endpoint) and os.path.exists(
            self.registration
        )

    def unregister(self) -> None:
        """Let the kubelet begin no more calls."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.registration)

    def release(self) -> None:
        """Release the names, and stop publishing."""
        if self._own in self._locks:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._own)
        for file in self._locks.values():
            file.close()
        self._locks.clear()


def _socket(directory: str, name: str, suffix: str) -> str:
    """The path of a socket, with a digest of a name that is too long."""
    path = os.path.join(directory, name + suffix)
    if len(os.fsencode(path)) <= _LONGEST:
        return path
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return os.path.join(directory, digest + suffix)
