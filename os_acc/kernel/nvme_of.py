# SPDX-License-Identifier: Apache-2.0

"""Namespaces of NVMe-oF targets, as the kernel shows them in sysfs.

A namespace that is connected is a block device of this host. With the kernel's
native multipathing, all connections to a subsystem share one block device for
each namespace (nvme_alloc_ns_head() in drivers/nvme/host/core.c). Without it,
each connection has block devices of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import os
import re

from os_acc.kernel import sysfs

FABRICS = ('tcp', 'rdma', 'fc', 'loop')

# nvme_set_disk_name() in drivers/nvme/host/multipath.c. A path of a namespace
# with several paths is hidden and has another name, such as nvme1c3n1.
_DISK = re.compile(r'nvme\d+n\d+')
_PATH = re.compile(r'nvme\d+c(\d+)(n\d+)')
_CONTROLLER = re.compile(r'nvme\d+')
# The directory of a namespace that several controllers can reach is in that of
# the subsystem. So are its partitions and its character device, such as ng1n1.
_IN_SUBSYSTEM = re.compile(r'(.*/nvme-subsys\d+)/(?:nvme|ng)(\d+n\d+)(?:/.*)?')

# The form of a host NQN with a UUID: NVMe Base Specification 2.0, 4.5.
_HOST_NQN = 'nqn.2014-08.org.nvmexpress:uuid:{}'

LIVE = 'live'


@dataclasses.dataclass(frozen=True, order=True)
class Portal:
    """Where a target can be reached."""

    address: str  # an IP address, in its canonical form
    port: int
    transport: str  # one of spec.nvme_of.TRANSPORTS


@dataclasses.dataclass(frozen=True)
class Controller:
    """A connection to a subsystem, or an NVMe controller of this host."""

    name: str
    transport: str | None  # tcp, rdma, pcie, ...
    nqn: str | None  # of the subsystem
    # the host NQN that the connection uses; None: a local controller, or a
    # kernel that does not show it
    host_nqn: str | None
    portal: Portal | None  # None: it has no IP address
    state: str | None  # such as live, connecting

    @property
    def path(self) -> str:
        """Its directory in sysfs."""
        return f'{sysfs.SYS}/class/nvme/{self.name}'

    @property
    def is_local(self) -> bool:
        """Whether it belongs to a device of this host."""
        return self.transport not in FABRICS


@dataclasses.dataclass(frozen=True)
class Block:
    """A block device of a namespace, such as nvme1n1."""

    name: str
    path: str

    @property
    def reached_by(self) -> list[str]:
        """The names of the controllers by which it can be reached."""
        parent = os.path.dirname(self.path)
        if _CONTROLLER.fullmatch(os.path.basename(parent)):
            return [os.path.basename(parent)]
        return paths(self.path)

    def controllers(self) -> list[Controller]:
        return [_controller(name) for name in self.reached_by]

    def is_reachable(self) -> bool:
        """Whether a connection to its target is alive."""
        return any(each.state == LIVE for each in self.controllers())


def paths(directory: str) -> list[str]:
    """The controllers by which a namespace with several paths is reached.

    :param directory: the directory in sysfs of its block device, of a
        partition, or of its character device; for others, there are none
    """
    match = _IN_SUBSYSTEM.fullmatch(directory)
    if match is None:
        return []
    return [
        name
        for name in sysfs.names(match[1])
        if _CONTROLLER.fullmatch(name) and f'nvme{match[2]}' in _disks_of(name)
    ]


def host_nqn(instance_uuid: str) -> str:
    """The host NQN that this host uses to connect for an instance."""
    return _HOST_NQN.format(instance_uuid)


def link(wwn: str) -> str:
    """The link of a namespace: systemd's 60-persistent-storage.rules."""
    return f'/dev/disk/by-id/nvme-{wwn}'


def blocks(wwn: str) -> list[Block]:
    """The block devices of a namespace; none if it is not connected."""
    return [x for x in all_blocks() if sysfs.read(f'{x.path}/wwid') == wwn]


def all_blocks() -> Iterator[Block]:
    """The block devices of all NVMe namespaces, local ones included."""
    directory = f'{sysfs.SYS}/class/block'
    for name in sysfs.names(directory):
        if _DISK.fullmatch(name):
            yield Block(name, sysfs.place(f'{directory}/{name}'))


def blocks_of(controller: Controller) -> list[Block]:
    """The block devices of the namespaces that a controller reaches."""
    wanted = _disks_of(controller.name)
    return [block for block in all_blocks() if block.name in wanted]


def controllers(nqn: str, host: str) -> list[Controller]:
    """The connections to a subsystem that use a host NQN."""
    return [
        each
        for each in all_controllers()
        if not each.is_local and (each.nqn, each.host_nqn) == (nqn, host)
    ]


def all_controllers() -> Iterator[Controller]:
    """The NVMe controllers of this host, and its connections."""
    for name in sysfs.names(f'{sysfs.SYS}/class/nvme'):
        if _CONTROLLER.fullmatch(name):
            yield _controller(name)


def has_multipath() -> bool | None:
    """Whether the kernel's native multipathing is on; None: not loaded."""
    text = sysfs.read(f'{sysfs.SYS}/module/nvme_core/parameters/multipath')
    return None if text is None else text == 'Y'


def _disks_of(name: str) -> set[str]:
    """The names of the block devices that a controller reaches."""
    found = set()
    for entry in sysfs.names(f'{sysfs.SYS}/class/nvme/{name}'):
        if _DISK.fullmatch(entry):
            found.add(entry)
        elif match := _PATH.fullmatch(entry):
            # The number of the subsystem, and that of the namespace.
            found.add(entry[: entry.index('c')] + match[2])
    return found


def _controller(name: str) -> Controller:
    directory = f'{sysfs.SYS}/class/nvme/{name}'
    transport = sysfs.read(f'{directory}/transport')
    return Controller(
        name=name,
        transport=transport,
        nqn=sysfs.read(f'{directory}/subsysnqn'),
        host_nqn=sysfs.read(f'{directory}/hostnqn'),
        portal=_portal(sysfs.read(f'{directory}/address'), transport),
        state=sysfs.read(f'{directory}/state'),
    )


def _portal(text: str | None, transport: str | None) -> Portal | None:
    """Read an address such as traddr=192.0.2.1,trsvcid=4420.

    nvmf_get_address() in drivers/nvme/host/fabrics.c writes it.
    """
    parts = dict(
        part.split('=', 1) for part in (text or '').split(',') if '=' in part
    )
    port = parts.get('trsvcid', '')
    if transport is None or not port.isdigit() or 'traddr' not in parts:
        return None
    return Portal(parts['traddr'], int(port), transport)
