# SPDX-License-Identifier: Apache-2.0

"""VFIO variant drivers: which one is bound, and what is known by it."""

from __future__ import annotations

import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.kernel import pci
from os_acc.kernel import vfio
from os_acc.privileged.pci import functions as privileged_pci
from os_acc.spec import device_spec

VARIANT = 'mlx5_vfio_pci'
ALIAS = f'vfio_pci:v000010DEd00001EB8sv*sd*bc*sc*i* {VARIANT}'


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    kernel.add_driver(VARIANT)
    os_acc.initialize()
    return kernel


def forced(driver: str = VARIANT, **values) -> None:
    devices.spec({'address': devices.GPU, 'vfio_driver': driver, **values})


def test_known_without_modules_alias(here):
    """In a container without the host's /lib/modules."""
    forced()
    before = here.snapshot()
    instance = devices.instance()
    os_acc.CONF.set_override('cleaning_command', 'false', 'os_acc')
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    assert here.driver_of(devices.GPU) == VARIANT
    with pytest.raises(exception.UnplugException, match='cleaning_command'):
        os_acc.unplug(instance)
    assert [van.state for van in os_acc.get_vans()] == ['error']
    os_acc.CONF.set_override('cleaning_command', '', 'os_acc')
    assert os_acc.unplug(instance) == 1
    assert here.snapshot() == before


def test_it_leaves_a_group_viable(here):
    here.write(str(here.pci / 'drivers/e1000e/unbind'), devices.SHARED_NIC)
    path = here.pci / 'devices' / devices.SHARED_NIC
    here.write(f'{path}/driver_override', VARIANT)
    here.write(str(here.pci / 'drivers_probe'), devices.SHARED_NIC)
    os_acc.plug(devices.instance(), [devices.pci(devices.SHARED)])


def test_a_vf_that_nvidia_keeps_for_vgpus_is_not_on_vfio(here):
    path = here.add_function(
        '0000:43:00.4',
        '10de:2235',
        0x030200,
        'nvidia',
        files={'nvidia/current_vgpu_type': '0\n', 'vfio-dev/vfio7/dev': '1:1'},
    )
    assert path.exists()
    assert not vfio.is_bound(pci.get('0000:43:00.4'))


def test_plain_vfio_pci_is_forced(here):
    here.aliases(ALIAS)
    forced('vfio-pci')
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(devices.GPU)])
    assert here.driver_of(devices.GPU) == 'vfio-pci'
    assert van.live_migratable is False


@pytest.mark.parametrize('name', ['../vfio', 'vfio pci'])
def test_a_name_that_no_driver_can_have(here, name):
    with pytest.raises(exception.InvalidRequest, match='vfio_driver'):
        device_spec.parse(
            f'{{"address": "{devices.GPU}", "vfio_driver": "{name}"}}'
        )


def test_a_driver_that_is_none_of_vfio(here):
    name = 'uio_pci_generic'
    forced(name)
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(devices.instance(), [devices.pci(devices.GPU)])
    assert 'vfio_driver' in str(caught.value.__cause__)
    assert repr(name) in str(caught.value.__cause__)
    assert here.writes == []


def test_the_privileged_half_takes_the_forced_one_only(here):
    forced()
    with pytest.raises(exception.InvalidRequest, match=VARIANT):
        privileged_pci.take(
            devices.GPU, 'vfio-pci', [], devices.instance().uuid, 1.0
        )
    assert here.writes == []


def test_libvirt_is_told_the_forced_one(here):
    forced(bind='libvirt')
    (van,) = os_acc.plug(devices.instance(), [devices.pci(devices.GPU)])
    assert f'<driver name="vfio" model="{VARIANT}"/>' in van.guest_config


@pytest.mark.parametrize('bind', ['os-acc', 'libvirt'])
def test_libvirt_chooses_itself_otherwise(here, bind):
    here.aliases(ALIAS)
    devices.spec({'address': devices.GPU, 'bind': bind})
    (van,) = os_acc.plug(devices.instance(), [devices.pci(devices.GPU)])
    assert '<driver' not in van.guest_config


# --- live_migratable


def test_live_migratable_that_is_no_flag(here):
    devices.spec({'address': devices.GPU, 'live_migratable': 'maybe'})
    with pytest.raises(exception.InvalidRequest, match='live_migratable'):
        device_spec.load(os_acc.CONF)
