# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Making and removing mediated devices and vGPUs, as root."""

from __future__ import annotations

import os

from os_acc import exception
from os_acc.devices import mdev
from os_acc.devices import operation_lock
from os_acc.devices import vgpu
from os_acc.devices import waiting
from os_acc.privileged import arguments
from os_acc.privileged import cleaning
from os_acc.privileged import context
from os_acc.privileged import device_users


@context.entry
def create(uuid: str, parent: str, kind: str, seconds: float) -> None:
    """Make a mediated device. See devices.mdev.create()."""
    arguments.parent(parent)
    wanted = mdev.Mdev(uuid=uuid, parent=parent, type=kind)
    mdev.check_type(parent, kind)
    seconds = arguments.seconds(seconds)

    def act() -> None:
        with operation_lock.held(mdev.parent_folder(parent), seconds / 2):
            mdev.create(wanted, seconds)

    waiting.at_most(act, seconds, f'mdev {uuid} to be made')


@context.entry
def remove(
    uuid: str, parent: str, kind: str, release_seconds: float, seconds: float
) -> None:
    """Remove a mediated device that its guest has closed.

    :param release_seconds: how long the guest may take to close it
    :raises DeviceBusy: if a guest still has it open, or the UUID is another
        device's
    """
    seconds = arguments.seconds(seconds)
    mdev.check_name(parent, 'parent')
    path, folder = mdev.parent_folder(parent), mdev.folder(uuid)
    if not os.path.isdir(path):
        # The parent is gone, and its mediated devices with it.
        return
    arguments.parent(parent)
    with operation_lock.held(path, seconds / 2):
        # With the lock held, no creation is under way.
        there = mdev.find(uuid)
    if there is None:
        return
    mdev.check_same(there, mdev.Mdev(uuid=uuid, parent=parent, type=kind))
    with operation_lock.held(folder, seconds / 2) as lock:
        device_users.wait_until_closed(folder, f'mdev {uuid}', release_seconds)
        cleaning.run_command(uuid)

        def act() -> None:
            with operation_lock.held(path, seconds / 2):
                mdev.remove(uuid, seconds)

        waiting.at_most(
            operation_lock.kept_until(lock, act),
            seconds,
            f'mdev {uuid} to be removed',
        )


@context.entry
def released(uuid: str, release_seconds: float) -> None:
    """Wait until a mediated device's guest has closed it, then clean it.

    :raises DeviceBusy: if the guest still has it open
    """
    there = mdev.find(uuid)
    if there is None:
        return
    arguments.parent(there.parent)
    with operation_lock.held(mdev.folder(uuid), release_seconds):
        device_users.wait_until_closed(
            mdev.folder(uuid), f'mdev {uuid}', release_seconds
        )
        cleaning.run_command(uuid)


@context.entry
def set_vgpu_type(address: str, number: int, seconds: float) -> None:
    """Set the vGPU type of a VF.

    :raises DeviceBusy: if the VF has another type
    """
    function = arguments.function(address)
    arguments.whole(number, 'number', 2**31, least=1)
    seconds = arguments.seconds(seconds)

    def act() -> None:
        with operation_lock.held(function.path, seconds / 2):
            if (now := vgpu.current(address)) not in (vgpu.NONE, number):
                raise exception.DeviceBusy(
                    device=f'VF {address}', reason=f'it has vGPU type {now}'
                )
            vgpu.set_type(address, number, seconds)

    waiting.at_most(act, seconds, f'VF {address} to have vGPU type {number}')


@context.entry
def clear_vgpu_type(
    address: str, number: int, release_seconds: float, seconds: float
) -> None:
    """Clear the vGPU type of a VF, once its guest has closed the VF.

    :param number: the type that os-acc has set. If the VF has another type,
        somebody else has set it, and nothing is changed
    :raises DeviceBusy: if a guest still has the VF open
    """
    function = arguments.function(address)
    arguments.whole(number, 'number', 2**31, least=1)
    seconds = arguments.seconds(seconds)
    with operation_lock.held(function.path, seconds / 2) as lock:
        if vgpu.current(address) != number:
            return
        device_users.wait_until_closed(
            function.path, f'VF {address}', release_seconds
        )
        cleaning.run_command(address)

        def act() -> None:
            vgpu.set_type(address, vgpu.NONE, seconds)

        waiting.at_most(
            operation_lock.kept_until(lock, act),
            seconds,
            f'the vGPU type of VF {address} to be cleared',
        )


@context.entry
def released_vgpu(address: str, release_seconds: float) -> None:
    """Wait until a vGPU's guest has closed its VF, then clean it.

    The vGPU type stays set.

    :raises DeviceBusy: if the guest still has it open
    """
    function = arguments.function(address)
    with operation_lock.held(function.path, release_seconds):
        device_users.wait_until_closed(
            function.path, f'VF {address}', release_seconds
        )
        cleaning.run_command(address)
