# SPDX-License-Identifier: Apache-2.0

"""Contexts of oslo.privsep: functions that run as root, in a daemon.

os-acc makes one for itself, and a distribution with a driver or plugin can
make its own. Each process has its own daemon. Over a connection that a fork
has duplicated, a process could get the answers to the other's calls, or none.
So a forked child drops its parent's connection and starts a daemon when it
first needs one.

A daemon must be able to undo what an interrupted command has begun. So it
leaves the session of its caller: Ctrl-C in a terminal, and the end of the
terminal, do not reach it. It ends when its caller closes the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import errno
import functools
import os
import shlex
import shutil
import signal
import socket
import sys
import threading
import types
from typing import Any
from typing import ParamSpec
from typing import TypeVar

from oslo_config import cfg
from oslo_privsep import comm
from oslo_privsep import daemon
from oslo_privsep import priv_context

from os_acc import exception
from os_acc.claims import holder
from os_acc.options import values as option_values
from os_acc.privileged import root_options

# oslo.privsep's command; also its name in the filters of oslo.rootwrap.
_HELPER = 'privsep-helper'

#: Seconds that a fork, and the end of the process, wait for a daemon that is
#: being started.
LONGEST_WAIT = 10.0

# Calls mostly wait for guests and for the kernel, so there are more threads
# than CPUs.
_THREADS = 32

# Errors that mean that the host, not the device, has run out of something.
_OF_THE_HOST = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOLCK)

# The argument by which a call carries the holder for which it is made.
_HOLDER = 'os_acc_holder'

_P = ParamSpec('_P')
_T = TypeVar('_T')


# Signals that a terminal sends to all processes that were started in it.
_OF_THE_TERMINAL = (signal.SIGINT, signal.SIGHUP)


class _Stream:
    """A socket on which a reset connection reads as the end of the stream.

    If the daemon is killed before it has read a call, the kernel resets the
    connection (unix(7), ECONNRESET). oslo.privsep's reader thread would end
    with that error, and the caller would wait forever.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def recv(self, size: int) -> bytes:
        """Receive at most size bytes; b'' at the end of the stream."""
        try:
            return self._socket.recv(size)
        except ConnectionResetError:
            return b''

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class _Reader(comm.ClientChannel):
    """Reads the answers from a _Stream."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(_Stream(sock))  # type: ignore[arg-type]


class _Channel(daemon.RootwrapClientChannel, _Reader):
    """The connection to a daemon that a command has started.

    RootwrapClientChannel starts it, and leaves the reading to _Reader.
    """


class Context(priv_context.PrivContext):
    """Functions that run as root, in a daemon that is started on demand.

    The daemon is another Python process. It finds the context by the name of
    its variable, and imports the module that has it. So create it in a
    separate module that imports little, beside the functions that run as root.

    Any process that may start the daemon can call these functions with any
    arguments. So each of them must check its arguments, must touch only the
    devices it is meant for, and must take paths from options(), not from its
    caller.

    :param variable: the full name of the variable that holds the context,
        such as ``f'{__name__}.CONTEXT'``
    :param section: the group of its options, such as
        ``'os_acc_acme_privileged'``: ``helper_command``, ``capabilities`` and
        the others of oslo.privsep
    :param capabilities: what the functions need besides root's user ID,
        from ``oslo_privsep.capabilities``. Without any, they may read and
        write the files that root owns
    """

    def __init__(
        self,
        variable: str,
        section: str,
        capabilities: Iterable[int] = (),
    ) -> None:
        super().__init__(
            variable.partition('.')[0],
            cfg_section=section,
            pypath=variable,
            capabilities=capabilities,
        )
        cfg.CONF.set_default('thread_pool_size', _THREADS, group=section)
        self._starting = threading.RLock()
        # Whether the forking thread has made before_fork() succeed.
        self._forking = threading.local()
        _contexts.append(self)
        if _contexts_run_here:
            self.set_client_mode(False)

    def entry(self, func: Callable[_P, _T]) -> Callable[_P, _T]:
        """Make a function run in the daemon; for use as a decorator.

        Arguments and result must be of types that msgpack can encode: None,
        bool, int, float, str, bytes, and lists and dicts of them.

        In the daemon, os_acc.claims.holder.current() is what it is for the
        caller.

        :returns: a function that raises what the function raises, but
            DeviceError in place of an OSError, and PrivilegeError if the
            daemon is unavailable
        """
        remote = self.entrypoint(func)

        @functools.wraps(func)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            if (sent := kwargs.pop(_HOLDER, None)) is not None:
                # This is the daemon.
                with holder.acting_for(holder.from_wire(sent)):
                    return call(*args, **kwargs)
            more: dict[str, Any] = dict(kwargs)
            if self.client_mode and (who := holder.current()) is not None:
                more[_HOLDER] = who.to_wire()
            try:
                result: _T = remote(*args, **more)
            except (
                daemon.FailedToDropPrivileges,
                daemon.ProtocolError,
                comm.PrivsepTimeout,
            ) as err:
                raise self._unavailable(err) from err
            except OSError as err:
                if self.client_mode:
                    raise self._unavailable(err) from err
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

    def options(self, group: str, opts: Sequence[cfg.Opt]) -> Any:
        """Return the values of options, as root has configured them.

        In the daemon, they are reread from the configuration files that it was
        started with. The caller of the daemon cannot influence them.

        :param group: the group of the options, such as ``'os_acc_acme'``
        :raises InvalidRequest: in the daemon, if a user other than root could
            have written one of the files, or a value is invalid
        """

        def register(conf: cfg.ConfigOpts) -> None:
            conf.register_opts(opts, group=group)

        if not in_helper():
            register(cfg.CONF)
            return cfg.CONF[group]
        conf = root_options.reread(cfg.CONF, register)
        for opt in opts:
            option_values.read(conf, group, opt)
        return conf[group]

    def start(
        self, method: priv_context.Method = priv_context.Method.ROOTWRAP
    ) -> None:
        """Start the daemon, or wait while another thread starts it.

        :param method: ROOTWRAP: a command starts it. FORK: this process, which
            is root, forks it
        """
        with self._starting:
            if self.channel is not None:
                return
            if method is priv_context.Method.ROOTWRAP:
                self.channel = _Channel(context=self)
            else:
                super().start(method)

    def set_client_mode(self, enabled: bool) -> None:
        """Run the functions here (False), or in the daemon (True).

        The daemon calls it before it serves calls.
        """
        super().set_client_mode(enabled)
        if not enabled and in_helper():
            os.setsid()

    def before_fork(self) -> None:
        """Wait until no thread starts the daemon, and let none start it.

        It waits for LONGEST_WAIT at most.
        """
        # Python ignores an exception of this hook and forks all the same.
        self._forking.ready = False
        self._forking.ready = self._starting.acquire(timeout=LONGEST_WAIT)

    def after_fork_in_parent(self) -> None:
        """Let threads start the daemon again."""
        if getattr(self._forking, 'ready', False):
            self._forking.ready = False
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
        since root's PATH may lack it. The paths of the configuration are
        absolute.
        """
        command: list[str] = super().helper_command(sockpath)
        if self.conf.helper_command:
            return command
        for place, option in enumerate(command[:-1]):
            if option in ('--config-file', '--config-dir'):
                # The daemon has another working directory.
                command[place + 1] = os.path.abspath(command[place + 1])
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

    def _unavailable(self, err: Exception) -> exception.PrivilegeError:
        how = self.command()
        name = shlex.split(how)[0]
        if shutil.which(name) is None:
            reason = f'no command {name!r} is on the PATH'
        else:
            reason = exception.describe(err)
        return exception.PrivilegeError(
            reason=f'the privsep daemon, started by {how!r}, is unavailable: '
            f'{reason}. See [{self.cfg_section}] helper_command, and the '
            'sudoers rule in the documentation'
        )


# All contexts of this process. They live as long as it does.
_contexts: list[Context] = []
_contexts_run_here = False


def run_here(enabled: bool) -> None:
    """Run the functions of all contexts in this process, or in the daemons.

    For tests. This also applies to contexts that are made later.

    :param enabled: True: in this process; False: in the daemons
    """
    global _contexts_run_here
    _contexts_run_here = enabled
    for context in _contexts:
        context.set_client_mode(not enabled)


def run_here_until_undone(patch: Any) -> None:
    """Do what run_here(True) does, until pytest's monkeypatch is undone."""
    patch.setattr(sys.modules[__name__], '_contexts_run_here', True)
    for context in _contexts:
        patch.setattr(context, 'client_mode', False)


def runs_here() -> bool:
    """Whether run_here(True) was called last."""
    return _contexts_run_here


def in_helper() -> bool:
    """Whether this process is privsep-helper, or the daemon it has forked."""
    return 'privsep_sock_path' in cfg.CONF


def tell_unless_caller_ended(
    tell: Callable[..., Any],
    kind: type[BaseException],
    err: BaseException,
    trace: types.TracebackType | None,
) -> None:
    """Say why privsep-helper ends, unless its caller has ended before it.

    If the caller was killed, its socket is still there, and nobody listens.
    oslo.privsep would print a traceback on the terminal of the next command.
    """
    if not issubclass(kind, ConnectionRefusedError):
        tell(kind, err, trace)


if in_helper():
    # This is before the helper forks the daemon, which inherits it.
    for _signal in _OF_THE_TERMINAL:
        signal.signal(_signal, signal.SIG_IGN)
    # os-acc run blocks signals, which the commands of the daemon must not.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    sys.excepthook = functools.partial(
        tell_unless_caller_ended, sys.excepthook
    )


def _before_fork() -> None:
    for context in _contexts:
        context.before_fork()


def _after_fork_in_parent() -> None:
    for context in _contexts:
        context.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for context in _contexts:
        context.after_fork_in_child()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
