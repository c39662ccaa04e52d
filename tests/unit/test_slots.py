# SPDX-License-Identifier: Apache-2.0

"""A slot: what it says before there is a journal, and to an operator."""

from __future__ import annotations

import dataclasses
import uuid

import pytest

import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import locking
from os_acc import objects
from os_acc import programming
from os_acc.kinds.fake.driver.driver import FakeDriver
from os_acc.programming import contents
from os_acc.spec import device_spec

AES = programming.Wanted('aes', 'a' * 64)


@pytest.fixture
def device(clean):
    """A driver that os-acc has not given a journal or locks."""
    return programming.Slot(FakeDriver.load('fake'), 'fpga')


@pytest.fixture
def looking(device, tmp_path):
    """The same, connected to a journal that does not exist yet."""
    device.driver.connect(
        journal.Journal(str(tmp_path / 'state'), 1.0, read_only=True),
        locking.Locks(str(tmp_path), 1.0),
    )
    return device


@pytest.fixture
def fpga(clean, tmp_path):
    """A function that gives the slot of a region of an initialized host."""
    FakeDriver.load('fake')
    for name, value in (
        ('devices', ['fpga:pci:3:dynamic']),
        ('hardware_path', str(tmp_path / 'hardware')),
    ):
        os_acc.CONF.set_override(name, value, 'os_acc_fake')
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    driver = os_acc._get().extensions.drivers['fake']
    return lambda region: programming.Slot(driver, 'fpga', region)


def plug(function):
    instance = objects.InstanceInfo(
        uuid=str(uuid.uuid4()), name='guest', project_id='project'
    )
    request = objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), driver='fake', function_id=function
    )
    (van,) = os_acc.plug(instance, [request])
    return van


class Board(programming.Programmer):
    """Programs nothing, and fails as it is told."""

    def __init__(self, seen=None, check=None, fail=None):
        super().__init__('fpga')
        self.seen, self.checks, self.fails = seen, check, fail
        self.done = 0

    def check(self, file):
        if self.checks is not None:
            raise self.checks

    def program(self, file, function_id, report):
        self.done += 1
        if self.fails is not None:
            self.fails()
        return device_spec.PARTIAL

    def look(self):
        return self.seen

    def clear(self):
        self.done += 1


def fail(text):
    def do():
        raise RuntimeError(text)

    return do


def on(slot, **values):
    """The same slot, with a programmer."""
    return dataclasses.replace(slot, programmer=Board(**values))


def fill(slot, wanted=AES):
    return on(slot).program(wanted)


def test_before_initialize_it_cannot_be_used(device):
    for ask in (
        device.record,
        device.inside,
        device.broken,
        device.users,
        device.show,
        lambda: device.rank(AES),
        lambda: device.take(objects.VAN(), AES),
        lambda: fill(device),
        lambda: device.clear(objects.VAN(), remove=True),
    ):
        with pytest.raises(exception.LibraryNotInitialized):
            ask()


def test_without_a_journal_it_only_shows(looking):
    assert looking.users() == []
    assert looking.rank(AES) == 1
    assert looking.rank(programming.Wanted()) == 0
    shown = looking.show()
    assert (shown['function'], shown['users']) == (None, [])
    assert (shown['state'], shown['can be programmed now']) == ('ok', 'yes')
    slot = on(looking)
    with pytest.raises(exception.JournalError, match='for reading only'):
        slot.program(AES)
    assert slot.programmer.done == 0


def test_labels(fpga):
    assert fpga(programming.WHOLE).label == 'fpga'
    assert fpga('1').label == 'region 1 of fpga'
    assert fpga('1').lock_name != fpga('2').lock_name


def test_busy_says_where_what_and_by_whom(fpga):
    van = plug('aes')
    with pytest.raises(exception.DeviceBusy) as caught:
        fill(fpga('0'), programming.Wanted('sha'))
    assert str(caught.value) == (
        'region 0 of fpga is busy: it is programmed with aes and used by '
        f'instance {van.instance_uuid} (VAN {van.uuid}) with aes'
    )


def test_busy_of_a_device_whose_content_is_unknown(fpga):
    van = plug(None)
    with pytest.raises(exception.DeviceBusy) as caught:
        fill(fpga('0'))
    assert str(caught.value) == (
        'region 0 of fpga is busy: it is used by '
        f'instance {van.instance_uuid} (VAN {van.uuid})'
    )


def test_rank(fpga):
    first, second, third = map(fpga, '012')
    plug('aes')
    assert [slot.rank(AES) for slot in (first, second, third)] == [0, 1, 1]
    sha = programming.Wanted('sha')
    assert [slot.rank(sha) for slot in (first, second, third)] == [4, 1, 1]

    with pytest.raises(RuntimeError):
        on(second, fail=fail('no board')).program(AES)
    assert second.broken() == 'its programming failed: RuntimeError: no board'
    assert [
        slot.rank(programming.Wanted()) for slot in (first, second, third)
    ] == [0, 4, 0]
    assert second.inside() == programming.Wanted()
    assert second.rank(AES) == 1


def test_a_check_that_fails_leaves_no_record(fpga):
    slot = on(fpga('0'), check=RuntimeError('no command'))
    with pytest.raises(RuntimeError, match='no command'):
        slot.program(AES)
    assert slot.programmer.done == 0
    assert fpga('0').record() is None


def test_the_function_of_several_slots(fpga):
    slots = [fpga(region) for region in '012']
    assert programming.common_function(slots) is None
    fill(slots[0])
    assert programming.common_function(slots) == 'aes'
    fill(slots[1], programming.Wanted('AES', 'b' * 64))
    fill(slots[2], programming.Wanted('sha'))
    assert programming.common_function(slots) is None


@pytest.mark.parametrize(
    ('seen', 'expected'),
    [
        ('AES', AES),
        ('sha', programming.Wanted('sha')),
        ('', programming.Wanted()),
        (None, AES),
    ],
)
def test_what_the_hardware_shows_counts_more(fpga, seen, expected):
    slot = fpga('0')
    fill(slot)
    assert on(slot, seen=seen).inside() == expected


def test_a_slot_that_is_not_programmed_says_why(fpga):
    slot = fpga('0')
    seen = []

    def look_and_fail():
        # A copy, as another process reads it.
        seen.append(fpga('0').broken())
        raise RuntimeError('no bitstream')

    with pytest.raises(RuntimeError, match='no bitstream'):
        on(slot, fail=look_and_fail).program(AES)
    assert seen == ['its programming has started and has not ended']
    assert 'its programming failed: ' in slot.broken()
    assert 'no bitstream' in slot.broken()
    fill(slot)
    assert slot.broken() is None


def test_the_regions_of_a_dynamic_device_are_shown(fpga):
    van = plug('aes')
    shown = programming.show([fpga(region) for region in '012'], 'dynamic')
    assert shown['programming'] == 'dynamic'
    used = [line for line in shown['regions'] if van.uuid in line]
    assert len(used) == 1
    assert 'function aes' in used[0]
    # A text, and not a Python list.
    assert '[' not in ''.join(shown['regions'])


def test_the_administrator_means_the_bitstream(fpga):
    slot = fpga('0')
    assert fill(slot) is True
    assert fill(slot) is False
    assert fill(slot, programming.Wanted('aes')) is False
    assert fill(slot, programming.Wanted('aes', 'b' * 64)) is True
    assert slot.inside() == programming.Wanted('aes', 'b' * 64)


def test_a_bitstream_whose_function_is_known_from_before(fpga):
    slot = fpga('0')
    fill(slot)
    by_file = programming.Wanted(None, AES.digest)
    assert fill(slot, by_file) is False
    assert contents.Wanted(None, 'b' * 64).matches(AES, exact=False) is False
    assert by_file.matches(AES, exact=True) is True
