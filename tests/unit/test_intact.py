# SPDX-License-Identifier: Apache-2.0

"""plug() of what is plugged already looks at the hardware, and repairs it."""

from __future__ import annotations

import uuid

import cyborg_host
from cyborg_stand_in import gpu
from cyborg_stand_in import stand_in_host  # noqa: F401, fixture "here"
import devices
import pytest
import vendor as vendor_module
import vgpu_card

import os_acc
from os_acc import driver
from os_acc import exception
from os_acc import health
from os_acc import objects
from os_acc.kernel import vgpu_cards


def mark_not_intact(host, monkeypatch) -> list[str]:
    """Let the recording driver say that nothing is intact.

    :returns: the UUIDs of the VANs that it was asked for
    """
    asked: list[str] = []

    def is_intact(van: objects.VAN) -> bool:
        asked.append(van.uuid)
        return False

    monkeypatch.setattr(host.driver, 'is_intact', is_intact)
    return asked


def test_a_driver_without_the_method_counts_as_intact(host):
    assert 'is_intact' not in vars(type(host.driver))
    instance, requests = host.instance(), host.requests(2)
    os_acc.plug(instance, requests)
    host.calls.clear()
    os_acc.plug(instance, requests)
    assert host.calls.log == []
    assert driver.DriverBase.is_intact(host.driver, objects.VAN()) is True


def test_what_is_not_intact_is_prepared_again(host, monkeypatch, caplog):
    instance, requests = host.instance(), host.requests(2)
    before = os_acc.plug(instance, requests)
    asked = mark_not_intact(host, monkeypatch)
    host.calls.clear()
    after = os_acc.plug(instance, requests)
    wanted = [request.uuid for request in requests]
    assert asked == wanted
    assert sorted(host.calls.of('prepareVAN')) == sorted(wanted)
    assert host.calls.of('plug', 'postplug', 'unprepareVAN') == []
    assert [v.guest_config for v in after] == [v.guest_config for v in before]
    assert 'not as driver' in caplog.text


def test_vans_of_an_earlier_boot_are_not_examined(host, monkeypatch):
    instance, requests = host.instance(), host.requests(1)
    os_acc.plug(instance, requests)
    asked = mark_not_intact(host, monkeypatch)
    monkeypatch.setattr('os_acc.kernel.sysfs.boot_id', lambda: 'next')
    os_acc.plug(instance, requests)
    assert asked == []


def test_a_running_guest_is_an_error(host, monkeypatch):
    instance, requests = host.instance(), host.requests(1)
    os_acc.plug(instance, requests, live=True)
    mark_not_intact(host, monkeypatch)
    host.calls.clear()
    with pytest.raises(exception.PlugException, match='The guest runs'):
        os_acc.plug(instance, requests, live=True)
    assert host.calls.log == []
    assert list(host.states().values()) == ['plugged']
    os_acc.plug(instance, requests)
    assert host.calls.of('prepareVAN') == [requests[0].uuid]


def test_hardware_that_cannot_be_examined(host, monkeypatch):
    instance, requests = host.instance(), host.requests(1)
    os_acc.plug(instance, requests)

    def is_intact(van: objects.VAN) -> bool:
        raise OSError(5, 'Input/output error')

    monkeypatch.setattr(host.driver, 'is_intact', is_intact)
    with pytest.raises(exception.PlugException, match='is_intact of driver'):
        os_acc.plug(instance, requests)
    assert list(host.states().values()) == ['plugged']


def test_a_repair_that_fails_is_noted_until_the_device_is_intact(
    host, monkeypatch
):
    instance, requests = host.instance(), host.requests(1)
    os_acc.plug(instance, requests)
    with monkeypatch.context() as patch:
        mark_not_intact(host, patch)
        host.calls.on('prepareVAN', RuntimeError('no such card'))
        with pytest.raises(exception.PlugException, match='no such card'):
            os_acc.plug(instance, requests)
    (van,) = os_acc.get_vans(instance)
    assert van.state == 'plugged'
    assert 'no such card' in van.error
    host.calls.clear()
    # Somebody has repaired it by hand.
    os_acc.plug(instance, requests)
    (van,) = os_acc.get_vans(instance)
    assert (van.error, host.calls.log) == (None, [])


@pytest.fixture
def furnished(kernel):
    devices.furnish(kernel)
    before = kernel.snapshot()
    os_acc.initialize()
    yield kernel
    for owner in {van.instance_uuid for van in os_acc.get_vans()}:
        os_acc.unplug(objects.InstanceInfo(uuid=owner))
    assert kernel.snapshot() == before


def test_a_function_that_was_unbound_by_hand(furnished):
    instance = devices.instance()
    requests = [devices.pci(devices.GPU), devices.pci(devices.NIC)]
    os_acc.plug(instance, requests)
    for address in (devices.GPU, devices.NIC):
        furnished.unbind(address)
    os_acc.plug(instance, requests)
    for address in (devices.GPU, devices.NIC):
        assert furnished.driver_of(address) == 'vfio-pci'
    # The fixture checks that the NIC goes back to its first driver.


def test_a_function_that_was_given_to_the_host_by_hand(furnished):
    instance, request = devices.instance(), devices.pci(devices.NIC)
    os_acc.plug(instance, [request])
    furnished.unbind(devices.NIC)
    furnished.bind(devices.NIC, 'e1000e')
    os_acc.plug(instance, [request])
    assert furnished.driver_of(devices.NIC) == 'vfio-pci'


def test_vfs_that_were_removed_by_hand(furnished):
    devices.spec({'address': devices.PF, 'num_vfs': 2}, {'address': '*'})
    instance, request = devices.instance(), devices.pci(devices.VFS[1])
    os_acc.plug(instance, [request])
    furnished.unbind(devices.VFS[1])
    furnished.set_numvfs(devices.PF, 0)
    os_acc.plug(instance, [request])
    assert furnished.driver_of(devices.VFS[1]) == 'vfio-pci'


def test_a_function_that_a_guest_has_open_is_left_alone(furnished):
    instance, request = devices.instance(), devices.pci(devices.GPU)
    os_acc.plug(instance, [request])
    furnished.unbind(devices.GPU)
    pid = furnished.hold(furnished.node(devices.GPU))
    with pytest.raises(exception.PlugException, match=f'process {pid}'):
        os_acc.plug(instance, [request])
    assert furnished.driver_of(devices.GPU) is None
    (van,) = os_acc.get_vans(instance)
    assert van.state == 'plugged'
    assert f'process {pid}' in van.error
    furnished.end(pid)
    (van,) = os_acc.plug(instance, [request])
    assert van.error is None
    assert furnished.driver_of(devices.GPU) == 'vfio-pci'


def test_what_libvirt_binds_is_intact_on_any_driver(furnished):
    instance = devices.instance()
    request = devices.pci(devices.NIC, managed=True)
    os_acc.plug(instance, [request])
    assert furnished.driver_of(devices.NIC) == 'e1000e'
    os_acc.plug(instance, [request])


def test_another_device_at_the_address(furnished):
    instance, request = devices.instance(), devices.pci(devices.GPU)
    os_acc.plug(instance, [request])
    modalias = furnished.pci / 'devices' / devices.GPU / 'modalias'
    text = modalias.read_text()
    modalias.write_text(text.replace('d00001EB8', 'd00002235'))
    with pytest.raises(exception.PlugException, match='when it was plugged'):
        os_acc.plug(instance, [request])
    modalias.write_text(text)


def test_an_mdev_that_was_removed_by_hand(furnished):
    instance, request = devices.instance(), devices.mdev()
    os_acc.plug(instance, [request])
    path = furnished.mdev / request.handle.uuid
    furnished.write(str(path / 'remove'), '1')
    assert not path.exists()
    os_acc.plug(instance, [request])
    assert path.exists()


def test_a_vgpu_type_that_was_cleared_by_hand(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(vgpu_cards, 'PATH', str(tmp_path / 'missing.xml'))
    types = {558: ('NVIDIA A40-1Q', 1), 559: ('NVIDIA A40-2Q', 2)}
    card = vgpu_card.Card(kernel, '0000:41:00.0', types, size=48, vfs=7)
    devices.spec({'vendor_id': '10de', 'vgpu_type': 'NVIDIA A40-1Q'})
    os_acc.initialize()
    vf, instance = '0000:41:00.4', devices.instance()
    request = devices.pci(vf)
    os_acc.plug(instance, [request])
    card.write(vf, 0)
    os_acc.plug(instance, [request])
    assert card.kind_of(vf) == 558
    assert os_acc.unplug(instance) == 1
    assert card.kind_of(vf) == 0


def test_an_fpga_that_was_programmed_by_hand(kernel, tmp_path):
    vendor_module.furnish(kernel)
    tool = vendor_module.Vendor(tmp_path / 'vendor')
    path = kernel.pci / f'devices/{vendor_module.FPGA}/region0/afu_id'
    path.parent.mkdir()
    path.write_text('aes')
    tool.configure('single', function_file='region*/afu_id')
    os_acc.initialize()
    instance = devices.instance()
    request = objects.AcceleratorRequest(
        uuid=uuid.uuid4(),
        resource_class='FPGA',
        function_id='aes',
        bitstream=tool.bitstream('aes'),
    )
    (van,) = os_acc.plug(instance, [request])
    os_acc.plug(instance, [request])
    assert tool.calls() == []
    path.write_text('sha')
    os_acc.CONF.set_override('device_timeout', 0.1, 'os_acc')
    # The kernel of files does not show what the command programs.
    with pytest.raises(exception.PlugException, match='but has sha'):
        os_acc.plug(instance, [request])
    assert len(tool.calls()) == 1
    path.write_text('aes')
    with pytest.raises(exception.PlugException, match='unhealthy'):
        os_acc.plug(instance, [request])
    assert health.free(os_acc._get().journal, vendor_module.FPGA)
    os_acc.plug(instance, [request])
    assert len(tool.calls()) == 2
    assert os_acc.get_vans(instance)[0].error is None
    assert kernel.driver_of(van.handle.address) == 'vfio-pci'


def test_an_mdev_of_cyborg_that_was_removed_by_hand(here):
    wanted, instance = gpu(), devices.instance()
    path = here.kernel.mdev / wanted.handle.uuid
    with cyborg_host.creating(here.kernel, devices.GPU):
        os_acc.plug(instance, [wanted])
        calls = len(here.calls())
        os_acc.plug(instance, [wanted])
        assert len(here.calls()) == calls
        here.kernel.write(str(path / 'remove'), '1')
        os_acc.plug(instance, [wanted])
    assert path.exists()
    assert os_acc.unplug(instance) == 1


def test_a_fake_handle_that_was_lost(clean, tmp_path):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    path = tmp_path / 'hardware'
    os_acc.CONF.set_override('hardware_path', str(path), 'os_acc_fake')
    instance = devices.instance()
    request = objects.AcceleratorRequest(
        uuid=uuid.uuid4(), handle=objects.TestHandle(name='one')
    )
    os_acc.plug(instance, [request])
    (file,) = path.iterdir()
    file.unlink()
    os_acc.plug(instance, [request])
    assert file.exists()
