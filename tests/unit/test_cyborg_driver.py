# SPDX-License-Identifier: Apache-2.0

"""The driver cyborg: discovery, and which requests it claims."""

from __future__ import annotations

import json
import sys

import cyborg_host
from cyborg_stand_in import BESIDE
from cyborg_stand_in import F1
from cyborg_stand_in import FPGA
from cyborg_stand_in import OTHER
from cyborg_stand_in import VENDOR
from cyborg_stand_in import VFS
from cyborg_stand_in import cause
from cyborg_stand_in import device
from cyborg_stand_in import driver
from cyborg_stand_in import found
from cyborg_stand_in import gpu
from cyborg_stand_in import option
from cyborg_stand_in import pids
from cyborg_stand_in import plug
from cyborg_stand_in import request
from cyborg_stand_in import slot
from cyborg_stand_in import stand_in_host  # noqa: F401, fixture "here"
from cyborg_stand_in import vf
import devices
from hypothesis import given
from hypothesis import strategies as st
import pytest

import os_acc
from os_acc import exception
from os_acc import health
from os_acc import objects
from os_acc.journal import health as health_rows
from os_acc.kinds.cyborg.driver import listing as cyborg_listing


def test_not_enabled(here):
    option('enabled_drivers', [])
    assert not driver().can_handle(vf(0))
    assert found() == {}
    err = cause(vf(0, driver='cyborg'))
    assert isinstance(err, exception.InvalidRequest)
    assert 'enabled_drivers' in str(err)
    assert pids(here) == set()


def test_devices(here):
    listed = found()
    assert sorted(listed) == [devices.GPU, FPGA, OTHER, '0000:0c:00.0']
    fpga = listed[FPGA]
    assert (fpga.vendor_id, fpga.product_id) == ('ace0', '09c4')
    assert (fpga.resource_class, fpga.programming) == ('FPGA', 'single')
    assert fpga.traits == ['CUSTOM_ACME']
    assert fpga.function_id is None
    assert (fpga.handles_total, fpga.handles_free) == (2, 2)
    assert listed[devices.GPU].programming == 'none'
    assert listed[devices.GPU].handles_total == 2
    assert listed[devices.GPU].numa_node == 1
    assert listed['0000:0c:00.0'].handles_total == 3
    with cyborg_host.creating(here.kernel, devices.GPU):
        plug(vf(0), gpu())
    listed = found()
    assert listed[FPGA].handles_free == listed[devices.GPU].handles_free == 1


def test_the_parent_does_not_load_cyborg(here):
    heavy = {'cyborg', 'eventlet', 'sqlalchemy'}
    before = {name for name in sys.modules if name.split('.')[0] in heavy}
    plug(vf(0, bitstream=here.image()))
    after = {name for name in sys.modules if name.split('.')[0] in heavy}
    assert (after, 'cyborg' in after) == (before, False)


def test_what_it_claims(here):
    assert driver().can_handle(vf(0))
    assert driver().can_handle(gpu())
    assert driver().can_handle(
        request(objects.TestHandle(name='0000:0c:01.0'))
    )
    assert not driver().can_handle(devices.pci(devices.NIC))
    assert not driver().can_handle(gpu('acme-2'))
    assert not driver().can_handle(devices.mdev())
    drc = objects.DRCHandle(drc_index=1)
    assert not driver().can_handle(request(drc))
    assert driver().can_handle(devices.wanted('FPGA', 'CUSTOM_ACME'))
    assert not driver().can_handle(devices.wanted('FPGA', 'CUSTOM_MORE'))
    assert not driver().can_handle(devices.wanted('PGPU'))
    # The driver pci claims what Cyborg's drivers do not know.
    _, (van,) = plug(devices.pci(OTHER))
    assert van.driver == 'cyborg'
    _, (van,) = plug(devices.pci(devices.GPU))
    assert van.driver == 'pci'


def test_what_was_found_is_good_for_a_while(here):
    option('discovery_interval', 600.0)
    assert driver().can_handle(vf(0))
    here.find()
    assert driver().can_handle(vf(0))
    option('discovery_interval', 0.0)
    found()
    os_acc.initialize(reset=True)
    assert not driver().can_handle(vf(0))


def test_a_driver_of_cyborgs_that_fails(here):
    here.tell('discover-plain', 'raise')
    with pytest.raises(exception.DiscoveryFailed) as caught:
        os_acc.get_devices()
    assert 'plain: RuntimeError: the device is broken' in str(caught.value)
    assert {FPGA, OTHER} <= {d.address for d in caught.value.devices}
    # Another driver of Cyborg reports this device.
    assert driver().can_handle(vf(0))
    # The failed driver might have a device for this request.
    with pytest.raises(exception.NoMatchingDriver, match='broken'):
        plug(gpu())


@pytest.mark.parametrize(
    ('change', 'text'),
    [
        ({'cpid': []}, 'cpid_info'),
        ({'cpid': {'domain': '0000'}}, 'cpid_info'),
        ({'cpid': slot('0000:07:00.0') | {'bus': '-7'}}, 'cpid_info'),
        ({'handles': [['DRC', slot(FPGA)]]}, 'attach_type'),
        ({'handles': [['PCI', []]]}, 'attach_info'),
        ({'handles': [['MDEV', slot(FPGA)]]}, 'asked_type'),
    ],
)
def test_a_device_that_cannot_be(here, change, text):
    here.find(
        device('fpga', OTHER, ['PCI', slot(OTHER)]),
        device('plain', FPGA) | change,
    )
    with pytest.raises(exception.DiscoveryFailed, match=text) as caught:
        os_acc.get_devices()
    assert "Cyborg's plain" in str(caught.value)
    assert OTHER in [d.address for d in caught.value.devices]


def test_doctor(here, tmp_path):
    assert [
        (each.subject, each.verdict, each.text) for each in driver().diagnose()
    ] == [
        ("Cyborg's plain", 'ok', f'{devices.GPU}, 0000:0c:00.0'),
        ("Cyborg's fpga", 'ok', f'{FPGA}, {OTHER}'),
    ]
    here.tell('discover-fpga', 'raise')
    one, two = driver().diagnose()
    assert (one.verdict, two.verdict) == ('ok', 'error')
    assert 'the device is broken' in two.text
    here.tell('discover-plain', 'die')
    (one,) = driver().diagnose()
    assert one.verdict == 'error'
    assert 'signal 9' in one.text
    option('enabled_drivers', [])
    assert list(driver().diagnose()) == []


def test_test_handles(here):
    handle = objects.TestHandle(name='0000:0c:02.0')
    instance, (van,) = plug(request(handle))
    assert (van.driver, van.device) == ('cyborg', '0000:0c:00.0')
    assert found()['0000:0c:00.0'].handles_free == 2
    assert os_acc.unplug(instance) == 1
    err = cause(
        request(objects.TestHandle(name='0000:0c:07.0'), driver='cyborg')
    )
    assert isinstance(err, exception.DeviceNotFound)


def test_a_function_in_use_is_refused(here):
    nic = device('plain', devices.NIC, ['PCI', slot(devices.NIC)])
    here.find(nic)
    flags = here.kernel.sys / 'class/net/eth0/flags'
    flags.write_text('0x1003\n')
    err = cause(devices.pci(devices.NIC))
    assert isinstance(err, exception.DeviceInUseByHost)


def test_a_nic_that_is_the_hosts_again_is_let_go(here):
    """libvirt returns it to the host, whose interface comes up at once."""
    here.find(device('plain', devices.NIC, ['PCI', slot(devices.NIC)]))
    wanted = devices.pci(devices.NIC, managed=True)
    wanted.driver = 'cyborg'
    instance, _ = plug(wanted)
    flags = here.kernel.sys / 'class/net/eth0/flags'
    flags.write_text('0x1003\n')
    assert os_acc.unplug(instance) == 1


def test_outside_of_device_spec(here):
    devices.spec({'address': OTHER})
    for wanted in (vf(0), gpu()):
        err = cause(wanted)
        assert isinstance(err, exception.DeviceNotFound)
        assert 'device_spec' in str(err)
    assert here.calls() == []


@given(
    st.tuples(
        st.integers(0, 0xFFFF),
        st.integers(0, 0xFF),
        st.integers(0, 0x1F),
        st.integers(0, 7),
    ),
    st.booleans(),
)
def test_addresses_in_any_spelling(parts, padded):
    widths = (4, 2, 2, 1) if padded else (0, 0, 0, 0)
    keys = ('domain', 'bus', 'device', 'function')
    info = {
        key: f'{part:0{width}X}' if width else f'{part:x}'
        for key, part, width in zip(keys, parts, widths, strict=True)
    }
    answer = {
        'driver': 'plain',
        'vendor': VENDOR,
        'board': '',
        'programmable': False,
        'cpid_type': 'PCI',
        'cpid_info': json.dumps(info),
        'deployables': [
            {
                'accelerators': 1,
                'attributes': [],
                'handles': [['PCI', json.dumps(info)]],
            }
        ],
    }
    (read,), errors = cyborg_listing.read({'devices': [answer], 'errors': {}})
    assert errors == {}
    assert read.address == '%04x:%02x:%02x.%x' % parts
    assert read.has(objects.PCIHandle(address=read.address))
    # program() gets the parts as Cyborg wrote them.
    assert read.controlpath_id['cpid_info'] == info


# --- deployables and accelerators


def test_deployables_are_devices(here):
    """As Cyborg's drivers for QAT and network cards report the VFs of a PF."""
    ours = [
        {
            'handles': [['PCI', slot(each)]],
            'attributes': [['rc', 'CUSTOM_NIC'], ['trait0', trait]],
        }
        for each, trait in zip(VFS, ('CUSTOM_A', 'CUSTOM_B'), strict=True)
    ]
    here.find(device('plain', FPGA, deployables=ours))
    listed = found()
    assert {
        each.address: (each.handles_total, each.traits)
        for each in listed.values()
    } == {VFS[0]: (1, ['CUSTOM_A']), VFS[1]: (1, ['CUSTOM_B'])}
    instance, (van,) = plug(devices.wanted('CUSTOM_NIC', 'CUSTOM_B'))
    assert (van.handle.address, van.device) == (VFS[1], FPGA)
    listed = found()
    assert [listed[each].handles_free for each in VFS] == [1, 0]
    assert os_acc.unplug(instance) == 1


def test_deployables_that_are_programmed_together_are_one_device(here):
    ours = [{'handles': [['PCI', slot(each)]]} for each in VFS]
    here.find(device('fpga', FPGA, deployables=ours))
    (fpga,) = found().values()
    assert (fpga.address, fpga.handles_total) == (FPGA, 2)
    plug(vf(0, bitstream=here.image(), function_id=F1))
    err = cause(vf(1, bitstream=here.image(), function_id='bbbb2222'))
    assert isinstance(err, exception.DeviceBusy)


def test_a_deployable_without_handles(here):
    here.find(device('plain', FPGA, accelerators=0))
    (one,) = found().values()
    assert (one.address, one.handles_total) == (FPGA, 0)


@pytest.fixture
def card(here):
    """A card with a management function and a user function, as Xilinx's."""
    handles = [['PCI', slot(each)] for each in (OTHER, BESIDE)]
    here.find(device('fpga', OTHER, *handles, accelerators=1))


def test_an_accelerator_of_two_functions_counts_once(card):
    """As in Placement. Cyborg makes two ARQs for it, one per function."""
    (device,) = found().values()
    assert (device.address, device.handles_total) == (OTHER, 1)
    assert device.handles[0].handle.address == BESIDE
    assert device.handles_free == 1
    # The driver pci does not report the other function again.
    assert {OTHER, BESIDE}.isdisjoint(
        each.address for each in os_acc.get_devices() if each.driver == 'pci'
    )
    both = [devices.pci(each) for each in (OTHER, BESIDE)]
    instance, vans = plug(*both)
    assert [van.device for van in vans] == [OTHER, OTHER]
    (device,) = found().values()
    assert (device.handles_total, device.handles_free) == (1, 0)
    assert os_acc.unplug(instance) == 2


@pytest.mark.parametrize(
    ('first', 'second'), [(OTHER, BESIDE), (BESIDE, OTHER)]
)
def test_an_accelerator_is_not_shared_by_instances(card, first, second):
    instance, (van,) = plug(devices.pci(first))
    (device,) = found().values()
    assert (device.handles_total, device.handles_free) == (1, 0)
    err = cause(devices.pci(second))
    assert isinstance(err, exception.DeviceBusy)
    assert instance.uuid in str(err)
    assert van.uuid in str(err)
    err = cause(devices.wanted('FPGA'))
    assert isinstance(err, exception.DeviceNotFound)
    # The same instance gets the rest.
    os_acc.plug(instance, [devices.pci(second)])


@pytest.mark.parametrize(
    ('first', 'second'), [(OTHER, BESIDE), (BESIDE, OTHER)]
)
def test_an_accelerator_is_not_shared_with_another_driver(card, first, second):
    request = devices.pci(first)
    request.driver = 'pci'
    _, (van,) = plug(request)
    assert van.driver == 'pci'
    err = cause(devices.pci(second))
    assert isinstance(err, exception.DeviceBusy)
    assert van.uuid in str(err)


@pytest.mark.parametrize('reported', [OTHER, BESIDE])
def test_a_function_of_the_chip_that_cyborg_does_not_report(here, reported):
    """It could program the card too. The driver pci has it."""
    here.find(device('fpga', reported, ['PCI', slot(reported)]))
    unknown = devices.pci(BESIDE if reported == OTHER else OTHER)
    instance, (van,) = plug(unknown)
    assert van.driver == 'pci'
    assert found()[reported].handles_free == 0
    for wanted in (devices.pci(reported), devices.wanted('FPGA')):
        assert van.uuid in str(cause(wanted))
    # The same instance gets the rest.
    os_acc.plug(instance, [devices.pci(reported)])


def test_a_selector_gets_the_user_function(card):
    _, (van,) = plug(devices.wanted('FPGA'))
    assert van.handle.address == BESIDE


# --- two drivers for one device


@pytest.mark.parametrize('first', ['cyborg', 'mdev'])
def test_a_parent_is_listed_once(here, first):
    """By the driver that gets the requests for it."""
    devices.spec({'address': '*'}, {'address': devices.GPU, 'mdev_types': '*'})
    os_acc.CONF.set_override('drivers', [first], 'os_acc')
    listed = [d for d in os_acc.get_devices() if d.address == devices.GPU]
    assert [each.driver for each in listed] == [first]
    with cyborg_host.creating(here.kernel, devices.GPU):
        _, (van,) = plug(gpu())
    assert van.driver == first
    (listed,) = [d for d in os_acc.get_devices() if d.address == devices.GPU]
    assert listed.handles_total == 2
    assert listed.handles_free == 1


def test_handles_are_listed_once(here):
    """Cyborg's driver reports one VF of a PF, and pci reports the other."""
    here.find(device('plain', VFS[0], ['PCI', slot(VFS[0])]))
    listed = [
        (each.driver, each.address, [h.handle.address for h in each.handles])
        for each in os_acc.get_devices()
        if each.address in (FPGA, *VFS)
    ]
    assert listed == [('cyborg', VFS[0], [VFS[0]]), ('pci', FPGA, [VFS[1]])]
    (pf,) = [each for each in os_acc.get_devices() if each.address == FPGA]
    assert (pf.handles_total, pf.handles_free) == (1, 1)


def test_an_unhealthy_device(here):
    journal = os_acc._get().journal
    health.mark(journal, FPGA, health_rows.CLEANING, 'it was not cleaned')
    err = cause(vf(0))
    assert isinstance(err, exception.DeviceUnhealthy)
    assert 'it was not cleaned' in str(err)
    assert found()[FPGA].health == 'unhealthy'
    assert found()[FPGA].handles_free == 0
