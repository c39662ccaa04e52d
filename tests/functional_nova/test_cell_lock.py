# SPDX-License-Identifier: Apache-2.0

"""The repair of Nova's fixture CellDatabases, see nova_cell_lock.py."""

from __future__ import annotations

import threading
import time

from nova.tests import fixtures as nova_fixtures
import nova_cell_lock
import pytest


@pytest.fixture
def lock(monkeypatch):
    # monkeypatch takes the repair back at the end.
    monkeypatch.setattr(
        nova_fixtures.ReaderWriterLock,
        'has_pending_writers',
        nova_fixtures.ReaderWriterLock.has_pending_writers,
    )
    nova_cell_lock.repair()
    return nova_fixtures.ReaderWriterLock()


def test_a_reader_passes_a_writer_that_waits(lock):
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
        assert read.wait(60)
        assert not wrote.is_set()
    assert wrote.wait(60)
