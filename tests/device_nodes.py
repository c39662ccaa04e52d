# SPDX-License-Identifier: Apache-2.0

"""Device files of the generated kernel: see kernel.Kernel.

mknod(2) takes root. So the files below dev are ordinary files, and this module
knows type, numbers, owner and mode of each, by its inode.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

from os_acc.kernel import device_files
from os_acc.privileged import file_owners

ROOT, DISK = 0, 6


class Nodes:
    """The device files of a kernel.

    :param kernel: the kernel, whose step() makes each change
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._made: dict[int, dict[str, Any]] = {}
        os.chmod(kernel.root / 'dev', 0o755)

    def install(self, patch: Any) -> None:
        patch.setattr(device_files, 'status', self.status)
        patch.setattr(file_owners, 'set_owner', self._set_owner)
        patch.setattr(file_owners, 'set_mode', self._set_mode)

    def add(
        self,
        name: str,
        number: str,
        directory: str = '',
        subsystem: str = '',
        mode: int = 0o660,
    ) -> pathlib.Path:
        """Make a device file.

        :param name: below dev
        :param number: such as 'c 226:128'
        :param directory: its directory in sysfs, below sys/devices; empty:
        none
        """
        kernel = self._kernel
        path = pathlib.Path(kernel.root / 'dev' / name)
        for above in reversed(path.relative_to(kernel.root).parents):
            (kernel.root / above).mkdir(exist_ok=True)
            (kernel.root / above).chmod(0o755)
        path.touch(exist_ok=False)
        parsed = device_files.parse(number[2:], number[0])
        self._made[path.stat().st_ino] = {
            'path': f'/dev/{name}',
            'number': parsed,
            'uid': ROOT,
            'gid': DISK,
            'mode': mode,
        }
        if directory:
            self.show(parsed, kernel.sys / 'devices' / directory, subsystem)
        return path

    def show(
        self,
        number: device_files.Number,
        directory: pathlib.Path,
        subsystem: str,
    ) -> None:
        """Show a device file in sysfs."""
        directory.mkdir(parents=True, exist_ok=True)
        text = f'{number.major}:{number.minor}'
        (directory / 'dev').write_text(f'{text}\n')
        if subsystem and not (directory / 'subsystem').is_symlink():
            (directory / 'subsystem').symlink_to(
                self._kernel.sys / 'class' / subsystem
            )
        kind = {'c': 'char', 'b': 'block'}[number.kind]
        links = self._kernel.sys / 'dev' / kind
        links.mkdir(parents=True, exist_ok=True)
        (links / text).symlink_to(directory)

    def render(self, address: str, minor: int) -> None:
        """The files of a GPU: card and render node."""
        there = f'pci0000:00/{address}/drm'
        self.add(
            f'dri/card{minor - 128}',
            f'c 226:{minor - 128}',
            f'{there}/card{minor - 128}',
            'drm',
        )
        self.add(
            f'dri/renderD{minor}',
            f'c 226:{minor}',
            f'{there}/renderD{minor}',
            'drm',
        )

    def remove(self, name: str) -> None:
        """A device goes away."""
        path = self._kernel.root / 'dev' / name
        made = self._made.pop(path.stat().st_ino)
        # Kept, so that no later file gets its inode.
        gone = self._kernel.root / 'gone-files'
        gone.mkdir(exist_ok=True)
        path.rename(gone / str(len(list(gone.iterdir()))))
        number = made['number']
        kind = {'c': 'char', 'b': 'block'}[number.kind]
        link = (
            self._kernel.sys / 'dev' / kind / f'{number.major}:{number.minor}'
        )
        if link.is_symlink():
            directory = link.readlink()
            link.unlink()
            for each in directory.iterdir():
                each.unlink()
            directory.rmdir()

    def of(self, name: str) -> tuple[int, int, int]:
        """User, group and mode of a file below dev."""
        made = self._made[(self._kernel.root / 'dev' / name).stat().st_ino]
        return made['uid'], made['gid'], made['mode']

    def set(self, name: str, uid: int, gid: int, mode: int) -> None:
        """Somebody else changes a file, such as udev."""
        made = self._made[(self._kernel.root / 'dev' / name).stat().st_ino]
        made.update(uid=uid, gid=gid, mode=mode)

    def snapshot(self) -> dict[str, tuple[int, int, int]]:
        return {
            each['path']: (each['uid'], each['gid'], each['mode'])
            for each in self._made.values()
        }

    def number(self, path: str) -> str | None:
        """Type and number of a file below /dev, such as 'c 226:128'."""
        for each in self._made.values():
            if each['path'] == path:
                number = each['number']
                return f'{number.kind} {number.major}:{number.minor}'
        return None

    def status(self, fd: int) -> device_files.Status:
        """In the place of device_files.status()."""
        inode = os.fstat(fd).st_ino
        made = self._made.get(inode)
        if made is None:
            return device_files.Status(None, 0, 0, 0, inode)
        return device_files.Status(
            made['number'], made['uid'], made['gid'], made['mode'], inode
        )

    def _set_owner(self, fd: int, uid: int, gid: int) -> None:
        made = self._made[os.fstat(fd).st_ino]
        self._kernel.step(
            f'{made["path"][1:]}/chown',
            f'{uid}:{gid}',
            lambda: made.update(uid=uid, gid=gid),
        )

    def _set_mode(self, fd: int, mode: int) -> None:
        made = self._made[os.fstat(fd).st_ino]
        self._kernel.step(
            f'{made["path"][1:]}/chmod',
            f'{mode:04o}',
            lambda: made.update(mode=mode),
        )
