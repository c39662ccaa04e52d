# SPDX-License-Identifier: Apache-2.0

"""The cloud with Nova: all services, in the order of their needs."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
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
    """

    DATABASES = (*cyborg_cloud.CyborgCloud.DATABASES, 'nova')

    def __init__(self) -> None:
        super().__init__()
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
        for each in (neutron, api, conductor, _nova('scheduler')):
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
        """Start nova-compute, and wait until it works.

        Nova reports a service as up for a minute after it was killed. So the
        log is what tells.
        """
        log = layout.LOGS / 'nova-compute.log'
        size = cyborg_cloud.size_of(log)
        self.compute.start()
        self.compute.wait_until(
            'services are up and the host has an inventory',
            lambda: (
                cyborg_cloud.logged(
                    log, size, 'RPC server for service: nova-compute'
                )
                and _nova_is_up()
            ),
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
