# SPDX-License-Identifier: Apache-2.0

"""A repair of Nova's fixture CellDatabases, which can wait forever.

Its lock lets no new reader in while a writer waits. A thread that reads may
call another host of the same test, whose thread must read too. If a third
thread, such as a periodic task, asks to write between the two, all three wait
for each other: the second for the third, the third for the first, the first
for the second. With this repair a new reader does not wait for a writer that
waits itself. See nova/tests/fixtures/nova.py and fasteners/lock.py.
"""

from __future__ import annotations

from nova.tests import fixtures as nova_fixtures


def repair() -> None:
    """Let readers of CellDatabases pass the writers that wait."""
    nova_fixtures.ReaderWriterLock.has_pending_writers = False
