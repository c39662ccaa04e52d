# SPDX-License-Identifier: Apache-2.0

"""The chip that PCI functions belong to, and a card that was replaced."""

from __future__ import annotations

import json
import pathlib

import devices
import pytest
import vendor as vendor_module

import os_acc
from os_acc import exception
from os_acc import health
from os_acc.availability import functions as availability
from os_acc.availability import vf_availability
from os_acc.claims import allocated
from os_acc.journal import programs
from os_acc.kernel import chip
from os_acc.kernel import pci
from os_acc.kinds.fpga import ids as fpga_ids
from os_acc.spec import device_spec

SLOT = '0000:0a:00'
FPGA = vendor_module.FPGA
MAC = 'fpga_region/region0/dfl-fme.0/dfl_dev.3/mac_address'


def add(kernel, address, ids='10ee:5005', pci_class=0x120000, **files):
    """:param files: the names with __ for / and _ as it is"""
    return kernel.add_function(
        address,
        ids,
        pci_class,
        files={name.replace('__', '/'): text for name, text in files.items()},
    )


def of(address):
    return chip.of(pci.get(address))


def put(kernel, address, name, text):
    path = pathlib.Path(f'{kernel.pci}/devices/{address}') / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{text}\n')
    return path


# --- which functions


def test_all_functions_of_the_slot(kernel):
    add(kernel, f'{SLOT}.0', '10ee:5004')
    kernel.add_function(f'{SLOT}.1', '10ee:5005', 0x120000, 'xocl', totalvfs=2)
    kernel.write(f'{kernel.pci}/devices/{SLOT}.1/sriov_numvfs', '2')
    add(kernel, f'{SLOT}.7', '8086:1234')  # another vendor's
    add(kernel, '0000:0b:00.0')
    expected = tuple(f'{SLOT}.{number}' for number in range(4))
    for number in range(4):
        found = of(f'{SLOT}.{number}')
        assert found.address == f'{SLOT}.0'
        assert found.parents == expected[:2]
        assert found.functions == expected
        assert found.ids == '10ee:5004'
    assert of('0000:0b:00.0').functions == ('0000:0b:00.0',)
    assert of(f'{SLOT}.7').parents == (f'{SLOT}.7',)


def test_one_serial_number_in_two_slots_is_one_chip(kernel):
    for address, ids, serial in (
        ('0000:0a:00.0', '10ee:5004', 'XFL1A'),
        ('0000:0b:00.0', '10ee:5005', 'XFL1A'),
        ('0000:0c:00.0', '10ee:5005', 'XFL2B'),
        ('0000:0d:00.0', '1d0f:5005', 'XFL1A'),
        ('0000:0e:00.0', '10ee:5005', ''),
    ):
        add(kernel, address, ids)
        put(kernel, address, 'xmc.m.1/serial_num', serial)
    both = ('0000:0a:00.0', '0000:0b:00.0')
    assert of(both[0]).parents == of(both[1]).parents == both
    assert of(both[1]).address == both[0]
    for other in ('0000:0c:00.0', '0000:0d:00.0', '0000:0e:00.0'):
        assert of(other).parents == (other,)


@pytest.mark.parametrize(
    'text',
    ['', '00-00-00-00-00-00-00-00', '00-00-00-01-01-00-0a-35', 'ff' * 8],
)
def test_no_serial_number(kernel, text):
    """Cards that show such a number are not one chip."""
    for address in ('0000:0a:00.0', '0000:0b:00.0'):
        add(kernel, address, serial_number=text)
    found = of('0000:0a:00.0')
    assert (found.serial, len(found.parents)) == (None, 1)


def test_a_serial_number_that_only_root_can_read(kernel):
    add(kernel, FPGA)
    put(kernel, FPGA, 'serial_number/x', '')  # a directory cannot be read
    assert of(FPGA).serial is None


@pytest.mark.parametrize(
    ('name', 'source'),
    [
        ('xmc.m.12582912/serial_num', 'xrt'),
        ('hwmon_sdm.u.1/serial_num', 'xrt'),
        (MAC, 'max10'),
        (
            'fpga_region/region0/dfl-fme.0/dfl_dev.1/subdev_spi_altera.2/'
            'spi_master/spi0/spi0.0/mac_address',
            'max10',
        ),
        ('serial_number', 'pci'),
    ],
)
def test_where_serial_numbers_are(kernel, name, source):
    add(kernel, FPGA)
    put(kernel, FPGA, name, '64-4c')
    assert (of(FPGA).serial_source, of(FPGA).serial) == (source, '64-4c')


def test_what_the_drivers_show(kernel):
    add(kernel, FPGA)
    put(kernel, FPGA, 'rom.m.0/VBNV', 'xilinx_u250_gen3x16_base_4')
    put(kernel, FPGA, 'logic_uuids', 'AA11\nbb22')
    put(kernel, FPGA, 'interface_uuids', 'CC33')
    fme = 'fpga_region/region0/dfl-fme.0'
    put(kernel, FPGA, f'{fme}/bitstream_id', '0x23000110010309')
    region = f'{fme}/dfl-fme-region.1/fpga_region/region1'
    put(kernel, FPGA, f'{region}/compat_id', 'dd44')
    found = of(FPGA)
    assert found.board == 'xilinx_u250_gen3x16_base_4'
    assert found.shell_ids == ('aa11', 'bb22', '0x23000110010309')
    assert found.interface_ids == ('cc33', 'dd44')
    assert found.subsystem == '1af4:1100'


def test_what_may_be_an_fpga(kernel):
    add(kernel, FPGA)
    add(kernel, '0000:0b:00.0', pci_class=0x020000)
    add(kernel, '0000:0c:00.0', '8086:10d3')
    entry = device_spec.parse('{"programmer": "dfl"}')[0]
    for address, plainly in (
        (FPGA, True),
        ('0000:0b:00.0', False),
        ('0000:0c:00.0', False),
    ):
        function = pci.get(address)
        assert fpga_ids.is_fpga(function, None) is plainly
        assert fpga_ids.is_fpga(function, entry) is True


def test_a_host_without_fpgas_reads_no_chips(kernel, monkeypatch):
    devices.furnish(kernel)
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    os_acc.plug(devices.instance(), [devices.pci(devices.DISK)])
    monkeypatch.setattr(chip, '_parents', None)
    assert len(os_acc.get_devices()) > 5


class Holder:
    van_uuid, instance_uuid, called = 'van', 'instance', 'instance'

    def __init__(self, address, device):
        self.handle, self.device = f'pci/{address}', device


def test_vfs_of_two_pfs_may_have_different_owners(kernel):
    for address in (f'{SLOT}.0', f'{SLOT}.7'):
        kernel.add_function(address, '10ee:5005', 0x120000, 'x', totalvfs=2)
        kernel.write(f'{kernel.pci}/devices/{address}/sriov_numvfs', '2')
    one, other = pci.get(f'{SLOT}.1'), pci.get('0000:0a:01.0')
    assert (one.physfn, other.physfn) == (f'{SLOT}.0', f'{SLOT}.7')
    for address, owner, allowed in (
        (other.address, one.address, True),
        (other.address, f'{SLOT}.0', False),
        (f'{SLOT}.7', one.address, False),
        (f'{SLOT}.7', f'{SLOT}.0', False),
    ):
        holders = allocated.Holders([Holder(owner, f'{SLOT}.0')])
        function = pci.get(address)
        for instance, expected in (('another', allowed), ('instance', True)):
            taker = allocated.Taker('mine', instance)
            found = availability.in_the_way(function, holders.asked_by(taker))
            assert (not list(found)) is expected
    holders = allocated.Holders([Holder(f'{SLOT}.0', f'{SLOT}.0')])
    pf = pci.get(f'{SLOT}.7')
    found = list(vf_availability.vfs_obstacles(pf, holders=holders))
    assert 'of the same FPGA' in found[0].text
    holders = allocated.Holders([Holder(one.address, f'{SLOT}.0')])
    found = list(vf_availability.vfs_obstacles(pf, holders=holders))
    assert 'of the same FPGA' not in ''.join(each.text for each in found)


# --- another card


def a_card(**values):
    return chip.Chip(
        **{
            'address': FPGA,
            'parents': (FPGA,),
            'functions': (FPGA,),
            'ids': '10ee:5005',
            'subsystem': '10ee:000e',
            **values,
        }
    )


WITH = {'serial': 'A', 'serial_source': 'xrt'}


@pytest.mark.parametrize(
    ('before', 'now', 'other', 'after_reprogramming'),
    [
        ({}, {}, False, False),
        ({}, {'ids': '10ee:5001'}, True, False),
        ({}, {'subsystem': '10ee:0001'}, True, False),
        ({'board': 'u250'}, {'board': 'u280'}, True, False),
        # What is unknown of one of them does not count.
        ({'board': 'u250'}, {}, False, False),
        ({}, WITH, False, False),
        (WITH, {**WITH, 'serial': 'B'}, True, True),
        # The serial number decides: a new shell may have new ids.
        (WITH, {**WITH, 'ids': '10ee:5001', 'board': 'x'}, False, False),
        # Root sees another number than other users.
        (WITH, {'serial': 'B', 'serial_source': 'pci'}, False, False),
    ],
)
def test_another_card(before, now, other, after_reprogramming):
    then = a_card(**before).identity
    assert a_card(**now).is_other(then) is other
    assert a_card(**now).is_other(then, reprogrammed=True) is (
        after_reprogramming
    )


@pytest.fixture
def tool(kernel, tmp_path):
    vendor_module.furnish(kernel)
    put(kernel, FPGA, MAC, 'card 1')
    made = vendor_module.Vendor(tmp_path / 'vendor')
    made.configure('single', persistent=True)
    os_acc.initialize()
    return made


def request(tool, function='aes'):
    made = devices.wanted('FPGA')
    made.function_id, made.bitstream = function, tool.bitstream(function)
    return made


def program(tool, function='aes'):
    return os_acc.program_device(FPGA, tool.bitstream(function), function)


@pytest.mark.parametrize('persistent', [True, False])
def test_the_function_of_a_card_that_was_replaced_does_not_count(
    kernel, tool, persistent
):
    tool.configure('single', persistent=persistent)
    assert program(tool) is True
    assert program(tool) is False
    put(kernel, FPGA, MAC, 'card 2')
    (found,) = (d for d in os_acc.get_devices() if d.address == FPGA)
    assert found.function_id is None
    assert (found.chip.serial, found.chip.address) == ('card 2', FPGA)
    driver = os_acc._get().extensions.drivers['fpga']
    shown = driver.show_device(vendor_module.VFS[0])
    assert (shown['chip'], shown['serial number']) == (FPGA, 'card 2')
    assert shown['functions of the chip'] == [FPGA, *vendor_module.VFS]
    assert program(tool) is True
    assert program(tool) is False


def test_a_failure_of_a_card_that_was_replaced_does_not_count(kernel, tool):
    tool.mode('fail')
    with pytest.raises(exception.DeviceError):
        program(tool)
    tool.mode('ok')
    wanted = devices.pci(vendor_module.VFS[0])
    wanted.driver = 'pci'
    assert 'programming failed' in str(devices.refused(wanted))
    put(kernel, FPGA, MAC, 'card 2')
    # The operator tells os-acc that the address has a good card again.
    assert health.free(os_acc._get().journal, FPGA) != []
    os_acc.plug(devices.instance(), [wanted])


def test_a_van_whose_card_was_replaced_is_prepared_again(kernel, tool):
    users = [(devices.instance(), request(tool)) for _ in range(2)]
    for instance, wanted in users:
        os_acc.plug(instance, [wanted])
        os_acc.plug(instance, [wanted])
    assert len(tool.calls()) == 1
    put(kernel, FPGA, MAC, 'card 2')
    # The other one has lost its function too, and is not in the way.
    for instance, wanted in users:
        os_acc.plug(instance, [wanted])
    assert len(tool.calls()) == 2


def test_a_new_user_of_a_card_that_was_replaced_waits_for_the_old(
    kernel, tool
):
    instance, wanted = devices.instance(), request(tool)
    os_acc.plug(instance, [wanted])
    put(kernel, FPGA, MAC, 'card 2')
    assert instance.uuid in str(devices.refused(request(tool, 'sha')))


# --- records of older versions


@pytest.fixture
def user_function(kernel, tmp_path):
    """The function .1 is programmed; the chip's address is that of .0."""
    kernel.add_function(FPGA, '10ee:5004', 0x120000)
    kernel.add_function(f'{SLOT}.1', '10ee:5005', 0x120000)
    made = vendor_module.Vendor(tmp_path / 'vendor')
    made.configure(
        'single', address=f'{SLOT}.1', persistent=True, num_vfs=None
    )
    spec = json.loads(os_acc.CONF.os_acc.device_spec[0])
    del spec['num_vfs']
    devices.spec(spec, {'address': FPGA})
    os_acc.initialize()
    return made


def older(state, function='aes', digest=None):
    os_acc._get().journal.save_program(
        programs.Program(
            f'{SLOT}.1', '', function, digest, state, 'boot', 'no board'
        )
    )


def records():
    return [
        (each.device, each.state, each.function_id)
        for each in os_acc._get().journal.programs()
    ]


def test_a_record_of_an_older_version_counts(user_function):
    older('programmed')
    (found,) = (d for d in os_acc.get_devices() if d.driver == 'fpga')
    assert (found.address, found.function_id) == (f'{SLOT}.1', 'aes')
    os_acc.plug(devices.instance(), [request(user_function)])
    assert user_function.calls() == []


@pytest.mark.parametrize('state', ['programming', 'error'])
def test_a_broken_record_of_an_older_version_counts(user_function, state):
    older(state)
    wanted = devices.pci(FPGA)
    assert 'failed or has not ended' in str(devices.refused(wanted))
    wanted = devices.pci(f'{SLOT}.1')
    assert isinstance(devices.refused(wanted), exception.DeviceError)


@pytest.mark.parametrize('state', ['programmed', 'error'])
def test_a_record_of_an_older_version_is_replaced(user_function, state):
    older(state, 'sha')
    address = f'{SLOT}.1'
    path = user_function.bitstream('aes')
    assert os_acc.program_device(address, path, 'aes') is True
    assert records() == [(FPGA, 'programmed', 'aes')]
