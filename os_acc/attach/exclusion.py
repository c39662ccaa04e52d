# SPDX-License-Identifier: Apache-2.0

"""Which VANs of the journal keep a device from others, for every driver.

A driver checks the devices of its own kind by itself, and says best why one
cannot be taken. What it leaves out is refused here, by the one rule of
os_acc.claims: before a VAN is given a device, and in reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import functools
import threading

from oslo_config import cfg

from os_acc import exception
from os_acc import journal as journal_module
from os_acc import objects
from os_acc.claims import allocated
from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import nodes
from os_acc.claims import of_handle
from os_acc.claims import reader
from os_acc.drivers import given_files
from os_acc.kernel import device_file
from os_acc.kinds.devfile import groups as file_groups
from os_acc.kinds.devfile.driver import files
from os_acc.objects import device as device_objects
from os_acc.refusals import reasons
from os_acc.refusals import refusals
from os_acc.spec import device_spec

# The VANs that have or request a device, by their UUIDs.
_Held = dict[str, journal_module.Holder]


class Exclusion:
    """Who has what, and whom that excludes.

    What the journal says is read for each question. What is known of PCI
    functions is kept, so use one object for one call of os_acc only.

    :param journal: says who has what
    :param conf: has device_spec
    """

    def __init__(
        self, journal: journal_module.Journal, conf: cfg.ConfigOpts
    ) -> None:
        self._journal, self._conf = journal, conf
        self._mutex = threading.Lock()
        self._before: reader.Reader | None = None

    @functools.cached_property
    def _specs(self) -> device_spec.Specs:
        return device_spec.load_for_vans(self._conf)

    def check(self, van: objects.VAN) -> None:
        """Check that a VAN can have the handle and the device that are set.

        :param van: it is in the journal as it is now
        :raises DeviceBusy: if another VAN has what excludes it
        """
        handle = van.handle
        if handle is None or not of_handle.is_of_device(handle.identity):
            return
        with self._mutex:
            held = self._held()
            if held.keys() <= {van.uuid}:
                return
            row = facts.Row(
                handle.identity,
                van.device,
                van.uuid,
                van.instance_uuid,
                device_file.texts(
                    each.number for each in given_files.own_files(van)
                ),
            )
            rows = [*self._rows(held), row]
            known = self._reader(rows, self._before)
            self._before = known
            reason = next(_Now(held, rows, known).against(row), None)
        if reason is not None:
            raise exception.DeviceBusy(
                device=_label(handle), reason=reason.text
            )

    def show(self, devices: Iterable[objects.Device]) -> None:
        """Show that what VANs of other devices exclude is not free."""
        held = self._held()
        if not held:
            return
        now = _Now(held, self._rows(held), self._reader(None))
        accelerators = _Accelerators(self._specs)
        for device in devices:
            changed = False
            for each in device.handles:
                if each.state == device_objects.FREE:
                    changed |= _show(device, each, now, accelerators)
            for kind in device.mdev_types:
                row = _unused(f'mdev/of-{device.address}', device.address)
                if kind.available and any(now.against(row)):
                    kind.available, changed = 0, True
            if changed:
                counted = device.counted()
                device.handles_total, device.handles_free = counted

    def _held(self) -> _Held:
        return {
            each.van_uuid: each
            for each in self._journal.handles()
            if each.handle is not None and of_handle.is_of_device(each.handle)
        }

    def _rows(self, held: _Held) -> list[facts.Row]:
        vans = {}
        if any(allocated.file_in(each.handle) for each in held.values()):
            vans = {each.uuid: each for each in self._journal.vans()}
        return [
            facts.Row(
                each.handle or '',
                each.device,
                each.van_uuid,
                each.instance_uuid,
                files.claimed(vans[each.van_uuid], self._specs)
                if each.van_uuid in vans
                else (),
            )
            for each in held.values()
        ]

    def _reader(
        self,
        rows: Iterable[facts.Row] | None,
        before: reader.Reader | None = None,
    ) -> reader.Reader:
        programs = [each.device for each in self._journal.programs()]
        holders = allocated.Holders(programmed=programs)
        return reader.Reader(
            self._specs, holders.is_programmed, rows=rows, before=before
        )


class _Now:
    """Who excludes whom at one moment.

    :param held: the VANs that have something
    :param rows: the same, as claims have them
    """

    def __init__(
        self,
        held: _Held,
        rows: Iterable[facts.Row],
        known: reader.Reader,
    ) -> None:
        self._vans, self._rows, self._known = held, rows, known

    @functools.cached_property
    def _claims(self) -> conflict.Held:
        # Read when it is first needed: discovery asks only if a device is
        # free.
        return conflict.Held(
            of_handle.holding(each, self._known) for each in self._rows
        )

    def against(self, row: facts.Row) -> Iterator[reasons.Reason]:
        """Say why something cannot be given out."""
        wanted = of_handle.holding(row, self._known)
        for found in self._claims.conflicts(wanted):
            yield _reason(row, found, self._vans[found.holding.van_uuid])


class _Accelerators:
    """The numbers of the device files that device_spec names, by name."""

    def __init__(self, specs: device_spec.Specs) -> None:
        self._specs = specs

    @functools.cached_property
    def _files(self) -> Mapping[str, file_groups.Accelerator]:
        return {each.name: each for each in file_groups.read(self._specs)}

    def numbers(self, identity: str) -> tuple[str, ...]:
        """The numbers of the files of a handle."""
        name = allocated.file_in(identity)
        found = None if name is None else self._files.get(name)
        return device_file.texts(found.numbers) if found is not None else ()


def _show(
    device: objects.Device,
    handle: objects.DeviceHandleInfo,
    now: _Now,
    accelerators: _Accelerators,
) -> bool:
    """Show why a handle is not free, if it is not."""
    identity = handle.handle.identity
    numbers = accelerators.numbers(identity)
    for reason in now.against(_unused(identity, device.address, numbers)):
        handle.state = device_objects.USED
        handle.reason = reason.text
        return True
    return False


def _unused(
    handle: str, device: str, numbers: tuple[str, ...] = ()
) -> facts.Row:
    """What nobody has yet."""
    return facts.Row(handle, device, '', '', numbers)


def _reason(
    row: facts.Row, found: conflict.Conflict, other: journal_module.Holder
) -> reasons.Reason:
    said = {
        'instance': other.instance_uuid,
        'van': other.van_uuid,
        'what': other.handle,
    }
    if nodes.is_in_fpga(found.node):
        return refusals.CHIP_TAKEN.say(**said)
    if nodes.is_group(found.node):
        return refusals.GROUP_TAKEN.say(
            member=said.pop('what'), group=found.node.name, **said
        )
    return refusals.PART_TAKEN.say(of=nodes.text(found.node), **said)


def _label(handle: objects.AttachHandle) -> str:
    """What errors call a device."""
    kind, _, name = str(handle.identity).partition('/')
    if isinstance(handle, objects.DeviceFileHandle) and handle.files:
        name = handle.files[0].path
    known = {'pci': 'PCI function', 'mdev': 'mdev', 'file': 'device file'}
    return f'{known.get(kind, kind)} {name}'
