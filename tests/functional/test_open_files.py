# SPDX-License-Identifier: Apache-2.0

"""Real processes that have real devices open in a mount namespace of theirs.

This needs root. /dev/full and /dev/loop7 stand in for the files of VFIO.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from os_acc.deadlines import waiting
from os_acc.kernel import descriptors
from os_acc.kernel import device_files
from os_acc.kernel import open_files
from os_acc.kernel import sysfs
from os_acc.privileged import device_users

FULL = device_files.DeviceFile('/dev/vfio/12', device_files.Number('c', 1, 7))
LOOP = device_files.DeviceFile('/dev/nvme0n1', device_files.Number('b', 7, 7))

# As libvirt does for QEMU: a /dev of its own, made in its mount namespace.
PRIVATE_DEV = """
import os, stat, subprocess, sys
directory, name, kind, major, minor, then = sys.argv[1:]
mount = ['mount', '-t', 'tmpfs', '-o', 'mode=755', 'private-dev', directory]
subprocess.run(mount, check=True)
path = os.path.join(directory, name)
os.makedirs(os.path.dirname(path), exist_ok=True)
what = stat.S_IFCHR if kind == 'c' else stat.S_IFBLK
os.mknod(path, what | 0o600, os.makedev(int(major), int(minor)))
fd = os.open(path, os.O_RDONLY)
if then == 'unlink':
    os.unlink(path)
print(os.readlink(f'/proc/self/fd/{fd}'), flush=True)
sys.stdin.read()
"""

# What other processes have open. A file that was deleted is no device.
OTHER_FILES = """
import os, socket, sys, tempfile
files = [
    os.pipe(), os.eventfd(0), os.memfd_create('x'), socket.socket(),
    socket.socketpair(), tempfile.TemporaryFile(), open('/dev/null'),
    os.open('/', os.O_RDONLY),
]
print('ready', flush=True)
sys.stdin.read()
"""

OPENED = """
import sys
file = open('/dev/full', sys.argv[1], buffering=0)
print('ready', flush=True)
sys.stdin.read()
"""

# The main thread ends by pthread_exit(), and another one goes on.
MAIN_THREAD_ENDS = """
import ctypes, sys, threading
file = open('/dev/full', 'rb', buffering=0)
threading.Thread(target=sys.stdin.read).start()
print('ready', flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""

# unshare(CLONE_FILES) in a thread, as in include/uapi/linux/sched.h: 0x400
OWN_TABLE = """
import ctypes, sys, threading
def run():
    assert ctypes.CDLL(None).unshare(0x400) == 0
    global file
    file = open('/dev/full', 'rb', buffering=0)
    print('ready', flush=True)
    done.wait()
done = threading.Event()
others = [threading.Thread(target=done.wait) for _ in range(5)]
for thread in [*others, threading.Thread(target=run)]:
    thread.start()
sys.stdin.read()
done.set()
"""

# A path that is longer than a page, which readlink() cannot show.
LONG_PATH = """
import os, sys
top = sys.argv[1]
os.chdir(top)
for _ in range(25):
    os.mkdir('d' * 200)
    os.chdir('d' * 200)
os.mknod('full', 0o20600, os.makedev(1, 7))
files = [os.open(each, os.O_RDWR | os.O_CREAT) for each in ('full', 'x')]
print('ready', flush=True)
sys.stdin.read()
"""

# The kernel keeps an open file as long as it is mapped.
MAPPED = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
kept = mmap.mmap(fd, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
os.close(fd)
os.closerange(3, 100)  # mmap has duplicated it
print('ready', flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A function that starts a process; only those count as the host's."""
    proc = tmp_path / 'proc'
    proc.mkdir()
    monkeypatch.setattr(sysfs, 'PROC', str(proc))
    started = []

    def run(*command: str) -> tuple[int, str]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        said = process.stdout.readline().strip()
        (proc / str(process.pid)).symlink_to(f'/proc/{process.pid}')
        return process.pid, said

    yield run
    for process in started:
        process.communicate()


@pytest.fixture
def private(start, tmp_path):
    def run(file, name: str, then: str) -> tuple[int, str]:
        directory = tmp_path / 'dev'
        directory.mkdir(exist_ok=True)
        return start(
            *('unshare', '--mount', '--propagation', 'private'),
            *(sys.executable, '-c', PRIVATE_DEV, str(directory), name),
            *(str(part) for part in file.number),
            then,
        )

    return run


@pytest.mark.parametrize('file', [FULL, LOOP])
def test_a_file_that_was_unlinked(private, file):
    pid, link = private(file, 'vfio/12', 'unlink')
    assert link.endswith('/dev/vfio/12 (deleted)')
    assert len(open_files.users_of([file])) == 1
    (text,) = open_files.users_of([FULL, LOOP])
    assert text.startswith(f'process {pid} (python')
    assert text.endswith(f' has {file.path} open')


@pytest.mark.parametrize('file', [FULL, LOOP])
def test_another_name_in_a_container(private, tmp_path, file):
    pid, link = private(file, 'gpu', '')
    assert link == f'{tmp_path}/dev/gpu'
    assert not os.path.exists(link)
    (text,) = open_files.users_of([file])
    assert text.startswith(f'process {pid} (python')


def test_a_character_device_is_no_block_device(private):
    private(FULL, 'vfio/12', 'unlink')
    block = device_files.Number('b', *FULL.number[1:])
    assert (
        open_files.users_of([device_files.DeviceFile('/dev/x', block)]) == []
    )


def test_the_files_that_processes_usually_have(start):
    start(sys.executable, '-c', OTHER_FILES)
    assert open_files.users_of([FULL, LOOP]) == []


@pytest.mark.parametrize('mode', ['rb', 'r+b'])
def test_only_who_can_write(start, mode):
    start(sys.executable, '-c', OPENED, mode)
    found = open_files.users_of([FULL], writers=True)
    assert len(found) == (mode != 'rb')
    assert len(open_files.users_of([FULL])) == 1


def test_a_process_that_has_ended(start, private):
    pid, _ = private(FULL, 'vfio/12', 'unlink')
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert open_files.users_of([FULL]) == []


@pytest.mark.parametrize('number', [errno.EACCES, errno.ENOENT, errno.ESRCH])
def test_a_process_that_ends_while_it_is_read(start, monkeypatch, number):
    """What the kernel says then depends on its version and on the moment."""
    pid, _ = start(sys.executable, '-c', OPENED, 'rb')
    readlink, ended = os.readlink, []

    def late(path: str) -> str:
        if '/fd/' not in path:
            return readlink(path)
        if not ended:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        ended.append(path)
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, 'readlink', late)
    assert open_files.users_of([FULL]) == []
    assert ended


def test_the_main_thread_has_ended(start):
    pid, _ = start(sys.executable, '-c', MAIN_THREAD_ENDS)
    directory = f'/proc/{pid}/fd'
    waiting.until(
        lambda: not os.listdir(directory), 30, 'the end of the thread'
    )
    (text,) = open_files.users_of([FULL])
    assert text.startswith(f'process {pid} (')


def test_a_thread_with_a_table_of_its_own(start):
    pid, _ = start(sys.executable, '-c', OWN_TABLE)
    links = [each.text for each in descriptors.of_process(str(pid))]
    assert links.count('/dev/full') == 1
    # The six threads that share a table are read once.
    assert len(links) < 4 * len(os.listdir(f'/proc/{pid}/fd'))
    (text,) = open_files.users_of([FULL])
    assert text.startswith(f'process {pid} (')


def test_a_path_that_is_too_long_to_be_shown(start, tmp_path):
    pid, _ = start(sys.executable, '-c', LONG_PATH, str(tmp_path))
    (text,) = open_files.users_of([FULL])
    assert text.startswith(f'process {pid} (')
    assert open_files.users_of([LOOP]) == []
    assert not device_users.have_others_only('/sys/devices/0000:00:1f.0')


def test_a_mapping_whose_descriptor_was_closed(start):
    zero = device_files.DeviceFile('/dev/zero', device_files.Number('c', 1, 5))
    pid, _ = start(sys.executable, '-c', MAPPED, '/dev/zero')
    assert not [
        each
        for each in descriptors.of_process(str(pid))
        if each.text == '/dev/zero'
    ]
    (text,) = open_files.users_of([zero])
    assert text.startswith(f'process {pid} (')
    assert open_files.users_of([zero], writers=True) == []
    assert open_files.users_of([FULL]) == []
