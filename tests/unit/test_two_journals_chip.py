# SPDX-License-Identifier: Apache-2.0

"""Two journals, and the PFs of one FPGA: a PF may be able to program it."""

from __future__ import annotations

import claim_notes
import device_nodes
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.claims import holder
from os_acc.kernel import pci
from os_acc.privileged import function_notes
from os_acc.privileged import notes

# The management function of a card of Xilinx, and its user function.
MANAGEMENT, USER = '0000:0b:00.0', '0000:0b:00.1'
# Two PFs of another vendor's FPGA: only an entry says that it is one.
FIRST, SECOND = '0000:0c:00.0', '0000:0c:00.1'
PROGRAM = {
    'programming': 'single',
    'program': '/usr/bin/true {file} {address}',
    'check': '/usr/bin/true {address}',
}


@pytest.fixture
def use(kernel, tmp_path):
    """A function that opens one of the journals."""
    for address, ids in (
        (MANAGEMENT, '10ee:5000'),
        (USER, '10ee:5001'),
        (FIRST, '1234:5000'),
        (SECOND, '1234:5001'),
    ):
        kernel.add_function(address, ids, 0x120000, 'xocl', totalvfs=2)
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    devices.spec({'address': '*'})

    def call(name: str) -> None:
        path = str(tmp_path / name)
        os_acc.CONF.set_override('state_path', path, 'os_acc')
        os_acc.initialize(reset=True)

    call('nova')
    return call


def plug(address):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(address)])
    return instance


def check(use, kernel, one, other):
    """One journal has a function; the other one gets no other of the FPGA."""
    instance = plug(one)
    there = kernel.snapshot()
    use('other')
    error = devices.refused(devices.pci(other))
    assert isinstance(error, exception.DeviceBusy), error
    assert instance.uuid in str(error)
    assert kernel.snapshot() == there
    use('nova')
    assert os_acc.unplug(instance) == 1
    use('other')
    assert os_acc.unplug(plug(other)) == 1
    assert notes.files.names() == []


@pytest.mark.parametrize('bind', ['os-acc', 'libvirt'])
@pytest.mark.parametrize('turned', [False, True])
def test_management_and_user_function(use, kernel, bind, turned):
    devices.spec({'address': '*', 'bind': bind})
    pair = (USER, MANAGEMENT) if turned else (MANAGEMENT, USER)
    check(use, kernel, *pair)


@pytest.mark.parametrize('turned', [False, True])
def test_an_entry_says_that_it_is_an_fpga(use, kernel, turned):
    devices.spec({'address': FIRST, **PROGRAM}, {'address': SECOND})
    check(use, kernel, *((SECOND, FIRST) if turned else (FIRST, SECOND)))


@pytest.mark.parametrize('turned', [False, True])
def test_a_pf_and_a_vf_of_another_pf(use, kernel, turned):
    vfs = {'address': USER, 'num_vfs': 2}
    devices.spec(vfs, {'address': MANAGEMENT})
    vf = '0000:0b:00.2'
    instance = plug(vf if turned else MANAGEMENT)
    use('other')
    error = devices.refused(devices.pci(MANAGEMENT if turned else vf))
    assert isinstance(error, exception.DeviceBusy), error
    assert instance.uuid in str(error)


def test_files_of_two_pfs(use, kernel, monkeypatch):
    """A file of a PF counts as the PF."""
    nodes = device_nodes.Nodes(kernel)
    nodes.install(monkeypatch)
    directory = f'pci0000:00/{MANAGEMENT}/xclmgmt/xclmgmt1'
    nodes.add('xclmgmt1', 'c 240:1', directory, 'xrt_mgmt')
    entry = {'devices': '/dev/xclmgmt1', 'resource_class': 'CUSTOM_F'}
    devices.spec(entry)
    instance = devices.instance()
    os_acc.plug(instance, [devices.wanted('CUSTOM_F')])
    use('other')
    devices.spec({'address': USER})
    error = devices.refused(devices.pci(USER))
    assert isinstance(error, exception.DeviceBusy), error
    assert instance.uuid in str(error)


def test_another_function_may_manage_the_card(use):
    """Its journal says which. It is no hardware that both share."""
    first, second = (pci.get(each) for each in (FIRST, SECOND))
    with holder.acting_for(claim_notes.ONE):
        notes.note(notes.PCI, SECOND, second.ids, device=FIRST)
    with holder.acting_for(claim_notes.OTHER):
        assert function_notes.why_not(first) is None
        with pytest.raises(exception.DeviceBusy) as caught:
            function_notes.note_function(first)
    assert claim_notes.ONE.instance in str(caught.value)


def test_another_pf_of_the_fpga(use):
    """What may program a function is no hardware that both share."""
    one, other = (pci.get(each) for each in (MANAGEMENT, USER))
    with holder.acting_for(claim_notes.ONE):
        notes.note(notes.PCI, USER, other.ids, device=USER)
    with holder.acting_for(claim_notes.OTHER):
        assert function_notes.why_not(one) is None
        with pytest.raises(exception.DeviceBusy) as caught:
            function_notes.note_function(one)
    assert claim_notes.ONE.instance in str(caught.value)


def test_a_card_that_is_no_fpga(use):
    """Functions of one slot may have different owners."""
    instance = plug(FIRST)
    use('other')
    other = plug(SECOND)
    assert os_acc.unplug(other) == 1
    use('nova')
    assert os_acc.unplug(instance) == 1
