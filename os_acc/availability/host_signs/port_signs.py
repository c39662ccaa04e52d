# SPDX-License-Identifier: Apache-2.0

"""The signs that the host serves others by a PCI function."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator

from os_acc.availability.host_signs import sign
from os_acc.availability.host_signs import ways
from os_acc.availability.host_signs.snapshot import Snapshot
from os_acc.kernel import configfs
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.refusals import host_refusals
from os_acc.refusals.reasons import Reason

# Network controllers, and serial buses: Fibre Channel and InfiniBand.
_MAY_SERVE = (pci.CLASS_NETWORK, pci.CLASS_SERIAL)


def _nvmet_ports(host: Snapshot) -> dict[str, Reason]:
    """The port of the NVMe target by the function that it depends on.

    A port without a subsystem does not listen: nvmet_port_subsys_allow_link()
    in drivers/nvme/target/configfs.c.
    """
    directory = f'{configfs.root("nvmet", "nvmet")}/ports'
    found: dict[str, Reason] = {}
    for name in sysfs.names(directory):
        path = f'{directory}/{name}'
        if not sysfs.names(f'{path}/subsystems'):
            continue
        kind = sysfs.read(f'{path}/addr_trtype')
        address = sysfs.read(f'{path}/addr_traddr') or ''
        places: list[str] = []
        if kind == 'fc':
            places = host.finder.of_port(address)
        elif kind in ('tcp', 'rdma'):
            places = host.finder.of_local_address(address)
        label = f'{name} ({kind} {address}) of the NVMe target'
        found.update(_by_function(places, label))
    return found


def _lio_ports(host: Snapshot) -> dict[str, Reason]:
    """The port of the SCSI target by the function that it depends on."""
    directory = configfs.root('target_core_mod', 'target')
    found: dict[str, Reason] = {}
    for fabric in sysfs.folders(directory):
        if fabric == 'core':
            continue
        for name in sysfs.folders(f'{directory}/{fabric}'):
            places = _places(
                host, fabric, name, f'{directory}/{fabric}/{name}'
            )
            label = f'{name} ({fabric}) of the SCSI target'
            found.update(_by_function(places, label))
    return found


def _places(
    host: Snapshot, fabric: str, name: str, path: str
) -> Iterator[str]:
    if fabric == 'iscsi':
        # Portals, such as np/192.0.2.1:3260 or np/[2001:db8::1]:3260.
        for group in sysfs.folders(path):
            for portal in sysfs.folders(f'{path}/{group}/np'):
                address = portal.rpartition(':')[0]
                yield from host.finder.of_local_address(address)
        return
    # A port of Fibre Channel or InfiniBand: its name is that of the target.
    # A virtual port has that of its port first: PORT@NAME:NODE, in
    # drivers/scsi/qla2xxx/tcm_qla2xxx.c.
    wanted = name.partition('@')[0].removeprefix('0x')
    wanted = wanted.replace(':', '').lower()
    for kind in ('fc_host', 'infiniband'):
        for _, here in sign.of_class(kind):
            files = [f'{here}/port_name'] + [
                f'{here}/ports/{port}/gids/0'
                for port in sysfs.names(f'{here}/ports')
            ]
            for file in files:
                plain = (sysfs.read(file) or '').removeprefix('0x')
                plain = plain.replace(':', '')
                if len(wanted) >= 16 and plain.endswith(wanted):
                    yield here


def _by_function(places: Iterable[str], label: str) -> dict[str, Reason]:
    reason = host_refusals.SERVES.reason(port=label)
    return {
        address: reason
        for place in places
        for address in ways.functions_in(place)
    }


SIGNS = (
    sign.FunctionSign(
        '/sys/kernel/config/nvmet/ports/N/addr_traddr, with '
        '/sys/class/fc_host/hostN/port_name or /proc/net/route',
        'A port of the NVMe target has an address of its interface, or is its '
        'port of Fibre Channel. A port that listens on any address depends on '
        'no particular card.',
        'Linux 4.8',
        sign.on_the_way(_nvmet_ports, *_MAY_SERVE),
    ),
    sign.FunctionSign(
        '/sys/kernel/config/target/FABRIC/NAME, with '
        '/sys/class/fc_host/hostN/port_name, '
        '/sys/class/infiniband/NAME/ports/N/gids/0 or /proc/net/route',
        'A target of the SCSI target (LIO) has its port of Fibre Channel or '
        'InfiniBand, or a portal of iSCSI has an address of its interface.',
        'Linux 3.1',
        sign.on_the_way(_lio_ports, *_MAY_SERVE),
    ),
)
