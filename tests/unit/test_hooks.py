# SPDX-License-Identifier: Apache-2.0

"""The hooks are called at least once, also after a crash."""

from __future__ import annotations

import threading

import devices
import pytest
import vendor as vendor_module

import os_acc
from os_acc import exception
from os_acc import health
from os_acc import objects
from os_acc.journal import health as rows
from os_acc.journal import programs
from os_acc.programming import announcing
from os_acc.programming import hooks

FPGA, VFS = vendor_module.FPGA, vendor_module.VFS


class Killed(BaseException):
    """The process ends."""


@pytest.fixture
def told(monkeypatch):
    """What the hooks are told."""
    events = []
    monkeypatch.setattr(hooks, 'call', events.append)
    return events


@pytest.fixture
def tool(kernel, tmp_path, told):
    made = vendor_module.installed(kernel, tmp_path / 'vendor')
    os_acc.initialize()
    return made


@pytest.fixture
def killed(monkeypatch, told):
    """The process is killed before it calls the hooks."""

    def patched(act):
        with monkeypatch.context() as patch:

            def kill(event):
                raise Killed

            patch.setattr(hooks, 'call', kill)
            with pytest.raises(Killed):
                act()
        assert told == []

    return patched


def journal():
    return os_acc._get().journal


def program(tool, function='aes'):
    return os_acc.program_device(FPGA, tool.bitstream(function), function)


def request(tool, function='aes'):
    return objects.AcceleratorRequest(
        uuid='5c0b7e91-d2f8-4a34-8888-444455556666',
        resource_class='FPGA',
        function_id=function,
        bitstream=tool.bitstream(function),
    )


def states(told):
    return [(each.state, each.function_id) for each in told]


def test_what_is_told(tool, told):
    program(tool)
    (event,) = told
    assert (event.device, event.driver, event.region) == (FPGA, 'fpga', '')
    assert {f'pci/{each}' for each in VFS} == set(event.handles)
    assert event.reason is None
    assert journal().programs()[0].announced is True
    os_acc.recover()
    assert len(told) == 1


def test_a_hook_that_looks_at_the_devices_while_a_service_starts(
    tool, told, killed, monkeypatch
):
    """The hook for Placement does."""
    killed(lambda: program(tool))
    monkeypatch.setattr(os_acc, '_host', None)
    seen = []

    def hook(event):
        (device,) = os_acc.get_devices()
        seen.append((event.function_id, device.function_id))

    monkeypatch.setattr(hooks, 'call', hook)
    os_acc.initialize()
    assert seen == [('aes', 'aes')]


def test_a_start_that_fails(tool, monkeypatch):
    """The calls then go on as before it."""
    before = os_acc._get()

    def fail(host, at_start):
        raise RuntimeError('no')

    monkeypatch.setattr('os_acc.operations.recovery.recover', fail)
    with pytest.raises(RuntimeError):
        os_acc.initialize(reset=True)
    assert os_acc._get() is before
    assert [each.address for each in os_acc.get_devices()] == [FPGA]


def test_a_kill_after_the_programming(tool, told, killed):
    killed(lambda: program(tool))
    assert journal().programs()[0].announced is False
    os_acc.recover()
    assert states(told) == [('programmed', 'aes')]
    assert {f'pci/{each}' for each in VFS} == set(told[0].handles)
    assert (told[0].device, told[0].driver) == (FPGA, 'fpga')
    os_acc.recover()
    assert len(told) == 1


def test_a_kill_after_a_failure(tool, told, killed):
    tool.mode('fail')
    killed(lambda: program(tool))
    assert health.View(journal()).find(FPGA) is not None
    os_acc.recover()
    os_acc.recover()
    assert states(told) == [('error', None)]
    assert 'exit code 3' in told[0].reason


def test_a_kill_during_the_programming(tool, told, monkeypatch):
    from os_acc.privileged.fpga import command as privileged

    def kill(*args):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(privileged, 'program', kill)
        patch.setattr(journal(), 'save_program', _only_the_first(journal()))
        with pytest.raises(Killed):
            program(tool)
    assert journal().programs()[0].state == programs.PROGRAMMING
    os_acc.recover()
    assert [(e.state, e.reason) for e in told] == [
        ('error', 'it was interrupted')
    ]


def _only_the_first(journal):
    """The process is gone: it writes PROGRAMMING, and nothing after it."""
    save = journal.save_program

    def once(record):
        if record.state != programs.PROGRAMMING:
            raise Killed
        save(record)

    return once


def test_a_kill_after_clearing(tool, told, killed):
    os_acc.CONF.set_override('at_unplug', 'clear', 'os_acc_fpga')
    instance = devices.instance()
    os_acc.plug(instance, [request(tool)])
    told.clear()

    def unplug():
        try:
            os_acc.unplug(instance)
        except exception.UnplugException as err:
            raise Killed from err

    killed(unplug)
    (record,) = journal().programs()
    assert (record.state, record.function_id) == (programs.CLEARED, None)
    os_acc.recover()
    assert states(told) == [('cleared', None)]
    assert journal().programs() == []


def test_who_programs_next_tells_it_too(tool, told, killed):
    killed(lambda: program(tool))
    program(tool, 'sha')
    assert states(told) == [('programmed', 'aes'), ('programmed', 'sha')]


def test_not_while_another_process_is_telling_it(tool, told, killed):
    killed(lambda: program(tool))
    name = programs.lock_name(FPGA, '')
    held, leave = threading.Event(), threading.Event()

    def hold():
        with os_acc._get().locks.device(name):
            held.set()
            leave.wait(120)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(120)
    os_acc.recover()
    assert told == []
    leave.set()
    thread.join()
    os_acc.recover()
    assert states(told) == [('programmed', 'aes')]


def test_a_journal_that_cannot_be_written_afterwards(
    tool, told, monkeypatch, caplog
):
    save = journal().save_program

    def fail(record):
        if record.state == programs.PROGRAMMED and record.announced:
            raise exception.JournalError(path='p', reason='disk full')
        save(record)

    with monkeypatch.context() as patch:
        patch.setattr(journal(), 'save_program', fail)
        assert program(tool) is True
    assert 'will call the hooks of os_acc.programmed again' in caplog.text
    os_acc.recover()
    assert states(told) == [('programmed', 'aes')] * 2


# --- health


def driver():
    return os_acc._get().extensions.drivers['fpga']


def test_a_device_that_becomes_unhealthy(tool, told):
    announcing.mark(driver(), VFS[0], rows.CLEANING, 'it was not cleaned')
    announcing.mark(driver(), VFS[0], rows.CLEANING, 'again')
    (event,) = told
    assert (event.device, event.driver) == (FPGA, 'fpga')
    assert (event.state, event.reason) == ('error', 'it was not cleaned')
    assert event.handles == (f'pci/{VFS[0]}',)
    os_acc.recover()
    assert len(told) == 1


def test_a_kill_after_it_became_unhealthy(tool, told, killed):
    killed(lambda: announcing.mark(driver(), 'dev0', rows.CLEANING, 'broken'))
    os_acc.recover()
    os_acc.recover()
    (event,) = told
    assert (event.device, event.reason) == ('dev0', 'broken')
    assert event.handles == ()


def test_it_cannot_be_written_that_it_is_unhealthy(
    tool, told, monkeypatch, caplog
):
    def fail(found):
        raise exception.JournalError(path='p', reason='disk full')

    monkeypatch.setattr(journal(), 'save_unhealthy', fail)
    announcing.mark(driver(), FPGA, rows.CLEANING, 'broken')
    assert 'is not marked as such' in caplog.text
    assert told == []


def test_a_cold_reboot(tool, told, kernel):
    tool.configure('single', activation='cold_reboot')
    program(tool)
    assert states(told) == [('error', None)]
    assert 'only after a power cycle of the host' in told[0].reason
    os_acc.recover()
    assert len(told) == 1
    kernel.reboot()
    os_acc.recover()
    assert states(told) == [('error', None), ('programmed', 'aes')]
    assert journal().unhealthy() == []
    kernel.reboot()
    os_acc.recover()
    assert len(told) == 2
    (found,) = os_acc.get_devices()
    assert found.function_id == 'aes'
