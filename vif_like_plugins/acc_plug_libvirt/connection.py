# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The connection to libvirt: opened when needed, and again when it breaks."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import ctypes
import importlib
import logging
import os
import threading
import time
from typing import Any
from typing import TypeVar
import weakref

from os_acc import exception
from os_acc.devices import waiting

LOG = logging.getLogger(__name__)

_T = TypeVar('_T')

# A peer that answers none of 3 questions, 5 s apart, is gone.
_KEEPALIVE = (5, 3)

_loop_lock = threading.Lock()
_loop_runs = False
_forked = False
_all: weakref.WeakSet[Connection] = weakref.WeakSet()


def module() -> Any:
    """The module libvirt, imported only when a guest is to be changed.

    :raises HypervisorError: it is not installed
    """
    try:
        return importlib.import_module('libvirt')
    except ImportError as err:
        raise exception.HypervisorError(
            what='libvirt',
            reason='the package libvirt-python is not installed: '
            f"pip install 'os-acc[libvirt]' ({err})",
        ) from err


@contextlib.contextmanager
def errors(what: str) -> Iterator[None]:
    """Make libvirt's errors ours.

    :param what: what was tried, for the message
    """
    libvirt = module()
    try:
        yield
    except libvirt.libvirtError as err:
        raise exception.HypervisorError(
            what=what, reason=f'{err} (libvirt error {err.get_error_code()})'
        ) from err


def is_broken(err: Any) -> bool:
    """Whether an error says that libvirtd is gone, not that it refused."""
    libvirt = module()
    return err.get_error_code() in (
        libvirt.VIR_ERR_NO_CONNECT,
        libvirt.VIR_ERR_INVALID_CONN,
    ) or (
        # Its PCI code has these codes too, of no domain: a refusal.
        err.get_error_code()
        in (libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR)
        and err.get_error_domain()
        in (libvirt.VIR_FROM_REMOTE, libvirt.VIR_FROM_RPC)
    )


class Connection:
    """One for all threads of a process: libvirt's calls may be concurrent.

    :param uri: such as qemu:///system
    :param seconds: how long to wait for a libvirtd that is restarting
    """

    def __init__(self, uri: str, seconds: float) -> None:
        self.uri = uri
        self.seconds = seconds
        self._lock = threading.Lock()
        self._open: Any = None
        self._turns: dict[str, threading.Lock] = {}
        _all.add(self)

    def get(self) -> Any:
        """A virConnect that is alive.

        :raises HypervisorError: libvirtd cannot be reached
        """
        deadline = time.monotonic() + self.seconds
        libvirt = module()
        if _forked:
            raise exception.HypervisorError(
                what=f'connection to {self.uri}',
                reason='libvirt was in use before this process was forked, '
                'and cannot be used after it: start a new one',
            )
        run_events()
        with self._lock:
            if not self._is_alive():
                self._drop()
                while self._open is None:
                    try:
                        self._connect(libvirt, deadline)
                    except libvirt.libvirtError as err:
                        if time.monotonic() >= deadline:
                            raise exception.HypervisorError(
                                what=f'connection to {self.uri}',
                                reason=f'{err} (tried for {self.seconds:g} s)',
                            ) from err
                        time.sleep(0.2)
            return self._open

    def _connect(self, libvirt: Any, deadline: float) -> None:
        opened = waiting.at_most(
            lambda: libvirt.open(self.uri),
            max(1.0, deadline - time.monotonic()),
            f'libvirt at {self.uri} to answer',
        )
        # Not every kind of connection has it: test:/// has none.
        with contextlib.suppress(libvirt.libvirtError):
            opened.setKeepAlive(*_KEEPALIVE)
        self._open = opened
        LOG.debug('connected to %s', self.uri)

    def _is_alive(self) -> bool:
        if self._open is None:
            return False
        try:
            return bool(self._open.isAlive())
        except module().libvirtError:
            return False

    def _drop(self) -> None:
        if self._open is not None:
            LOG.info('the connection to %s is gone: opening it anew', self.uri)
            with contextlib.suppress(module().libvirtError):
                self._open.close()
        self._open = None

    def close(self) -> None:
        """Close it; get() opens it again."""
        with self._lock:
            if self._open is not None:
                with contextlib.suppress(module().libvirtError):
                    self._open.close()
            self._open = None

    def turn(self, instance_uuid: str) -> threading.Lock:
        """One call at a time on a domain: a late one comes to its end."""
        with self._lock:
            return self._turns.setdefault(instance_uuid, threading.Lock())

    def after_fork(self) -> None:
        """In a child: the connection is the parent's, and stays open."""
        if self._open is not None:
            # Not even when the child ends: that would close the parent's.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._open))
        self._open = None
        self._lock = threading.Lock()
        self._turns = {}

    def run(self, what: str, act: Callable[[Any], _T]) -> _T:
        """Do something that can be done twice; again if libvirtd went away.

        :param act: gets the virConnect
        :raises HypervisorError: libvirt refused, or stays away
        """
        libvirt = module()
        deadline = time.monotonic() + self.seconds
        while True:
            with errors(what):
                try:
                    return act(self.get())
                except libvirt.libvirtError as err:
                    if not is_broken(err) or time.monotonic() >= deadline:
                        raise
                    LOG.info('%s: libvirtd went away (%s)', what, err)
            # Its end may be noticed only in a moment.
            time.sleep(0.1)

    def domain(self, uuid: str) -> Any:
        """A virDomain; None where there is none of that UUID.

        :raises HypervisorError: libvirt cannot say
        """
        libvirt = module()

        def look(opened: Any) -> Any:
            try:
                return opened.lookupByUUIDString(uuid)
            except libvirt.libvirtError as err:
                if err.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                    return None
                raise

        return self.run(f'domain {uuid}', look)


def run_events() -> None:
    """Start the thread that gets libvirt's events, once in a process.

    It must be there before a connection is opened. Where the process has
    such a thread already, as nova-compute has, they take turns.
    """
    global _loop_runs
    with _loop_lock:
        if _loop_runs:
            return
        libvirt = module()
        libvirt.virEventRegisterDefaultImpl()
        threading.Thread(
            target=_loop, args=(libvirt,), name='os-acc-libvirt', daemon=True
        ).start()
        _loop_runs = True


def _after_fork() -> None:
    global _forked, _loop_lock
    _forked = _forked or _loop_runs
    _loop_lock = threading.Lock()
    for each in list(_all):
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _loop(libvirt: Any) -> None:
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError:
            LOG.exception('libvirt: events')
            time.sleep(1)
