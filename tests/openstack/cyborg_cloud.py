# SPDX-License-Identifier: Apache-2.0

"""Keystone, Placement, Glance and Cyborg, with RabbitMQ and MariaDB.

The services start in the order in which they need each other.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
import glob
import pathlib
import sys
import time

import catalog
import configuration
import databases
import layout
import processes


class CyborgCloud:
    """A small OpenStack on this host, without Nova.

    :cvar DATABASES: the services whose databases are made
    :ivar rabbit: the service rabbitmq, as those below
    :ivar timings: how long each step of the start took, for people to read
    """

    DATABASES = ('keystone', 'placement', 'glance', 'cyborg')

    def __init__(self) -> None:
        self.timings: list[str] = []
        self.rabbit = _rabbit()
        self.placement = wsgi(
            'placement',
            layout.services_program('python'),
            'placement.wsgi.api:application',
            layout.PLACEMENT_PORT,
            env={'OS_PLACEMENT_CONFIG_DIR': str(layout.ETC / 'placement')},
        )
        self.conductor = cyborg('conductor')
        self.agent = cyborg('agent')
        self._began = time.monotonic()

    def start(self) -> None:
        """Start everything, and wait until it can be used.

        :raises Ended, Timeout: if a service does not start
        """
        layout.LOGS.mkdir(parents=True, exist_ok=True)
        for log in layout.LOGS.iterdir():  # of an earlier run
            log.unlink()
        self.configure()
        with futures.ThreadPoolExecutor(max_workers=8) as executor:
            beside = [executor.submit(each) for each in self.beside()]
            databases.start()
            self.note('MariaDB')
            filled = databases.fill(executor, self.DATABASES)
            for name in ('keystone', 'placement'):
                filled[name].result()
            self._start_keystone_and_placement()
            catalog.fill()
            self.note('Keystone and Placement')
            for each in (*beside, *filled.values()):
                each.result()
            self.note('RabbitMQ and all databases')
        self.start_control()
        self.note('all services of the controller')
        self.start_host()
        # The agent puts its devices below the resource provider of the host.
        self.agent.start()
        self.agent.wait_until('devices in Placement', devices_are_known)
        self.note('cyborg-agent')

    def configure(self) -> None:
        """Write the files of all services."""
        configuration.write_all()

    def beside(self) -> list[Callable[[], None]]:
        """Return what is started beside the databases."""
        return [self.start_rabbit]

    def start_control(self) -> None:
        """Start the services of a controller."""
        self.conductor.start()
        served = {
            # The program cyborg-api of this version does not start: it needs
            # the WSGI server that oslo.service no longer has.
            url(layout.CYBORG_PORT, '/v2'): wsgi(
                'cyborg-api',
                layout.services_program('python'),
                'cyborg.wsgi.api:application',
                layout.CYBORG_PORT,
                '--config-file',
                str(layout.ETC / 'cyborg.conf'),
                '--log-file',
                'cyborg-api.log',
            ),
            url(layout.GLANCE_PORT): wsgi(
                'glance-api',
                sys.executable,
                'glance.wsgi.api:application',
                layout.GLANCE_PORT,
                env={'OS_GLANCE_CONFIG_DIR': str(layout.ETC / 'glance')},
            ),
        }
        for service in served.values():
            service.start()
        for address, service in served.items():
            service.wait_for_http(address)
        wait_for_rpc(self.conductor)

    def start_host(self) -> None:
        """Give the host its resource provider in Placement."""
        raise NotImplementedError

    def start_rabbit(self) -> None:
        """Start RabbitMQ, also again, and wait until it works."""
        log = layout.LOGS / 'rabbitmq.log'
        size = size_of(log)
        self.rabbit.start()
        self.rabbit.wait_until(
            'complete start',
            lambda: logged(log, size, 'Server startup complete'),
        )

    def start_placement(self) -> None:
        """Start Placement, also again, and wait until it answers."""
        self.placement.start()
        self.placement.wait_for_http(url(layout.PLACEMENT_PORT))

    def start_conductor(self) -> None:
        """Start Cyborg's conductor again, and wait until it listens."""
        size = size_of(layout.LOGS / 'cyborg-conductor.log')
        self.conductor.start()
        wait_for_rpc(self.conductor, size)

    def _start_keystone_and_placement(self) -> None:
        keystone = wsgi(
            'keystone',
            layout.services_program('python'),
            'keystone.wsgi.api:application',
            layout.KEYSTONE_PORT,
            env={
                'OS_KEYSTONE_CONFIG_FILES': str(layout.ETC / 'keystone.conf')
            },
        )
        keystone.start()
        self.start_placement()
        keystone.wait_for_http(layout.KEYSTONE)

    def note(self, what: str) -> None:
        """Note when a step of the start has ended."""
        seconds = time.monotonic() - self._began
        self.timings.append(f'{seconds:6.1f} s  {what}')


def wsgi(
    name: str,
    python: str,
    application: str,
    port: int,
    *arguments: str,
    env: dict[str, str] | None = None,
) -> processes.Service:
    """Return the service of a WSGI application."""
    return processes.Service(
        name,
        [python, layout.HERE / 'serve.py', application, str(port), *arguments],
        env,
    )


def url(port: int, path: str = '/') -> str:
    """Return the URL of a service on this host."""
    return f'http://{layout.ADDRESS}:{port}{path}'


def cyborg(name: str) -> processes.Service:
    """Return a service of Cyborg: conductor or agent."""
    return processes.Service(
        f'cyborg-{name}',
        [
            layout.services_program(f'cyborg-{name}'),
            '--config-file',
            layout.ETC / 'cyborg.conf',
            '--log-file',
            f'cyborg-{name}.log',
        ],
    )


def wait_for_rpc(service: processes.Service, size: int = 0) -> None:
    """Wait until a service listens. What it is asked before that is lost.

    :param size: the size of its log before its start
    """
    log = layout.LOGS / f'{service.name}.log'
    service.wait_until(
        'RPC server', lambda: logged(log, size, 'RPC server for service')
    )


def _rabbit() -> processes.Service:
    programs = glob.glob('/usr/lib/rabbitmq/lib/*/sbin/rabbitmq-server')
    return processes.Service(
        'rabbitmq',
        programs[-1:],
        env={
            'RABBITMQ_NODENAME': 'rabbit@localhost',
            'RABBITMQ_CONFIG_FILE': str(layout.ETC / 'rabbitmq'),
            'RABBITMQ_CONF_ENV_FILE': str(layout.ETC / 'rabbitmq-env.conf'),
            'RABBITMQ_ENABLED_PLUGINS_FILE': str(
                layout.ETC / 'enabled_plugins'
            ),
            'RABBITMQ_MNESIA_BASE': str(layout.STATE / 'rabbitmq'),
            'RABBITMQ_LOG_BASE': str(layout.LOGS),
            'RABBITMQ_PID_FILE': str(layout.ROOT / 'rabbitmq.pid'),
        },
    )


def size_of(log: pathlib.Path) -> int:
    """Return the size of a log; 0 if there is none yet."""
    return log.stat().st_size if log.exists() else 0


def logged(log: pathlib.Path, size: int, text: str) -> bool:
    """Say whether a log has a text after its first bytes."""
    if not log.exists():
        return False
    return text.encode() in log.read_bytes()[size:]


def devices_are_known() -> bool:
    """Say whether Cyborg and Placement know the devices of the agent."""
    admin = catalog.connect()
    known = {each.name for each in admin.placement.resource_providers()}
    found = [each.name for each in admin.accelerator.deployables()]
    return bool(found) and known.issuperset(found)
