# SPDX-License-Identifier: Apache-2.0

"""Containers that hide their devices, on a generated /proc.

What real containers do is in tests/functional/test_cdi_podman.py.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys

import hypothesis
from hypothesis import strategies as st
import pytest

from acc_plug_cdi import report
from os_acc import exception
from os_acc import finding
from os_acc.containers import spec as container_spec
from os_acc.containers import use as container_use
from os_acc.kernel import device_cgroup
from os_acc.kernel import device_files
from os_acc.kernel import sysfs
from os_acc.privileged import container_specs
from os_acc.privileged import undo_log

NUMBER = device_files.Number('c', 240, 7)
NODE = container_spec.Node('/dev/acc7', NUMBER)
SHOWN = ('/dev/acc7', 'c 240:7')
VAN = 'ab4e28ba-1111-4222-8333-444455556666'

# What runc allows each container, and the device.
LIST = """c *:* m
b *:* m
c 1:3 rwm
c 136:* rwm
c 240:7 rw
"""


def confine(
    here,
    pid: int,
    namespace: int = 0,
    start: int = 100,
    inner: str = '1',
    group: str = '',
    rules: str = '',
    hierarchy: str = '5:devices',
) -> None:
    """Put a process into a PID namespace and a control group.

    :param namespace: its number; 0: that of the host
    :param start: when the process has started
    :param inner: its ids in its namespaces
    :param rules: the devices that the group allows
    """
    proc = here.root / f'proc/{pid}'
    if namespace:
        (proc / 'ns').mkdir(exist_ok=True)
        (proc / 'ns/pid').symlink_to(f'pid:[{namespace}]')
        (proc / 'status').write_text(f'Name:\tx\nNSpid:\t{pid}\t{inner}\n')
        fields = ' '.join(['S', *map(str, range(4, 22)), str(start), '0'])
        (proc / 'stat').write_text(f'{pid} (a) b) {fields}\n')
    if group:
        (proc / 'cgroup').write_text(
            f'9:name=systemd:/\n{hierarchy}:{group}\n'
        )
    if rules:
        directory = here.root / f'sys/fs/cgroup/devices{group}'
        directory.mkdir(parents=True, exist_ok=True)
        (directory / 'devices.list').write_text(rules)


def reasons(seen: tuple[str, ...] = ()) -> list[str]:
    return [each.reason for each in container_use.users_of([NODE], seen)]


@pytest.fixture
def van(kernel):
    """A VAN whose spec has the device."""
    node = ['/dev/acc7', *NUMBER]
    undo_log.container_specs.write(
        VAN, undo_log.ContainerSpec(str(kernel.root), 'a.b/c', VAN, [node])
    )
    return VAN


def hide(here, pid: int, how: str) -> None:
    """Hide the device file of a container."""
    root = here.root / f'proc/{pid}/root'
    shutil.rmtree(root / 'number')
    if how == 'no root directory':
        shutil.rmtree(root)
    elif how == 'no /dev':
        shutil.rmtree(root / 'dev')
    elif how == 'an empty /dev':
        shutil.rmtree(root / 'dev')
        (root / 'dev').mkdir()
    elif how == '/dev is no directory':
        shutil.rmtree(root / 'dev')
        (root / 'dev').touch()
    elif how == "the host's /dev":
        shutil.rmtree(root)
        root.symlink_to(here.root)


WAYS = (
    'no root directory',
    'no /dev',
    'an empty /dev',
    '/dev is no directory',
    "the host's /dev",
)


@pytest.mark.parametrize('how', WAYS)
def test_what_the_control_group_allows_counts(kernel, how):
    pid = kernel.contain(SHOWN)
    confine(kernel, pid, 7, group='/pod/x', rules=LIST)
    hide(kernel, pid, how)
    assert reasons() == [
        f'process {pid} (sleep) is in a container that may open /dev/acc7'
    ]


def test_no_container_stops_the_scan_by_deep_directories(kernel):
    """Deeper than the interpreter lets functions call each other."""
    deep = kernel.contain()
    confine(kernel, deep, 7, group='/deep', rules='c 1:3 r')
    paths = [kernel.root / f'proc/{deep}/root/dev']
    for _ in range(sys.getrecursionlimit()):
        paths.append(paths[-1] / 'd')
    for path in paths:
        path.mkdir(parents=True, exist_ok=True)
    pid = kernel.contain(('/dev/elsewhere/acc', SHOWN[1]))
    confine(kernel, pid, 8, group='/x', rules='c 1:3 r')
    assert reasons() == [
        f'process {pid} (sleep) is in a container that has /dev/elsewhere/acc'
    ]
    # pytest's own removal of old directories calls itself for each of them.
    for path in reversed(paths):
        path.rmdir()


@pytest.mark.parametrize('how', WAYS)
@pytest.mark.parametrize('hierarchy', ['5:devices', '0:'])
def test_a_container_that_was_seen_counts_until_it_ends(
    kernel, van, how, hierarchy
):
    """Also with version 2, which says nothing of what a group allows."""
    pid = kernel.contain(SHOWN)
    confine(kernel, pid, 7, hierarchy=hierarchy, group='/x', rules='c 1:3 r')
    with pytest.raises(exception.DeviceBusy, match='has /dev/acc7'):
        container_specs.withdraw(van, 0.0)
    hide(kernel, pid, how)
    for _ in range(2):
        with pytest.raises(exception.DeviceBusy, match='has had'):
            container_specs.withdraw(van, 0.0)
    assert len(container_specs.users_of(VAN)) == 1
    kernel.end(pid)
    container_specs.withdraw(van, 0.0)
    assert undo_log.container_specs.names() == []


def test_the_first_process_stands_for_those_that_are_not_seen(kernel, van):
    """A process that starts others and ends can be missed in each look."""
    first = kernel.contain()
    confine(kernel, first, 7)
    other = kernel.contain(SHOWN)
    confine(kernel, other, 7, start=200, inner='2')
    assert len(container_specs.users_of(VAN)) == 1
    kernel.end(other)
    with pytest.raises(exception.DeviceBusy, match=f'process {first} '):
        container_specs.withdraw(van, 0.0)
    kernel.end(first)
    container_specs.withdraw(van, 0.0)


def test_a_container_that_takes_the_number_of_a_namespace(kernel, van):
    """The kernel gives the number of a namespace that has ended again."""
    pid = kernel.contain(SHOWN)
    confine(kernel, pid, 7, start=100)
    with pytest.raises(exception.DeviceBusy):
        container_specs.withdraw(van, 0.0)
    kernel.end(pid)
    confine(kernel, kernel.contain(), 7, start=300)
    container_specs.withdraw(van, 0.0)


def test_a_container_with_the_pid_namespace_of_the_host(kernel, van):
    pid = kernel.contain(SHOWN)
    confine(kernel, pid, group='/pod/x', hierarchy='0:')
    neighbour = kernel.contain()
    confine(kernel, neighbour, group='/pod/y', hierarchy='0:')
    host = kernel.hold('/dev/null', 'bash', 'c 1:3')
    confine(kernel, host, group='/pod/x', hierarchy='0:')
    with pytest.raises(exception.DeviceBusy, match=f'process {pid} '):
        container_specs.withdraw(van, 0.0)
    hide(kernel, pid, 'no /dev')
    with pytest.raises(exception.DeviceBusy, match=f'process {pid} '):
        container_specs.withdraw(van, 0.0)
    kernel.end(pid)
    container_specs.withdraw(van, 0.0)


def test_a_main_thread_that_has_ended(kernel):
    """It shows no root directory, and the root control group."""
    pid = kernel.contain()
    confine(kernel, pid, 7, group='/pod/x', rules=LIST)
    proc = kernel.root / f'proc/{pid}'
    thread = proc / 'task/4800'
    thread.mkdir(parents=True)
    (proc / 'cgroup').rename(thread / 'cgroup')
    (proc / 'cgroup').write_text('5:devices:/\n')
    top = kernel.root / 'sys/fs/cgroup/devices/devices.list'
    top.write_text('a *:* rwm')
    assert [f'process {pid}' in each for each in reasons()] == [True]


def test_a_thread_with_a_root_directory_of_its_own(kernel):
    pid = kernel.contain(('/dev/null', 'c 1:3'))
    proc = kernel.root / f'proc/{pid}'
    shown = kernel.root / f'proc/{kernel.contain(SHOWN)}'
    (proc / 'task').mkdir()
    (shown / 'root').rename(proc / 'task/root')
    shutil.rmtree(shown)
    (proc / 'task/4800').mkdir()
    (proc / 'task/root').rename(proc / 'task/4800/root')
    assert reasons() == [
        f'process {pid} (sleep) is in a container that has /dev/acc7'
    ]


@pytest.mark.parametrize('ended', ['main thread', ''])
def test_processes_of_the_host_do_not_count(kernel, ended):
    """A service with DeviceAllow= has such a control group."""
    pid = kernel.hold('/dev/acc7', 'service', 'c 240:7')
    confine(kernel, pid, group='/system.slice/x', rules=LIST)
    if ended:
        proc = kernel.root / f'proc/{pid}'
        (proc / 'task/4800').mkdir(parents=True)
        (proc / 'root').rename(proc / 'task/4800/root')
    assert reasons() == []


#: CAP_SYS_MODULE, CAP_SYS_RAWIO and CAP_SYS_ADMIN are among them.
ALL_RIGHTS = 0x1FFFFFFFFFF
KMSG = ('/dev/kmsg', 'c 1:11')


def privileged(here, rights: int = ALL_RIGHTS, user: str = '1', **more) -> int:
    """A container that has the device, and all of the host's: kube-proxy."""
    files = more.pop('files', (SHOWN, KMSG))
    for pid in ('self', str(found := here.contain(*files))):
        (here.root / f'proc/{pid}/ns').mkdir(exist_ok=True)
        link = here.root / f'proc/{pid}/ns/user'
        link.unlink(missing_ok=True)
        link.symlink_to(f'user:[{1 if pid == "self" else user}]')
    for path, number in (('/dev/null', 'c 1:3'), KMSG):
        here.add_node(path, number)
    confine(here, found, 7, **more)
    with open(here.root / f'proc/{found}/status', 'a') as file:
        file.write(f'CapBnd:\t{rights:016x}\n')
    return found


@pytest.mark.parametrize('seen', [True, False])
@pytest.mark.parametrize(
    'confined',
    [
        {'hierarchy': '0:', 'group': '/pod/x'},
        {'rules': 'a *:* rwm', 'group': '/pod/x'},
    ],
    ids=['v2', 'v1'],
)
def test_a_privileged_container_is_no_user(kernel, confined, seen):
    """Before, each release waited until kube-proxy had ended."""
    pid = privileged(kernel, **confined)
    assert reasons(('pid:[7] 100',) if seen else ()) == []
    # While it has the device open, it counts.
    proc = kernel.root / f'proc/{pid}'
    (proc / 'fd/9').symlink_to('/dev/acc7')
    (proc / 'number/9').write_text(SHOWN[1])
    assert [f'process {pid} ' in each for each in reasons()] == [True]


@pytest.mark.parametrize(
    'given',
    [
        {'rights': ALL_RIGHTS & ~(1 << 16)},
        {'rights': 0},
        {'user': '2'},
        {'files': (SHOWN,)},
        {'rules': LIST, 'group': '/pod/x'},
        {'rules': ' ', 'group': '/pod/x'},
    ],
)
def test_other_containers_are_users(kernel, given):
    """Each lacks something of what a privileged container has."""
    pid = privileged(kernel, **given)
    assert [f'process {pid} ' in each for each in reasons()] == [True]


@pytest.mark.parametrize(
    ('rule', 'counts'),
    [
        ('a *:* rwm', False),
        ('c *:* rwm', False),
        ('c 240:7 m', False),
        ('b 240:7 rwm', False),
        ('c 240:70 rwm', False),
        ('c 24:7 rwm', False),
        ('c 240:7 r', True),
        ('c 240:7 wm', True),
        ('c 240:* rw', True),
    ],
)
def test_rules_of_a_control_group(kernel, rule, counts):
    pid = kernel.contain()
    confine(kernel, pid, 7, group='/x', rules=f'c 1:3 rwm\n{rule}\n')
    assert len(reasons()) == counts


@hypothesis.given(
    st.lists(
        st.tuples(
            st.sampled_from('cb'),
            st.integers(1, 4095),
            st.integers(0, 2**20 - 1),
        ),
        max_size=8,
    )
)
@hypothesis.settings(
    max_examples=30,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_exactly_the_numbers_of_the_rules_are_allowed(tmp_path, given):
    (tmp_path / 'cgroup').write_text('5:cpu,devices:/x:y\n')
    directory = tmp_path / 'fs/cgroup/devices/x:y'
    directory.mkdir(parents=True, exist_ok=True)
    (directory / 'devices.list').write_text(
        'c 1:3 rwm\n' + ''.join(f'{k} {a}:{b} rw\n' for k, a, b in given)
    )
    numbers = [device_files.Number(*each) for each in given]
    others = [each._replace(minor=2**20) for each in numbers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sysfs, 'SYS', str(tmp_path))
        found = device_cgroup.allowed(str(tmp_path), [*numbers, *others])
    assert found == numbers


@pytest.mark.parametrize('how', ['not there', 'a directory'])
def test_a_list_that_cannot_be_read(kernel, how):
    pid = kernel.contain()
    confine(kernel, pid, 7, group='/x')
    path = kernel.root / 'sys/fs/cgroup/devices/x/devices.list'
    path.parent.mkdir(parents=True)
    if how == 'a directory':
        path.mkdir()
    with pytest.raises(exception.PrivilegeError, match='cannot be read'):
        reasons()
    (found,) = report.users()
    assert found.verdict == finding.ERROR
    assert f'{path} cannot be read' in found.text


def test_an_empty_list_allows_nothing(kernel):
    pid = kernel.contain()
    confine(kernel, pid, 7, group='/x')
    path = kernel.root / 'sys/fs/cgroup/devices/x/devices.list'
    path.parent.mkdir(parents=True)
    path.touch()
    assert reasons() == []
    assert list(report.users()) == []


@pytest.mark.parametrize('moves', [False, True])
def test_a_process_that_ends_or_moves_while_it_is_looked_at(
    kernel, monkeypatch, moves
):
    pid = kernel.contain()
    confine(kernel, pid, 7, group='/y', rules=LIST)
    confine(kernel, pid, group='/x')
    read = pathlib.Path.read_text

    def act(path: pathlib.Path, *args, **kwargs) -> str:
        if path.match('x/devices.list'):
            if moves:
                confine(kernel, pid, group='/y')
            else:
                (kernel.root / f'proc/{pid}/cgroup').unlink()
        return read(path, *args, **kwargs)

    monkeypatch.setattr(pathlib.Path, 'read_text', act)
    assert len(reasons()) == moves


def test_a_namespace_that_this_process_may_not_see(kernel, monkeypatch):
    """Some machines do not even show root those of process 1."""
    host = kernel.hold('/dev/null', 'init', 'c 1:3')
    kernel.contain(SHOWN)
    link = os.readlink

    def refuse(path: str | pathlib.Path) -> str:
        if str(path).endswith(f'{host}/ns/pid'):
            raise PermissionError(13, 'Permission denied', str(path))
        return link(path)

    monkeypatch.setattr(os, 'readlink', refuse)
    assert len(reasons()) == 1


def test_a_look_at_no_device_forgets_nobody(kernel, van):
    pid = kernel.contain(SHOWN)
    confine(kernel, pid, 7)
    assert len(container_specs.users_of(VAN)) == 1
    known = undo_log.container_specs.read(van)
    hide(kernel, pid, 'no /dev')
    assert container_use.users_of([], known.containers) == []
    assert len(container_specs.users_of(VAN)) == 1
    assert undo_log.container_specs.read(van) == known
