# SPDX-License-Identifier: Apache-2.0

"""A generated host that several processes share.

Usage: python shared_kernel.py DIRECTORY PROGRAM [ARGUMENT...]

runs a Python program on the host that is in the directory: os-acc in it sees
the generated sysfs, and changes it as Linux would. Three kinds of programs run
on one host in the tests with a real Cyborg: the os-acc command in place of
nova-compute, Cyborg's agent, and the agent's privsep-helper.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import fcntl
import importlib.util
import io
import os
import pathlib
import pickle
import runpy
import sys
import threading
from typing import Any

if importlib.util.find_spec('cyborg') is not None:
    # The first import of oslo.service decides which threads it uses. Cyborg
    # must decide this, and os-acc, which is imported below, imports it too.
    importlib.import_module('cyborg.cmd')

from os_acc.testing import mortal
from os_acc.testing import nvme_model
from os_acc.testing.kernel import Kernel

#: Cyborg's module that creates and removes mediated devices, as root.
_CYBORG_MDEVS = 'cyborg.accelerator.drivers.gpu.utils'

# What belongs to one process and is not shared.
_OWN = (
    'drives',
    'handlers',
    '_changing',
    '_failures',
    'writes',
    'process',
)


class SharedKernel(Kernel):
    """A host whose state is in a file beside its tree.

    Each change is made under a lock, in the state that the last process has
    left.
    """

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        self._save()

    @classmethod
    def attach(cls, root: pathlib.Path) -> SharedKernel:
        """Return the host that another process has made in a directory."""
        made = cls.__new__(cls)
        made.root = root
        made.drives, made.handlers = nvme_model.Drives(), {}
        made._failures, made.writes = [], []
        made._changing = threading.RLock()
        made.process = mortal.Mortal()
        made._load()
        return made

    @contextlib.contextmanager
    def changed(self) -> Iterator[None]:
        """Hold the lock while a test changes the hardware."""
        with open(self.root / 'lock', 'a') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._load()
            try:
                yield
            finally:
                self._save()

    def write(self, path: str, text: str) -> None:
        # A process that is killed has either made the whole change or none.
        with self.process.change(path), self.changed():
            super().write(path, text)

    def write_vf(
        self, interface: int, number: int, name: str, value: Any
    ) -> None:
        label = f'{interface}/vf/{number}/{name}'
        with self.process.change(label), self.changed():
            super().write_vf(interface, number, name, value)

    def read_vf(self, interface: int, number: int) -> dict[str, Any]:
        with self.changed():
            return super().read_vf(interface, number)

    def pull(self, address: str) -> None:
        """Take a card out of its slot, with its VFs and mdevs."""
        with self.changed():
            for link in list(self.mdev.iterdir()):
                if link.resolve().parent.name == address:
                    self.remove_mdev(link.name)
            if address in self.vfs:
                self.set_numvfs(address, 0)
            parent = self.sys / 'class/mdev_bus' / address
            parent.unlink(missing_ok=True)
            self.remove_function(address)
            self.vfs.pop(address, None)

    def set_vfs(self, address: str, number: int) -> None:
        """Set the number of VFs as an administrator does, by way of 0."""
        path = str(self.pci / 'devices' / address / 'sriov_numvfs')
        self.write(path, '0')
        if number:
            self.write(path, str(number))

    def open(self, path: str, mode: str) -> _Attribute:
        """In the place of open() for a file of sysfs that is written."""
        assert mode == 'w', mode
        return _Attribute(self, str(self.root / path.lstrip('/')))

    def create_mdev(self, kind: pathlib.Path, text: str) -> None:
        super().create_mdev(kind, text)
        # Cyborg finds an mdev by its type.
        (kind / 'devices' / text).symlink_to(self.mdev / text)

    def remove_mdev(self, text: str) -> None:
        kind = (self.mdev / text / 'mdev_type').resolve()
        super().remove_mdev(text)
        (kind / 'devices' / text).unlink(missing_ok=True)

    def _load(self) -> None:
        path = self.root / 'state'
        if path.exists():
            self.__dict__.update(pickle.loads(path.read_bytes()))

    def _save(self) -> None:
        state = {
            name: value
            for name, value in self.__dict__.items()
            if name not in _OWN
        }
        new = self.root / 'state.new'
        new.write_bytes(pickle.dumps(state))
        new.replace(self.root / 'state')


class _Attribute(io.StringIO):
    """A file of sysfs. The kernel gets what was written at the close."""

    def __init__(self, kernel: SharedKernel, path: str) -> None:
        if not os.path.exists(path):
            raise FileNotFoundError(errno.ENOENT, 'No such file', path)
        super().__init__()
        self._kernel, self._path = kernel, path

    def __exit__(self, *args: Any) -> None:
        text = self.getvalue()
        super().__exit__(*args)
        # The path goes through the links that make it long in sysfs.
        directory, name = os.path.split(self._path)
        self._kernel.write(f'{os.path.realpath(directory)}/{name}', text)


class _Patch:
    """As much of pytest's monkeypatch as Kernel.install() calls."""

    @staticmethod
    def setattr(target: Any, name: str, value: Any) -> None:
        setattr(target, name, value)


def install(root: pathlib.Path) -> SharedKernel:
    """Make this process one of the host in a directory."""
    kernel = SharedKernel.attach(root)
    kernel.install(_Patch())
    if importlib.util.find_spec('cyborg') is not None:
        # Cyborg writes to the fixed path /sys by itself.
        utils = importlib.import_module(_CYBORG_MDEVS)
        utils.open = kernel.open
    return kernel


def main() -> None:
    directory, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    install(directory)
    sys.argv = sys.argv[2:]
    runpy.run_path(program, run_name='__main__')


if __name__ == '__main__':
    main()
