# SPDX-License-Identifier: Apache-2.0

"""Who has a device open or assigned, as only root can see."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import operator
import os

from os_acc import exception
from os_acc.availability import host_use
from os_acc.claims import holder
from os_acc.deadlines import waiting
from os_acc.kernel import amd_partitions
from os_acc.kernel import descriptors
from os_acc.kernel import device_files
from os_acc.kernel import libvirt_domains
from os_acc.kernel import mdev
from os_acc.kernel import open_files
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vfio
from os_acc.privileged import arguments
from os_acc.privileged import context
from os_acc.privileged import function_notes
from os_acc.privileged import notes
from os_acc.privileged import root_folder
from os_acc.privileged import storage
from os_acc.refusals import refusals


@context.entry
def of_function(address: str, instance_uuid: str, shares: bool) -> list[str]:
    """Find who has a PCI function open, or has left data in it.

    :param instance_uuid: the instance that is allowed to have it
    :param shares: whether the instance has other functions of its IOMMU
        group. Its guest may then have the group's file open, so that file is
        not checked
    :returns: a clause for each user, such as
        'process 4711 (qemu) has /dev/vfio/12 open'
    """
    function = pci.get(address)
    arguments.uuid(instance_uuid)
    if (noted := function_notes.why_not(function)) is not None:
        return [noted]
    users = find(function, instance_uuid, shares)
    left = storage.data_of_others(function, instance_uuid)
    return users if left is None else [*users, left]


@context.entry
def of_functions(addresses: list[str]) -> list[str]:
    """Find who uses PCI functions: guests, programs, and the host itself.

    :param addresses: of the functions; those that do not exist are left out
    :returns: a clause for each user, as of_function()
    """
    functions = [pci.find(each) for each in arguments.addresses(addresses)]
    return open_by([each for each in functions if each is not None])


def open_by(functions: Iterable[pci.Function]) -> list[str]:
    """Do what of_functions() does."""
    nodes: list[device_files.DeviceFile] = []
    other: list[str] = []
    snapshot = host_use.Snapshot.read()
    others = function_notes.rule()
    for function in functions:
        files, exclusive = _files(function, snapshot)
        nodes += [*files, *vfio.nodes(function.path)]
        other += exclusive
        # A guest that is starting may not have opened it yet.
        other += libvirt_domains.users_of(function.address, None, '')
        if (noted := function_notes.why_not(function, others)) is not None:
            other.append(noted)
        if (use := host_use.by_host(function, snapshot)) is not None:
            other.append(use.text)
    return list(dict.fromkeys([*open_files.users_of(nodes), *other]))


def find(
    function: pci.Function, instance_uuid: str, shares: bool
) -> list[str]:
    """Find who has a PCI function open. See of_function()."""
    files, exclusive = _files(function)
    files += vfio.device_nodes(function.path)
    if not shares:
        files += vfio.group_nodes(function.path)
    return (
        open_files.users_of(files)
        + exclusive
        + libvirt_domains.users_of(function.address, None, instance_uuid)
    )


def _files(
    function: pci.Function, snapshot: host_use.Snapshot | None = None
) -> tuple[list[device_files.DeviceFile], list[str]]:
    """The device files of a function's drivers, without those of VFIO.

    :param snapshot: pass one when asking about many functions
    :returns: the files, and a clause for each block device that somebody has
        open exclusively
    """
    names: list[str] = []
    files = open_files.nvidia_files(function.address)
    # Check this even if no driver is bound: the kernel removes the link to the
    # driver before the driver has released the function, which can take as
    # long as a program uses it (drivers/base/dd.c). A function without
    # directories below its own has neither block devices nor device files,
    # because device_add() makes the directory first (drivers/base/core.c).
    if function.parts:
        blocks = snapshot or host_use.Snapshot.read()
        names = blocks.below(function.path)
        for name in names:
            path = f'{sysfs.DEV}/{name}'
            if file := device_files.read(path, blocks.paths[name], 'b'):
                files.append(file)
        for directory in (
            *blocks.directories(function.path),
            *amd_partitions.directories(function.address),
        ):
            files += open_files.character_files(directory)
    exclusive = [
        refusals.OPEN_EXCLUSIVELY.reason(name=name).text
        for name in open_files.exclusively_used(names)
    ]
    return files, exclusive


@context.entry
def of_mdev(uuid: str, instance_uuid: str) -> list[str]:
    """Find who has a mediated device open. See of_function()."""
    arguments.uuid(instance_uuid)
    nodes = vfio.nodes(mdev.directory(uuid))
    return open_files.users_of(nodes) + libvirt_domains.users_of(
        None, uuid, instance_uuid
    )


def wait_until_closed(
    path: str, device: str, seconds: float, shares: bool = False
) -> None:
    """Wait until no guest has a device open.

    QEMU may close the device's file seconds after it has reported the device
    as removed. A QEMU that was killed shows no open files any more while the
    kernel still closes them.

    :param shares: whether the guest keeps other functions of its IOMMU group
    """
    files = vfio.nodes(path)
    if not files:
        return
    known: list[str] = []

    def users() -> list[str]:
        held = [file for file in files if vfio.is_held(file)]
        # While the kernel reports it as open, look for the process only once:
        # that reads the open files of every process.
        if not (known and held):
            known[:] = open_files.users_of(files) or [
                refusals.STILL_OPEN.reason(path=file.path).text
                for file in held
            ]
        if known and shares and have_others_only(path):
            known.clear()
        return known

    until_closed(
        device, users, arguments.seconds(seconds), operator.itemgetter(0)
    )


# Waiting until nobody has a device open any more, as root.


def until_closed(
    device: str,
    users: Callable[[], Sequence[str]],
    seconds: float,
    text: Callable[[Sequence[str]], str] = '; '.join,
) -> None:
    """Wait until nobody has a device open.

    :param seconds: how long to wait; 0: look once
    :param text: makes the reason of the error from these clauses
    """
    found: list[str] = []

    def closed() -> bool:
        found[:] = users()
        return not found

    try:
        waiting.until(closed, seconds, device)
    except exception.Timeout as err:
        raise exception.DeviceBusy(
            device=f'{device} (after {seconds:g} s)',
            reason=text(found),
        ) from err


# Which functions of a shared IOMMU group processes have open through VFIO.
#
# Needs the privileges that open_files needs.


# The file that a process gets for each function that it uses of a group:
# vfio_device_open_file() in drivers/vfio/group.c.
_DEVICE = 'anon_inode:[vfio-device]'

# The line of /proc/PID/fdinfo/FD that names the function (Linux 6.17,
# vfio_device_show_fdinfo() in drivers/vfio/vfio_main.c).
_SYSPATH = 'vfio-device-syspath:'


def have_others_only(path: str) -> bool:
    """Whether a function's IOMMU group is open only for its other functions.

    A guest that keeps another function of the group keeps the group's file
    open. The answer is True only if the kernel or libvirt shows that no
    process has this function open.
    """
    own = vfio.device_nodes(path)
    if own and open_files.users_of(own):
        return False
    address = os.path.basename(path)
    others = set(pci.group_members(vfio.group_of(address) or '')) - {address}
    opened = list(_open_devices())
    shown = {function for _, function in opened if function is not None}
    if shown:
        return address not in shown and bool(shown & others)
    # The kernel does not name the functions. libvirt knows which ones the
    # guest has; the number of open files tells whether QEMU has closed it.
    for domain in libvirt_domains.running():
        if address in domain.devices:
            return False
        if others & set(domain.devices):
            number = sum(pid == domain.pid for pid, _ in opened)
            return 0 < number <= len(domain.devices)
    return False


def _open_devices() -> Iterator[tuple[str, str | None]]:
    """The functions that processes have open through the file of a group.

    :returns: process id and address; None if the kernel does not name it
    """
    for pid in descriptors.processes():
        for each in descriptors.of_process(pid):
            with contextlib.suppress(FileNotFoundError):
                if each.text == _DEVICE:
                    yield pid, _named(each)


def _named(descriptor: descriptors.Descriptor) -> str | None:
    for line in descriptor.info():
        if line.startswith(_SYSPATH):
            return os.path.basename(line.removeprefix(_SYSPATH).strip())
    return None


@context.entry
def adopt(vans: Sequence[Sequence[str]]) -> None:
    """Note which VANs of the caller's journal have devices.

    Notes of earlier versions of os-acc name no journal, and a note can be
    damaged. A note that names a VAN stays.

    :param vans: for each VAN the UUID of its instance, its own, and the device
        as its attach handle names it
    """
    who = holder.current()
    if who is None:
        return
    for instance, van, device in vans:
        root_folder.check_name(f'{notes.NAMESPACE}-{device}')
        arguments.uuid(instance)
        arguments.uuid(van)
        notes.adopt(
            dataclasses.replace(who, instance=instance, van=van), device
        )
