# SPDX-License-Identifier: Apache-2.0

"""What a work queue of Intel DSA or IAA claims."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import facts
from os_acc.claims import identities
from os_acc.claims import meeting
from os_acc.claims import nodes
from os_acc.claims import resource
from os_acc.kinds.idxd import names as idxd_names
from os_acc.kinds.idxd import refusals as idxd_refusals
from os_acc.refusals import reasons

Relation = meeting.Relation

# The driver idxd sets up all queues of a device together.
_OS_ACC = 'os-acc'


def is_queue(name: str) -> bool:
    """Whether a DeviceFileHandle of a name is a work queue."""
    return idxd_names.split(name) is not None


def claims(
    row: facts.Row, name: str, known: facts.Facts
) -> Iterator[resource.Claim]:
    """Claim the queue, and the setting up of its device if it is to come."""
    address, number = idxd_names.parse(name)
    if row.device is None:
        return
    queue = nodes.queue(known, address, number)
    yield from resource.claims_of(queue, resource.EXCLUSIVE, row.van_uuid)
    if not known.is_set_up(address):
        yield resource.Claim(
            nodes.setting_up(address), resource.EXCLUSIVE, _OS_ACC
        )
    for each in row.numbers:
        yield resource.Claim(nodes.number(each), resource.EXCLUSIVE, name)


def why(met: meeting.Meeting) -> reasons.Reason:
    """Say why a work queue cannot be given out. See of_handle.why()."""
    other = met.other
    if met.relation is Relation.IN:
        return met.taken('it')
    if met.relation is Relation.NUMBER:
        return met.number()
    queue = idxd_names.of_file(identities.file_in(other.handle) or '')
    if queue is not None:
        return idxd_refusals.FILE_GIVEN.say(
            who=f'instance {other.instance_uuid} (VAN {other.van_uuid})',
            number=queue[1],
        )
    return met.common()
