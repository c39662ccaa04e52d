# SPDX-License-Identifier: Apache-2.0

"""FPGA managers of the kernel: what os-acc shows of them."""

from __future__ import annotations

import dataclasses

import command as os_acc_command
import devices
import fpga_manager_model
import pages
from pages import blocks
import pytest
import vendor

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.journal import programs
from os_acc.kernel import fpga_manager
from os_acc.kernel import pci
from os_acc.programming import programmer

CARD = fpga_manager_model.CARD
OTHER = '0000:5e:00.0'


@pytest.fixture
def card(kernel):
    return fpga_manager_model.Card(kernel)


# --- shown


@pytest.mark.shown('programming.rst', 'console', 'fpga managers')
def test_device_show(card, capsys, monkeypatch):
    devices.spec({'address': CARD, 'resource_class': 'FPGA'})
    card.set('state', 'write error')
    card.set('status', 'reconfig CRC error')
    fpga_manager_model.Card(card.kernel, OTHER, 'fpga1')
    (text,) = blocks('programming.rst', 'console', 'fpga managers')
    ((words, said),) = pages.steps(text)
    state = os_acc.CONF.os_acc.state_path
    run = os_acc_command.Command(state, capsys, monkeypatch)
    assert run.fine(*words).out.strip() == said


def test_the_managers_of_a_card(card):
    fpga_manager_model.Card(card.kernel, OTHER, 'fpga1')
    (found,) = fpga_manager.managers(pci.get(CARD))
    assert found.line == 'fpga0 (Fake FPGA Manager): power off'
    card.set('status', 'reconfig CRC error\nreconfig IP protocol error')
    (found,) = fpga_manager.managers(pci.get(CARD))
    assert found.status == 'reconfig CRC error, reconfig IP protocol error'
    assert fpga_manager.managers(pci.get(OTHER))[0].name == 'fpga1'


def test_a_manager_without_files(card):
    for file in ('name', 'state', 'status'):
        (card.directory / file).unlink()
    (found,) = fpga_manager.managers(pci.get(CARD))
    assert found.line == 'fpga0 (unnamed): unknown'


def test_the_manager_of_a_card(card):
    assert fpga_manager.the_manager(pci.get(CARD)).name == 'fpga0'


def test_a_card_without_a_manager(card):
    (card.kernel.sys / 'class/fpga_manager/fpga0').unlink()
    with pytest.raises(
        exception.DeviceError, match='expected one FPGA manager below it'
    ):
        fpga_manager.the_manager(pci.get(CARD))


def test_a_card_with_two_managers(card):
    card.manager(CARD, 'fpga7')
    with pytest.raises(exception.DeviceError, match='found fpga0, fpga7'):
        fpga_manager.the_manager(pci.get(CARD))


# --- in the errors of programming


def test_the_errors_of_programmers_have_it(card, tmp_path):
    image = tmp_path / 'images/aes.bit.bin'
    image.parent.mkdir()
    image.write_bytes(b'aes')
    os_acc.CONF.set_override(
        'allowed_folders', [str(image.parent)], 'os_acc_bitstreams'
    )
    tool = tmp_path / 'tool'
    tool.write_text('#!/bin/sh\necho no answer; exit 7\n')
    tool.chmod(0o755)
    devices.spec(
        {
            'address': CARD,
            'resource_class': 'FPGA',
            'program': f'{tool} {{address}} {{file}}',
        }
    )
    os_acc.initialize(reset=True)
    card.set('state', 'write error')
    with pytest.raises(exception.DeviceError) as caught:
        os_acc.program_device(CARD, str(image), 'aes')
    assert str(caught.value).endswith(
        'exit code 7: no answer. FPGA manager: fpga0 (Fake FPGA Manager): '
        'write error'
    )


@pytest.mark.parametrize(
    'error',
    [
        exception.DeviceError(device=CARD, reason='no answer'),
        exception.Timeout(what='the card', seconds=5),
    ],
)
def test_an_error_keeps_its_kind(card, error):
    card.set('state', 'write error')
    card.set('status', 'reconfig CRC error')
    with (
        pytest.raises(type(error)) as caught,
        programmer.told(CARD),
    ):
        raise error
    assert str(caught.value) == (
        f'{error}. FPGA manager: fpga0 (Fake FPGA Manager): write error, '
        'reconfig CRC error'
    )


def test_an_error_of_a_card_without_managers(kernel):
    kernel.add_function(OTHER, '10ee:9038', 0x120000)
    error = exception.DeviceError(device=OTHER, reason='no answer')
    with (
        pytest.raises(exception.DeviceError) as caught,
        programmer.told(OTHER),
    ):
        raise error
    assert caught.value is error


# --- after an upgrade


@pytest.fixture
def tool(kernel, tmp_path):
    """A card that an older os-acc has programmed; see upgraded()."""
    kernel.add_function(vendor.FPGA, '10ee:9038', 0x120000, 'xdma', totalvfs=3)
    made = vendor.Vendor(tmp_path / 'vendor')
    made.configure('single')
    os_acc.initialize()
    return made


def upgraded(entry) -> None:
    """Start again with an entry of device_spec that is not programmed.

    A record of a programmed device does not name its programmer.
    """
    devices.spec(entry)
    os_acc.initialize(reset=True)


PLAIN = {'address': vendor.FPGA}
REFUSED = {**PLAIN, 'programmer': 'fpga_manager'}
WHY = {
    'plain': (PLAIN, 'no entry of [os_acc] device_spec says how it is pro'),
    'refused': (
        REFUSED,
        "programmer is 'fpga_manager', expected one of command, dfl, amd",
    ),
}


def plugged(tool) -> objects.InstanceInfo:
    instance = devices.instance()
    wanted = devices.pci(vendor.VFS[0])
    wanted.function_id, wanted.bitstream = 'aes', tool.bitstream('aes')
    os_acc.plug(instance, [wanted])
    return instance


def test_the_programmer_of_an_older_os_acc(tool):
    """Nothing new is given out; what instances have can be released."""
    instance = plugged(tool)
    upgraded(REFUSED)
    os_acc.recover()
    with pytest.raises(exception.NoMatchingDriver) as caught:
        os_acc.plug(devices.instance(), [devices.pci(OTHER)])
    assert WHY['refused'][1] in str(caught.value)
    (van,) = os_acc.get_vans(instance)
    assert (van.state, van.error) == ('plugged', None)
    assert os_acc.unplug(instance) == 1


@pytest.mark.parametrize(('entry', 'why'), WHY.values(), ids=WHY)
def test_recovery_of_what_was_programmed(kernel, tool, entry, why):
    """After a reboot it cannot be programmed for its VAN, which says why."""
    instance = plugged(tool)
    kernel.reboot()
    kernel.boot()
    upgraded(entry)
    os_acc.recover()
    (van,) = os_acc.get_vans(instance)
    assert why in van.error
    assert os_acc.unplug(instance) == 1


@pytest.mark.parametrize('entry', [REFUSED, PLAIN])
def test_recovery_of_an_interrupted_programming(tool, entry):
    os_acc.program_device(vendor.FPGA, tool.bitstream('aes'), 'aes')
    journal = os_acc._get().journal
    (record,) = journal.programs()
    journal.save_program(
        dataclasses.replace(record, state=programs.PROGRAMMING)
    )
    upgraded(entry)
    os_acc.recover()
    (record,) = os_acc._get().journal.programs()
    assert (record.state, record.error) == ('error', 'it was interrupted')
