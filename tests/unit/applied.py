# SPDX-License-Identifier: Apache-2.0

"""A generated host with two PFs and fake FPGAs, for the tests of apply."""

from __future__ import annotations

import uuid

import devices

import os_acc
from os_acc import objects
from os_acc.kernel import sriov
from os_acc.kinds.fake.driver import hardware as fake_hardware
from os_acc.testing import mortal

OTHER = '0000:61:00.0'
PFS = (devices.PF, OTHER)
REGIONS = (('fpga', '0'), ('fpga', '1'), ('card', ''))
MOST = 4


class Host:
    """What apply changes, and what a test does beside it."""

    def __init__(self, kernel, directory) -> None:
        self.kernel = kernel
        for pf in PFS:
            kernel.add_function(
                pf, '8086:4940', 0x0B4000, 'qat', totalvfs=MOST
            )
        devices.spec()
        os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
        os_acc.initialize(reset=True)
        (directory / 'hardware').mkdir()
        self.hardware = fake_hardware.Hardware(str(directory / 'hardware'))
        for name, value in {
            'devices': ['fpga:pci:2:dynamic', 'card:pci:2:single'],
            'hardware_path': self.hardware.path,
            'discover': True,
        }.items():
            os_acc.CONF.set_override(name, value, 'os_acc_fake')

    def apply(self, *offered, functions=(), check=False, **more):
        """Apply a document; functions: device, region, function."""
        made = document(offered, functions) | more
        return os_acc.apply(made, check=check)

    def vfs(self):
        """The VFs of each PF."""
        return [sriov.count(pf) for pf in PFS]

    def inside(self):
        """The function of each of REGIONS."""
        found = {
            (device.address, region): function
            for device in os_acc.get_devices()
            for region, function in device.functions.items()
        }
        return [found[each] for each in REGIONS]

    def state(self):
        return self.vfs(), self.inside(), os_acc._host.journal.kept_vfs()


def document(offered=(), functions=()):
    return {
        'version': 1,
        'offered': list(offered),
        'functions': [
            {
                'device': device,
                **({'region': region} if region else {}),
                'function': function,
            }
            for device, region, function in functions
        ],
    }


def pf(address=devices.PF, number=2, **more):
    return {'address': address, 'num_vfs': number, **more}


def results(report):
    return {each.name: each.result for each in report.steps}


def fake_request(function):
    return objects.AcceleratorRequest(
        uuid=uuid.uuid4(), driver='fake', function_id=function
    )


def dies_at(kernel, monkeypatch, number, act):
    """Let the process end at a write to the journal, to /sys or to a file.

    :returns: whether it made so many
    """
    root = kernel.root.parent
    with (
        monkeypatch.context() as patch,
        mortal.watch_files(
            kernel.process, str(root), os_acc.CONF.os_acc.state_path
        ),
    ):
        mortal.watch_calls(
            patch,
            kernel.process,
            type(os_acc._host.journal),
            '_commit',
            mortal.COMMIT,
        )
        kernel.crash_at(number)
        try:
            act()
        except mortal.Crash:
            return True
        finally:
            kernel.calm()
            if kernel.dead:
                kernel.revive()
    return False
