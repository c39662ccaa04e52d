# SPDX-License-Identifier: Apache-2.0

"""A generated sysfs tree, and a kernel that changes it as Linux would.

For unit tests and benchmarks: all that os-acc reads is in files, all that it
writes goes through ``os_acc.kernel.sysfs.write``, which this one replaces. The
tests in tests/lab use a real kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import errno
import fnmatch
import os
import pathlib
import shutil
import struct
import threading
from typing import Any

from os_acc.deadlines import waiting
from os_acc.kernel import device_files
from os_acc.kernel import libvirt_domains
from os_acc.kernel import modules
from os_acc.kernel import network
from os_acc.kernel import sysfs
from os_acc.privileged import container_specs
from os_acc.privileged import notes
from os_acc.privileged import privsep
from os_acc.privileged import root_folder
from os_acc.privileged.fpga import root_copy
from os_acc.privileged.kernel import vfio_device
from os_acc.privileged.nvme import function as nvme_function
from os_acc.privileged.pci import rtnetlink
from os_acc.testing import kernel_functions
from os_acc.testing import kernel_tree
from os_acc.testing import mortal
from os_acc.testing import nvme_model

fail = kernel_tree.fail
put = kernel_tree.put


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


def _answer(contexts: Mapping[str, int]) -> bytes:
    """What netlink answers to RDMA_NLDEV_CMD_RES_GET: nldev.c.

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


def _set_vgpu_type(path: pathlib.Path, text: str) -> None:
    """A bad ID is accepted silently, and reads back as 0."""
    there = (path.parent / 'creatable_vgpu_types').read_text()
    ids = [line.split()[0] for line in there.splitlines()]
    put(path, text if text in ids else '0')


def _refuse(path: pathlib.Path) -> None:
    """Refuse a write, as the kernel does for a read-only file."""
    raise PermissionError(
        errno.EACCES,
        f'{os.strerror(errno.EACCES)}: Kernel.handlers has no {path.name!r}',
    )


class Kernel(kernel_functions.Mdevs):
    """A host. Its directories: sys, proc, dev, etc, modules, libvirt, run.

    :ivar writes: (path below the root, text) of every write
    :ivar drives: the NVMe drives, each with a small namespace
    :ivar rdma_contexts: the number of user contexts by the RDMA device; for a
        device that is not in it, the kernel shows no number
    :ivar migrates: the drivers of PCI functions and the types of mediated
        devices whose state VFIO can save
    :ivar process: counts the writes of the process, and may end it at one
    :ivar handlers: what a write to a file does, by the file's name, such as
        'level': a function of the path in the tree and the text. It changes
        the tree, or raises an OSError. It comes before what is built in. A
        write to a file that has neither is refused with EACCES
    """

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        self.writes: list[tuple[str, str]] = []
        self.resets: list[str] = []
        self.rdma_contexts: dict[str, int] = {}
        self.migrates: set[str | None] = set()
        self.handlers: dict[str, Callable[[pathlib.Path, str], None]] = {}
        self.process = mortal.Mortal()
        self.drives = nvme_model.Drives()
        self._failures: list[tuple[str, Any]] = []
        # Reentrant: one write can cause others.
        self._changing = threading.RLock()
        for driver in ('vfio-pci', 'nvme', 'e1000e', 'qat', 'nvidia'):
            self.add_driver(driver)

    def install(self, patch: Any) -> None:
        """Be the kernel of this process.

        :param patch: pytest's monkeypatch
        """
        for name in ('sys', 'proc', 'dev', 'etc'):
            patch.setattr(sysfs, name.upper(), str(self.root / name))
        patch.setattr(sysfs, 'LIB_MODULES', str(self.root / 'modules'))
        patch.setattr(sysfs, 'UDEV_DATA', str(self.root / 'run/udev/data'))
        patch.setattr(
            modules, 'MODPROBE_DIRECTORIES', (str(self.root / 'modprobe.d'),)
        )
        patch.setattr(sysfs, 'write', self.write)
        mortal.spare_the_journal(patch, self.process)
        patch.setattr(network, 'ask', self._answer_rdma)
        patch.setattr(rtnetlink, 'read_vf', self.read_vf)
        patch.setattr(rtnetlink, 'write_vf', self.write_vf)
        patch.setattr(device_files, 'number_of', self.number_of)
        patch.setattr(
            libvirt_domains, 'STATE_DIRECTORY', str(self.root / 'libvirt')
        )
        patch.setattr(notes, 'FOLDER', str(self.root / 'held'))
        patch.setattr(root_copy, 'DIRECTORY', str(self.root / 'images'))
        patch.setattr(root_folder, 'PATH', str(self.root / 'run/os-acc'))
        patch.setattr(nvme_function, 'opened', self._opened)
        patch.setattr(vfio_device, 'probe', self._probe)
        patch.setattr(
            container_specs, 'DIRECTORIES', (str(self.root / 'etc/cdi'),)
        )
        # No events come from files.
        patch.setattr(waiting, '_monitor', lambda subsystem: None)
        privsep.run_here_until_undone(patch)

    def _answer_rdma(self) -> bytes:
        return _answer(self.rdma_contexts)

    def _opened(self, address: str) -> Any:
        """Open an NVMe drive, as VFIO does."""
        assert self.driver_of(address) in kernel_functions.VFIO
        return self.drives.opened(address)

    def _probe(self, path: str, name: str, feature: int) -> None:
        """In the place of vfio_device.probe: who has a device, asks alone."""
        assert feature == vfio_device.MIGRATION
        device = pathlib.Path(path)
        kind = device / 'mdev_type'
        if kind.is_symlink():
            found: str | None = kind.readlink().name
        else:
            found = self.driver_of(name)
        group = (device / 'iommu_group').readlink().name
        nodes = {self.root / 'dev/vfio' / group}
        if any(
            link.readlink() in nodes
            for link in (self.root / 'proc').glob('[0-9]*/fd/*')
        ):
            fail(errno.EBUSY)
        if found not in self.migrates:
            fail(errno.ENOTTY)

    def fail(self, pattern: str, act: int | Callable[[], None]) -> None:
        """Let the next write to such a path fail, once.

        :param pattern: a glob of the path below the root, such as
            ``*/queues/q0/level``; ``*`` also stands for ``/``
        :param act: the errno, or a function to call before the write
        """
        self._failures.append((pattern, act))

    @property
    def dead(self) -> bool:
        """Whether the process has crashed: nothing that it does counts."""
        return self.process.dead

    def crash_at(self, number: int, after: bool = False) -> None:
        """End the process at a write. What it does later does not count.

        :param number: 0 is the next write
        :param after: False: before the write; True: after it
        """
        self.process.crash_at(number, after)

    def reboot(self) -> None:
        """Remove VFs, mdevs, bindings and processes.

        The files of add_function(files=...) and of add_node() stay as they
        are.
        """
        self.process.calm()
        self._failures = []
        for link in list(self.mdev.iterdir()):
            self.remove_mdev(link.name)
        for pf in self.vfs:
            self.set_numvfs(pf, 0)
            put(self.file(pf, 'sriov_drivers_autoprobe'), '1')
        for address, native in self.native.items():
            put(self.file(address, 'driver_override'), '(null)')
            self.unbind(address)
            if native is not None:
                self.bind(address, native)
        for pid in list((self.root / 'proc').glob('[0-9]*')):
            shutil.rmtree(pid)
        shutil.rmtree(self.root / 'run/os-acc', ignore_errors=True)
        self.boot()

    def snapshot(self) -> dict[str, Any]:
        """Describe the functions and the mdevs as they are now.

        Of the functions it has the drivers, the VFs and the VFs' settings. The
        files of add_function(files=...) and of add_node() are not in it.
        """
        found: dict[str, Any] = {}
        for link in sorted((self.pci / 'devices').iterdir()):
            found[link.name] = [self.driver_of(link.name)] + [
                (link / name).read_text() if (link / name).exists() else None
                for name in (
                    'driver_override',
                    'sriov_numvfs',
                    'sriov_drivers_autoprobe',
                    'nvidia/current_vgpu_type',
                )
            ]
        for link in sorted(self.mdev.iterdir()):
            found[link.name] = [
                link.resolve().parent.name,
                (link / 'mdev_type').readlink().name,
            ]
        for pf, vfs in self.ports.items():
            for number, values in enumerate(vfs):
                found[f'{pf} VF {number}'] = dict(values)
        return found

    def write(self, path: str, text: str) -> None:
        """Replaces sysfs.write()."""

        def act() -> None:
            if not os.path.exists(path):
                fail(errno.ENOENT)
            self._act(pathlib.Path(path), text)

        self.step(str(pathlib.Path(path).relative_to(self.root)), text, act)

    def step(self, name: str, text: str, act: Callable[[], None]) -> None:
        """Change something, unless a failure or a crash is due."""
        with self.process.change(name):
            for failure in self._failures:
                if fnmatch.fnmatch(name, failure[0]):
                    self._failures.remove(failure)
                    if callable(failure[1]):
                        failure[1]()
                    else:
                        fail(failure[1])
                    break
            self.writes.append((name, text))
            act()

    def _port(self, interface: int, number: int) -> tuple[str, dict[str, Any]]:
        """The PF that an interface belongs to, and the settings of its VF."""
        for pf, vfs in self.ports.items():
            for path in (self.pci / 'devices' / pf / 'net').glob('*/ifindex'):
                if int(path.read_text()) == interface and number < len(vfs):
                    return pf, vfs[number]
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    def read_vf(self, interface: int, number: int) -> dict[str, Any]:
        """Replaces rtnetlink.read_vf()."""
        return dict(self._port(interface, number)[1])

    def write_vf(
        self, interface: int, number: int, name: str, value: Any
    ) -> None:
        """Replaces rtnetlink.write_vf()."""
        pf, values = self._port(interface, number)
        self.step(
            f'{pf}/vf/{number}/{name}',
            str(value),
            lambda: values.update({name: value}),
        )

    def revive(self) -> None:
        """Begin a new process, after crash_at() has ended one."""
        self.process.revive()

    def calm(self) -> None:
        """Forget crash_at()."""
        self.process.calm()

    def _act(self, path: pathlib.Path, text: str) -> None:
        # As in Linux, where the lock of a device orders what binds it: several
        # threads write at once.
        with self._changing:
            if path.name in self.handlers:
                self.handlers[path.name](path, text)
            else:
                self.built_in(path, text)

    def built_in(self, path: pathlib.Path, text: str) -> None:
        """Do what a write to a file does without handlers."""
        acts: dict[str, Callable[[], None]] = {
            'driver_override': lambda: self.set_override(path, text),
            'drivers_probe': lambda: self.probe(text),
            'bind': lambda: self.explicit_bind(text, path.parent.name),
            'unbind': lambda: self.explicit_unbind(text, path.parent.name),
            'sriov_numvfs': lambda: self.write_numvfs(
                path.parent.name, int(text)
            ),
            'sriov_drivers_autoprobe': lambda: put(path, text),
            'reset': lambda: self.resets.append(path.parent.name),
            'create': lambda: self.create_mdev(path.parent, text),
            'remove': lambda: self._remove(path.parent.name),
            'rescan': self.come_back,
            'current_vgpu_type': lambda: _set_vgpu_type(path, text),
        }
        acts.get(path.name, lambda: _refuse(path))()

    def _remove(self, name: str) -> None:
        if name in self.native:
            self.take_off(name)
        else:
            self.remove_mdev(name)
