# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

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
