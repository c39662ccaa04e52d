# SPDX-License-Identifier: Apache-2.0

"""Writes events and what they add to the sums, within a transaction.

Events cost no commit of their own: they are in the commit that ends a call.
"""

from __future__ import annotations

from collections.abc import Sequence
import logging
import sqlite3

from os_acc.journal import events
from os_acc.journal import measures

LOG = logging.getLogger(__name__)


def write(
    db: sqlite3.Connection, program: str, found: Sequence[events.Event]
) -> None:
    """Write events, and add them to the sums.

    If this fails, the rest of the transaction goes on without the events.

    :param program: the program or service that this process is
    :raises sqlite3.Error: if sqlite has rolled back the whole transaction
    """
    db.execute('SAVEPOINT events')
    try:
        events.insert(db, program, found)
        measures.add(db, found)
    except Exception as err:
        if not db.in_transaction:
            raise
        db.execute('ROLLBACK TO events')
        LOG.warning('%d events are not written: %s', len(found), err)
    db.execute('RELEASE events')
