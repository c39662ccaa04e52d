# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The privileged daemon of oslo.privsep, and how its functions are called.

Each process has a daemon of its own. Over a connection that a fork has
duplicated, a process could get the answers to the other's calls, or none. So a
forked child drops its parent's connection and starts a daemon when it first
needs one.
"""

from __future__ import annotations

from collections.abc import Callable
import errno
import functools
import importlib
import logging
import os
import shlex
import shutil
import sys
import threading
from typing import Any
from typing import ParamSpec
from typing import TypeVar

from oslo_config import cfg
from oslo_privsep import capabilities
from oslo_privsep import comm
from oslo_privsep import daemon
from oslo_privsep import priv_context

from os_acc import exception
from os_acc.devices import open_files
from os_acc.devices import root_folder

LOG = logging.getLogger(__name__)

SECTION = 'os_acc_privileged'

# oslo.privsep's command; also its name in the filters of oslo.rootwrap.
_HELPER = 'privsep-helper'

#: Seconds that a fork waits for a daemon that is being started.
LONGEST_WAIT = 10.0

# The modules of the calls that every plug makes.
_MODULES = (
    'os_acc.privileged.device_users',
    'os_acc.privileged.mdev',
    'os_acc.privileged.pci',
)

# To write to sysfs, the user id of root is enough. To see which files other
# users' processes have open, and to set up VFs of NICs, takes capabilities.
CAPABILITIES = (
    capabilities.CAP_SYS_PTRACE,  # to read the links in /proc/PID/fd
    capabilities.CAP_DAC_READ_SEARCH,  # to look into /proc/PID/fd
    capabilities.CAP_NET_ADMIN,  # to set a VF's MAC address on its PF
)

# Calls mostly wait for guests and for the kernel, so there are more threads
# than CPUs.
_THREADS = 32

# Errors that mean that the host, not the device, has run out of something.
_OF_THE_HOST = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOLCK)

_P = ParamSpec('_P')
_T = TypeVar('_T')


class _Context(priv_context.PrivContext):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._starting = threading.RLock()

    def start(
        self, method: priv_context.Method = priv_context.Method.ROOTWRAP
    ) -> None:
        """Start the daemon, or wait while another thread starts it."""
        with self._starting:
            if self.channel is None:
                super().start(method)

    def before_fork(self) -> bool:
        """Wait until no thread starts the daemon, and let none start it.

        :returns: whether it succeeded within LONGEST_WAIT
        """
        return self._starting.acquire(timeout=LONGEST_WAIT)

    def after_fork_in_parent(self) -> None:
        """Undo a before_fork() that succeeded."""
        self._starting.release()

    def after_fork_in_child(self) -> None:
        """Forget the parent's daemon and threads."""
        self._starting = threading.RLock()
        self.start_lock = threading.Lock()
        channel, self.channel = self.channel, None
        if channel is not None:
            # This closes the child's copy only. channel.close() would shut
            # down the parent's connection.
            channel.writer.writesock.close()

    def helper_command(self, sockpath: str) -> list[str]:
        """Make the command that starts the daemon.

        The command never asks for a password. If the service has called
        oslo_privsep.priv_context.init(), as nova-compute does, its root helper
        runs the bare name privsep-helper: oslo.rootwrap knows the command by
        that name only (its exec_dirs say where the file is). Otherwise sudo
        runs the privsep-helper beside the Python interpreter if there is one,
        since root's PATH may lack it.
        """
        command: list[str] = super().helper_command(sockpath)
        if self.conf.helper_command:
            return command
        if command[0] == 'sudo':
            command[:1] = [] if os.geteuid() == 0 else ['sudo', '-n']
        place = command.index(_HELPER)
        if command[:place] in ([], ['sudo', '-n']):
            beside = os.path.join(os.path.dirname(sys.executable), _HELPER)
            if os.path.exists(beside):
                command[place] = beside
        return command

    def command(self) -> str:
        """The command that starts the daemon, for messages.

        It lacks the context and the path of the socket.
        """
        command = self.helper_command('')
        return shlex.join(command[: command.index('--privsep_context')])


pctxt = _Context(
    'os_acc',
    cfg_section=SECTION,
    pypath=f'{__name__}.pctxt',
    capabilities=CAPABILITIES,
)
cfg.CONF.set_default('thread_pool_size', _THREADS, group=SECTION)


def entry(func: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make a function run in the daemon.

    Arguments and result must be of types that msgpack can encode.

    :returns: a function that raises what the function raises, and
        PrivilegeError if the daemon is unavailable
    """
    remote = pctxt.entrypoint(func)

    @functools.wraps(func)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            result: _T = remote(*args, **kwargs)
        except (
            daemon.FailedToDropPrivileges,
            daemon.ProtocolError,
            comm.PrivsepTimeout,
        ) as err:
            raise _unavailable(err) from err
        except OSError as err:
            if pctxt.client_mode:
                raise _unavailable(err) from err
            if err.errno in _OF_THE_HOST:
                raise exception.PrivilegeError(
                    reason=f'the privsep daemon: {exception.describe(err)}'
                ) from err
            # The daemon works; the device is gone or does not work.
            raise exception.DeviceError(
                device=str(args[0]) if args else func.__name__,
                reason=exception.describe(err),
            ) from err
        return result

    # oslo.privsep recognizes an entry point by these attributes.
    call.__dict__.update(remote.__dict__)
    return call


@entry
def whoami() -> tuple[int, list[str]]:
    """Describe the daemon, for ``os-acc doctor``.

    :returns: its user id, and what it lacks: names of capabilities, or the
        PID namespace of the host
    """
    effective = 0
    with open('/proc/self/status', encoding='ascii') as file:
        for line in file:
            if line.startswith('CapEff:'):
                effective = int(line.split()[1], 16)
    missing = [each for each in CAPABILITIES if not effective >> each & 1]
    names = [capabilities.CAPS_BYVALUE.get(e, str(e)) for e in missing]
    try:
        open_files.check_all_seen()
    except exception.PrivilegeError:
        names.append("the host's PID namespace")
    return os.geteuid(), names


@entry
def check_folder() -> None:
    """Check the folder of the record, for ``os-acc doctor``.

    :raises PrivilegeError: if others than root could change it
    """
    root_folder.check()


@entry
def load() -> None:
    """Import the modules of the calls that every plug makes."""
    for name in _MODULES:
        importlib.import_module(name)


def start_in_background() -> None:
    """Start the daemon in a thread, so that the first plug need not wait.

    If it cannot be started, this only logs a warning, and the first call that
    needs the daemon raises an error.
    """
    if pctxt.client_mode and pctxt.channel is None:
        threading.Thread(
            target=_start, name='os-acc privsep start', daemon=True
        ).start()


def _start() -> None:
    try:
        load()
    except Exception as err:
        LOG.warning(
            'The privileged daemon was not started in advance: %s',
            exception.describe(err),
        )


def _unavailable(err: Exception) -> exception.PrivilegeError:
    how = pctxt.command()
    name = shlex.split(how)[0]
    if shutil.which(name) is None:
        reason = f'no command {name!r} is on the PATH'
    else:
        reason = exception.describe(err)
    return exception.PrivilegeError(
        reason=f'the privsep daemon, started by {how!r}, is unavailable: '
        f'{reason}. See [{SECTION}] helper_command, and the sudoers rule in '
        'the documentation'
    )


# Whether the forking thread has made before_fork() succeed.
_forking = threading.local()


def _before_fork() -> None:
    # Python ignores an exception of this hook and forks all the same.
    _forking.ready = False
    _forking.ready = pctxt.before_fork()


def _after_fork_in_parent() -> None:
    if _forking.ready:
        pctxt.after_fork_in_parent()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=pctxt.after_fork_in_child,
)
