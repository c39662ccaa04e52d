# SPDX-License-Identifier: Apache-2.0

"""PCI functions on a real kernel: prepared, and restored afterwards."""

from __future__ import annotations

import os

import lab_devices
import pytest
import use

import os_acc
from os_acc import exception
from os_acc.kernel import sriov


def test_a_vf_is_made_bound_and_given_back(configured, snapshot):
    """The VFs do not exist yet; the request has the form of a real ARQ."""
    before = snapshot()
    instance, request = use.instance(), use.pci_request(use.VFS[0])
    (van,) = os_acc.plug(instance, [request])
    assert (van.driver, van.handle.address) == ('pci', use.VFS[0])
    assert van.device == lab_devices.NVME_PF
    assert 'managed="no"' in van.guest_config
    assert sriov.count(lab_devices.NVME_PF) == lab_devices.NVME_PF_VFS
    assert use.driver_of(use.VFS[0]) == 'vfio-pci'
    assert os.path.exists(use.group_file(use.VFS[0]))
    (again,) = os_acc.plug(instance, [request])
    assert again.uuid == van.uuid
    assert os_acc.unplug(instance) == 1
    assert os_acc.unplug(instance) == 0
    assert snapshot() == before


def test_the_last_one_removes_the_vfs(configured, snapshot):
    before = snapshot()
    first, second = use.instance(), use.instance()
    os_acc.plug(first, [use.pci_request(use.VFS[0])])
    os_acc.plug(second, [use.pci_request(use.VFS[2])])
    os_acc.unplug(first)
    assert use.driver_of(use.VFS[0]) is None
    assert use.driver_of(use.VFS[2]) == 'vfio-pci'
    assert sriov.count(lab_devices.NVME_PF) == lab_devices.NVME_PF_VFS
    os_acc.unplug(second)
    assert snapshot() == before


def test_vfs_that_were_there_stay(configured, snapshot):
    pf = f'/sys/bus/pci/devices/{lab_devices.NVME_PF}'
    with open(f'{pf}/sriov_drivers_autoprobe', 'w') as file:
        file.write('0')
    with open(f'{pf}/sriov_numvfs', 'w') as file:
        file.write('2')
    there = snapshot()
    instance = use.instance()
    os_acc.plug(instance, [use.pci_request(use.VFS[1])])
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(use.instance(), [use.pci_request(use.VFS[3])])
    assert isinstance(caught.value.__cause__, exception.DeviceNotFound)
    os_acc.unplug(instance)
    assert snapshot() == there
    with open(f'{pf}/sriov_numvfs', 'w') as file:
        file.write('0')
    with open(f'{pf}/sriov_drivers_autoprobe', 'w') as file:
        file.write('1')


def test_a_whole_function_with_a_driver_of_the_host(configured, snapshot):
    before = snapshot()
    instance = use.instance()
    os_acc.plug(instance, [use.pci_request(lab_devices.NVME_DISK)])
    assert use.driver_of(lab_devices.NVME_DISK) == 'vfio-pci'
    os_acc.unplug(instance)
    assert use.driver_of(lab_devices.NVME_DISK) == 'nvme'
    assert snapshot() == before


def test_functions_of_one_group_go_together(configured, snapshot):
    before = snapshot()
    instance = use.instance()
    both = (lab_devices.MULTI_NVME, lab_devices.MULTI_NIC)
    os_acc.plug(instance, [use.pci_request(address) for address in both])
    assert {use.driver_of(address) for address in both} == {'vfio-pci'}
    os_acc.unplug(instance)
    assert snapshot() == before


def test_chosen_by_resource_class(configured, snapshot):
    before = snapshot()
    devices = {d.address: d for d in os_acc.get_devices()}
    pf = devices[lab_devices.NVME_PF]
    assert (pf.handles_total, pf.handles_free) == (4, 4)
    assert devices[lab_devices.NIC].resource_class == 'CUSTOM_PCI_8086_10D3'
    instance = use.instance()
    requests = [
        os_acc.objects.AcceleratorRequest(
            uuid=use.instance().uuid,
            resource_class=pf.resource_class,
            traits=[pf.traits[0]],
            driver='pci',
        )
        for _ in range(2)
    ]
    vans = os_acc.plug(instance, requests)
    assert len({van.handle.address for van in vans}) == 2
    taken = {
        d.address: d.handles_free
        for d in os_acc.get_devices()
        if d.address == lab_devices.NVME_PF
    }
    held = sum(van.device == lab_devices.NVME_PF for van in vans)
    assert taken[lab_devices.NVME_PF] == 4 - held
    os_acc.unplug(instance)
    assert snapshot() == before


def test_what_cannot_be_cleaned_is_kept(configured, snapshot):
    before = snapshot()
    instance = use.instance()
    request = use.pci_request(lab_devices.PLAIN)
    os_acc.plug(instance, [request])
    configured.set_override('cleaning_command', 'false {address}', 'os_acc')
    with pytest.raises(exception.UnplugException) as caught:
        os_acc.unplug(instance)
    assert isinstance(caught.value.__cause__, exception.CleaningFailed)
    (van,) = os_acc.get_vans(instance)
    assert van.state == 'error'
    assert 'exit code 1' in van.error
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(use.instance(), [use.pci_request(lab_devices.PLAIN)])
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    configured.set_override('cleaning_command', 'sleep 60', 'os_acc')
    configured.set_override('cleaning_timeout', 0.5, 'os_acc')
    with pytest.raises(exception.UnplugException, match='killed'):
        os_acc.unplug(instance)
    configured.set_override('cleaning_command', 'true {address}', 'os_acc')
    assert os_acc.unplug(instance) == 1
    assert snapshot() == before


def test_reset_between_tenants(configured, snapshot):
    """NVMe has a function-level reset."""
    before = snapshot()
    instance = use.instance()
    configured.set_override('reset', 'required', 'os_acc_pci')
    os_acc.plug(instance, [use.pci_request(lab_devices.NVME_DISK)])
    assert os_acc.unplug(instance) == 1
    assert snapshot() == before
