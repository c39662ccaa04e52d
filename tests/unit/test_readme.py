# SPDX-License-Identifier: Apache-2.0

"""What the README shows works, and the files that it names exist.

Its driver keeps the contract of drivers. The four functions that the README
leaves to the author work here on files.
"""

from __future__ import annotations

import configparser
from importlib import metadata
import pathlib
import re
import shlex
import shutil
import uuid

from pages import README
from pages import SOURCE
from pages import blocks
import pytest
import standalone

from os_acc import exception
from os_acc import objects
from os_acc import testing

ADDRESSES = ('0000:3b:00.1', '0000:3b:00.2')
RESOURCE_CLASS = 'CUSTOM_ACME_ZIP'


class Functions:
    """What the README's driver calls.

    :param path: a directory with a directory for each VF
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def choose_vf(self, request, taken):
        """Choose a free VF that is what a request asks for."""
        for path in sorted(self._path.iterdir()):
            handle = objects.PCIHandle(address=path.name)
            if self._fits(handle, request) and handle.identity not in taken:
                return handle
        raise exception.DeviceNotFound(
            wanted=f'request {request.uuid}', reason='no free VF fits'
        )

    @staticmethod
    def _fits(handle, request):
        if request.handle is not None:
            return handle.identity == request.handle.identity
        return request.resource_class in (None, RESOURCE_CLASS) and not (
            request.traits
        )

    def driver_of(self, handle):
        return (self._path / handle.address / 'driver').read_text()

    def bind(self, handle):
        directory = self._path / handle.address
        if not directory.is_dir():
            raise exception.DeviceNotFound(
                wanted=f'VF {handle.address}', reason='no card has it'
            )
        (directory / 'driver').write_text('vfio-pci')

    def unbind(self, handle, driver_data):
        directory = self._path / handle.address
        if not directory.is_dir():
            return
        if (directory / 'open').exists():
            raise exception.DeviceBusy(
                device=handle.address, reason='a guest has it open'
            )
        (directory / 'driver').write_text(driver_data['driver_was'])


def test_the_files_exist():
    text = (SOURCE / README).read_text()
    named = re.findall(r'``([\w/-]+\.rst|contrib/[\w-]+|LICENSE)``', text)
    assert len(named) > 5
    for name in named:
        # A page alone is one of the directory that the text names before it.
        places = SOURCE, (SOURCE / README).parent
        assert any((place / name).exists() for place in places), name


def test_the_driver_of_the_agent_is_installed():
    (text,) = blocks(README, 'ini', 'enabled_drivers')
    options = configparser.ConfigParser()
    options.read_string(text)
    found = metadata.entry_points(group='cyborg.accelerator.driver')
    assert options['agent']['enabled_drivers'] in found.names


def test_the_commands_for_a_container(clean, tmp_path, capfd, monkeypatch):
    run = standalone.make(tmp_path, capfd, monkeypatch)
    (text,) = blocks(README, 'sh', 'podman run')
    text = text.replace('FPGA', standalone.PCI).replace('\\\n', '')
    plug, podman, unplug = text.strip().splitlines()
    found = re.fullmatch(r'(\w+)=\$\(os-acc (.+)\)', plug)
    variable, command = found.groups()
    name = run.fine(*shlex.split(command)).out.strip()
    assert name == f'example.org/accelerator={run.vans()[0]["uuid"]}'
    assert f'--device "${variable}"' in podman
    released = run.fine(*shlex.split(unplug.removeprefix('os-acc '))).out
    assert released.strip() == 'released 1'


class TestReadme(testing.DriverContract):
    @pytest.fixture(autouse=True)
    def card(self, tmp_path):
        self.path = tmp_path / 'card'
        for address in ADDRESSES:
            (self.path / address).mkdir(parents=True)
        self.reboot()

    def make_driver(self):
        functions = Functions(self.path)
        names = {
            name: getattr(functions, name)
            for name in ('choose_vf', 'driver_of', 'bind', 'unbind')
        }
        (code,) = blocks(README, 'python', 'class AcmeDriver')
        exec(code, names)
        return names['AcmeDriver'].load('acme')

    def requests(self):
        return [
            objects.AcceleratorRequest(
                uuid=uuid.uuid4(), resource_class=RESOURCE_CLASS
            ),
            objects.AcceleratorRequest(
                uuid=uuid.uuid4(),
                driver='acme',
                handle=objects.PCIHandle(address=ADDRESSES[1]),
            ),
        ]

    def look(self):
        return {
            str(file.relative_to(self.path)): file.read_text()
            for file in sorted(self.path.glob('*/*'))
        }

    def reboot(self):
        """After it, the host's own driver has every VF."""
        for directory in self.path.iterdir():
            (directory / 'driver').write_text('acme_vf')

    def hold(self, van):
        file = self.path / van.handle.address / 'open'
        file.write_text('yes')
        return file.unlink

    def remove(self, van):
        directory = self.path / van.handle.address
        shutil.rmtree(directory)

        def put_back():
            directory.mkdir()
            (directory / 'driver').write_text('acme_vf')

        return put_back
