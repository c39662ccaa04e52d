# SPDX-License-Identifier: Apache-2.0

"""A second compute host on this machine.

Its nova-compute and libvirtd have a host name and directories of libvirt of
their own: see another_host.sh.
"""

from __future__ import annotations

import catalog
import cloud
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
        admin = catalog.connect()
        for service in admin.compute.services(
            host=layout.SECOND_HOST, binary='nova-compute'
        ):
            admin.compute.delete_service(service)
        self._libvirtd.stop()
