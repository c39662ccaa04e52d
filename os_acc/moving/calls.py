# SPDX-License-Identifier: Apache-2.0

"""One call of a migration on a host, and what it checks before it acts."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from typing import Any
from typing import NoReturn

from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import objects
from os_acc import progress
from os_acc.attach import failures
from os_acc.attach import guests
from os_acc.attach import plan
from os_acc.attach import recorder
from os_acc.attach import steps
from os_acc.journal import events
from os_acc.moving import plans

#: Why nothing is decided about a guest, as guests.stays() says.
UNDECIDED = (
    'its guest is paused on this host, or is being moved; wait for the end of '
    'that, or look at both hosts where it runs'
)


class Call:
    """One call of a migration."""

    def __init__(
        self,
        host: host_module.Host,
        instance_info: objects.InstanceInfo,
        migration_uuid: str,
    ) -> None:
        plan.check_instance(instance_info)
        self.instance: str = instance_info.uuid
        self.migration = plan.van_uuid(migration_uuid, 'migration_uuid')
        self.host, self._info = host, instance_info

    @contextlib.contextmanager
    def begun(
        self, operation: str, callback: progress.Callback | None
    ) -> Iterator[steps.Steps]:
        """Hold the lock of the instance, and record the call."""
        takes = operation in (events.PREPARE, events.SWITCH)
        cls = exception.PlugException if takes else exception.UnplugException
        with (
            failures.raised_as(cls, self.instance),
            recorder.recorded(self.host, operation, self._info) as record,
            self.host.locks.instance(self.instance),
        ):
            yield steps.Steps(self.host, record, callback)

    def entries(self) -> list[journal.Entry]:
        """The rows of the instance."""
        plan.check_readable(self.host, self.instance)
        return self.host.journal.entries(self.instance)

    def own(self) -> list[journal.Entry]:
        """The rows of the migration."""
        return [
            entry
            for entry in self.entries()
            if entry.van.migration_uuid == self.migration
        ]

    def check(self, entries: Iterable[journal.Entry], *expected: str) -> None:
        """Check that VANs are of this migration, and in one of the states."""
        for entry in entries:
            van = entry.van
            if (
                van.state not in expected
                or van.migration_uuid != self.migration
            ):
                by = van.migration_uuid
                self.refuse(
                    f'VAN {van.uuid} is {van.state}'
                    + (f' by migration {by}' if by else '')
                    + f', expected {expected[0]} by migration '
                    f'{self.migration}'
                )

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error of a call that changes nothing."""
        raise exception.MigrationConflict(
            instance=self.instance, reason=reason
        )


def check_left(
    call: Call, entries: Sequence[journal.Entry], instead: str
) -> None:
    """Check that no guest on this host has the VANs, or may yet get them."""
    stays = guests.stays(call.host, entries) if entries else False
    if stays:
        call.refuse(f'its guest runs on this host; {instead} it instead')
    if stays is None:
        call.refuse(UNDECIDED)


def planned(vans: Any) -> set[str] | None:
    """Read the UUIDs of the plan that the caller of hand_over() gives.

    :returns: in canonical form; None if it gives none
    """
    if vans is None:
        return None
    expected = 'the UUIDs of the plan'
    if isinstance(vans, str | bytes) or not isinstance(vans, Collection):
        raise exception.InvalidRequest(
            subject='os_acc.migration.hand_over',
            field='vans',
            value=vans,
            expected=expected,
        )
    return {plan.van_uuid(each, 'vans', expected) for each in vans}


def check_planned(
    call: Call, entries: Sequence[journal.Entry], expected: Collection[str]
) -> None:
    """Check that an instance has the VANs of the plan, and no others."""
    found = {entry.van.uuid for entry in entries}
    changes = (
        (found - set(expected), 'plugged'),
        (set(expected) - found, 'unplugged'),
    )
    said = [
        f'VAN {", ".join(sorted(uuids))} was {what}'
        for uuids, what in changes
        if uuids
    ]
    if said:
        call.refuse(
            f'{" and ".join(said)} since its move was planned; abort the '
            'migration, and begin again'
        )


def check_prepared(
    call: Call,
    entries: Sequence[journal.Entry],
    wanted: Sequence[objects.MigrationAccelerator],
    chosen: Sequence[objects.AcceleratorRequest],
) -> None:
    """Check that a repeated prepare asks for what is prepared."""
    found = {entry.van.uuid: entry for entry in entries}
    if found.keys() != {each.uuid for each in wanted}:
        call.refuse('it was prepared for other accelerators; abort it first')
    for each, request in zip(wanted, chosen, strict=True):
        entry = found[each.uuid]
        plan.check_same(request, entry.request)
        plans.check_prepared(each, entry.van)


def check_whole(entries: Sequence[journal.Entry]) -> None:
    """Check that incoming VANs are all that were prepared together.

    The guest is defined with all of them, and must not start with fewer.
    """
    prepared = {
        uuid for each in entries for uuid in each.van.migration_vans or ()
    }
    missing = prepared - {each.van.uuid for each in entries}
    if missing:
        raise exception.MigrationConflict(
            instance=entries[0].van.instance_uuid,
            reason=f'VAN {", ".join(sorted(missing))} was prepared for it on '
            'this host, and has been unplugged since; abort the migration, '
            'on this host first. If the guest runs on this host already, '
            'unplug its other VANs here, finish the migration on the source, '
            'and plug them again',
        )
