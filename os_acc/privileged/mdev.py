# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Mediated devices and vGPUs, as root."""

from __future__ import annotations

from os_acc.linux import mdev
from os_acc.linux import turns
from os_acc.linux import vgpu
from os_acc.linux import waiting
from os_acc.privileged import arguments
from os_acc.privileged import cleaning
from os_acc.privileged import context
from os_acc.privileged import holding


@context.entry
def create(uuid: str, parent: str, kind: str, seconds: float) -> None:
    """Make a mediated device. See linux.mdev.create."""
    arguments.parent(parent)
    wanted = mdev.Mdev(uuid=uuid, parent=parent, type=kind)
    mdev.check_type(parent, kind)
    seconds = arguments.seconds(seconds)

    def act() -> None:
        with turns.on(mdev.parent_folder(parent), seconds / 2):
            mdev.create(wanted, seconds)

    waiting.at_most(act, seconds, f'mdev {uuid} to be made')


@context.entry
def remove(
    uuid: str, parent: str, kind: str, release_seconds: float, seconds: float
) -> None:
    """Remove a mediated device that its guest has let go of.

    :raises DeviceBusy: a guest has it, or it is another one
    """
    arguments.parent(parent)
    there = mdev.find(uuid)
    if there is None:
        return
    mdev.check_same(there, mdev.Mdev(uuid=uuid, parent=parent, type=kind))
    seconds = arguments.seconds(seconds)
    holding.wait(mdev.folder(uuid), f'mdev {uuid}', release_seconds)
    cleaning.run_command(uuid)

    def act() -> None:
        with turns.on(mdev.parent_folder(parent), seconds / 2):
            mdev.remove(uuid, seconds)

    waiting.at_most(act, seconds, f'mdev {uuid} to be removed')


@context.entry
def released(uuid: str, release_seconds: float) -> None:
    """Wait until a mediated device's guest has let go of it; clean it.

    :raises DeviceBusy: it has it still
    """
    holding.wait(mdev.folder(uuid), f'mdev {uuid}', release_seconds)
    cleaning.run_command(uuid)


@context.entry
def set_vgpu_type(
    address: str, number: int, release_seconds: float, seconds: float
) -> None:
    """Set a VF's vGPU type; 0 takes it away, once its guest has let go.

    :raises DeviceBusy: a guest has it
    """
    function = arguments.function(address)
    arguments.whole(number, 'number', 2**31)
    seconds = arguments.seconds(seconds)
    if number == vgpu.NONE:
        holding.wait(function.path, f'VF {address}', release_seconds)
        cleaning.run_command(address)

    def act() -> None:
        with turns.on(function.path, seconds / 2):
            vgpu.set_type(address, number, seconds)

    waiting.at_most(act, seconds, f'the vGPU type of VF {address}')
