# SPDX-License-Identifier: Apache-2.0

"""A state path for one user, and one that is shared with a group.

tests/functional/test_two_users.py has the tests with two users.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import time

import pytest

import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import locking
from os_acc.doctor import users
from os_acc.state import files as state_files
from os_acc.state import sharing


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def shared(tmp_path):
    """A directory that is shared with this process's own group."""
    directory = tmp_path / 'shared'
    directory.mkdir()
    directory.chmod(0o2770)
    return directory


def mode(path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.mark.parametrize(
    ('bits', 'expected'),
    [
        (0o2770, True),
        (0o2775, True),
        (0o770, False),
        (0o2750, False),
        (0o2777, False),
        (0o3770, False),
        (0o700, False),
    ],
)
def test_what_counts_as_shared(tmp_path, bits, expected):
    tmp_path.chmod(bits)
    gid = os.stat(tmp_path).st_gid
    assert state_files.group_of(str(tmp_path)) == (gid if expected else None)


def test_a_private_directory(tmp_path, umask):
    directory = tmp_path / 'a' / 'b'
    state_files.make_directory(str(directory))
    os.close(state_files.open_file(str(directory / 'x')))
    state_files.make_file(str(directory / 'y'))
    assert mode(directory) == mode(directory.parent) == 0o700
    assert mode(directory / 'y') == 0o600
    # open(2) applies the umask: it can only take permissions away.
    assert mode(directory / 'x') == 0o600 & ~umask
    assert sorted(os.listdir(directory)) == ['x', 'y']


def test_a_shared_directory(shared, umask):
    directory = shared / 'a' / 'b'
    state_files.make_directory(str(directory))
    state_files.make_directory(str(directory))
    os.close(state_files.open_file(str(directory / 'x')))
    state_files.make_file(str(directory / 'y'))
    state_files.make_file(str(directory / 'y'))
    fd, path = state_files.new_file(str(directory))
    os.close(fd)
    assert mode(directory) == mode(directory.parent) == 0o2770
    assert (
        mode(directory / 'x') == mode(directory / 'y') == mode(path) == 0o660
    )
    os.unlink(path)
    assert sorted(os.listdir(directory)) == ['x', 'y']
    assert os.listdir(shared) == ['a']


def test_a_journal_and_a_lock_in_a_shared_directory(shared, umask):
    opened = journal.Journal(str(shared / 'state'), 1)
    opened.vans()
    with locking.Locks(str(shared / 'state' / 'locks'), 1).device('x'):
        found = {
            path.name: mode(path) for path in (shared / 'state').rglob('*')
        }
    opened.close()
    assert found == {
        'journal.db': 0o660,
        'journal.db-wal': 0o660,
        'journal.db-shm': 0o660,
        'locks': 0o2770,
        'os-acc-device-x': 0o660,
    }


def test_a_link_is_not_followed(shared):
    target = shared.parent / 'target'
    target.write_text('')
    target.chmod(0o600)
    (shared / 'link').symlink_to(target)
    os.link(target, shared / 'name')
    for name in ('link', 'name', 'none'):
        state_files.repair(str(shared / name))
    assert mode(target) == 0o600
    with pytest.raises(OSError, match='symbolic links'):
        state_files.open_file(str(shared / 'link'))


def test_repair_and_making_drop_no_lock_of_this_process(shared):
    """Closing a file drops the locks that the process has on it."""
    path = str(shared / 'x')
    fd = state_files.open_file(path)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    state_files.repair(path)
    state_files.make_file(path)
    pid = os.fork()
    if pid == 0:
        other = os.open(path, os.O_RDWR)
        try:
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    os.close(fd)


def test_a_file_in_the_place_of_a_directory(shared):
    (shared / 'x').write_text('')
    with pytest.raises(NotADirectoryError):
        state_files.make_directory(str(shared / 'x'))
    assert os.listdir(shared) == ['x']


# --- what keeps a user out


def as_user(monkeypatch, uid, groups=()):
    monkeypatch.setattr(os, 'geteuid', lambda: uid)
    monkeypatch.setattr(os, 'getegid', lambda: uid)
    monkeypatch.setattr(os, 'getgroups', lambda: list(groups))


def test_the_user_of_another_group(shared, monkeypatch):
    owner = state_files.user(os.geteuid())
    as_user(monkeypatch, 4711)
    with pytest.raises(exception.JournalError) as caught:
        sharing.check(str(shared))
    assert str(caught.value).endswith(
        f'{shared} belongs to {owner} and '
        f'{state_files.group(os.stat(shared).st_gid)} with mode 2770, and '
        'this process runs as user id 4711, which is not in this group; see '
        '"Two users" in the documentation'
    )


def test_the_user_of_the_group(shared, monkeypatch):
    as_user(monkeypatch, 4711, [os.stat(shared).st_gid])
    sharing.check(str(shared))
    sharing.check(str(shared / 'new'))


def test_a_directory_of_all_users(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(exception.JournalError, match='chmod o-w'):
        sharing.check(str(tmp_path))


def test_a_private_directory_whose_name_is_that_of_a_file(tmp_path):
    tmp_path.chmod(0o700)
    (tmp_path / 'locks').touch()
    with pytest.raises(FileExistsError):
        state_files.make_directory(str(tmp_path / 'locks'))


def test_a_private_directory_that_another_thread_makes(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    mkdir = os.mkdir

    def late(path, mode):
        mkdir(path, mode)
        mkdir(path, mode)

    monkeypatch.setattr(os, 'mkdir', late)
    state_files.make_directory(str(tmp_path / 'locks'))
    assert (tmp_path / 'locks').is_dir()


# --- sqlite's files before they have their mode


@pytest.fixture
def late(shared, monkeypatch):
    """A journal whose first attempts to write fail as with a mode of 0640."""
    opened = journal.Journal(str(shared), 5)
    real, failing = sqlite3.connect, []

    def connect(*args, **kwargs):
        if failing:
            failing.pop()
            err = sqlite3.OperationalError('attempt to write a readonly')
            err.sqlite_errorcode = sqlite3.SQLITE_READONLY
            raise err
        return real(*args, **kwargs)

    monkeypatch.setattr(sqlite3, 'connect', connect)
    yield opened, failing
    failing.clear()
    opened.close()


def test_a_mode_that_is_set_a_moment_later(late):
    opened, failing = late
    failing.extend(range(5))
    assert opened.entries() == []
    assert failing == []


def test_a_mode_that_stays_wrong(late):
    opened, failing = late
    failing.extend(range(100_000))
    start = time.monotonic()
    with pytest.raises(exception.JournalError, match='readonly'):
        opened.entries()
    assert 0.9 < time.monotonic() - start < 30


def test_a_private_journal_that_is_read_only_fails_at_once(late, shared):
    opened, failing = late
    shared.chmod(0o700)
    failing.extend(range(100_000))
    with pytest.raises(exception.JournalError, match='readonly'):
        opened.entries()
    assert len(failing) == 99_999


def test_a_directory_that_cannot_be_examined_fails_at_once(late, monkeypatch):
    opened, failing = late

    def refused(directory):
        raise PermissionError(directory)

    monkeypatch.setattr(state_files, 'group_of', refused)
    failing.extend(range(100_000))
    with pytest.raises(exception.JournalError, match='readonly'):
        opened.entries()
    assert len(failing) == 99_999


# --- os-acc doctor


@pytest.fixture
def found(tmp_path):
    directory = tmp_path / 'state'
    directory.mkdir(mode=0o700)
    os_acc.CONF.set_override('state_path', str(directory), 'os_acc')

    def found():
        return [
            (each.verdict, each.text, each.advice)
            for each in users.findings(os_acc.CONF)
        ]

    yield found
    os_acc.CONF.clear_override('state_path', 'os_acc')


def test_doctor_of_a_private_directory(found, tmp_path):
    ((verdict, text, _),) = found()
    assert verdict == 'ok'
    assert f'only user id {os.geteuid()}' in text
    (tmp_path / 'state').chmod(0o770)
    ((verdict, _, advice),) = found()
    assert verdict == 'warning'
    assert f'chmod 2770 {tmp_path}/state' in advice


def test_doctor_of_a_shared_directory(found, tmp_path, monkeypatch):
    state = tmp_path / 'state'
    state.chmod(0o2770)
    opened = journal.Journal(str(state), 1)
    with locking.Locks(str(state / 'locks'), 1).device('x'):
        ((verdict, text, _),) = found()
        assert verdict == 'ok'
        assert f'shared with group id {os.stat(state).st_gid}' in text
        lock = state / 'locks' / 'os-acc-device-x'
        lock.chmod(0o600)
        (state / 'bitstreams').mkdir(mode=0o755)
        (_, *wrong) = found()
    opened.close()
    assert [verdict for verdict, _, _ in wrong] == ['error', 'error']
    (about_lock, about_cache) = (text for _, text, _ in wrong)
    assert f'not all users can use {state}/bitstreams: ' in about_cache
    assert about_cache.endswith('and mode 2770')
    assert f'not all users can use {lock}: ' in about_lock
    assert 'with mode 0600, expected' in about_lock
    assert about_lock.endswith('and mode 0660')
    assert {advice for _, _, advice in wrong} == {sharing.PAGE}
    as_user(monkeypatch, 4711)
    ((verdict, text, _),) = found()
    assert verdict == 'error'
    assert 'is not in this group' in text


def test_doctor_of_files_that_not_all_can_use(found, tmp_path):
    state = tmp_path / 'state'
    state.chmod(0o2770)
    cache = state / 'bitstreams'
    cache.mkdir()
    cache.chmod(0o2770)
    for name, bits in (('a', 0o640), ('b', 0o660), ('c', 0o662)):
        (cache / name).write_text('')
        (cache / name).chmod(bits)
    (cache / f'{state_files.NEW}d').write_text('')
    (cache / 'e').symlink_to('b')
    (_, *wrong) = found()
    assert [text.split(':')[0] for _, text, _ in wrong] == [
        f'not all users can use {cache}/{name}' for name in 'ace'
    ]


def test_doctor_before_there_is_a_directory(found, tmp_path):
    (tmp_path / 'state').rmdir()
    assert found() == []
