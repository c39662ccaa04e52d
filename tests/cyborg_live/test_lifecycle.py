# SPDX-License-Identifier: Apache-2.0

"""Devices of all kinds: bound, plugged, unplugged and deleted."""

from __future__ import annotations

import dataclasses

from conftest import expect_nothing_left
import hardware
import layout
import live
import nova_part
import pytest
import vendor

from os_acc.cyborg import names


@dataclasses.dataclass(frozen=True)
class Case:
    """A kind of device.

    :ivar handle: the type of its attach handles in Cyborg
    """

    address: str
    resource_class: str
    handle: str
    count: int


CASES = {
    'VF that is made at plug': Case(
        hardware.PF, hardware.PF_CLASS, 'PCI', hardware.PF_VFS
    ),
    'whole GPU': Case(hardware.GPU, hardware.GPU_CLASS, 'PCI', 1),
    'vGPU': Case(hardware.VGPU, hardware.VGPU_CLASS, 'MDEV', 4),
}


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_one(cloud: live.Live, nova: nova_part.Nova, case: Case) -> None:
    kernel = cloud.kernel
    before = kernel.snapshot()
    providers = nova.providers()
    (provider,) = [
        name
        for name in providers
        if name.startswith(names.deployable(layout.HOST, case.address))
    ]
    assert providers[provider] == {case.resource_class: case.count}

    instance = nova.boot(nova_part.group(case.resource_class))

    (arq,) = nova.arqs(instance)
    assert arq['attach_handle_type'] == case.handle
    assert nova.usages() == {provider: {case.resource_class: 1}}

    (van,) = live.plug(instance)

    assert (van['uuid'], van['instance_uuid']) == (arq['uuid'], instance)
    assert van['state'] == 'plugged'
    taken = van['handle']
    if case.handle == 'MDEV':
        assert arq['attach_handle_uuid'] in taken
        assert kernel.snapshot()[arq['attach_handle_uuid']] == [
            case.address,
            hardware.VGPU_TYPE,
        ]
    else:
        assert kernel.driver_of(_address(arq)) == 'vfio-pci'
        assert _address(arq) in taken

    # The reports of the agent change nothing meanwhile.
    cloud.report()
    assert nova.arqs(instance) == [arq]
    assert nova.providers() == providers

    live.unplug(instance)
    nova.delete(instance)

    expect_nothing_left(nova)
    assert kernel.snapshot() == before
    cloud.report()
    assert nova.providers() == providers


def test_fpga(cloud: live.Live, nova: nova_part.Nova) -> None:
    """Cyborg programs a function, by os-acc, before it binds."""
    nova.upload('aes128', cloud.tool)
    provider = names.deployable(layout.HOST, vendor.FPGA)

    instance = nova.boot(
        nova_part.group(hardware.FPGA_CLASS, function_id='aes128')
    )

    assert cloud.tool.function() == 'aes128'
    assert names.function_trait('aes128') in nova.traits(provider)
    programmed = cloud.tool.calls()
    (van,) = live.plug(instance)
    assert van['state'] == 'plugged'
    # The function is in already.
    assert cloud.tool.calls() == programmed
    cloud.report()
    assert names.function_trait('aes128') in nova.traits(provider)

    live.unplug(instance)
    nova.delete(instance)
    expect_nothing_left(nova)


def test_all_at_once(cloud: live.Live, nova: nova_part.Nova) -> None:
    """One instance has a device of each kind."""
    instance = nova.boot(
        *(nova_part.group(case.resource_class) for case in CASES.values())
    )

    found = live.plug(instance)

    assert {van['state'] for van in found} == {'plugged'}
    assert {van['uuid'] for van in found} == {
        arq['uuid'] for arq in nova.arqs(instance)
    }
    assert len(found) == len(CASES)
    live.unplug(instance)
    nova.delete(instance)
    expect_nothing_left(nova)


def _address(arq: dict[str, dict[str, str]]) -> str:
    """Return the address of the PCI function of an ARQ."""
    info = {
        key: int(arq['attach_handle_info'][key], 16)
        for key in ('domain', 'bus', 'device', 'function')
    }
    return '{domain:04x}:{bus:02x}:{device:02x}.{function:x}'.format(**info)
