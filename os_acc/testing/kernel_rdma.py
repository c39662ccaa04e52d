# SPDX-License-Identifier: Apache-2.0

"""The kernel's answer about RDMA devices, as netlink carries it."""

from __future__ import annotations

from collections.abc import Mapping
import struct

# include/uapi/linux/netlink.h and include/uapi/rdma/rdma_netlink.h
_RES_GET, _DONE, _MULTI = 5 << 10 | 9, 3, 2
_INDEX, _NAME, _SUMMARY, _ENTRY, _ENTRY_NAME, _NUMBER = 1, 2, 15, 16, 17, 18


def _attribute(kind: int, value: bytes) -> bytes:
    text = struct.pack('=HH', 4 + len(value), kind) + value
    return text + bytes(-len(text) % 4)


def _message(kind: int, content: bytes) -> bytes:
    return struct.pack('=IHHII', 16 + len(content), kind, _MULTI, 1, 0) + (
        content
    )


def answer(contexts: Mapping[str, int]) -> bytes:
    """What RDMA_NLDEV_CMD_RES_GET answers: fill_res_info() in nldev.c.

    :param contexts: the number of user contexts by the RDMA device
    """
    found = b''
    for index, (device, number) in enumerate(contexts.items()):
        summary = b''.join(
            _attribute(
                _ENTRY,
                _attribute(_ENTRY_NAME, name + b'\0')
                + _attribute(_NUMBER, struct.pack('=Q', value)),
            )
            for name, value in ((b'pd', 3), (b'qp', 1), (b'ctx', number))
        )
        found += _message(
            _RES_GET,
            _attribute(_INDEX, struct.pack('=I', index))
            + _attribute(_NAME, device.encode() + b'\0')
            + _attribute(_SUMMARY, summary),
        )
    return found + _message(_DONE, bytes(4))
