# SPDX-License-Identifier: Apache-2.0

"""RDMA devices: InfiniBand, RoCE, Omni-Path, and how many programs use them.

A program that uses an RDMA device has a file such as /dev/infiniband/uverbs1
open. Only root sees the open files of others, but the kernel tells everybody
how many user contexts each RDMA device has: nldev_res_get_dumpit() in
drivers/infiniband/core/nldev.c, since Linux 4.17, and the number of contexts
("ctx") since 5.0. This is what ``rdma resource show`` prints.
"""

from __future__ import annotations

from collections.abc import Iterator
import socket
import struct
import sys

from os_acc.kernel import sysfs

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
