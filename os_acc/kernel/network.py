# SPDX-License-Identifier: Apache-2.0

"""Network interfaces of SR-IOV NICs, and RDMA devices, as sysfs shows them.

A PF's interface is where a VF's MAC address and VLAN are set. In switchdev
mode each VF has a representor as well: an interface of the host that stands
for the VF's port in the card's switch. Needs no privilege.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import errno
import re
import socket
import struct
import sys

from os_acc import exception
from os_acc.kernel import pci
from os_acc.kernel import sysfs

# phys_port_name of a representor, such as pf0vf3 or c1pf0vf3:
# Documentation/networking/switchdev.rst and devlink_port_phys_port_name_get()
# in net/devlink. A subfunction's is pf0sf88.
_REPRESENTOR = re.compile(r'(?:c\d+)?pf(\d+)(vf|sf)(\d+)')


@dataclasses.dataclass(frozen=True)
class VFPort:
    """Where the settings of a VF are made."""

    pf: str
    interface: str  # the name of the PF's network interface
    index: int  # the number of this interface (ifindex)
    number: int  # the VF's number on its PF


def is_vf(function: pci.Function) -> bool:
    """Whether a function is a VF of a NIC."""
    return function.is_vf and function.base_class == pci.CLASS_NETWORK


def vf_port(function: pci.Function) -> VFPort:
    """Find where the settings of a NIC's VF are made.

    It is an error if the function is none, or if its PF has no interface here,
    or several, so that it is unclear to which of its ports the VF belongs.
    """
    device = f'PCI function {function.address}'
    pf = function.physfn
    if pf is None or not is_vf(function):
        raise exception.DeviceError(
            device=device,
            reason='it is not a VF of a NIC, so its MAC address, VLAN, trust '
            'and spoof check cannot be set',
        )
    number = vf_number(pf, function.address)
    interface = _pf_interface(pf)
    index = read(interface, 'ifindex') if interface else None
    if number is None or interface is None or index is None:
        raise exception.DeviceNotFound(
            wanted=f'the network interface of PF {pf}, which sets {device}',
            reason='the PF has none in this network namespace: bind the PF '
            "to its network driver, and leave its interface in the host's "
            'network namespace',
        )
    return VFPort(pf, interface, int(index), number)


def vf_number(pf: str, address: str) -> int | None:
    """The number of a VF on its PF, by the PF's link to it; None if none."""
    directory = pci.directory(pf)
    for name in sysfs.names(directory):
        if (
            name.startswith('virtfn')
            and sysfs.link(f'{directory}/{name}') == address
        ):
            return int(name.removeprefix('virtfn'))
    return None


def representor(function: pci.Function) -> str | None:
    """The interface that represents a VF on the host in switchdev mode.

    As in os-vif, it is the interface in the same switch as the PF whose
    phys_port_name has the number of the PF's function and of the VF.
    """
    pf = function.physfn
    if pf is None or not is_vf(function):
        return None
    number = vf_number(pf, function.address)
    interfaces = sysfs.names(f'{pci.directory(pf)}/net')
    switches = {read(name, 'phys_switch_id') for name in interfaces}
    switches -= {None, ''}
    if number is None or not switches:
        return None
    for name in sysfs.names(f'{sysfs.SYS}/class/net'):
        if read(name, 'phys_switch_id') in switches:
            match = _REPRESENTOR.fullmatch(read(name, 'phys_port_name') or '')
            wanted = (pf[-1], 'vf', str(number))
            if match is not None and match.groups() == wanted:
                return name
    return None


def _pf_interface(pf: str) -> str | None:
    """The one network interface of a PF, without representors of its VFs."""
    found = [
        name
        for name in sysfs.names(f'{pci.directory(pf)}/net')
        if not _REPRESENTOR.fullmatch(read(name, 'phys_port_name') or '')
    ]
    if len(found) > 1:
        raise exception.DeviceError(
            device=f'PF {pf}',
            reason=f'it has {len(found)} network interfaces '
            f'({", ".join(found)}): os-acc cannot tell to which of its ports '
            'a VF belongs, so it sets up none',
        )
    return found[0] if found else None


def read(interface: str, name: str) -> str | None:
    """Read a file of an interface.

    None: the interface is gone or is just being removed, or its driver does
    not have the file.
    """
    try:
        return sysfs.read(f'{sysfs.SYS}/class/net/{interface}/{name}')
    except OSError as err:
        # What net/core/net-sysfs.c answers for a driver without it, and
        # EINVAL also for an interface that is being unregistered.
        if err.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            return None
        raise


# RDMA devices: InfiniBand, RoCE, Omni-Path, and how many programs use them.
#
# A program that uses an RDMA device has a file such as /dev/infiniband/uverbs1
# open. Only root sees the open files of others, but the kernel tells everybody
# how many user contexts each RDMA device has: nldev_res_get_dumpit() in
# drivers/infiniband/core/nldev.c, since Linux 4.17, and the number of contexts
# ("ctx") since 5.0. This is what ``rdma resource show`` prints.


# include/uapi/linux/netlink.h and include/uapi/rdma/rdma_netlink.h
_NETLINK_RDMA = 20
_RDMA_NL_NLDEV, _RES_GET = 5, 9
_TYPE = _RDMA_NL_NLDEV << 10 | _RES_GET
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_DEV_NAME, _SUMMARY, _ENTRY, _ENTRY_NAME, _ENTRY_NOW = 2, 15, 16, 17, 18
_FLAGS_OF_TYPE = 0xC000  # NLA_F_NESTED and NLA_F_NET_BYTEORDER
_HEADER, _ATTRIBUTE = struct.Struct('=IHHII'), struct.Struct('=HH')
_CONTEXTS = b'ctx'

_SECONDS = 5.0


def places() -> dict[str, str]:
    """The directory in sysfs of each RDMA device, by its name."""
    directory = f'{sysfs.SYS}/class/infiniband'
    return {
        name: sysfs.place(f'{directory}/{name}')
        for name in sysfs.names(directory)
    }


def user_contexts() -> dict[str, int]:
    """The user contexts of each RDMA device of which the kernel tells them."""
    if not places():
        # A socket of this family may load the kernel's RDMA module.
        return {}
    try:
        return dict(_parse(ask()))
    except OSError:
        # The kernel has no RDMA, or a filter forbids the socket.
        return {}


def ask() -> bytes:
    """The kernel's answer, as it is on the wire: many messages."""
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_RDMA
    ) as kernel:
        kernel.settimeout(_SECONDS)
        kernel.bind((0, 0))
        kernel.send(_HEADER.pack(_HEADER.size, _TYPE, _REQUEST | _DUMP, 1, 0))
        answer = b''
        while True:
            part = kernel.recv(1 << 16)
            answer += part
            kinds = [kind for kind, _ in _messages(part)]
            if not kinds or kinds[-1] in (_ERROR, _DONE):
                return answer


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The type and the content of each message."""
    while len(data) >= _HEADER.size:
        length, kind, _, _, _ = _HEADER.unpack_from(data)
        if length < _HEADER.size:
            return
        yield kind, data[_HEADER.size : length]
        data = data[length + 3 & ~3 :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The type and the value of each attribute."""
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield kind & ~_FLAGS_OF_TYPE, data[_ATTRIBUTE.size : length]
        data = data[length + 3 & ~3 :]


def _parse(answer: bytes) -> Iterator[tuple[str, int]]:
    """The name and the number of user contexts of each RDMA device."""
    for kind, message in _messages(answer):
        if kind != _TYPE:
            continue
        found = dict(_attributes(message))
        name = found.get(_DEV_NAME, b'').rstrip(b'\0').decode()
        for _, entry in _attributes(found.get(_SUMMARY, b'')):
            values = dict(_attributes(entry))
            number = values.get(_ENTRY_NOW, b'')
            if values.get(_ENTRY_NAME, b'').rstrip(b'\0') == _CONTEXTS:
                yield name, int.from_bytes(number, sys.byteorder)
