# SPDX-License-Identifier: Apache-2.0

"""What a DeviceFileHandle of an accelerator claims.

Several VANs may have files of one function, so a file shares the function. It
excludes whoever has the whole function, or a part of it that is not a file.
"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import nodes


def claims(
    row: facts.Row, name: str, share: str | None, known: facts.Facts
) -> Iterator[conflict.Claim]:
    """Claim the accelerator, the devices behind it, and its numbers.

    :param share: which share of it; None: it is not shared
    """
    mode = conflict.EXCLUSIVE if share is None else conflict.shared(row.most)
    yield conflict.Claim(nodes.device_file(name), mode, row.van_uuid)
    behind = known.files(name, row.numbers).union(row.noted)
    for wwn in (*behind.namespaces, *behind.in_namespaces):
        namespace = nodes.namespace(wwn)
        yield conflict.Claim(namespace, conflict.SHARED, row.van_uuid)
    for address in behind.functions:
        yield from nodes.of_whole(
            known, address, conflict.SHARED, row.van_uuid
        )
    for uuid in behind.mdevs:
        yield from _mdev(row, uuid, known)
    if row.device is not None:
        yield from _queues(row, behind, known)
        yield from _functions(row, behind, known)
        yield from _numbers(row, name, behind)


def _mdev(
    row: facts.Row, uuid: str, known: facts.Facts
) -> Iterator[conflict.Claim]:
    """Share a mediated device, which is a part of its parent."""
    parent = row.device and (known.mdev_parent(uuid) or row.device)
    device = nodes.mdev(known, uuid, parent)
    yield from conflict.claims_of(device, conflict.SHARED, row.van_uuid)
    if parent is not None:
        yield from nodes.of_chip(known, parent, row.instance_uuid, whole=False)


def _queues(
    row: facts.Row, behind: facts.Files, known: facts.Facts
) -> Iterator[conflict.Claim]:
    """Share the work queues that the files stand for."""
    for address, number in behind.queues:
        queue = nodes.queue(known, address, number)
        yield from conflict.claims_of(queue, conflict.SHARED, row.van_uuid)
        if not known.is_set_up(address):
            # Whoever made the file sets the device up.
            yield conflict.Claim(
                nodes.setting_up(address), conflict.PART, row.van_uuid
            )


def _functions(
    row: facts.Row, behind: facts.Files, known: facts.Facts
) -> Iterator[conflict.Claim]:
    """Share the functions to which the files give more than a work queue."""
    of_queues = {address for address, _ in behind.queues}
    instance = row.instance_uuid
    for address in behind.functions:
        function = nodes.function(known, address, row.device)
        if address not in of_queues:
            yield from conflict.claims_of(function, conflict.SHARED, instance)
        pf = nodes.pf_of(known, address, row.device)
        if pf != address:
            # Also against a VAN that only asks for the PF of a VF
            yield from nodes.of_whole(known, pf, conflict.SHARED, row.van_uuid)
        yield from nodes.of_group(known, address, conflict.SHARED, instance)
        yield from nodes.of_chip(
            known, address, instance, whole=True, pf=row.device
        )


def _numbers(
    row: facts.Row, name: str, behind: facts.Files
) -> Iterator[conflict.Claim]:
    """Claim the numbers, and the devices that they stand for.

    VANs that share an accelerator have both in common.
    """
    for each in row.numbers:
        yield conflict.Claim(nodes.number(each), conflict.EXCLUSIVE, name)
    for each in behind.places:
        yield conflict.Claim(nodes.place(each), conflict.EXCLUSIVE, name)
    for each in behind.around:
        yield conflict.Claim(nodes.place(each), conflict.PART, name)
    for wwn in behind.namespaces:
        yield conflict.Claim(nodes.disk(wwn), conflict.EXCLUSIVE, name)
    for wwn in behind.in_namespaces:
        yield conflict.Claim(nodes.disk(wwn), conflict.PART, name)
