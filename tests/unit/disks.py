# SPDX-License-Identifier: Apache-2.0

"""Disks, as Linux shows them in sysfs, for Kernel's tree."""

from __future__ import annotations

import os
import pathlib


def link(kernel, name: str, path: pathlib.Path) -> None:
    """Make a link below sys/class, relative as in Linux."""
    place = kernel.sys / 'class' / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(os.path.relpath(path, place.parent))


def add_block(kernel, path: pathlib.Path, number: str) -> pathlib.Path:
    """A block device that can be opened."""
    (path / 'holders').mkdir(parents=True)
    (path / 'dev').write_text(f'{number}\n')
    link(kernel, f'block/{path.name}', path)
    (kernel.root / 'dev' / path.name).touch()
    return path


def add_child(kernel, parent: pathlib.Path, address: str) -> pathlib.Path:
    """An NVMe function behind a VMD endpoint, or a bridge of its domain."""
    path = kernel.add_function(address, '144d:a80a', 0x010802, 'nvme')
    place = parent / address
    parent.mkdir(parents=True, exist_ok=True)
    path.rename(place)
    device = kernel.pci / 'devices' / address
    device.unlink()
    device.symlink_to(place)
    return place


def add_controller(
    kernel,
    directory: pathlib.Path,
    name: str,
    transport: str,
    address: str = '',
) -> pathlib.Path:
    """An NVMe controller of a function or a connection."""
    path = directory / name
    path.mkdir(parents=True)
    (path / 'transport').write_text(f'{transport}\n')
    (path / 'address').write_text(f'{address}\n')
    link(kernel, f'nvme/{name}', path)
    return path


def add_subsystem(
    kernel, number: int, *controllers: pathlib.Path
) -> pathlib.Path:
    """A namespace with native multipath, and its hidden paths.

    nvme_mpath_set_disk_name() in drivers/nvme/host/multipath.c
    """
    path = kernel.sys / f'devices/virtual/nvme-subsystem/nvme-subsys{number}'
    disk = add_block(kernel, path / f'nvme{number}n1', f'259:{40 + number}')
    for each in controllers:
        (path / each.name).symlink_to(os.path.relpath(each, path))
        index = each.name.removeprefix('nvme')
        hidden = each / f'nvme{number}c{index}n1'
        (hidden / 'holders').mkdir(parents=True)
        (hidden / 'hidden').write_text('1\n')
        link(kernel, f'block/{hidden.name}', hidden)
    link(kernel, f'nvme-subsystem/{path.name}', path)
    return disk


def connect(kernel, name: str, transport: str, address: str) -> pathlib.Path:
    """A connection to a target of NVMe over Fabrics."""
    directory = kernel.sys / 'devices/virtual/nvme-fabrics/ctl'
    return add_controller(kernel, directory, name, transport, address)


def add_port(kernel, function: pathlib.Path, host: str, name: str) -> None:
    """A port of Fibre Channel."""
    path = function / host / 'fc_host' / host
    path.mkdir(parents=True)
    (path / 'port_name').write_text(f'{name}\n')
    link(kernel, f'fc_host/{host}', path)


def mount(kernel, disk: pathlib.Path, place: str = '/') -> None:
    number = (disk / 'dev').read_text().strip()
    kernel.write_file(
        'proc/self/mountinfo',
        f'36 35 {number} / {place} rw - ext4 /dev/root rw\n',
    )
