# SPDX-License-Identifier: Apache-2.0

"""What a work queue of Intel DSA or IAA claims."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import nodes
from os_acc.kinds.idxd import names as idxd_names

# The driver idxd sets up all queues of a device together.
_OS_ACC = 'os-acc'


def claims(
    row: facts.Row, name: str, known: facts.Facts
) -> Iterator[conflict.Claim]:
    """Claim the queue, and the setup of its device if it is not set up yet."""
    address, number = idxd_names.parse(name)
    if row.device is None:
        return
    queue = nodes.queue(known, address, number)
    yield from conflict.claims_of(queue, conflict.EXCLUSIVE, row.van_uuid)
    if not known.is_set_up(address):
        yield conflict.Claim(
            nodes.setting_up(address), conflict.EXCLUSIVE, _OS_ACC
        )
    for each in row.numbers:
        yield conflict.Claim(nodes.number(each), conflict.EXCLUSIVE, name)
