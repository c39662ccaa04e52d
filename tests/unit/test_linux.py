# SPDX-License-Identifier: Apache-2.0

"""The kernel subjects and the privileged context, where they go wrong."""

from __future__ import annotations

import errno
import os
import re
import shlex
import subprocess
import sys
import threading

import devices
from oslo_privsep import comm
from oslo_privsep import daemon
from oslo_privsep import priv_context
import pytest

import os_acc
from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import device_files
from os_acc.kernel import libvirt_domains
from os_acc.kernel import open_files
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.kernel import sysfs
from os_acc.kernel import vfio
from os_acc.privileged import cleaning
from os_acc.privileged import context
from os_acc.privileged import device_users
from os_acc.privileged import operation_lock
from os_acc.privileged.kernel import module_loading
from os_acc.privileged.kernel import vf_number
from os_acc.privileged.kernel import vfio_binding

MDEV = '6e1c1f0e-8a4e-4d6b-9f1d-0c2b3a4d5e6f'


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    return kernel


# --- sysfs


def test_what_is_not_there_is_none(tmp_path):
    missing = str(tmp_path / 'missing')
    assert sysfs.read(missing) is None
    assert sysfs.link(missing) is None
    assert sysfs.names(missing) == []


def test_what_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / 'file'
    path.write_text('1')

    def fail(*_):
        raise OSError(errno.EIO, 'Input/output error')

    with monkeypatch.context() as patch:
        patch.setattr(os, 'read', fail)
        with pytest.raises(OSError, match='Input/output'):
            sysfs.read(str(path))
    for name, look in (('listdir', sysfs.names), ('readlink', sysfs.link)):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match='Input/output'):
                look(str(path))
    with monkeypatch.context() as patch:
        patch.setattr(os, 'open', fail)
        with pytest.raises(OSError, match='Input/output'):
            sysfs.read(str(path))


def test_a_device_that_goes_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / 'file'
    path.write_text('1')

    def gone(*_):
        raise OSError(errno.ENODEV, 'No such device')

    monkeypatch.setattr(os, 'read', gone)
    assert sysfs.read(str(path)) is None


def test_a_write_goes_to_the_file(tmp_path):
    path = tmp_path / 'file'
    path.write_text('')
    sysfs.write(str(path), 'text')
    assert path.read_text() == 'text'
    with pytest.raises(FileNotFoundError):
        sysfs.write(str(tmp_path / 'missing'), 'text')


# --- PCI functions


def test_a_function_that_cannot_be_read(here):
    path = here.pci / 'devices' / devices.GPU / 'modalias'
    for text in ('', 'pci:nonsense'):
        path.write_text(text)
        with pytest.raises(exception.DeviceError, match='modalias'):
            pci.get(devices.GPU)
    path.unlink()
    assert pci.find(devices.GPU) is None


def test_vfs_that_the_kernel_refuses(here):
    here.fail('*/sriov_numvfs', errno.EIO)
    with pytest.raises(exception.DeviceError, match='sriov_numvfs 3'):
        vf_number.create(devices.PF, 3, 1.0)


def test_vfs_that_fewer_come_of(here):
    """The driver of a PF makes fewer, with no error. None of them stays."""
    asked = []

    def fewer(path, text):
        asked.append(text)
        here.write_numvfs(path.parent.name, min(int(text), 2))

    here.handlers['sriov_numvfs'] = fewer
    with pytest.raises(exception.DeviceError, match='2 VFs instead of 3'):
        vf_number.create(devices.PF, 3, 1.0)
    assert asked == ['3', '0']
    assert sriov.count(devices.PF) == 0


def test_too_many_vfs(here):
    with pytest.raises(exception.DeviceError, match='that many VFs'):
        vf_number.create(devices.PF, 5, 1.0)


def test_an_override_that_cannot_be_told(here, monkeypatch):
    """Somebody's unbind is blocked: not for ever for us."""
    go_on = threading.Event()
    monkeypatch.setattr(
        pci.Function, 'driver_override', property(lambda _: go_on.wait(30))
    )
    with pytest.raises(exception.Timeout, match='driver_override of PCI'):
        vfio_binding.read_binding(pci.get(devices.GPU), 0.1)
    go_on.set()


@pytest.mark.parametrize(
    'methods, others, mode, possible',
    [
        ('flr', False, 'auto', True),
        ('', False, 'auto', False),
        ('', False, 'required', False),
        ('bus', True, 'required', False),
        ('bus', False, 'required', True),
    ],
)
def test_reset(here, methods, others, mode, possible):
    address = '0000:40:00.0'
    files = {'reset': '', 'reset_method': f'{methods}\n'}
    here.add_function(address, driver=None, files=files)
    if others:
        here.add_function('0000:40:00.1')
    if mode == 'required' and not possible:
        with pytest.raises(exception.CleaningFailed, match='no reset'):
            cleaning.reset(address, mode, False)
    else:
        cleaning.reset(address, mode, False)
    assert here.resets == ([address] if possible else [])


def test_a_reset_that_fails(here):
    here.fail('*/reset', errno.ENOTTY)
    with pytest.raises(exception.CleaningFailed, match='reset: '):
        cleaning.reset(devices.DISK, 'auto', False)


def test_no_reset_of_what_vfio_resets(here):
    cleaning.reset(devices.DISK, 'auto', True)
    cleaning.reset(devices.DISK, 'none', False)
    assert here.resets == []


# --- modules


def test_modprobe(here, monkeypatch):
    (here.pci / 'drivers/vfio-pci').rename(here.root / 'gone')
    calls = []

    def run(command, **kwargs):
        calls.append(command)
        here.add_driver('vfio-pci')

    monkeypatch.setattr(subprocess, 'run', run)
    assert module_loading.load_driver('vfio_pci', 1.0) == 'vfio-pci'
    assert calls == [['modprobe', '--', 'vfio_pci']]


@pytest.mark.parametrize(
    'failure, says',
    [
        (subprocess.TimeoutExpired('modprobe', 1), 'modprobe vfio_pci'),
        (
            subprocess.CalledProcessError(1, 'modprobe', stderr='not found'),
            'not found',
        ),
        (FileNotFoundError('modprobe'), 'modprobe'),
        (None, 'no PCI driver of its name'),
    ],
)
def test_modprobe_that_fails(here, monkeypatch, failure, says):
    (here.pci / 'drivers/vfio-pci').rename(here.root / 'gone')

    def run(command, **kwargs):
        if failure is not None:
            raise failure

    monkeypatch.setattr(subprocess, 'run', run)
    with pytest.raises(exception.ExceptionBase, match=says):
        module_loading.load_driver('vfio_pci', 1.0)


def test_a_module_that_is_no_name(here):
    with pytest.raises(exception.InvalidRequest, match='kernel module'):
        module_loading.load_driver('-x; y', 1.0)


# --- who has what


GROUP = device_files.DeviceFile(
    '/dev/vfio/12', device_files.Number('c', 244, 12)
)


@pytest.mark.parametrize(
    'link',
    ['/dev/vfio/12', '/dev/vfio/12 (deleted)', '/dev/gpu0', '/dev/null'],
)
def test_the_number_of_an_open_device_counts(here, link):
    pid = here.hold(link, 'qemu-system-x86', 'c 244:12')
    assert open_files.users_of([GROUP]) == [
        f'process {pid} (qemu-system-x86) has /dev/vfio/12 open'
    ]


@pytest.mark.parametrize(
    'path, number',
    [
        ('/dev/vfio/13', 'c 244:13'),
        ('/dev/loop12', 'b 244:12'),
        # A file of another /dev that merely has the name.
        ('/dev/vfio/12', 'c 1:3'),
        ('/dev/vfio/12', ''),
    ],
)
def test_another_open_device(here, path, number):
    here.hold(path, number=number)
    assert open_files.users_of([GROUP]) == []


def test_what_is_in_no_file_system_is_not_examined(here, monkeypatch):
    """A stat() of it could not tell more."""
    here.hold('anon_inode:[vfio-device]', number='c 244:12')
    assert open_files.users_of([GROUP]) == []


def test_the_numbers_of_files(tmp_path):
    """See tests/functional/test_open_files.py for open files."""
    assert device_files.number_of('/dev/null') == ('c', 1, 3)
    assert device_files.number_of(str(tmp_path)) is None
    assert device_files.number_of(str(tmp_path / 'missing')) is None


def test_the_files_of_vfio(here):
    path = here.add_function('0000:72:00.0', '1d0f:f010', 0x120000, 'vfio-pci')
    group = here.node('0000:72:00.0')
    (path / 'vfio-dev/vfio7').mkdir(parents=True)
    # Linux 6.1 has the directory, but not its file dev: no device file.
    assert [file.path for file in vfio.nodes(str(path))] == [group]
    (path / 'vfio-dev/vfio7/dev').write_text('511:7\n')
    own = device_files.DeviceFile(
        f'{sysfs.DEV}/vfio/devices/vfio7', device_files.Number('c', 511, 7)
    )
    assert own in vfio.nodes(str(path))


def test_a_gpu_of_nvidia(here):
    here.write_file(
        f'proc/driver/nvidia/gpus/{devices.GPU}/information',
        'Model: 	 NVIDIA A16\nDevice Minor: 	 3\n',
    )
    (file,) = open_files.nvidia_files(devices.GPU)
    assert (file.path, file.number) == (
        f'{sysfs.DEV}/nvidia3',
        ('c', 195, 3),
    )


def test_a_block_device_of_the_function(here):
    pid = here.hold('/mnt/disk', 'dd', 'b 259:0')
    (text,) = device_users.of_function(
        devices.DISK, devices.instance().uuid, False
    )
    assert text == f'process {pid} (dd) has {sysfs.DEV}/nvme0n1 open'


# --- a guest that is slow to close, or is killed


@pytest.fixture
def bound(here):
    here.bind(devices.GPU, 'vfio-pci')
    return f'{sysfs.SYS}/bus/pci/devices/{devices.GPU}'


def busy(monkeypatch, node, times):
    """The kernel answers EBUSY to an open of a group, so many times."""
    opened = os.open
    left = [times]

    def fail(path, *args, **kwargs):
        if path == node and left[0]:
            left[0] -= 1
            raise OSError(errno.EBUSY, 'Device or resource busy')
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, 'open', fail)
    return left


def test_libvirt_has_deleted_the_file(here, bound):
    node = here.node(devices.GPU)
    pid = here.hold(node, 'qemu-system-x86', link=f'{node} (deleted)')
    with pytest.raises(exception.DeviceBusy) as err:
        device_users.wait_until_closed(bound, 'PCI function X', 0.1)
    assert str(err.value).endswith(
        f'process {pid} (qemu-system-x86) has {node} open'
    )
    here.end(pid)
    device_users.wait_until_closed(bound, 'PCI function X', 0.1)


def test_a_group_that_is_open_without_a_process(here, bound, monkeypatch):
    """A killed QEMU, whose /proc/PID/fd is empty, unmaps its memory."""
    node = here.node(devices.GPU)
    left = busy(monkeypatch, node, 1000)
    with pytest.raises(exception.DeviceBusy) as err:
        device_users.wait_until_closed(bound, 'PCI function X', 0.1)
    assert f'{node} is still open, although no process' in str(err.value)
    left[0] = 20
    device_users.wait_until_closed(bound, 'PCI function X', 20)
    assert left[0] == 0


def test_two_that_look_at_a_group_at_once(here, bound, monkeypatch):
    """Another process of os-acc has it open for a moment."""
    busy(monkeypatch, here.node(devices.GPU), 1)
    device_users.wait_until_closed(bound, 'PCI function X', 0)


def test_the_processes_are_read_once_while_the_group_is_open(
    here, bound, monkeypatch
):
    node = here.node(devices.GPU)
    here.hold(node)
    busy(monkeypatch, node, 1000)
    looks = []
    users_of = open_files.users_of

    def count(files):
        looks.append(files)
        return users_of(files)

    monkeypatch.setattr(open_files, 'users_of', count)
    with pytest.raises(exception.DeviceBusy, match='qemu'):
        device_users.wait_until_closed(bound, 'PCI function X', 0.3)
    assert len(looks) == 1


def test_a_group_that_may_not_be_opened(here, bound, monkeypatch):
    """In no-IOMMU mode the daemon lacks a capability: the processes tell."""
    opened = os.open

    def fail(path, *args, **kwargs):
        if path == here.node(devices.GPU):
            raise PermissionError(errno.EPERM, 'Operation not permitted')
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, 'open', fail)
    device_users.wait_until_closed(bound, 'PCI function X', 0)


def test_processes_that_are_not_ours_to_see(here, monkeypatch):
    here.hold('/dev/null')
    listdir = os.listdir

    def fail(path='.'):
        if str(path).endswith('/fd'):
            raise PermissionError(errno.EACCES, 'Permission denied')
        return listdir(path)

    monkeypatch.setattr(os, 'listdir', fail)
    with pytest.raises(exception.PrivilegeError, match='os-acc doctor'):
        open_files.users_of([GROUP])


def test_a_domain_that_cannot_be_read(here):
    here.write_file('libvirt/broken.xml', '<domstatus')
    here.write_file('libvirt/other.txt', '')
    here.write_file('libvirt/empty.xml', '<domstatus/>')
    assert libvirt_domains.users_of(devices.GPU, None, '') == []


@pytest.mark.parametrize(
    'value',
    [
        f'vfio-pci,host={devices.GPU}',
        f'vfio-pci,sysfsdev=/sys/bus/mdev/devices/{MDEV}',
        f"{{'driver':'vfio-pci','sysfsdev':'/sys/x/{MDEV}/'}}",
    ],
)
def test_a_domain_with_devices_on_its_command_line(here, value):
    value = value.replace("'", '&quot;')
    here.write_file(
        'libvirt/web.xml',
        '<domstatus><domain xmlns:qemu="http://libvirt.org/schemas/domain/'
        'qemu/1.0"><name>web</name><uuid>u</uuid><qemu:commandline>'
        f'<qemu:arg value="{value}"/></qemu:commandline></domain></domstatus>',
    )
    assert libvirt_domains.users_of(devices.GPU, MDEV, '')


# --- waiting


def test_waiting_by_events(monkeypatch):
    """Each event is a look."""
    polls = []

    class Monitor:
        def poll(self, timeout):
            polls.append(timeout)

    monkeypatch.setattr(waiting, '_monitor', lambda subsystem: Monitor())
    assert waiting.until(lambda: len(polls) == 3, 5.0, 'x', 'pci') is True
    with pytest.raises(exception.Timeout, match='Waited 0 s for nothing'):
        waiting.until(lambda: None, 0, 'nothing', 'pci')


def test_no_events_to_be_had(monkeypatch):
    monkeypatch.setitem(sys.modules, 'pyudev', None)
    assert waiting._monitor('pci') is None


def test_what_fails_in_time_fails_as_it_is():
    def fail():
        raise ValueError('x')

    with pytest.raises(ValueError, match='x'):
        waiting.at_most(fail, 5.0, 'x')


def test_one_operation_at_a_time(clean, tmp_path):
    with operation_lock.held(str(tmp_path), 1.0) as lock:
        go_on, ended = threading.Event(), []
        with pytest.raises(exception.Timeout, match='the act'):
            operation_lock.at_most(
                lock, lambda: ended.append(go_on.wait(30)), 0.05, 'the act'
            )
    with pytest.raises(exception.Timeout, match='earlier operation'):
        with operation_lock.held(str(tmp_path), 0.05):
            pass
    go_on.set()
    with operation_lock.held(str(tmp_path), 1.0):
        pass
    with pytest.raises(exception.DeviceNotFound):
        with operation_lock.held(str(tmp_path / 'missing'), 1.0):
            pass


# --- the privileged context


def _nothing() -> None:
    """What would run in the daemon."""


@pytest.mark.parametrize(
    'failure, says',
    [
        (daemon.FailedToDropPrivileges('helper said no'), 'helper said no'),
        (daemon.ProtocolError('what'), 'what'),
        (comm.PrivsepTimeout('late'), 'late'),
        (OSError(errno.EPIPE, 'Broken pipe'), 'Broken pipe'),
    ],
)
def test_the_daemon_is_not_to_be_had(monkeypatch, clean, failure, says):
    def fail(*_args, **_kwargs):
        raise failure

    monkeypatch.setattr(
        context.pctxt, 'entrypoint', lambda func: _fails_as(func, failure)
    )
    os_acc.CONF.set_override('helper_command', sys.executable, context.SECTION)
    call = context.entry(_nothing)
    with pytest.raises(exception.PrivilegeError, match=says):
        call()


def _fails_as(func, failure):
    def remote(*_args, **_kwargs):
        raise failure

    return remote


def test_the_command_is_missing(monkeypatch, clean):
    failure = daemon.FailedToDropPrivileges('x')
    monkeypatch.setattr(
        context.pctxt, 'entrypoint', lambda func: _fails_as(func, failure)
    )
    os_acc.CONF.set_override('helper_command', '/no/such', context.SECTION)
    with pytest.raises(exception.PrivilegeError, match='no command'):
        context.entry(_nothing)()


@pytest.mark.parametrize(
    ('number', 'raised'),
    [
        (errno.EIO, exception.DeviceError),
        (errno.EMFILE, exception.PrivilegeError),
    ],
)
def test_an_error_of_the_act_itself(here, monkeypatch, number, raised):
    """In the daemon, or without one: not taken for the daemon's own."""
    failure = OSError(number, os.strerror(number))
    monkeypatch.setattr(
        context.pctxt, 'entrypoint', lambda func: _fails_as(func, failure)
    )
    with pytest.raises(raised, match=os.strerror(number)):
        context.entry(_nothing)()


@pytest.mark.parametrize(
    'user, begins', [(0, 'privsep-helper'), (1000, 'sudo')]
)
def test_how_the_daemon_is_started(monkeypatch, clean, user, begins):
    monkeypatch.setattr(os, 'geteuid', lambda: user)
    os_acc.CONF.clear_override('helper_command', context.SECTION)
    command = context.pctxt.helper_command('/tmp/socket')
    assert os.path.basename(command[0]) == begins
    if user:
        assert command[1] == '-n'
    assert 'os_acc.privileged.context.pctxt' in command


@pytest.fixture
def root_helper(clean, monkeypatch):
    """What a service gives to priv_context.init(), and the file to run."""
    monkeypatch.setattr(os, 'geteuid', lambda: 1000)
    before = priv_context._HELPER_COMMAND_PREFIX
    os_acc.CONF.clear_override('helper_command', context.SECTION)

    def init(text: str, *files: str) -> list[str]:
        priv_context.init(root_helper=shlex.split(text))
        monkeypatch.setattr(sys, 'executable', str(files[0]))
        return context.pctxt.helper_command('/tmp/socket')

    yield init
    priv_context.init(root_helper=before)


ROOTWRAP = 'sudo nova-rootwrap /etc/nova/rootwrap.conf'


@pytest.mark.parametrize('user', [0, 1000])
def test_the_root_helper_of_the_service_runs_the_bare_name(
    root_helper, monkeypatch, tmp_path, user
):
    monkeypatch.setattr(os, 'geteuid', lambda: user)
    (tmp_path / 'privsep-helper').touch()
    command = root_helper(ROOTWRAP, tmp_path / 'python')
    assert command[: command.index('--privsep_context')] == [
        *(['sudo', '-n'] if user else []),
        'nova-rootwrap',
        '/etc/nova/rootwrap.conf',
        'privsep-helper',
    ]


def test_plain_sudo_runs_the_one_beside_python(root_helper, tmp_path):
    beside = tmp_path / 'privsep-helper'
    command = root_helper('sudo', tmp_path / 'python')
    assert command[:3] == ['sudo', '-n', 'privsep-helper']
    beside.touch()
    command = root_helper('sudo', tmp_path / 'python')
    assert command[:3] == ['sudo', '-n', str(beside)]


@pytest.mark.parametrize('prefix', ['sudo', ROOTWRAP])
def test_the_error_names_the_command_that_was_run(
    root_helper, monkeypatch, tmp_path, prefix
):
    (tmp_path / 'privsep-helper').touch()
    command = root_helper(prefix, tmp_path / 'python')
    failure = daemon.FailedToDropPrivileges('exited non-zero (99)')
    monkeypatch.setattr(
        context.pctxt, 'entrypoint', lambda func: _fails_as(func, failure)
    )
    run = shlex.join(command[: command.index('--privsep_context')])
    with pytest.raises(exception.PrivilegeError, match=re.escape(run)):
        context.entry(_nothing)()


def test_how_the_configuration_starts_it(clean):
    os_acc.CONF.set_override('helper_command', 'doas x', context.SECTION)
    command = context.pctxt.helper_command('/tmp/socket')
    assert command[:2] == ['doas', 'x']
    os_acc.CONF.clear_override('helper_command', context.SECTION)
