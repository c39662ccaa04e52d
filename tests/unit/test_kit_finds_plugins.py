# SPDX-License-Identifier: Apache-2.0

"""The kit finds each rule that a plugin breaks, and names it."""

from __future__ import annotations

import uuid

import pytest

from os_acc import objects
from os_acc import plugin
from os_acc import testing
from os_acc.testing import rules


class FolderPlugin(plugin.PluginBase):
    """Writes a file for each VAN, and one more for a running guest."""

    def file(self, van, end=''):
        return self.path / f'{van.uuid}{end}'

    def describe(self):
        return objects.HostPluginInfo(
            plugin_name=self.name,
            handle_info=[objects.HostHandleInfo.of('TestHandle')],
        )

    def plug(self, van, instance_info, live):
        self.file(van).write_text(van.handle.identity)
        if live:
            self.file(van, '.live').write_text('')
        van.guest_config = van.handle.identity

    def restore(self, van, instance_info):
        self.plug(van, instance_info, False)

    def is_intact(self, van):
        return self.file(van).exists()

    def unplug(self, van, instance_info, live):
        self.file(van, '.live').unlink(missing_ok=True)
        self.file(van).unlink(missing_ok=True)


class Folder(testing.PluginContract):
    """The folder. A subclass names the plugin."""

    plugin_class = FolderPlugin

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.make(tmp_path)

    def make(self, folder):
        self.path = folder / 'guests'
        self.path.mkdir()

    def make_plugin(self):
        made = self.plugin_class.load('folder')
        made.path = self.path
        return made

    def requests(self):
        return [
            objects.AcceleratorRequest(
                uuid=str(uuid.uuid4()), handle=objects.TestHandle(name=name)
            )
            for name in ('t', 'u')
        ]

    def look(self):
        return {each.name: each.read_text() for each in self.path.iterdir()}

    def run_guest(self, instance):
        """Do nothing: a guest is a file."""

    def reboot(self):
        for each in self.path.iterdir():
            each.unlink()


class TestFolder(Folder):
    """The plugin that the broken ones are made from keeps the contract."""


class DescribesNothing(FolderPlugin):
    def describe(self):
        return objects.HostPluginInfo(plugin_name=self.name, handle_info=[])


class MakesUpTheConfig(FolderPlugin):
    def plug(self, van, instance_info, live):
        super().plug(van, instance_info, live)
        van.guest_config = str(uuid.uuid4())


class LeavesTheFile(FolderPlugin):
    def unplug(self, van, instance_info, live):
        pass


class NeedsTheFile(FolderPlugin):
    def unplug(self, van, instance_info, live):
        self.file(van).unlink()


class LeavesHalfAFile(FolderPlugin):
    def plug(self, van, instance_info, live):
        self.file(van, '.new').write_text('')
        super().plug(van, instance_info, live)
        self.file(van, '.new').unlink()


class AttachesOnce(FolderPlugin):
    def plug(self, van, instance_info, live):
        if self.file(van, '.live').exists():
            raise RuntimeError('it is attached')
        super().plug(van, instance_info, live)


class RestoresNothing(FolderPlugin):
    def restore(self, van, instance_info):
        pass


class RestoresOne(FolderPlugin):
    """It takes the second VAN for restored without a look."""

    def restore(self, van, instance_info):
        if van.handle.name == 't':
            super().restore(van, instance_info)

    def is_intact(self, van):
        return van.handle.name != 't' or super().is_intact(van)


class LooksByWriting(FolderPlugin):
    def has_guest(self, instance_info):
        (self.path / 'asked').write_text('')


FINDS = [
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
]


@pytest.mark.parametrize(
    ('broken', 'check', 'rule'),
    FINDS,
    ids=[f'{broken.__name__}-{rule.name}' for broken, _, rule in FINDS],
)
def test_a_broken_plugin_fails_by_its_rule(
    tmp_path, monkeypatch, broken, check, rule
):
    contract = Folder()
    contract.plugin_class = broken
    contract.make(tmp_path)
    service = contract.start(tmp_path, monkeypatch)
    try:
        with pytest.raises(testing.Broken) as caught:
            getattr(contract, f'test_{check}')(service)
    finally:
        service.end()
    assert caught.value.rule is rule, str(caught.value)


def test_each_rule_of_plugins_has_a_broken_plugin():
    of_plugins = {rule.name for rule in rules.ALL if 'plugin' in rule.page}
    assert {rule.name for _, _, rule in FINDS} == of_plugins
