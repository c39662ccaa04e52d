# SPDX-License-Identifier: Apache-2.0

"""A second compute host on this machine.

Its nova-compute and libvirtd have a host name and directories of libvirt of
their own: see another_host.sh. The service os-acc-nova-demand runs on both
hosts.
"""

from __future__ import annotations

import pathlib

import catalog
import cloud
import cyborg_cloud
import databases
import layout
import processes


class SecondHost:
    """Starts the host, and removes it from the cloud."""

    def __init__(self) -> None:
        self._libvirtd = processes.Service(
            'libvirtd-2',
            [
                layout.HERE / 'another_host.sh',
                layout.SECOND_HOST,
                'libvirtd',
                '-f',
                '/etc/libvirt/libvirtd.conf',
                '-p',
                '/run/libvirt/libvirtd.pid',
            ],
            # libvirtd.conf names the log of the first one.
            {'LIBVIRT_LOG_OUTPUTS': f'3:file:{layout.LOGS}/libvirtd-2.log'},
        )
        self._compute: processes.Service | None = None

    def start(self) -> None:
        """Start libvirtd and nova-compute, and wait until Nova uses them."""
        self._libvirtd.start()
        process = self._libvirtd.pid
        # Until then, it has the namespaces of the first host.
        self._libvirtd.wait_until(
            'program',
            lambda: (
                pathlib.Path(f'/proc/{process}/comm').read_text()
                == 'libvirtd\n'
            ),
        )
        root = f'/proc/{process}/root'
        uri = f'{layout.LIBVIRT}?socket={root}/run/libvirt/libvirt-sock'
        self._libvirtd.wait_until(
            'connection', lambda: cloud.libvirt_answers(uri)
        )
        self._compute = cloud.compute_service(
            'nova-compute-2',
            layout.SECOND_COMPUTE_CONF,
            *('nsenter', '--mount', '--uts', '--target', str(process)),
        )
        cloud.start_compute(self._compute, layout.SECOND_HOST)
        databases.nova_manage('cell_v2', 'discover_hosts')

    def remove(self) -> None:
        """Stop the host, and delete it from Nova, without its guests."""
        if self._compute is not None:
            self._compute.stop()
        nova = catalog.connect().compute
        for service in nova.services(
            host=layout.SECOND_HOST, binary='nova-compute'
        ):
            nova.delete_service(service)
        self._libvirtd.stop()


def demand_service(name: str, conf: pathlib.Path) -> processes.Service:
    """Return the service os-acc-nova-demand of a host.

    :param name: of the service, and of its log
    :param conf: the configuration of the host's nova-compute
    """
    return processes.Service(
        name,
        [
            layout.nova_program('os-acc-nova-demand'),
            '--config-file',
            conf,
            '--log-file',
            f'{name}.log',
        ],
    )


def start_demand(service: processes.Service) -> None:
    """Start os-acc-nova-demand, and wait until it misses no notification."""
    log = layout.LOGS / f'{service.name}.log'
    service.start()
    service.wait_until(
        'listener',
        lambda: cyborg_cloud.logged(log, 0, 'Listening for notifications'),
    )
