# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Mediated devices and vGPUs, as root."""

from __future__ import annotations

import os

from os_acc import exception
from os_acc.devices import mdev
from os_acc.devices import turns
from os_acc.devices import vgpu
from os_acc.devices import waiting
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
    seconds = arguments.seconds(seconds)
    mdev.check_name(parent, 'parent')
    path, folder = mdev.parent_folder(parent), mdev.folder(uuid)
    if not os.path.isdir(path):
        # Gone, with all that it had.
        return
    arguments.parent(parent)
    with turns.on(path, seconds / 2):
        # What is being made has come to its end now.
        there = mdev.find(uuid)
    if there is None:
        return
    mdev.check_same(there, mdev.Mdev(uuid=uuid, parent=parent, type=kind))
    with turns.on(folder, seconds / 2) as turn:
        holding.wait(folder, f'mdev {uuid}', release_seconds)
        cleaning.run_command(uuid)

        def act() -> None:
            with turns.on(path, seconds / 2):
                mdev.remove(uuid, seconds)

        waiting.at_most(
            turns.keep(turn, act), seconds, f'mdev {uuid} to be removed'
        )


@context.entry
def released(uuid: str, release_seconds: float) -> None:
    """Wait until a mediated device's guest has let go of it; clean it.

    :raises DeviceBusy: it has it still
    """
    there = mdev.find(uuid)
    if there is None:
        return
    arguments.parent(there.parent)
    with turns.on(mdev.folder(uuid), release_seconds):
        holding.wait(mdev.folder(uuid), f'mdev {uuid}', release_seconds)
        cleaning.run_command(uuid)


@context.entry
def set_vgpu_type(address: str, number: int, seconds: float) -> None:
    """Give a VF a vGPU type.

    :raises DeviceBusy: it has one
    """
    function = arguments.function(address)
    arguments.whole(number, 'number', 2**31, least=1)
    seconds = arguments.seconds(seconds)

    def act() -> None:
        with turns.on(function.path, seconds / 2):
            if (now := vgpu.current(address)) not in (vgpu.NONE, number):
                raise exception.DeviceBusy(
                    device=f'VF {address}', holder=f'one of vGPU type {now}'
                )
            vgpu.set_type(address, number, seconds)

    waiting.at_most(act, seconds, f'the vGPU type of VF {address}')


@context.entry
def take_vgpu_type_away(
    address: str, number: int, release_seconds: float, seconds: float
) -> None:
    """Take its vGPU type from a VF, once its guest has let go of it.

    :param number: the type that it was given; with another, it is another's
    :raises DeviceBusy: a guest has it
    """
    function = arguments.function(address)
    arguments.whole(number, 'number', 2**31, least=1)
    seconds = arguments.seconds(seconds)
    with turns.on(function.path, seconds / 2) as turn:
        if vgpu.current(address) != number:
            return
        holding.wait(function.path, f'VF {address}', release_seconds)
        cleaning.run_command(address)

        def act() -> None:
            vgpu.set_type(address, vgpu.NONE, seconds)

        waiting.at_most(
            turns.keep(turn, act), seconds, f'the vGPU type of VF {address}'
        )
