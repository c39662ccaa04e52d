# SPDX-License-Identifier: Apache-2.0

"""Access to a PCI function that is bound to VFIO: registers and DMA.

Only the interface of IOMMU groups is used (/dev/vfio/GROUP, type 1 IOMMU):
see include/uapi/linux/vfio.h and Documentation/driver-api/vfio.rst in Linux.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import struct
from typing import Any
from typing import Protocol

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import sysfs
from os_acc.kernel import vfio
from os_acc.refusals import nvme_refusals

#: Bytes of memory that the function can read and write by DMA. It stays below
#: 64 KiB, the smallest usual limit of locked memory (RLIMIT_MEMLOCK).
MEMORY = 13 * 4096

# _IO(';', 100 + number) of include/uapi/linux/vfio.h
_BASE = (ord(';') << 8) + 100
_CHECK_EXTENSION = _BASE + 1
_SET_IOMMU = _BASE + 2
_GROUP_GET_STATUS = _BASE + 3
_GROUP_SET_CONTAINER = _BASE + 4
_GROUP_GET_DEVICE_FD = _BASE + 6
_DEVICE_GET_REGION_INFO = _BASE + 8
_IOMMU_MAP_DMA = _BASE + 13

_TYPE1 = 1
_VIABLE = 1
_DMA_READ_WRITE = 3
_BAR0, _CONFIG = 0, 7

# Where the function sees the memory. An address may be reserved on a platform
# (for MSI, or by the firmware), so the first one that works is used.
_IOVAS = (1 << 24, 1 << 20, 1 << 30, 1 << 32)

# Command register of the configuration space: PCI Local Bus 6.2.2
_PCI_COMMAND = 0x04
_MEMORY_AND_BUS_MASTER = 0x6

# Seconds for an earlier user of the IOMMU group to close it.
_GROUP_WAIT = 5.0


class Unsupported(exception.DeviceError):
    """The built-in cleaning cannot be used for a function.

    Nothing was erased. A command of the operator may be able to clean it.
    """


class Access(Protocol):
    """What the controller needs from a function.

    :ivar memory: a mutable sequence of MEMORY bytes, read and written by DMA
    :ivar iova: the address of the memory as the function sees it
    """

    memory: Any
    iova: int

    def read32(self, offset: int) -> int:
        """Read a register of BAR 0."""

    def write32(self, offset: int, value: int) -> None:
        """Write a register of BAR 0."""


class Function:
    """An Access to a real function."""

    def __init__(self, device: int, memory: mmap.mmap, iova: int) -> None:
        self.memory = memory
        self.iova = iova
        self._device = device
        self._bar0 = self._region(_BAR0)
        where = self._region(_CONFIG) + _PCI_COMMAND
        (command,) = struct.unpack('<H', os.pread(device, 2, where))
        command |= _MEMORY_AND_BUS_MASTER
        os.pwrite(device, struct.pack('<H', command), where)

    def read32(self, offset: int) -> int:
        # The kernel makes one access of 32 bits of it: do_io_rw() in
        # drivers/vfio/pci/vfio_pci_rdwr.c
        data = os.pread(self._device, 4, self._bar0 + offset)
        return int.from_bytes(data, 'little')

    def write32(self, offset: int, value: int) -> None:
        data = value.to_bytes(4, 'little')
        os.pwrite(self._device, data, self._bar0 + offset)

    def _region(self, index: int) -> int:
        """The offset of a region in the function's file."""
        info = bytearray(struct.pack('<IIIIQQ', 32, 0, index, 0, 0, 0))
        fcntl.ioctl(self._device, _DEVICE_GET_REGION_INFO, info)
        offset: int = struct.unpack('<IIIIQQ', info)[5]
        return offset


@contextlib.contextmanager
def opened(address: str) -> Iterator[Access]:
    """Open a function that is bound to VFIO, and that nobody else has open.

    VFIO resets the function when it is opened and closed.

    :raises Unsupported: if the kernel has no VFIO groups, its IOMMU is not of
        type 1, or a function of its IOMMU group is bound to another driver
        than VFIO's
    :raises DeviceBusy: if a guest has its IOMMU group open
    """
    device = f'PCI function {address}'
    group_name = vfio.group_of(address)
    if group_name is None or not os.path.exists(vfio.node(group_name)):
        raise Unsupported(
            device=device,
            reason=nvme_refusals.NO_GROUP_FILE.reason().text,
        )
    with contextlib.ExitStack() as stack:
        try:
            function = _open(address, group_name, stack)
        except OSError as err:
            raise exception.DeviceError(
                device=device, reason=f'VFIO: {exception.describe(err)}'
            ) from err
        yield function


def _open(
    address: str, group_name: str, stack: contextlib.ExitStack
) -> Function:
    """Open a function."""
    device = f'PCI function {address}'
    memory = mmap.mmap(-1, MEMORY)
    stack.callback(memory.close)
    container = os.open(f'{sysfs.DEV}/vfio/vfio', os.O_RDWR)
    stack.callback(os.close, container)
    group = _open_group(vfio.node(group_name), device)
    stack.callback(os.close, group)
    status = bytearray(struct.pack('<II', 8, 0))
    fcntl.ioctl(group, _GROUP_GET_STATUS, status)
    if not struct.unpack('<II', status)[1] & _VIABLE:
        raise Unsupported(
            device=device,
            reason=nvme_refusals.GROUP_NOT_VIABLE.reason(
                group=group_name
            ).text,
        )
    fcntl.ioctl(group, _GROUP_SET_CONTAINER, struct.pack('i', container))
    if not fcntl.ioctl(container, _CHECK_EXTENSION, _TYPE1):
        raise Unsupported(
            device=device, reason=nvme_refusals.NOT_TYPE_1.reason().text
        )
    fcntl.ioctl(container, _SET_IOMMU, _TYPE1)
    iova = _map(container, memory)
    # ioctl() returns the number only for a mutable argument.
    name = bytearray(address.encode() + b'\0')
    number = fcntl.ioctl(group, _GROUP_GET_DEVICE_FD, name)
    stack.callback(os.close, number)
    return Function(number, memory, iova)


def _open_group(path: str, device: str) -> int:
    """Open the file of an IOMMU group, which only one process can have open.

    Another call for a function of the group may have it open for a moment.
    """
    found: list[int] = []

    def opened_it() -> bool:
        try:
            found.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as err:
            if err.errno != errno.EBUSY:
                raise
        return bool(found)

    try:
        waiting.until(opened_it, _GROUP_WAIT, path)
    except exception.Timeout as err:
        raise exception.DeviceBusy(
            device=device,
            reason=f'a guest has {path} open, which stands for all functions '
            'of its IOMMU group',
        ) from err
    return found[0]


def _map(container: int, memory: mmap.mmap) -> int:
    """Let the functions of a container read and write the memory.

    :returns: the address at which they see it
    """
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    refused: OSError | None = None
    for iova in _IOVAS:
        order = struct.pack('<IIQQQ', 32, _DMA_READ_WRITE, place, iova, MEMORY)
        try:
            fcntl.ioctl(container, _IOMMU_MAP_DMA, order)
            return iova
        except OSError as err:
            refused = err
    assert refused is not None
    raise refused
