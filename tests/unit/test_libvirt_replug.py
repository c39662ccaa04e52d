# SPDX-License-Identifier: Apache-2.0

"""A guest of libvirt that is shut down while its devices are detached."""

from __future__ import annotations

import types
import uuid

import pytest
import test_libvirt_guest

import acc_plug_libvirt
import os_acc
from os_acc import loader
from os_acc import migration
from os_acc import objects
from os_acc.cli import migration as command
from os_acc.kinds.fake.driver.driver import FakeDriver

libvirt = test_libvirt_guest.libvirt
here = test_libvirt_guest.here
INFO = test_libvirt_guest.INFO
MIGRATION = str(uuid.uuid4())


@pytest.fixture
def domain(here, monkeypatch, tmp_path):
    """The domain of a host that is the source, and then the target."""
    driver = FakeDriver.load('fake')
    driver.config = types.SimpleNamespace(
        devices=['nic0:pci:4'],
        discover=True,
        hardware_path=str(tmp_path / 'hardware'),
        delays={},
        fail=[],
    )
    plugin = acc_plug_libvirt.LibvirtPlugin.load('libvirt')
    monkeypatch.setattr(
        loader,
        'load_all',
        lambda: loader.Extensions({'fake': driver}, {'libvirt': plugin}, {}),
    )
    os_acc.CONF.set_override('plugin', 'libvirt', 'os_acc')
    os_acc.initialize()
    request = objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), resource_class='CUSTOM_FAKE_PCI'
    )
    os_acc.plug(INFO, [request], live=True)
    return here


def addresses(elements):
    return [each.find('source/address').get('bus') for each in elements]


@pytest.mark.parametrize('is_off', [False, True])
def test_an_abort_gives_the_devices_back(domain, is_off):
    before = addresses(domain.config)
    assert len(before) == 1
    migration.hand_over(INFO, MIGRATION, live=True)
    assert domain.live == domain.config == []
    if is_off:
        domain.shut_off()
    migration.abort(INFO, MIGRATION)
    assert {van.state for van in os_acc.get_vans(INFO)} == {'plugged'}
    assert addresses(domain.config) == before
    if is_off:
        domain.create()
    assert addresses(domain.live) == before


def test_an_abort_when_the_domain_is_gone(domain):
    """There is no definition to write, and nothing keeps the VANs."""
    migration.hand_over(INFO, MIGRATION, live=True)
    domain.daemon.domains.clear()
    migration.abort(INFO, MIGRATION)
    assert {van.state for van in os_acc.get_vans(INFO)} == {'plugged'}


@pytest.mark.parametrize('is_defined_with_them', [False, True])
def test_a_guest_that_is_off_on_the_target(
    domain, monkeypatch, is_defined_with_them
):
    """By replug it came without its devices; by cold its definition has
    them."""
    plan = migration.describe(INFO)
    kept = list(domain.config)
    os_acc.unplug(INFO, live=True)
    domain.shut_off()
    vans = migration.prepare(INFO, plan, MIGRATION)
    domain.config = list(kept) if is_defined_with_them else []
    entries = os_acc.this_host().journal.entries(INFO.uuid)
    assert [each.van.uuid for each in entries] == [van.uuid for van in vans]
    settle = command.MigrationFinish.settle
    this = types.SimpleNamespace(show_progress=None)
    given = types.SimpleNamespace(handed_over=True)
    monkeypatch.setattr(command.base, 'look', lambda: Open(os_acc.this_host()))
    assert settle(this, entries, given) == 'plugged'
    assert {van.state for van in os_acc.get_vans(INFO)} == {'plugged'}
    assert len(domain.config) == 1
    assert domain.live == []


class Open:
    """A host that stays open."""

    def __init__(self, host):
        self.host = host

    def __getattr__(self, name):
        return getattr(self.host, name)

    def close(self):
        pass
