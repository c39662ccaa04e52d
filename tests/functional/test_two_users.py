# SPDX-License-Identifier: Apache-2.0

"""Two services that run as two users, and root's commands in between."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import shutil
import signal
import stat
import tempfile
import time

import processes
import pytest
import two_users
from two_users import CYBORG
from two_users import GROUP
from two_users import NOVA
from two_users import STRANGER
from two_users import Host
from two_users import install
from two_users import instance
from two_users import plug
from two_users import program
from two_users import request
import web

import os_acc
from os_acc import exception
from os_acc import journal
from os_acc.state import sharing

ROUNDS = 25


@pytest.fixture(scope='module', autouse=True)
def imported() -> None:
    two_users.import_all()


@pytest.fixture
def directory() -> Iterator[pathlib.Path]:
    # The directories above tmp_path keep other users than root out.
    made = pathlib.Path(tempfile.mkdtemp(prefix='os-acc-users-'))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def host(directory) -> Host:
    made = Host(directory)
    made.share()
    return made


def vans() -> dict[str, str]:
    return {van.owner: van.state for van in os_acc.get_vans()}


def used() -> list[int]:
    devices = sorted(os_acc.get_devices(), key=lambda each: each.address)
    return [each.handles_total - each.handles_free for each in devices]


@pytest.mark.parametrize('first', [NOVA, CYBORG])
def test_one_plugs_and_the_other_reads_and_programs(host, first, report):
    second = NOVA + CYBORG - first
    assert host.run(first, lambda: program('aes')) is True
    assert host.run(second, lambda: plug('aes')) == ['plugged']
    for user in (first, second):
        assert host.run(user, vans, read_only=True) == {
            f'u{second}': 'plugged'
        }
        assert host.run(user, used, read_only=True) == [1, 0]
        assert host.run(user, lambda: program('aes')) is False
    error = host.error(first, lambda: program('sha'))
    assert error.startswith('DeviceBusy: ')
    assert f'instance {instance().uuid}' in error
    assert host.run(second, lambda: os_acc.unplug(instance())) == 1
    assert host.run(first, lambda: program('sha')) is True
    host.check_modes()
    assert host.run(first, used, read_only=True) == [0, 0]
    report('two users: one plugs, the other reads and programs')


def test_the_agent_cannot_write_when_it_only_reads(host):
    host.run(NOVA, plug)
    error = host.error(CYBORG, lambda: program('aes'), read_only=True)
    assert error.startswith('ReadOnly: ')


def test_a_reader_leaves_nothing_that_keeps_the_other_out(host):
    """A reader makes -wal and -shm, too, and may be killed."""
    host.run(NOVA, plug)

    def read_and_die() -> None:
        os_acc.get_vans()
        os.kill(os.getpid(), signal.SIGKILL)

    child = host.start(CYBORG, read_and_die, read_only=True)
    assert processes.wait(child) == -signal.SIGKILL
    beside = {
        path.name: path.stat().st_uid for path in host.state.glob('*.db-*')
    }
    assert beside == {'journal.db-shm': CYBORG, 'journal.db-wal': CYBORG}
    host.check_modes()
    assert host.run(NOVA, lambda: plug(number=1)) == ['plugged']
    assert host.run(CYBORG, lambda: len(os_acc.get_vans())) == 2


def test_both_share_the_cache_of_bitstreams(host):
    content = os.urandom(100_000)
    with web.serving() as server:
        url = server.put('/aes.gbs', content)

        def fetch(function: str) -> bool:
            return os_acc.program_device('f0', url, function)

        assert host.run(CYBORG, lambda: fetch('aes')) is True
        assert host.run(NOVA, lambda: fetch('sha')) is True
        assert len(server.downloads('/aes.gbs')) == 1
    (kept,) = (host.state / 'bitstreams').iterdir()
    assert kept.read_bytes() == content
    assert 0 not in host.check_modes()


def rounds(number: int) -> dict[str, int]:
    """Plug, unplug and program, in turn and against the others."""
    counts = {'plugged': 0, 'programmed': 0, 'busy': 0}
    mine = instance(number)
    for turn in range(ROUNDS):
        function = None if turn % 2 else ('aes', 'sha')[number % 2]
        try:
            counts['plugged'] += len(os_acc.plug(mine, [request(function)]))
        except exception.PlugException as err:
            assert isinstance(
                err.__cause__,
                exception.DeviceBusy | exception.DeviceNotFound,
            ), err
            assert not err.undo_errors
            counts['busy'] += 1
        os_acc.unplug(mine)
        try:
            counts['programmed'] += program(('sha', 'aes')[turn % 2])
        except exception.DeviceBusy:
            counts['busy'] += 1
    return counts


def test_both_at_once(host, report):
    """Also the first opening, which makes the journal and the directories."""
    begun = time.monotonic()
    running = [
        host.start((NOVA, CYBORG)[n % 2], lambda n=n: rounds(n))
        for n in range(6)
    ]
    commands = [host.command('van', 'list', '-f', 'json') for _ in range(3)]
    seen = [host.end(pid) for pid in running]
    assert [each for each in seen if 'error' in each] == []
    total = {
        key: sum(each['result'][key] for each in seen)
        for key in ('plugged', 'programmed', 'busy')
    }
    assert [(each.returncode, each.stderr) for each in commands] == [
        (0, '')
    ] * 3
    assert total['plugged'] > ROUNDS
    assert total['programmed'] > 0
    assert host.run(NOVA, lambda: (vans(), used())) == [{}, [0, 0]]
    assert host.check_modes() <= {NOVA, CYBORG}
    assert list((host.state / 'locks').iterdir()) == []
    report(
        f'two users: 6 processes in {time.monotonic() - begun:.1f} s: {total}'
    )


@pytest.mark.parametrize('killed', [NOVA, CYBORG])
def test_the_other_goes_on_when_one_is_killed(host, killed):
    other = NOVA + CYBORG - killed
    host.run(other, plug)

    def die_in_a_plug() -> None:
        os_acc.CONF.set_override('delays', {'postplug': '60'}, 'os_acc_fake')
        plug(number=1)

    child = host.start(killed, die_in_a_plug)
    deadline = time.monotonic() + 30
    while host.run(other, lambda: len(os_acc.get_vans()), read_only=True) < 2:
        assert time.monotonic() < deadline
    os.kill(child, signal.SIGKILL)
    assert processes.wait(child) == -signal.SIGKILL
    host.check_modes()
    # initialize() of the other releases what was half done.
    assert host.run(other, lambda: (vans(), used())) == [
        {f'u{other}': 'plugged'},
        [0, 1],
    ]
    assert host.run(killed, lambda: plug(number=2)) == ['plugged']
    host.check_modes()


def test_one_is_killed_while_it_programs(host):
    def die() -> None:
        os_acc.CONF.set_override('delays', {'program': '60'}, 'os_acc_fake')
        program('aes')

    child = host.start(CYBORG, die)

    def state() -> str | None:
        if not (host.state / 'journal.db').exists():
            return None
        opened = journal.Journal(str(host.state), 5, read_only=True)
        with contextlib.closing(opened):
            return next((each.state for each in opened.programs()), None)

    deadline = time.monotonic() + 30
    while state() != 'programming':
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    assert processes.wait(child) == -signal.SIGKILL
    host.check_modes()
    assert host.run(NOVA, lambda: program('sha')) is True
    assert host.run(NOVA, lambda: plug('sha')) == ['plugged']


def test_roots_commands_in_between(host, tmp_path):
    """Nothing that they leave belongs to root."""
    arqs = tmp_path / 'arqs.json'
    arqs.write_text('[]')
    made = host.command('recover')  # makes the journal
    assert made.returncode == 0, made.stderr
    host.check_modes()
    assert host.run(NOVA, plug) == ['plugged']
    for arguments in (
        ('van', 'list', '-f', 'json'),
        ('device', 'list', '-f', 'json'),
        ('recover',),
        ('unplug', str(instance().uuid)),
    ):
        done = host.command(*arguments)
        assert done.returncode == 0, done.stderr
    assert 0 not in host.check_modes()
    for user in (CYBORG, NOVA):
        assert host.run(user, lambda: plug(number=3) and vans())
        host.run(user, lambda: os_acc.unplug(instance(3)))
    # A lock and a bitstream that root has made.
    assert host.run(0, plug) == ['plugged']
    with web.serving() as server:
        url = server.put('/aes.gbs', b'aes')
        host.run(0, lambda: os_acc.program_device('f0', url, 'aes'))
        host.run(CYBORG, lambda: os_acc.program_device('f0', url, 'sha'))
    assert 0 not in host.check_modes()


def test_files_from_before_it_was_shared(host):
    """Root shares them once, while the services are stopped."""
    host.state.chmod(0o700)
    os.chown(host.state, NOVA, NOVA)
    with web.serving() as server:
        url = server.put('/aes.gbs', b'aes')

        def work() -> None:
            os_acc.program_device('f0', url, 'aes')
            plug('aes')
            # -wal and -shm stay behind, and so does a lock file.
            with os_acc._host.locks.device('f0'):
                os.kill(os.getpid(), signal.SIGKILL)

        child = host.start(NOVA, work)
        assert processes.wait(child) == -signal.SIGKILL
        shutil.rmtree(host.state / 'fake-hardware')
        modes = {
            stat.S_IMODE(path.stat().st_mode) for path in host.state.rglob('*')
        }
        assert modes == {0o600, 0o700}
        host.share()
        error = host.error(CYBORG, vans)
        path = host.state / 'journal.db'
        assert f'{path} belongs to user id {NOVA}' in error
        assert error.endswith(sharing.PAGE)
        doctor = json.loads(host.command('doctor', '-f', 'json').stdout)
        wrong = [
            each['finding']
            for each in doctor
            if each['subject'] == 'users of the state path'
            and each['verdict'] == 'error'
        ]
        for name in ('journal.db', 'journal.db-wal', 'locks', 'bitstreams'):
            assert any(f'{host.state}/{name}' in text for text in wrong), name
        host.share_all()
        host.check_modes()
        assert host.run(CYBORG, vans) == {f'u{NOVA}': 'plugged'}


# --- wrong set-ups


def everything() -> list[int]:
    return plug() and used()


@pytest.mark.parametrize('read_only', [False, True])
def test_a_user_that_is_not_in_the_group(host, read_only):
    host.run(NOVA, plug)
    error = host.error(STRANGER, vans, groups=(), read_only=read_only)
    assert error.startswith('JournalError: ')
    assert f'group id {GROUP} with mode 2770' in error
    assert f'runs as user id {STRANGER}, which is not in this group' in error


def test_an_owner_that_is_not_in_the_group(host):
    """Its files would be out of reach for it once the other made them."""
    error = host.error(NOVA, vans, groups=())
    assert f'runs as user id {NOVA}, which is not in this group' in error
    assert list(host.state.iterdir()) == []


@pytest.mark.parametrize('mode', [0o700, 0o750, 0o770, 0o2750, 0o3770])
def test_a_directory_that_is_not_shared(host, mode):
    host.state.chmod(mode)
    error = host.error(CYBORG, vans)
    assert f'belongs to user id {NOVA}' in error
    assert error.endswith(sharing.PAGE)
    assert list(host.state.iterdir()) == []
    # Closed by default: the owner works on, for itself alone.
    assert host.run(NOVA, plug) == ['plugged']
    modes = {
        stat.S_IMODE(p.stat().st_mode) & 0o777 for p in host.state.rglob('*')
    }
    assert modes <= {0o600, 0o700}


def test_a_reader_of_a_private_directory(host):
    host.state.chmod(0o700)
    host.run(NOVA, plug)
    error = host.error(CYBORG, vans, read_only=True)
    assert f'belongs to user id {NOVA}' in error
    assert error.endswith(sharing.PAGE)


@pytest.mark.parametrize('mode', [0o777, 0o2777, 0o1777])
@pytest.mark.parametrize('user', [NOVA, CYBORG])
def test_a_directory_that_all_can_write_to(host, user, mode):
    host.state.chmod(mode)
    error = host.error(user, vans)
    assert 'all users can write to' in error
    assert f'chmod o-w {host.state}' in error
    assert list(host.state.iterdir()) == []


def test_a_directory_above_that_keeps_the_agent_out(host):
    """/var/lib/nova may be one: its default is below it."""
    above = host.directory / 'nova'
    above.mkdir(mode=0o700)
    os.chown(above, NOVA, NOVA)
    host.state = above / 'os-acc'
    host.share()
    host.run(NOVA, plug)
    for read_only in (True, False):
        error = host.error(CYBORG, vans, read_only=read_only)
        assert f'the directory {above} belongs to user id {NOVA}' in error
        assert error.endswith(sharing.PAGE)


def test_locks_elsewhere_that_are_not_shared(host):
    locks = host.directory / 'locks'
    locks.mkdir(mode=0o755)
    os.chown(locks, NOVA, NOVA)
    configure = host.configure

    def elsewhere() -> None:
        configure()
        os_acc.CONF.set_override('lock_path', str(locks), 'os_acc')

    host.configure = elsewhere
    host.run(NOVA, plug)
    error = host.error(CYBORG, lambda: plug(number=1))
    assert 'cannot use lock directory' in error
    assert f'the directory {locks} belongs to user id {NOVA}' in error.lower()
    assert error.endswith(sharing.PAGE)
    install(locks)
    assert host.run(CYBORG, lambda: plug(number=1)) == ['plugged']


def test_the_group_cannot_lead_root_elsewhere(host):
    """A member puts a link or a second name of a file of root there."""
    host.run(NOVA, plug)
    secret = host.directory / 'secret'
    secret.write_text('x')
    secret.chmod(0o600)
    (host.state / 'locks').mkdir(exist_ok=True)
    lock = f'os-acc-instance-{instance().uuid}'
    (host.state / 'locks' / lock).symlink_to(secret)
    os.link(secret, host.state / 'locks' / 'other')
    (host.state / 'bitstreams').symlink_to(host.directory)
    before = secret.stat()
    error = host.error(0, plug)
    assert 'cannot use lock directory' in error
    after = secret.stat()
    assert (before.st_mode, before.st_uid, before.st_gid) == (
        after.st_mode,
        after.st_uid,
        after.st_gid,
    )
