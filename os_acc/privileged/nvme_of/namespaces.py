# SPDX-License-Identifier: Apache-2.0

"""Giving out namespaces of NVMe-oF targets, and taking them back, as root.

A namespace is emptied when it is released, while it is still connected. If its
target cannot be reached then, a note says whose data it may hold, and it is
emptied before another instance gets it: see notes.
"""

from __future__ import annotations

import logging
import operator
import os
import re

from os_acc import exception
from os_acc.availability import host_use
from os_acc.deadlines import waiting
from os_acc.kernel import nvme_of
from os_acc.kernel import sysfs
from os_acc.kinds.nvme_of import entry as spec_nvme_of
from os_acc.kinds.nvme_of import refusals as nvme_of_refusals
from os_acc.kinds.nvme_of import use as namespace_use
from os_acc.privileged import arguments
from os_acc.privileged import cleaning
from os_acc.privileged import command
from os_acc.privileged import context
from os_acc.privileged import device_users
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import operation_lock
from os_acc.privileged.nvme_of import commands as nvme_of_commands
from os_acc.privileged.nvme_of import connections
from os_acc.privileged.nvme_of import notes as nvme_of_notes

LOG = logging.getLogger(__name__)

_WWN = re.compile(
    r'uuid\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'
    r'|eui\.[0-9a-f]{32}'
)
# Bytes that one call of the kernel overwrites with zeroes; blkdiscard can be
# killed between two calls.
_STEP = 64 << 20


@context.entry
def connect(
    wwn: str, instance_uuid: str, seconds: float, fast_io_fail: int
) -> None:
    """Connect a namespace for an instance, and give it out.

    Repeating it for the same instance is a success.

    :param seconds: for the connection; emptying it takes its own time
    :raises DeviceNotFound: if device_spec does not offer the namespace, and
        the instance does not already have it
    :raises DeviceBusy: if another instance or a process has it
    :raises DeviceInUseByHost: if the host uses it
    :raises CleaningFailed: if it holds the data of another instance, and
        cannot be emptied
    """
    _check(wwn, instance_uuid)
    seconds = arguments.seconds(seconds)
    arguments.whole(fast_io_fail, 'fast_io_fail', 86400)
    _target(wwn, instance_uuid, nvme_of_notes.read(wwn))  # there is one
    with operation_lock.named(wwn, seconds / 2) as lock:
        note = nvme_of_notes.read(wwn)
        target = _target(wwn, instance_uuid, note)
        _check_owner(wwn, instance_uuid, note)
        _check_host(wwn, target)
        deadline = waiting.Deadline(seconds)

        def act() -> None:
            connections.connect(
                wwn, target, instance_uuid, deadline, fast_io_fail, [lock]
            )
            _await(wwn, target, instance_uuid, deadline)
            if note is None or not note.given:
                _await_unused(wwn, deadline.left())

        what = f'{namespace_use.label(wwn)} to be connected'
        operation_lock.at_most(lock, act, seconds, what)
        if note is not None and note.instance != instance_uuid:
            if target.erase != spec_nvme_of.ERASE_NONE:
                _erase(wwn, lock)
            cleaning.run_command(wwn)
        nvme_of_notes.write(
            wwn, nvme_of_notes.Note(instance_uuid, True, target)
        )


@context.entry
def release(
    wwn: str, instance_uuid: str, release_seconds: float, seconds: float
) -> bool:
    """Take a namespace back from an instance, empty it, and disconnect it.

    Only what connect() has done for the instance is undone, and nothing if a
    VAN of another journal has the namespace.

    :returns: False if it could not be emptied, because its target cannot be
        reached. connect() empties it before another instance gets it
    :raises CleaningFailed: if it cannot be emptied
    """
    _check(wwn, instance_uuid)
    release_seconds = arguments.seconds(release_seconds)
    seconds = arguments.seconds(seconds)
    if nvme_of_notes.read(wwn) is None and not operation_lock.was_named(wwn):
        return True
    with operation_lock.named(wwn, seconds / 2) as lock:
        note = nvme_of_notes.read(wwn)
        if note is not None and note.is_of_another:
            LOG.info('%s is not released: %s', wwn, _owner(note))
            return True
        emptied = True
        if note is not None and note.given and note.instance == instance_uuid:
            there = _connected(wwn, instance_uuid)
            if there:
                _await_unused(wwn, release_seconds, ended=True)
            cleaned = _empty(wwn, note, there, lock)
            emptied = cleaned is not None
            if cleaned is not None:
                nvme_of_notes.delete(wwn, cleaned)
            else:
                left = nvme_of_notes.Note(instance_uuid, False, note.target)
                nvme_of_notes.write(wwn, left)
        deadline = waiting.Deadline(seconds)
        operation_lock.at_most(
            lock,
            lambda: connections.disconnect(wwn, instance_uuid, deadline),
            seconds,
            f'{namespace_use.label(wwn)} to be disconnected',
        )
    return emptied


def _check(wwn: str, instance_uuid: str) -> None:
    arguments.uuid(instance_uuid)
    if not isinstance(wwn, str) or not _WWN.fullmatch(wwn):
        arguments.refuse('wwn', wwn, 'uuid. and a UUID, or eui. and an NGUID')


def _target(
    wwn: str, instance_uuid: str, note: nvme_of_notes.Note | None
) -> spec_nvme_of.Target:
    """Where a namespace comes from, by root's own configuration or note."""
    noted = (
        note is not None
        and note.given
        and note.instance == instance_uuid
        and note.target is not None
    )
    specs = offers.specs()
    spec = (specs.known_namespace if noted else specs.find_namespace)(wwn)
    if spec is not None and spec.nvme_of is not None:
        return spec.nvme_of
    if noted and note is not None and note.target is not None:
        return note.target
    raise exception.DeviceNotFound(
        wanted=namespace_use.label(wwn),
        reason=nvme_of_refusals.NOT_NAMED.reason().text,
    )


def _check_owner(
    wwn: str, instance_uuid: str, note: nvme_of_notes.Note | None
) -> None:
    if note is not None and (
        (note.given and note.instance != instance_uuid) or note.is_of_another
    ):
        raise exception.DeviceBusy(
            device=namespace_use.label(wwn), reason=_owner(note)
        )
    notes.check_namespace(wwn)


def _owner(note: nvme_of_notes.Note) -> str:
    reason = nvme_of_refusals.GIVEN.reason(instance=note.instance).text
    if note.holder is not None:
        reason += f' (VAN {note.holder.van} of the journal '
        reason += f'{note.holder.path})'
    return reason


def _check_host(wwn: str, target: spec_nvme_of.Target) -> None:
    for obstacle in namespace_use.on_host(wwn, target):
        raise obstacle.error()


def _connected(wwn: str, instance_uuid: str) -> list[nvme_of.Block]:
    """The block devices of a namespace that is connected for an instance."""
    host = nvme_of.host_nqn(instance_uuid)
    return [
        block
        for block in nvme_of.blocks(wwn)
        if any(each.host_nqn == host for each in block.controllers())
    ]


def _await(
    wwn: str,
    target: spec_nvme_of.Target,
    instance_uuid: str,
    deadline: waiting.Deadline,
) -> None:
    """Wait for the block device of a namespace, and for its link."""
    label = namespace_use.label(wwn)
    try:
        waiting.until(
            lambda: _connected(wwn, instance_uuid),
            deadline.left(0.5),
            label,
            'block',
        )
    except exception.Timeout as err:
        raise exception.DeviceError(
            device=label,
            reason=f'{target.nqn} is connected, but shows no block device of '
            'this name. A namespace that has a UUID is named by it, not by '
            'its NGUID: compare with the files wwid in /sys/class/block',
        ) from err
    _check_host(wwn, target)
    link = f'{sysfs.DEV}{nvme_of.link(wwn).removeprefix("/dev")}'
    names = [block.name for block in nvme_of.blocks(wwn)]
    waiting.until(
        lambda: os.path.basename(os.path.realpath(link)) in names,
        deadline.left(),
        f'udev to create the link {nvme_of.link(wwn)}',
        'block',
    )


def _await_unused(wwn: str, seconds: float, ended: bool = False) -> None:
    """Wait until nobody has a namespace open.

    udev has it open for a moment after it was connected, and QEMU for a while
    after it has reported the disk as removed.

    :param ended: whether the connection ends then. If it is lost, this does
        not wait until nobody reads
    """

    def users() -> list[str]:
        reachable = not ended or any(
            block.is_reachable() for block in nvme_of.blocks(wwn)
        )
        return namespace_use.users(wwn, reachable)

    snapshot = host_use.Snapshot.read()
    for obstacle in namespace_use.on_host(wwn, None, snapshot):
        if obstacle.category is namespace_use.Category.HOST_USE:
            raise obstacle.error()
    device_users.until_closed(
        namespace_use.label(wwn), users, seconds, operator.itemgetter(0)
    )


def _empty(
    wwn: str, note: nvme_of_notes.Note, there: list[nvme_of.Block], lock: int
) -> notes.Cleaned | None:
    """Empty a namespace that an instance has had, if that is os-acc's task.

    :returns: None if it is still to be done, because its target cannot be
        reached
    """
    spec = offers.specs().known_namespace(wwn)
    target = note.target if spec is None else spec.nvme_of
    wanted = target is None or target.erase != spec_nvme_of.ERASE_NONE
    if any(block.is_reachable() for block in there):
        if wanted:
            _erase(wwn, lock)
        return cleaning.run_command(wwn)
    wanted = wanted or cleaning.is_wanted()
    LOG.warning(
        '%s is released without its target: %s',
        namespace_use.label(wwn),
        'it is erased before another instance gets it'
        if wanted
        else 'nothing empties it',
    )
    return None if wanted else notes.Cleaned.GONE


def _erase(wwn: str, lock: int) -> None:
    """Overwrite a namespace with zeroes.

    blkdiscard opens it exclusively, so it fails if the host uses it. It uses
    NVMe's Write Zeroes if the target has it (BLKZEROOUT in block/ioctl.c).
    """
    label = namespace_use.label(wwn)
    seconds = offers.configuration().os_acc.storage_cleaning_timeout
    try:
        (block,) = nvme_of.blocks(wwn)
        blkdiscard = nvme_of_commands.program(
            'blkdiscard', 'util-linux', label
        )
        path = f'{sysfs.DEV}/{block.name}'
        with open(path, 'rb', buffering=0):
            # While it is open, no other namespace can get its name.
            if nvme_of.blocks(wwn) != [block]:
                raise ValueError(f'{block.name} is another namespace now')
            command.run(
                label,
                [blkdiscard, '--zeroout', f'--step={_STEP}', path],
                seconds,
                [lock],
            )
    except (exception.DeviceError, OSError, ValueError) as err:
        raise exception.CleaningFailed(
            device=label, reason=f'not erased: {exception.describe(err)}'
        ) from err
    LOG.info('%s was overwritten with zeroes', label)
