# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The kernel subjects and the privileged context, where they go wrong."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading

import devices
from oslo_privsep import comm
from oslo_privsep import daemon
import pytest

import os_acc
from os_acc import exception
from os_acc.devices import libvirt_domains
from os_acc.devices import modules
from os_acc.devices import open_files
from os_acc.devices import operation_lock
from os_acc.devices import pci
from os_acc.devices import reset
from os_acc.devices import sriov
from os_acc.devices import sysfs
from os_acc.devices import vfio
from os_acc.devices import waiting
from os_acc.privileged import context


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


def test_vfs_that_fewer_come_of(here):
    """The driver of a PF makes fewer, with no error."""

    def fewer():
        raise OSError(errno.EIO, 'Input/output error')

    here.fail('*/sriov_numvfs', fewer)
    with pytest.raises(exception.DeviceError, match='sriov_numvfs 3'):
        sriov.create(devices.PF, 3, 1.0)


def test_too_many_vfs(here):
    with pytest.raises(exception.DeviceError, match='that many VFs'):
        sriov.create(devices.PF, 5, 1.0)


def test_an_override_that_cannot_be_told(here, monkeypatch):
    """Somebody's unbind is blocked: not for ever for us."""
    go_on = threading.Event()
    monkeypatch.setattr(
        pci.Function, 'driver_override', property(lambda _: go_on.wait(30))
    )
    with pytest.raises(exception.Timeout, match='driver_override of PCI'):
        vfio.read_binding(pci.get(devices.GPU), 0.1)
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
            reset.reset(address, mode, False)
    else:
        reset.reset(address, mode, False)
    assert here.resets == ([address] if possible else [])


def test_a_reset_that_fails(here):
    here.fail('*/reset', errno.ENOTTY)
    with pytest.raises(exception.CleaningFailed, match='reset: '):
        reset.reset(devices.DISK, 'auto', False)


def test_no_reset_of_what_vfio_resets(here):
    reset.reset(devices.DISK, 'auto', True)
    reset.reset(devices.DISK, 'none', False)
    assert here.resets == []


# --- modules


def test_modprobe(here, monkeypatch):
    (here.pci / 'drivers/vfio-pci').rename(here.root / 'gone')
    calls = []

    def run(command, **kwargs):
        calls.append(command)
        here.add_driver('vfio-pci')

    monkeypatch.setattr(subprocess, 'run', run)
    assert modules.load_driver('vfio_pci', 1.0) == 'vfio-pci'
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
        modules.load_driver('vfio_pci', 1.0)


def test_a_module_that_is_no_name(here):
    with pytest.raises(exception.InvalidRequest, match='kernel module'):
        modules.load_driver('-x; y', 1.0)


# --- who has what


def test_a_device_under_another_name(here):
    """A file of a device that was made by hand: the number counts."""
    pid = here.hold('/dev/zero', 'odd')
    (here.root / f'proc/{pid}/root').symlink_to('/')
    (here.root / f'proc/{pid}/fd/7').unlink()
    (here.root / f'proc/{pid}/fd/7').symlink_to('/dev/fd0')
    assert open_files.users_of(['/dev/fd0'])
    other = here.hold('/dev/null')
    assert not any(str(other) in text for text in open_files.users_of(['/x']))


def test_processes_that_are_not_ours_to_see(here, monkeypatch):
    here.hold('/dev/null')
    listdir = os.listdir

    def fail(path='.'):
        if str(path).endswith('/fd'):
            raise PermissionError(errno.EACCES, 'Permission denied')
        return listdir(path)

    monkeypatch.setattr(os, 'listdir', fail)
    with pytest.raises(exception.PrivilegeError, match='CAP_SYS_PTRACE'):
        open_files.users_of(['/dev/vfio/1'])


def test_a_domain_that_cannot_be_read(here):
    here.write_file('libvirt/broken.xml', '<domstatus')
    here.write_file('libvirt/other.txt', '')
    here.write_file('libvirt/empty.xml', '<domstatus/>')
    assert libvirt_domains.users_of(devices.GPU, None, '') == []


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
        go_on = threading.Event()
        act = operation_lock.kept_until(lock, lambda: go_on.wait(30))
        thread = threading.Thread(target=act)
        thread.start()
    with pytest.raises(exception.Timeout, match='earlier operation'):
        with operation_lock.held(str(tmp_path), 0.05):
            pass
    go_on.set()
    thread.join()
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


def test_how_the_configuration_starts_it(clean):
    os_acc.CONF.set_override('helper_command', 'doas x', context.SECTION)
    command = context.pctxt.helper_command('/tmp/socket')
    assert command[:2] == ['doas', 'x']
    os_acc.CONF.clear_override('helper_command', context.SECTION)
