# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""A journal that is read from a copy: what the copy has, and who removes it.

sqlite cannot make its files beside the journal on a read-only file system.
"""

import os
import shutil
import sqlite3
import tempfile

import pytest

from os_acc import exception
from os_acc import journal
from os_acc.journal import copies
from os_acc.journal import database
from os_acc.journal import health

SICK = health.Health('dev0', 'cause', 'gone', 'boot', '2026-01-02')


@pytest.fixture
def state_path(tmp_path, monkeypatch):
    """A journal with a row in its write-ahead log, on a read-only disk."""
    path = tmp_path / 'state'
    writer = journal.Journal(str(path), 5)
    writer.save_unhealthy(SICK)
    statvfs, connect = os.statvfs, sqlite3.connect

    def read_only(name):
        found = list(statvfs(name))
        if str(name) == str(path):
            found[8] |= os.ST_RDONLY
        return os.statvfs_result(found)

    def refuse(name, *args, **kwargs):
        if str(path) in str(name):
            raise sqlite3.OperationalError('unable to open database file')
        return connect(name, *args, **kwargs)

    monkeypatch.setattr(os, 'statvfs', read_only)
    monkeypatch.setattr(database.sqlite3, 'connect', refuse)
    yield path
    writer.close()


def look(state_path):
    return journal.Journal(str(state_path), 5, read_only=True)


def folders(found):
    return [name for name in found if name.startswith('os-acc-journal-')]


def test_the_copy_has_what_was_written_last(state_path):
    assert (state_path / 'journal.db-wal').stat().st_size > 0
    opened = look(state_path)
    assert opened.unhealthy() == opened.unhealthy() == [SICK]
    assert opened.copied.endswith('is mounted read-only')
    assert opened.path == str(state_path / 'journal.db')
    opened.close()
    with pytest.raises(exception.JournalError, match='it is closed'):
        opened.unhealthy()


def test_the_copy_is_for_this_user_alone_and_is_removed(state_path):
    path = str(state_path / 'journal.db')
    copy = copies.Copy(path)
    assert os.stat(copy.state_path).st_mode & 0o777 == 0o700
    copy.remove()
    assert not os.path.exists(copy.state_path)
    copy = copies.Copy(path)
    folder = copy.state_path
    del copy
    assert not os.path.exists(folder)


def test_a_child_leaves_the_copy_to_its_parent(state_path, monkeypatch):
    copy = copies.Copy(str(state_path / 'journal.db'))
    with monkeypatch.context() as patch:
        patch.setattr(os, 'getpid', lambda: -1)
        copy.remove()
    assert os.path.exists(copy.state_path)
    shutil.rmtree(copy.state_path)


def test_a_copy_while_somebody_writes_is_made_again(state_path, monkeypatch):
    copyfile, copied = shutil.copyfile, []

    def copy(source, target):
        copyfile(source, target)
        copied.append(source)
        if len(copied) == 1:
            os.utime(source, ns=(1, 1))

    monkeypatch.setattr(shutil, 'copyfile', copy)
    opened = look(state_path)
    assert opened.unhealthy() == [SICK]
    opened.close()
    assert len(copied) == 4


def test_somebody_writes_all_the_time(state_path, monkeypatch):
    copyfile, copied = shutil.copyfile, []

    def copy(source, target):
        copyfile(source, target)
        copied.append(source)
        os.utime(source, ns=(1, len(copied)))

    monkeypatch.setattr(shutil, 'copyfile', copy)
    opened = look(state_path)
    # sqlite checks what it reads.
    assert opened.unhealthy() == [SICK]
    opened.close()
    assert len(copied) == 20


def test_no_copy_can_be_made(state_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(tempfile, 'mkdtemp', full)
    opened = look(state_path)
    with pytest.raises(exception.JournalError) as caught:
        opened.unhealthy()
    text = str(caught.value)
    assert 'unable to open database file' in text
    assert 'is mounted read-only' in text


def test_a_copy_that_is_damaged_is_an_error(state_path):
    (state_path / 'journal.db').write_bytes(b'no journal at all')
    (state_path / 'journal.db-wal').unlink()
    with pytest.raises(exception.JournalError, match='it is damaged'):
        look(state_path).unhealthy()
