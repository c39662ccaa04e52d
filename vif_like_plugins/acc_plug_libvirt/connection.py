# SPDX-License-Identifier: Apache-2.0

"""The connection to libvirt: opened when needed, reopened when it breaks."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import ctypes
import importlib
import logging
import os
import sys
import threading
import time
from typing import Any
from typing import TypeVar
import weakref

from os_acc import exception
from os_acc import log
from os_acc.deadlines import outliving
from os_acc.deadlines import waiting

LOG = logging.getLogger(__name__)

_T = TypeVar('_T')

# Seconds between keepalive messages, and how many of them may stay
# unanswered before the connection is closed.
_KEEPALIVE = (5, 3)

_loop_lock = threading.Lock()
_loop_runs = False
_forked = False
_all: weakref.WeakSet[Connection] = weakref.WeakSet()


def module() -> Any:
    """Import the module libvirt, which only live calls need.

    :raises HypervisorError: if libvirt-python is not installed
    """
    is_first = 'libvirt' not in sys.modules
    try:
        found = importlib.import_module('libvirt')
    except ImportError as err:
        raise exception.HypervisorError(
            what='libvirt',
            reason='the package libvirt-python is not installed: '
            f"pip install 'os-acc[libvirt]' ({err})",
        ) from err
    if is_first:
        # Otherwise libvirt prints each error, which it raises too. A program
        # that has imported libvirt itself, such as Nova, decides that.
        found.registerErrorHandler(_print_nothing, None)
    return found


def _print_nothing(context: object, error: object) -> None:
    """Leave it to the caller to report an error."""


@contextlib.contextmanager
def errors(what: str) -> Iterator[None]:
    """Turn a libvirtError into a HypervisorError.

    :param what: what is being done, for the message
    """
    libvirt = module()
    try:
        yield
    except libvirt.libvirtError as err:
        raise exception.HypervisorError(
            what=what, reason=f'{err} (libvirt error {err.get_error_code()})'
        ) from err


def is_broken(err: Any) -> bool:
    """Whether an error means that libvirtd is gone, not that it refused."""
    libvirt = module()
    return err.get_error_code() in (
        libvirt.VIR_ERR_NO_CONNECT,
        libvirt.VIR_ERR_INVALID_CONN,
    ) or (
        # libvirt's PCI code uses the same error codes when it refuses a
        # call, but sets no error domain.
        err.get_error_code()
        in (libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR)
        and err.get_error_domain()
        in (libvirt.VIR_FROM_REMOTE, libvirt.VIR_FROM_RPC)
    )


class Connection:
    """A connection for all threads of a process.

    libvirt allows concurrent calls on one connection.

    :param uri: such as qemu:///system
    :param seconds: how long to wait for libvirtd while it restarts
    :ivar turns: runs one act at a time on a domain
    """

    def __init__(self, uri: str, seconds: float) -> None:
        self.uri = uri
        self.seconds = seconds
        self._lock = threading.Lock()
        self._open: Any = None
        self.turns = outliving.Turns()
        _all.add(self)

    def get(self) -> Any:
        """Return a live virConnect; open one if necessary.

        :raises HypervisorError: if libvirtd cannot be reached, or if this
            process was forked from one that used libvirt
        """
        deadline = time.monotonic() + self.seconds
        libvirt = module()
        if _forked:
            raise exception.HypervisorError(
                what=f'connection to {self.uri}',
                reason='this process was forked from one that used libvirt, '
                'so it cannot use libvirt itself: start a new process',
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
        # Some drivers, such as test:///, do not support keepalive.
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
            LOG.info('reopening the broken connection to %s', self.uri)
            with contextlib.suppress(module().libvirtError):
                self._open.close()
        self._open = None

    def after_fork(self) -> None:
        """Forget the connection in a forked child; the parent keeps it."""
        if self._open is not None:
            # This extra reference is never released. Without it, the exit
            # of the child would close the parent's connection.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._open))
        self._open = None
        self._lock = threading.Lock()

    def run(self, what: str, act: Callable[[Any], _T]) -> _T:
        """Call a function; call it again if libvirtd went away meanwhile.

        :param what: what is being done, for messages
        :param act: takes the virConnect; must be safe to repeat
        :raises HypervisorError: if libvirt refuses, or libvirtd does not
            come back
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
            # isAlive() may report the broken connection a moment later.
            time.sleep(0.1)

    def domain(self, uuid: str) -> Any:
        """Look up a virDomain.

        :returns: None if no domain has that UUID
        :raises HypervisorError: if libvirt does not answer or refuses
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

    def runs(self, uuid: str) -> bool | None:
        """Whether a domain runs; None: it is paused, or has a job.

        :raises HypervisorError: if libvirt does not answer or refuses
        """
        domain = self.domain(uuid)
        if domain is None:
            return False
        libvirt = module()
        with errors(f'state of domain {uuid}'):
            state = domain.state()[0]
            if state in (
                libvirt.VIR_DOMAIN_SHUTOFF,
                libvirt.VIR_DOMAIN_CRASHED,
            ):
                return False
            if state != libvirt.VIR_DOMAIN_RUNNING:
                return None
            no_job = domain.jobInfo()[0] == libvirt.VIR_DOMAIN_JOB_NONE
            return True if no_job else None


def run_events() -> None:
    """Start the thread that receives libvirt's events, once per process.

    The thread must run before a connection is opened. If the process already
    has such a thread, as nova-compute does, either of them may receive an
    event.
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
        except libvirt.libvirtError as err:
            log.error(LOG, err, 'libvirt could not deliver events')
            time.sleep(1)
