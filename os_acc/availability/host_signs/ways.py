# SPDX-License-Identifier: Apache-2.0

"""On which devices a block device, an address or a port depends.

Most block devices are below their devices in sysfs. These are not: namespaces
with several NVMe controllers, NVMe over Fabrics, and disks of iSCSI.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import errno
import functools
import ipaddress
import os
import re
import sys
from typing import TypeVar

from os_acc.kernel import pci
from os_acc.kernel import sysfs

_CONTROLLER = re.compile(r'nvme\d+')
_INTERFACE = re.compile('/net/([^/]+)/')
_SCSI_HOST = re.compile(r'/(host\d+)/session(\d+)/')
# nvmet_fc_parse_traddr() in drivers/nvme/target/fc.c takes 0x or not.
_PORT_NAME = re.compile('pn-(0x)?([0-9a-fA-F]{16})')
_ANY = ('0.0.0.0', '::', '[::]')  # noqa: S104

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Row = TypeVar('_Row')


def functions_in(path: str) -> list[str]:
    """The addresses of the PCI functions in a path of sysfs.

    Bridges are among them, and a VMD endpoint that has a PCI domain of its
    own: drivers/pci/controller/vmd.c.
    """
    return [part for part in path.split('/') if pci.is_address(part)]


def identity(path: str) -> str | None:
    """A text that is equal for two block devices that are the same disk.

    Without multipath the kernel shows a disk once for each adapter, or for
    each port of an NVMe drive. None: it is no disk with a worldwide name.

    :param path: the directory in sysfs of a block device
    """
    if name := sysfs.read(f'{path}/wwid'):
        # nvme_global_check_duplicate_ids() in drivers/nvme/host/core.c warns
        # of drives whose names are not unique. Those of one drive have the
        # same subsystem, too.
        subsystem = sysfs.read(f'{os.path.dirname(path)}/subsysnqn')
        return f'{name} {subsystem}' if subsystem else None
    try:
        name = sysfs.read(f'{path}/device/wwid') or ''
    except OSError as err:
        # A disk without one: sdev_show_wwid() in drivers/scsi/scsi_sysfs.c.
        if err.errno != errno.EINVAL:
            raise
        return None
    # The others (t10) contain a serial number, which adapters make up.
    return name if name.startswith(('naa.', 'eui.')) else None


class Ways:
    """Finds the ways from the host's side to its devices.

    A way is a path in sysfs that contains what it depends on. If it is
    unknown, the ways to all devices that could be meant count.

    :param interfaces: the directory in sysfs of each network interface
    """

    def __init__(self, interfaces: dict[str, str]) -> None:
        self._interfaces = interfaces
        directory = f'{sysfs.SYS}/class/nvme-subsystem'
        self._subsystems = {
            sysfs.place(f'{directory}/{name}')
            for name in sysfs.names(directory)
        }

    @functools.cached_property
    def _routes(self) -> Routes:
        return Routes()

    def every(self) -> list[str]:
        """The ways to all devices that a block device may need."""
        directories = ('nvme', 'fc_host', 'scsi_host')
        return [f'{path}/' for path in self._interfaces.values()] + [
            sysfs.place(f'{sysfs.SYS}/class/{directory}/{name}')
            for directory in directories
            for name in sysfs.names(f'{sysfs.SYS}/class/{directory}')
        ]

    def of_block(self, path: str) -> list[str]:
        """The ways to a block device, by its directory in sysfs."""
        found = [path]
        above = path
        while (above := os.path.dirname(above)) not in ('/', ''):
            if above in self._subsystems:
                found += self._of_subsystem(above)
            elif '/nvme-fabrics/' in f'{above}/' and _CONTROLLER.fullmatch(
                os.path.basename(above)
            ):
                found += self.of_controller(above)
        if functions_in(path):
            return found
        if match := _INTERFACE.search(path):
            found += self.of_interface(match[1])
        if match := _SCSI_HOST.search(path):
            found += self._of_session(match[1], match[2])
        return found

    def subsystem_of(self, path: str) -> str | None:
        """The NVMe subsystem that a block device is in, with multipath."""
        above = os.path.dirname(path)
        return above if above in self._subsystems else None

    def of_interface(self, name: str) -> list[str]:
        """The ways to a network interface, by those that it is set up on."""
        found, todo = set(), [name]
        while todo:
            path = self._interfaces.get(todo.pop())
            if path is None or path in found:
                continue
            found.add(path)
            todo += [
                entry.removeprefix('lower_')
                for entry in sysfs.names(path)
                if entry.startswith('lower_')
            ]
        return [f'{path}/' for path in sorted(found)]

    def of_address(self, address: str) -> list[str]:
        """The ways to an IP address, which is local or remote."""
        return [
            way
            for name in sorted(self._routes.interfaces(address))
            for way in self.of_interface(name)
        ]

    def of_local_address(self, address: str) -> list[str]:
        """The ways to what listens at an IP address; none if it is any.

        What listens at any address depends on no particular interface.
        """
        return [] if address in _ANY else self.of_address(address)

    def of_port(self, text: str) -> list[str]:
        """The ways to a local port of Fibre Channel.

        :param text: such as nn-0x20000090fa942779:pn-0x10000090fa942779
        """
        directory = f'{sysfs.SYS}/class/fc_host'
        match = _PORT_NAME.search(text)
        every, found = [], []
        for name in sysfs.names(directory):
            way = sysfs.place(f'{directory}/{name}')
            every.append(way)
            port = sysfs.read(f'{way}/port_name') or ''
            if match and port.removeprefix('0x') == match[2].lower():
                found.append(way)
        return found or every

    def of_controller(self, path: str) -> list[str]:
        """The ways to an NVMe controller, by its directory in sysfs."""
        found = [f'{path}/']
        transport = sysfs.read(f'{path}/transport')
        values = dict(
            part.split('=', 1)
            for part in (sysfs.read(f'{path}/address') or '').split(',')
            if '=' in part
        )
        if transport == 'fc':
            found += self.of_port(values.get('host_traddr', ''))
        elif transport in ('tcp', 'rdma'):
            found += self._of_connection(
                values.get('host_iface'),
                values.get('host_traddr') or values.get('src_addr'),
                values.get('traddr'),
            )
        return found

    def _of_subsystem(self, path: str) -> list[str]:
        return [
            way
            for entry in sysfs.names(path)
            if _CONTROLLER.fullmatch(entry)
            for way in self.of_controller(sysfs.place(f'{path}/{entry}'))
        ]

    def _of_session(self, host: str, session: str) -> list[str]:
        """The ways to an iSCSI session that is done in software.

        The address of the host is the local address of its connection:
        iscsi_sw_tcp_host_get_param() in drivers/scsi/iscsi_tcp.c.
        """
        directory = f'{sysfs.SYS}/class/iscsi_host/{host}'
        peers = f'{sysfs.SYS}/class/iscsi_connection'
        found: list[str] = []
        for name in sysfs.names(peers):
            if name.startswith(f'connection{session}:'):
                found += self._of_connection(
                    _read_iscsi(f'{directory}/netdev'),
                    _read_iscsi(f'{peers}/{name}/local_ipaddr')
                    or _read_iscsi(f'{directory}/ipaddress'),
                    _read_iscsi(f'{peers}/{name}/address')
                    or _read_iscsi(f'{peers}/{name}/persistent_address'),
                )
        return found or self._of_connection(None, None, None)

    def _of_connection(
        self, interface: str | None, local: str | None, remote: str | None
    ) -> list[str]:
        """The ways to a connection, by the first value that shows them."""
        found: list[str] = []
        if interface:
            found = self.of_interface(interface)
        for address in (local, remote):
            if address and not found:
                found = self.of_address(address)
        return found or [f'{path}/' for path in self._interfaces.values()]


def _read_iscsi(path: str) -> str | None:
    """Read an attribute of iSCSI, which fails while a session is down."""
    try:
        text = sysfs.read(path)
    except OSError:
        return None
    return None if text in ('', '<NULL>', '(null)', 'default') else text


# By which network interfaces an address is reached, or has a local end. Read
# from procfs, so that it needs no privilege and no netlink library.


class Routes:
    """The routes of the network namespace of this process."""

    def __init__(self) -> None:
        """Read the routes: each network, and the name of the interface."""
        self.networks: list[tuple[_Network, str]] = [
            *_rows('route', _ipv4),
            *_rows('ipv6_route', _ipv6),
        ]
        self._local = dict(_rows('if_inet6', _local))
        # Thousands of paths to disks have one address. It ends with the
        # routes, unlike functools.cache, which keeps what it is called on.
        self._found: dict[str, set[str]] = {}

    def interfaces(self, text: str) -> set[str]:
        """The interfaces that lead to an address, or that have it.

        All that have the longest prefix: the kernel uses one of them.

        :param text: an address of IPv4 or IPv6, which may be in brackets and
            may have a scope; anything else has no interface
        """
        if text not in self._found:
            self._found[text] = self._look_up(text)
        return self._found[text]

    def _look_up(self, text: str) -> set[str]:
        plain, _, scope = text.strip('[]').partition('%')
        if scope:
            return {scope}
        try:
            address = ipaddress.ip_address(plain)
        except ValueError:
            return set()
        if address in self._local:
            return {self._local[address]}
        found = [
            (network.prefixlen, name)
            for network, name in self.networks
            if network.version == address.version and address in network
        ]
        longest = max((length for length, _ in found), default=0)
        return {name for length, name in found if length == longest}


def _rows(
    name: str, read: Callable[[str], Iterator[tuple[_Row, str]]]
) -> list[tuple[_Row, str]]:
    path = f'{sysfs.PROC}/net/{name}'
    text = sysfs.read_long(path)
    try:
        return list(read(text))
    except (ValueError, IndexError) as err:
        raise OSError(errno.EINVAL, f'unknown form: {err}', path) from err


def _ipv4(text: str) -> Iterator[tuple[_Network, str]]:
    """The routes of IPv4: fib_route_seq_show() in net/ipv4/fib_trie.c.

    Addresses are hex numbers in the byte order of the host.
    """
    for line in text.splitlines()[1:]:
        name, destination, *rest = line.split()
        mask = int(rest[5], 16).bit_count()
        number = int.from_bytes(bytes.fromhex(destination), sys.byteorder)
        yield ipaddress.IPv4Network((number, mask), strict=False), name


def _ipv6(text: str) -> Iterator[tuple[_Network, str]]:
    """The routes of IPv6: rt6_info_route() in net/ipv6/ip6_fib.c."""
    for line in text.splitlines():
        destination, length, *rest = line.split()
        number = int(destination, 16)
        network = ipaddress.IPv6Network((number, int(length, 16)), False)
        yield network, rest[-1]


def _local(text: str) -> Iterator[tuple[_Address, str]]:
    """The addresses of IPv6: if6_seq_show() in net/ipv6/addrconf.c."""
    for line in text.splitlines():
        address, *_, name = line.split()
        yield ipaddress.IPv6Address(int(address, 16)), name
