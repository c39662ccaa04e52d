# SPDX-License-Identifier: Apache-2.0

"""The devices that os-acc apply sets up ahead of time, and who uses them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from os_acc import exception
from os_acc import health
from os_acc import host as host_module
from os_acc.claims import allocated
from os_acc.claims import vans
from os_acc.desired import documents
from os_acc.journal import desired as rows
from os_acc.kernel import sysfs


class Devices(NamedTuple):
    """The devices of one part of a document, by name: see rows.Desired.

    :ivar wanted: those of the document
    :ivar earlier: those of the document before: what is not wanted is undone
    :ivar done: those of them that are known to be set up, in this boot
    """

    wanted: list[str]
    earlier: list[str]
    done: list[str]


def compare(
    part: str, document: documents.Document, before: rows.Desired | None
) -> Devices:
    """Compare a document with the one before.

    :param part: of the document: partitions, vgpus, work_queues or mdevs
    """
    wanted = rows.devices_in(document.as_object(), part)
    if before is None:
        return Devices(wanted, [], [])
    earlier = before.devices_of(part)
    done = earlier if before.settled == sysfs.boot_id() else []
    return Devices(wanted, earlier, done)


def holders(host: host_module.Host) -> allocated.Holders:
    """Who has which handle, and which devices have failed."""
    return allocated.Holders(
        host.journal.handles(), unhealthy=health.View(host.journal)
    )


def clauses(found: Iterable[vans.Holder]) -> list[str]:
    """Say which VANs have devices, a clause for each."""
    return [
        f'instance {each.called} has {each.handle} (VAN {each.van_uuid})'
        for each in found
    ]


def refuse(device: str, users: Sequence[str]) -> None:
    """:raises DeviceBusy: if somebody uses a device"""
    if users:
        raise exception.DeviceBusy(device=device, reason='; '.join(users))
