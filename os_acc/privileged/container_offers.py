# SPDX-License-Identifier: Apache-2.0

"""May a container get a device, and what else does it get with it, as root?

Every container that has a device like it also has its common files, such as
/dev/vfio/vfio, /dev/kfd and /dev/nvidiactl. They say nothing about the device.
"""

from __future__ import annotations

from os_acc import exception
from os_acc import objects
from os_acc.kernel import device_files as paths
from os_acc.kernel import idxd
from os_acc.kernel import mdev
from os_acc.kinds.devfile import groups as file_groups
from os_acc.kinds.idxd import names as idxd_names
from os_acc.privileged import arguments
from os_acc.privileged import held
from os_acc.privileged import offers
from os_acc.privileged.devfile import device_files
from os_acc.privileged.idxd import notes as idxd_notes
from os_acc.privileged.nvme_of import notes as nvme_of_notes
from os_acc.spec import device_spec
from os_acc.spec import edits as spec_edits


def edits(handle: objects.AttachHandle, van: str) -> spec_edits.Edits:
    """Check that device_spec offers a device, and give what its entry adds.

    A VAN keeps what it has: then an entry that no longer offers the device
    does not matter.

    :param van: the UUID of the VAN that has the device
    :raises DeviceNotFound: if device_spec does not offer it, or it is gone, or
        the VAN does not have it
    :raises UnsupportedHandle: if no container can use such a handle
    """
    if isinstance(handle, objects.PCIHandle):
        return offers.entry(arguments.function(handle.address)).edits
    if isinstance(handle, objects.MdevHandle):
        there = mdev.find(handle.uuid)
        if there is None:
            raise exception.DeviceNotFound(
                wanted=f'mdev {handle.uuid}', reason='this host has none'
            )
        offers.check_mdev(there, new=True)
        return _of(offers.specs().known_parent(there.parent))
    if isinstance(handle, objects.DeviceFileHandle):
        if idxd_names.split(handle.name) is not None:
            return _of_queue(handle, van)
        return _files(handle).spec.edits
    if isinstance(handle, objects.BlockHandle):
        return _of_namespace(handle.wwn)
    raise exception.UnsupportedHandle(
        taker='CDI',
        handle=handle.obj_name(),
        takes='PCIHandle, MdevHandle, DeviceFileHandle, BlockHandle',
    )


def common(handle: objects.AttachHandle) -> frozenset[str]:
    """The paths of the device files of a handle that others have too."""
    if (
        not isinstance(handle, objects.DeviceFileHandle)
        or idxd_names.split(handle.name) is not None
    ):
        return frozenset()
    return frozenset(each.path for each in _files(handle).common)


def _files(handle: objects.DeviceFileHandle) -> file_groups.Accelerator:
    """Find the accelerator of device files that a VAN has.

    :raises DeviceNotFound: if no VAN has it, or it has not all of the files
    """
    found = device_files.held_by(handle.name, handle.share or '')
    there = {each.path for each in found.files}
    _check_permissions(handle, found.spec.permissions)
    for file in handle.files:
        if file.path not in there:
            raise exception.DeviceNotFound(
                wanted=f'device file {file.path}',
                reason=f'the accelerator {handle.name} does not have it now',
            )
    return found


def _check_permissions(handle: objects.DeviceFileHandle, allowed: str) -> None:
    for file in handle.files:
        if not set(file.permissions) <= set(allowed):
            arguments.refuse(
                'permissions',
                file.permissions,
                f'at most {allowed}, as device_spec says',
            )


def _of_queue(handle: objects.DeviceFileHandle, van: str) -> spec_edits.Edits:
    """Check that a VAN has a work queue, and that its file is what it was.

    :raises DeviceNotFound: if it has not, or the file is another one now
    """
    address, number = idxd_names.parse(handle.name)
    function = arguments.there(address)
    device = idxd.find(address)
    queue = None if device is None else device.queue(number)
    noted = held.values(held.IDXD, handle.name, van)
    if (
        device is None
        or queue is None
        or noted is None
        or noted.get('ids') != function.ids
        or not idxd_notes.has(queue, van)
    ):
        raise exception.DeviceNotFound(
            wanted=f'work queue {handle.name}',
            reason=f'VAN {van} does not have it',
        )
    file = device.file(queue)
    saved = [(x.path, x.type, x.major, x.minor) for x in handle.files]
    if file is None or saved != [(paths.shown(file.path), *file.number)]:
        raise exception.DeviceNotFound(
            wanted=f'work queue {handle.name}',
            reason='its device file, or the number of that, has changed',
        )
    _check_permissions(handle, 'rw')
    entry = offers.specs().known(function)
    return _of(entry if entry is not None and entry.queues else None)


def _of_namespace(wwn: str) -> spec_edits.Edits:
    """Check that a VAN has a namespace of an NVMe-oF target.

    :raises DeviceNotFound: if none has
    """
    note = nvme_of_notes.read(wwn)
    if note is None or not note.given:
        raise exception.DeviceNotFound(
            wanted=f'namespace {wwn}', reason='no VAN has it'
        )
    return _of(offers.specs().known_namespace(wwn))


def _of(entry: device_spec.Spec | None) -> spec_edits.Edits:
    return spec_edits.Edits() if entry is None else entry.edits
