# SPDX-License-Identifier: Apache-2.0

"""Devices that are reserved: who may have them.

A document of os-acc apply reserves some, and a device of one_time_use is
reserved once an instance has had it. Both are in the journal. One rule for all
kinds. It is checked before a VAN is given a device (attach), before a device
is programmed for a VAN (programming), and by the dry run, the report of
devices and the doctor. A VAN keeps what it has.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
import dataclasses
import json

from os_acc import exception
from os_acc import journal as journal_module
from os_acc import objects
from os_acc.kernel import file_place
from os_acc.refusals import reasons
from os_acc.refusals import refusals
from os_acc.refusals import report_refusals
from os_acc.texts import forms

#: The region of a VAN until its driver has set it. Until then, only what
#: reserves the whole device counts. No region has this name.
NOT_YET = '(not yet)'


@dataclasses.dataclass(frozen=True)
class Reserved:
    """A device that only some requests get. See read().

    :ivar device: its address, or that of an attach handle of it
    :ivar region: empty: the whole device
    :ivar function: only requests for this function get it; None: any
    :ivar project: only instances of this project get it; None: any
    :ivar ahead_of_time: it is not programmed for an instance
    :ivar used: nobody gets it, because one_time_use is set, and this instance
        had it; None: see the others
    """

    device: str
    region: str = ''
    function: str | None = None
    project: str | None = None
    ahead_of_time: bool = False
    used: str | None = None

    @property
    def label(self) -> str:
        return f'{self.device} {self.region}'.strip()

    @property
    def text(self) -> str:
        """Who may have it."""
        return ', '.join(
            [f'only for the function {self.function}'] * bool(self.function)
            + [f'only for the project {self.project}'] * bool(self.project)
            + ['programmed ahead of time only'] * self.ahead_of_time
            + ([] if self.used is None else [self.used])
        )

    def is_about(self, addresses: Collection[str], region: str | None) -> bool:
        """Whether it reserves a device, or a part of it.

        A reservation stays if an AMD GPU gets another mode: it is about the
        whole GPU and about its partitions then.

        :param addresses: as names()
        :param region: None or empty: the whole device
        """
        if self.region and region and self.region != region:
            return False
        return any(file_place.overlap(self.device, a) for a in addresses)

    def refuses_function(self, function: str | None) -> reasons.Reason | None:
        """Say why a request for a function does not get it."""
        if self.function is None or (
            function and forms.same_function(function, self.function)
        ):
            return None
        return report_refusals.FOR_FUNCTION.reason(
            function=self.function, wanted=function or 'none'
        )


def read(journal: journal_module.Journal) -> list[Reserved]:
    """Return what the document in the journal reserves.

    :raises InvalidRequest: if a later version of os-acc has written it
    """
    known = journal.desired()
    if known is None:
        return []
    found = json.loads(known.document).get('reserved', ())
    try:
        return [Reserved(**each) for each in found]
    except TypeError as err:
        raise exception.InvalidRequest(
            subject='the document of os-acc apply in the journal',
            field='reserved',
            value=found,
            expected='what this version of os-acc knows; apply a document '
            'again',
        ) from err


def for_vans(journal: journal_module.Journal) -> list[Reserved]:
    """Return what counts before a VAN is given a device.

    That is what read() returns, and the devices of one_time_use that an
    instance has had.

    :raises InvalidRequest: as read()
    """
    return read(journal) + [
        Reserved(each.address, used=each.reason)
        for each in journal.reservations()
    ]


def names(device: str | None, handle: objects.AttachHandle | None) -> set[str]:
    """The addresses of a device and of an attach handle of it."""
    found = {device or ''}
    if handle is not None:
        found.add(handle.identity.partition('/')[2])
    return found


def text(
    reservations: Iterable[Reserved],
    addresses: Collection[str],
    region: str | None,
) -> str | None:
    """Who may have a device, as Reserved.text; None: everybody."""
    found = [e.text for e in reservations if e.is_about(addresses, region)]
    return '; '.join(found) or None


def check(
    reservations: Iterable[Reserved],
    addresses: Collection[str],
    region: str | None,
    function: str | None,
    project: str | None,
) -> None:
    """Check that a request of an instance may have a device.

    :param reservations: as for_vans(); a plug reads them once
    :raises DeviceBusy: if it is reserved for others
    """
    for each in reservations:
        if not each.is_about(addresses, region):
            continue
        reason = each.refuses_function(function)
        if reason is None and each.project not in (None, project):
            reason = report_refusals.FOR_PROJECT.reason(
                project=each.project, wanted=project or 'none'
            )
        if each.used is not None:
            reason = refusals.RESERVED.reason(
                reason=each.used, address=each.device
            )
        if reason is not None:
            raise exception.DeviceBusy(device=each.label, reason=reason.text)


def check_programming(
    reservations: Iterable[Reserved],
    addresses: Collection[str],
    region: str | None,
    function: str | None,
) -> None:
    """Check that a device may be programmed for an instance.

    Programming gives all handles the same function, also those
    that the instance does not get.

    :param addresses: as names(), with those of all handles
    :param function: the function that it would then have; None: unknown
    :raises DeviceBusy: if it is programmed ahead of time only, or if a handle
        of it is reserved for another function
    """
    for each in reservations:
        if not each.is_about(addresses, region):
            continue
        reason = each.refuses_function(function)
        if each.ahead_of_time:
            reason = report_refusals.AHEAD.reason()
        if reason is not None:
            raise exception.DeviceBusy(device=each.label, reason=reason.text)
