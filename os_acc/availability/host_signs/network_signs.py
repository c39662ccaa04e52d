# SPDX-License-Identifier: Apache-2.0

"""The signs that the host uses a network interface or an RDMA device."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.availability.host_signs import sign
from os_acc.availability.host_signs import ways
from os_acc.availability.host_signs.snapshot import Snapshot
from os_acc.kernel import network
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vfio
from os_acc.refusals import host_refusals
from os_acc.refusals import refusals
from os_acc.refusals.reasons import Reason

_IFF_UP = 0x1  # include/uapi/linux/if.h
_CLASS_USB = 0x0C03

# The kernel's directories of the devices below a function that belong to
# network namespaces, and what such a device is.
_KINDS = {'net': 'interface', 'infiniband': 'RDMA device'}


def _in_another(host: Snapshot, name: str) -> Reason | None:
    master = sysfs.link(f'{host.interfaces[name]}/master')
    if master is None:
        return None
    return refusals.IN_INTERFACE.reason(name=name, master=master)


def _carries(host: Snapshot, name: str) -> Reason | None:
    for entry in sysfs.names(host.interfaces[name]):
        if entry.startswith('upper_'):
            upper = entry.removeprefix('upper_')
            return refusals.CARRIES_INTERFACE.reason(name=name, upper=upper)
    return None


def _is_up(host: Snapshot, name: str) -> Reason | None:
    if int(network.read(name, 'flags') or '0', 0) & _IFF_UP:
        return refusals.INTERFACE_UP.reason(name=name)
    return None


def _elsewhere(host: Snapshot, function: pci.Function) -> Reason | None:
    """An interface or RDMA device in another network namespace."""
    if function.driver is None or vfio.is_bound(function):
        return None
    for path, kind in _directories(function):
        # The kernel removes the directory along with the last device in it:
        # cleanup_glue_dir() in drivers/base/core.c.
        shown = len(sysfs.names(path))
        if not shown or shown < sysfs.count_directories(path):
            return host_refusals.INTERFACE_ELSEWHERE.reason(
                what=_KINDS[kind], driver=function.driver
            )
    return None


def _directories(function: pci.Function) -> Iterator[tuple[str, str]]:
    for kind in _KINDS:
        if kind in function.entries:
            yield f'{function.path}/{kind}', kind
    # Below devices that the driver makes: virtio, SFs, USB.
    if (
        function.base_class == pci.CLASS_NETWORK
        or function.pci_class >> 8 == _CLASS_USB
    ):
        for part in function.parts:
            if part not in _KINDS:
                yield from _below(f'{function.path}/{part}')


def _below(path: str) -> Iterator[tuple[str, str]]:
    for name in sysfs.folders(path):
        if name in _KINDS:
            yield f'{path}/{name}', name
        elif name != 'power' and not pci.is_address(name):
            yield from _below(f'{path}/{name}')


def _users(host: Snapshot) -> dict[str, Reason]:
    numbers = network.user_contexts()
    return sign.by_function(
        (path, host_refusals.RDMA_USERS.reason(name=name, number=number))
        for name, path in network.places().items()
        if (number := numbers.get(name))
    )


def untold(host: Snapshot) -> dict[str, str]:
    """By function: an RDMA device whose users the kernel does not show."""
    numbers = network.user_contexts()
    return {
        address: name
        for name, path in network.places().items()
        if name not in numbers
        for address in ways.functions_in(path)
    }


SIGNS = (
    sign.InterfaceSign(
        '/sys/class/net/NAME/master',
        'It is in a bridge, a bond, a VRF or Open vSwitch.',
        'Linux 3.14, for a bond 2.6',
        _in_another,
    ),
    sign.InterfaceSign(
        '/sys/class/net/NAME/upper_OTHER',
        'Another interface, such as a VLAN or a macvlan, is set up on it.',
        'Linux 3.14',
        _carries,
    ),
    sign.InterfaceSign(
        '/sys/class/net/NAME/flags',
        'It is up. Whatever has a route, an address or a connection through '
        'it needs that: iSCSI, NVMe over TCP and RDMA, NFS, and their '
        'targets.',
        'Linux 2.6.12',
        _is_up,
    ),
    sign.FunctionSign(
        '/sys/bus/pci/devices/ADDRESS/net and infiniband',
        'The directory is there, and is empty or has more links than '
        'entries: an interface or RDMA device is in another network '
        'namespace. Without the directory the driver has made none.',
        'Linux 2.6.35',
        _elsewhere,
    ),
    sign.HostSign(
        '/sys/class/infiniband/NAME, with netlink (RDMA_NLDEV_CMD_RES_GET)',
        'Programs have user contexts of its RDMA device: they have its verbs '
        'open.',
        'Linux 5.0',
        _users,
    ),
)
