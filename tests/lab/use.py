# SPDX-License-Identifier: Apache-2.0

"""Helpers for os-acc in the lab: configuration, requests, processes."""

from __future__ import annotations

from collections.abc import Sequence
import ctypes
import fcntl
import json
import os
import pathlib
import random
import signal
import socket
import stat
import struct
import subprocess
import sys
from typing import Any
import uuid

import arqs
import lab_devices

import os_acc
from os_acc import loader
from os_acc import objects
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vfio

# Loaded here once: in the lab that takes its time.
from os_acc.privileged import container_specs as _container_specs  # noqa: F401
from os_acc.privileged import device_users as _device_users  # noqa: F401
from os_acc.privileged import privsep
from os_acc.privileged.mdev import devices as _mdev  # noqa: F401
from os_acc.privileged.nvme_of import namespaces as _nvme_of  # noqa: F401
from os_acc.privileged.pci import functions as _pci  # noqa: F401
from os_acc.privileged.pci import network as _network  # noqa: F401

# Find the entry points once. Forked children have them in memory.
loader.load_all()

sys.path.append(str(pathlib.Path(__file__).parents[1] / 'functional'))

# The devices that the tests may touch. Only the PF gets VFs.
SPECS = (
    {
        'address': lab_devices.NVME_PF,
        'num_vfs': lab_devices.NVME_PF_VFS,
        'command_empties': True,
    },
    {'address': '*', 'command_empties': True},
)
VFS = tuple(f'0000:01:00.{n}' for n in range(1, 5))
MTTY = 'mtty'


def some_steps(every: int, count: int) -> list[int]:
    """Choose the steps at which a test of crashes kills the process.

    A process starts slowly in the lab. So a run tries some of the steps, and
    starts at a random one: runs in a row try them all.

    :param every: try each such step; the variable OS_ACC_LAB_EVERY sets it
        for all tests: with 1 they try all steps
    :param count: how many steps there are
    """
    every = int(os.environ.get('OS_ACC_LAB_EVERY', str(every)))
    return list(range(random.randrange(every), count, every))


def configure(
    state: pathlib.Path,
    specs: Sequence[dict[str, Any]] = SPECS,
    initialize: bool = True,
) -> None:
    """Configure this process as nova-compute does."""
    privsep.run_here(True)
    conf = os_acc.CONF
    conf([], project='os-acc', default_config_files=[])
    for name, value in {
        'state_path': str(state),
        'plugin': 'libvirt',
        'device_timeout': 60.0,
        'release_timeout': 1.0,
        # The VFs of QEMU's NVMe are offline and cannot be emptied, and one of
        # the drives shares its IOMMU group. Without a command, os-acc refuses
        # both. The others are emptied all the same.
        'cleaning_command': 'true',
        'device_spec': [json.dumps(spec) for spec in specs],
    }.items():
        conf.set_override(name, value, 'os_acc')
    if initialize:
        os_acc.initialize(reset=True)


def close() -> None:
    """Undo configure()."""
    if os_acc._host is not None:
        os_acc._host.close()
        os_acc._host = None
    conf = os_acc.CONF
    conf.reset()
    for group in list(conf._groups):
        if group.startswith('os_acc'):
            for option in conf._groups[group]._opts:
                conf.clear_override(option, group)


def instance(name: str | None = None) -> objects.InstanceInfo:
    return objects.InstanceInfo(
        uuid=name or str(uuid.uuid4()), name='guest', project_id='project'
    )


def pci_request(address: str) -> objects.AcceleratorRequest:
    return objects.AcceleratorRequest.from_arq(
        arqs.arq('PCI', address, socket.gethostname())
    )


def mdev_request(
    kind: str = 'mtty-1', handle: str | None = None
) -> objects.AcceleratorRequest:
    """Make a request with a handle, as an ARQ needs a PCI address."""
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()),
        handle=objects.MdevHandle(
            uuid=handle or str(uuid.uuid4()), parent=MTTY, type=kind
        ),
    )


def driver_of(address: str) -> str | None:
    return pci.driver_of(address)


def group_file(address: str) -> str:
    group = vfio.group_of(address)
    assert group is not None
    return vfio.node(group)


def mdev_file(handle: str) -> str:
    group = sysfs.link(f'{sysfs.SYS}/bus/mdev/devices/{handle}/iommu_group')
    assert group is not None
    return vfio.node(group)


# include/uapi/linux/vfio.h: _IO(';', 100 + number)
_SET_CONTAINER, _GET_DEVICE_FD, _SET_IOMMU = (
    (ord(';') << 8) + 100 + number for number in (4, 6, 2)
)
_TYPE1 = 1
# include/uapi/asm-generic/unistd.h
_PIDFD_GETFD = 438


class Holder:
    """Another process that has a file open, as the QEMU of a guest."""

    def __init__(self, path: str) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self.hold(path)
                os.write(writing, b'.')
                signal.pause()
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        assert os.read(reading, 1) == b'.', f'{path} cannot be opened'
        os.close(reading)

    def hold(self, path: str) -> None:
        os.open(path, os.O_RDWR)

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


# sched.h
_CLONE_NEWNS = 0x00020000


class Contained(Holder):
    """A process with a /dev of its own, as a container and libvirt's QEMU.

    :param name: the name that the device has there
    :param unlink: whether to unlink it, as libvirt does at a detach
    """

    def __init__(self, path: str, name: str, unlink: bool) -> None:
        self.name, self.unlink = name, unlink
        super().__init__(path)

    def hold(self, path: str) -> None:
        number = os.stat(path).st_rdev
        if ctypes.CDLL(None).unshare(_CLONE_NEWNS):
            raise OSError('unshare failed')
        for command in (
            ['mount', '--make-rprivate', '/'],
            ['mount', '-t', 'tmpfs', '-o', 'mode=755', 'container', '/mnt'],
        ):
            subprocess.run(command, check=True, timeout=60)
        there = f'/mnt/{self.name}'
        os.mknod(there, stat.S_IFCHR | 0o600, number)
        os.open(there, os.O_RDWR)
        if self.unlink:
            os.unlink(there)


class Posted(Holder):
    """A process whose open file is on its way through a socket.

    Its /proc/PID/fd does not show the file, as that of a process that is being
    killed.
    """

    def hold(self, path: str) -> None:
        self.ends = socket.socketpair()
        fd = os.open(path, os.O_RDWR)
        socket.send_fds(self.ends[0], [b'.'], [fd])
        os.close(fd)


class Thief(Holder):
    """A process that has the open file of another process: pidfd_getfd(2).

    It delays the closing of the file as a slow QEMU does.

    :param pid: the other process
    """

    def __init__(self, path: str, pid: int) -> None:
        self.victim = pid
        super().__init__(path)

    def hold(self, path: str) -> None:
        number = os.stat(path).st_rdev
        (there,) = (
            int(fd)
            for fd in os.listdir(f'/proc/{self.victim}/fd')
            if os.stat(f'/proc/{self.victim}/fd/{fd}').st_rdev == number
        )
        victim = os.pidfd_open(self.victim)
        fd = ctypes.CDLL(None).syscall(_PIDFD_GETFD, victim, there, 0)
        if fd < 0:
            raise OSError('pidfd_getfd failed')

    def links(self) -> list[str]:
        """What /proc shows of its open files."""
        directory = f'/proc/{self.pid}/fd'
        return [
            os.readlink(f'{directory}/{fd}') for fd in os.listdir(directory)
        ]


class Guest(Holder):
    """Another process that has a function open by VFIO: an unbind blocks."""

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(group_file(address))

    def hold(self, path: str) -> None:
        container = os.open('/dev/vfio/vfio', os.O_RDWR)
        group = os.open(path, os.O_RDWR)
        fcntl.ioctl(group, _SET_CONTAINER, struct.pack('i', container))
        fcntl.ioctl(container, _SET_IOMMU, _TYPE1)
        fcntl.ioctl(group, _GET_DEVICE_FD, self.address.encode() + b'\0')
