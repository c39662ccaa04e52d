# SPDX-License-Identifier: Apache-2.0

"""Runs OpenStack Cyborg's drivers for the driver cyborg.

Standard input is a socket. Each line that the process receives is a request,
and it sends one line as the answer. Both are JSON::

    {"id": 7, "method": "program", "params": {...}}
    {"id": 7, "result": true}
    {"id": 7, "error": {"kind": "failed", "message": "OSError: ...",
                        "errno": 17}}

The answer has the id of its request. The kind of an error is ``fatal`` if the
process must be ended: Cyborg or one of its drivers cannot be loaded, or the
process needs too much memory. Else it is ``failed``. Everything that is
printed or logged goes to standard error.

A child that a driver forks does not get the socket, and ends when it returns
from the driver: only this process answers.

When the other side is gone, the process ends itself and all processes that it
has started.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from typing import Any
from typing import NoReturn

LOG = logging.getLogger('os_acc.kinds.cyborg.driver.helper')

NAMESPACE = 'cyborg.accelerator.driver'

# How often to check whether the parent process is still alive, and how much
# memory this one has. The socket alone does not tell that the parent is gone:
# a child that the parent has forked may keep it open.
_LOOK_EVERY_MS = 200

# Memory that this process may have, in bytes. Cyborg with all of its drivers
# has about 100 MiB. They keep the whole output of a tool in memory
# (processutils.execute() of oslo.concurrency).
MOST_MEMORY = 512 * 2**20

# Characters of an error message. That of processutils.execute() has the whole
# output of the tool.
_LONGEST_MESSAGE = 2000


class Missing(Exception):
    """Cyborg or one of its drivers is not installed, or does not load."""


class Drivers:
    """The enabled drivers of Cyborg, by the names of their entry points.

    Each public method is a method of the protocol; its arguments are params.
    """

    def __init__(self) -> None:
        self._drivers: dict[str, Any] = {}

    def setup(self, drivers: list[str], config_files: list[str]) -> str:
        """Load Cyborg and create an instance of each driver.

        :param drivers: names of entry points
        :param config_files: Cyborg's configuration files
        :returns: the version of Cyborg
        :raises Missing: if Cyborg or a driver cannot be loaded
        """
        try:
            import cyborg.conf
            import cyborg.objects
            import cyborg.privsep
        except ImportError as err:
            raise Missing(
                f'openstack-cyborg is not installed for {sys.executable}: '
                f'{err}'
            ) from err
        cyborg.conf.CONF(
            [], project='cyborg', default_config_files=config_files
        )
        if os.geteuid() == 0:
            # Root needs no privileged daemon of Cyborg.
            cyborg.privsep.sys_admin_pctxt.set_client_mode(False)
        cyborg.objects.register_all()
        for name in drivers:
            self._drivers[name] = _load(name)
        return _version()

    def ping(self) -> bool:
        return True

    def discover(self) -> dict[str, Any]:
        """List the devices of all drivers, and the errors of failed ones."""
        found: list[dict[str, Any]] = []
        errors: dict[str, str] = {}
        for name, driver in self._drivers.items():
            try:
                devices = driver.discover() or []
                found += [_device(name, driver, each) for each in devices]
            except Exception as err:
                LOG.exception('discover() of %s', name)
                errors[name] = f'{type(err).__name__}: {err}'
        return {'devices': found, 'errors': errors}

    def program(
        self, driver: str, controlpath_id: dict[str, Any], image: str
    ) -> bool:
        """Program an FPGA.

        :param driver: the name of Cyborg's driver
        :param image: the path of the bitstream
        :returns: whether the driver reports success
        """
        return bool(self._drivers[driver].program(controlpath_id, image))

    def create_mdev(self, parent: str, kind: str, uuid: str) -> None:
        """Create a mediated device as Cyborg's agent does."""
        from cyborg.accelerator.drivers.gpu import utils

        utils.create_mdev_privileged(parent, kind, uuid)


def _load(name: str) -> Any:
    from stevedore import driver
    from stevedore import exception
    from stevedore import extension

    try:
        return driver.DriverManager(
            NAMESPACE, name, invoke_on_load=True
        ).driver
    except exception.NoMatches as err:
        there = extension.ExtensionManager(
            NAMESPACE, on_load_failure_callback=lambda *failure: None
        ).names()
        if name in there:
            raise Missing(f'driver {name!r} does not load: {err}') from err
        raise Missing(
            f'Cyborg has no driver {name!r}; it has: '
            + ', '.join(sorted(there))
        ) from err
    except Exception as err:
        raise Missing(
            f'driver {name!r} does not load: {type(err).__name__}: {err}'
        ) from err


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version('openstack-cyborg')
    except metadata.PackageNotFoundError:
        return 'unknown'


def _device(name: str, driver: Any, device: Any) -> dict[str, Any]:
    """Turn a DriverDevice of cyborg/objects/driver_objects to plain values."""
    return {
        'driver': name,
        'vendor': device.vendor,
        'type': device.type,
        'board': _text(device, 'std_board_info'),
        'programmable': _can_program(driver),
        'cpid_type': device.controlpath_id.cpid_type,
        'cpid_info': device.controlpath_id.cpid_info,
        'deployables': [
            {
                'accelerators': deployable.num_accelerators,
                'attributes': [
                    [each.key, each.value]
                    for each in deployable.attribute_list or []
                ],
                'handles': [
                    [each.attach_type, each.attach_info]
                    for each in deployable.attach_handle_list or []
                ],
            }
            for deployable in device.deployable_list
        ],
    }


def _text(device: Any, field: str) -> str:
    # Reading an unset field of a versioned object raises an error.
    if not device.obj_attr_is_set(field):
        return ''
    return getattr(device, field) or ''


def _can_program(driver: Any) -> bool:
    """Say whether a driver overrides program(); otherwise it only raises."""
    method = getattr(type(driver), 'program', None)
    return callable(method) and not getattr(method, '__module__', '').endswith(
        '.base'
    )


class Channel:
    """The socket to os-acc, in the process that os-acc has started.

    :param number: the descriptor of the socket; this object closes it
    """

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        self._owner = os.getpid()
        # The id of the request that is being served.
        self._current: int | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._hide)

    def serve(self) -> None:
        """Answer requests until the other side closes the socket."""
        drivers = Drivers()
        with self._socket.makefile(encoding='utf-8', newline='\n') as lines:
            for line in lines:
                request = json.loads(line)
                self._current = request['id']
                failure = None
                try:
                    method = getattr(drivers, request['method'])
                    result = method(**request['params'])
                    answer = json.dumps(
                        {'id': self._current, 'result': result}
                    )
                except BaseException as err:
                    failure = err
                if os.getpid() != self._owner:
                    _leave(failure)
                if failure is None:
                    self._send(answer)
                else:
                    self.refuse(_error(request['method'], failure))

    def refuse(self, error: dict[str, Any]) -> None:
        """Answer the request that is being served with an error."""
        self._send(json.dumps({'id': self._current, 'error': error}))

    def watch(self, parent: int) -> None:
        """Wait until the other side is gone, then end this process at once.

        End it too if it has more than MOST_MEMORY.

        :param parent: the number of the process that has started this one
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP | select.POLLHUP)
        while not poll.poll(_LOOK_EVERY_MS) and os.getppid() == parent:
            if (size := _memory()) > MOST_MEMORY:
                text = f'it needs {size} bytes of memory, and may have '
                text += f'{MOST_MEMORY}. One of its tools may print too much'
                self.refuse({'kind': 'fatal', 'message': text})
                break
        end()

    def _send(self, answer: str) -> None:
        with self._lock:
            self._socket.sendall(answer.encode() + b'\n')

    def _hide(self) -> None:
        """Replace the socket in a child that was forked."""
        # If it were closed, another file could get its number.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, self._socket.fileno(), inheritable=False)
        os.close(null)


def _leave(failure: BaseException | None) -> NoReturn:
    """End a child that a driver has forked, as its return or error says."""
    status = 0
    if isinstance(failure, SystemExit):
        # None stands for 0, and a text for 1.
        code = failure.code
        status = code if isinstance(code, int) else int(code is not None)
    elif failure is not None:
        LOG.error('A forked child failed', exc_info=failure)
        status = 1
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(status & 0xFF)


def _error(method: str, err: BaseException) -> dict[str, Any]:
    if isinstance(err, Missing):
        return {'kind': 'fatal', 'message': _shortened(str(err))}
    LOG.error('%s failed', method, exc_info=err)
    return {
        'kind': 'failed',
        'message': _shortened(f'{type(err).__name__}: {err}'),
        'errno': getattr(err, 'errno', None),
    }


def _shortened(text: str) -> str:
    """Leave out the middle of a long text."""
    if len(text) <= _LONGEST_MESSAGE:
        return text
    half = _LONGEST_MESSAGE // 2
    left_out = len(text) - 2 * half
    return f'{text[:half]} ({left_out} characters left out) {text[-half:]}'


def _memory() -> int:
    """Bytes of memory that this process has."""
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGESIZE')


def end() -> None:
    """Kill this process and all processes that it has started."""
    # os-acc starts this process as the leader of a session of its own. A
    # process group of a shell may contain other processes: do not kill it.
    if os.getpgrp() == os.getsid(0):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    parent = os.getppid()
    # Hide the socket from the drivers and their tools; they get no input.
    channel = Channel(os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format='%(levelname)s %(name)s: %(message)s',
    )
    threading.Thread(target=channel.watch, args=(parent,), daemon=True).start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        channel.serve()
    end()


if __name__ == '__main__':
    main()
