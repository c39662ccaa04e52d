# SPDX-License-Identifier: Apache-2.0

"""Devices that instances get by Nova's keys of device_spec."""

from __future__ import annotations

import devices
import pytest

import os_acc
from os_acc import exception


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    os_acc.initialize()
    return kernel


def refused(request) -> BaseException | None:
    """Plug in vain, and return the reason."""
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(devices.instance(), [request])
    return caught.value.__cause__


@pytest.mark.parametrize('managed', [None, True, False])
def test_what_the_operator_has_bound_stays_bound(here, managed):
    """Nova's managed: no. A request cannot make libvirt bind it."""
    here.bind(devices.GPU, 'vfio-pci')
    before = here.snapshot()
    devices.spec({'address': devices.GPU, 'managed': 'no'})
    (device,) = os_acc.get_devices()
    assert device.handles_free == 1
    instance = devices.instance()
    request = devices.pci(devices.GPU, managed=managed)
    (van,) = os_acc.plug(instance, [request])
    assert van.handle.managed is False
    assert 'managed="no"' in van.guest_config
    os_acc.unplug(instance)
    assert here.snapshot() == before


def test_what_the_operator_has_not_bound_is_refused(here):
    devices.spec({'address': devices.GPU, 'managed': 'no'})
    err = refused(devices.pci(devices.GPU))
    assert 'with bind = none someone else must bind it' in str(err)
    assert here.writes == []


def test_vfs_that_are_named_without_their_pf(here):
    """Nova's example of a card with VFs of several types."""
    here.set_numvfs(devices.PF, 3)
    devices.spec(
        {'address': devices.VFS[0], 'resource_class': 'CUSTOM_BIG'},
        {'address': devices.VFS[1], 'resource_class': 'small'},
    )
    found = os_acc.get_devices()
    assert {device.address for device in found} == {devices.PF}
    assert [
        (d.resource_class, d.handles_total, d.handles_free) for d in found
    ] == [('CUSTOM_BIG', 1, 1), ('CUSTOM_SMALL', 1, 1)]
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.wanted('CUSTOM_SMALL')])
    assert van.handle.address == devices.VFS[1]
    assert [d.handles_free for d in os_acc.get_devices()] == [1, 0]
    os_acc.unplug(instance)
    for address in (devices.VFS[2], devices.PF):
        assert 'device_spec' in str(refused(devices.pci(address)))


def test_vfs_of_the_pf_that_has_an_interface(here):
    here.add_function(
        '0000:0c:00.0', '8086:1572', 0x020000, 'i40e', totalvfs=4, net='eth7'
    )
    before = here.snapshot()
    devices.spec({'devname': 'eth7', 'num_vfs': 2, 'trusted': 'true'})
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.wanted('SRIOV_NET_VF')])
    assert van.handle.address == '0000:0c:00.1'
    assert here.driver_of('0000:0c:00.1') == 'vfio-pci'
    os_acc.unplug(instance)
    assert here.snapshot() == before


@pytest.mark.parametrize('bind', ['os-acc', 'libvirt'])
def test_a_function_is_not_given_out_by_its_interface(here, bind):
    """Its interface is gone while a guest has it, so nothing names it."""
    devices.spec({'devname': 'eth0', 'bind': bind})
    err = refused(devices.pci(devices.NIC))
    assert isinstance(err, exception.DeviceNotFound)
    assert 'names it by its interface eth0' in str(err)
    (device,) = os_acc.get_devices()
    assert (device.handles_total, device.handles_free) == (1, 0)
    assert here.writes == []
