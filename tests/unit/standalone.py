# SPDX-License-Identifier: Apache-2.0

"""What the tests of the standalone commands share."""

from __future__ import annotations

import pathlib

import command

from os_acc import loader
from os_acc import objects
from os_acc import plugin

PCI = 'CUSTOM_FAKE_PCI'
MDEV = 'CUSTOM_FAKE_MDEV'


class CDIPlugin(plugin.PluginBase):
    """Gives names as the plugin cdi does, without files."""

    intact = True

    def describe(self) -> objects.HostPluginInfo:
        return objects.HostPluginInfo(
            plugin_name=self.name,
            handle_info=[
                objects.HostHandleInfo.of(name)
                for name in ('PCIHandle', 'MdevHandle')
            ],
            guest_config_format='cdi-device',
        )

    def plug(self, van, instance_info, live) -> None:
        van.guest_config = f'example.org/accelerator={van.uuid}'

    def unplug(self, van, instance_info, live) -> None:
        pass

    def is_intact(self, van) -> bool:
        return self.intact


class Standalone(command.Command):
    """The command on fake devices, with a configuration file of its own."""

    def __init__(self, path: pathlib.Path, capsys, monkeypatch) -> None:
        super().__init__(path / 'state', capsys, monkeypatch)
        self.path = path / 'try.conf'
        self.configure()

    def configure(self, **options: str) -> None:
        fake = {'devices': 'nic0:pci:3, gpu0:mdev:1', 'discover': 'True'}
        lines = [f'{k} = {v}' for k, v in {**fake, **options}.items()]
        # One after the other, so that each request gets the same handle in
        # every run.
        general = ['[os_acc]', 'plugin = noop', 'max_workers = 1']
        self.path.write_text('\n'.join([*general, '[os_acc_fake]', *lines]))

    @property
    def general(self) -> list[str]:
        return [*super().general, '--config-file', str(self.path)]

    def handles(self) -> list[str]:
        """The handles that the fake devices have in use."""
        directory = pathlib.Path(self.state_path) / 'fake-hardware'
        names = directory.iterdir() if directory.exists() else []
        return sorted(p.name for p in names if p.name.startswith('handle-'))

    def vans(self, *arguments: str) -> list[dict]:
        return self.fine('van', 'list', '--json', *arguments).json['vans']


def make(path: pathlib.Path, capsys, monkeypatch) -> Standalone:
    """Make the command, on a host that has a plugin cdi."""
    real = loader.load_all

    def load() -> loader.Extensions:
        found = real()
        found.plugins['cdi'] = CDIPlugin.load('cdi')
        return found

    monkeypatch.setattr(loader, 'load_all', load)
    return Standalone(path, capsys, monkeypatch)
