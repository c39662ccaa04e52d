# SPDX-License-Identifier: Apache-2.0

"""Another user exchanges what a path names while root opens it.

This needs root. The other user owns the directory of the bitstreams. It calls
renameat2(2) with RENAME_EXCHANGE all the time, so that a name is either of
two files at any moment, and never missing.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
import contextlib
import os
import subprocess
import sys
import time

import pytest

from os_acc import exception
from os_acc.bitstreams import file as bitstream_file

# How long each test repeats it. OS_ACC_RACE_SECONDS sets another length.
SECONDS = float(os.environ.get('OS_ACC_RACE_SECONDS', '5'))

NOBODY = 65534

EXCHANGE = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd, first, second = int(sys.argv[1]), *map(os.fsencode, sys.argv[2:])
os.setgroups([])
os.setresgid(*3 * [{NOBODY}])
os.setresuid(*3 * [{NOBODY}])
print('ready', flush=True)
while True:
    # 2 is RENAME_EXCHANGE of include/uapi/linux/fs.h.
    if libc.renameat2(fd, first, fd, second, 2):
        sys.exit(os.strerror(ctypes.get_errno()))
"""


@contextlib.contextmanager
def exchanging(directory: str, first: str, second: str) -> Iterator[None]:
    """Let another user exchange two names of a directory of its own."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.fchown(fd, NOBODY, NOBODY)
    process = subprocess.Popen(
        [sys.executable, '-c', EXCHANGE, str(fd), first, second],
        pass_fds=[fd],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b'ready\n'
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
        os.close(fd)


def open_all_the_time(path: str, directory: str) -> collections.Counter[str]:
    """Open a path as root, and count what was read, and what was refused."""
    seen: collections.Counter[str] = collections.Counter()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            with bitstream_file.opened(path, [directory], 1000) as (_, file):
                seen[file.read().decode()] += 1
        except exception.BitstreamError:
            seen['refused'] += 1
    return seen


@pytest.fixture
def directory(tmp_path):
    made = tmp_path / 'images'
    (made / 'now').mkdir(parents=True)
    (made / 'now/a').write_text('image')
    return made


def test_a_directory_and_a_link_to_roots_own(directory, tmp_path):
    secret = tmp_path / 'secret'
    secret.mkdir(mode=0o700)
    (secret / 'a').write_text('secret')
    (directory / 'link').symlink_to(secret)
    with exchanging(directory, 'now', 'link'):
        seen = open_all_the_time(f'{directory}/now/a', str(directory))
    # Both were there while root opened it, and it read one of them only.
    assert set(seen) == {'image', 'refused'}


def test_a_file_and_a_pipe(directory):
    """Opening a pipe waits for its writer, and there is none."""
    os.mkfifo(directory / 'now/pipe')
    with exchanging(directory / 'now', 'a', 'pipe'):
        seen = open_all_the_time(f'{directory}/now/a', str(directory))
    assert set(seen) == {'image', 'refused'}
