# SPDX-License-Identifier: Apache-2.0

"""The kit finds each rule that a plugin breaks, and names it."""

from __future__ import annotations

import contextlib
import threading
import uuid

from directory_plugin import DEVICE
from directory_plugin import Directory
from directory_plugin import DirectoryPlugin
from directory_plugin import run_check
import pytest

from os_acc import exception
from os_acc import objects
from os_acc import testing
from os_acc.testing import rules


class TestDirectory(Directory):
    """The plugin that the broken ones are made from keeps the contract."""


class DescribesNothing(DirectoryPlugin):
    def describe(self):
        return objects.HostPluginInfo(plugin_name=self.name, handle_info=[])


class MakesUpTheConfig(DirectoryPlugin):
    def plug(self, van, instance_info, live):
        super().plug(van, instance_info, live)
        van.guest_config = str(uuid.uuid4())


class LeavesTheFile(DirectoryPlugin):
    def unplug(self, van, instance_info, live):
        pass


class NeedsTheFile(DirectoryPlugin):
    def unplug(self, van, instance_info, live):
        self.file(van).unlink()


class LeavesHalfAFile(DirectoryPlugin):
    def plug(self, van, instance_info, live):
        self.file(van, '.new').write_text('')
        super().plug(van, instance_info, live)
        self.file(van, '.new').unlink()


class AttachesOnce(DirectoryPlugin):
    def attach(self, van):
        if self.has(van):
            raise RuntimeError('it is attached')
        super().attach(van)


class AttachesTwice(DirectoryPlugin):
    def attach(self, van):
        device = van.driver_data[DEVICE]
        self.hypervisor.attach(van.instance_uuid, device)


class RestoresNothing(DirectoryPlugin):
    def restore(self, van, instance_info):
        pass


class RestoresOne(DirectoryPlugin):
    """It takes the second VAN for restored without a look."""

    def restore(self, van, instance_info):
        if van.handle.name == 't':
            super().restore(van, instance_info)

    def is_intact(self, van):
        return van.handle.name != 't' or super().is_intact(van)


class LooksByWriting(DirectoryPlugin):
    def has_guest(self, instance_info):
        (self.path / 'asked').write_text('')


class FailsToDescribe(DirectoryPlugin):
    def describe(self):
        raise OSError(5, 'Input/output error')


class FailsToSayWhetherIntact(DirectoryPlugin):
    def is_intact(self, van):
        raise OSError(5, 'Input/output error')


class NamesOneFunction(DirectoryPlugin):
    def plug(self, van, instance_info, live):
        super().plug(van, instance_info, live)
        self.file(van).write_text('test/t')
        van.guest_config = 'test/t'


# --- live


class AttachesNothing(DirectoryPlugin):
    def attach(self, van):
        pass


class AttachesWithoutLive(DirectoryPlugin):
    def plug(self, van, instance_info, live):
        running = self.has_guest(instance_info)
        super().plug(van, instance_info, running)


class SwallowsAnErrorOfTheAttach(DirectoryPlugin):
    def attach(self, van):
        with contextlib.suppress(OSError):
            super().attach(van)


class DetachesNothing(DirectoryPlugin):
    def detach(self, van):
        pass


class DoesNotWait(DirectoryPlugin):
    def wait(self, van):
        pass


class SwallowsTheTimeout(DirectoryPlugin):
    def detach(self, van):
        with contextlib.suppress(exception.Timeout):
            super().detach(van)


class WaitsForEver(DirectoryPlugin):
    def wait(self, van):
        if self.has(van):
            threading.Event().wait()


class BlocksInHasGuest(DirectoryPlugin):
    def has_guest(self, instance_info):
        threading.Event().wait()


class NeedsAGuest(DirectoryPlugin):
    def has(self, van):
        devices = self.hypervisor.devices(van.instance_uuid)
        return van.driver_data.get(DEVICE) in devices


class SeesNoGuest(DirectoryPlugin):
    def has_guest(self, instance_info):
        return False


class SeesAGuest(DirectoryPlugin):
    def has_guest(self, instance_info):
        return True


class SaysThatNoneRuns(DirectoryPlugin):
    def runs_guest(self, instance_info):
        return False


class SaysThatOneRuns(DirectoryPlugin):
    def runs_guest(self, instance_info):
        return True


class TakesAnErrorForStopped(DirectoryPlugin):
    def runs_guest(self, instance_info):
        try:
            return super().runs_guest(instance_info)
        except OSError:
            return False


class TakesAnErrorForNoGuest(DirectoryPlugin):
    def has_guest(self, instance_info):
        try:
            return super().has_guest(instance_info)
        except OSError:
            return False


class TakesAnErrorForReleased(DirectoryPlugin):
    def has(self, van):
        try:
            return super().has(van)
        except OSError:
            return False


# --- live, and killed


class SavesTooLate(DirectoryPlugin):
    def plug(self, van, instance_info, live):
        super().plug(van, instance_info, False)
        if live:
            if DEVICE not in van.driver_data:
                van.driver_data = {DEVICE: str(uuid.uuid4())}
            self.attach(van)


class KeepsTheNameInMemory(DirectoryPlugin):
    def attach(self, van):
        self.known = van.uuid
        super().attach(van)

    def has(self, van):
        return getattr(self, 'known', None) == van.uuid and super().has(van)


class RemovesTheFileFirst(DirectoryPlugin):
    """Without the file, it takes the VAN for released."""

    def unplug(self, van, instance_info, live):
        if self.file(van).exists():
            self.file(van).unlink()
            super().unplug(van, instance_info, live)


# --- moved live


class MapsNothing(DirectoryPlugin):
    def migration_map(self, vans_source, vans_target):
        found = super().migration_map(vans_source, vans_target)
        for each in found.changes:
            each.target = each.source
        return found


class MapsIntoAnotherFormat(DirectoryPlugin):
    def migration_map(self, vans_source, vans_target):
        found = super().migration_map(vans_source, vans_target)
        found.format = 'other'
        return found


class MapsAnotherVAN(DirectoryPlugin):
    def migration_map(self, vans_source, vans_target):
        found = super().migration_map(vans_source, vans_target)
        for each in found.changes:
            each.uuid = str(uuid.uuid4())
        return found


class MapsWhatItLikes(DirectoryPlugin):
    def migration_map(self, vans_source, vans_target):
        found = super().migration_map(vans_source, vans_target)
        found.changes[0].source += str(uuid.uuid4())
        return found


class MapsWhileItWrites(DirectoryPlugin):
    def migration_map(self, vans_source, vans_target):
        (self.path / 'map').write_text(str(uuid.uuid4()))
        return super().migration_map(vans_source, vans_target)


class MapsByPlace(DirectoryPlugin):
    """It takes the first VAN of the target, whosever it is."""

    def migration_map(self, vans_source, vans_target):
        return super().migration_map(vans_source, vans_source[:1])


class RedefinesNothing(DirectoryPlugin):
    def redefine(self, definition, migration_map):
        return definition


class RedefinesTooMuch(DirectoryPlugin):
    def redefine(self, definition, migration_map):
        return super().redefine(definition, migration_map) + '!'


class AddsWhatIsNew(DirectoryPlugin):
    def redefine(self, definition, migration_map):
        target = migration_map.changes[0].target
        return f'a guest with <{target}>' * (1 + (target in definition))


FINDS = [
    (MapsNothing, 'a_migration_map', rules.MOVES_LIVE),
    (MapsIntoAnotherFormat, 'a_migration_map', rules.MOVES_LIVE),
    (MapsAnotherVAN, 'a_migration_map', rules.MOVES_LIVE),
    (MapsWhatItLikes, 'a_migration_map', rules.MOVES_LIVE),
    (MapsWhileItWrites, 'a_migration_map', rules.PLUGIN_LOOKS),
    (MapsByPlace, 'a_migration_map_of_others', rules.MOVES_OWN),
    (RedefinesNothing, 'a_definition_for_the_target', rules.REDEFINE),
    (RedefinesTooMuch, 'a_definition_for_the_target', rules.REDEFINE),
    (AddsWhatIsNew, 'a_definition_for_the_target', rules.REDEFINE),
    (DescribesNothing, 'it_describes_what_it_takes', rules.DESCRIBE),
    (MakesUpTheConfig, 'each_request_is_plugged_and_unplugged', rules.CONFIG),
    (LeavesTheFile, 'each_request_is_plugged_and_unplugged', rules.DETACH),
    (
        NeedsTheFile,
        'unplug_of_what_was_never_plugged',
        rules.DETACH_NOTHING,
    ),
    (NeedsTheFile, 'unplug_twice', rules.DETACH_TWICE),
    (LeavesHalfAFile, 'a_kill_before_each_change_of_plug', rules.DETACH_HALF),
    (AttachesOnce, 'live', rules.ATTACH_TWICE),
    (RestoresNothing, 'a_reboot_of_the_host', rules.RESTORE),
    (RestoresOne, 'a_reboot_of_the_host', rules.RESTORE),
    (LooksByWriting, 'what_only_looks', rules.PLUGIN_LOOKS),
    (FailsToDescribe, 'it_describes_what_it_takes', rules.DESCRIBE),
    (
        FailsToSayWhetherIntact,
        'each_request_is_plugged_and_unplugged',
        rules.RESTORE,
    ),
    (
        NamesOneFunction,
        'another_handle_makes_a_difference',
        rules.CONFIG_DIFFERS,
    ),
    (AttachesTwice, 'live', rules.ATTACH_TWICE),
    (AttachesNothing, 'live', rules.ATTACH),
    (DetachesNothing, 'live', rules.ATTACH),
    (SwallowsAnErrorOfTheAttach, 'an_api_that_fails_at_plug', rules.ATTACH),
    (AttachesWithoutLive, 'not_live_while_a_guest_runs', rules.LIVE_ONLY),
    (SwallowsTheTimeout, 'a_guest_that_keeps_the_device', rules.RELEASE),
    (DoesNotWait, 'a_guest_that_keeps_the_device', rules.RELEASE),
    (NeedsAGuest, 'a_guest_that_has_ended', rules.GUEST_ENDED),
    (SeesNoGuest, 'has_guest_before_and_after', rules.HAS_GUEST),
    (SeesAGuest, 'has_guest_before_and_after', rules.HAS_GUEST),
    (SaysThatNoneRuns, 'runs_guest_before_and_after', rules.RUNS_GUEST),
    (SaysThatOneRuns, 'runs_guest_before_and_after', rules.RUNS_GUEST),
    (TakesAnErrorForStopped, 'an_api_that_fails', rules.NO_ANSWER),
    (TakesAnErrorForNoGuest, 'an_api_that_fails', rules.NO_ANSWER),
    (TakesAnErrorForReleased, 'an_api_that_fails', rules.NO_ANSWER),
    (SavesTooLate, 'a_kill_in_a_live_plug', rules.DETACH_HALF),
    (KeepsTheNameInMemory, 'a_kill_in_a_live_plug', rules.DETACH_HALF),
    (KeepsTheNameInMemory, 'a_kill_in_a_live_unplug', rules.DETACH_HALF),
    (RemovesTheFileFirst, 'a_kill_in_a_live_unplug', rules.DETACH_HALF),
]

BLOCKS = [
    (WaitsForEver, 'a_guest_that_keeps_the_device'),
    (BlocksInHasGuest, 'has_guest_before_and_after'),
]


@pytest.mark.parametrize(
    ('broken', 'check', 'rule'),
    FINDS,
    ids=[f'{broken.__name__}-{rule.name}' for broken, _, rule in FINDS],
)
def test_a_broken_plugin_fails_by_its_rule(
    tmp_path, monkeypatch, broken, check, rule
):
    with pytest.raises(testing.Broken) as caught:
        run_check(broken, check, tmp_path, monkeypatch)
    assert caught.value.rule is rule, str(caught.value)


@pytest.mark.parametrize(
    ('broken', 'check'),
    BLOCKS,
    ids=[f'{broken.__name__}-{check}' for broken, check in BLOCKS],
)
def test_a_call_that_blocks_fails_by_its_rule(
    tmp_path, monkeypatch, broken, check
):
    with pytest.raises(testing.Broken, match='has not returned') as caught:
        run_check(broken, check, tmp_path, monkeypatch, seconds=0.3)
    assert caught.value.rule is rules.PLUGIN_DEADLINE, str(caught.value)


def test_each_rule_of_plugins_has_a_broken_plugin():
    of_plugins = {rule.name for rule in rules.ALL if 'plugin' in rule.page}
    found = {rule.name for _, _, rule in FINDS}
    assert found | {rules.PLUGIN_DEADLINE.name} == of_plugins
