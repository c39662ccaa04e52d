# SPDX-License-Identifier: Apache-2.0

"""A small plugin that keeps its contract, and a hypervisor for it."""

from __future__ import annotations

import uuid

import pytest

from os_acc import exception
from os_acc import objects
from os_acc import plugin
from os_acc import testing
from os_acc.deadlines import waiting

# The key of driver_data: by which name the guest has the device.
DEVICE = 'directory_device'


class NoGuest(Exception):
    """The instance has no guest that runs."""


class Hypervisor:
    """Runs guests, and attaches devices to them.

    :ivar guests: the names of the devices of each guest, by instance
    :ivar answers: False: each call fails
    :ivar releases: False: the guests keep their devices
    """

    def __init__(self):
        self.guests: dict[str, list[str]] = {}
        self.answers = self.releases = True

    def devices(self, instance_uuid):
        self._check()
        if instance_uuid not in self.guests:
            raise NoGuest(instance_uuid)
        return self.guests[instance_uuid]

    def attach(self, instance_uuid, device):
        self.devices(instance_uuid).append(device)

    def detach(self, instance_uuid, device):
        """Ask the guest, which may release it or not."""
        devices = self.devices(instance_uuid)
        if self.releases:
            devices.remove(device)

    def _check(self):
        if not self.answers:
            raise OSError(111, 'Connection refused')


class DirectoryPlugin(plugin.PluginBase):
    """Writes a file for each VAN, and attaches a device to a live guest."""

    hypervisor: Hypervisor

    def file(self, van, end=''):
        return self.path / f'{van.uuid}{end}'

    def describe(self):
        return objects.HostPluginInfo(
            plugin_name=self.name,
            guest_config_format='directory',
            handle_info=[objects.HostHandleInfo.of('TestHandle')],
        )

    def has_guest(self, instance_info):
        try:
            self.hypervisor.devices(instance_info.uuid)
        except NoGuest:
            return False
        return True

    def runs_guest(self, instance_info):
        return self.has_guest(instance_info)

    def plug(self, van, instance_info, live):
        self.file(van).write_text(van.handle.identity)
        if live:
            if DEVICE not in van.driver_data:
                van.driver_data = {DEVICE: str(uuid.uuid4())}
                van.save()
            self.attach(van)
        van.guest_config = van.handle.identity

    def attach(self, van):
        if not self.has(van):
            self.hypervisor.attach(van.instance_uuid, van.driver_data[DEVICE])

    def has(self, van):
        """Whether the guest has the device of a VAN."""
        try:
            devices = self.hypervisor.devices(van.instance_uuid)
        except NoGuest:
            return False
        return van.driver_data.get(DEVICE) in devices

    def migration_map(self, vans_source, vans_target):
        targets = {van.uuid: van for van in vans_target}
        uuids = {van.uuid for van in vans_source}
        if targets.keys() != uuids or len(targets) != len(vans_target):
            raise exception.InvalidRequest(
                subject='directory', field='vans', value='', expected='others'
            )
        return objects.MigrationMap(
            format='directory',
            changes=[
                objects.MigrationChange(
                    uuid=van.uuid,
                    source=van.guest_config,
                    target=targets[van.uuid].guest_config,
                )
                for van in vans_source
            ],
        )

    def redefine(self, definition, migration_map):
        for each in migration_map.changes:
            definition = definition.replace(
                f'<{each.source}>', f'<{each.target}>'
            )
        return definition

    def restore(self, van, instance_info):
        self.plug(van, instance_info, False)

    def is_intact(self, van):
        return self.file(van).exists()

    def unplug(self, van, instance_info, live):
        if live and self.has(van):
            self.detach(van)
        self.file(van).unlink(missing_ok=True)

    def detach(self, van):
        self.hypervisor.detach(van.instance_uuid, van.driver_data[DEVICE])
        self.wait(van)

    def wait(self, van):
        waiting.until(lambda: not self.has(van), 0.05, 'the guest')


class Directory(testing.PluginContract):
    """The directory and its guests. A subclass names the plugin."""

    plugin_class = DirectoryPlugin

    @pytest.fixture(autouse=True)
    def directory(self, tmp_path):
        self.make(tmp_path)

    def make(self, directory):
        self.path, self.hypervisor = directory / 'guests', Hypervisor()
        self.path.mkdir()

    def make_plugin(self):
        made = self.plugin_class.load('directory')
        made.path, made.hypervisor = self.path, self.hypervisor
        return made

    def requests(self):
        return [
            objects.AcceleratorRequest(
                uuid=str(uuid.uuid4()), handle=objects.TestHandle(name=name)
            )
            for name in ('t', 'u')
        ]

    def look(self):
        files = {each.name: each.read_text() for each in self.path.iterdir()}
        guests = self.hypervisor.guests
        return files, {each: list(guests[each]) for each in guests}

    def changes(self):
        return [(Hypervisor, 'attach'), (Hypervisor, 'detach')]

    def definition(self, van):
        return f'a guest with <{van.guest_config}>'

    def run_guest(self, instance):
        self.hypervisor.guests[instance.uuid] = []

    def end_guest(self, instance):
        del self.hypervisor.guests[instance.uuid]

    def attached(self, van):
        return bool(self.hypervisor.guests.get(van.instance_uuid))

    def hold(self, van):
        self.hypervisor.releases = False

        def let_go():
            self.hypervisor.releases = True

        return let_go

    def break_api(self):
        self.hypervisor.answers = False

        def repair():
            self.hypervisor.answers = True

        return repair

    def reboot(self):
        for each in self.path.iterdir():
            each.unlink()


def run_check(broken, check, directory, patch, seconds=60.0):
    """Run a check of the kit on a plugin of the directory.

    :param seconds: how long a call of the plugin may take
    """
    contract = Directory()
    contract.plugin_class, contract.call_seconds = broken, seconds
    contract.make(directory)
    service = contract.start(directory, patch)
    try:
        getattr(contract, f'test_{check}')(service)
    finally:
        service.end()
