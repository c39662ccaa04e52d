# SPDX-License-Identifier: Apache-2.0

"""os_acc.get_exclusions: which handles exclude each other."""

from __future__ import annotations

import itertools

import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import objects

PAIR = ('0000:07:00.0', '0000:07:00.1')


@pytest.fixture
def here(kernel):
    """A host with a PF, a GPU, and two GPUs of one IOMMU group."""
    kernel.add_function(devices.PF, '8086:4940', 0x0B4000, 'qat', totalvfs=4)
    kernel.add_function(devices.GPU, '10de:1eb8', 0x030200)
    for each in PAIR:
        kernel.add_function(each, '10de:1eb8', 0x030200, group=50)
    devices.spec({'address': '*'})
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    return kernel


def exclusions(found=None):
    """Addresses of functions, by the address of what they exclude."""
    found = os_acc.get_devices() if found is None else found
    return {
        identity.removeprefix('pci/'): {
            each.removeprefix('pci/') for each in others
        }
        for identity, others in os_acc.get_exclusions(found).items()
    }


def test_functions_of_one_group(here):
    assert exclusions() == {
        devices.PF: set(),
        devices.GPU: set(),
        PAIR[0]: {PAIR[1]},
        PAIR[1]: {PAIR[0]},
    }


def test_a_pf_and_its_vfs(here):
    here.set_numvfs(devices.PF, 4)
    both = objects.Device(
        address=devices.PF,
        driver='pci',
        handles_total=5,
        handles_free=0,
        handles=[
            objects.DeviceHandleInfo(handle=objects.PCIHandle(address=each))
            for each in (devices.PF, *devices.VFS)
        ],
    )
    found = exclusions([both])
    assert found[devices.PF] == set(devices.VFS)
    for each in devices.VFS:
        assert found[each] == {devices.PF}


def test_it_does_not_matter_who_has_what(here):
    before = exclusions()
    for each in (devices.GPU, PAIR[0]):
        os_acc.plug(devices.instance(), [devices.pci(each)])
    assert exclusions() == before


def test_what_excludes_each_other_is_refused_by_plug(here):
    """And nothing else: for each two devices."""
    found = exclusions()
    for one, other in itertools.permutations(found, 2):
        first, second = devices.instance(), devices.instance()
        os_acc.plug(first, [devices.pci(one)])
        try:
            os_acc.plug(second, [devices.pci(other)])
            refused = False
        except exception.PlugException:
            refused = True
        assert refused == (other in found[one]), (one, other)
        os_acc.unplug(second)
        os_acc.unplug(first)


def test_before_initialize(clean):
    with pytest.raises(exception.LibraryNotInitialized):
        os_acc.get_exclusions([])


def test_types_of_a_parent_that_another_has(here, monkeypatch):
    """Whatever its driver reports, no mediated device of it can be made."""
    os_acc.plug(devices.instance(), [devices.pci(devices.GPU)])
    drivers = os_acc._host.extensions.drivers

    def report():
        return [
            objects.Device(
                address=address,
                driver='mdev',
                handles_total=2,
                handles_free=2,
                handles=[],
                mdev_types=[
                    objects.DeviceMdevTypeInfo(
                        name='type-1', capacity=2, available=2
                    )
                ],
            )
            for address in (devices.GPU, devices.PF)
        ]

    monkeypatch.setattr(drivers['mdev'], 'get_devices', report)
    found = {
        each.address: each.mdev_types[0].available
        for each in os_acc.get_devices()
        if each.driver == 'mdev'
    }
    assert found == {devices.GPU: 0, devices.PF: 2}
