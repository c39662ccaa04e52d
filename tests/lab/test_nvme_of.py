# SPDX-License-Identifier: Apache-2.0

"""The driver nvme_of with the kernel's own target, over TCP."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import signal
import subprocess
import time
import uuid

import nvmet
import processes
import pytest
import use

from acc_plug_libvirt import LibvirtPlugin
import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import objects
from os_acc.privileged import command
from os_acc.privileged import notes as root_notes
from os_acc.privileged.nvme_of import connections as nvme_of_connections
from os_acc.privileged.nvme_of import connections as records
from os_acc.privileged.nvme_of import notes as nvme_of_notes

INSTANCE = '7b0a6bb0-1111-4222-8333-444455556666'
NAMESPACES = ['7b0a6bb0-1111-4222-8333-44445555000' + n for n in '12']
WATCHED = (
    (journal.Journal, 'journal', ['add', 'save', 'save_all', 'mark']),
    (journal.Journal, 'journal', ['settle']),
    (LibvirtPlugin, 'plugin', ['plug', 'unplug']),
    (command, 'command', ['run']),
    (nvme_of_notes, 'note', ['write', 'delete']),
    (type(records.connections), 'record', ['write', 'delete']),
    (nvme_of_connections, 'connection', ['connect', 'disconnect']),
)


@pytest.fixture
def target(tmp_path):
    made = nvmet.Target(tmp_path, 2, uuids=NAMESPACES)
    yield made
    made.remove()
    # A failed test has left them.
    for name in records.connections.names():
        records.connections.delete(name)
    for name in NAMESPACES:
        nvme_of_notes.delete(f'uuid.{name}', root_notes.Cleaned.GONE)


def configure(state: pathlib.Path, *entries, initialize: bool = True) -> None:
    use.configure(state, entries, initialize=False)
    os_acc.CONF.set_override('max_workers', 1, 'os_acc')
    os_acc.CONF.set_override('release_timeout', 10.0, 'os_acc')
    if initialize:
        os_acc.initialize(reset=True)


@pytest.fixture
def here(target, tmp_path):
    configure(tmp_path / 'state', target.entry())
    yield target
    use.close()


def request(place: int = 0) -> objects.AcceleratorRequest:
    wwn = f'uuid.{NAMESPACES[place]}'
    path = f'/dev/disk/by-id/nvme-{wwn}'
    return objects.AcceleratorRequest(
        uuid=f'0000000{place}-1111-4222-8333-444455557777',
        handle=objects.BlockHandle(path=path, wwn=wwn),
    )


def host(instance: objects.InstanceInfo) -> str:
    return f'nqn.2014-08.org.nvmexpress:uuid:{instance.uuid}'


def write(path: str, text: bytes) -> None:
    with open(path, 'r+b', buffering=0) as file:
        file.write(text.ljust(4096, b'.'))
        os.fsync(file.fileno())


def wait(check, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_plug_and_unplug(here):
    instance = use.instance()
    (van,) = os_acc.plug(instance, [request()])
    assert nvmet.connections() == [host(instance)]
    assert nvmet.established() > 0
    write(van.handle.path, b'secret')
    assert here.content().startswith(b'secret')
    assert os_acc.plug(instance, [request()])[0].uuid == van.uuid
    assert os_acc.unplug(instance) == 1
    assert nvmet.connections() == []
    wait(lambda: nvmet.established() == 0)
    assert here.content() == bytes(4096)


def test_a_namespace_in_use(here, held):
    instance = use.instance()
    (van,) = os_acc.plug(instance, [request()])
    pid = held(van.handle.path)
    os_acc.CONF.set_override('release_timeout', 2.0, 'os_acc')
    with pytest.raises(exception.UnplugException, match=f'process {pid}'):
        os_acc.unplug(instance)
    os.kill(pid, signal.SIGKILL)
    os_acc.CONF.set_override('release_timeout', 20.0, 'os_acc')
    assert os_acc.unplug(instance) == 1


def test_the_host_mounts_the_other_namespace(here, tmp_path):
    """It is refused, and its connection stays as long as it is mounted."""
    instance = use.instance()
    os_acc.plug(instance, [request()])
    device = f'/dev/disk/by-id/nvme-uuid.{NAMESPACES[1]}'
    mount = tmp_path / 'mount'
    mount.mkdir()
    for words in (['mkfs.ext2', '-q', '-F', device], ['mount', device, mount]):
        subprocess.run(words, check=True, timeout=120)
    try:
        with pytest.raises(exception.PlugException, match='mounted'):
            os_acc.plug(use.instance(), [request(1)])
        os_acc.unplug(instance)
        assert nvmet.connections() == [host(instance)]
    finally:
        subprocess.run(['umount', mount], check=True, timeout=60)
    os_acc.plug(instance, [request(1)])
    os_acc.unplug(instance)
    assert nvmet.connections() == []


def test_a_connection_that_was_there_stays(here):
    words = ['nvme', 'connect', '-t', 'tcp', '-a', nvmet.ADDRESS]
    words += ['-s', str(nvmet.PORT), '-n', here.nqn]
    instance = use.instance()
    words += ['-q', host(instance), f'--hostid={instance.uuid}']
    subprocess.run(words, check=True, timeout=60)
    os_acc.plug(instance, [request()])
    os_acc.unplug(instance)
    assert nvmet.connections() == [host(instance)]
    words = ['nvme', 'disconnect', '-n', here.nqn]
    subprocess.run(words, check=True, timeout=60)


def waits_for(pid: int, van: objects.VAN) -> bool:
    """Whether a process has a device open, or waits in open(2).

    It waits there while udev, which looks at a device that was written to,
    reads the partition table of a target that is gone.
    """
    state = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2]
    if state.split()[0] == 'D':
        return True
    device = os.path.realpath(van.handle.path)
    links = pathlib.Path(f'/proc/{pid}/fd').iterdir()
    return device in [os.path.realpath(each) for each in links]


def test_the_target_is_gone(here):
    """The release succeeds; the data is gone before the next instance."""
    instance = use.instance()
    (van,) = os_acc.plug(instance, [request()])
    write(van.handle.path, b'secret')
    here.stop()
    states = pathlib.Path('/sys/class/nvme')
    wait(
        lambda: any(
            (each / 'state').read_text().strip() == 'connecting'
            for each in states.glob('nvme*')
        )
    )
    # As udev does when a guest has closed it. It is not awaited.
    words = ['dd', f'if={van.handle.path}', 'of=/dev/null', 'iflag=direct']
    reader = subprocess.Popen([*words, 'count=1'])
    wait(lambda: waits_for(reader.pid, van))
    assert os_acc.unplug(instance) == 1
    assert nvmet.connections() == []
    assert reader.wait(60) != 0
    with pytest.raises(exception.PlugException):
        os_acc.plug(use.instance(), [request()])
    here.start()
    assert here.content().startswith(b'secret')
    other = use.instance()
    (van,) = os_acc.plug(other, [request()])
    with open(van.handle.path, 'rb') as file:
        assert file.read(4096) == bytes(4096)
    os_acc.unplug(other)
    assert nvmet.connections() == []


def test_an_access_list(here):
    """The target lets in one instance only, and says so to os-acc."""
    instance = use.instance()
    here.let_in(host(instance))
    other = use.instance()
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(other, [request()])
    assert f'from {here.nqn} as {host(other)}' in str(caught.value)
    assert caught.value.undo_errors == []
    assert nvmet.connections() == []
    os_acc.plug(instance, [request()])
    assert nvmet.connections() == [host(instance)]
    os_acc.unplug(instance)


def test_a_secret(here, tmp_path, monkeypatch, caplog):
    """The kernel gets the secret from nvme-cli, and nothing shows it.

    The kernel of the lab has no target that asks for it.
    """
    caplog.set_level(logging.DEBUG)
    instance = use.instance()
    made = ['nvme', 'gen-dhchap-key', '-n', host(instance)]
    done = subprocess.run(
        made, check=True, capture_output=True, text=True, timeout=60
    )
    key = done.stdout.strip()
    path = tmp_path / 'secret'
    path.write_text(f'{key}\n')
    entry = here.entry(dhchap_secret_file=str(path))
    os_acc.CONF.set_override('device_spec', [json.dumps(entry)], 'os_acc')
    path.chmod(0o644)
    with pytest.raises(exception.PlugException, match='mode') as caught:
        os_acc.plug(instance, [request()])
    assert nvmet.connections() == []
    path.chmod(0o600)
    commands = []
    run = command.run

    def recorded(device, words, *rest):
        commands.append(words)
        return run(device, words, *rest)

    monkeypatch.setattr(command, 'run', recorded)
    with nvmet.written_to_the_kernel() as written:
        os_acc.plug(instance, [request()])
        assert f'dhchap_secret={key}' in written()
    assert nvmet.connections() == [host(instance)]
    # Linux has the file if CONFIG_NVME_AUTH is on.
    for shown in pathlib.Path('/sys/class/nvme').glob('nvme*/dhchap_secret'):
        assert shown.stat().st_mode & 0o077 == 0
    notes = pathlib.Path('/var/lib/os-acc-root')
    files = [
        each
        for directory in (tmp_path / 'state', notes)
        for each in directory.rglob('*')
        if each.is_file()
    ]
    assert len(files) >= 3
    everything = [each.read_bytes().decode('latin-1') for each in files]
    everything += [str(caught.value), caplog.text, str(commands)]
    kernel = ['dmesg']
    everything.append(
        subprocess.run(
            kernel, check=True, capture_output=True, text=True, timeout=60
        ).stdout
    )
    os_acc.unplug(instance)
    assert any('connect' in words for words in commands)
    assert not any(key.split(':')[2] in text for text in everything)


def test_killed(target, tmp_path, report):
    """A new process finds all plugged or all as before."""

    def process(work, kill_at=None) -> tuple[int, list[str]]:
        return processes.run_watched(
            work,
            WATCHED,
            kill_at,
            lambda: configure(tmp_path / 'state', target.entry()),
        )

    def both() -> None:
        os_acc.plug(use.instance(INSTANCE), [request()])
        os_acc.unplug(use.instance(INSTANCE))

    code, names = process(both)
    assert code == 0
    chosen = use.some_steps(5, len(names))
    for kill_at in chosen:
        code, _ = process(both, kill_at)
        assert code == -signal.SIGKILL, names[kill_at]
        assert process(lambda: None)[0] == 0
        opened = journal.Journal(str(tmp_path / 'state'), 5, read_only=True)
        plugged = bool(list(opened.entries()))
        opened.close()
        assert nvmet.connections() == (
            [host(use.instance(INSTANCE))] if plugged else []
        ), names[kill_at]
        if plugged:
            unplug = lambda: os_acc.unplug(use.instance(INSTANCE))  # noqa: E731
            assert process(unplug)[0] == 0
        assert nvmet.connections() == []
        assert records.connections.names() == [], names[kill_at]
    report(
        f'lab: nvme_of killed at {len(chosen)} of {len(names)} steps, '
        f'from step {chosen[0]}'
    )


@pytest.mark.boot1
def test_before_the_reboot(lab_state, leave_all):
    target = nvmet.Target(lab_state, uuids=NAMESPACES[:1])
    configure(lab_state / 'nvme-of', target.entry())
    (van,) = os_acc.plug(use.instance(INSTANCE), [request()])
    write(van.handle.path, b'kept')
    notes = pathlib.Path('/var/lib/os-acc-root')
    # The root file system is not kept over the reboot.
    subprocess.run(['cp', '-a', notes, lab_state / 'notes'], check=True)
    use.close()
    subprocess.run(['nvme', 'disconnect', '-n', target.nqn], check=True)
    target.stop()


@pytest.mark.boot2
def test_after_the_reboot(lab_state):
    notes = '/var/lib/os-acc-root'
    subprocess.run(['cp', '-a', lab_state / 'notes', notes], check=True)
    target = nvmet.Target(lab_state, uuids=NAMESPACES[:1])
    try:
        assert nvmet.connections() == []
        configure(lab_state / 'nvme-of', target.entry())
        (van,) = os_acc.get_vans()
        assert van.state == 'plugged'
        assert van.error is None
        assert nvmet.connections() == [host(use.instance(INSTANCE))]
        with open(van.handle.path, 'rb') as file:
            assert file.read(4) == b'kept'
        assert os_acc.unplug(use.instance(INSTANCE)) == 1
        assert nvmet.connections() == []
        use.close()
    finally:
        target.remove()


def test_without_privilege_of_a_request(here):
    """A request cannot bring a target or a path of its own."""
    wanted = request()
    wanted.handle.path = '/dev/sda'
    with pytest.raises(exception.PlugException, match=r'handle\.path'):
        os_acc.plug(use.instance(), [wanted])
    wanted = request()
    wanted.handle.wwn = f'uuid.{uuid.uuid4()}'
    wanted.handle.path = f'/dev/disk/by-id/nvme-{wanted.handle.wwn}'
    with pytest.raises(exception.PlugException, match='does not name'):
        os_acc.plug(use.instance(), [wanted])
    assert nvmet.connections() == []
