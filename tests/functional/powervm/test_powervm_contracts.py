# SPDX-License-Identifier: Apache-2.0

"""The driver drc and the plugin powervm keep their contracts."""

from __future__ import annotations

import functools
import uuid

import novalink
from pypowervm import adapter
import pytest

from acc_plug_powervm import PowerVMPlugin
import os_acc
from os_acc import objects
from os_acc import powervm
from os_acc import testing
from os_acc.kinds.drc import driver as drc

SLOTS = novalink.FREE_SLOTS


def asked(**values) -> objects.AcceleratorRequest:
    return objects.AcceleratorRequest(uuid=str(uuid.uuid4()), **values)


def named(index: int) -> objects.AcceleratorRequest:
    return asked(handle=objects.DRCHandle(drc_index=index))


def lpar_of(instance_uuid: str) -> str:
    return powervm.lpar_uuid(
        objects.InstanceInfo(uuid=instance_uuid, name='', project_id='')
    )


class TestDRC(testing.DriverContract):
    @pytest.fixture(autouse=True)
    def hardware(self, link):
        self.link = link
        yield
        # Log off while the NovaLink still runs.
        powervm.close()

    def make_driver(self):
        made = drc.DRCDriver.load('drc')
        os_acc.CONF.set_override('discover', True, 'os_acc_drc')
        os_acc.CONF.set_override('port', self.link.port, 'os_acc_powervm')
        return made

    def requests(self):
        return [
            named(SLOTS[0]),
            asked(
                resource_class='CUSTOM_POWER_IO_SLOT',
                traits=['CUSTOM_PCI_VENDOR_1014'],
            ),
        ]

    def look(self):
        """The partition that has each slot."""
        return self.link.owners()

    def two_devices(self):
        request = asked(resource_class='CUSTOM_POWER_IO_SLOT')
        slots = [objects.DRCHandle(drc_index=each) for each in SLOTS[:2]]
        return request, tuple(each.drc_index for each in slots)

    def hold(self, van):
        """The LPAR of the instance has the slot."""
        lpar, index = lpar_of(van.instance_uuid), int(van.handle.drc_index, 16)
        self.link.run(lpar)
        self.link.give(lpar, index)
        return functools.partial(self.link.take, lpar, index)

    def remove(self, van):
        return self.link.take_out(int(van.handle.drc_index, 16))


class TestPowerVM(testing.PluginContract):
    @pytest.fixture(autouse=True)
    def server(self, link):
        self.link = link
        yield
        powervm.close()

    def make_plugin(self):
        made = PowerVMPlugin.load('powervm')
        for name, value in {
            'port': self.link.port,
            'request_timeout': 5,
            'rmc_timeout': 1.0,
        }.items():
            os_acc.CONF.set_override(name, value, 'os_acc_powervm')
        return made

    def requests(self):
        return [named(index) for index in SLOTS[:2]]

    def look(self):
        """The LPAR that has each slot."""
        return self.link.owners()

    def run_guest(self, instance):
        self.link.run(lpar_of(instance.uuid))

    def changes(self):
        return [(adapter.Adapter, 'update_by_path')]

    def end_guest(self, instance):
        self.link.end(lpar_of(instance.uuid))

    def attached(self, van):
        owner = self.link.owner_of(int(van.handle.drc_index, 16))
        return owner == lpar_of(van.instance_uuid).upper()

    def hold(self, van):
        """The operating system of the LPAR refuses."""
        self.link.fail_next(500, 'HSCL294C The device is in use.', times=100)
        return self.link.heal

    def break_api(self):
        for method in ('GET', 'POST'):
            self.link.fail_next(500, times=1000, method=method)
        return self.link.heal
