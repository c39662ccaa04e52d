# SPDX-License-Identifier: Apache-2.0

"""Checks the entries of device_spec: what each of them offers."""

from __future__ import annotations

from collections.abc import Iterator
import json

from os_acc import exception
from os_acc import finding
from os_acc import host as host_module
from os_acc import journal as journal_module
from os_acc.availability import nothing_offered
from os_acc.claims import allocated
from os_acc.kernel import pci_scan
from os_acc.kinds.devfile import groups as file_groups
from os_acc.refusals import reasons
from os_acc.spec import device_spec
from os_acc.spec import entry

SUBJECT = 'device_spec'

# It cannot work before the operator has changed something.
_ERRORS = (
    reasons.Category.UNSUITABLE,
    reasons.Category.UNHEALTHY,
    reasons.Category.NO_IOMMU_GROUP,
)


def findings(host: host_module.Host) -> Iterator[finding.Finding]:
    """Report the entries that offer nothing, or that name a place only.

    If device_spec cannot be read, report only that.
    """
    specs = device_spec.load_for_vans(host.conf)
    if isinstance(specs, device_spec.Unreadable):
        yield finding.Finding(
            SUBJECT,
            finding.ERROR,
            exception.describe(specs.error),
            'correct this entry; until then no device is offered',
        )
        return
    for each in nothing_offered.find(specs, holders(host.journal)):
        yield _finding(each)
    for spec in specs.entries:
        yield from _place(spec)
        yield from _denied(spec, specs)


def holders(journal: journal_module.Journal) -> allocated.Holders:
    """The VANs that have devices; none if the journal cannot be read."""
    try:
        return allocated.Holders(
            journal.handles(),
            set_up=lambda: journal.devices_of('work_queues'),
        )
    except exception.JournalError:
        return allocated.Holders()


def _finding(each: nothing_offered.Nothing) -> finding.Finding:
    found = each.obstacle
    text = found.text
    if found.device != each.spec.source:
        text = f'{each.spec.source} offers nothing of it: {text}'
    return finding.Finding(
        found.device,
        finding.ERROR if found.category in _ERRORS else finding.WARNING,
        text,
        found.remedy,
    )


def _denied(
    spec: device_spec.Spec, specs: device_spec.Specs
) -> Iterator[finding.Finding]:
    """Say that an entry denies another device than it was written for."""
    address = spec.address.complete
    if spec.was is None or address is None:
        return
    now = ':'.join(entry.ids_of(address).values())
    if now == spec.was:
        return
    offered = [
        each.address
        for each in pci_scan.functions()
        if each.ids == spec.was and specs.find(each) is not None
    ]
    where = f'; {spec.was} is offered at {", ".join(offered)}'
    yield finding.Finding(
        spec.source,
        finding.WARNING,
        f'it was written to deny {spec.was}, and {now or "no device"} is at '
        f'{address} now{where if offered else ""}',
        'find out where the device is now, deny it there, and run os-acc '
        f'device allow {address} if the present device may be offered',
    )


def _place(spec: device_spec.Spec) -> Iterator[finding.Finding]:
    """Remark on an entry that offers whatever device is at a place."""
    if spec.deny or spec.vendor_id is not None or spec.product_id is not None:
        return
    address = spec.address.complete
    if address is not None:
        ids = entry.ids_of(address)
        if not ids:
            return  # no device is there
        place = f'{address}, where {":".join(ids.values())} is now'
        keys = json.dumps(ids).strip('{}')
    elif spec.devname is not None or (
        spec.address.fields and not spec.address.is_open
    ):
        place = spec.devname or 'some addresses'
        keys = '"vendor_id" and "product_id"'
    elif (path := _numbered(spec)) is not None:
        place = path
        keys = '"vendor_id" and "product_id"'
    else:
        return
    yield finding.Finding(
        spec.source,
        finding.OK,
        f'it names whatever is at {place}, which is another device once a '
        'card is added or moved',
        f'add {keys} to it',
    )


def _numbered(spec: device_spec.Spec) -> str | None:
    """A file that an entry names without a glob, of a PCI function.

    The kernel numbers such files in the order in which it finds the devices.
    """
    for path in spec.devices:
        if set(path) & set('*?['):
            continue
        place = file_groups.place_of(path)
        if place is not None and place.function is not None:
            return path
    return None
