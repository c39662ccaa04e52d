# SPDX-License-Identifier: Apache-2.0

"""The repair of Nova's fixture CellDatabases, see nova_cell_lock.py."""

from __future__ import annotations

import threading
import time

from nova import test
from nova.tests import fixtures as nova_fixtures

from operations import base  # noqa: F401  it makes the repair


class CellLockTest(test.NoDBTestCase):
    def test_a_reader_passes_a_writer_that_waits(self) -> None:
        lock = nova_fixtures.ReaderWriterLock()
        wrote, read = threading.Event(), threading.Event()

        def write() -> None:
            with lock.write_lock():
                wrote.set()

        def read_too() -> None:
            with lock.read_lock():
                read.set()

        with lock.read_lock():
            threading.Thread(target=write, daemon=True).start()
            time.sleep(0.2)
            threading.Thread(target=read_too, daemon=True).start()
            self.assertTrue(read.wait(60))
            self.assertFalse(wrote.is_set())
        self.assertTrue(wrote.wait(60))
