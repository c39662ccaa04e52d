# SPDX-License-Identifier: Apache-2.0

"""Devices that os-acc never takes. A refusal changes nothing."""

from __future__ import annotations

import pathlib

import lab_devices
import pytest
import use

import os_acc
from os_acc import exception
from os_acc.kernel import vfio
from os_acc.privileged.kernel import vfio_binding


def refused(address: str, kind: type[Exception], snapshot) -> str:
    """Check that a plug fails and changes nothing.

    :returns: the text of the error
    """
    before = snapshot()
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(use.instance(), [use.pci_request(address)])
    assert isinstance(caught.value.__cause__, kind)
    assert caught.value.undo_errors == []
    assert not [
        van for van in os_acc.get_vans() if van.handle.address == address
    ]
    assert snapshot() == before
    return str(caught.value)


def test_a_mounted_disk(configured, mounted_nvme, snapshot):
    text = refused(mounted_nvme, exception.DeviceInUseByHost, snapshot)
    assert 'is mounted on' in text


def test_a_disk_that_is_swap(configured, snapshot, request):
    import subprocess

    (disk,) = pathlib.Path(
        f'/sys/bus/pci/devices/{lab_devices.NVME_DISK}'
    ).glob('nvme/nvme*/nvme*n1')
    device = f'/dev/{disk.name}'
    subprocess.run(['mkswap', device], check=True, capture_output=True)
    subprocess.run(['swapon', device], check=True)
    request.addfinalizer(lambda: subprocess.run(['swapoff', device]))
    text = refused(
        lab_devices.NVME_DISK, exception.DeviceInUseByHost, snapshot
    )
    assert 'is swap space' in text


def test_an_interface_that_is_up(configured, nic_up, snapshot):
    text = refused(nic_up, exception.DeviceInUseByHost, snapshot)
    assert 'is up' in text


def test_the_boot_display(configured, snapshot, tmp_path):
    use.close()
    # An entry that names every device does not name this one.
    use.configure(tmp_path / 'state', [{'address': lab_devices.DISPLAY}])
    text = refused(lab_devices.DISPLAY, exception.DeviceInUseByHost, snapshot)
    assert 'boot display' in text


def test_a_group_with_a_foreign_member(configured, snapshot):
    text = refused(
        lab_devices.SHARED_FREE, exception.DeviceInUseByHost, snapshot
    )
    assert lab_devices.SHARED_NIC in text
    assert 'e1000' in text


def test_a_pf_whose_vfs_are_in_use(configured, snapshot):
    instance = use.instance()
    os_acc.plug(instance, [use.pci_request(use.VFS[0])])
    text = refused(lab_devices.NVME_PF, exception.DeviceNotFound, snapshot)
    assert 'offers VFs of it only' in text
    os_acc.unplug(instance)


def test_a_bridge(configured, snapshot):
    refused(lab_devices.BRIDGE, exception.DeviceError, snapshot)


def test_what_device_spec_does_not_name(configured, snapshot, tmp_path):
    use.close()
    use.configure(tmp_path / 'state', [{'address': lab_devices.NVME_PF}])
    text = refused(lab_devices.PLAIN, exception.DeviceNotFound, snapshot)
    assert 'device_spec' in text


def test_a_device_that_another_process_holds(configured, snapshot):
    """Another program has bound the function to VFIO and has it open."""
    there = vfio.Binding.of(os_pci(lab_devices.PLAIN))
    vfio_binding.bind(lab_devices.PLAIN, 'vfio-pci', 30)
    guest = use.Holder(use.group_file(lab_devices.PLAIN))
    text = refused(lab_devices.PLAIN, exception.DeviceBusy, snapshot)
    assert f'process {guest.pid}' in text
    guest.end()
    vfio_binding.restore(lab_devices.PLAIN, there, 30)


def os_pci(address):
    from os_acc.kernel import pci

    return pci.get(address)


def test_a_guest_that_still_has_it(configured, snapshot):
    """unplug leaves the device to the guest, and goes on later."""
    before = snapshot()
    instance = use.instance()
    os_acc.plug(instance, [use.pci_request(lab_devices.PLAIN)])
    there = snapshot()
    guest = use.Holder(use.group_file(lab_devices.PLAIN))
    with pytest.raises(exception.UnplugException) as caught:
        os_acc.unplug(instance)
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    assert snapshot() == there
    guest.end()
    assert os_acc.unplug(instance) == 1
    assert snapshot() == before
