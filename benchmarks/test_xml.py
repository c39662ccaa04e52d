# SPDX-License-Identifier: Apache-2.0

"""The libvirt XML of 100 PCI functions: the plugin libvirt and Nova.

Nova starts from the four strings of an ARQ, os-acc from a VAN whose handle
holds the address as one string. Nova writes no <alias>. test_xml adds one to
Nova's element before it is written, so that both make the same XML;
test_xml_no_alias leaves Nova's element as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
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
VAN_UUID = str(uuid.UUID(int=2))
ALIAS = f'ua-acc-{VAN_UUID}'

# Importing Nova raises warnings of its own.
pytestmark = [
    pytest.mark.filterwarnings('ignore'),
    pytest.mark.benchmark(group='XML of 100 PCI functions'),
]


@pytest.fixture
def own() -> Callable[[], str]:
    plugin = acc_plug_libvirt.LibvirtPlugin.load('libvirt')
    van = objects.VAN(
        uuid=VAN_UUID,
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

    _check(make(), alias=ALIAS)
    return make


def _novas(to_xml: Callable[[Any], str]) -> Callable[[], str]:
    """What LibvirtDriver._guest_add_accel_pci_devices does.

    :param to_xml: writes a LibvirtConfigGuestHostdevPCI
    """
    # Nova is large, and no other benchmark needs it.
    from nova.virt.libvirt import config

    info = {'domain': '0000', 'bus': '0c', 'device': '00', 'function': '1'}

    def make() -> str:
        for _ in range(COUNT):
            dev = config.LibvirtConfigGuestHostdevPCI()
            dev.domain, dev.bus, dev.slot, dev.function = (
                info['domain'],
                info['bus'],
                info['device'],
                info['function'],
            )
            dev.managed = 'yes'
            text = to_xml(dev)
        return text

    return make


@pytest.fixture
def novas() -> Callable[[], str]:
    """Nova, with an alias added."""

    def to_xml(dev: Any) -> str:
        # As LibvirtConfigObject.to_xml, but for the alias.
        element = dev.format_dom()
        etree.SubElement(element, 'alias').set('name', ALIAS)
        text: str = etree.tostring(
            element, encoding='unicode', pretty_print=True
        )
        return text

    make = _novas(to_xml)
    _check(make(), alias=ALIAS)
    return make


@pytest.fixture
def novas_without_alias() -> Callable[[], str]:
    """Nova as it is."""
    from nova.virt.libvirt import config

    make = _novas(config.LibvirtConfigGuestHostdevPCI.to_xml)
    _check(make(), alias=None)
    return make


def test_xml(
    take_turns: Callable[..., None],
    own: Callable[[], str],
    novas: Callable[[], str],
) -> None:
    take_turns(own, novas, ROUNDS)


def test_xml_nova(
    take_turns: Callable[..., None],
    own: Callable[[], str],
    novas: Callable[[], str],
) -> None:
    take_turns(novas, own, ROUNDS)


def test_xml_no_alias(
    take_turns: Callable[..., None],
    own: Callable[[], str],
    novas_without_alias: Callable[[], str],
) -> None:
    take_turns(own, novas_without_alias, ROUNDS)


def _check(text: str, alias: str | None) -> None:
    """Check that both describe the same device."""
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
    names = [found.get('name') for found in hostdev.findall('alias')]
    assert names == ([] if alias is None else [alias])
