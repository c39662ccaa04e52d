# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The libvirt XML of PCI functions: acc_plug_libvirt beside Nova.

os-acc starts from a handle, with one string for the address; Nova from the
four strings that Cyborg gives. os-acc's has an <alias>, Nova's has none.
"""

from __future__ import annotations

from collections.abc import Callable
import uuid

from lxml import etree
import pytest

import acc_plug_libvirt
from os_acc import objects

ROUNDS = 30
COUNT = 100
INSTANCE = objects.InstanceInfo(
    uuid=uuid.UUID(int=1), name='instance-1', project_id='project'
)


@pytest.fixture
def own() -> Callable[[], str]:
    plugin = acc_plug_libvirt.LibvirtPlugin.load('libvirt')
    van = objects.VAN(
        uuid=uuid.UUID(int=2),
        instance_uuid=INSTANCE.uuid,
        driver='pci',
        plugin='libvirt',
        state='plugging',
        handle=objects.PCIHandle(address='0000:0c:00.1'),
        boot_id='boot',
    )

    def make() -> str:
        for _ in range(COUNT):
            plugin.plug(van, INSTANCE, False)
        return van.guest_config or ''

    _check(make())
    return make


@pytest.fixture
def novas() -> Callable[[], str]:
    # Here: it is large, and nothing else needs it.
    from nova.virt.libvirt import config

    info = {'domain': '0000', 'bus': '0c', 'device': '00', 'function': '1'}

    def make() -> str:
        # As LibvirtDriver._guest_add_accel_pci_devices does.
        for _ in range(COUNT):
            dev = config.LibvirtConfigGuestHostdevPCI()
            dev.domain, dev.bus, dev.slot, dev.function = (
                info['domain'],
                info['bus'],
                info['device'],
                info['function'],
            )
            dev.managed = 'yes'
            text: str = dev.to_xml()
        return text

    _check(make())
    return make


# For what Nova's own imports say.
@pytest.mark.filterwarnings('ignore')
@pytest.mark.benchmark(group='XML of 100 PCI functions')
def test_xml(
    take_turns: Callable[..., None],
    own: Callable[[], str],
    novas: Callable[[], str],
) -> None:
    take_turns(own, novas, ROUNDS)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.benchmark(group='XML of 100 PCI functions')
def test_xml_nova(
    take_turns: Callable[..., None],
    own: Callable[[], str],
    novas: Callable[[], str],
) -> None:
    take_turns(novas, own, ROUNDS)


def _check(text: str) -> None:
    """See that both say the same of the device."""
    hostdev = etree.fromstring(text)
    assert dict(hostdev.attrib) == {
        'mode': 'subsystem',
        'type': 'pci',
        'managed': 'yes',
    }
    address = hostdev.find('source/address')
    assert address is not None
    assert dict(address.attrib) == {
        'domain': '0x0000',
        'bus': '0x0c',
        'slot': '0x00',
        'function': '0x1',
    }
