# SPDX-License-Identifier: Apache-2.0

"""The kit finds a driver that answers, refuses or undoes as it must not."""

from __future__ import annotations

import threading

from card_driver import CARD
from card_driver import RESOURCE_CLASS
from card_driver import CardDriver
from card_driver import run_check
import pytest
import test_kit_finds

from os_acc import exception
from os_acc import testing
from os_acc.testing import deadlines
from os_acc.testing import rules

EACH = 'each_request_is_plugged_and_unplugged'
LISTED = 'devices_are_described'


def block():
    """Wait for ever. The thread is a daemon."""
    threading.Event().wait()


# --- calls that do not return


class BlocksAtPrepare(CardDriver):
    def prepareVAN(self, van, request, instance_info):
        block()


class BlocksAtUndo(CardDriver):
    def unprepareVAN(self, van, instance_info):
        block()


class BlocksWithTheLock(CardDriver):
    def give_back(self, van):
        block()


class BlocksInCanHandle(CardDriver):
    def can_handle(self, request):
        block()


class BlocksInIsIntact(CardDriver):
    def is_intact(self, van):
        block()


class BlocksWhenItLists(CardDriver):
    def get_devices(self):
        block()


BLOCKS = [
    (BlocksAtPrepare, EACH),
    (BlocksAtUndo, EACH),
    (BlocksAtUndo, 'undo_of_nothing'),
    (BlocksAtUndo, 'a_kill_before_each_change_of_plug'),
    (BlocksWithTheLock, 'undo_while_a_guest_holds_the_device'),
    (BlocksInCanHandle, 'can_handle_claims_the_requests'),
    (BlocksInIsIntact, 'plug_again_changes_nothing'),
    (BlocksWhenItLists, LISTED),
]


# --- requests that are not refused, or by another error


class ServesAnyTrait(CardDriver):
    def serves_any(self, request):
        return request.resource_class in (None, RESOURCE_CLASS)


class RefusesByAnotherError(CardDriver):
    def serves_any(self, request):
        if not super().serves_any(request):
            raise ValueError(request.resource_class)
        return True


class FailsToClaim(CardDriver):
    def can_handle(self, request):
        raise OSError(5, 'Input/output error')


# --- devices that are prepared badly


class SetsNoHandle(CardDriver):
    def prepareVAN(self, van, request, instance_info):
        pass


class PreparesNothing(CardDriver):
    def prepareVAN(self, van, request, instance_info):
        if van.handle is None:
            self.choose(van, request)


class TakesItsLockTwice(CardDriver):
    def choose(self, van, request):
        with self.lock(CARD):
            super().choose(van, request)


class NeverSaves(CardDriver):
    def prepareVAN(self, van, request, instance_info):
        van.handle, van.device = self.handle(self.free()[0]), CARD
        van.driver_data['was'] = (self.queue(van) / 'enable').read_text()
        (self.queue(van) / 'enable').write_text(van.uuid)


class PreparesOnce(CardDriver):
    def prepareVAN(self, van, request, instance_info):
        if van.handle is not None and (
            (self.queue(van) / 'enable').read_text() == van.uuid
        ):
            raise exception.DeviceBusy(device=CARD, holder='a VAN')
        super().prepareVAN(van, request, instance_info)


class DisablesTheOthers(CardDriver):
    def prepareVAN(self, van, request, instance_info):
        super().prepareVAN(van, request, instance_info)
        for name in self.queues():
            if name != van.handle.name:
                (self.path / name / 'enable').write_text('no')


class NeverIntact(CardDriver):
    def is_intact(self, van):
        return False


class FailsToSayWhetherIntact(CardDriver):
    def is_intact(self, van):
        raise OSError(5, 'Input/output error')


class ChangesAfterThePlug(CardDriver):
    def postplug(self, van, instance_info):
        (self.queue(van) / 'opened').write_text('after plug')


# --- an undo that does too little or too much


class LeavesAFile(CardDriver):
    def prepareVAN(self, van, request, instance_info):
        super().prepareVAN(van, request, instance_info)
        (self.queue(van) / 'owner').write_text(instance_info.uuid)


class DisablesTheWholeCard(CardDriver):
    def give_back(self, van):
        super().give_back(van)
        for name in self.queues():
            (self.path / name / 'enable').write_text('no')


class AsksWithoutTheLock(CardDriver):
    def unprepareVAN(self, van, instance_info):
        if van.handle is not None and (
            van.handle.identity not in self.handles_of_others(van)
        ):
            self.give_back(van)


class LocksTooLate(CardDriver):
    def unprepareVAN(self, van, instance_info):
        others = [each for each in self.vans_on(CARD) if each.uuid != van.uuid]
        if van.handle is not None and van.handle.name not in [
            each.handle.name for each in others
        ]:
            with self.lock(CARD):
                self.give_back(van)


class KeepsQuietOfAGuest(CardDriver):
    def give_back(self, van):
        if (self.queue(van) / 'opened').read_text() != 'yes':
            super().give_back(van)


class RaisesAnotherErrorForAGuest(CardDriver):
    def give_back(self, van):
        if (self.queue(van) / 'opened').read_text() == 'yes':
            raise RuntimeError('it is open')
        super().give_back(van)


class LooksForAGuestTooLate(CardDriver):
    def give_back(self, van):
        (self.queue(van) / 'enable').write_text(van.driver_data['was'])
        super().give_back(van)


# --- lists that are wrong


class FailsToList(CardDriver):
    def get_devices(self):
        raise OSError(5, 'Input/output error')


class ListsNone(CardDriver):
    def get_devices(self):
        return None


class ListsADeviceTwice(CardDriver):
    def get_devices(self):
        return super().get_devices() * 2


class ListsTheDevicesOfAnother(CardDriver):
    def get_devices(self):
        found = super().get_devices()
        for device in found:
            device.driver = 'another'
        return found


class ListsAWrongTrait(CardDriver):
    def get_devices(self):
        found = super().get_devices()
        for device in found:
            device.traits = ['fast']
        return found


class ListsMoreFreeThanThereAre(CardDriver):
    def get_devices(self):
        found = super().get_devices()
        for device in found:
            device.handles_free = device.handles_total + 1
        return found


class NamesAnUnlistedDevice(CardDriver):
    def choose(self, van, request):
        super().choose(van, request)
        van.device = 'card1'
        van.save()


FINDS = [
    (ServesAnyTrait, 'a_foreign_trait_is_refused', rules.REFUSE),
    (
        RefusesByAnotherError,
        'a_wrong_resource_class_is_refused',
        rules.REFUSE,
    ),
    (FailsToClaim, 'can_handle_claims_the_requests', rules.CLAIM),
    (SetsNoHandle, EACH, rules.SERVE),
    (TakesItsLockTwice, EACH, rules.SERVE),
    (PreparesNothing, 'plug_again_changes_nothing', rules.INTACT),
    (NeverSaves, 'a_kill_before_each_change_of_plug', rules.SAVE_FIRST),
    (PreparesOnce, 'a_second_prepare', rules.SAME_HANDLE),
    (NeverIntact, 'plug_again_changes_nothing', rules.INTACT),
    (FailsToSayWhetherIntact, 'plug_again_changes_nothing', rules.INTACT),
    (ChangesAfterThePlug, EACH, rules.UNDO),
    (LeavesAFile, EACH, rules.UNDO),
    (DisablesTheOthers, 'the_others_are_left_alone', rules.OTHERS),
    (DisablesTheWholeCard, 'the_others_are_left_alone', rules.OTHERS),
    (
        AsksWithoutTheLock,
        'undo_that_another_van_overtakes',
        rules.UNDO_LOCKED,
    ),
    (LocksTooLate, 'undo_that_another_van_overtakes', rules.UNDO_LOCKED),
    (
        KeepsQuietOfAGuest,
        'undo_while_a_guest_holds_the_device',
        rules.BUSY,
    ),
    (
        RaisesAnotherErrorForAGuest,
        'undo_while_a_guest_holds_the_device',
        rules.BUSY,
    ),
    (
        LooksForAGuestTooLate,
        'undo_while_a_guest_holds_the_device',
        rules.BUSY,
    ),
    (FailsToList, LISTED, rules.DEVICES),
    (ListsNone, LISTED, rules.DEVICES),
    (ListsADeviceTwice, LISTED, rules.DEVICES),
    (ListsTheDevicesOfAnother, LISTED, rules.DEVICES),
    (ListsAWrongTrait, LISTED, rules.DEVICES),
    (ListsMoreFreeThanThereAre, LISTED, rules.DEVICES),
    (NamesAnUnlistedDevice, LISTED, rules.DEVICES),
]


@pytest.mark.parametrize(
    ('driver', 'check', 'rule'),
    FINDS,
    ids=[f'{driver.__name__}-{rule.name}' for driver, _, rule in FINDS],
)
def test_a_broken_driver_fails_by_its_rule(
    tmp_path, monkeypatch, driver, check, rule
):
    with pytest.raises(testing.Broken) as caught:
        run_check(driver, check, tmp_path, monkeypatch)
    assert caught.value.rule is rule, str(caught.value)


@pytest.mark.parametrize(
    ('driver', 'check'),
    BLOCKS,
    ids=[f'{driver.__name__}-{check}' for driver, check in BLOCKS],
)
def test_a_call_that_blocks_fails_by_its_rule(
    tmp_path, monkeypatch, driver, check
):
    with pytest.raises(testing.Broken, match='has not returned') as caught:
        run_check(driver, check, tmp_path, monkeypatch, seconds=0.3)
    assert caught.value.rule is rules.DEADLINE, str(caught.value)


class CallsItself(CardDriver):
    def can_handle(self, request):
        return threading.get_ident(), self.get_devices()

    def get_devices(self):
        return threading.get_ident()


@pytest.fixture
def limited():
    """A driver whose calls have a deadline."""
    made = CallsItself.load('card')
    limits = deadlines.Deadlines(60.0)
    limits.set_for(made, testing.AnyPlugin.load('any'))
    return made


def test_what_a_method_calls_itself_is_a_part_of_its_call(limited):
    outside, inside = limited.can_handle(None)
    assert outside == inside != threading.get_ident()


def test_a_thread_that_ends_before_it_has_begun(limited, monkeypatch):
    """Python 3.11 does that if coverage is measured."""
    monkeypatch.setattr(threading.Thread, 'run', lambda thread: None)
    assert limited.get_devices() == threading.get_ident()
    monkeypatch.undo()
    # And the next call has a thread of its own again.
    assert limited.get_devices() != threading.get_ident()


def test_each_rule_of_drivers_has_a_broken_driver():
    of_drivers = {rule.name for rule in rules.ALL if 'driver' in rule.page}
    found = {rule.name for _, _, rule in FINDS + test_kit_finds.FINDS}
    # The others have tests of their own, with several broken drivers.
    found |= {rules.NEXT_DEVICE.name, rules.DEADLINE.name}
    assert found == of_drivers
