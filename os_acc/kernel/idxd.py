# SPDX-License-Identifier: Apache-2.0

"""Devices of Intel DSA and IAA, and their work queues, as sysfs shows them.

DSA copies and compares memory, IAA compresses it. The kernel driver idxd
drives both. A program opens the device file of a work queue and submits
descriptors to it. An engine of the device executes them. A group connects
engines with work queues.

The files and what they contain: Documentation/ABI/stable/
sysfs-driver-dma-idxd in the kernel. What the kernel accepts, and when:
drivers/dma/idxd/sysfs.c and device.c. In short:

* The size of a work queue can be written only while the device is disabled.
  The hardware demands the same for the registers behind the groups of queues
  and engines.
* Everything else of a work queue can be written only while the queue is
  disabled.
* A device that is enabled has the driver idxd of the bus dsa, a work queue
  that is enabled for programs has the driver user: cdev.c and bus.c. Up to
  Linux 5.13 the driver dsa takes the place of both: compat.c.
* When a work queue is disabled, the kernel resets it, except for size,
  group_id and driver_name. When the device is disabled, it resets all.

This module only reads, and needs no privilege.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import os
import re

from os_acc import exception
from os_acc.kernel import device_files
from os_acc.kernel import pci
from os_acc.kernel import sysfs

#: The kernel's driver of the PCI functions.
DRIVER = 'idxd'

ENABLED, DISABLED = 'enabled', 'disabled'
NONE, USER = 'none', 'user'

#: group_id of what is in no group.
NO_GROUP = -1

# dsa_data and iax_data in drivers/dma/idxd/init.c name the devices.
_DEVICE = re.compile('(dsa|iax)([0-9]+)')
_QUEUE = re.compile('wq[0-9]+[.]([0-9]+)')
_CDEV = re.compile('.*/([^/]+)/(?:dsa|iax)[0-9]+/wq[0-9]+[.]([0-9]+)/[^/]+')
_ENGINE = re.compile('engine[0-9]+[.]([0-9]+)')

# enum idxd_scmd_stat in include/uapi/linux/idxd.h
_STATUS = {
    0x80000010: 'the device is already enabled',
    0x80000020: 'the device is not enabled',
    0x80000021: 'the work queue is already enabled',
    0x80020000: 'the DMA device cannot be registered',
    0x80030000: 'the work queue is in no group',
    0x80040000: 'the work queue has no name',
    0x80050000: 'a shared work queue needs SVA',
    0x80060000: 'the shared work queue has no threshold',
    0x80070000: 'the portal cannot be mapped',
    0x80080000: 'resources cannot be allocated',
    0x80090000: 'a reference counter cannot be created',
    0x800A0000: 'a DMA channel cannot be registered',
    0x800B0000: 'the device file cannot be created',
    0x800C0000: 'the device or the CPU does not support shared work queues',
    0x800D0000: 'no work queue is configured',
    0x800E0000: 'the work queue has no size',
    0x800F0000: 'a privileged work queue is impossible',
    0x80100000: 'no interrupt is available',
    0x80110000: 'a work queue for programs needs an IOMMU with SVA',
    0x80120000: 'the event log cannot be created',
    0x80200000: 'the work queue has a different driver_name',
}


@dataclasses.dataclass(frozen=True)
class Queue:
    """A work queue as it was when it was read."""

    path: str
    number: int  # its number on the device
    state: str  # ENABLED or DISABLED
    kind: str  # NONE, USER or kernel
    mode: str
    size: int
    group: int  # the number of its group, or NO_GROUP
    threshold: int
    label: str  # its file ``name``; empty: none
    driver: str | None
    clients: int  # how many times it is open
    minor: int | None  # of its device file; None: it has none

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def is_enabled(self) -> bool:
        return self.state != DISABLED or self.driver is not None

    @property
    def is_idle(self) -> bool:
        """Whether it is disabled, and has neither a type nor a name."""
        return not self.is_enabled and self.kind == NONE and not self.label


@dataclasses.dataclass(frozen=True)
class Device:
    """A device as it was when it was read."""

    address: str  # of its PCI function
    path: str
    kind: str  # dsa or iax
    state: str  # ENABLED, DISABLED or halted
    configurable: bool
    pasid_enabled: bool  # whether each process can have addresses of its own
    max_queues: int
    max_size: int  # how many entries all work queues have together
    max_groups: int
    major: int  # of the device files
    queues: tuple[Queue, ...]
    engines: dict[int, int]  # the group of each engine, by its number

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def is_enabled(self) -> bool:
        return self.state == ENABLED

    def queue(self, number: int) -> Queue | None:
        """Find a work queue by its number."""
        return next((q for q in self.queues if q.number == number), None)

    def file(self, queue: Queue) -> device_files.DeviceFile | None:
        """The device file of a work queue, such as iax/wq1.0 (cdev.c)."""
        if queue.minor is None:
            return None
        return device_files.DeviceFile(
            f'{sysfs.DEV}/{self.kind}/{queue.name}',
            device_files.Number('c', self.major, queue.minor),
        )

    def error(self) -> str:
        """Why the kernel refused the last change, by cmd_status."""
        status = _number(f'{self.path}/cmd_status', 0)
        if status == 0:
            return 'the kernel gives no reason'
        return _STATUS.get(status, f'cmd_status is {status:#x}')


def find(address: str) -> Device | None:
    """Read the device of a PCI function; None if idxd is not bound to it."""
    path = pci.directory(address)
    for name in sysfs.folders(path):
        if match := _DEVICE.fullmatch(name):
            try:
                return _device(address, f'{path}/{name}', match[1])
            except ValueError as err:
                raise exception.DeviceError(
                    device=f'PCI function {address}',
                    reason=f'{name}: {exception.describe(err)}',
                ) from err
    return None


def queue_at(directory: str) -> tuple[str, Queue] | None:
    """Find the function and the work queue whose file has a directory.

    :param directory: such as .../0000:6a:01.0/dsa0/wq0.1/dsa!wq0.1
    """
    match = _CDEV.fullmatch(directory)
    if match is None or not pci.is_address(match[1]):
        return None
    address, number = match[1], int(match[2])
    device = find(address)
    queue = None if device is None else device.queue(number)
    return None if queue is None else (address, queue)


def _device(address: str, path: str, kind: str) -> Device | None:
    state = sysfs.read(f'{path}/state')
    if state is None:
        return None  # it is going away
    names = sysfs.folders(path)
    engines = {
        int(match[1]): _number(f'{path}/{name}/group_id', NO_GROUP)
        for name in names
        if (match := _ENGINE.fullmatch(name))
    }
    queues = [
        _queue(f'{path}/{name}', int(match[1]))
        for name in names
        if (match := _QUEUE.fullmatch(name))
    ]
    return Device(
        address=address,
        path=path,
        kind=kind,
        state=state,
        configurable=_number(f'{path}/configurable', 0) == 1,
        pasid_enabled=_number(f'{path}/pasid_enabled', 0) == 1,
        max_queues=_number(f'{path}/max_work_queues', 0),
        max_size=_number(f'{path}/max_work_queues_size', 0),
        max_groups=_number(f'{path}/max_groups', 0),
        major=_number(f'{path}/cdev_major', 0),
        queues=tuple(sorted(queues, key=lambda queue: queue.number)),
        engines=dict(sorted(engines.items())),
    )


def _queue(path: str, number: int) -> Queue:
    return Queue(
        path=path,
        number=number,
        state=sysfs.read(f'{path}/state') or DISABLED,
        kind=sysfs.read(f'{path}/type') or NONE,
        mode=sysfs.read(f'{path}/mode') or '',
        size=_number(f'{path}/size', 0),
        group=_number(f'{path}/group_id', NO_GROUP),
        threshold=_number(f'{path}/threshold', 0),
        label=sysfs.read(f'{path}/name') or '',
        driver=sysfs.link(f'{path}/driver'),
        clients=_number(f'{path}/clients', 0),
        # ENXIO while it has none: wq_cdev_minor_show() in sysfs.c
        minor=sysfs.read_int(f'{path}/cdev_minor'),
    )


def _number(path: str, default: int) -> int:
    found = sysfs.read_int(path)
    return default if found is None else found


def bus_directory(driver: str) -> str:
    """The directory of a driver: idxd enables devices, user work queues."""
    directory = f'{sysfs.SYS}/bus/dsa/drivers'
    if os.path.isdir(f'{directory}/{driver}'):
        return f'{directory}/{driver}'
    return f'{directory}/dsa'  # up to Linux 5.13


def configured(device: Device) -> Iterator[str]:
    """Say what is configured on a device: a clause for each part."""
    for queue in device.queues:
        if queue.is_enabled:
            yield f'{queue.name} is enabled'
        elif not queue.is_idle:
            yield f'{queue.name} has type {queue.kind}, name {queue.label!r}'
        elif queue.size or queue.group != NO_GROUP:
            yield f'{queue.name} has size {queue.size}, group {queue.group}'
    for number, group in device.engines.items():
        if group != NO_GROUP:
            yield f'engine {number} is in group {group}'
