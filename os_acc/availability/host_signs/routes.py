# SPDX-License-Identifier: Apache-2.0

"""By which network interfaces an address is reached, or has a local end.

Read from procfs, so that it needs no privilege and no netlink library.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import errno
import ipaddress
import sys
from typing import TypeVar

from os_acc.kernel import sysfs

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Row = TypeVar('_Row')


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
