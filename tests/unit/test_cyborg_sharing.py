# SPDX-License-Identifier: Apache-2.0

"""The driver cyborg: other requests while a device is programmed."""

from __future__ import annotations

from concurrent import futures
import time

import cyborg_host
from cyborg_stand_in import F1
from cyborg_stand_in import F2
from cyborg_stand_in import FPGA
from cyborg_stand_in import OTHER
from cyborg_stand_in import VFS
from cyborg_stand_in import device
from cyborg_stand_in import option
from cyborg_stand_in import plug
from cyborg_stand_in import request
from cyborg_stand_in import slot
from cyborg_stand_in import stand_in_host  # noqa: F401, fixture "here"
from cyborg_stand_in import vf
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.kernel import pci
from os_acc.privileged import function_notes
from os_acc.programming import uses


@pytest.fixture(name='pool')
def fixture_pool(here):
    # Less than any programming takes: who needs the device's lock fails.
    os_acc.CONF.set_override('lock_timeout', 1.0, 'os_acc')
    os_acc.initialize(reset=True)
    with futures.ThreadPoolExecutor() as pool:
        yield pool
        (here.directory / 'go').touch()


@pytest.fixture(name='begun')
def fixture_begun(here, pool):
    """A request for F1, whose device is being programmed."""
    return begin(here, pool, vf(0, bitstream=here.image(), function_id=F1))


def begin(here, pool, wanted):
    here.tell('program', 'wait')
    future = pool.submit(plug, wanted)
    cyborg_host.wait_for(here.directory / 'waits')
    here.tell('program', '')
    return future


def any_card(**values):
    return request(None, **values)


def test_a_sharer_waits(here, pool, begun):
    sharer = pool.submit(plug, vf(1, function_id=F1))
    with pytest.raises(futures.TimeoutError):
        sharer.result(timeout=1.5)
    (here.directory / 'go').touch()
    vans = [future.result()[1][0] for future in (begun, sharer)]
    assert [van.device for van in vans] == [FPGA, FPGA]
    assert [van.function_id for van in vans] == [F1, F1]
    assert len(here.calls()) == 1


def test_a_sharer_without_an_address_waits(here, pool, begun):
    """It does not have a second card programmed with the same function."""
    wanted = any_card(bitstream=here.image(), function_id=F1)
    sharer = pool.submit(plug, wanted)
    with pytest.raises(futures.TimeoutError):
        sharer.result(timeout=1.5)
    (here.directory / 'go').touch()
    assert sharer.result()[1][0].device == FPGA
    assert len(here.calls()) == 1


def test_another_function_goes_to_another_card(here, begun):
    _, (van,) = plug(any_card(bitstream=here.image(), function_id=F2))
    assert (van.device, van.function_id) == (OTHER, F2)
    assert not begun.done()


def test_any_function_goes_to_another_card(here, begun):
    _, (van,) = plug(any_card())
    assert van.device == OTHER
    assert not begun.done()


@pytest.mark.parametrize('wanted', [F2, None])
def test_the_administrator_programs_one_card(here, pool, wanted):
    """No VAN uses the card, but its contents change."""
    here.tell('program', 'wait')
    image = here.image()
    programming = pool.submit(os_acc.program_device, FPGA, image, F1)
    cyborg_host.wait_for(here.directory / 'waits')
    here.tell('program', '')
    more = {'bitstream': image, 'function_id': wanted} if wanted else {}
    _, (van,) = plug(any_card(**more))
    assert van.device == OTHER
    assert not programming.done()


def test_a_claim_for_another_function_counts(here, monkeypatch, pool):
    """The card is not being programmed yet, but will be."""
    decide = uses.decide

    def slow(van, function_id):
        (here.directory / 'waits').touch()
        cyborg_host.wait_for(here.directory / 'go')
        decide(van, function_id)

    monkeypatch.setattr(uses, 'decide', slow)
    first = pool.submit(plug, vf(0, bitstream=here.image(), function_id=F1))
    cyborg_host.wait_for(here.directory / 'waits')
    monkeypatch.setattr(uses, 'decide', decide)
    _, (van,) = plug(any_card(bitstream=here.image(), function_id=F2))
    assert van.device == OTHER
    assert not first.done()


def test_another_function_waits_if_there_is_no_other_card(here, pool):
    """The first request may fail, and leave the card free."""
    handles = [['PCI', slot(each)] for each in VFS]
    here.find(device('fpga', FPGA, *handles))
    begun = begin(here, pool, vf(0, bitstream=here.image(), function_id=F1))
    wanted = any_card(bitstream=here.image(), function_id=F2)
    other = pool.submit(plug, wanted)
    with pytest.raises(futures.TimeoutError):
        other.result(timeout=1.5)
    (here.directory / 'go').touch()
    begun.result()
    with pytest.raises(exception.PlugException, match='is busy') as caught:
        other.result()
    assert isinstance(caught.value.__cause__, exception.DeviceNotFound)
    assert F1 in str(caught.value)
    # Root knows that the function was not given out after all.
    assert [function_notes.has(pci.get(each)) for each in VFS] == [True, False]


def test_the_wait_of_a_sharer_has_a_limit(here, pool, begun):
    """It waits as long as Cyborg's driver may program."""
    os_acc.CONF.set_override('program_timeout', 0.5, 'os_acc')
    option('program_timeout', 0.5)
    option('timeout', 4.0)
    began = time.monotonic()
    with pytest.raises(exception.PlugException, match='Waited'):
        plug(vf(1, function_id=F1))
    # The driver discovers its devices before and after it programs.
    assert 0.5 + 2 * 4.0 <= time.monotonic() - began < 60


def test_a_claim_is_saved_before_programming(here, begun):
    """So that a crash forgets neither the handle nor the programming."""
    (van,) = os_acc.get_vans()
    assert isinstance(van.handle, objects.PCIHandle)
    assert (van.device, van.function_id) == (FPGA, F1)


def test_mdevs_of_a_device_that_is_programmed(here, pool):
    """No driver of Cyborg 17 has it, but nothing forbids it."""
    types = [
        ['MDEV', slot(devices.GPU, asked_type='acme-1', vgpu_mark='')]
        for _ in range(2)
    ]
    here.find(device('fpga', devices.GPU, *types, program=True))
    wanted = devices.mdev('acme-1', parent=devices.GPU)
    wanted.bitstream, wanted.function_id = here.image(), F1
    with cyborg_host.creating(here.kernel, devices.GPU):
        _, (van,) = plug(wanted)
    assert van.function_id == F1
    assert [name for name, *_ in here.calls()] == ['program', 'create_mdev']
