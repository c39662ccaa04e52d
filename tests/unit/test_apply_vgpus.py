# SPDX-License-Identifier: Apache-2.0

"""vGPU types that a document sets ahead of time, on a kernel of files."""

from __future__ import annotations

import applied
import devices
import pytest
import vgpu_card

import os_acc
from os_acc import exception
from os_acc.journal import codec
from os_acc.kernel import vgpu_cards

PF = '0000:41:00.0'
VF, OTHER = '0000:41:00.4', '0000:41:00.5'
TYPES = {558: ('NVIDIA A40-1Q', 1), 559: ('NVIDIA A40-2Q', 2)}


@pytest.fixture
def card(kernel, tmp_path, monkeypatch) -> vgpu_card.Card:
    monkeypatch.setattr(vgpu_cards, 'PATH', str(tmp_path / 'missing.xml'))
    made = vgpu_card.Card(kernel, PF, TYPES, size=48, vfs=3)
    devices.spec({'vendor_id': '10de', 'vgpu_type': 'NVIDIA A40-1Q'})
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize(reset=True)
    return made


def apply(*vfs, check=False, kind='NVIDIA A40-1Q'):
    """Apply a document; by default it offers what device_spec offers."""
    return os_acc.apply(
        {
            'version': 1,
            'offered': [{'vendor_id': '10de', 'vgpu_type': kind}],
            'vgpus': [{'device': each} for each in vfs],
        },
        check=check,
    )


def test_set_and_cleared(card):
    before = card.kernel.snapshot()
    assert apply(VF, OTHER, check=True).results() == {'would change'}
    assert apply(VF, OTHER).results() == {'changed'}
    assert [card.kind_of(each) for each in card.vfs] == [558, 558, 0]
    writes = list(card.kernel.writes)
    assert apply(VF, OTHER).results() == {'unchanged'}
    assert card.kernel.writes == writes
    assert applied.results(apply(VF)) == {VF: 'unchanged', OTHER: 'changed'}
    apply()
    assert card.kernel.snapshot() == before
    assert apply().steps == []


@pytest.mark.parametrize('check', [True, False])
def test_the_address_of_no_vf(card, check):
    (step,) = apply('0000:99:00.4', check=check).steps
    assert (step.result, 'has none' in step.reason) == ('failed', True)


@pytest.mark.parametrize('check', [True, False])
@pytest.mark.parametrize('address', [PF, '0000:55:00.0'])
def test_the_address_of_another_function(card, kernel, address, check):
    """It is offered, but is no VF of an NVIDIA card."""
    kernel.add_function('0000:55:00.0', '10de:1eb8', 0x030200)
    found = {each.name: each for each in apply(address, VF, check=check).steps}
    assert found[address].result == 'failed'
    assert 'nvidia/current_vgpu_type' in found[address].reason
    assert found[VF].result == ('would change' if check else 'changed')


@pytest.mark.parametrize('check', [True, False])
@pytest.mark.parametrize('kind', ['NVIDIA A99', '\u00b2', '7'])
def test_a_type_that_the_card_does_not_have(card, kind, check):
    steps = apply(VF, check=check, kind=kind).steps
    (found,) = (each for each in steps if each.part == 'vgpus')
    assert found.result == 'failed'
    assert 'NVIDIA A40-1Q' in found.reason


def test_a_check_of_a_card_that_has_another_type(card):
    """Its types are unknown until that has gone."""
    apply(VF)
    found = apply(VF, check=True, kind='NVIDIA A40-2Q').steps
    assert [each.result for each in found] == ['would change'] * 2


def test_an_instance_leaves_the_type_there(card):
    apply(VF)
    for wanted in (devices.pci(VF), devices.wanted('VGPU')):
        guest = devices.instance()
        (van,) = os_acc.plug(guest, [wanted])
        assert van.handle.address == VF
        assert apply(VF).results() == {'unchanged'}
        os_acc.unplug(guest)
        assert card.kind_of(VF) == 558
    apply()
    assert card.kind_of(VF) == 0


def test_the_type_of_an_instance_is_not_cleared(card):
    apply(VF)
    guest = devices.instance()
    (van,) = os_acc.plug(guest, [devices.pci(VF)])
    (step,) = apply().steps
    assert (step.result, card.kind_of(VF)) == ('in the way', 558)
    assert van.uuid in step.reason
    os_acc.unplug(guest)
    assert os_acc.apply_again().results() == {'changed'}
    assert card.kind_of(VF) == 0


def test_an_instance_whose_row_is_unreadable(card, monkeypatch):
    apply(VF)
    guest = devices.instance()
    (van,) = os_acc.plug(guest, [devices.pci(VF)])

    def fail(row):
        raise ValueError('newer')

    with monkeypatch.context() as patch:
        patch.setattr(codec, 'to_van', fail)
        (step,) = apply().steps
    assert (step.result, card.kind_of(VF)) == ('in the way', 558)
    assert van.uuid in step.reason
    os_acc.unplug(guest)


def test_a_type_that_was_set_for_an_instance(card):
    """It goes with the instance, so it is set once that has gone."""
    guest = devices.instance()
    os_acc.plug(guest, [devices.pci(VF)])
    assert apply(VF).results() == {'in the way'}
    os_acc.unplug(guest)
    assert card.kind_of(VF) == 0
    assert os_acc.apply_again().results() == {'changed'}
    assert card.kind_of(VF) == 558


def test_after_a_reboot(card):
    apply(VF, OTHER)
    guest = devices.instance()
    os_acc.plug(guest, [devices.pci(VF)])
    card.reboot()
    card.sriov_manage()
    os_acc.initialize(reset=True)
    assert [card.kind_of(each) for each in card.vfs] == [558, 558, 0]
    os_acc.unplug(guest)
    assert card.kind_of(VF) == 558
    apply()
    assert [card.kind_of(each) for each in card.vfs] == [0, 0, 0]


@pytest.mark.parametrize('vfs', [(), (VF,), (OTHER,)])
def test_after_a_reboot_with_another_type(card, monkeypatch, vfs):
    """An instance keeps what it has until it is unplugged."""
    card.install_config(monkeypatch)
    apply(VF)
    guest = devices.instance()
    os_acc.plug(guest, [devices.pci(VF)])
    apply(*vfs, kind='NVIDIA A40-2Q')
    card.reboot()
    card.sriov_manage()
    os_acc.initialize(reset=True)
    assert card.kind_of(VF) == 558
    os_acc.unplug(guest)
    os_acc.initialize(reset=True)
    assert card.kind_of(VF) == 559 * (VF in vfs)


@pytest.mark.parametrize('vfs', [(VF, OTHER), (OTHER,)])
def test_another_type_of_the_entry(card, monkeypatch, vfs):
    """The card has vGPUs of one size only."""
    card.install_config(monkeypatch)
    apply(VF, OTHER)
    apply(*vfs, kind='NVIDIA A40-2Q')
    found = [card.kind_of(each) for each in (VF, OTHER)]
    assert found == [559 * (VF in vfs), 559]
    again = apply(*vfs, kind='NVIDIA A40-2Q')
    assert again.results() == {'unchanged'}


def test_another_type_waits_for_an_instance(card, monkeypatch):
    card.install_config(monkeypatch)
    apply(VF)
    guest = devices.instance()
    (van,) = os_acc.plug(guest, [devices.pci(VF)])
    for check in (True, False):
        report = apply(VF, kind='NVIDIA A40-2Q', check=check)
        assert van.uuid in report.steps[-1].reason
    assert card.kind_of(VF) == 558
    os_acc.unplug(guest)
    os_acc.apply_again()
    assert card.kind_of(VF) == 559


def test_an_instance_of_the_old_type_is_in_the_way_of_the_whole_card(
    card, monkeypatch
):
    card.install_config(monkeypatch)
    apply(VF, OTHER)
    guest = devices.instance()
    (van,) = os_acc.plug(guest, [devices.pci(VF)])
    report = apply(VF, OTHER, kind='NVIDIA A40-2Q')
    for each in report.steps[1:]:
        assert (each.result, van.uuid in each.reason) == ('in the way', True)
    os_acc.unplug(guest)
    os_acc.apply_again()
    assert [card.kind_of(each) for each in (VF, OTHER)] == [559, 559]


def test_a_type_that_does_not_exist_waits_for_no_instance(card, monkeypatch):
    card.install_config(monkeypatch)
    apply(VF)
    os_acc.plug(devices.instance(), [devices.pci(VF)])
    report = apply(VF, OTHER, kind='NVIDIA A40-9Q')
    assert applied.results(report)[OTHER] == 'failed'


def test_an_instance_is_not_blamed_for_a_type_of_the_operator(
    card, monkeypatch
):
    card.install_config(monkeypatch)
    apply(VF)
    card.preset(OTHER, 558)
    (van,) = os_acc.plug(devices.instance(), [devices.pci(VF)])
    report = apply(VF, OTHER, kind='NVIDIA A40-2Q')
    assert 'already set on it' in report.steps[-1].reason
    assert van.uuid not in report.steps[-1].reason


def test_an_instance_takes_its_own_type_along(card):
    """It is not in the way of a document that has the VF no more."""
    guest = devices.instance()
    os_acc.plug(guest, [devices.pci(VF)])
    assert apply(VF).results() == {'in the way'}
    assert apply().results() == {'unchanged'}
    os_acc.unplug(guest)
    assert card.kind_of(VF) == 0


def test_a_type_of_the_operator_stays(card):
    card.preset(VF, 558)
    assert apply(VF).results() == {'unchanged'}
    apply()
    assert card.kind_of(VF) == 558


def test_another_type_is_there(card):
    card.preset(VF, 559)
    (step,) = apply(VF).steps
    assert step.result == 'in the way'
    assert '559' in step.reason
    assert card.kind_of(VF) == 559


def test_a_vf_that_is_not_there(card):
    report = apply('0000:41:0f.7', OTHER)
    assert applied.results(report) == {
        '0000:41:0f.7': 'failed',
        OTHER: 'changed',
    }


def test_a_wrong_address(card):
    with pytest.raises(exception.InvalidRequest) as caught:
        apply('gpu')
    assert caught.value.kwargs['field'] == 'vgpus[0].device'
