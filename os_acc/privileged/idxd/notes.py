# SPDX-License-Identifier: Apache-2.0

"""What os-acc has set on work queues and their devices, as root.

The record says what is set in this boot of the host, and what was there
before. The notes say which VAN has which work queue, also after a reboot: see
notes.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated
from typing import Any

from os_acc import exception
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import idxd
from os_acc.kernel import open_files
from os_acc.kernel import pci
from os_acc.kinds.idxd import entry as spec_idxd
from os_acc.kinds.idxd import names as idxd_names
from os_acc.kinds.idxd import refusals as idxd_refusals
from os_acc.kinds.idxd import rules as idxd_availability
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import store
from os_acc.privileged import undo_log
from os_acc.privileged.idxd import setup as idxd_setup
from os_acc.refusals import reasons
from os_acc.refusals import refusals


@dataclasses.dataclass(frozen=True)
class IdxdDevice:
    """A device of Intel DSA or IAA that was set up and enabled.

    :ivar ids: vendor:product
    :ivar mode: of each work queue, as size
    :ivar queues: the group of each work queue, by its number in digits
    :ivar engines: the group of each engine, by its number in digits
    :ivar kept: whether it stays enabled without a VAN, for os-acc apply
    """

    ids: str
    mode: str
    size: int
    queues: dict[str, int]
    engines: dict[str, int]
    kept: bool = False


@dataclasses.dataclass(frozen=True)
class IdxdQueue:
    """A work queue of Intel DSA or IAA that was configured and enabled.

    :ivar ids: vendor:product
    :ivar van: the UUID of the VAN that has it
    :ivar before: what its files contained before, by their names
    """

    ids: str
    van: str
    before: dict[str, str]


@dataclasses.dataclass(frozen=True)
class IdxdFiles:
    """The device files that a work queue has had for a VAN in this boot.

    The kernel forgets who has a work queue open when it is disabled, and gives
    it another number when it is enabled again.

    :ivar files: path, major number, minor number and place of each; the place
        is what open_files.place_of() returns
    """

    van: str
    files: list[list[Any]]


idxd_devices = undo_log.Records('idxd-devices', IdxdDevice)
idxd_queues = undo_log.Records('idxd-queues', IdxdQueue)
idxd_files = undo_log.Records('idxd-files', IdxdFiles)


@dataclasses.dataclass(frozen=True)
class Queue(store.Said):
    """The note of a work queue.

    :ivar what: the VAN that has it
    :ivar ids: vendor:product of the function
    :ivar settings: as it was given out
    """

    what: str
    ids: str = ''
    settings: Annotated[spec_idxd.Queues | None, spec_idxd.of_note] = None


def settings_of(
    function: pci.Function, name: str, van: str
) -> spec_idxd.Queues | None:
    """How a work queue is set up: as it was given out, or by device_spec."""
    noted = notes.said(Queue, notes.IDXD, name, van)
    if noted is not None and noted.ids == function.ids and noted.settings:
        return noted.settings
    spec = offers.specs().find(function)
    return None if spec is None else spec.queues


def check_note(function: pci.Function, name: str, van: str) -> None:
    """Check that no other VAN has a work queue, even from before a reboot.

    The record does not survive a reboot, the notes do. A note of another
    device that had the address does not count.
    """
    noted = notes.said(Queue, notes.IDXD, name)
    if noted is not None and noted.what != van and noted.ids == function.ids:
        notes.check_noted(notes.IDXD, name)
        raise exception.DeviceBusy(
            device=f'work queue {name}',
            reason=f'VAN {noted.what} has it, by the note of the '
            'privileged daemon. If there is no such VAN, delete the note with '
            f'os-acc device deny {function.address}, and allow the device '
            'again',
        )


def note(
    function: pci.Function, name: str, van: str, settings: spec_idxd.Queues
) -> None:
    """Note which VAN has a work queue."""
    notes.note(
        notes.IDXD,
        name,
        van,
        device=function.address,
        ids=function.ids,
        settings=dataclasses.asdict(settings),
    )


def mine(function: pci.Function, name: str, van: str) -> IdxdQueue | None:
    """The record of a work queue that a VAN has in this boot."""
    known = idxd_queues.read(name)
    if known is None or known.ids != function.ids:
        return None
    if known.van != van:
        raise exception.DeviceBusy(
            device=f'work queue {name}', reason=f'VAN {known.van} has it'
        )
    queue, _ = find(name)
    if queue is None or not is_of(queue, van):
        # Somebody else has disabled it and configured it since.
        return None
    return known


def is_of(queue: idxd.Queue, van: str) -> bool:
    """Whether a work queue is as enable() leaves it, or on the way there."""
    if queue.is_enabled:
        return queue.label == idxd_names.label_of(van)
    return queue.label in ('', idxd_names.label_of(van))


def find(
    name: str,
) -> tuple[idxd.Queue | None, device_files.DeviceFile | None]:
    """Find a work queue and its device file by its name."""
    address, number = idxd_names.parse(name)
    device = idxd.find(address)
    queue = None if device is None else device.queue(number)
    if device is None or queue is None:
        return None, None
    return queue, device.file(queue)


def has(queue: idxd.Queue, van: str) -> bool:
    """Whether a work queue is enabled for a VAN."""
    return queue.is_enabled and queue.label == idxd_names.label_of(van)


def files_given(function: pci.Function) -> dict[int, reasons.Reason]:
    """Which work queues VANs have as device files, by other entries.

    :returns: who has it, by the number of the work queue
    """
    found = {}
    for kind, name in notes.of_device(function.address):
        queue = idxd_names.of_file(file_place.without_share(name))
        if kind == notes.FILE and queue is not None:
            found[queue[1]] = idxd_refusals.FILE_GIVEN.reason(
                who='a VAN', number=queue[1]
            )
    return found


def layout_of(function: pci.Function) -> idxd_availability.Layout | None:
    """What os-acc has set on a device that is set up now; None if nothing.

    If an earlier call was interrupted before it had enabled the device, this
    undoes what that call has set.
    """
    known = idxd_devices.read(function.address)
    if known is None:
        return None
    layout = _of_record(known)
    device = idxd.find(function.address)
    if known.ids == function.ids and device is not None:
        if not device.is_enabled:
            _reset_queues(function, device, layout)
            idxd_setup.clear(idxd_setup.read(function.address), layout)
        elif all(
            queue.size == layout.size
            for queue in device.queues
            if queue.number in layout.queues
        ):
            return layout
    # Otherwise it left the bus, or somebody else has set it up again since.
    idxd_devices.delete(function.address)
    return None


def _reset_queues(
    function: pci.Function,
    device: idxd.Device,
    layout: idxd_availability.Layout,
) -> None:
    """Undo what is set on work queues of a device that is disabled."""
    for queue in device.queues:
        name = idxd_names.name_of(function.address, queue.number)
        known = idxd_queues.read(name)
        if known is not None and known.ids == function.ids:
            if not queue.is_enabled and is_of(queue, known.van):
                mode = layout.mode
                idxd_setup.reset(device, queue, known.before, mode)
            idxd_queues.delete(name)


def _of_record(known: IdxdDevice) -> idxd_availability.Layout:
    return idxd_availability.Layout(
        known.mode,
        known.size,
        {int(number): group for number, group in known.queues.items()},
        {int(number): group for number, group in known.engines.items()},
    )


def in_use(function: pci.Function) -> bool:
    """Whether a VAN has a work queue of a device in this boot."""
    for name in idxd_queues.names():
        found = idxd_names.split(name)
        if found is None or found[0] != function.address:
            continue
        known = idxd_queues.read(name)
        if known is not None and known.ids == function.ids:
            return True
    return False


def vans(function: pci.Function) -> dict[str, str]:
    """Which VANs have work queues of a device, by the names of these.

    Including the VANs that got them before a reboot.
    """
    found = {}
    for kind, name in notes.of_device(function.address):
        if kind != notes.IDXD:
            continue
        noted = notes.said(Queue, kind, name)
        if noted is not None and noted.ids == function.ids:
            found[name] = noted.what
    return found


def note_file(name: str, van: str, file: device_files.DeviceFile) -> None:
    """Record a device file of a work queue that was enabled for a VAN."""
    known = idxd_files.read(name)
    files = [] if known is None or known.van != van else known.files
    number = file.number
    place = open_files.place_of(file.path)
    wanted = [file.path, number.major, number.minor, place]
    if wanted not in files:
        made = IdxdFiles(van, [*files, wanted])
        idxd_files.write(name, made)


def users(name: str, van: str) -> list[str]:
    """Who has a VAN's work queue open, in whatever state it is.

    A program that had it open when it was disabled keeps the file and its
    mapping. With that, it can submit work to the queue of the next VAN: the
    portal of the queue is the same.
    """
    queue, now = find(name)
    files, places = _files_of(name, van)
    is_mine = queue is not None and has(queue, van)
    if now is not None:
        # The kernel does not reuse a number while a program has it open.
        files = {each for each in files if each.number != now.number}
        if is_mine:
            files.add(now)
    found = open_files.users_of(files, places=places)
    if not found and is_mine and now and queue and queue.clients > 0:
        # It is mapped, or its process is being killed.
        found = [refusals.STILL_OPEN.reason(path=now.path).text]
    return found


def _files_of(
    name: str, van: str
) -> tuple[set[device_files.DeviceFile], dict[str, device_files.Number]]:
    """The device files that a work queue has had for a VAN.

    :returns: also the number of each by what /proc/PID/maps shows: its place
        in the host's /dev, or its path, if a container has one of its own
    """
    known = idxd_files.read(name)
    files: set[device_files.DeviceFile] = set()
    places: dict[str, device_files.Number] = {}
    for path, major, minor, place in (
        known.files if known is not None and known.van == van else ()
    ):
        number = device_files.Number('c', major, minor)
        files.add(device_files.DeviceFile(path, number))
        places |= {place or path: number, device_files.shown(path): number}
    return files, places


def forget(name: str, van: str, cleaned: notes.Cleaned) -> None:
    """Delete records and note of a VAN's work queue."""
    given = idxd_files.read(name)
    if given is not None and given.van == van:
        idxd_files.delete(name)
    known = idxd_queues.read(name)
    if known is not None and known.van == van:
        idxd_queues.delete(name)
    notes.forget(notes.IDXD, name, cleaned, van)
