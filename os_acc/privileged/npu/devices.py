# SPDX-License-Identifier: Apache-2.0

"""Giving NPUs to VANs and resetting them, as root.

The settings come from device_spec as root reads it, or from the note of a VAN
that already has the NPU. Between two VANs the kernel driver is unbound and
bound again, so that it starts the device anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import functools
import logging
from typing import Annotated
from typing import Any

from os_acc import exception
from os_acc.claims import holder
from os_acc.deadlines import waiting
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import open_files
from os_acc.kernel import pci
from os_acc.kinds.npu import entry as npu_entry
from os_acc.kinds.npu import facts as npu_facts
from os_acc.kinds.npu import names as npu_names
from os_acc.kinds.npu import rules as npu_rules
from os_acc.privileged import arguments
from os_acc.privileged import cleaning
from os_acc.privileged import context
from os_acc.privileged import device_users
from os_acc.privileged import file_owners
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import operation_lock
from os_acc.privileged import store
from os_acc.privileged import undo_log
from os_acc.privileged.kernel import vfio_binding
from os_acc.refusals import refusals


@dataclasses.dataclass(frozen=True)
class Reset:
    """An NPU whose driver is being unbound and bound again.

    :ivar ids: vendor:product
    :ivar driver: the kernel driver
    """

    ids: str
    driver: str


resets = undo_log.Records('npu-resets', Reset)

LOG = logging.getLogger(__name__)


@context.entry
def take(address: str, files: Sequence[Sequence[Any]], seconds: float) -> None:
    """Note that a VAN has an NPU, and give its files to their owner.

    It succeeds if the VAN has the NPU already.

    :param files: the files that the caller has seen: path, type, major and
        minor number of each
    :raises DeviceNotFound: if device_spec does not offer it
    :raises DeviceBusy: if a VAN or a process has it, or its files are not
        what the caller has seen
    """
    arguments.there(address)
    seconds = arguments.seconds(seconds)

    def act(deadline: waiting.Deadline) -> None:
        _complete_reset(address, deadline.left())
        _take(pci.get(address), files, deadline)

    lock = functools.partial(operation_lock.named, address)
    what = f'{npu_rules.label(address)} to be assigned'
    operation_lock.within(lock, seconds, what, act)


def _take(
    function: pci.Function,
    seen: Sequence[Sequence[Any]],
    deadline: waiting.Deadline,
) -> None:
    name = npu_names.name_of(function.address)
    notes.check_noted(notes.FILE, name)
    if is_of_an_earlier_van(function):
        _check_unused(function)
        _reset(function.address, deadline)
        forget(function.address, notes.Cleaned.EARLIER)
        function = pci.get(function.address)
    settings = settings_of(function)
    held = is_given(function)
    for obstacle in npu_rules.obstacles(
        function, settings, held=held, as_root=True
    ):
        raise obstacle.error()
    nodes = npu_facts.nodes_of(function.address)
    _check_same(function, nodes, seen)
    _check_unused(function)
    settings = settings or npu_entry.Npu()
    note(function, settings, [each.file for each in nodes])
    owner = file_owners.Owner(settings.owner, settings.group, settings.mode)
    for node in nodes:
        file_owners.give(node, name, owner)
    # A process that opened a file before its owner was changed keeps it.
    try:
        _check_unused(function)
    except exception.DeviceBusy:
        file_owners.restore(name)
        if not held:
            forget(function.address, notes.Cleaned.NEVER_GIVEN)
        raise


def _check_same(
    function: pci.Function,
    nodes: Sequence[device_files.Node],
    seen: Sequence[Sequence[Any]],
) -> None:
    there = [[each.path, *each.number] for each in nodes]
    if not there or there != [list(each) for each in seen]:
        raise exception.DeviceBusy(
            device=npu_rules.label(function.address),
            reason='its files, or their numbers, have changed since they were '
            'checked',
        )


def _check_unused(function: pci.Function) -> None:
    """Check that nobody uses the function, by whatever file of it."""
    if users := device_users.open_by([function]):
        raise exception.DeviceBusy(
            device=npu_rules.label(function.address),
            reason=refusals.opened(users).text,
        )


@context.entry
@notes.undoes_own(returns=list[str]())
def give_back(
    address: str, instance_uuid: str, release_seconds: float, seconds: float
) -> list[str]:
    """Clean and reset an NPU, restore its files and delete the note.

    It does nothing if no VAN has the NPU. device_spec need not offer it any
    more: the note says who has it. A function that is gone is left alone, and
    so is another one that has its address now.

    :param address: of the PCI function, which need not be there
    :returns: a clause for each file that keeps what somebody else has set
    :raises DeviceBusy: if another VAN has it, or a process has it open
    :raises DeviceError: if the device does not come back. The VAN keeps it
    """
    pci.directory(address)  # it checks the address
    arguments.uuid(instance_uuid)
    name = npu_names.name_of(address)
    noted = notes.any_of(notes.FILE, name)
    notes.check_noted(notes.FILE, name)
    seconds = arguments.seconds(seconds)
    release_seconds = arguments.seconds(release_seconds)
    if noted is None:
        file_owners.restore(name)
        return []

    def wait(most: float) -> None:
        device_users.until_closed(
            npu_rules.label(address),
            lambda: _users(address, name, instance_uuid),
            most,
        )

    wait(release_seconds)
    deadline = waiting.Deadline(seconds)
    with operation_lock.named(address, deadline.left(0.5)) as lock:
        cleaned = _clean(address)

        def act() -> list[str]:
            left = file_owners.restore(name)
            # A process that opened it since the first check keeps it.
            wait(0.0)
            if cleaned is not notes.Cleaned.GONE:
                _reset(address, deadline)
            forget(address, cleaned)
            return left

        what = f'{npu_rules.label(address)} to be returned'
        return operation_lock.at_most(lock, act, seconds, what)


def _users(address: str, name: str, instance_uuid: str) -> list[str]:
    """Who has the NPU open: by its files now, or by those that were given."""
    function = pci.find(address)
    found, there = [], set()
    if function is not None:
        there = {each.number for each in npu_facts.files_of(address)}
        found = device_users.find(function, instance_uuid, False)
    given = [
        e for e in file_owners.changed_files(name) if e.number not in there
    ]
    return found + (open_files.users_of(given) if given else [])


def _clean(address: str) -> notes.Cleaned:
    """Run the operator's command on an NPU that is closed.

    :returns: GONE if the VAN's device is not there any more
    """
    function = pci.find(address)
    noted = notes.any_of(notes.FILE, npu_names.name_of(address))
    if function is None or noted is None or not noted.may_be(function.ids):
        return notes.Cleaned.GONE
    return cleaning.run_command(address)


def _reset(address: str, deadline: waiting.Deadline) -> None:
    """Let the driver start the device anew."""
    before, now = driver_of(address), pci.driver_of(address)
    if before and now not in (None, before):
        # Somebody else has bound it to another driver, and has it now.
        LOG.warning('NPU %s is not reset: %s has it', address, now)
        return
    driver = before or now
    if driver is None:
        raise exception.DeviceError(
            device=npu_rules.label(address),
            reason='it is bound to no driver, and its note does not '
            'name its earlier driver: bind it, and run os-acc recover',
        )
    _restart(pci.get(address), driver, deadline.left())


def _restart(function: pci.Function, driver: str, seconds: float) -> None:
    """Reset a function that nobody has open, and wait until it is back.

    Its files may have other numbers then.
    """
    address = function.address
    end = waiting.Deadline(seconds)
    resets.write(address, Reset(function.ids, driver))
    try:
        vfio_binding.rebind(address, driver, end.left())
        waiting.until(
            lambda: npu_facts.nodes_of(address),
            end.left(),
            f'the device file of {npu_rules.label(address)}',
            npu_facts.CLASS,
        )
    except exception.Timeout as err:
        raise exception.DeviceError(
            device=npu_rules.label(address),
            reason=f'it was reset, and its kernel driver {driver} has not '
            f'created a file below /dev/accel again ({err}). Check the kernel '
            'log (dmesg); after its firmware or the host was reset, run '
            'os-acc recover',
        ) from err
    resets.delete(address)
    LOG.info('NPU %s is reset', address)


def _complete_reset(address: str, seconds: float) -> None:
    """Complete a reset that was interrupted."""
    known = resets.read(address)
    if known is None:
        return
    function = pci.find(address)
    if (
        function is not None
        and function.ids == known.ids
        and function.driver in (None, known.driver)
    ):
        # It may be back by now, and in use.
        _check_unused(function)
        _restart(function, known.driver, seconds)
    else:
        resets.delete(address)  # it is another device by now


# Which VAN has which NPU, by the notes. A note has the kind of device files.
# Its name, which no other kind has, tells os_acc.claims that the VAN has the
# whole PCI function.


def _wire(value: object) -> list[str] | None:
    return value if isinstance(value, list) else None


@dataclasses.dataclass(frozen=True)
class Npu(store.Said):
    """The note of an NPU.

    :ivar driver: its kernel driver when it was given out; None: unknown
    :ivar settings: to whom its files belong
    :ivar holder: who has it, see claims.holder.Holder.to_wire()
    """

    driver: str | None = None
    settings: Annotated[npu_entry.Npu | None, npu_entry.of_note] = None
    holder: Annotated[list[str] | None, _wire] = None


def find(address: str, ids: str | None = None) -> Npu | None:
    """The note of an NPU; None if no VAN has it.

    :param ids: of the function; None: of whatever was at the address
    """
    return notes.said(Npu, notes.FILE, npu_names.name_of(address), ids)


def is_given(function: pci.Function) -> bool:
    """Whether a VAN already has an NPU.

    A note of another device that had the address does not count.
    """
    return find(function.address, function.ids) is not None


def has(van: str, function: pci.Function) -> bool:
    """Whether a VAN has an NPU."""
    known = find(function.address, function.ids)
    return known is not None and (known.holder or [])[3:] == [van]


def is_of_an_earlier_van(function: pci.Function) -> bool:
    """Whether an NPU was given to a VAN that has not given it back.

    The journal may have lost that VAN, or forgotten it.
    """
    known, who = find(function.address), holder.current()
    if known is None or known.holder is None or who is None:
        return False
    return known.holder[2:] != [who.instance, who.van]


def settings_of(function: pci.Function) -> npu_entry.Npu | None:
    """To whom its files belong: as it was given out, or by device_spec.

    :returns: None if it is not offered, and no VAN has it
    """
    known = find(function.address, function.ids)
    if known is not None and known.settings is not None:
        return known.settings
    return npu_rules.settings_of(offers.specs().find(function))


def note(
    function: pci.Function,
    settings: npu_entry.Npu,
    files: Iterable[device_files.DeviceFile],
) -> None:
    """Note that a VAN has an NPU."""
    places = [file_place.of(each.number).name for each in files]
    notes.note(
        notes.FILE,
        npu_names.name_of(function.address),
        function.ids,
        parent=function.address,
        files=places,
        within=[function.address],
        driver=function.driver,
        settings=dataclasses.asdict(settings),
    )


def driver_of(address: str) -> str:
    """The kernel driver that an NPU had when it was given out; '': unknown."""
    known = find(address)
    return '' if known is None else known.driver or ''


def forget(address: str, cleaned: notes.Cleaned) -> None:
    """Delete the note of an NPU."""
    notes.forget(notes.FILE, npu_names.name_of(address), cleaned)
