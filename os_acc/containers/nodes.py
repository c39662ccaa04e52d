# SPDX-License-Identifier: Apache-2.0

"""The device files that a container needs to use an accelerator."""

from __future__ import annotations

import os

from os_acc import exception
from os_acc.containers import handle as handles
from os_acc.containers import spec as container_spec
from os_acc.kernel import device_files
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vfio

# What every user of VFIO opens besides its device: the file and its directory
# in /sys/class/misc (drivers/vfio/container.c, drivers/iommu/iommufd/main.c).
_CONTAINER = ('vfio/vfio', 'vfio')
_IOMMUFD = ('iommu', 'iommu')


def of_handle(
    handle: handles.Handle, iommufd: bool
) -> list[container_spec.Node]:
    """Find the device files of a prepared device."""
    kind, _, name = handle.identity.partition('/')
    if kind == 'pci':
        return _of_function(pci.get(name), iommufd)
    if kind == 'mdev':
        return _of_mdev(name, iommufd)
    if kind == 'file':
        return [_of_file(each) for each in handle.files]
    if kind == 'block':
        return [_of_block(handle.path, name)]
    raise handles.unsupported(kind)


def _of_function(
    function: pci.Function, iommufd: bool
) -> list[container_spec.Node]:
    if not vfio.is_bound(function):
        raise exception.DeviceError(
            device=f'PCI function {function.address}',
            reason='a container can use it only through VFIO, but it is '
            f'bound to {function.driver or "no driver"}. Set "bind": "os-acc" '
            'in its entry of device_spec, or bind it to vfio-pci',
        )
    return _of_vfio(function.path, f'PCI function {function.address}', iommufd)


def _of_mdev(uuid: str, iommufd: bool) -> list[container_spec.Node]:
    if mdev.find(uuid) is None:
        raise exception.DeviceNotFound(
            wanted=f'mdev {uuid}', reason='this host has none'
        )
    return _of_vfio(mdev.directory(uuid), f'mdev {uuid}', iommufd)


def _of_vfio(
    path: str, device: str, iommufd: bool
) -> list[container_spec.Node]:
    """The VFIO files for a device."""
    by_group, by_device = vfio.group_nodes(path), vfio.device_nodes(path)
    if by_device and (iommufd or not by_group):
        files, common = by_device, _IOMMUFD
    else:
        files, common = by_group, _CONTAINER
    if not files or (iommufd and common is _CONTAINER):
        wanted = 'of its own' if iommufd else 'of its IOMMU group'
        raise exception.DeviceError(
            device=device,
            reason=f'there is no VFIO file {wanted}, because the kernel or '
            'its driver has none',
        )
    name, directory = common
    shared = device_files.read(
        f'{sysfs.DEV}/{name}', f'{sysfs.SYS}/class/misc/{directory}'
    )
    if shared is None:
        raise exception.DeviceError(
            device=device,
            reason=f'the kernel has no {sysfs.DEV}/{name}, without which VFIO '
            'cannot be used',
        )
    return [
        *(
            container_spec.Node(device_files.shown(file.path), file.number)
            for file in files
        ),
        container_spec.Node(
            device_files.shown(shared.path), shared.number, common=True
        ),
    ]


def _of_file(file: handles.File) -> container_spec.Node:
    """Check that a device file has the number that its handle says."""
    number = device_files.Number(file.type, file.major, file.minor)
    now = device_files.get(file.path)
    if now.number != number:
        raise exception.DeviceError(
            device=f'device file {file.path}',
            reason=f'it was {device_files.text(number)} when it was prepared, '
            f'and is {device_files.text(now.number)} now',
        )
    return container_spec.Node(file.path, number, file.permissions)


def _of_block(link: str, wanted: str) -> container_spec.Node:
    """Find the block device that a link of udev stands for.

    :param wanted: its world wide name
    """
    path = device_files.resolve(link)
    name = os.path.basename(path or '')
    directory = f'{sysfs.SYS}/class/block/{name}'
    file = device_files.read(f'{sysfs.DEV}/{name}', directory, 'b')
    if path is None or file is None:
        raise exception.DeviceNotFound(
            wanted=f'block device {link}',
            reason='this host has no such block device at present',
        )
    wwn = sysfs.read(f'{directory}/wwid')
    if path != device_files.shown(file.path) or wwn != wanted:
        raise exception.DeviceError(
            device=f'block device {link}',
            reason=f'it is {path} with the name {wwn}, expected {wanted}',
        )
    return container_spec.Node(path, file.number)
