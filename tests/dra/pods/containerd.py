# SPDX-License-Identifier: Apache-2.0

"""A containerd of the tests: its own directories, and an image of busybox."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import time
from typing import Any

CACHE = pathlib.Path(
    os.environ.get('OS_ACC_DRA_CACHE', '/var/cache/os-acc-dra')
)
BIN = CACHE / 'root/usr/bin'
_IMAGES = ('test.invalid/pause:1', 'test.invalid/busybox:1')
_APPLETS = ('sh', 'ls', 'sleep', 'dd', 'mknod')
_CONFIG = """
version = 3
root = "{directory}/lib"
state = "{directory}/state"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = "{directory}/containerd.sock"
[ttrpc]
  address = "{directory}/ttrpc.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "test.invalid/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["{specs}"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{directory}/cni"]
    conf_dir = "{directory}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    BinaryName = "{runc}"
    SystemdCgroup = false
"""


class Containerd:
    """The runtime, and the directory of its CDI specs.

    :param directory: its own; a short path, and on no overlay
    :param specs: the directory of the CDI specs, if it is another one
    """

    def __init__(
        self, directory: pathlib.Path, specs: pathlib.Path | None = None
    ) -> None:
        self._directory = directory
        self.socket = str(directory / 'containerd.sock')
        self.specs = specs or directory / 'cdi'
        self.specs.mkdir(parents=True)
        self.specs.chmod(0o755)
        runc = shutil.which('runc', path=f'{os.environ["PATH"]}:/usr/sbin')
        config = directory / 'containerd.toml'
        config.write_text(
            _CONFIG.format(directory=directory, specs=self.specs, runc=runc)
        )
        self._environment = {
            **os.environ,
            'PATH': f'{BIN}:{os.environ["PATH"]}:/usr/sbin',
        }
        with open(directory / 'log', 'w') as log:
            self._process = subprocess.Popen(
                [str(BIN / 'containerd'), '-c', str(config), '-l', 'info'],
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        end = time.monotonic() + 240
        while self._ctr('version', check=False).returncode:
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.2)
        write_image(BIN / 'busybox', directory / 'image.tar')
        self._ctr('-n', 'k8s.io', 'images', 'import', f'{directory}/image.tar')

    def _ctr(self, *arguments: str, check: bool = True) -> Any:
        return subprocess.run(
            [str(BIN / 'ctr'), '-a', self.socket, *arguments],
            check=check,
            capture_output=True,
            text=True,
            env=self._environment,
        )

    def run(self, *devices: str, command: tuple[str, ...]) -> str:
        """Run a container with the devices of CDI specs, until it ends.

        :param devices: as ``VENDOR/CLASS=NAME``
        :returns: what its command has written
        """
        options = [f'--device={each}' for each in devices]
        ran = self._ctr(
            *('-n', 'k8s.io', 'run', '--rm', *options),
            *(_IMAGES[1], 'one', *command),
        )
        return str(ran.stdout)

    def log(self) -> str:
        return (self._directory / 'log').read_text()

    def close(self) -> None:
        """End what a failed test has left, and the runtime."""
        for kind in ('tasks', 'containers'):
            listed = self._ctr('-n', 'k8s.io', kind, 'ls', '-q', check=False)
            for name in listed.stdout.split():
                force = ['-f'] if kind == 'tasks' else []
                self._ctr(
                    '-n', 'k8s.io', kind, 'rm', *force, name, check=False
                )
        self._process.terminate()
        self._process.wait(120)
        with open('/proc/self/mountinfo') as file:
            mounts = [line.split()[4] for line in file]
        for mount in sorted(mounts, reverse=True):
            if mount.startswith(f'{self._directory}/'):
                with contextlib.suppress(subprocess.CalledProcessError):
                    subprocess.run(['umount', mount], check=True)


def _add(
    tar: tarfile.TarFile, name: str, data: bytes = b'', mode: int = 0o644
) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))


def _blob(tar: tarfile.TarFile, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    _add(tar, f'blobs/sha256/{digest}', data)
    return {'digest': f'sha256:{digest}', 'size': len(data)}


def _layer(busybox: pathlib.Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode='w') as tar:
        for name in ('bin', 'dev', 'etc', 'proc', 'sys', 'tmp'):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        _add(tar, 'bin/busybox', busybox.read_bytes(), 0o755)
        for name in _APPLETS:
            info = tarfile.TarInfo(f'bin/{name}')
            info.type, info.linkname = tarfile.SYMTYPE, 'busybox'
            tar.addfile(info)
    return buffer.getvalue()


def write_image(busybox: pathlib.Path, out: pathlib.Path) -> None:
    """Write an archive of OCI with an image under two names."""
    layer = _layer(busybox)
    config = {
        'architecture': os.uname().machine.replace('x86_64', 'amd64'),
        'os': 'linux',
        'config': {'Entrypoint': ['/bin/sleep', '1000000']},
        'rootfs': {
            'type': 'layers',
            'diff_ids': ['sha256:' + hashlib.sha256(layer).hexdigest()],
        },
    }
    oci = 'application/vnd.oci.image'
    with tarfile.open(out, 'w') as tar:
        manifest = {
            'schemaVersion': 2,
            'mediaType': f'{oci}.manifest.v1+json',
            'config': {
                'mediaType': f'{oci}.config.v1+json',
                **_blob(tar, json.dumps(config).encode()),
            },
            'layers': [
                {'mediaType': f'{oci}.layer.v1.tar', **_blob(tar, layer)}
            ],
        }
        found = {
            'mediaType': manifest['mediaType'],
            **_blob(tar, json.dumps(manifest).encode()),
        }
        index = {
            'schemaVersion': 2,
            'manifests': [
                {
                    **found,
                    'annotations': {'io.containerd.image.name': name},
                }
                for name in _IMAGES
            ],
        }
        _add(tar, 'index.json', json.dumps(index).encode())
        _add(tar, 'oci-layout', b'{"imageLayoutVersion": "1.0.0"}')
