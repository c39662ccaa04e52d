# SPDX-License-Identifier: Apache-2.0

"""The driver fpga, with vendors' commands that work and that fail."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import threading
import time
import uuid

import devices
import pytest
import vendor as vendor_module
import web

import os_acc
from os_acc import exception
from os_acc import health
from os_acc import objects
from os_acc.bitstreams import file as bitstream_file
from os_acc.privileged import command
from os_acc.privileged import operation_lock
from os_acc.privileged import root_folder
from os_acc.privileged.fpga import command as privileged
from os_acc.privileged.fpga import root_copy

FPGA, VFS = vendor_module.FPGA, vendor_module.VFS


@pytest.fixture
def tool(kernel, tmp_path):
    made = vendor_module.installed(kernel, tmp_path / 'vendor')
    os_acc.initialize()
    return made


def program(tool, function='aes', **kwargs):
    return os_acc.program_device(
        FPGA, tool.bitstream(function), function, **kwargs
    )


def failure(tool, cause=exception.DeviceError, function='aes'):
    with pytest.raises(cause) as caught:
        program(tool, function)
    return str(caught.value)


def record():
    (found,) = os_acc._get().journal.programs()
    return found


def request(tool, function='aes', address=None, **values):
    handle = objects.PCIHandle(address=address) if address else None
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()),
        handle=handle,
        resource_class=None if address else 'FPGA',
        function_id=function,
        bitstream=tool.bitstream(function) if function else None,
        **values,
    )


def cause(*requests):
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(devices.instance(), list(requests))
    assert caught.value.undo_errors == []
    return caught.value.__cause__


def plug_before_the_record(monkeypatch, wanted):
    """Plug a request right before the first record of a program is saved.

    :returns: the VANs, once they are plugged
    """
    journal = os_acc._get().journal
    save, plugged = journal.save_program, []

    def save_program(program):
        if not plugged:
            plugged.extend(os_acc.plug(devices.instance(), [wanted]))
        save(program)

    monkeypatch.setattr(journal, 'save_program', save_program)
    return plugged


# --- which requests


def test_it_takes_what_its_commands_program(kernel, tool):
    devices.furnish(kernel)
    tool.configure('single')
    for wanted, driver in (
        (request(tool, address=VFS[1]), 'fpga'),
        (request(tool), 'fpga'),
    ):
        instance = devices.instance()
        (van,) = os_acc.plug(instance, [wanted])
        assert (van.driver, van.device) == (driver, FPGA)
        assert kernel.driver_of(van.handle.address) == 'vfio-pci'
        os_acc.unplug(instance)
        assert kernel.driver_of(van.handle.address) == 'dfl-pci'
    devices.spec({'address': '*'})
    (van,) = os_acc.plug(devices.instance(), [devices.pci(devices.DISK)])
    assert van.driver == 'pci'


def test_it_takes_what_it_reports(kernel, tool):
    """The resource class is the default one, not one of device_spec."""
    address = '0000:0b:00.0'
    kernel.add_function(address, '1d0f:f010', 0x120000, 'dfl-pci', totalvfs=4)
    spec = json.loads(os_acc.CONF.os_acc.device_spec[0])
    del spec['resource_class']
    devices.spec({**spec, 'address': address})
    tool.mode('fail')
    with pytest.raises(exception.DeviceError):
        os_acc.program_device(address, tool.bitstream('aes'), 'aes')
    (found,) = (d for d in os_acc.get_devices() if d.address == address)
    assert found.driver == 'fpga'
    assert found.resource_class == 'CUSTOM_PCI_1D0F_F010'
    # The driver pci, which would ignore its state, does not get it.
    reason = cause(devices.wanted(found.resource_class))
    assert 'its programming failed' in str(reason)


def test_each_device_is_reported_once(tool):
    (found,) = (d for d in os_acc.get_devices() if d.address == FPGA)
    assert found.driver == 'fpga'
    assert (found.programming, found.function_id) == ('single', None)
    assert (found.handles_total, found.resource_class) == (3, 'FPGA')


def test_vfs_are_made_when_they_are_asked_for(kernel, tool):
    kernel.write(f'{kernel.pci}/devices/{FPGA}/sriov_numvfs', '0')
    before = kernel.snapshot()
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [request(tool)])
    assert van.handle.address in VFS
    assert tool.function() == 'aes'
    os_acc.unplug(instance)
    assert kernel.snapshot() == before


def test_a_whole_device_is_programmed_before_it_is_bound(kernel, tool):
    kernel.write(f'{kernel.pci}/devices/{FPGA}/sriov_numvfs', '0')
    entry = json.loads(os_acc.CONF.os_acc.device_spec[0])
    del entry['num_vfs']
    devices.spec(entry)
    seen = []
    original = privileged.run

    def run(*args):
        seen.append(kernel.driver_of(FPGA))
        return original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privileged, 'run', run)
        (van,) = os_acc.plug(devices.instance(), [request(tool, address=FPGA)])
    assert seen == ['dfl-pci', 'dfl-pci']
    assert kernel.driver_of(FPGA) == 'vfio-pci'
    assert van.function_id == 'aes'


# --- the commands


@pytest.mark.parametrize(
    ('template', 'arguments'),
    [
        (
            '{directory}/program --segment 0x{{domain}} --bus 0x{{bus}} '
            '--device 0x{{device}} --function 0x{{function}} {{file}}',
            '--segment 0x0000 --bus 0x0a --device 0x00 --function 0x0',
        ),
        (
            '{directory}/program program --device {{address}} --base --image '
            '{{file}}',
            f'program --device {FPGA} --base --image',
        ),
    ],
    ids=['OPAE', 'Xilinx'],
)
def test_the_arguments_of_vendors(tool, template, arguments):
    tool.mode('lie')
    tool.configure('single', program=template.format(directory=tool.directory))
    with pytest.raises(exception.DeviceError):
        program(tool)
    (call,) = tool.calls()
    assert call[:-1] == arguments.split()
    file = pathlib.Path(call[-1])
    assert file.name == 'aes.gbs'
    assert not file.exists()  # the copy of root was removed


def test_a_command_that_fails(tool):
    tool.mode('fail')
    reason = failure(tool)
    assert 'exit code 3: no such  board' in reason
    assert (record().state, record().error) == ('error', reason)


def test_a_command_that_lies(tool):
    program(tool, 'sha')
    tool.mode('lie')
    reason = failure(tool)
    assert 'does not have function aes: function: sha' in reason
    assert record().state == 'error'
    tool.mode('ok')
    assert program(tool) is True
    assert record().state == 'programmed'


def test_a_command_that_hangs(tool):
    os_acc.CONF.set_override('program_timeout', 0.3, 'os_acc')
    tool.mode('hang')
    assert 'not done after 0.3 s, killed' in failure(tool)
    # Its children were killed too.
    group = int((tool.directory / 'pid').read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.killpg(group, 0)
            time.sleep(0.05)
    assert record().state == 'error'
    tool.mode('ok')
    assert program(tool) is True


def test_a_command_that_got_away_keeps_the_next_one_off(tool):
    """A child has left the process group and still uses the device."""
    os_acc.CONF.set_override('device_timeout', 0.2, 'os_acc')
    os_acc.CONF.set_override('program_timeout', 0.5, 'os_acc')
    away = tool.directory / 'away'
    away.write_text(
        '#!/bin/sh\n'
        f'setsid sh -c "echo \\$\\$ > {tool.directory}/pid; exec sleep 30" &\n'
        'wait\n'
    )
    away.chmod(0o755)
    tool.configure('single', program=[str(away), '{address}', '{file}'])
    assert 'killed' in failure(tool)
    tool.configure('single')
    reason = failure(tool, exception.DeviceBusy)
    assert 'an earlier command for it has not ended' in reason
    assert tool.calls() == []
    os.kill(int((tool.directory / 'pid').read_text()), 9)
    for _ in range(100):
        try:
            assert program(tool) is True
            break
        except exception.DeviceBusy:
            time.sleep(0.05)
    assert tool.function() == 'aes'


def test_a_command_that_cannot_be_killed_does_not_block(tool, monkeypatch):
    monkeypatch.setattr(command, 'GRACE', 0.1)
    monkeypatch.setattr(command.os, 'killpg', lambda *args: None)
    os_acc.CONF.set_override('program_timeout', 0.2, 'os_acc')
    tool.mode('hang')
    assert 'cannot be killed' in failure(tool)
    monkeypatch.undo()
    os.killpg(int((tool.directory / 'pid').read_text()), 9)


def test_a_command_that_is_not_there(tool):
    tool.configure('single', program='/nowhere/program {address} {file}')
    reason = failure(tool)
    assert reason.endswith('/nowhere/program: there is no such command')
    # The device was not touched, and is not in error.
    assert os_acc._get().journal.programs() == []


def test_a_check_by_exit_code(tool):
    (tool.directory / FPGA).symlink_to('state.')
    check = f'/usr/bin/grep -q {{function_id}} {tool.directory}/{{address}}'
    tool.configure('single', check=check)
    assert program(tool) is True
    tool.mode('lie')
    assert 'exit code 1' in failure(tool, function='sha')


def test_a_function_that_the_kernel_tells(kernel, tool):
    path = kernel.pci / f'devices/{FPGA}/fpga_region/region0/port0'
    path.mkdir(parents=True)
    glob = 'fpga_region/region*/port*/afu_id'
    tool.configure('single', function_file=glob)
    function = 'D8424DC4-A4A3-C413-F89E-433683F9040B'
    (path / 'afu_id').write_text(f'{function.lower().replace("-", "")}\n')
    # The device has the function already, so nothing is programmed.
    os_acc.plug(devices.instance(), [request(tool, function)])
    assert tool.calls() == []
    os_acc.unplug(
        objects.InstanceInfo(
            uuid=os_acc.get_vans()[0].instance_uuid, name='', project_id=''
        )
    )
    assert 'but has d8424' in failure(tool)
    assert record().state == 'error'


@pytest.fixture
def port(kernel, tool):
    """:returns: the file by which the kernel tells the function"""
    without_check(function_file='fpga_region/region*/port*/afu_id')
    return kernel.pci / f'devices/{FPGA}/fpga_region/region0/port0/afu_id'


def without_check(**values):
    spec = json.loads(os_acc.CONF.os_acc.device_spec[0]) | values
    del spec['check']
    devices.spec(spec)


@pytest.mark.parametrize('text', [None, ''])
def test_a_lie_that_the_kernel_does_not_confirm(tool, port, text):
    os_acc.CONF.set_override('device_timeout', 0.1, 'os_acc')
    if text is not None:
        port.parent.mkdir(parents=True)
        port.write_text(text)
    tool.mode('lie')
    reason = failure(tool, exception.Timeout)
    assert 'the kernel to show function aes' in reason
    assert record().state == 'error'


def test_a_port_that_appears_late(tool, port):
    def appear():
        while not tool.calls():
            time.sleep(0.01)
        time.sleep(0.1)
        port.parent.mkdir(parents=True)
        port.write_text('aes')

    thread = threading.Thread(target=appear)
    thread.start()
    assert program(tool) is True
    thread.join()
    assert record().state == 'programmed'


@pytest.mark.parametrize(
    ('there', 'wanted', 'is_in'),
    [
        ('aes256', 'aes', False),
        ('x-aes', 'aes', False),
        ('AES', 'aes', True),
        ('aes.', 'aes', True),
        ('id=aes, sha', 'aes', True),
        ('corp:aes', 'corp:aes', True),
        (
            'D8424DC4-A4A3-C413-F89E-433683F9040B',
            'd8424dc4a4a3c413f89e433683f9040b',
            True,
        ),
    ],
)
def test_what_a_check_says_counts_by_words(tool, there, wanted, is_in):
    tool.mode('lie')
    (tool.directory / 'state.').write_text(there)
    if is_in:
        assert program(tool, wanted) is True
    else:
        assert f'does not have function {wanted}' in failure(
            tool, function=wanted
        )


def test_regions_in_parallel(tool):
    tool.configure('dynamic')
    tool.mode('meet')
    os_acc.plug(
        devices.instance(), [request(tool, 'aes'), request(tool, 'sha')]
    )
    assert len(tool.calls()) == 2
    # A region may be busy when the second one asks.
    assert {tool.function(each) for each in '012'} == {'aes', 'sha', None}


def test_others_may_look_while_it_is_programmed(kernel, tool):
    """The lock of the VF is free while its region is programmed."""
    tool.configure('dynamic')
    path = f'{kernel.pci}/devices/{VFS[0]}'
    held = []
    original = privileged.run

    def run(*args):
        with operation_lock.held(path, 0):
            held.append(path)
        return original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privileged, 'run', run)
        os_acc.plug(devices.instance(), [request(tool, address=VFS[0])])
    assert held == [path, path]


def test_a_region_is_that_of_its_vf(tool):
    tool.configure('dynamic')
    os_acc.plug(devices.instance(), [request(tool, address=VFS[2])])
    assert tool.function('2') == 'aes'


@pytest.mark.parametrize('rule', [{'project': 'p'}, {'function': 'sha'}])
def test_a_region_that_is_reserved(tool, rule):
    """Others do not get it, and get the other regions."""
    tool.configure('dynamic')
    reserved = [{'device': FPGA, 'region': '0', **rule}]
    os_acc.apply({'version': 1, 'reserved': reserved})
    with pytest.raises(exception.PlugException, match='reserves it for'):
        os_acc.plug(devices.instance(), [request(tool, address=VFS[0])])
    assert tool.function('0') is None
    for _ in range(2):
        os_acc.plug(devices.instance(), [request(tool)])
    assert [tool.function(each) for each in '012'] == [None, 'aes', 'aes']
    with pytest.raises(exception.PlugException, match='reserves it for'):
        os_acc.plug(devices.instance(), [request(tool)])


def test_a_process_that_has_a_vf_open(kernel, tool):
    holder = kernel.hold(kernel.node(VFS[1]))
    (kernel.root / 'dev/vfio').mkdir(exist_ok=True)
    pathlib.Path(kernel.node(VFS[1])).touch()
    reason = failure(tool, exception.DeviceBusy)
    assert f'process {holder}' in reason or str(holder) in reason
    assert os_acc._get().journal.programs() == []
    kernel.end(holder)
    assert program(tool) is True


# --- at unplug


def test_the_function_is_kept(tool):
    instance = devices.instance()
    os_acc.plug(instance, [request(tool)])
    os_acc.unplug(instance)
    assert tool.function() == 'aes'
    assert tool.calls('cleared') == []


def test_the_function_is_cleared_with_its_last_user(tool):
    os_acc.CONF.set_override('at_unplug', 'clear', 'os_acc_fpga')
    instances = [devices.instance() for _ in range(2)]
    for instance in instances:
        os_acc.plug(instance, [request(tool)])
    os_acc.unplug(instances[0])
    assert tool.calls('cleared') == []
    os_acc.unplug(instances[1])
    assert len(tool.calls('cleared')) == 1
    assert tool.function() is None
    assert os_acc._get().journal.programs() == []
    os_acc.plug(devices.instance(), [request(tool)])
    assert len(tool.calls()) == 2


def test_a_van_saved_concurrently_keeps_the_function(tool, monkeypatch):
    """A VAN is saved between the search for users and the record."""
    os_acc.CONF.set_override('at_unplug', 'clear', 'os_acc_fpga')
    instance, wanted = devices.instance(), devices.pci(VFS[1])
    os_acc.plug(instance, [request(tool)])
    wanted.driver = 'pci'
    plugged = plug_before_the_record(monkeypatch, wanted)
    assert os_acc.unplug(instance) == 1
    assert len(plugged) == 1
    assert tool.calls('cleared') == []
    assert tool.function() == 'aes'
    assert record().state == 'programmed'


def test_two_of_one_instance_are_cleared_once(tool):
    os_acc.CONF.set_override('at_unplug', 'clear', 'os_acc_fpga')
    instance = devices.instance()
    os_acc.plug(instance, [request(tool), request(tool)])
    assert os_acc.unplug(instance) == 2
    assert len(tool.calls('cleared')) == 1


def test_what_cannot_be_cleared_is_not_given_out(tool):
    os_acc.CONF.set_override('at_unplug', 'clear', 'os_acc_fpga')
    instance = devices.instance()
    os_acc.plug(instance, [request(tool)])
    tool.mode('fail')
    with pytest.raises(exception.UnplugException, match='exit code 4'):
        os_acc.unplug(instance)
    assert record().state == 'error'
    assert [van.state for van in os_acc.get_vans()] == ['error']
    reason = cause(request(tool, None))
    assert 'it was not cleared' in str(reason)
    tool.mode('ok')
    assert os_acc.unplug(instance) == 1
    assert tool.function() is None


# --- bitstreams


def test_by_a_bitstream_alone(tool):
    path = tool.bitstream('aes')
    assert os_acc.program_device(FPGA, path) is True
    assert os_acc.program_device(FPGA, path) is False
    wanted = request(tool, None)
    wanted.bitstream = path
    (van,) = os_acc.plug(devices.instance(), [wanted])
    assert van.function_id is None
    other = request(tool, None)
    other.bitstream = tool.bitstream('sha')
    assert 'is busy: it is used by instance' in str(cause(other))
    assert len(tool.calls()) == 1


def by_file(tool, function='aes', address=None):
    made = request(tool, function, address)
    made.function_id = None
    return made


def test_a_bitstream_whose_function_the_kernel_tells(kernel, tool, port):
    port.parent.mkdir(parents=True)
    port.write_text('aes')
    path = tool.bitstream('aes')
    done = [os_acc.program_device(FPGA, path) for _ in range(3)]
    assert done == [True, False, False]
    for _ in range(2):
        (van,) = os_acc.plug(devices.instance(), [by_file(tool)])
        assert van.function_id == 'aes'
    assert len(tool.calls()) == 1
    # After a reboot both are restored with one programming.
    kernel.boot()
    port.write_text('')
    tool.mode('fail')
    assert len(os_acc.recover().failed) == 2
    tool.mode('ok')
    # It is programmed again only after an operator has freed it.
    assert len(os_acc.recover().failed) == 2
    assert health.free(os_acc._get().journal, FPGA)
    before = len(tool.calls())
    original = privileged.run

    def run(*args):
        port.write_text('aes')
        return original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privileged, 'run', run)
        report = os_acc.recover()
    assert [van.error for van in report.failed] == []
    assert len(report.restored) == 2
    assert len(tool.calls()) == before + 1


def test_a_bitstream_alone_goes_to_a_free_device(kernel, tool):
    other = '0000:0b:00.0'
    kernel.add_function(other, '8086:bcce', 0x120000, 'dfl-pci', totalvfs=4)
    kernel.write(f'{kernel.pci}/devices/{other}/sriov_numvfs', '3')
    tool.configure('single', address='*')
    os_acc.plug(devices.instance(), [request(tool, address=VFS[0])])
    (van,) = os_acc.plug(devices.instance(), [by_file(tool, 'sha')])
    assert van.device == other


def test_a_newer_bitstream_of_a_function(tool):
    program(tool)
    path = tool.bitstreams / 'aes.gbs'
    path.write_text('aes version 2')
    # A request means the function; the administrator means the file.
    instance = devices.instance()
    wanted = request(tool, 'aes')
    path.write_text('aes version 2')
    os_acc.plug(instance, [wanted])
    assert len(tool.calls()) == 1
    with pytest.raises(exception.DeviceBusy):
        os_acc.program_device(FPGA, str(path), 'aes')
    os_acc.unplug(instance)
    assert os_acc.program_device(FPGA, str(path), 'aes') is True
    assert tool.function() == 'aes version 2'


@pytest.mark.parametrize('fault', ['checksum', 'missing', 'outside', 'link'])
def test_a_bitstream_that_is_no_good(tool, tmp_path, fault):
    path = pathlib.Path(tool.bitstream('aes'))
    if fault == 'checksum':
        (tool.bitstreams / 'aes.gbs.sha256').write_text('0' * 64)
    elif fault == 'missing':
        path.unlink()
    elif fault == 'outside':
        path = path.rename(tmp_path / 'aes.gbs')
    else:
        path.rename(tmp_path / 'aes.gbs')
        path.symlink_to(tmp_path / 'aes.gbs')
    wanted = request(tool, None)
    wanted.function_id, wanted.bitstream = 'aes', str(path)
    assert isinstance(cause(wanted), exception.BitstreamError)
    with pytest.raises(exception.BitstreamError):
        os_acc.program_device(FPGA, str(path), 'aes')
    assert tool.calls() == []
    assert os_acc._get().journal.programs() == []


def test_a_download_is_told_and_programmed_from_the_cache(tool):
    conf = os_acc.CONF
    conf.set_override('allow_http', True, 'os_acc_bitstreams')
    events = []
    with web.serving() as server:
        url = server.put('/aes.gbs', b'aes')
        wanted = request(tool, None)
        wanted.function_id, wanted.bitstream = 'aes', url
        os_acc.plug(devices.instance(), [wanted], progress=events.append)
        assert len(server.downloads('/aes.gbs')) == 1
    assert tool.function() == 'aes'
    messages = [event.message for event in events if event.message]
    assert messages == ['downloading', 'programming']


def test_root_takes_only_what_was_verified(tool, tmp_path):
    path = tool.bitstream('aes')
    for bad, digest in (
        (path, '0' * 64),
        ('/etc/passwd', '0' * 64),
        (f'{tool.bitstreams}/../program', '0' * 64),
    ):
        with pytest.raises(exception.BitstreamError):
            privileged.program(FPGA, '', bad, digest, 'aes', 5.0)
    for address, region, function in (
        (FPGA, '../x', 'aes'),
        (FPGA, '', '--option'),
        (FPGA, '', 7),
    ):
        with pytest.raises(exception.InvalidRequest):
            privileged.program(address, region, path, '0' * 64, function, 5.0)
    devices.spec({'address': FPGA})
    with pytest.raises(exception.InvalidRequest, match='programmer command'):
        privileged.program(FPGA, '', path, '0' * 64, 'aes', 5.0)
    assert tool.calls() == []


@pytest.mark.parametrize(
    ('kind', 'address', 'region'),
    [
        ('single', FPGA, '0'),
        ('single', FPGA, '--force'),
        ('single', VFS[0], ''),
        ('dynamic', VFS[0], '0'),
        ('dynamic', FPGA, ''),
        ('dynamic', FPGA, '--force'),
        ('dynamic', FPGA, '00'),
        ('dynamic', FPGA, '3'),
        ('dynamic', FPGA, '\u0661'),
        ('dynamic', FPGA, 0),
    ],
)
def test_root_takes_no_other_device_or_region(tool, kind, address, region):
    tool.configure(kind)
    path = tool.bitstream('aes')
    digest = hashlib.sha256(b'aes').hexdigest()
    for act in (
        lambda: privileged.check(address, region, path),
        lambda: privileged.program(address, region, path, digest, None, 5.0),
        lambda: privileged.clear(address, region, 5.0),
    ):
        with pytest.raises(exception.InvalidRequest):
            act()
    assert tool.calls() == tool.calls('cleared') == []


def test_regions_of_vfs_to_come(kernel, tool):
    tool.configure('dynamic')
    kernel.write(f'{kernel.pci}/devices/{FPGA}/sriov_numvfs', '0')
    path = tool.bitstream('aes')
    privileged.check(FPGA, '2', path)
    with pytest.raises(exception.InvalidRequest, match='0 to 2'):
        privileged.check(FPGA, '3', path)


def test_root_does_not_tell_what_is_in_a_file(tool):
    path = tool.bitstream('aes')
    with pytest.raises(exception.BitstreamError) as caught:
        privileged.program(FPGA, '', path, '0' * 64, None, 5.0)
    assert 'it was changed' in str(caught.value)
    assert hashlib.sha256(b'aes').hexdigest() not in str(caught.value)


def test_root_does_not_follow_a_cache_that_is_a_link(tool, tmp_path):
    secret = tmp_path / 'secret'
    secret.mkdir()
    (secret / 'key').write_text('aes')
    cache = pathlib.Path(os_acc.CONF.os_acc.state_path) / 'bitstreams'
    cache.symlink_to(secret)
    digest = hashlib.sha256(b'aes').hexdigest()
    for path in (cache / 'key', secret / 'key'):
        with pytest.raises(exception.BitstreamError, match='none of'):
            privileged.program(FPGA, '', str(path), digest, None, 5.0)
    assert tool.calls() == []


def test_root_copies_no_more_than_it_may(tool, monkeypatch):
    """The file grows after its size was checked."""
    os_acc.CONF.set_override('max_size', 1, 'os_acc_bitstreams')
    path = tool.bitstream('aes')
    content = b'x' * ((1 << 20) + 1)
    opened = bitstream_file.opened

    @contextlib.contextmanager
    def growing(*args):
        with opened(*args) as found:
            pathlib.Path(path).write_bytes(content)
            yield found

    monkeypatch.setattr(bitstream_file, 'opened', growing)
    digest = hashlib.sha256(content).hexdigest()
    with pytest.raises(exception.BitstreamError, match='max_size'):
        privileged.program(FPGA, '', path, digest, None, 5.0)
    assert tool.calls() == []


@pytest.mark.parametrize(
    ('kind', 'region', 'vfs', 'held', 'goes'),
    [
        ('dynamic', '0', 3, fcntl.LOCK_SH, True),
        ('dynamic', '0', 3, fcntl.LOCK_EX, False),
        ('dynamic', '0', 0, fcntl.LOCK_SH, False),
        ('single', '', 3, fcntl.LOCK_SH, False),
    ],
)
def test_a_region_is_not_programmed_beside_the_whole(
    kernel, tool, kind, region, vfs, held, goes
):
    os_acc.CONF.set_override('device_timeout', 0.1, 'os_acc')
    tool.configure(kind)
    if not vfs:
        kernel.write(f'{kernel.pci}/devices/{FPGA}/sriov_numvfs', '0')
    path = tool.bitstream('aes')
    with open(root_folder.open_file('programming', FPGA), 'rb') as file:
        fcntl.flock(file, held)
        if goes:
            privileged.check(FPGA, region, path)
        else:
            with pytest.raises(exception.DeviceBusy, match='earlier command'):
                privileged.check(FPGA, region, path)
    privileged.check(FPGA, region, path)


# --- device_spec


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('program', ''),
        ('program', 7),
        ('program', []),
        ('program', [1]),
        ('program', 'fpgaconf {file}'),
        ('program', '/usr/bin/fpgaconf {files}'),
        ('program', '/usr/bin/fpgaconf "'),
        ('programming', 'none'),
        ('function_file', '/etc/passwd'),
        ('function_file', '../../x'),
        ('persistent', 'maybe'),
        ('region_type', ''),
    ],
)
def test_what_device_spec_refuses(clean, key, value):
    from os_acc.spec import device_spec

    devices.spec({'address': FPGA, key: value})
    with pytest.raises(exception.InvalidRequest, match=key):
        device_spec.load(os_acc.CONF)


def test_diagnosis(tool):
    driver = os_acc._get().extensions.drivers['fpga']
    assert [f.verdict for f in driver.diagnose()] == ['ok']
    tool.mode('fail')
    failure(tool)
    tool.configure('single', check='/nowhere/check {address}')
    found = [(f.verdict, f.text) for f in driver.diagnose()]
    assert found[0] == ('error', 'check: there is no command /nowhere/check')
    assert found[1][0] == 'warning'
    assert 'its programming failed' in found[1][1]


def test_persistent_functions_outlive_a_reboot(kernel, tool):
    program(tool)
    kernel.boot()
    instance = devices.instance()
    os_acc.plug(instance, [request(tool)])
    assert len(tool.calls()) == 2
    os_acc.unplug(instance)
    tool.configure('single', persistent=True)
    kernel.boot()
    os_acc.plug(instance, [request(tool)])
    assert len(tool.calls()) == 2


def test_unplug_where_device_spec_has_changed(kernel, tool):
    instance = devices.instance()
    os_acc.plug(instance, [request(tool)])
    devices.spec({'address': FPGA, 'num_vfs': 3})
    assert os_acc.unplug(instance) == 1


def test_an_entry_that_names_only_a_vf(kernel, tool):
    """It cannot be programmed, because that takes the entry of its PF."""
    spec = json.loads(os_acc.CONF.os_acc.device_spec[0])
    kernel.set_numvfs(FPGA, 2)
    devices.spec({**spec, 'address': VFS[0]})
    assert [d.driver for d in os_acc.get_devices()] == ['pci']


def test_a_driver_that_does_not_program(kernel, tool):
    """The driver pci must not give out a device without the function."""
    devices.furnish(kernel)
    devices.spec({'address': '*'})
    for field in ('function_id', 'bitstream'):
        wanted = devices.pci(devices.DISK)
        setattr(wanted, field, 'aes')
        with pytest.raises(exception.InvalidRequest, match="driver 'pci'"):
            os_acc.plug(devices.instance(), [wanted])
    assert kernel.driver_of(devices.DISK) == 'nvme'


def test_no_driver_gives_out_what_failed_to_program(tool):
    tool.mode('fail')
    failure(tool)
    assert record().state == 'error'
    wanted = devices.pci(VFS[0])
    wanted.driver = 'pci'
    assert 'programming failed' in str(cause(wanted))
    tool.mode('ok')
    program(tool)
    os_acc.plug(devices.instance(), [wanted])


def test_no_driver_gives_it_out_while_it_is_programmed(tool, monkeypatch):
    wanted = devices.pci(VFS[1])
    wanted.driver = 'pci'
    run, refused = privileged.run, []

    def meanwhile(*args):
        if not refused:
            refused.append(None)
            refused[0] = cause(wanted)
        return run(*args)

    monkeypatch.setattr(privileged, 'run', meanwhile)
    program(tool)
    assert 'has not ended' in str(refused[0])
    assert record().state == 'programmed'


def test_a_van_saved_concurrently_stops_the_programming(tool, monkeypatch):
    """A VAN is saved between the search for users and the record."""
    wanted = devices.pci(VFS[1])
    wanted.driver = 'pci'
    plugged = plug_before_the_record(monkeypatch, wanted)
    failure(tool, exception.DeviceBusy)
    assert len(plugged) == 1
    assert os_acc._host.journal.programs() == []
    assert tool.function() is None


def test_another_bitstream_for_a_plugged_van(tool):
    instance, wanted = devices.instance(), request(tool)
    os_acc.plug(instance, [wanted])
    wanted.bitstream = 'https://user:secret@host/aes.gbs?token=secret'
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance, [wanted])
    assert isinstance(caught.value.__cause__, exception.InvalidRequest)
    assert "'https://...@host/aes.gbs?...'" in str(caught.value)
    assert 'secret' not in str(caught.value)


def test_a_start_cleans_up_once_after_a_failure(tool, monkeypatch):
    """Each call of root would start the daemon, for each command."""
    called = []
    sweep = privileged.sweep

    def counted():
        called.append(sweep())
        return called[-1]

    monkeypatch.setattr(privileged, 'sweep', counted)
    tool.mode('fail')
    failure(tool)
    busy = root_copy.DIRECTORY + '/' + '0' * 32
    os.mkdir(busy)
    # A command that still runs has its copy.
    with open_locked(busy):
        os_acc.initialize(reset=True)
        os_acc.initialize(reset=True)
        assert called == [False, False]
    os_acc.initialize(reset=True)
    assert called[2:] == [True]
    assert not os.path.exists(busy)
    for _ in range(2):
        os_acc.initialize(reset=True)
    assert len(called) == 3
    os_acc.recover()
    assert len(called) == 4
    # Another failure is cleaned up after anew.
    failure(tool)
    os_acc.initialize(reset=True)
    os_acc.initialize(reset=True)
    assert len(called) == 5


@contextlib.contextmanager
def open_locked(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def test_recovery_removes_copies_of_images(tool, caplog):
    """They are left if the daemon is killed while it programs."""
    tool.mode('fail')
    failure(tool)
    directory = pathlib.Path(root_copy.DIRECTORY)
    left = directory / ('0' * 32)
    left.mkdir()
    (left / 'aes.gbs').write_text('aes')
    os_acc.recover()
    assert list(directory.iterdir()) == []
    directory.chmod(0o777)
    os_acc.recover()
    assert (
        'Leftovers of an interrupted programming were not cleaned up'
        in caplog.text
    )
    directory.chmod(0o700)
