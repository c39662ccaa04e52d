# SPDX-License-Identifier: Apache-2.0

"""The guest of the tests: a kernel and busybox, as images in Glance."""

from __future__ import annotations

import gzip
import os
import pathlib
import shutil
import subprocess

import layout
from openstack import connection

#: What the guest writes to its console when it is up.
UP = 'GUEST-IS-UP'
#: The name of the image that servers are made from.
IMAGE = 'guest'

_INIT = f"""#!/bin/busybox sh
echo {UP}
while :; do /bin/busybox sleep 60; done
"""
_DISK_BYTES = 16 * 1024 * 1024


def upload(admin: connection.Connection) -> None:
    """Make the images."""
    directory = layout.ROOT / 'guest'
    directory.mkdir()
    kernel = _upload(admin, 'guest-kernel', _kernel(), 'aki')
    ramdisk = _upload(admin, 'guest-ramdisk', _ramdisk(directory), 'ari')
    disk = directory / 'disk'
    disk.touch()
    os.truncate(disk, _DISK_BYTES)
    _upload(
        admin,
        IMAGE,
        disk,
        'raw',
        kernel_id=kernel,
        ramdisk_id=ramdisk,
        os_command_line='console=ttyS0 quiet',
        hw_video_model='none',
    )


def _upload(
    admin: connection.Connection,
    name: str,
    path: pathlib.Path,
    kind: str,
    **properties: str,
) -> str:
    image = admin.image.create_image(
        name=name,
        filename=str(path),
        disk_format=kind,
        container_format='bare' if kind == 'raw' else kind,
        visibility='public',
        wait=True,
        **properties,
    )
    return str(image.id)


def _kernel() -> pathlib.Path:
    """Find a kernel: see install.sh."""
    directories = (
        os.environ.get(
            'OS_ACC_OPENSTACK_CACHE', '/var/cache/os-acc-openstack'
        ),
        os.environ.get('OS_ACC_LAB_CACHE', '/var/cache/os-acc-lab'),
    )
    found = [pathlib.Path(each, 'vmlinuz') for each in directories]
    found += sorted(pathlib.Path('/boot').glob('vmlinuz-*'))
    for each in found:
        if os.access(each, os.R_OK):
            return each
    raise FileNotFoundError(
        f'no kernel for the guest at {", ".join(directories)} and /boot: run '
        'tests/openstack/install.sh'
    )


def _ramdisk(directory: pathlib.Path) -> pathlib.Path:
    root = directory / 'root'
    for each in ('bin', 'dev'):
        (root / each).mkdir(parents=True)
    shutil.copy('/bin/busybox', root / 'bin' / 'busybox')
    init = root / 'init'
    init.write_text(_INIT)
    init.chmod(0o755)
    names = '.\nbin\nbin/busybox\ndev\ninit\n'
    archive = subprocess.run(
        ['busybox', 'cpio', '-o', '-H', 'newc'],
        cwd=root,
        input=names.encode(),
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    path = directory / 'ramdisk'
    path.write_bytes(gzip.compress(archive, 1))
    return path
