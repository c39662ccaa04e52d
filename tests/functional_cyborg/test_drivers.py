# SPDX-License-Identifier: Apache-2.0

"""Cyborg's real drivers, through the helper process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any
import uuid

from conftest import FAR
from conftest import GPU
from conftest import INTEL
from conftest import INTEL_VFS
from conftest import NIC
from conftest import NIC_VFS
from conftest import QAT
from conftest import QAT_VFS
from conftest import VGPU
from conftest import XILINX
from conftest import XILINX_USER
import cyborg_host
import pytest

import os_acc
from os_acc import exception
from os_acc import health
from os_acc import objects

HEAVY = {'cyborg', 'eventlet', 'sqlalchemy'}
AFU, AFU2 = (
    'd8424dc4a4a3c413f89e433683f9040b',
    'f7df405cbd7acf7222f144b0b93acd18',
)


def request(handle: Any, **values: Any) -> objects.AcceleratorRequest:
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), handle=handle, **values
    )


def vf(host: Any, number: int, afu: str | None) -> Any:
    values = {}
    if afu is not None:
        values = {'bitstream': host.image(afu), 'function_id': afu}
    handle = objects.PCIHandle(address=INTEL_VFS[number])
    return request(handle, **values)


def mdev() -> Any:
    return request(
        objects.MdevHandle(uuid=str(uuid.uuid4()), parent=GPU, type=VGPU)
    )


def cause(host: Any, *requests: Any) -> Exception:
    before = {van.uuid for van in os_acc.get_vans()}
    with pytest.raises(exception.PlugException) as caught:
        host.plug(*requests)
    assert caught.value.undo_errors == []
    assert {van.uuid for van in os_acc.get_vans()} == before
    return caught.value.__cause__


def heavy() -> set[str]:
    return {name for name in sys.modules if name.split('.')[0] in HEAVY}


def test_fake(host):
    host.enable('fake_driver')
    before = heavy()
    device = host.devices()['0000:0c:00.0']
    assert (device.handles_total, device.handles_free) == (16, 16)
    assert (device.vendor_id, device.product_id) == ('abcd', 'abcd')
    assert device.resource_class == 'FPGA'
    assert device.traits == ['CUSTOM_FAKE_DEVICE']
    handle = objects.TestHandle(name='0000:0c:02.0')
    instance, (van,) = host.plug(request(handle))
    assert van.driver == 'cyborg'
    assert host.devices()['0000:0c:00.0'].handles_free == 15
    assert os_acc.unplug(instance) == 1
    assert heavy() == before
    assert 'cyborg' not in sys.modules
    assert 'sqlalchemy' not in sys.modules


def test_the_helper_needs_nothing_of_os_acc(host):
    # There are more lines than os-acc logs.
    output = host.root / 'imports'
    host.options('-X', 'importtime', redirect=f'2> {output}')
    host.enable('fake_driver')
    host.devices()
    lines = [line for line in output.read_text().splitlines() if '|' in line]
    imported = {line.rpartition('|')[2].strip() for line in lines}
    assert {'cyborg', 'eventlet', 'sqlalchemy'} <= imported
    assert not {name for name in imported if name.startswith('os_acc')}


def test_output_of_a_tool(host):
    """Cyborg's drivers keep it in memory, so there is a limit."""
    host.enable('xilinx_fpga_driver')
    host.behave('flood')
    with pytest.raises(exception.DeviceError, match='bytes of memory') as err:
        os_acc.program_device(XILINX, host.image('base'), 'base')
    assert len(str(err.value)) < 1000


def test_intel(host):
    host.enable('intel_fpga_driver')
    device = host.devices()[INTEL]
    assert (device.vendor_id, device.product_id) == ('8086', '09c4')
    assert (device.handles_total, device.programming) == (2, 'single')
    assert device.function_id == '0000'
    assert 'CUSTOM_FPGA_INTEL_PAC_ARRIA10' in device.traits
    assert 'CUSTOM_FPGA_REGION_INTEL_F00D' in device.traits
    first, (van,) = host.plug(vf(host, 0, AFU))
    assert (van.device, van.function_id) == (INTEL, AFU)
    address = ['--bus', '0x07', '--device', '0x00', '--function', '0x0']
    assert host.arguments() == [*address, host.image(AFU)]
    assert host.devices()[INTEL].function_id == AFU
    # The same function: nothing is programmed.
    second, _ = host.plug(vf(host, 1, AFU))
    assert len(host.arguments()) == 7
    os_acc.unplug(first)
    err = cause(host, vf(host, 0, AFU2))
    assert isinstance(err, exception.DeviceBusy)
    assert second.uuid in str(err)
    os_acc.unplug(second)
    host.plug(vf(host, 0, AFU2))
    assert host.arguments()[7:] == [*address, host.image(AFU2)]


def plug_when_freed(host, request):
    """Nobody gets the card until an operator has freed it."""
    assert isinstance(cause(host, request), exception.DeviceUnhealthy)
    # What os-acc device free does.
    assert health.free(os_acc._get().journal, INTEL)
    host.plug(request)


def test_intel_programming_fails(host):
    host.enable('intel_fpga_driver')
    host.behave('fail')
    err = cause(host, vf(host, 0, AFU))
    assert isinstance(err, exception.DeviceError)
    assert 'intel_fpga_driver' in str(err)
    assert 'returned False' in str(err)
    host.behave('work')
    plug_when_freed(host, vf(host, 0, AFU))


def test_intel_programming_lies(host):
    host.enable('intel_fpga_driver')
    wanted = vf(host, 0, AFU)
    with open(wanted.bitstream, 'w') as file:
        file.write(AFU2)
    err = cause(host, wanted)
    assert isinstance(err, exception.DeviceError)
    assert AFU in str(err)
    assert AFU2 in str(err)


def test_intel_programming_hangs(host):
    host.enable('intel_fpga_driver', program_timeout=3.0)
    host.behave('hang')
    err = cause(host, vf(host, 0, AFU))
    assert isinstance(err, exception.Timeout)
    pids = host.hanging()
    assert len(set(pids)) == 3
    assert all(cyborg_host.gone(pid) for pid in pids)
    host.enable('intel_fpga_driver', program_timeout=60.0)
    host.behave('work')
    plug_when_freed(host, vf(host, 0, AFU))


def test_the_helper_is_killed_in_the_middle(host):
    host.enable('intel_fpga_driver')
    host.behave('hang')
    errors = []
    wanted = vf(host, 0, AFU)
    thread = threading.Thread(
        target=lambda: errors.append(cause(host, wanted))
    )
    thread.start()
    pids = host.hanging()
    os.kill(pids[0], signal.SIGKILL)
    thread.join()
    assert isinstance(errors[0], exception.DeviceError)
    assert 'was killed by signal 9' in str(errors[0])
    # The tool that it had started was killed too.
    assert all(cyborg_host.gone(pid) for pid in pids)
    host.behave('work')
    plug_when_freed(host, wanted)


PLUG = """
import json, sys
import os_acc
from os_acc import objects
from os_acc.kernel import libvirt_domains, sysfs
from os_acc.privileged import root_folder
from os_acc.privileged import context
from os_acc.privileged import notes
from os_acc.privileged.fpga import root_copy
root, config, instance, uuid, address, image, afu = sys.argv[1:]
for name in ('sys', 'proc', 'dev'):
    setattr(sysfs, name.upper(), f'{root}/host/{name}')
libvirt_domains.STATE_DIRECTORY = f'{root}/host/libvirt'
root_folder.PATH = f'{root}/host/run/os-acc'
notes.FOLDER = f'{root}/host/held'
root_copy.DIRECTORY = f'{root}/host/images'
context.pctxt.set_client_mode(False)
os_acc.CONF([], project='os-acc', default_config_files=[config])
os_acc.initialize()
os_acc.plug(
    objects.InstanceInfo(uuid=instance, name='guest', project_id='project'),
    [objects.AcceleratorRequest(
        uuid=uuid, handle=objects.PCIHandle(address=address),
        bitstream=image, function_id=afu)])
"""


def test_os_acc_is_killed_in_the_middle(host):
    host.behave('hang')
    wanted, instance = vf(host, 0, AFU), str(uuid.uuid4())
    config = host.root / 'os-acc.conf'
    config.write_text(
        f'[os_acc]\nplugin = noop\nstate_path = {host.root / "state"}\n'
        'drivers = cyborg\ndevice_spec = {"address": "*"}\n'
        f'[os_acc_bitstreams]\nallowed_folders = {host.root}\n'
        '[os_acc_cyborg]\nenabled_drivers = intel_fpga_driver\n'
        f'python = {host.python}\n'
    )
    arguments = [host.root, config, instance, wanted.uuid]
    arguments += [wanted.handle.address, wanted.bitstream, AFU]
    other = subprocess.Popen([sys.executable, '-c', PLUG, *arguments])
    pids = host.hanging()
    (van,) = os_acc.get_vans()
    assert (van.state, van.function_id) == ('preparing', AFU)
    other.kill()
    other.wait()
    assert all(cyborg_host.gone(pid) for pid in pids)
    report = os_acc.recover()
    assert [each.uuid for each in report.released] == [wanted.uuid]
    assert list(os_acc.get_vans()) == []
    host.behave('work')
    host.enable('intel_fpga_driver')
    host.plug(wanted)
    assert host.devices()[INTEL].function_id == AFU


def test_intel_elsewhere_than_in_domain_0(host):
    """Its tool does not get the domain and would program another device."""
    host.enable('intel_fpga_driver')
    assert {INTEL, FAR} == set(host.devices())
    wanted = request(objects.PCIHandle(address=FAR), bitstream=host.image(AFU))
    err = cause(host, wanted)
    assert isinstance(err, exception.DeviceError)
    assert 'domain' in str(err)
    assert host.arguments() == []


def test_the_administrator_programs(host):
    host.enable('intel_fpga_driver')
    image = host.image(AFU)
    assert os_acc.program_device(INTEL, image, AFU) is True
    assert host.devices()[INTEL].function_id == AFU
    assert len(host.arguments()) == 7
    assert os_acc.program_device(INTEL, image, AFU) is False
    user, (van,) = host.plug(vf(host, 1, AFU))
    with pytest.raises(exception.DeviceBusy) as caught:
        os_acc.program_device(INTEL, host.image(AFU2), AFU2)
    assert user.uuid in str(caught.value)
    assert van.uuid in str(caught.value)
    assert len(host.arguments()) == 7
    os_acc.unplug(user)
    assert os_acc.program_device(INTEL, host.image(AFU2), AFU2) is True
    assert host.devices()[INTEL].function_id == AFU2


def test_deployables_are_devices(host):
    """Cyborg makes a resource provider for each VF."""
    host.enable('intel_qat_driver', 'intel_nic_driver')
    listed = host.devices()
    assert sorted(listed) == sorted(QAT_VFS + NIC_VFS)
    assert {each.handles_total for each in listed.values()} == {1}
    assert listed[QAT_VFS[0]].resource_class == 'CUSTOM_QAT'
    assert listed[NIC_VFS[0]].traits == ['CUSTOM_VF']
    # The driver pci does not report the same VFs again.
    handles = [
        each.handle.identity
        for device in os_acc.get_devices()
        for each in device.handles
    ]
    assert len(handles) == len(set(handles))
    assert not {QAT, NIC} & {each.address for each in os_acc.get_devices()}


def test_a_vgpu_parent_is_listed_once(host):
    entries = [
        '{"address": "*"}',
        f'{{"address": "{GPU}", "mdev_types": "*"}}',
    ]
    os_acc.CONF.set_override('device_spec', entries, 'os_acc')
    listed = [each for each in os_acc.get_devices() if each.address == GPU]
    assert [each.driver for each in listed] == ['mdev']
    host.enable('nvidia_gpu_driver')
    listed = [each for each in os_acc.get_devices() if each.address == GPU]
    assert [(d.driver, d.handles_total) for d in listed] == [('cyborg', 2)]


def test_xilinx(host):
    host.enable('xilinx_fpga_driver')
    (device,) = host.devices().values()
    assert device.address == XILINX
    assert (device.vendor_id, device.product_id) == ('10ee', 'abcd')
    # As in Placement: Cyborg makes two ARQs for one accelerator.
    assert (device.handles_total, device.programming) == (1, 'single')
    handles = [
        objects.PCIHandle(address=each) for each in (XILINX, XILINX_USER)
    ]
    image = host.image('base')
    assert os_acc.program_device(XILINX, image, 'base') is True
    # The card has the image after a cold reboot.
    host.reboot()
    _, vans = host.plug(*map(request, handles))
    assert [van.device for van in vans] == [XILINX, XILINX]
    (device,) = host.devices().values()
    assert (device.handles_total, device.handles_free) == (1, 0)
    listed = [each.address for each in os_acc.get_devices()]
    assert XILINX_USER not in listed
    # Cyborg writes the address with a colon before the function.
    assert host.arguments() == [
        *('program', '--device', '0000:3b:00:0', '--base', '--image'),
        image,
    ]


def test_xilinx_programming_fails(host):
    host.enable('xilinx_fpga_driver')
    host.behave('fail')
    with pytest.raises(exception.DeviceError, match='returned False'):
        os_acc.program_device(XILINX, host.image('base'), 'base')


def test_gpu(host):
    host.enable('nvidia_gpu_driver')
    device = host.devices()[GPU]
    assert (device.resource_class, device.handles_total) == ('VGPU', 2)
    assert (device.vendor_id, device.product_id) == ('10de', '1eb8')
    wanted = mdev()
    with cyborg_host.creating(host.kernel, GPU):
        instance, (van,) = host.plug(wanted)
        assert host.kernel.snapshot()[wanted.handle.uuid] == [GPU, VGPU]
        assert (van.driver, van.device) == ('cyborg', GPU)
        other, _ = host.plug(mdev())
        err = cause(host, mdev())
    assert isinstance(err, exception.DeviceBusy)
    assert 'capacity' in str(err)
    assert os_acc.unplug(instance) == os_acc.unplug(other) == 1


def test_gpu_refused_by_cyborgs_function(host):
    """The write fails in the helper, as when the kernel refuses it."""
    host.enable('nvidia_gpu_driver')
    directory = host.kernel.sys / f'class/mdev_bus/{GPU}/mdev_supported_types'
    (directory / VGPU / 'create').unlink()
    (directory / VGPU / 'create').mkdir()
    err = cause(host, mdev())
    assert isinstance(err, exception.DeviceError)
    assert 'IsADirectoryError' in str(err)


def test_gpu_that_is_there(host):
    host.enable('nvidia_gpu_driver')
    directory = host.kernel.sys / f'class/mdev_bus/{GPU}/mdev_supported_types'
    same, another = mdev(), mdev()
    for kind, each in ((VGPU, same), ('nvidia-224', another)):
        path, name = directory / kind / 'create', each.handle.uuid
        host.kernel.write(str(path), name)
        if each is same:
            instance, _ = host.plug(each)
            os_acc.unplug(instance)
        else:
            err = cause(host, each)
            assert isinstance(err, exception.DeviceBusy)
            assert 'nvidia-224' in str(err)
        host.kernel.write(str(host.kernel.mdev / name / 'remove'), '1')


def test_all_that_can_discover(host):
    host.enable(
        'fake_driver',
        'huawei_ascend_driver',
        'inspur_fpga_driver',
        'inspur_nvme_ssd_driver',
        'intel_fpga_driver',
        'intel_nic_driver',
        'intel_qat_driver',
        'nvidia_gpu_driver',
        'pci_driver',
        'xilinx_fpga_driver',
    )
    expected = [INTEL, '0000:0c:00.0', XILINX, GPU, FAR, *QAT_VFS, *NIC_VFS]
    expected.sort()
    assert sorted(host.devices()) == expected


def test_spdk_cannot(host):
    host.enable('fake_driver', 'nvmf_spdk_driver')
    with pytest.raises(exception.DiscoveryFailed, match='nvmf_spdk') as caught:
        os_acc.get_devices()
    here = [d for d in caught.value.devices if d.driver == 'cyborg']
    assert [each.handles_total for each in here] == [16]
