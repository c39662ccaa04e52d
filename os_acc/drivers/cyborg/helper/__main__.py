# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Runs OpenStack Cyborg's drivers for os_acc.drivers.cyborg.

Standard input is a socket. Each line that the process receives is a request,
and it sends one line as the answer. Both are JSON::

    {"method": "program", "params": {...}}
    {"result": true}
    {"error": {"kind": "failed", "message": "OSError: ...", "errno": 17}}

The kind is ``missing`` if Cyborg or one of its drivers cannot be loaded, else
``failed``. Everything that is printed or logged goes to standard error.

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

LOG = logging.getLogger('os_acc.drivers.cyborg.helper')

NAMESPACE = 'cyborg.accelerator.driver'

# How often to look whether the parent process still lives. The socket alone
# does not tell: a child that the parent has forked may keep it open.
_LOOK_EVERY_MS = 1000


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
    """Turn a DriverDevice (cyborg/objects/driver_objects) to plain values."""
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
    """Say whether a driver overrides program(), which else only raises."""
    method = getattr(type(driver), 'program', None)
    return callable(method) and not getattr(method, '__module__', '').endswith(
        '.base'
    )


def serve(channel: socket.socket) -> None:
    """Answer requests until the other side closes the socket."""
    drivers = Drivers()
    with channel.makefile('rw', encoding='utf-8', newline='\n') as lines:
        for line in lines:
            request = json.loads(line)
            try:
                method = getattr(drivers, request['method'])
                answer = {'result': method(**request['params'])}
            except BaseException as err:
                answer = {'error': _error(request['method'], err)}
            lines.write(json.dumps(answer) + '\n')
            lines.flush()


def _error(method: str, err: BaseException) -> dict[str, Any]:
    if isinstance(err, Missing):
        return {'kind': 'missing', 'message': str(err)}
    LOG.error('%s failed', method, exc_info=err)
    return {
        'kind': 'failed',
        'message': f'{type(err).__name__}: {err}',
        'errno': getattr(err, 'errno', None),
    }


def _watch(channel: socket.socket, parent: int) -> None:
    """Wait until the other side is gone, then end this process at once."""
    poll = select.poll()
    poll.register(channel, select.POLLRDHUP | select.POLLHUP)
    while not poll.poll(_LOOK_EVERY_MS) and os.getppid() == parent:
        pass
    end()


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
    channel = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format='%(levelname)s %(name)s: %(message)s',
    )
    threading.Thread(
        target=_watch, args=(channel, parent), daemon=True
    ).start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(channel)
    end()


if __name__ == '__main__':
    main()
