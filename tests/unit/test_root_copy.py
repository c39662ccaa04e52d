# SPDX-License-Identifier: Apache-2.0

"""Root's copies of images: who can read them, and when they are removed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import pathlib
import signal
import stat
import subprocess
import time

import pytest

from os_acc import exception
from os_acc.privileged.fpga import root_copy

DIGEST = hashlib.sha256(b'aes').hexdigest()


@pytest.fixture
def directory(tmp_path, monkeypatch):
    path = tmp_path / 'images'
    monkeypatch.setattr(root_copy, 'DIRECTORY', str(path))
    return path


@pytest.fixture
def image(tmp_path):
    path = tmp_path / 'aes.xclbin'
    path.write_bytes(b'aes')
    with open(path, 'rb') as file:
        yield file


def left(
    directory: pathlib.Path, image, *, in_use: bool
) -> tuple[pathlib.Path, int]:
    """A copy whose maker was killed, and maybe its command too.

    :param in_use: the command goes on, and keeps the lock that it inherited
    :returns: the copy, and a file descriptor that the command waits for
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with root_copy.made(image, 'aes.xclbin', DIGEST) as copy:
            if in_use:
                # The parent's end of the pipe keeps it alive.
                subprocess.Popen(['cat'], stdin=reader, pass_fds=[copy.lock])
            os.write(writer, b'x')
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    (own,) = directory.iterdir()
    return own / 'aes.xclbin', writer


def test_a_copy(directory, image):
    with root_copy.made(image, 'aes.xclbin', DIGEST) as copy:
        path = pathlib.Path(copy.path)
        assert path.read_bytes() == b'aes'
        assert path.suffix == '.xclbin'
        assert stat.S_IMODE(path.stat().st_mode) == 0o400
        for each in (path.parent, directory):
            assert stat.S_IMODE(each.stat().st_mode) == 0o700
        # It is not removed while it is in use.
        root_copy.sweep()
        assert path.exists()
    assert list(directory.iterdir()) == []


def test_the_modes_do_not_depend_on_the_umask(directory, image):
    before = os.umask(0)  # as in the daemon of oslo.privsep
    try:
        test_a_copy(directory, image)
    finally:
        os.umask(before)


def test_a_copy_that_a_killed_daemon_has_left(directory, image):
    path, _ = left(directory, image, in_use=False)
    assert path.exists()
    root_copy.sweep()
    assert list(directory.iterdir()) == []


def test_the_next_copy_removes_what_was_left(directory, image):
    path, _ = left(directory, image, in_use=False)
    with root_copy.made(image, 'aes.xclbin', DIGEST) as copy:
        assert not path.exists()
        assert pathlib.Path(copy.path).exists()


def test_a_copy_that_a_command_still_reads(directory, image):
    path, writer = left(directory, image, in_use=True)
    root_copy.sweep()
    assert path.read_bytes() == b'aes'
    os.close(writer)  # the command ends
    deadline = time.monotonic() + 20
    while path.exists() and time.monotonic() < deadline:
        root_copy.sweep()
        time.sleep(0.01)
    assert list(directory.iterdir()) == []


def test_another_image(directory, image):
    with (
        pytest.raises(exception.BitstreamError, match='it was changed'),
        root_copy.made(image, 'aes.xclbin', '0' * 64),
    ):
        raise AssertionError('it was copied')
    assert list(directory.iterdir()) == []


def test_a_full_disk(directory, image, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(root_copy.bitstream_file, 'of_file', full)
    with (
        pytest.raises(exception.BitstreamError, match='No space left'),
        root_copy.made(image, 'aes.xclbin', DIGEST),
    ):
        raise AssertionError('it was copied')
    assert list(directory.iterdir()) == []


def test_a_directory_that_others_can_write_to(directory, image):
    directory.mkdir()
    directory.chmod(0o777)
    with (
        pytest.raises(exception.PrivilegeError, match='can write to it'),
        root_copy.made(image, 'aes.xclbin', DIGEST),
    ):
        raise AssertionError('it was copied')


def test_a_directory_that_is_a_link(directory, image, tmp_path):
    (tmp_path / 'other').mkdir()
    directory.symlink_to(tmp_path / 'other')
    with pytest.raises(exception.PrivilegeError):
        root_copy.sweep()


def test_what_is_no_copy_stays(directory):
    directory.mkdir(mode=0o700)
    (directory / 'file').write_text('x')
    (directory / 'link').symlink_to('/')
    root_copy.sweep()
    assert sorted(each.name for each in directory.iterdir()) == [
        'file',
        'link',
    ]


def test_sweeping_where_there_is_nothing(directory):
    root_copy.sweep()
    assert not directory.exists()


def test_a_new_directory_is_not_swept(directory, image, monkeypatch):
    """Another process sweeps between the directory's creation and its lock."""
    mkdir, swept = os.mkdir, []

    def slowly(name, *args, **kwargs):
        mkdir(name, *args, **kwargs)
        if 'dir_fd' not in kwargs or kwargs['dir_fd'] is None:
            return
        child = os.fork()
        if child == 0:
            monkeypatch.setattr(os, 'mkdir', mkdir)
            root_copy.sweep()
            os._exit(0)
        swept.append(child)

    with monkeypatch.context() as patch:
        patch.setattr(os, 'mkdir', slowly)
        with root_copy.made(image, 'aes.xclbin', DIGEST) as copy:
            for child in swept:
                assert os.waitpid(child, 0)[1] == 0
            assert swept
            assert pathlib.Path(copy.path).exists()
            other = os.open(os.path.dirname(copy.path), os.O_RDONLY)
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(other)
