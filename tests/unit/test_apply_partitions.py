# SPDX-License-Identifier: Apache-2.0

"""Compute partitions of AMD GPUs, which a document describes."""

from __future__ import annotations

import errno
import uuid

import amd_model
import applied
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.desired import export
from os_acc.kernel import amd_partitions
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kinds.devfile import rules
from os_acc.privileged import notes
from os_acc.privileged.devfile import partitions as privileged
from os_acc.privileged.devfile import partitions as records
from os_acc.spec import device_spec

CARD, OTHER = '0000:c1:00.0', '0000:c6:00.0'


@pytest.fixture
def cards(kernel, monkeypatch):
    return amd_model.installed(kernel, monkeypatch, CARD, OTHER)


def apply(mode=None, card=CARD, check=False, entry=amd_model.ENTRY):
    wanted = [{'device': card, 'compute': mode}] if mode else []
    return os_acc.apply(
        {'version': 1, 'offered': [entry], 'partitions': wanted}, check=check
    )


def step(report, card=CARD):
    (found,) = (
        each
        for each in report.steps
        if (each.part, each.name) == ('partitions', card)
    )
    return found


def names(card=CARD):
    return sorted(
        device.address
        for device in os_acc.get_devices()
        if device.address.startswith(card)
    )


def named(name):
    handle = objects.DeviceFileHandle(name=name, files=[])
    return objects.AcceleratorRequest(uuid=str(uuid.uuid4()), handle=handle)


def plug(request):
    guest = devices.instance()
    (van,) = os_acc.plug(guest, [request])
    return guest, van


def writes(kernel):
    return [text for path, text in kernel.writes if 'compute' in path]


def test_set_and_undone(cards, kernel):
    would = step(apply('CPX', CARD.upper(), check=True))
    assert (would.result, would.before) == ('would change', 'SPX')
    assert cards.mode(CARD) == 'SPX'
    done = step(apply('CPX'))
    assert (done.result, done.before, done.after) == ('changed', 'SPX', 'CPX')
    assert apply('CPX', check=True).results() == {'unchanged'}
    assert apply('CPX').results() == {'unchanged'}
    assert step(apply('DPX')).after == 'DPX'
    assert step(apply()).result == 'changed'
    assert cards.mode(CARD) == 'SPX'
    assert writes(kernel) == ['CPX', 'DPX', 'SPX']
    assert records.partitions.names() == []
    assert cards.mode(OTHER) == 'SPX'
    assert 'partitions' not in {each.part for each in apply().steps}


@pytest.mark.parametrize('high', [False, True])
def test_each_partition_is_a_device(cards, high):
    """Before, the card is one, and its other files are none."""
    cards.high = high
    apply()
    assert names() == [f'{CARD}+drm+renderd']
    apply('CPX')
    assert names() == [f'{CARD}+cpx={n}+drm+renderd' for n in range(8)]
    assert names(OTHER) == [f'{OTHER}+drm+renderd']
    guests = [plug(named(each)) for each in names()]
    files = [{each.path for each in van.handle.files} for _, van in guests]
    for number, found in enumerate(files):
        assert found == {
            f'/dev/dri/renderD{128 + number}',
            f'/dev/dri/card{number}',
            '/dev/kfd',
        }
    assert {van.device for _, van in guests} == {CARD}
    for guest, _ in guests:
        os_acc.unplug(guest)


def test_an_instance_is_in_the_way(cards):
    """The rest of the document is done."""
    apply('CPX')
    guest, van = plug(named(f'{CARD}+cpx=3+drm+renderd'))
    document = {
        'version': 1,
        'offered': [amd_model.ENTRY],
        'partitions': [
            {'device': CARD, 'compute': 'SPX'},
            {'device': OTHER, 'compute': 'QPX'},
        ],
    }
    for check in (True, False):
        report = os_acc.apply(document, check=check)
        assert van.uuid in step(report).reason
    assert step(report).result == 'in the way'
    assert step(report, OTHER).result == 'changed'
    assert (cards.mode(CARD), cards.mode(OTHER)) == ('CPX', 'QPX')
    os_acc.unplug(guest)
    assert os_acc.apply_again().results() == {'changed', 'unchanged'}
    assert cards.mode(CARD) == 'SPX'


def test_an_instance_is_in_the_way_of_the_undo(cards):
    apply('CPX')
    guest, van = plug(named(f'{CARD}+cpx=0+drm+renderd'))
    for check in (True, False):
        assert van.uuid in step(apply(check=check)).reason
    os_acc.unplug(guest)
    os_acc.apply_again()
    assert cards.mode(CARD) == 'SPX'


def test_nobody_is_in_the_way_of_an_undo_of_nothing(cards):
    apply('SPX')
    plug(named(f'{CARD}+drm+renderd'))
    assert step(apply(check=True)).result == 'unchanged'
    assert step(apply()).result == 'unchanged'


def test_a_card_that_is_denied(cards):
    """Its mode is not set, although another entry offers its file."""
    denied = {'devices': amd_model.ENTRY['devices'], 'deny': True}
    devices.spec(amd_model.ENTRY, denied)
    specs = device_spec.load(os_acc.CONF)
    (found,) = rules.partition_obstacles(CARD, 'CPX', specs)
    assert 'offers no device file of it' in found.text
    devices.spec(amd_model.ENTRY)
    specs = device_spec.load(os_acc.CONF)
    assert not list(rules.partition_obstacles(CARD, 'CPX', specs))


def test_a_whole_card_and_its_partitions(cards):
    """A VAN that has the function excludes each partition, and vice versa."""
    apply('CPX', entry=amd_model.ENTRY | {'resource_class': amd_model.CLASS})
    devices.spec({'address': CARD})
    os_acc.initialize(reset=True)
    guest, _ = plug(named(f'{CARD}+cpx=5+drm+renderd'))
    refused = devices.refused(devices.pci(CARD))
    assert isinstance(refused, exception.DeviceBusy)
    os_acc.unplug(guest)


@pytest.mark.parametrize('number', [0, 5])
def test_a_process_is_in_the_way(cards, kernel, number):
    apply('CPX')
    path = f'/dev/dri/renderD{128 + number}'
    pid = kernel.hold(path, 'python3', f'c 226:{128 + number}')
    text = f'process {pid} (python3) has {kernel.root}{path} open'
    for check in (True, False):
        assert text in step(apply('SPX', check=check)).reason
    with devices.acting(), pytest.raises(exception.DeviceBusy, match=path):
        privileged.set_mode(CARD, 'SPX', 5)
    assert cards.mode(CARD) == 'CPX'
    assert step(apply('QPX', OTHER), OTHER).result == 'changed'


def test_the_kernel_says_that_it_is_busy(cards, kernel):
    """It counts the processes of KFD, whatever card they use."""
    pid = kernel.hold('/dev/kfd', 'rocm-smi', 'c 235:0')
    cards.computing = True
    found = step(apply('CPX'))
    assert found.result == 'in the way'
    assert 'the kernel refuses the mode CPX' in found.reason
    text = f'process {pid} (rocm-smi) has {kernel.root}/dev/kfd open'
    assert text in found.reason
    assert records.partitions.names() == []
    cards.computing = False
    assert os_acc.apply_again().results() == {'changed', 'unchanged'}


def test_the_driver_does_not_do_it(cards, kernel):
    cards.ignores = True
    found = step(apply('CPX'))
    assert found.result == 'failed'
    assert 'left it in the mode SPX' in found.reason
    assert records.partitions.names() == []
    cards.ignores = False
    kernel.fail('*/current_compute_partition', errno.EIO)
    assert step(apply('DPX')).result == 'failed'
    assert step(apply('DPX')).result == 'changed'
    kernel.fail('*/current_compute_partition', errno.EIO)
    assert step(apply('CPX')).result == 'failed'
    apply()
    assert cards.mode(CARD) == 'SPX'


def test_what_cannot_be(cards, kernel):
    apply()
    kernel.add_function(other := '0000:3b:00.0', '10de:2330', 0x030200)
    for card, mode, text in (
        (CARD, 'TPX', 'its driver lists SPX, DPX, QPX, CPX'),
        (other, 'CPX', 'shows no compute partitions'),
        ('0000:3c:00.0', 'CPX', '0000:3c:00.0'),
    ):
        for check in (True, False):
            found = step(apply(mode, card, check=check), card)
            assert found.result == 'failed'
            assert text in found.reason
    other = {'devices': '/dev/dri/renderD136'}
    for check in (True, False):
        found = step(apply('CPX', check=check, entry=other))
        assert 'offers no device file of it' in found.reason
    assert writes(kernel) == []


def test_a_wrong_document(cards):
    for wanted, field in (
        ({'device': 'card0', 'compute': 'CPX'}, 'partitions[0].device'),
        ({'device': CARD, 'compute': 'cpx'}, 'partitions[0].compute'),
        ({'device': CARD, 'memory': 'NPS4'}, 'partitions[0].memory'),
        ({'device': CARD}, 'partitions[0].compute'),
    ):
        with pytest.raises(exception.InvalidRequest) as caught:
            os_acc.apply({'version': 1, 'partitions': [wanted]})
        assert caught.value.kwargs['field'] == field
    twice = [
        {'device': CARD, 'compute': 'CPX'},
        {'device': CARD.upper(), 'compute': 'SPX'},
    ]
    with pytest.raises(exception.InvalidRequest, match='each device once'):
        os_acc.apply({'version': 1, 'partitions': twice})


def test_root_checks_its_arguments(cards, kernel):
    devices.spec(amd_model.ENTRY)
    with devices.acting():
        for card, error in (
            ('card0', exception.InvalidRequest),
            ('0000:3b:00.0', exception.DeviceNotFound),
        ):
            with pytest.raises(error):
                privileged.set_mode(card, 'CPX', 5)
            with pytest.raises(error):
                privileged.let_go(card, 5)
        for mode in ('TPX', 'NPS4', 'CPX\n', '', None, 7, ['CPX']):
            with pytest.raises(exception.DeviceError):
                privileged.set_mode(CARD, mode, 5)
        with pytest.raises(exception.InvalidRequest):
            privileged.set_mode(CARD, 'CPX', -1)
        devices.spec({'address': CARD})
        with pytest.raises(exception.DeviceNotFound, match='device_spec'):
            privileged.set_mode(CARD, 'CPX', 5)
        assert privileged.let_go(CARD, 5) is False
    assert writes(kernel) == []


def test_what_somebody_else_has_set_stays(cards, kernel):
    cards.set(CARD, 'DPX')
    assert apply('DPX').results() <= {'changed', 'unchanged'}
    apply()
    assert cards.mode(CARD) == 'DPX'
    apply('CPX')
    cards.set(CARD, 'QPX')
    assert step(apply(check=True)).result == 'unchanged'
    assert records.partitions.names() == [CARD]
    assert step(apply()).result == 'unchanged'
    assert records.partitions.names() == []
    assert cards.mode(CARD) == 'QPX'
    assert writes(kernel) == ['CPX']


def test_after_a_reboot(cards):
    """The partitions come first: an instance has one."""
    apply('CPX')
    guest, van = plug(named(name := f'{CARD}+cpx=6+drm+renderd'))
    cards.reboot()
    report = os_acc.initialize(reset=True)
    assert [each.uuid for each in report.restored] == [van.uuid]
    assert cards.mode(CARD) == 'CPX'
    assert os_acc.get_vans()[0].handle.name == name
    os_acc.unplug(guest)
    apply()
    assert cards.mode(CARD) == 'SPX'


def test_after_a_reboot_with_the_whole_card(cards):
    """The instance had it as it was; the document goes on waiting."""
    apply()
    guest, van = plug(named(f'{CARD}+drm+renderd'))
    assert step(apply('CPX')).result == 'in the way'
    cards.reboot()
    report = os_acc.initialize(reset=True)
    assert [each.uuid for each in report.restored] == [van.uuid]
    assert cards.mode(CARD) == 'SPX'
    os_acc.unplug(guest)
    os_acc.apply_again()
    assert cards.mode(CARD) == 'CPX'


@pytest.mark.parametrize('mode', ['DPX', None])
def test_after_a_reboot_with_another_mode(cards, mode):
    """The instance gets its partition; then the document goes on."""
    apply('CPX')
    guest, van = plug(named(f'{CARD}+cpx=6+drm+renderd'))
    assert step(apply(mode)).result == 'in the way'
    cards.reboot()
    report = os_acc.initialize(reset=True)
    assert [each.uuid for each in report.restored] == [van.uuid]
    assert cards.mode(CARD) == 'CPX'
    os_acc.unplug(guest)
    os_acc.apply_again()
    assert cards.mode(CARD) == (mode or 'SPX')


def test_a_card_that_has_gone(cards, kernel):
    apply('CPX')
    kernel.remove_function(CARD)
    assert step(apply('CPX')).result == 'failed'
    assert step(apply()).result == 'unchanged'


def test_a_card_that_is_being_reset(cards, monkeypatch):
    """amdgpu does not tell the mode then. Nobody gets its files."""
    apply('CPX')
    read = amd_partitions.sysfs.read

    def refuses(path):
        if path.endswith('current_compute_partition') and CARD in path:
            raise PermissionError(errno.EPERM, 'in reset', path)
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(amd_partitions.sysfs, 'read', refuses)
        assert names() == []
        number = device_files.get('/dev/dri/renderD128').number
        assert file_place.of(number).functions == (CARD,)
    assert len(names()) == 8


def test_export(cards):
    apply('CPX')
    found = export.export(os_acc._host)
    assert found['partitions'] == [{'device': CARD, 'compute': 'CPX'}]
    assert os_acc.apply(found, check=True).results() == {'unchanged'}


@pytest.mark.timeout(600)
@pytest.mark.parametrize('undone', [False, True])
def test_a_crash_before_each_write(cards, kernel, monkeypatch, undone):
    """A restart, or the next apply, finishes what was begun."""

    def act():
        return apply() if undone else apply('DPX')

    number, died = 0, True
    while died:
        apply('CPX')
        died = applied.dies_at(kernel, monkeypatch, number, act)
        os_acc.initialize(reset=True)
        act()
        assert act().results() <= {'unchanged'}, number
        assert cards.mode(CARD) == ('SPX' if undone else 'DPX'), number
        number += 1
    assert number > 3
    apply()
    assert cards.mode(CARD) == 'SPX'
    assert records.partitions.names() == []
    assert notes.files.names() == []
