# SPDX-License-Identifier: Apache-2.0

"""Real containers: podman with storage and directories of specs of its own."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import Any

# What runs in a mount namespace of its own until its standard input ends.
HOLDER = """
set -e
mount --bind "$1" /run/cdi
mount --bind "$2" /etc/cdi
echo ready
read -r _ || true
"""

# What every container of podman has besides.
USUAL = {
    'console',
    'full',
    'null',
    'ptmx',
    'random',
    'tty',
    'urandom',
    'zero',
}


class Podman:
    """podman as root. Its containers have a root directory of busybox.

    :param directory: where all its files go
    :ivar specs: what it sees as /var/run/cdi
    :ivar static_specs: what it sees as /etc/cdi
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.specs, self.static_specs = (
            directory / 'run-cdi',
            directory / 'etc-cdi',
        )
        self.rootfs = directory / 'rootfs'
        for path in (self.specs, self.static_specs):
            path.mkdir(mode=0o755)
        for name in ('bin', 'dev', 'etc', 'proc', 'run', 'sys', 'tmp', 'opt'):
            (self.rootfs / name).mkdir(parents=True)
        busybox = shutil.which('busybox')
        assert busybox is not None, 'the package busybox-static is missing'
        shutil.copy(busybox, self.rootfs / 'bin/busybox')
        # Two runs at once must not remove each other's directory.
        os.makedirs('/run/cdi', exist_ok=True)
        os.makedirs('/etc/cdi', exist_ok=True)
        # podman refuses a runroot of more than 50 characters.
        self._runroot = tempfile.mkdtemp(prefix='os-acc-', dir='/run')
        self._holder = subprocess.Popen(
            [
                *('unshare', '--mount', '--propagation', 'private'),
                *('sh', '-c', HOLDER, 'sh'),
                *(str(self.specs), str(self.static_specs)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == 'ready\n'

    def __call__(
        self,
        *arguments: str,
        runtime: str = 'runc',
        check: bool = True,
        options: tuple[str, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [
                *('nsenter', f'--mount=/proc/{self._holder.pid}/ns/mnt'),
                *('podman', '--runtime', runtime),
                *('--root', f'{self.directory}/storage'),
                *('--runroot', self._runroot),
                *('--tmpdir', f'{self.directory}/libpod'),
                *('--storage-driver', 'vfs'),
                *('--cgroup-manager', 'cgroupfs'),
                *('--events-backend', 'none'),
                *options,
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if check:
            assert done.returncode == 0, (arguments, done.stderr)
        return done

    def run(
        self,
        devices: list[str],
        *command: str,
        name: str | None = None,
        more: tuple[str, ...] = (),
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a new container.

        :param devices: qualified names
        :param name: of a container that stays; it runs in the background
        :param more: options of podman run
        """
        kind = ['--rm'] if name is None else ['--detach', '--name', name]
        given = [word for each in devices for word in ('--device', each)]
        return self(
            'run',
            *kind,
            *('--network', 'none'),
            *('--ulimit', 'nofile=20000:20000'),
            *('--ulimit', 'nproc=1000:1000'),
            *('--log-driver', 'k8s-file'),
            *given,
            *more,
            *('--rootfs', str(self.rootfs)),
            *command,
            **options,
        )

    def close(self) -> None:
        self('rm', '--all', '--force', '--time', '0', check=False)
        self._holder.communicate('end\n', timeout=600)
        shutil.rmtree(self._runroot)


# Prints path, type, numbers, permissions and owner of every device file.
LIST = """
/bin/busybox find /dev \\( -type c -o -type b \\) | while read -r path; do
    /bin/busybox stat -c '%n %F %t:%T %a %u:%g' "$path"
done
"""


def device_files(listed: str) -> dict[str, str]:
    """The device files of a container, without the usual ones, by path.

    :param listed: what LIST printed
    """
    found = {}
    for line in listed.splitlines():
        path, rest = line.split(' ', 1)
        if path.removeprefix('/dev/') not in USUAL and not path.startswith(
            '/dev/pts/'
        ):
            found[path] = rest
    return found
