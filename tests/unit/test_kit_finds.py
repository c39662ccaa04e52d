# SPDX-License-Identifier: Apache-2.0

"""The kit finds each rule that a driver breaks, and names it."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import uuid

from card_driver import CardDriver
from card_driver import FileDriver
from card_driver import Hardware
from card_driver import run_check
from pages import SOURCE
import pytest

import os_acc
from os_acc import exception
from os_acc import health
from os_acc import objects
from os_acc import testing
from os_acc.drivers import allocation
from os_acc.kernel import device_files
from os_acc.kernel import sysfs
from os_acc.kinds.fake.driver.driver import FakeDriver
from os_acc.testing import driver_processes
from os_acc.testing import rules


class TestCard(Hardware):
    """The driver that the broken ones are made from keeps the contract."""


class SavesTooLate(CardDriver):
    def prepareVAN(self, van, request, instance_info):
        if van.handle is None:
            self.choose(van, request)
        was = (self.queue(van) / 'enable').read_text()
        (self.queue(van) / 'enable').write_text(van.uuid)
        van.driver_data['was'] = was
        van.save()


class SavesNothing(CardDriver):
    def choose(self, van, request):
        van.handle = objects.TestHandle(name=self.free()[0])
        van.device = CARD_OF
        (self.queue(van) / 'enable').write_text('chosen')


class KeepsState(CardDriver):
    """It has what the undo needs in memory."""

    def prepareVAN(self, van, request, instance_info):
        super().prepareVAN(van, request, instance_info)
        self.known = {van.uuid}

    def unprepareVAN(self, van, instance_info):
        if van.uuid in getattr(self, 'known', ()):
            super().unprepareVAN(van, instance_info)


class NamesNoHandles(CardDriver):
    handle_types = ('PCIHandle',)


class SaysThatItCleans(CardDriver):
    cleans = True


class ClaimsNothing(CardDriver):
    def can_handle(self, request):
        return request.handle is not None


class TakesAnyClass(CardDriver):
    def choose(self, van, request):
        if request.handle is None:
            request.resource_class = RESOURCE
        super().choose(van, request)


class TakesAnyHandle(CardDriver):
    def has(self, handle):
        return True


class TouchesAStrangersQueue(CardDriver):
    def unprepareVAN(self, van, instance_info):
        if van.handle is not None and 'was' in van.driver_data:
            self._undo(van)

    def _undo(self, van):
        queue = self.queue(van)
        if not queue.is_dir():
            return
        if (queue / 'opened').read_text() == 'yes':
            raise exception.DeviceBusy(device='q', holder='a guest')
        (queue / 'enable').write_text(van.driver_data['was'])


class UndoesOnce(CardDriver):
    def look(self, van):
        return van.handle and (self.queue(van) / 'enable').read_text()

    def unprepareVAN(self, van, instance_info):
        enabled = self.look(van)
        if enabled == 'no':
            raise RuntimeError('it is not enabled')
        super().unprepareVAN(van, instance_info)


class NeedsAHandle(CardDriver):
    def unprepareVAN(self, van, instance_info):
        self.queue(van)
        super().unprepareVAN(van, instance_info)


class NeedsTheDevice(CardDriver):
    def unprepareVAN(self, van, instance_info):
        if van.handle is not None:
            (self.queue(van) / 'enable').read_text()
        super().unprepareVAN(van, instance_info)


class TakesItFromAGuest(CardDriver):
    def unprepareVAN(self, van, instance_info):
        (self.queue(van) / 'opened').write_text('no')
        super().unprepareVAN(van, instance_info)


class LooksByWriting(CardDriver):
    def can_handle(self, request):
        (self.path / 'q1/opened').write_text('by can_handle')
        return super().can_handle(request)

    def is_intact(self, van):
        (self.path / 'q1/opened').write_text('by is_intact')
        return super().is_intact(van)


class RefusesTooLate(CardDriver):
    def prepareVAN(self, van, request, instance_info):
        (self.path / 'q0/opened').write_text('by prepareVAN')
        super().prepareVAN(van, request, instance_info)


class NeverWorks(CardDriver):
    def prepareVAN(self, van, request, instance_info):
        raise self.none()


class UndoesNothing(CardDriver):
    def unprepareVAN(self, van, instance_info):
        pass


class ForgetsHowItWas(CardDriver):
    def prepareVAN(self, van, request, instance_info):
        van.driver_data.pop('was', None)
        super().prepareVAN(van, request, instance_info)


class ChoosesAgain(CardDriver):
    def prepareVAN(self, van, request, instance_info):
        van.handle = None
        super().prepareVAN(van, request, instance_info)


class TakesNoLock(CardDriver):
    all_have_looked = threading.Barrier(driver_processes.ASKERS, timeout=100)

    def choose(self, van, request):
        if not self.has(request.handle) and request.handle is not None:
            raise self.none()
        if not self.serves_any(request):
            raise self.none()
        free = self.free()
        self.all_have_looked.wait()
        if not free:
            raise self.none()
        van.handle, van.device = objects.TestHandle(name=free[0]), CARD_OF
        van.save()


class KeepsOldNumbers(FileDriver):
    def prepareVAN(self, van, request, instance_info):
        CardDriver.prepareVAN(self, van, request, instance_info)


class NamesOtherNumbers(FileDriver):
    def handle(self, name):
        made = super().handle(name)
        made.files[0].minor += 1
        return made


class AlwaysIntact(CardDriver):
    def is_intact(self, van):
        return True


class IntactOnOneQueue(CardDriver):
    """Its is_intact() looks at one of two queues only."""

    def is_intact(self, van):
        return van.handle.name == 'q1' or super().is_intact(van)


class CountsAllAsFree(CardDriver):
    def free(self):
        return self.queues()

    def choose(self, van, request):
        taken = {each.handle.name for each in self.vans_on(CARD_OF)}
        self.free = lambda: [q for q in self.queues() if q not in taken]
        try:
            super().choose(van, request)
        finally:
            del self.free


class WritesWhenItLists(CardDriver):
    def get_devices(self):
        (self.path / 'q0/opened').write_text('by get_devices')
        return super().get_devices()


class ListsABadName(CardDriver):
    def get_devices(self):
        found = super().get_devices()
        for device in found:
            device.resource_class = 'card-queue'
        return found


RESOURCE, CARD_OF = 'CUSTOM_CARD_QUEUE', 'card0'

FINDS = [
    (SavesTooLate, 'a_kill_before_each_change_of_plug', rules.SAVE_FIRST),
    (SavesNothing, 'a_kill_before_each_change_of_plug', rules.SAVE_FIRST),
    (KeepsState, 'undo_in_another_process', rules.NO_STATE),
    (KeepsState, 'a_kill_before_each_change_of_plug', rules.UNDO_HALF),
    (
        NamesNoHandles,
        'each_request_is_plugged_and_unplugged',
        rules.HANDLE_TYPES,
    ),
    (ClaimsNothing, 'can_handle_claims_the_requests', rules.CLAIM),
    (TakesAnyClass, 'a_wrong_resource_class_is_refused', rules.REFUSE),
    (TakesAnyHandle, 'a_wrong_handle_is_refused', rules.REFUSE),
    (
        TouchesAStrangersQueue,
        'undo_of_a_device_that_another_van_has',
        rules.UNDO_STALE,
    ),
    (UndoesOnce, 'undo_twice', rules.UNDO_TWICE),
    (NeedsAHandle, 'undo_of_nothing', rules.UNDO_NOTHING),
    (NeedsTheDevice, 'undo_of_a_device_that_is_gone', rules.UNDO_GONE),
    (TakesItFromAGuest, 'undo_while_a_guest_holds_the_device', rules.BUSY),
    (LooksByWriting, 'can_handle_claims_the_requests', rules.CLAIM_LOOKS),
    (LooksByWriting, 'plug_again_changes_nothing', rules.INTACT_LOOKS),
    (
        RefusesTooLate,
        'a_wrong_resource_class_is_refused',
        rules.REFUSE_LOOKS,
    ),
    (NeverWorks, 'each_request_is_plugged_and_unplugged', rules.SERVE),
    (UndoesNothing, 'each_request_is_plugged_and_unplugged', rules.UNDO),
    (ForgetsHowItWas, 'a_second_prepare', rules.AS_FOUND),
    (ChoosesAgain, 'a_second_prepare', rules.SAME_HANDLE),
    (SaysThatItCleans, 'cleaning_command_runs_at_the_release', rules.CLEAN),
    (TakesNoLock, 'threads_that_ask_for_the_same', rules.ONE_VAN),
    (KeepsOldNumbers, 'a_reboot_of_the_host', rules.NUMBERS),
    (NamesOtherNumbers, 'all_requests_are_plugged_together', rules.NUMBERS),
    (AlwaysIntact, 'a_reboot_of_the_host', rules.INTACT),
    (IntactOnOneQueue, 'a_reboot_of_the_host', rules.INTACT),
    (CountsAllAsFree, 'devices_are_described', rules.DEVICES),
    (WritesWhenItLists, 'devices_are_described', rules.DEVICES_LOOK),
    (ListsABadName, 'devices_are_described', rules.DEVICES),
]


class StopsAtAFailedDevice(FakeDriver):
    def prepareVAN(self, van, request, instance_info):
        if van.handle is None and request.handle is None:
            for device in self.get_devices():
                allocation.check_healthy(self, van, device.address)
        super().prepareVAN(van, request, instance_info)


class HidesAFailedDevice(FakeDriver):
    def get_devices(self):
        view = health.View(self.journal)
        found = super().get_devices()
        return [each for each in found if view.find(each.address) is None]


class FailsToListAFailedDevice(FakeDriver):
    def get_devices(self):
        for device in super().get_devices():
            health.check(self.journal, device.address)
        return super().get_devices()


class TwoFakes(testing.DriverContract):
    __test__ = False
    driver_class = FakeDriver

    def make_driver(self):
        made = self.driver_class.load('fake')
        for name, value in {
            'devices': ['fake0:test:1', 'fake1:test:1'],
            'discover': True,
            'hardware_path': str(self.directory),
        }.items():
            os_acc.CONF.set_override(name, value, 'os_acc_fake')
        return made

    def two_devices(self):
        request = objects.AcceleratorRequest(
            uuid=str(uuid.uuid4()), resource_class='CUSTOM_FAKE_TEST'
        )
        return request, ('fake0', 'fake1')


@pytest.mark.parametrize(
    'driver',
    [
        FakeDriver,
        StopsAtAFailedDevice,
        HidesAFailedDevice,
        FailsToListAFailedDevice,
    ],
)
def test_a_driver_that_stops_at_a_failed_device(tmp_path, monkeypatch, driver):
    contract = TwoFakes()
    contract.driver_class, contract.directory = driver, tmp_path / 'hardware'
    contract.kernel = None
    service = contract.start(tmp_path, monkeypatch)
    seen = contextlib.nullcontext()
    if driver is not FakeDriver:
        seen = pytest.raises(testing.Broken)
    try:
        with seen as caught:
            contract.test_a_failed_device_does_not_stop_the_next(service)
    finally:
        service.end()
    if driver is not FakeDriver:
        assert caught.value.rule is rules.NEXT_DEVICE


@pytest.mark.parametrize(
    'check', ['all_requests_are_plugged_together', 'a_reboot_of_the_host']
)
def test_a_driver_that_reads_the_numbers_again(tmp_path, monkeypatch, check):
    run_check(FileDriver, check, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ('driver', 'check', 'rule'),
    FINDS,
    ids=[f'{driver.__name__}-{rule.name}' for driver, _, rule in FINDS],
)
def test_a_broken_driver_fails_by_its_rule(
    tmp_path, monkeypatch, driver, check, rule
):
    count = 2 if driver is IntactOnOneQueue else 1
    with pytest.raises(testing.Broken) as caught:
        run_check(driver, check, tmp_path, monkeypatch, count)
    assert caught.value.rule is rule, str(caught.value)
    text = str(caught.value)
    assert rule.text in text
    assert f'See "{rule.heading}" in doc/source/{rule.page}.' in text


class SeesNothing(Hardware):
    __test__ = False

    def look(self):
        return {}


def test_a_look_that_sees_no_change_is_warned_of(tmp_path, monkeypatch):
    contract = SeesNothing()
    contract.plug_in(tmp_path)
    service = contract.start(tmp_path, monkeypatch)
    try:
        with pytest.warns(UserWarning, match=r'^look\(\) returns the same'):
            contract.test_each_request_is_plugged_and_unplugged(service)
    finally:
        service.end()


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    made = testing.Kernel(tmp_path / 'host')
    made.install(monkeypatch)
    made.add_function(CARD, files={'queues/q0/level': '6\n'})
    return made


CARD = '0000:3b:00.0'


def test_a_file_without_a_handler_is_read_only(kernel):
    path = f'{sysfs.SYS}/bus/pci/devices/{CARD}/queues/q0/level'
    with pytest.raises(PermissionError, match="handlers has no 'level'"):
        sysfs.write(path, '9')
    kernel.handlers['level'] = lambda path, text: path.write_text(text)
    sysfs.write(path, '9')
    assert sysfs.read_int(path) == 9


def test_a_device_file_comes_and_goes(kernel):
    path = f'{sysfs.DEV}/acme/q0'
    kernel.remove_node('/dev/acme/q0')
    kernel.add_node('/dev/acme/q0', 'c 240:7')
    found = device_files.number_of(path)
    assert (found.kind, found.major, found.minor) == ('c', 240, 7)
    kernel.remove_node('/dev/acme/q0')
    assert not os.path.exists(path)
    assert device_files.number_of(path) is None


@pytest.mark.parametrize('rule', rules.ALL, ids=lambda rule: rule.name)
def test_the_documentation_has_the_section_of_each_rule(rule):
    text = (SOURCE / rule.page).read_text()
    heading = re.escape(rule.heading)
    assert re.search(rf'^{heading}\n[-=]{{{len(rule.heading)}}}$', text, re.M)


@pytest.mark.parametrize('rule', rules.ALL, ids=lambda rule: rule.name)
def test_the_documentation_lists_each_rule(rule):
    text = ' '.join((SOURCE / 'testing-kit.rst').read_text().split())
    page = rule.page.removesuffix('.rst')
    line = f'``{rule.name}`` {rule.text}. :doc:`{page}`, "{rule.heading}".'
    assert line in text
