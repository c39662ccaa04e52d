# SPDX-License-Identifier: Apache-2.0

"""Settles a migration whose caller has died, by where the guest runs.

Each host asks its own hypervisor. An answer that is missing decides nothing,
and neither does one that leaves open what the other host says. An operator
then decides.
"""

from __future__ import annotations

from collections.abc import Sequence
import logging

from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import log
from os_acc import objects
from os_acc.attach import guests
from os_acc.attach import steps
from os_acc.moving import moves
from os_acc.objects import van as states

LOG = logging.getLogger(__name__)


def settle(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
    settled: list[objects.VAN],
) -> list[journal.Entry]:
    """Settle the VANs of an instance that is being moved.

    :param settled: gets those that are assigned to the instance
    :returns: those that the caller has to release
    """
    if not entries or not moves.has_expired(host, entries):
        return []
    incoming = entries[0].van.state == states.INCOMING
    logger = log.about(LOG, entries[0].van.instance_uuid)
    try:
        if guests.runs(host, entries):
            if incoming:
                moves.make_theirs(
                    host, entries, step, live=moves.can_attach(host, entries)
                )
            else:
                moves.take_back(host, entries, step)
            settled += [entry.van for entry in entries]
            return []
        if incoming and guests.exists(host, entries) is False:
            logger.warning('its migration to this host is aborted')
            return list(entries)
    except Exception as err:
        logger.error('migration not settled: %s', exception.describe(err))
        return []
    logger.warning(
        'a migration waits for its caller or for os-acc migration finish or '
        'abort'
    )
    return []
