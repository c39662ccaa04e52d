# SPDX-License-Identifier: Apache-2.0

"""Devices that have failed, and those that wait for a boot of the host."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pathlib
import uuid

import command
import devices
import pytest
import vendor as vendor_module

import os_acc
from os_acc import exception
from os_acc import health
from os_acc import objects
from os_acc import programming
from os_acc.doctor import state as doctor_state
from os_acc.journal import health as rows
from os_acc.journal import programs
from os_acc.objects import device as device_objects
from os_acc.privileged import notes
from os_acc.privileged import root_folder
from os_acc.privileged.fpga import reenumeration as privileged
from os_acc.privileged.pci import functions as privileged_pci
from os_acc.programming import announcing
from os_acc.spec import device_spec
from os_acc.testing import mortal

FPGA, VFS = vendor_module.FPGA, vendor_module.VFS
AER = 'TLP 1\nTOTAL_ERR_FATAL {}\n'


@pytest.fixture
def tool(kernel, tmp_path):
    made = vendor_module.installed(kernel, tmp_path / 'vendor')
    os_acc.initialize()
    return made


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    os_acc.initialize()
    return kernel


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    return command.Command(os_acc.CONF.os_acc.state_path, capsys, monkeypatch)


def journal():
    return os_acc._get().journal


def program(tool, function='aes'):
    return os_acc.program_device(FPGA, tool.bitstream(function), function)


def request(tool, function='aes', address=None):
    handle = objects.PCIHandle(address=address) if address else None
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()),
        handle=handle,
        resource_class=None if address else 'FPGA',
        function_id=function,
        bitstream=tool.bitstream(function) if function else None,
    )


def device(address):
    (found,) = (d for d in os_acc.get_devices() if d.address == address)
    return found


def causes():
    return [(each.device, each.cause) for each in journal().unhealthy()]


def doctors_finding():
    (found,) = (
        each
        for each in doctor_state.findings(os_acc._get())
        if each.subject == f'device {FPGA}'
    )
    return found


def record():
    (found,) = journal().programs()
    return found


def write(kernel, address, name, data):
    (kernel.pci / 'devices' / address / name).write_bytes(data)


# --- programming


def test_a_failed_programming(tool, run):
    tool.mode('fail')
    err = devices.refused(request(tool))
    assert isinstance(err, exception.DeviceError)
    assert 'exit code 3' in str(err)
    tool.mode('ok')
    found = device(FPGA)
    assert found.health == device_objects.UNHEALTHY
    assert 'its programming failed' in found.health_reason
    assert 'exit code 3' in found.health_reason
    assert found.health_since[:10] == journal().unhealthy()[0].since[:10]
    assert found.handles_free == 0
    assert {each.state for each in found.handles} == {'reserved'}
    for wanted in (
        request(tool),
        request(tool, 'sha'),
        request(tool, None, VFS[0]),
    ):
        err = devices.refused(wanted)
        # A request that names no device would get another one.
        kind = 'DeviceNotFound' if wanted.handle is None else 'DeviceUnhealthy'
        assert type(err).__name__ == kind
        assert f'it is unhealthy since {found.health_since[:19]}' in str(err)
        assert f'os-acc device free {FPGA}' in str(err)
    assert len(tool.calls()) == 1
    told = doctors_finding()
    assert told.verdict == 'error'
    assert found.health_reason in told.text
    assert f'os-acc device free {FPGA}' in told.advice


def test_what_the_command_says_of_it(tool, run, config_of):
    tool.mode('fail')
    devices.refused(request(tool))
    tool.mode('ok')
    arguments = config_of()
    (listed,) = run.fine(*arguments, 'device', 'list', '-f', 'json').json
    assert (listed['health'], listed['handles_free']) == ('unhealthy', 0)
    assert listed['not_free'] == {'reserved': 3}
    shown = run.fine(*arguments, 'device', 'show', FPGA, '-f', 'json').json
    assert 'its programming failed' in shown['health_reason']
    assert shown['health_since'].startswith('20')
    done = run.fine(*arguments, 'device', 'free', FPGA).out
    assert done.startswith(
        f'{FPGA}: it is in service again; it was unhealthy since 20'
    )
    assert 'exit code 3' in done
    assert 'reserved or unhealthy' in run.fails(
        2, *arguments, 'device', 'free', FPGA
    )
    (listed,) = run.fine(*arguments, 'device', 'list', '-f', 'json').json
    assert (listed['health'], listed['handles_free']) == ('ok', 3)
    shown = run.fine(*arguments, 'device', 'show', FPGA, '-f', 'json').json
    assert 'Health reason' not in shown
    (van,) = os_acc.plug(devices.instance(), [request(tool)])
    assert van.function_id == 'aes'


@pytest.fixture
def config_of(tmp_path):
    """Gives the arguments by which the command has this configuration."""

    def made():
        path = tmp_path / 'os-acc.conf'
        values = os_acc.CONF.os_acc.device_spec
        directories = os_acc.CONF.os_acc_bitstreams.allowed_folders
        lines = [f'device_spec = {each}' for each in values]
        path.write_text(
            '\n'.join(
                [
                    '[os_acc]',
                    *lines,
                    '[os_acc_bitstreams]',
                    f'allowed_folders = {",".join(directories)}',
                ]
            )
        )
        path.chmod(0o644)
        return ['--config-file', str(path)]

    return made


def test_the_administrator_programs_it(tool):
    tool.mode('fail')
    with pytest.raises(exception.DeviceError):
        program(tool)
    first = journal().unhealthy()
    with pytest.raises(exception.DeviceError):
        program(tool, 'sha')
    assert journal().unhealthy() == first
    tool.mode('ok')
    assert program(tool) is True
    assert causes() == []
    assert device(FPGA).health == device_objects.OK
    os_acc.plug(devices.instance(), [request(tool)])


def test_other_causes_stay(tool):
    health.mark(journal(), FPGA, rows.CLEANING, 'it was not cleaned')
    assert program(tool) is True
    assert causes() == [(FPGA, rows.CLEANING)]
    assert device(FPGA).health_reason == 'it was not cleaned'


def test_errors_before_it_is_touched(tool, kernel):
    path = pathlib.Path(tool.bitstream('aes'))
    with pytest.raises(exception.BitstreamError):
        os_acc.program_device(FPGA, str(path.with_name('none')), 'aes')
    program(tool)
    os_acc.plug(devices.instance(), [request(tool)])
    with pytest.raises(exception.DeviceBusy):
        program(tool, 'sha')
    assert causes() == []
    assert (record().state, record().function_id) == ('programmed', 'aes')


class Programmer(programming.Programmer):
    """Fails as told.

    :ivar err: what program() and clear() raise
    :ivar kind: what program() returns
    """

    err: BaseException | None = None
    kind = device_spec.PARTIAL
    can_heal = False

    def program(self, file, function_id, report):
        if self.err is not None:
            raise self.err
        return self.kind

    def clear(self):
        if self.err is not None:
            raise self.err

    def heal(self):
        if isinstance(self.can_heal, Exception):
            raise self.can_heal
        return self.can_heal


@pytest.fixture
def slot(kernel):
    os_acc.initialize()
    driver = os_acc._get().extensions.drivers['fake']
    return programming.Slot(driver, 'dev', programmer=Programmer('dev'))


def fails(slot, err, function='aes'):
    slot.programmer.err = err
    with pytest.raises(type(err)):
        slot.program(programming.Wanted(function))
    slot.programmer.err = None


@pytest.mark.parametrize(
    'err',
    [
        exception.BitstreamError(bitstream='b', reason='of another shell'),
        exception.DeviceBusy(device='dev', reason='a command runs'),
        exception.DeviceInUseByHost(device='dev', by='a mount'),
    ],
)
def test_a_programmer_that_has_not_touched_it(slot, err):
    fails(slot, err)
    assert journal().programs() == []
    slot.program(programming.Wanted('sha'))
    fails(slot, err)
    assert causes() == []
    assert (record().state, record().function_id) == ('programmed', 'sha')


def test_a_device_that_is_made_usable_again(slot):
    slot.programmer.can_heal = True
    fails(slot, RuntimeError('broken'))
    assert causes() == []
    assert record().state == programs.ERROR
    assert record().error == (
        'RuntimeError: broken. The device was made usable again'
    )
    assert slot.program(programming.Wanted('aes')) is True


def test_a_device_that_cannot_be_made_usable(slot, caplog):
    slot.programmer.can_heal = RuntimeError('no bus')
    fails(slot, RuntimeError('broken'))
    assert causes() == [('dev', rows.PROGRAMMING)]
    assert 'dev cannot be made usable again: RuntimeError: no bus' in (
        caplog.text
    )


class Interrupted(BaseException):
    """As eventlet.Timeout is."""


def test_an_interruption_is_no_failure(slot):
    fails(slot, Interrupted())
    assert record().state == programs.ERROR
    assert causes() == []
    assert slot.program(programming.Wanted('aes')) is True


def test_a_function_that_cannot_be_removed(tool):
    os_acc.CONF.set_override('at_unplug', 'clear', 'os_acc_fpga')
    instance = devices.instance()
    os_acc.plug(instance, [request(tool)])
    tool.mode('fail')
    with pytest.raises(exception.UnplugException, match='exit code 4'):
        os_acc.unplug(instance)
    assert causes() == [(FPGA, rows.PROGRAMMING)]
    assert 'it was not cleared' in device(FPGA).health_reason
    # Unplug always works on a device that is unhealthy.
    tool.mode('ok')
    assert os_acc.unplug(instance) == 1
    assert causes() == []


# --- who gets it, and who keeps it


def test_every_function_of_it(here):
    other = '0000:01:00.5'
    here.add_function(other, '8086:4940', 0x0B4000)
    health.mark(journal(), devices.PF, rows.CLEANING, 'reset: broken pipe')
    for address in (devices.PF, other):
        err = devices.refused(devices.pci(address))
        assert isinstance(err, exception.DeviceUnhealthy), err
        assert 'reset: broken pipe' in str(err)
    os_acc.plug(devices.instance(), [devices.pci(devices.GPU)])


def test_a_pf_that_has_failed_gets_no_vfs(here):
    devices.spec({'address': devices.PF, 'num_vfs': 2})
    health.mark(journal(), devices.PF, rows.CLEANING, 'reset: broken pipe')
    assert device(devices.PF).handles_free == 0
    here.writes.clear()
    err = devices.refused(devices.pci(devices.VFS[0]))
    assert isinstance(err, exception.DeviceUnhealthy), err
    assert 'reset: broken pipe' in str(err)
    assert here.writes == []


def test_another_one_is_chosen(here):
    other = '0000:09:00.0'
    here.add_function(other, '10de:1eb8', 0x030200)
    health.mark(journal(), devices.GPU, rows.GONE, 'it does not answer')
    (van,) = os_acc.plug(devices.instance(), [devices.wanted('PGPU')])
    assert van.handle.address == other
    err = devices.refused(devices.wanted('PGPU'))
    assert 'it does not answer' in str(err)


def test_a_parent_of_mediated_devices(here):
    devices.spec({'address': 'mtty', 'mdev_types': ['mtty-1', 'mtty-2']})
    assert device('mtty').handles_free == 24
    health.mark(journal(), 'mtty', rows.CLEANING, 'broken')
    found = device('mtty')
    assert (found.health, found.handles_free) == ('unhealthy', 0)
    assert {each.available for each in found.mdev_types} == {0}
    err = devices.refused(devices.mdev())
    assert isinstance(err, exception.DeviceUnhealthy), err
    health.free(journal(), 'mtty')
    (van,) = os_acc.plug(devices.instance(), [devices.mdev()])
    health.mark(journal(), 'mtty', rows.CLEANING, 'broken')
    here.reboot()
    assert [v.uuid for v in os_acc.recover().restored] == [van.uuid]


@pytest.mark.parametrize('named', [False, True])
def test_a_device_that_is_no_pci_function(kernel, tmp_path, named):
    from os_acc.kinds.fake.driver.driver import FakeDriver

    FakeDriver.load('fake')
    for name, value in {
        'devices': ['fake0:test:2', 'fake1:pci:1'],
        'hardware_path': str(tmp_path / 'hardware'),
        'discover': True,
    }.items():
        os_acc.CONF.set_override(name, value, 'os_acc_fake')
    os_acc.initialize()
    health.mark(journal(), 'fake0', rows.CLEANING, 'it was not cleaned')
    found = device('fake0')
    assert (found.health, found.handles_free) == ('unhealthy', 0)
    assert device('fake1').health == 'ok'
    wanted = objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()),
        handle=found.handles[0].handle if named else None,
        resource_class=None if named else 'CUSTOM_FAKE_TEST',
    )
    err = devices.refused(wanted)
    assert 'it was not cleaned' in str(err)
    health.free(journal(), 'fake0')
    os_acc.plug(devices.instance(), [wanted])


def test_who_has_it_keeps_it(here):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(devices.GPU)])
    health.mark(journal(), devices.GPU, rows.GONE, 'it did not answer')
    here.reboot()
    assert [v.uuid for v in os_acc.recover().restored] == [van.uuid]
    assert here.driver_of(devices.GPU) == 'vfio-pci'
    os_acc.unplug(instance)
    assert isinstance(
        devices.refused(devices.pci(devices.GPU)), exception.DeviceUnhealthy
    )


def test_who_has_it_gets_it_again_only_if_it_answers(here):
    os_acc.plug(devices.instance(), [devices.pci(devices.GPU)])
    here.reboot()
    write(here, devices.GPU, 'config', b'\xff' * 256)
    (van,) = os_acc.recover().failed
    assert 'it does not answer' in van.error
    # The ids of a VF read as ones, but the rest does not.
    write(here, devices.GPU, 'config', b'\xff' * 4 + bytes(252))
    assert len(os_acc.recover().restored) == 1


def test_device_free_of_another_function_of_the_chip(here):
    other = '0000:01:00.5'
    here.add_function(other, '8086:4940', 0x0B4000)
    health.mark(journal(), devices.PF, rows.CLEANING, 'reset failed')
    assert len(health.free(journal(), other)) == 1
    assert causes() == []
    assert health.free(journal(), other) == []


# --- giving back


def test_a_function_that_cannot_be_reset(here):
    instance = devices.instance()
    os_acc.CONF.set_override('reset', 'required', 'os_acc_pci')
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    with pytest.raises(exception.UnplugException, match='no reset for this'):
        os_acc.unplug(instance)
    assert causes() == [(devices.GPU, rows.CLEANING)]
    os_acc.CONF.set_override('reset', 'none', 'os_acc_pci')
    write(here, devices.GPU, 'reset', b'')
    os_acc.unplug(instance)
    assert 'the kernel has no reset' in device(devices.GPU).health_reason
    assert device(devices.GPU).handles_free == 0
    health.free(journal(), devices.GPU)
    os_acc.plug(devices.instance(), [devices.pci(devices.GPU)])


@pytest.mark.parametrize(
    ('lost', 'text'),
    [(True, 'has left the bus'), (False, 'reads as ones')],
)
def test_a_function_that_does_not_come_back(here, monkeypatch, lost, text):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    clean = privileged_pci.clean

    def broken(*args):
        clean(*args)
        if lost:
            here.take_off(devices.GPU)
        else:
            write(here, devices.GPU, 'config', b'\xff' * 256)

    monkeypatch.setattr(privileged_pci, 'clean', broken)
    try:
        os_acc.unplug(instance)
    except exception.UnplugException:
        assert lost
    (found,) = journal().unhealthy()
    assert (found.device, found.cause) == (devices.GPU, rows.GONE)
    assert text in found.reason


# --- fatal errors


def test_fatal_errors(here, run):
    write(here, devices.GPU, 'aer_dev_fatal', AER.format(0).encode())
    assert device(devices.GPU).health == 'ok'
    write(here, devices.GPU, 'aer_dev_fatal', AER.format(2).encode())
    err = devices.refused(devices.pci(devices.GPU))
    assert isinstance(err, exception.DeviceUnhealthy)
    assert 'counted 2 fatal PCIe errors' in str(err)
    assert causes() == []
    found = device(devices.GPU)
    assert (found.health, found.handles_free) == ('unhealthy', 0)
    # A service that discovers writes it down: it outlives a reboot.
    assert causes() == [(devices.GPU, rows.AER)]
    write(here, devices.GPU, 'aer_dev_fatal', AER.format(0).encode())
    here.reboot()
    assert device(devices.GPU).health_since == found.health_since
    write(here, devices.GPU, 'aer_dev_fatal', AER.format(3).encode())
    done = health.free(journal(), devices.GPU)
    assert [each.partition(' ')[0] for each in done] == ['it', 'acknowledged']
    assert device(devices.GPU).health == 'ok'
    write(here, devices.GPU, 'aer_dev_fatal', AER.format(4).encode())
    assert 'counted 1 fatal' in device(devices.GPU).health_reason


def test_fatal_errors_of_a_pf_concern_its_vfs(here):
    here.write(f'{here.pci}/devices/{devices.PF}/sriov_numvfs', '2')
    write(here, devices.PF, 'aer_dev_fatal', AER.format(1).encode())
    err = devices.refused(devices.pci(devices.VFS[0]))
    assert isinstance(err, exception.DeviceUnhealthy), err
    assert device(devices.PF).handles_free == 0


def test_who_only_looks_writes_nothing(here, run, config_of):
    write(here, devices.GPU, 'aer_dev_fatal', AER.format(1).encode())
    listed = run.fine(*config_of(), 'device', 'list', '-f', 'json').json
    healths = {each['address']: each['health'] for each in listed}
    assert healths[devices.GPU] == 'unhealthy'
    assert healths[devices.PF] == 'ok'
    assert causes() == []


# --- activation


def cold(tool):
    tool.configure('single', activation='cold_reboot', persistent=True)


def test_a_cold_reboot(tool, kernel):
    cold(tool)
    err = devices.refused(request(tool))
    assert isinstance(err, exception.DeviceUnhealthy)
    assert 'a cold reboot is pending' in str(err)
    assert 'power-cycle the host' in str(err)
    assert os_acc.get_vans().objects == []
    found = device(FPGA)
    assert (found.health, found.handles_free) == ('reboot', 0)
    assert found.function_id is None
    assert 'programmed with aes' in found.health_reason
    assert 'a cold reboot is pending' in str(devices.refused(request(tool)))
    with pytest.raises(exception.DeviceUnhealthy, match='cold reboot'):
        health.free(journal(), FPGA)
    told = doctors_finding()
    assert told.verdict == 'warning'
    assert told.advice == 'power-cycle the host'
    calls = len(tool.calls())
    kernel.reboot()
    os_acc.recover()
    assert device(FPGA).health == 'ok'
    assert device(FPGA).function_id == 'aes'
    (van,) = os_acc.plug(devices.instance(), [request(tool)])
    assert van.function_id == 'aes'
    assert len(tool.calls()) == calls


def test_the_administrator_programs_what_needs_a_cold_reboot(tool):
    cold(tool)
    assert program(tool) is True
    assert record().state == programs.REBOOT
    assert causes() == [(FPGA, rows.REBOOT)]
    # Also a second time.
    assert program(tool, 'sha') is True
    assert 'sha' in device(FPGA).health_reason


def test_the_tool_makes_it_leave_the_bus(tool, kernel, monkeypatch):
    tool.configure('single', activation='reenumerate')
    from os_acc.privileged.fpga import command as programs_as_root

    program_it = programs_as_root.program

    def and_hide(*args):
        program_it(*args)
        kernel.take_off(FPGA)
        kernel.come_back()

    monkeypatch.setattr(programs_as_root, 'program', and_hide)
    assert program(tool) is True
    assert f'devices/{FPGA}/remove' not in str(kernel.writes)
    assert [d.handles_free for d in os_acc.get_devices()] == [3]


def test_root_makes_it_leave_the_bus(tool, kernel):
    tool.configure('single', activation='reenumerate')
    kernel.writes.clear()
    (van,) = os_acc.plug(devices.instance(), [request(tool)])
    names = [pathlib.Path(each).name for each, _ in kernel.writes]
    assert names.index('remove') < names.index('rescan')
    # Its VFs are made again, and the VAN has one of them.
    assert device(FPGA).handles_total == 3
    assert kernel.driver_of(van.handle.address) == 'vfio-pci'
    assert (van.function_id, causes()) == ('aes', [])


def with_ids(kernel, product):
    """Let the FPGA have another product id, as with another image."""
    path = pathlib.Path(f'{kernel.pci}/devices/{FPGA}')
    before = (path / 'device').read_text().strip().removeprefix('0x')
    (path / 'device').write_text(f'0x{product}\n')
    text = (path / 'modalias').read_text()
    (path / 'modalias').write_text(
        text.replace(before.upper(), product.upper())
    )


# No VFs, and what the FPGA has can be seen nowhere.
UNKNOWN = ('num_vfs', 'check')


@pytest.fixture
def changing(kernel, tmp_path, request):
    """An FPGA that has other ids once it is programmed."""
    driver = {'none': 'vfio-pci'}.get(request.param, 'dfl-pci')
    kernel.add_function(FPGA, '8086:bcce', 0x120000, driver)
    made = vendor_module.Vendor(tmp_path / 'vendor')
    made.configure('single')
    entry = made.spec(activation='reenumerate', bind=request.param)
    devices.spec({k: v for k, v in entry.items() if k not in UNKNOWN})
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()

    def rescan(path, text):
        kernel.come_back()
        with_ids(kernel, 'bccf')

    kernel.handlers['rescan'] = rescan
    return made


@pytest.mark.parametrize(
    'changing', ['os-acc', 'none', 'libvirt'], indirect=True
)
@pytest.mark.parametrize('rebooted', [None, 'bccf', 'bcce'])
def test_it_comes_back_with_other_ids(changing, kernel, rebooted):
    """A reboot does not make it lose its image; a power cycle does."""
    driver, instance = kernel.driver_of(FPGA), devices.instance()
    wanted = request(changing)
    os_acc.plug(instance, [wanted])
    assert device(FPGA).function_id == 'aes'
    # It is intact.
    os_acc.plug(instance, [wanted])
    assert len(changing.calls()) == 1
    if rebooted is not None:
        kernel.reboot()
        with_ids(kernel, rebooted)
        os_acc.initialize(reset=True)
        (van,) = os_acc.replug(instance)
        assert (van.function_id, device(FPGA).function_id) == ('aes', 'aes')
    os_acc.unplug(instance)
    assert kernel.driver_of(FPGA) == driver
    assert notes.files.names() == []
    assert device(FPGA).handles_free == 1


def test_it_does_not_come_back(tool, kernel):
    tool.configure('single', activation='reenumerate')
    kernel.handlers['rescan'] = lambda path, text: None
    os_acc.CONF.set_override('device_timeout', 0.3, 'os_acc')
    err = devices.refused(request(tool))
    assert 'has left the bus, and has not come back within 0.3 s' in str(err)
    assert causes() == [(FPGA, rows.PROGRAMMING)]
    del kernel.handlers['rescan']
    kernel.come_back()
    os_acc.CONF.set_override('device_timeout', 60.0, 'os_acc')
    kernel.write(f'{kernel.pci}/devices/{FPGA}/sriov_numvfs', '3')
    assert isinstance(devices.refused(request(tool)), exception.ExceptionBase)
    assert device(FPGA).health == 'unhealthy'
    assert program(tool) is True


def test_somebody_opens_it_before_it_leaves_the_bus(tool, kernel, monkeypatch):
    """It has another function by then, and the journal must not deny it."""
    from os_acc.privileged.fpga import command as programs_as_root

    assert program(tool, 'aes') is True
    tool.configure('single', activation='reenumerate')
    program_it = programs_as_root.program

    def and_open(*args):
        done = program_it(*args)
        override = f'{kernel.pci}/devices/{VFS[0]}/driver_override'
        kernel.write(override, 'vfio-pci')
        kernel.write(f'{kernel.pci}/drivers_probe', VFS[0])
        kernel.hold(kernel.node(VFS[0]))
        return done

    monkeypatch.setattr(programs_as_root, 'program', and_open)
    with pytest.raises(exception.DeviceError, match='it was programmed, but'):
        program(tool, 'sha')
    assert record().state == programs.ERROR
    assert causes() == [(FPGA, rows.PROGRAMMING)]
    assert device(FPGA).function_id is None


def test_it_comes_back_dead(tool, kernel):
    tool.configure('single', activation='reenumerate')

    def rescan(path, text):
        kernel.come_back()
        write(kernel, FPGA, 'config', b'\xff' * 256)

    kernel.handlers['rescan'] = rescan
    os_acc.CONF.set_override('device_timeout', 0.3, 'os_acc')
    with pytest.raises(exception.DeviceError, match='does not answer'):
        program(tool)


def test_root_removes_nothing_that_is_used(tool, kernel):
    tool.configure('single', activation='reenumerate')
    (van,) = os_acc.plug(devices.instance(), [request(tool)])
    kernel.hold(kernel.node(van.handle.address))
    kernel.writes.clear()
    with pytest.raises(exception.DeviceBusy):
        privileged.reenumerate(FPGA, 2.0)
    assert kernel.writes == []


@pytest.mark.parametrize('address', [VFS[0], '../x'])
def test_root_removes_no_vf(tool, kernel, address):
    kernel.writes.clear()
    with pytest.raises(exception.InvalidRequest):
        privileged.reenumerate(address, 2.0)
    assert kernel.writes == []


def test_root_removes_only_what_is_programmed(here):
    here.writes.clear()
    with pytest.raises(exception.InvalidRequest, match='is programmed'):
        privileged.reenumerate(devices.GPU, 2.0)
    devices.spec(json.loads('{"address": "0000:ff:00.0"}'))
    with pytest.raises(exception.DeviceNotFound):
        privileged.reenumerate(devices.GPU, 2.0)
    assert here.writes == []


def test_root_waits_for_the_command(tool, kernel):
    tool.configure('single', activation='reenumerate')
    fd = root_folder.open_file('programming', FPGA)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(exception.DeviceBusy, match='has not ended'):
            privileged.reenumerate(FPGA, 2.0)
    finally:
        os.close(fd)


def test_root_removes_nothing_that_the_host_uses(tool, kernel):
    tool.configure('single', activation='reenumerate')
    kernel.add_function(
        '0000:0a:00.7', '8086:bcce', 0x020000, 'e1000e', net='eth7'
    )
    up = kernel.pci / 'devices/0000:0a:00.7/net/eth7/flags'
    up.write_text('0x1003')
    kernel.writes.clear()
    with pytest.raises(exception.DeviceInUseByHost, match=r'0000:0a:00\.7'):
        privileged.reenumerate(FPGA, 2.0)
    assert kernel.writes == []


def killed_while_it_is_off_the_bus(tool, kernel):
    tool.configure('single', activation='reenumerate')

    def rescan(path, text):
        kernel.process.die()

    kernel.handlers['rescan'] = rescan
    with pytest.raises(mortal.Crash):
        program(tool)
    kernel.revive()
    del kernel.handlers['rescan']
    assert not (kernel.pci / 'devices' / FPGA).exists()


def test_killed_while_it_is_off_the_bus(tool, kernel):
    killed_while_it_is_off_the_bus(tool, kernel)
    os_acc.recover()
    assert device(FPGA).health == 'ok'
    assert program(tool) is True
    kernel.writes.clear()
    privileged.recover()
    assert kernel.writes == []


def test_found_again_in_spite_of_other_errors(
    tool, kernel, monkeypatch, caplog
):
    def fail(*args):
        raise RuntimeError('cannot do it')

    killed_while_it_is_off_the_bus(tool, kernel)
    monkeypatch.setattr('os_acc.privileged.fpga.command.sweep', fail)
    monkeypatch.setattr('os_acc.privileged.fpga.dfl.recover', fail)
    os_acc.recover()
    assert device(FPGA).health == 'ok'
    assert caplog.text.count('cannot do it') == 2


def test_one_of_two_functions_cannot_be_removed(tool, kernel):
    """The other one is found again."""
    tool.configure('single', activation='reenumerate')
    other = FPGA[:-1] + '7'
    kernel.add_function(other, '8086:bcce', 0x120000)
    kernel.fail(f'*/{other}/remove', errno.EACCES)
    with pytest.raises(exception.DeviceError, match='remove: Permission'):
        privileged.reenumerate(FPGA, 2.0)
    assert (kernel.pci / 'devices' / FPGA).exists()


def test_the_buses_of_a_chip_in_two_slots(tool, kernel):
    """Two slots show the same serial number, so they are one card."""
    tool.configure('single', activation='reenumerate')
    other = '0000:77:00.0'
    kernel.add_function(other, '8086:bcce', 0x120000)
    for address in (FPGA, other):
        directory = kernel.pci / 'devices' / address / 'xmc.1'
        directory.mkdir()
        (directory / 'serial_num').write_text('XFL1\n')
    kernel.writes.clear()
    privileged.reenumerate(FPGA, 2.0)
    scanned = [
        str(path).split('/')[-2]
        for path, _ in kernel.writes
        if str(path).endswith('/rescan')
    ]
    assert scanned == [FPGA[:7], other[:7]]


def test_the_function_that_names_the_chip_is_gone(tool, kernel):
    """The others of a chip that has failed are given to nobody, too."""
    other = FPGA[:-1] + '7'
    kernel.add_function(other, '8086:bcce', 0x120000)
    journal().save_unhealthy(
        rows.Health(FPGA, rows.PROGRAMMING, 'CRC error', 'b', '2026-01-01')
    )
    assert health.View(journal()).find(other) is not None
    kernel.take_off(FPGA)
    assert health.View(journal()).find(other) is not None
    assert health.free(journal(), FPGA)
    assert health.View(journal()).find(other) is None


def test_a_vf_that_has_failed_and_is_gone(tool, kernel):
    """It says nothing about the whole card."""
    gone = FPGA[:-1] + '6'
    journal().save_unhealthy(
        rows.Health(gone, rows.CLEANING, 'no reset', 'b', '2026-01-01')
    )
    assert device(FPGA).health == 'ok'


def test_the_kernel_refuses_to_remove_it(tool, kernel):
    tool.configure('single', activation='reenumerate')
    kernel.fail('*/remove', errno.EACCES)
    with pytest.raises(exception.DeviceError, match='remove: Permission'):
        program(tool)
    assert causes() == [(FPGA, rows.PROGRAMMING)]


def test_a_journal_that_cannot_be_read(here, monkeypatch):
    def fail():
        raise exception.JournalError(path='p', reason='disk error')

    monkeypatch.setattr(journal(), 'unhealthy', fail)
    with pytest.raises(exception.DiscoveryFailed, match='disk error'):
        os_acc.get_devices()


def test_a_recovery_that_cannot_call_the_hooks(here, monkeypatch, caplog):
    def fail(*args):
        raise RuntimeError('no bus')

    monkeypatch.setattr(announcing, 'recover', fail)
    os_acc.recover()
    assert 'The hooks were not called' in caplog.text
