# SPDX-License-Identifier: Apache-2.0

"""A host with a stand-in for Cyborg, and the real helper process."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import cyborg_host
import devices
import pytest
import vendor

import os_acc
from os_acc import exception
from os_acc import objects

STAND_IN = pathlib.Path(__file__).parents[1] / 'stand_in'
FPGA = '0000:07:00.0'
VFS = ['0000:07:00.1', '0000:07:00.2']
OTHER = '0000:08:00.0'
BESIDE = '0000:08:00.1'
VENDOR, PRODUCT = '0xACE0', '0x09c4'
F1, F2 = 'aaaa1111', 'bbbb2222'


def slot(address: str, **more: str) -> dict[str, str]:
    """The parts of a PCI address in the form of Cyborg."""
    domain, bus, rest = address.split(':')
    device, function = rest.split('.')
    parts = {'domain': domain, 'bus': bus, 'device': device}
    return {**parts, 'function': function, **more}


def device(by: str, address: str, *handles: Any, **more: Any) -> dict:
    return {
        'by': by,
        'vendor': VENDOR,
        'product': PRODUCT,
        'cpid': slot(address),
        'program': by == 'fpga',
        'attributes': [['rc', 'FPGA'], ['trait0', 'CUSTOM_ACME']],
        'handles': list(handles),
        **more,
    }


class Host:
    """Controls the stand-in and reads the calls that it received."""

    def __init__(self, directory: pathlib.Path, kernel: Any) -> None:
        self.directory = directory
        self.kernel = kernel
        self.before = helpers()
        directory.mkdir()

    def tell(self, step: str, what: str) -> None:
        (self.directory / step).write_text(what)

    def find(self, *found: dict) -> None:
        self.tell('devices', json.dumps(found))

    def calls(self) -> list:
        path = self.directory / 'calls'
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def hanging(self) -> list[int]:
        """The process ids of the hanging helper and of its child."""
        text = cyborg_host.wait_for(self.directory / 'child')
        return [int(pid) for pid in text.split()]

    def image(self, name: str = 'image.gbs') -> str:
        path = self.directory / name
        vendor.put(path, b'bits')
        return str(path)


def option(name: str, value: Any) -> None:
    os_acc.CONF.set_override(name, value, 'os_acc_cyborg')


def furnish(kernel: Any) -> None:
    """Put the devices of what_is_found() into the tree of files."""
    devices.furnish(kernel)
    path = kernel.add_function(FPGA, '8086:09c4', 0x120000, 'fpga', totalvfs=2)
    kernel.write(str(path / 'sriov_numvfs'), '2')
    for each in (OTHER, BESIDE):
        kernel.add_function(each, '8086:09c4', 0x120000)
    gpu = kernel.pci / 'devices' / devices.GPU
    kernel.add_mdev_parent(gpu.resolve(), {'acme-1': 1, 'acme-2': 2}, 2)


def what_is_found() -> list[dict]:
    """What the stand-in's drivers find, if a test does not say otherwise."""
    return [
        device('fpga', FPGA, *(['PCI', slot(vf)] for vf in VFS)),
        device('fpga', OTHER, ['PCI', slot(OTHER)]),
        device(
            'plain',
            devices.GPU,
            *(
                ['MDEV', slot(devices.GPU, asked_type='acme-1', vgpu_mark='')]
                for _ in range(2)
            ),
            attributes=[['rc', 'VGPU']],
        ),
        device(
            'plain',
            '0000:0c:00.0',
            *(['TEST_PCI', slot(f'0000:0c:0{n}.0')] for n in range(1, 4)),
            attributes=[['rc', 'CUSTOM_TEST']],
        ),
    ]


@pytest.fixture(name='here')
def stand_in_host(kernel, tmp_path, monkeypatch):
    furnish(kernel)
    host = Host(tmp_path / 'stand-in', kernel)
    # The entry points are beside the modules and not in a directory of this
    # test, because stevedore keeps a cache for each sys.path.
    monkeypatch.setenv('PYTHONPATH', str(STAND_IN))
    monkeypatch.setenv('STAND_IN', str(host.directory))
    monkeypatch.setenv('STAND_IN_SYS', str(kernel.sys))
    host.find(*what_is_found())
    before = kernel.snapshot()
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.CONF.set_override(
        'allowed_folders', [str(tmp_path)], 'os_acc_bitstreams'
    )
    os_acc.CONF.set_override('drivers', ['cyborg'], 'os_acc')
    os_acc.initialize()
    option('enabled_drivers', ['plain', 'fpga'])
    option('discovery_interval', 0.0)
    yield host
    for owner in {van.instance_uuid for van in os_acc.get_vans()}:
        os_acc.unplug(objects.InstanceInfo(uuid=owner, name='', project_id=''))
    assert kernel.snapshot() == before


def request(handle: Any, **values: Any) -> objects.AcceleratorRequest:
    made = devices.wanted('FPGA')
    if handle is not None:
        made.handle, made.resource_class = handle, None
    for name, value in values.items():
        setattr(made, name, value)
    return made


def vf(number: int, **values: Any) -> objects.AcceleratorRequest:
    return request(objects.PCIHandle(address=VFS[number]), **values)


def gpu(kind: str = 'acme-1') -> objects.AcceleratorRequest:
    return devices.mdev(kind, parent=devices.GPU)


def plug(*requests: Any) -> tuple[objects.InstanceInfo, list]:
    instance = devices.instance()
    return instance, list(os_acc.plug(instance, list(requests)))


def cause(*requests: Any) -> Exception:
    """Check that plug fails and is undone; returns the cause."""
    before = {van.uuid for van in os_acc.get_vans()}
    with pytest.raises(exception.PlugException) as caught:
        plug(*requests)
    assert caught.value.undo_errors == []
    assert {van.uuid for van in os_acc.get_vans()} == before
    return caught.value.__cause__


def found() -> dict[str, objects.Device]:
    listed = [d for d in os_acc.get_devices() if d.driver == 'cyborg']
    return {each.address: each for each in listed}


def driver() -> Any:
    return os_acc._host.extensions.drivers['cyborg']


def pids(here: Host) -> set[int]:
    """The helpers that a test has started."""
    return helpers() - here.before


def helpers() -> set[int]:
    """The helpers of this process, without zombies."""
    found = set()
    for directory in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            stat = (directory / 'stat').read_text().rpartition(')')[2].split()
            command = (directory / 'cmdline').read_text()
        except OSError:
            continue
        if int(stat[1]) == os.getpid() and 'cyborg/driver/helper' in command:
            found.add(int(directory.name))
    return found
