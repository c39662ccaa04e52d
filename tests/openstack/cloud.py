# SPDX-License-Identifier: Apache-2.0

"""The cloud with Nova: all services, in the order of their needs."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import pathlib
import sys

import catalog
import cyborg_cloud
import databases
import layout
import libvirt
import processes

#: The services of Nova that must be up.
NOVA_SERVICES = {'nova-compute', 'nova-conductor', 'nova-scheduler'}


class Cloud(cyborg_cloud.CyborgCloud):
    """A small OpenStack on this host.

    :ivar compute: the service nova-compute
    :ivar scheduler: the service nova-scheduler
    """

    DATABASES = (*cyborg_cloud.CyborgCloud.DATABASES, 'nova')

    def __init__(self) -> None:
        super().__init__()
        self.compute = compute_service(
            'nova-compute', layout.NOVA_COMPUTE_CONF
        )
        self.scheduler = _nova('scheduler', 'scheduler.conf')

    def beside(self) -> list[Callable[[], None]]:
        return [*super().beside(), _start_libvirtd]

    def start_control(self) -> None:
        """Start all but nova-compute and cyborg-agent."""
        neutron = processes.Service(
            'neutron-stub',
            [
                sys.executable,
                layout.HERE / 'neutron_stub.py',
                str(layout.NEUTRON_PORT),
            ],
        )
        api = cyborg_cloud.wsgi(
            'nova-api',
            sys.executable,
            'nova.wsgi.osapi_compute:application',
            layout.NOVA_PORT,
            '--log-file',
            'nova-api.log',
            env={'OS_NOVA_CONFIG_DIR': str(layout.ETC / 'nova')},
        )
        conductor = _nova('conductor')
        for each in (neutron, api, conductor, self.scheduler):
            each.start()
        super().start_control()
        neutron.wait_for_http(cyborg_cloud.url(layout.NEUTRON_PORT))
        api.wait_for_http(cyborg_cloud.url(layout.NOVA_PORT))
        cyborg_cloud.wait_for_rpc(conductor)

    def start_host(self) -> None:
        """Start nova-compute, which makes the host's resource provider."""
        self.start_compute()
        databases.nova_manage('cell_v2', 'discover_hosts')
        self.note('nova-compute')

    def start_compute(self) -> None:
        """Start nova-compute, and wait until it works."""
        start_compute(self.compute, layout.HOST)

    def restart_scheduler(self) -> None:
        """Let nova-scheduler read its configuration again."""
        self.scheduler.stop()
        size = cyborg_cloud.size_of(layout.LOGS / 'nova-scheduler.log')
        self.scheduler.start()
        cyborg_cloud.wait_for_rpc(self.scheduler, size)


def compute_service(
    name: str, conf: pathlib.Path, *runner: str
) -> processes.Service:
    """Return the service nova-compute of a host.

    :param name: of the service, and of its log
    :param runner: a command that runs it, such as nsenter
    """
    return processes.Service(
        name,
        [
            *runner,
            layout.nova_program('nova-compute'),
            '--config-file',
            conf,
            '--config-file',
            layout.ETC / 'nova' / 'delays.conf',
            '--log-file',
            f'{name}.log',
        ],
    )


def start_compute(service: processes.Service, host: str) -> None:
    """Start nova-compute on a host, and wait until it works.

    Nova reports a service as up for a minute after it was killed. So the log
    is what tells.
    """
    log = layout.LOGS / f'{service.name}.log'
    size = cyborg_cloud.size_of(log)
    service.start()
    service.wait_until(
        'services are up and the host has an inventory',
        lambda: (
            cyborg_cloud.logged(
                log, size, 'RPC server for service: nova-compute'
            )
            and _nova_is_up(host)
        ),
    )


def _nova(name: str, *more: str) -> processes.Service:
    """Return a service of Nova.

    :param more: the names of configuration files beside nova.conf
    """
    files = [layout.ETC / 'nova' / each for each in ('nova.conf', *more)]
    return processes.Service(
        f'nova-{name}',
        [
            layout.nova_program(f'nova-{name}'),
            *(part for each in files for part in ('--config-file', each)),
            '--log-file',
            f'nova-{name}.log',
        ],
    )


def _start_libvirtd() -> None:
    service = processes.Service(
        'libvirtd', ['libvirtd', '-f', '/etc/libvirt/libvirtd.conf']
    )
    service.start()
    # The first connection takes seconds: libvirtd asks QEMU for its features.
    service.wait_until('connection', lambda: libvirt_answers(layout.LIBVIRT))


def libvirt_answers(uri: str) -> bool:
    """Say whether a libvirtd can be used."""
    try:
        with contextlib.closing(libvirt.open(uri)) as connection:
            return bool(connection.getCapabilities())
    except libvirt.libvirtError:
        return False


def _nova_is_up(host: str) -> bool:
    admin = catalog.connect()
    up = {
        service.binary
        for service in admin.compute.services()
        if service.state == 'up'
    }
    providers = admin.placement.resource_providers(name=host)
    return up >= NOVA_SERVICES and any(
        inventory.resource_class == 'VCPU'
        for provider in providers
        for inventory in admin.placement.resource_provider_inventories(
            provider
        )
    )
