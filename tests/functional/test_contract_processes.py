# SPDX-License-Identifier: Apache-2.0

"""The kit with real processes: several ask at once, and SIGKILL ends them.

tests/unit/test_contracts.py has the checks of one process. Here are the
drivers whose hardware several processes can share: it is in files. drc is in
powervm/test_powervm_contracts.py, where the processes share a server.

The other drivers are not here. The hardware of devfile, idxd, nvidia_vgpu and
nvme_of is a model in the memory of one process, so the next process would not
see what the one that was killed has done to it: test_idxd_crash.py kills
processes of idxd, and hands the state of its model on. cyborg and fpga bind
and create by the same privileged functions as pci and mdev;
tests/functional_cyborg kills Cyborg's helper process.
"""

from __future__ import annotations

import pathlib
import uuid

import pytest
import shared_kernel

import os_acc
from os_acc import objects
from os_acc.kinds.fake.driver.driver import FakeDriver
from os_acc.kinds.mdev.driver.driver import MdevDriver
from os_acc.kinds.pci.driver.driver import PCIDriver
from os_acc.testing import driver_processes

# Measuring coverage would slow down the many processes of this test.
pytestmark = pytest.mark.no_cover

PF, VF = '0000:01:00.0', '0000:01:00.1'


class TestFake(driver_processes.Processes):
    @pytest.fixture(autouse=True)
    def hardware(self, tmp_path: pathlib.Path) -> None:
        self.path = tmp_path / 'hardware'

    def make_driver(self):
        made = FakeDriver.load('fake')
        for name, value in {
            'devices': ['fake0:test:3'],
            'discover': True,
            'hardware_path': str(self.path),
        }.items():
            os_acc.CONF.set_override(name, value, 'os_acc_fake')
        return made

    def requests(self):
        return [
            objects.AcceleratorRequest(
                uuid=str(uuid.uuid4()), resource_class='CUSTOM_FAKE_TEST'
            )
        ]

    def look(self):
        # Not what a killed process was still writing.
        return [path.name for path in sorted(self.path.glob('[!.]*'))]


class TestPCI(driver_processes.Processes):
    """The kernel's state is in files, so that all processes share it."""

    def make_kernel(self, directory):
        return shared_kernel.SharedKernel(directory)

    @pytest.fixture(autouse=True)
    def hardware(self, kernel):
        with kernel.changed():
            kernel.add_function(PF, '8086:4940', 0x0B4000, 'qat', totalvfs=2)
        os_acc.CONF.set_override(
            'device_spec', [f'{{"address": "{PF}", "num_vfs": 2}}'], 'os_acc'
        )

    def make_driver(self):
        return PCIDriver.load('pci')

    def requests(self):
        return [
            objects.AcceleratorRequest(
                uuid=str(uuid.uuid4()), handle=objects.PCIHandle(address=VF)
            )
        ]

    def look(self):
        return self.kernel.snapshot()


class TestMdev(driver_processes.Processes):
    make_kernel = TestPCI.make_kernel
    look = TestPCI.look

    @pytest.fixture(autouse=True)
    def hardware(self, kernel):
        with kernel.changed():
            kernel.add_mtty()
        os_acc.CONF.set_override(
            'device_spec', ['{"address": "mtty"}'], 'os_acc'
        )

    def make_driver(self):
        return MdevDriver.load('mdev')

    def requests(self):
        handle = objects.MdevHandle(
            uuid=str(uuid.uuid4()), parent='mtty', type='mtty-1'
        )
        return [
            objects.AcceleratorRequest(uuid=str(uuid.uuid4()), handle=handle)
        ]
