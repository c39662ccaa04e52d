# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""All services, started in the order in which they need each other."""

from __future__ import annotations

from concurrent import futures
import contextlib
import glob
import pathlib
import sys
import time

import catalog
import configuration
import databases
import layout
import libvirt
import processes

#: The services of Nova that must be up.
NOVA_SERVICES = {'nova-compute', 'nova-conductor', 'nova-scheduler'}


class Cloud:
    """A small OpenStack on this host.

    :ivar compute: the service nova-compute
    :ivar agent: the service cyborg-agent
    :ivar timings: how long each step of the start took, for people to read
    """

    def __init__(self) -> None:
        self.timings: list[str] = []
        self.compute = processes.Service(
            'nova-compute',
            [
                layout.nova_program('nova-compute'),
                '--config-file',
                layout.NOVA_COMPUTE_CONF,
                '--config-file',
                layout.ETC / 'nova' / 'delays.conf',
                '--log-file',
                'nova-compute.log',
            ],
        )
        self.agent = _cyborg('agent')
        self._began = time.monotonic()

    def start(self) -> None:
        """Start everything, and wait until servers can be created.

        :raises Ended, Timeout: if a service does not start
        """
        layout.LOGS.mkdir(parents=True, exist_ok=True)
        for log in layout.LOGS.iterdir():  # of an earlier run
            log.unlink()
        configuration.write_all()
        with futures.ThreadPoolExecutor(max_workers=8) as executor:
            rabbit = executor.submit(_start_rabbit)
            virt = executor.submit(_start_libvirtd)
            databases.start()
            self._note('MariaDB')
            filled = databases.fill(executor)
            for name in ('keystone', 'placement'):
                filled[name].result()
            self._start_keystone_and_placement()
            catalog.fill()
            self._note('Keystone and Placement')
            for each in (rabbit, virt, *filled.values()):
                each.result()
            self._note('RabbitMQ, libvirtd and all databases')
        self._start_control()
        self._note('Glance, Nova and Cyborg without compute and agent')
        self.start_compute()
        databases.nova_manage('cell_v2', 'discover_hosts')
        self._note('nova-compute')
        # The agent puts its devices below the resource provider of the host,
        # which nova-compute has created.
        self.agent.start()
        self.agent.wait_until('devices in Placement', _devices_are_known)
        self._note('cyborg-agent')

    def start_compute(self) -> None:
        """Start nova-compute, and wait until it works.

        Nova reports a service as up for a minute after it was killed. So the
        log is what tells.
        """
        log = layout.LOGS / 'nova-compute.log'
        size = log.stat().st_size if log.exists() else 0
        self.compute.start()
        self.compute.wait_until(
            'services are up and the host has an inventory',
            lambda: (
                _logged(log, size, 'RPC server for service: nova-compute')
                and _nova_is_up()
            ),
        )

    def _start_keystone_and_placement(self) -> None:
        keystone = _wsgi(
            'keystone',
            layout.services_program('python'),
            'keystone.wsgi.api:application',
            layout.KEYSTONE_PORT,
            env={
                'OS_KEYSTONE_CONFIG_FILES': str(layout.ETC / 'keystone.conf')
            },
        )
        placement = _wsgi(
            'placement',
            layout.services_program('python'),
            'placement.wsgi.api:application',
            layout.PLACEMENT_PORT,
            env={'OS_PLACEMENT_CONFIG_DIR': str(layout.ETC / 'placement')},
        )
        keystone.wait_for_http(layout.KEYSTONE)
        placement.wait_for_http(_url(layout.PLACEMENT_PORT))

    def _start_control(self) -> None:
        """Start all but nova-compute and cyborg-agent."""
        neutron = processes.Service(
            'neutron-stub',
            [
                sys.executable,
                layout.HERE / 'neutron_stub.py',
                str(layout.NEUTRON_PORT),
            ],
        )
        neutron.start()
        conductors = [_cyborg('conductor'), _nova('conductor')]
        scheduler = _nova('scheduler')
        for each in (*conductors, scheduler):
            each.start()
        served = {
            # The program cyborg-api of this version does not start: it needs
            # the WSGI server that oslo.service no longer has.
            _url(layout.CYBORG_PORT, '/v2'): _wsgi(
                'cyborg-api',
                layout.services_program('python'),
                'cyborg.wsgi.api:application',
                layout.CYBORG_PORT,
                '--config-file',
                str(layout.ETC / 'cyborg.conf'),
                '--log-file',
                'cyborg-api.log',
            ),
            _url(layout.GLANCE_PORT): _wsgi(
                'glance-api',
                sys.executable,
                'glance.wsgi.api:application',
                layout.GLANCE_PORT,
                env={'OS_GLANCE_CONFIG_DIR': str(layout.ETC / 'glance')},
            ),
            _url(layout.NOVA_PORT): _wsgi(
                'nova-api',
                sys.executable,
                'nova.wsgi.osapi_compute:application',
                layout.NOVA_PORT,
                '--log-file',
                'nova-api.log',
                env={'OS_NOVA_CONFIG_DIR': str(layout.ETC / 'nova')},
            ),
            _url(layout.NEUTRON_PORT): neutron,
        }
        for url, service in served.items():
            service.wait_for_http(url)
        # What is asked of a conductor before it listens is lost.
        for each in conductors:
            log = layout.LOGS / f'{each.name}.log'
            each.wait_until(
                'RPC server',
                lambda log=log: _logged(log, 0, 'RPC server for service'),
            )

    def _note(self, what: str) -> None:
        seconds = time.monotonic() - self._began
        self.timings.append(f'{seconds:6.1f} s  {what}')


def _wsgi(
    name: str,
    python: str,
    application: str,
    port: int,
    *arguments: str,
    env: dict[str, str] | None = None,
) -> processes.Service:
    """Start a WSGI application."""
    service = processes.Service(
        name,
        [python, layout.HERE / 'serve.py', application, str(port), *arguments],
        env,
    )
    service.start()
    return service


def _url(port: int, path: str = '/') -> str:
    return f'http://{layout.ADDRESS}:{port}{path}'


def _cyborg(name: str) -> processes.Service:
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


def _nova(name: str) -> processes.Service:
    return processes.Service(
        f'nova-{name}',
        [
            layout.nova_program(f'nova-{name}'),
            '--config-file',
            layout.ETC / 'nova' / 'nova.conf',
            '--log-file',
            f'nova-{name}.log',
        ],
    )


def _start_rabbit() -> None:
    programs = glob.glob('/usr/lib/rabbitmq/lib/*/sbin/rabbitmq-server')
    service = processes.Service(
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
    service.start()
    log = layout.LOGS / 'rabbitmq.log'
    service.wait_until(
        'complete start',
        lambda: _logged(log, 0, 'Server startup complete'),
    )


def _start_libvirtd() -> None:
    service = processes.Service(
        'libvirtd', ['libvirtd', '-f', '/etc/libvirt/libvirtd.conf']
    )
    service.start()
    # The first connection takes seconds: libvirtd asks QEMU for its features.
    service.wait_until('connection', _libvirt_answers)


def _libvirt_answers() -> bool:
    try:
        with contextlib.closing(libvirt.open(layout.LIBVIRT)) as connection:
            return bool(connection.getCapabilities())
    except libvirt.libvirtError:
        return False


def _logged(log: pathlib.Path, size: int, text: str) -> bool:
    """Say whether a log has a text after its first bytes."""
    if not log.exists():
        return False
    return text.encode() in log.read_bytes()[size:]


def _nova_is_up() -> bool:
    admin = catalog.connect()
    up = {
        service.binary
        for service in admin.compute.services()
        if service.state == 'up'
    }
    providers = admin.placement.resource_providers(name=layout.HOST)
    return up >= NOVA_SERVICES and any(
        inventory.resource_class == 'VCPU'
        for provider in providers
        for inventory in admin.placement.resource_provider_inventories(
            provider
        )
    )


def _devices_are_known() -> bool:
    """Say whether Cyborg and Placement know the devices of the agent."""
    admin = catalog.connect()
    known = {each.name for each in admin.placement.resource_providers()}
    found = [each.name for each in admin.accelerator.deployables()]
    return bool(found) and known.issuperset(found)
