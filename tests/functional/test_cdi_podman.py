# SPDX-License-Identifier: Apache-2.0

"""The plugin cdi with real podman: what a container gets, and 1,000 specs.

This needs root. The accelerators are device files that mknod makes.
"""

from __future__ import annotations

from collections.abc import Callable
import json
import os
import pathlib
import random
import re
import shutil
import signal
import stat
import subprocess
import time
from typing import Any
import uuid

import cdi_validator
import podman as podman_module
import processes
import pytest

from acc_plug_cdi import CDIPlugin
import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import objects
from os_acc.deadlines import waiting
from os_acc.kernel import device_cgroup
from os_acc.kernel import sysfs
from os_acc.privileged import container_specs
from os_acc.privileged import file_owners
from os_acc.privileged import notes
from os_acc.privileged import privsep
from os_acc.privileged import root_folder
from os_acc.privileged import undo_log

KIND = 'os-acc.openstack.org/accelerator'
CLASS = 'CUSTOM_ACC'
# Numbers that have no device in any kernel (drivers/char/mem.c), so to open
# one is harmless: it fails with ENXIO, or with EPERM where the control group
# forbids it. Every container may open the devices 1:3, 1:5, 1:7, 1:8 and 1:9.
NUMBERS = ((1, 250), (1, 251))


@pytest.fixture(scope='module')
def podman(tmp_path_factory):
    made = podman_module.Podman(tmp_path_factory.mktemp('podman'))
    yield made
    made.close()


def close() -> None:
    if os_acc._host is not None:
        os_acc._host.close()
        os_acc._host = None
    conf = os_acc.CONF
    conf.reset()
    for group in list(conf._groups):
        if group.startswith('os_acc'):
            for option in conf._groups[group]._opts:
                conf.clear_override(option, group)


def configure(
    state: pathlib.Path, specs: pathlib.Path, *entries: dict[str, Any]
) -> None:
    """Configure this process, without privsep's daemon."""
    privsep.run_here(True)
    conf = os_acc.CONF
    conf([], project='os-acc', default_config_files=[])
    for name, value in {
        'state_path': str(state),
        'plugin': 'cdi',
        'release_timeout': 1.0,
        'max_workers': 1,
        'device_spec': [json.dumps(each) for each in entries],
        'device_spec_dir': str(state / 'device_spec.d'),
    }.items():
        conf.set_override(name, value, 'os_acc')
    os_acc.initialize(reset=True)
    conf.set_override('spec_dir', str(specs), 'os_acc_cdi')


@pytest.fixture
def nodes():
    """A directory below /dev with two accelerators, one file each."""
    directory = pathlib.Path(f'/dev/os-acc-{uuid.uuid4()}')
    directory.mkdir(mode=0o755)
    for number, (major, minor) in enumerate(NUMBERS):
        os.mknod(
            directory / f'acc{number}',
            stat.S_IFCHR | 0o660,
            os.makedev(major, minor),
        )
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def here(podman, nodes, tmp_path, monkeypatch):
    """A function that configures os-acc for the accelerators."""
    monkeypatch.setattr(root_folder, 'PATH', str(tmp_path / 'run'))
    monkeypatch.setattr(notes, 'FOLDER', str(tmp_path / 'held'))
    # Only the processes that this test starts count. The others cannot have
    # the accelerators of a new directory. On some machines, not even root can
    # examine process 1, nor what it has forked and not yet executed.
    names = sysfs.names
    before = {name for name in names(sysfs.PROC) if name.isdigit()}
    before.discard(str(os.getpid()))
    first = sysfs.read(f'{sysfs.PROC}/1/comm')

    def since(path: str) -> list[str]:
        found = names(path)
        if path == sysfs.PROC:
            return [
                name
                for name in found
                if name not in before
                and sysfs.read(f'{path}/{name}/comm') != first
            ]
        return found

    monkeypatch.setattr(sysfs, 'names', since)
    monkeypatch.setattr(
        container_specs, 'DIRECTORIES', (str(podman.static_specs),)
    )

    def start(**entry: Any) -> None:
        configure(
            tmp_path / 'state',
            podman.specs,
            {
                'devices': f'{nodes}/acc*',
                'resource_class': CLASS,
                **entry,
            },
        )

    start()
    yield start
    close()
    for path in podman.specs.iterdir():
        path.unlink()


def instance() -> objects.InstanceInfo:
    return objects.InstanceInfo(
        uuid=str(uuid.uuid4()), name='container', project_id='project'
    )


def request() -> objects.AcceleratorRequest:
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), resource_class=CLASS
    )


def seen(podman, *names: str) -> dict[str, str]:
    said = podman.run(list(names), '/bin/busybox', 'sh', '-c', LIST).stdout
    return podman_module.device_files(said)


LIST = podman_module.LIST


def test_a_container_sees_exactly_its_files(podman, here, nodes):
    here(permissions='r')
    assert seen(podman) == {}
    whose = instance()
    (van,) = os_acc.plug(whose, [request()])
    (file,) = van.handle.files
    assert list(seen(podman, van.guest_config)) == [file.path]
    kind, numbers, _, _ = re.fullmatch(
        r'(.*) (\S+) (\S+) (\S+)', seen(podman, van.guest_config)[file.path]
    ).groups()
    assert kind == 'character special file'
    assert numbers == f'{file.major:x}:{file.minor:x}'
    # The file may be read, but not written.
    for how, error in (
        ('<', 'No such device or address'),
        ('>', 'Operation not permitted'),
    ):
        command = f': {how} {file.path}'
        done = podman.run(
            [van.guest_config],
            '/bin/busybox',
            'sh',
            '-c',
            command,
            check=False,
        )
        assert done.returncode != 0
        assert error in done.stderr
    os_acc.unplug(whose)
    done = podman.run([van.guest_config], '/bin/busybox', 'true', check=False)
    assert done.returncode != 0
    assert van.guest_config in done.stderr


def test_beside_a_spec_of_nvidia_ctk(podman, here, nodes):
    """Its spec is another file of another kind, in /etc/cdi.

    The text has the form that "nvidia-ctk cdi generate" writes.
    """
    here()
    gpu = nodes / 'nvidia0'
    os.mknod(gpu, stat.S_IFCHR | 0o666, os.makedev(1, 252))
    spec = podman.static_specs / 'nvidia.yaml'
    spec.write_text(
        'cdiVersion: 0.5.0\n'
        'kind: nvidia.com/gpu\n'
        'devices:\n'
        '- name: "0"\n'
        '  containerEdits:\n'
        f'    deviceNodes:\n    - path: {gpu}\n'
        'containerEdits:\n'
        '  env:\n  - NVIDIA_VISIBLE_DEVICES=void\n'
    )
    (van,) = os_acc.plug(whose := instance(), [request()])
    (file,) = van.handle.files
    assert seen(podman, van.guest_config, 'nvidia.com/gpu=0').keys() == {
        file.path,
        str(gpu),
    }
    os_acc.unplug(whose)
    assert list(seen(podman, 'nvidia.com/gpu=0')) == [str(gpu)]
    spec.unlink()


def test_owner_and_mode_in_the_container(podman, here):
    for option, value in {
        'device_uid': 1000,
        'device_gid': 1001,
        'device_mode': '640',
    }.items():
        os_acc.CONF.set_override(option, value, 'os_acc_cdi')
    (van,) = os_acc.plug(whose := instance(), [request()])
    (line,) = seen(podman, van.guest_config).values()
    assert line.endswith(' 640 1000:1001')
    os_acc.unplug(whose)


def test_a_running_container_keeps_its_device(podman, here):
    whose, other = instance(), instance()
    vans = os_acc.plug(whose, [request(), request()])
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(other, [request()])
    assert 'is left' in str(caught.value.__cause__)
    taken = objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), handle=vans[0].handle
    )
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(other, [taken])
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    names = [van.guest_config for van in vans]
    podman.run(names, '/bin/busybox', 'sleep', '1000', name='job')
    plugin = os_acc._host.extensions.plugin('cdi')
    assert plugin.has_guest(whose) is True
    began = time.monotonic()
    with pytest.raises(exception.UnplugException, match=r'\(busybox\)'):
        os_acc.unplug(whose)
    # The two share the second.
    assert time.monotonic() - began < 60
    assert {van.state for van in os_acc.get_vans()} == {'error'}
    assert list(podman.specs.iterdir()) == []
    podman('stop', '--time', '0', 'job')
    assert os_acc.unplug(whose) == 2
    # The container is still there, but its devices are not.
    done = podman('start', 'job', check=False)
    assert done.returncode != 0
    assert names[0] in done.stderr
    podman('rm', 'job')


# How root in a container without CAP_MKNOD hides a device file: $1 is its
# directory, $2 its name.
HIDING = {
    # No process has a root directory with a /dev.
    'chroot': """
        mkdir -p /tmp/empty && cp /bin/busybox /tmp/empty/ &&
        exec chroot /tmp/empty /busybox sleep 1000
    """,
    # The path is longer than a system call takes (PATH_MAX, 4096 bytes).
    'long path': """
        cd $1 && name=$(printf '%0200d' 0) && i=0
        while [ $i -lt 25 ]; do
            mkdir $name && cd -P ./$name || exit
            i=$((i + 1))
        done
        mv $1/$2 ./$2 && exec sleep 1000
    """,
    'mount': """
        exec unshare -U -m -r /bin/busybox sh -c '
            mount -t tmpfs none $1 && exec sleep 1000' sh $1
    """,
    # The main thread ends, another one goes on.
    'zombie': 'rm $1/$2 && exec /bin/zombie',
}

ZOMBIE = r"""
#include <pthread.h>
#include <unistd.h>
static void *run(void *unused) { sleep(1000); return unused; }
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, run, 0);
    pthread_exit(0);
}
"""


@pytest.fixture(scope='module')
def applets(podman):
    """The commands in HIDING."""
    directory = podman.rootfs / 'bin'
    for name in ('chroot', 'cp', 'mkdir', 'mount', 'mv', 'printf'):
        (directory / name).symlink_to('busybox')
    for name in ('rm', 'sh', 'sleep', 'unshare'):
        (directory / name).symlink_to('busybox')
    source = podman.directory / 'zombie.c'
    source.write_text(ZOMBIE)
    subprocess.run(
        ['gcc', '-static', '-pthread', '-o', directory / 'zombie', source],
        check=True,
    )


def hide(podman, way: str, name: str, path: str) -> int:
    """Start a container that hides its device file, and wait until it has.

    :returns: the id of its first process
    """
    directory, file = path.rsplit('/', 1)
    arguments = [
        '/bin/busybox',
        'sh',
        '-c',
        HIDING[way],
        'sh',
        directory,
        file,
    ]
    podman.run(
        [name],
        *arguments,
        name='hider',
        more=('--cap-drop', 'MKNOD', '--security-opt', 'seccomp=unconfined'),
    )
    pid = first_process(podman, 'hider')
    # A main thread that has ended shows no root directory.
    shown = f'/proc/{pid}/root{path}'
    waiting.until(lambda: not os.path.exists(shown), 60, 'hider')
    return pid


def first_process(podman, name: str) -> int:
    said = podman('inspect', '--format', '{{.State.Pid}}', name).stdout
    return int(said)


@pytest.mark.parametrize('way', HIDING)
def test_a_container_that_hides_its_device_keeps_it(
    podman, here, applets, way
):
    whose = instance()
    (van,) = os_acc.plug(whose, [request()])
    path, pid = van.handle.files[0].path, None
    try:
        pid = hide(podman, way, van.guest_config, path)
        with pytest.raises(exception.UnplugException, match='may open'):
            os_acc.unplug(whose)
        # What was seen stays seen after a restart of os-acc.
        os_acc.initialize(reset=True)
        noted = undo_log.container_specs.read(van.uuid)
        assert len(noted.containers) == 1
        assert noted.containers[0].startswith('pid:[')
        with pytest.raises(exception.UnplugException, match='in a container'):
            os_acc.unplug(whose)
    finally:
        # runc takes a container whose main thread has ended for a stopped one.
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        podman('rm', '--force', '--time', '0', 'hider')
    # Another container takes the ids of the one that has ended.
    podman.run([], '/bin/busybox', 'sleep', '1000', name='other')
    try:
        assert os_acc.unplug(whose) == 1
    finally:
        podman('rm', '--force', '--time', '0', 'other')


def test_a_container_of_version_2_hides_after_it_was_seen(
    podman, here, applets, monkeypatch
):
    """No list says what its control group allows."""
    monkeypatch.setattr(device_cgroup, 'allowed', lambda task, numbers: [])
    whose = instance()
    (van,) = os_acc.plug(whose, [request()])
    path = van.handle.files[0].path
    command = f'read x < /tmp/go; rm {path}; exec sleep 1000'
    fifo = podman.rootfs / 'tmp/go'
    os.mkfifo(fifo)
    try:
        podman.run(
            [van.guest_config],
            *('/bin/busybox', 'sh', '-c', command),
            name='hider',
            more=('--cap-drop', 'MKNOD'),
        )
        assert os_acc._host.extensions.plugin('cdi').has_guest(whose)
        fifo.write_text('go\n')
        shown = f'/proc/{first_process(podman, "hider")}/root{path}'
        waiting.until(lambda: not os.path.exists(shown), 60, 'hider')
        with pytest.raises(exception.UnplugException, match='has had'):
            os_acc.unplug(whose)
    finally:
        podman('rm', '--force', '--time', '0', 'hider')
        fifo.unlink()
    assert os_acc.unplug(whose) == 1


def test_what_the_entry_adds(podman, here, tmp_path):
    (tmp_path / 'lib').mkdir()
    (tmp_path / 'lib/libacme.so').write_text('acme')
    hook = tmp_path / 'hook'
    hook.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/hooked\n')
    hook.chmod(0o755)
    here(
        env=['ACME_DEVICE=0'],
        mounts=[
            {
                'hostPath': str(tmp_path / 'lib'),
                'containerPath': '/opt/acme',
                'options': ['ro', 'rbind'],
            }
        ],
        hooks=[
            {
                'hookName': 'createRuntime',
                'path': str(hook),
                'args': ['hook', 'argument'],
            }
        ],
    )
    (van,) = os_acc.plug(whose := instance(), [request()])
    command = 'echo "$ACME_DEVICE"; /bin/busybox cat /opt/acme/libacme.so'
    done = podman.run([van.guest_config], '/bin/busybox', 'sh', '-c', command)
    assert done.stdout == '0\nacme'
    assert (tmp_path / 'hooked').read_text() == 'argument\n'
    os_acc.unplug(whose)


def test_two_specs_of_one_name(podman, here):
    """podman takes neither, so os-acc writes no second one."""
    (van,) = os_acc.plug(whose := instance(), [asked := request()])
    (path,) = podman.specs.iterdir()
    other = podman.specs / 'other.json'
    other.write_text(path.read_text())
    done = podman.run([van.guest_config], '/bin/busybox', 'true', check=False)
    assert done.returncode != 0
    os_acc.unplug(whose)
    with pytest.raises(exception.PlugException, match=r'other\.json'):
        os_acc.plug(whose, [asked])
    assert list(podman.specs.iterdir()) == [other]


# --- 1,000 random specs


def _base(number: int) -> dict[str, Any]:
    return {
        'cdiVersion': '0.5.0',
        'kind': f'vendor{number}.example.com/class',
        'devices': [
            {
                'name': 'probe',
                'containerEdits': {'env': [f'OS_ACC_{number}=1']},
            },
            # Nobody asks for it, so what it needs is not looked for.
            {
                'name': 'other',
                'containerEdits': {
                    'env': ['A=1'],
                    'deviceNodes': [{'path': '/dev/a', 'type': 'c'}],
                    'mounts': [{'hostPath': '/a', 'containerPath': '/b'}],
                    'hooks': [{'hookName': 'poststop', 'path': '/bin/true'}],
                },
            },
        ],
    }


def _edits(spec: dict[str, Any]) -> dict[str, Any]:
    edits = spec['devices'][1].setdefault('containerEdits', {})
    return edits if isinstance(edits, dict) else {}


def _set(place: Callable[[Any], Any], key: str, *values: Any) -> Any:
    """A change that gives a field one of some values."""

    def change(spec: dict[str, Any], rand: random.Random) -> None:
        place(spec)[key] = rand.choice(values)

    return change


def _drop(place: Callable[[Any], Any], key: str) -> Any:
    def change(spec: dict[str, Any], rand: random.Random) -> None:
        place(spec).pop(key, None)

    return change


def _first(key: str) -> Callable[[Any], Any]:
    def find(spec: dict[str, Any]) -> Any:
        items = _edits(spec).get(key)
        if isinstance(items, list) and items and isinstance(items[0], dict):
            return items[0]
        return {}

    return find


def _top(spec: Any) -> Any:
    return spec


def _other(spec: Any) -> Any:
    return spec['devices'][1]


_NODE, _MOUNT, _HOOK = _first('deviceNodes'), _first('mounts'), _first('hooks')
_NO_TEXT: tuple[Any, ...] = ([], {}, ['x'], {'a': 1})
_NO_NUMBER: tuple[Any, ...] = ('x', 1.5, [], True)
_NO_LIST: tuple[Any, ...] = ('x', {}, 1, {'a': 1})

# No vendor and no class of one letter: podman 4.3 ends with "slice bounds out
# of range" at such a spec.
CHANGES = (
    _set(_top, 'cdiVersion', '0.1.0', '0.2.0', '0.3.0', '0.4.0'),
    _set(
        _top, 'cdiVersion', '0.6.0', '1.0.0', '0.5', 'x', '', None, *_NO_TEXT
    ),
    _drop(_top, 'cdiVersion'),
    _drop(_top, 'kind'),
    _set(_top, 'kind', '', 'x', '/class', 'vendor/', '1v.org/class', 've/c/d'),
    _set(_top, 'kind', 'v-.org-/class', 'ven or/class', 'vendor/class-'),
    _set(_top, 'kind', 'vendor/cl.ass', 'vendor/_class', None, *_NO_TEXT),
    _set(_top, 'unknown', 1, None, 'x'),
    _set(_top, 'annotations', {}, {'a': 'b'}, None),
    _set(_top, 'containerEdits', None, {}, {'env': ['X=1']}, {'env': ['X']}),
    _set(_top, 'containerEdits', 'x', [], {'x': 1}, {'env': ['=1']}),
    _set(_other, 'name', '0', '0a:b', 'a.b', 'a_b-c', 'Z9'),
    _set(_other, 'name', 'probe', '', '_a', 'a-', 'a b', 'a/b', 'ä', 'a='),
    _set(_other, 'name', None, 5, *_NO_TEXT),
    _drop(_other, 'name'),
    _drop(_other, 'containerEdits'),
    _set(_other, 'containerEdits', None, {}, {'env': []}, {'env': ['B=1']}),
    _set(_other, 'containerEdits', [], 'x', {'hooks': None}, {'x': []}),
    _set(_other, 'unknown', 1, None),
    _set(_edits, 'env', ['A='], ['A=b=c'], ['=1'], ['A'], [''], None, []),
    _set(_edits, 'env', 'A=1', [['A=1']], {'A': 1}, *_NO_LIST),
    _set(_edits, 'deviceNodes', [], None, [{}], [{'path': ''}], *_NO_LIST),
    _set(_edits, 'mounts', [], None, [{}], *_NO_LIST),
    _set(_edits, 'hooks', [], None, [{}], *_NO_LIST),
    _set(_edits, 'intelRdt', {}, {'closID': 'x'}),
    _set(_edits, 'additionalGids', [1], []),
    _set(_edits, 'netDevices', []),
    _set(_NODE, 'path', '/dev/x', 'x', '', None, *_NO_TEXT),
    _set(_NODE, 'hostPath', '/dev/y', '', None, *_NO_TEXT),
    _set(_NODE, 'type', 'b', 'c', 'u', 'p', '', None, 'x', 'cc', *_NO_TEXT),
    _set(_NODE, 'permissions', 'r', 'mrw', 'rr', '', None, 'x', 'none', []),
    _set(_NODE, 'major', 0, 1, -1, 2**31, 2**63 - 1, 2**63, *_NO_NUMBER),
    _set(_NODE, 'minor', 0, 255, -(2**63), *_NO_NUMBER),
    _set(_NODE, 'fileMode', 0, 438, 2**32 - 1, 2**32, -1, *_NO_NUMBER),
    _set(_NODE, 'uid', 0, 2**32 - 1, 2**32, -1, None, *_NO_NUMBER),
    _set(_NODE, 'gid', 0, 7, -1, *_NO_NUMBER),
    _set(_NODE, 'unknown', 1),
    _set(_MOUNT, 'hostPath', 'x', '', None, *_NO_TEXT),
    _set(_MOUNT, 'containerPath', 'x', '', None, *_NO_TEXT),
    _set(_MOUNT, 'options', [], ['ro'], [''], None, *_NO_LIST),
    _set(_MOUNT, 'type', 'tmpfs', '', None, *_NO_TEXT),
    _set(_MOUNT, 'unknown', 1),
    _set(_HOOK, 'hookName', *cdi_validator.HOOKS),
    _set(_HOOK, 'hookName', 'Prestart', 'start', '', None, *_NO_TEXT),
    _set(_HOOK, 'path', 'x', '', None, *_NO_TEXT),
    _set(_HOOK, 'args', ['x'], [], None, *_NO_LIST),
    _set(_HOOK, 'env', ['A=1'], ['A'], [], None, *_NO_LIST),
    _set(_HOOK, 'timeout', 0, 1, -1, None, *_NO_NUMBER),
    _set(_HOOK, 'unknown', 1),
)

# What happens to the text of a spec.
TEXTS = (
    lambda text: text[:-1],
    lambda text: '',
    lambda text: 'null',
    lambda text: '[]',
    lambda text: '"x"',
    lambda text: text.replace('"kind":', '"kind": "a.b/cd", "kind":', 1),
    lambda text: text + '\n\n',
)


def _random_spec(number: int, rand: random.Random) -> tuple[str, str]:
    """Make a spec.

    :returns: its kind, and its text
    """
    spec = _base(number)
    for change in rand.choices(CHANGES, k=rand.choice((0, 1, 1, 1, 2, 3))):
        change(spec, rand)
    text = json.dumps(spec)
    if rand.random() < 0.03:
        text = rand.choice(TEXTS)(text)
    kind = spec.get('kind')
    return kind if isinstance(kind, str) else '', text


# The names by which podman asks for a CDI device and not for a file.
_ASKED = re.compile(
    r'[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])'
)

RUNTIME = """#!/bin/sh
# A runtime that only keeps what podman tells it.
while [ $# -gt 0 ]; do
    case $1 in
    --bundle | -b) cp "$2/config.json" "{config}" ;;
    esac
    shift
done
exit 1
"""


@pytest.fixture
def recorder(tmp_path):
    """A runtime that runs nothing: it copies its configuration."""
    config, path = tmp_path / 'config.json', tmp_path / 'recorder'
    path.write_text(RUNTIME.replace('{config}', str(config)))
    path.chmod(0o755)
    return path, config


def test_podman_takes_the_specs_that_the_checker_takes(
    podman, recorder, report
):
    """A second spec of each name is in the directory that counts less.

    So podman gives the container one of the two, and the container's
    environment tells whether it has taken the first.
    """
    seed = int(os.environ.get('OS_ACC_SEED') or random.randrange(2**32))
    rand = random.Random(seed)
    runtime, config = recorder
    texts, asked, kinds = [], {}, set()
    while len(texts) < 1000:
        number = len(texts)
        kind, text = _random_spec(number, rand)
        if kind in kinds:
            # Two specs of one kind would define the same devices.
            continue
        kinds.add(kind)
        texts.append(text)
        (podman.specs / f'{number}.json').write_text(text)
        if _ASKED.fullmatch(kind):
            asked[number] = f'{kind}=probe'
            second = _base(number) | {'kind': kind}
            del second['devices'][1:]
            second['devices'][0]['containerEdits']['env'] = [
                f'OS_ACC_{number}=0'
            ]
            path = podman.static_specs / f'{number}.json'
            path.write_text(json.dumps(second))
    expected = {
        number: cdi_validator.is_taken(text, cdi_validator.OLD)
        for number, text in enumerate(texts)
    }
    try:
        done = podman.run(
            list(asked.values()),
            '/bin/busybox',
            'true',
            runtime=str(runtime),
            options=('--log-level', 'debug'),
            check=False,
        )
        assert config.exists(), f'seed {seed}: {done.stderr[-2000:]}'
        env = json.loads(config.read_text())['process']['env']
        taken = {
            int(match[1]): match[2] == '1'
            for each in env
            if (match := re.fullmatch(r'OS_ACC_(\d+)=([01])', each))
        }
        wrong = [
            f'{texts[number]}: podman {taken.get(number)}'
            for number in asked
            if taken.get(number) != expected[number]
        ]
        assert wrong == [], f'seed {seed}: ' + '\n'.join(wrong[:20])
        # Those that podman was not asked for.
        assert not any(expected[n] for n in expected.keys() - asked.keys())
        (errors,) = set(re.findall(r'(\d+) errors occurred', done.stderr))
        assert int(errors) == list(expected.values()).count(False)
    finally:
        for directory in (podman.specs, podman.static_specs):
            for path in directory.iterdir():
                path.unlink()
    report(
        f'cdi: of 1000 random specs podman and the checker take the same '
        f'{sum(expected.values())} (seed {seed})'
    )


# --- kill -9

INSTANCE = '1b0a6bb0-1111-4222-8333-444455556666'
WATCHED = (
    (journal.Journal, 'journal', ['add', 'save', 'save_all', 'mark']),
    (journal.Journal, 'journal', ['settle']),
    (CDIPlugin, 'plugin', ['plug', 'unplug']),
    (root_folder.RootFiles, 'files', ['write', 'delete']),
    (file_owners, 'device_files', ['set_owner', 'set_mode']),
)


def test_killed_at_every_step(here, nodes, podman, tmp_path, report):
    """A spec is there if and only if its VAN is plugged."""
    close()
    entry = {
        'devices': f'{nodes}/acc*',
        'resource_class': CLASS,
        'group': 7,
        'mode': '0600',
    }

    def requests() -> list[objects.AcceleratorRequest]:
        return [
            objects.AcceleratorRequest(
                uuid=f'{n}0000000-1111-4222-8333-444455556666',
                resource_class=CLASS,
            )
            for n in 'a1'
        ]

    def whose() -> objects.InstanceInfo:
        return objects.InstanceInfo(uuid=INSTANCE, name='c')

    def run(
        work: Callable[[], Any], kill_at: int | None = None
    ) -> tuple[int, list[str]]:
        return processes.run_watched(
            work,
            WATCHED,
            kill_at,
            lambda: configure(tmp_path / 'state', podman.specs, entry),
        )

    def both() -> None:
        os_acc.plug(whose(), requests())
        os_acc.unplug(whose())

    def state() -> tuple[Any, ...]:
        return (
            sorted(path.name for path in podman.specs.iterdir()),
            undo_log.container_specs.names(),
            [
                (path.stat().st_mode, path.stat().st_gid)
                for path in sorted(nodes.iterdir())
            ],
        )

    before = state()
    assert run(lambda: os_acc.plug(whose(), requests()))[0] == 0
    plugged = state()
    assert len(plugged[0]) == 2
    assert run(lambda: os_acc.unplug(whose()))[0] == 0
    code, steps = run(both)
    assert code == 0
    assert state() == before
    ends = {'as before': 0, 'plugged': 0}
    for kill_at in range(len(steps)):
        assert run(both, kill_at)[0] == -signal.SIGKILL, steps[kill_at]
        # initialize() recovers.
        assert run(lambda: None)[0] == 0
        left = state()
        if left == plugged:
            ends['plugged'] += 1
            assert run(lambda: os_acc.unplug(whose()))[0] == 0
            left = state()
        else:
            ends['as before'] += 1
        assert left == before, steps[kill_at]
    report(f'cdi: killed at {len(steps)} steps of plug and unplug: {ends}')
    assert all(ends.values())
