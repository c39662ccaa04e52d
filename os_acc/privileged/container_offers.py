# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""May a container get a device, and what else does it get with it, as root?

Every container that has a device like it also has its common files, such as
/dev/vfio/vfio, /dev/kfd and /dev/nvidiactl. They say nothing about the device.
"""

from __future__ import annotations

from os_acc import exception
from os_acc import objects
from os_acc.devices import device_spec
from os_acc.devices import file_groups
from os_acc.devices import mdev
from os_acc.devices import spec_edits
from os_acc.privileged import arguments
from os_acc.privileged import device_files
from os_acc.privileged import offers


def edits(handle: objects.AttachHandle) -> spec_edits.Edits:
    """Check that device_spec offers a device, and give what its entry adds.

    A VAN keeps what it has: then an entry that no longer offers the device
    does not matter.

    :raises DeviceNotFound: if device_spec does not offer it, or it is gone
    :raises UnsupportedHandle: if no container can use such a handle
    """
    if isinstance(handle, objects.PCIHandle):
        return _of(offers.entry(arguments.there(handle.address)))
    if isinstance(handle, objects.MdevHandle):
        there = mdev.find(handle.uuid)
        if there is None:
            raise exception.DeviceNotFound(
                wanted=f'mdev {handle.uuid}', reason='this host has none'
            )
        offers.check_mdev(there, new=False)
        return _of(offers.specs().find_parent(there.parent))
    if isinstance(handle, objects.DeviceFileHandle):
        return _of(_files(handle).spec)
    raise exception.UnsupportedHandle(
        taker='CDI',
        handle=handle.obj_name(),
        takes='PCIHandle, MdevHandle, DeviceFileHandle',
    )


def common(handle: objects.AttachHandle) -> frozenset[str]:
    """The paths of the device files of a handle that others have too."""
    if not isinstance(handle, objects.DeviceFileHandle):
        return frozenset()
    return frozenset(each.path for each in _files(handle).common)


def _files(handle: objects.DeviceFileHandle) -> file_groups.Accelerator:
    """Find the accelerator of device files that a VAN has.

    :raises DeviceNotFound: if no VAN has it, or it has not all of the files
    """
    found = device_files.held_by(handle.name, handle.share or '')
    there = {each.path for each in found.files}
    allowed = found.spec.permissions
    for file in handle.files:
        if not set(file.permissions) <= set(allowed):
            arguments.refuse(
                'permissions',
                file.permissions,
                f'at most {allowed}, as device_spec says',
            )
        if file.path not in there:
            raise exception.DeviceNotFound(
                wanted=f'device file {file.path}',
                reason=f'the accelerator {handle.name} does not have it now',
            )
    return found


def _of(entry: device_spec.Spec | None) -> spec_edits.Edits:
    if entry is None:
        return spec_edits.Edits()
    return spec_edits.Edits(entry.env, entry.mounts, entry.hooks)
