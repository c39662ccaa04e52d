# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The driver fpga: vendors' commands that behave, and that do not."""

from __future__ import annotations

import os
import pathlib
import time
import uuid

import devices
import pytest
import vendor as vendor_module
import web

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc import programming
from os_acc.linux import turns
from os_acc.privileged import programming as privileged

FPGA, VFS = vendor_module.FPGA, vendor_module.VFS


@pytest.fixture
def tool(kernel, tmp_path):
    vendor_module.furnish(kernel)
    made = vendor_module.Vendor(tmp_path / 'vendor')
    made.configure('single')
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


# --- which requests


def test_it_takes_what_its_commands_program(kernel, tool):
    devices.furnish(kernel)
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
    tool.configure('single', num_vfs=1)
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
            '{folder}/program --bus 0x{{bus}} --device 0x{{device}} '
            '--function 0x{{function}} {{file}}',
            ['--bus', '0x0a', '--device', '0x00', '--function', '0x0'],
        ),
        (
            '{folder}/program program --device {{address}} --base --image '
            '{{file}}',
            ['program', '--device', FPGA, '--base', '--image'],
        ),
    ],
    ids=['OPAE', 'Xilinx'],
)
def test_the_arguments_of_vendors(tool, template, arguments):
    tool.mode('lie')
    tool.configure('single', program=template.format(folder=tool.folder))
    with pytest.raises(exception.DeviceError):
        program(tool)
    (call,) = tool.calls()
    assert call[:-1] == arguments
    file = pathlib.Path(call[-1])
    assert file.name == 'aes.gbs'
    assert not file.exists()  # root's own copy, gone by now


def test_a_command_that_fails(tool):
    tool.mode('fail')
    reason = failure(tool)
    assert 'exit code 3: no such  board' in reason
    assert (record().state, record().error) == ('error', reason)


def test_a_command_that_lies(tool):
    program(tool, 'sha')
    tool.mode('lie')
    reason = failure(tool)
    assert 'function aes is not in: function: sha' in reason
    assert record().state == 'error'
    tool.mode('ok')
    assert program(tool) is True
    assert record().state == 'programmed'


def test_a_command_that_hangs(tool):
    os_acc.CONF.set_override('program_timeout', 0.3, 'os_acc')
    tool.mode('hang')
    assert 'not done after 0.3 s, killed' in failure(tool)
    # With all that it started.
    group = int((tool.folder / 'pid').read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.killpg(group, 0)
            time.sleep(0.05)
    assert record().state == 'error'
    tool.mode('ok')
    assert program(tool) is True


def test_a_command_that_got_away_keeps_the_next_one_off(tool):
    """It has left its process group, and is not done with the device."""
    os_acc.CONF.set_override('device_timeout', 0.2, 'os_acc')
    os_acc.CONF.set_override('program_timeout', 0.5, 'os_acc')
    away = tool.folder / 'away'
    away.write_text(
        '#!/bin/sh\n'
        f'setsid sh -c "echo \\$\\$ > {tool.folder}/pid; exec sleep 30" &\n'
        'wait\n'
    )
    away.chmod(0o755)
    tool.configure('single', program=[str(away), '{file}'])
    assert 'killed' in failure(tool)
    tool.configure('single')
    reason = failure(tool, exception.DeviceBusy)
    assert 'an earlier command that has not ended' in reason
    assert tool.calls() == []
    os.kill(int((tool.folder / 'pid').read_text()), 9)
    for _ in range(100):
        try:
            assert program(tool) is True
            break
        except exception.DeviceBusy:
            time.sleep(0.05)
    assert tool.function() == 'aes'


def test_a_command_that_cannot_be_killed_does_not_block(tool, monkeypatch):
    monkeypatch.setattr(privileged, '_GRACE', 0.1)
    monkeypatch.setattr(privileged.os, 'killpg', lambda *args: None)
    os_acc.CONF.set_override('program_timeout', 0.2, 'os_acc')
    tool.mode('hang')
    assert 'cannot be killed' in failure(tool)
    monkeypatch.undo()
    os.killpg(int((tool.folder / 'pid').read_text()), 9)


def test_a_command_that_is_not_there(tool):
    tool.configure('single', program='/nowhere/program {file}')
    reason = failure(tool)
    assert reason.endswith('/nowhere/program: there is no such command')
    # It was not touched, and is not in error.
    assert os_acc._get().journal.programs() == []


def test_a_check_by_exit_code(tool):
    check = f'/usr/bin/grep -q {{function_id}} {tool.folder}/state.'
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
    # It is in already, whoever put it there.
    os_acc.plug(devices.instance(), [request(tool, function)])
    assert tool.calls() == []
    os_acc.unplug(
        objects.InstanceInfo(
            uuid=os_acc.get_vans()[0].instance_uuid, name='', project_id=''
        )
    )
    assert 'and has d8424' in failure(tool)
    assert record().state == 'error'


def test_regions_in_parallel(tool):
    tool.configure('dynamic')
    tool.mode('meet')
    os_acc.plug(
        devices.instance(), [request(tool, 'aes'), request(tool, 'sha')]
    )
    assert len(tool.calls()) == 2
    assert {tool.function('0'), tool.function('1')} == {'aes', 'sha'}


def test_others_may_look_while_it_is_programmed(kernel, tool):
    """A claim of a handle that another has just got goes on to the next."""
    tool.configure('dynamic')
    path = f'{kernel.pci}/devices/{VFS[0]}'
    held = []
    original = privileged.run

    def run(*args):
        with turns.on(path, 0):
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


def test_who_has_it_open(kernel, tool):
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
    assert isinstance(cause(other), exception.DeviceBusy)
    assert len(tool.calls()) == 1


def test_a_newer_bitstream_of_a_function(tool):
    program(tool)
    path = tool.bitstreams / 'aes.gbs'
    path.write_text('aes version 2')
    # Who asks for the function has it; the administrator means the file.
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
    with pytest.raises(exception.InvalidRequest, match='program command'):
        privileged.program(FPGA, '', path, '0' * 64, 'aes', 5.0)
    assert tool.calls() == []


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
        ('persistent', 'yes'),
        ('region_type', ''),
    ],
)
def test_what_device_spec_refuses(clean, key, value):
    from os_acc import device_spec

    devices.spec({'address': FPGA, key: value})
    with pytest.raises(exception.InvalidRequest, match=key):
        device_spec.load(os_acc.CONF)


def test_diagnosis(tool):
    driver = os_acc._get().extensions.drivers['fpga']
    assert [f.verdict for f in driver.diagnose()] == ['ok']
    tool.mode('fail')
    failure(tool)
    tool.configure('single', check='/nowhere/check')
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


def test_a_driver_that_does_not_program(kernel, tool):
    """It must not give out a device without the function."""
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


def test_who_came_just_before_stops_the_programming(tool, monkeypatch):
    """Between the look for users and the record."""
    write, wanted = programming._write, devices.pci(VFS[1])
    wanted.driver = 'pci'
    plugged = []

    def first(*args):
        if not plugged:
            plugged.extend(os_acc.plug(devices.instance(), [wanted]))
        write(*args)

    monkeypatch.setattr(programming, '_write', first)
    failure(tool, exception.DeviceBusy)
    assert len(plugged) == 1
    assert os_acc._attacher.journal.programs() == []
    assert tool.function() is None


def test_another_bitstream_for_a_plugged_van(tool):
    instance, wanted = devices.instance(), request(tool)
    os_acc.plug(instance, [wanted])
    wanted.bitstream = 'https://user:secret@host/aes.gbs?token=secret'
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance, [wanted])
    assert isinstance(caught.value.__cause__, exception.InvalidRequest)
    assert 'https://host/aes.gbs' in str(caught.value)
    assert 'secret' not in str(caught.value)
