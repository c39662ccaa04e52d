# SPDX-License-Identifier: Apache-2.0

"""VANs keep what they have while device_spec cannot be read.

test_contracts asks each driver. These tests are about containers, and about
the plug at a hard reboot.
"""

from __future__ import annotations

import json
import pathlib

import device_nodes
import devices
import idxd_model
import nvme_of_model
import pytest

import os_acc
from os_acc import exception
from os_acc.privileged.fpga import dfl
from os_acc.spec import device_spec

DSA = '0000:6a:01.0'
NAMESPACE = '1b4e28ba-2fa1-11d2-883f-0016d3cca427'


def function(kernel, monkeypatch):
    kernel.add_function(devices.GPU, '10de:1eb8', 0x030200, 'nvidia')
    devices.spec({'address': devices.GPU})
    return devices.pci(devices.GPU), kernel.reboot


def mdev(kernel, monkeypatch):
    kernel.add_mtty()
    devices.spec({'address': 'mtty'})
    return devices.mdev(), kernel.reboot


def queue(kernel, monkeypatch):
    model = idxd_model.Idxd(kernel)
    model.add(DSA, queues=2, size=32, groups=1, engines=1)
    idxd_model.show_files(monkeypatch)
    devices.spec({'idxd': DSA, 'wq_size': 16})
    return devices.wanted('CUSTOM_DSA'), model.reboot


def namespace(kernel, monkeypatch):
    fabric = nvme_of_model.Fabric(kernel)
    fabric.install(monkeypatch)
    fabric.target(f'uuid.{NAMESPACE}')
    target = {
        'nqn': nvme_of_model.NQN,
        'portals': [['192.0.2.1', 4420, 'tcp']],
        'namespaces': [NAMESPACE],
    }
    devices.spec({'nvme_of': target, 'resource_class': 'CUSTOM_FAST'})
    return devices.wanted('CUSTOM_FAST'), kernel.reboot


def file(kernel, monkeypatch):
    nodes = device_nodes.Nodes(kernel)
    nodes.install(monkeypatch)
    nodes.add('acc1', 'c 240:1', 'virtual/acme/acc1', 'acme')
    devices.spec({'devices': '/dev/acc*'})
    return devices.wanted('CUSTOM_FILE_ACC'), kernel.reboot


@pytest.mark.parametrize('left', [['{'], []])
@pytest.mark.parametrize('kind', [function, mdev, queue, namespace, file])
def test_a_container_gets_its_device_back(kernel, monkeypatch, kind, left):
    """device_spec cannot be read any more, or is empty."""
    request, reboot = kind(kernel, monkeypatch)
    os_acc.CONF.set_override('plugin', 'cdi', 'os_acc')
    directory = pathlib.Path(os_acc.CONF.os_acc_cdi.spec_dir)
    os_acc.initialize()
    instance = devices.instance()
    os_acc.plug(instance, [request])
    os_acc.CONF.set_override('device_spec', left, 'os_acc')
    reboot()
    os_acc.initialize(reset=True)
    (van,) = os_acc.get_vans()
    assert (van.state, van.error) == ('plugged', None)
    assert [van.uuid in each.name for each in directory.iterdir()] == [True]
    # As at a hard reboot of the instance.
    (again,) = os_acc.plug(instance, [request])
    assert (again.uuid, again.error) == (van.uuid, None)
    assert os_acc.unplug(instance) == 1
    assert list(directory.iterdir()) == []
    with pytest.raises(exception.ExceptionBase):
        os_acc.plug(devices.instance(), [request])


@pytest.mark.parametrize('left', [['{'], []])
def test_a_disk_that_a_command_empties(kernel, tmp_path, left):
    """It gets back to its VAN, and is emptied when that is released."""
    kernel.add_function(devices.DISK, '1000:0097', 0x010700, 'mpt3sas')
    devices.spec({'address': devices.DISK, 'command_empties': True})
    ran = tmp_path / 'ran'
    os_acc.CONF.set_override(
        'cleaning_command', f'sh -c "echo {{address}} >> {ran}"', 'os_acc'
    )
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.DISK)])
    os_acc.CONF.set_override('device_spec', left, 'os_acc')
    kernel.reboot()
    os_acc.initialize(reset=True)
    (van,) = os_acc.get_vans()
    assert van.error is None
    assert kernel.driver_of(devices.DISK) == 'vfio-pci'
    assert not ran.exists()
    assert os_acc.unplug(instance) == 1
    assert ran.read_text() == f'{devices.DISK}\n'
    assert kernel.driver_of(devices.DISK) == 'mpt3sas'


def test_a_regular_expression_that_python_cannot_read(clean):
    """Any other error would end the recovery."""
    entry = {'address': {'bus': '(' * 5000 + ')' * 5000}}
    os_acc.CONF.set_override('device_spec', [json.dumps(entry)], 'os_acc')
    with pytest.raises(exception.InvalidRequest, match='regular expression'):
        device_spec.load(os_acc.CONF)


def test_what_a_killed_process_has_left_is_cleaned_up(kernel, monkeypatch):
    """Which cards there are is unknown then, so root looks."""
    calls: list[float] = []
    monkeypatch.setattr(dfl, 'recover', calls.append)
    devices.spec({'address': devices.GPU})
    os_acc.initialize()
    assert calls == []
    os_acc.CONF.set_override('device_spec', ['{'], 'os_acc')
    os_acc.initialize(reset=True)
    assert len(calls) == 1
