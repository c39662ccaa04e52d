# SPDX-License-Identifier: Apache-2.0

"""The driver cyborg keeps its contract.

The helper process answers once, with what the stand-in for Cyborg finds. A
double repeats the answer to each process of the kit, and creates mediated
devices on the generated kernel, because the kit starts hundreds of processes
and a helper takes long to start.
"""

from __future__ import annotations

import json
import os

import cyborg_stand_in as stand_in
import devices
import pytest

from os_acc import objects
from os_acc import testing
from os_acc.kernel import sysfs
from os_acc.kinds.cyborg.driver import driver as cyborg_driver
from os_acc.kinds.cyborg.driver import process

NAMES = ['plain', 'fpga']


@pytest.fixture(scope='module')
def answer(tmp_path_factory):
    """What the helper process says that Cyborg's drivers have found."""
    directory = tmp_path_factory.mktemp('stand-in')
    (directory / 'devices').write_text(json.dumps(stand_in.what_is_found()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('PYTHONPATH', str(stand_in.STAND_IN))
        patch.setenv('STAND_IN', str(directory))
        helpers = process.Helpers('', NAMES, [])
        return json.dumps(helpers.call('discover', 100.0, 'discover'))


class Helpers:
    """In the place of process.Helpers."""

    answer: str

    def __init__(self, python, drivers, config_files):
        assert drivers == NAMES

    def call(self, method, seconds, what, **params):
        if method == 'discover':
            return json.loads(self.answer)
        assert method == 'create_mdev'
        types = f'class/mdev_bus/{params["parent"]}/mdev_supported_types'
        path = f'{sysfs.SYS}/{types}/{params["kind"]}/create'
        try:
            sysfs.write(path, params['uuid'])
        except OSError as err:
            raise process.CallFailed(
                errno=err.errno, what=what, reason=os.strerror(err.errno)
            ) from err


class TestCyborg(testing.DriverContract):
    @pytest.fixture(autouse=True)
    def hardware(self, kernel, monkeypatch, answer):
        stand_in.furnish(kernel)
        monkeypatch.setattr(Helpers, 'answer', answer, raising=False)
        monkeypatch.setattr(process, 'Helpers', Helpers)

    def make_driver(self):
        made = cyborg_driver.CyborgDriver.load('cyborg')
        stand_in.option('enabled_drivers', NAMES)
        return made

    def requests(self):
        return [
            stand_in.vf(0),
            stand_in.gpu(),
            stand_in.request(objects.TestHandle(name='0000:0c:01.0')),
            devices.wanted('FPGA', 'CUSTOM_ACME'),
        ]

    def two_devices(self):
        return (
            devices.wanted('FPGA', 'CUSTOM_ACME'),
            (stand_in.FPGA, stand_in.OTHER),
        )

    def look(self):
        return self.kernel.snapshot()

    def hold(self, van):
        if isinstance(van.handle, objects.TestHandle):
            return None
        if isinstance(van.handle, objects.MdevHandle):
            link = self.kernel.mdev / van.handle.uuid / 'iommu_group'
            path = self.kernel.root / 'dev/vfio' / link.readlink().name
        else:
            path = self.kernel.node(van.handle.address)
        pid = self.kernel.hold(path)
        return lambda: self.kernel.end(pid)

    def reboot(self):
        """Another tool makes the VFs at boot."""
        self.kernel.reboot()
        self.make_vfs()

    def make_vfs(self):
        path = f'{self.kernel.pci}/devices/{stand_in.FPGA}/sriov_numvfs'
        self.kernel.write(path, str(len(stand_in.VFS)))

    def remove(self, van):
        if isinstance(van.handle, objects.TestHandle):
            return lambda: None
        if isinstance(van.handle, objects.MdevHandle):
            path = self.kernel.mdev / van.handle.uuid / 'remove'
            self.kernel.write(str(path), '1')
            return lambda: None
        self.kernel.take_off(van.device)

        def put_back():
            self.kernel.come_back()
            self.make_vfs()

        return put_back
