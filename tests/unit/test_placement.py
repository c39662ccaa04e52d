# SPDX-License-Identifier: Apache-2.0

"""The inventories of devices, and the requests of flavors."""

from __future__ import annotations

import uuid

import pytest

from os_acc import exception
from os_acc import objects
from os_acc import reserved
from os_acc.placement import choice
from os_acc.placement import flavor
from os_acc.placement import functions
from os_acc.placement import inventory

INSTANCE = 'a0000000-0000-4000-8000-000000000001'
HELD = str(uuid.UUID(int=7))


def handle(number, state='free', holder=None, reason=None, region=None):
    return objects.DeviceHandleInfo(
        handle=objects.PCIHandle(address=f'0000:3b:02.{number}'),
        state=state,
        holder=holder,
        reason=reason,
        region=region,
    )


def mdev(number, state='free', holder=None):
    return objects.DeviceHandleInfo(
        handle=objects.MdevHandle(
            uuid=uuid.UUID(int=number), parent='mtty', type='mtty-1'
        ),
        state=state,
        holder=holder,
    )


def kind(name, capacity):
    return objects.DeviceMdevTypeInfo(
        name=name, label=name, capacity=capacity, available=capacity
    )


def device(
    resource_class='CUSTOM_FPGA', handles=(), types=(), traits=(), **values
):
    made = objects.Device(
        address=values.pop('address', '0000:3b:00.0'),
        driver='any',
        resource_class=resource_class,
        traits=list(traits),
        handles=list(handles),
        mdev_types=list(types),
        **values,
    )
    made.handles_total, made.handles_free = made.counted()
    return made


def totals(devices, allocated=()):
    return {
        place: {
            name: (each.total, each.reserved)
            for name, each in found.inventories.items()
        }
        for place, found in inventory.providers(devices, allocated).items()
    }


def test_each_device_is_a_provider():
    devices = [
        device(handles=[handle(0), handle(1)], traits=['CUSTOM_A']),
        device('CUSTOM_DSA', handles=[handle(3)], address='0000:3d:00.0'),
    ]
    assert totals(devices) == {
        '0000:3b:00.0': {'CUSTOM_FPGA': (2, 0)},
        '0000:3d:00.0': {'CUSTOM_DSA': (1, 0)},
    }
    found = inventory.providers(devices)
    assert found['0000:3b:00.0'].traits == {'CUSTOM_A'}


def test_entries_for_one_device_make_one_provider():
    devices = [
        device(handles=[handle(0)], traits=['CUSTOM_A']),
        device(handles=[handle(1)], traits=['CUSTOM_B']),
        device('CUSTOM_OTHER', handles=[handle(2)]),
    ]
    assert totals(devices) == {
        '0000:3b:00.0': {'CUSTOM_FPGA': (2, 0), 'CUSTOM_OTHER': (1, 0)}
    }
    (found,) = inventory.providers(devices).values()
    assert found.traits == {'CUSTOM_A', 'CUSTOM_B'}


def test_each_region_is_a_provider_with_its_function():
    made = device(
        handles=[
            handle(0, region='0'),
            handle(1, region='1'),
            handle(2, region='1'),
        ],
        programming='dynamic',
        functions={'0': 'aes', '1': None},
    )
    assert totals([made]) == {
        '0000:3b:00.0_0': {'CUSTOM_FPGA': (1, 0)},
        '0000:3b:00.0_1': {'CUSTOM_FPGA': (2, 0)},
    }
    found = inventory.providers([made])
    assert found['0000:3b:00.0_0'].traits == {functions.trait('aes')}
    assert found['0000:3b:00.0_1'].traits == {functions.EMPTY}
    # A region is named also if it is the only one.
    made.handles = made.handles[:1]
    assert list(totals([made])) == ['0000:3b:00.0_0']


@pytest.mark.parametrize(
    ('function', 'trait'),
    [('aes', functions.trait('aes')), (None, functions.EMPTY)],
)
def test_a_device_that_is_programmed_as_a_whole(function, trait):
    made = device(
        handles=[handle(0, region='')],
        programming='single',
        function_id=function,
        functions={'': function},
    )
    (found,) = inventory.providers([made]).values()
    assert found.traits == {trait}
    assert functions.is_own(trait)


def test_handles_that_no_guest_can_get_are_not_counted():
    made = device(
        handles=[
            handle(0),
            handle(1, 'host', reason='interface eth4 is up'),
            handle(3, 'absent', reason='it has no IOMMU group'),
            handle(4, 'reserved', reason='it was not cleaned'),
        ]
    )
    assert totals([made]) == {'0000:3b:00.0': {'CUSTOM_FPGA': (2, 1)}}


def test_what_has_no_allocation_is_reserved():
    made = device(
        handles=[
            handle(0),
            handle(1, 'used', HELD),
            # The command os-acc has plugged it, or an ARQ of Cyborg.
            handle(2, 'used', str(uuid.UUID(int=8))),
            # It cannot be separated from another one.
            handle(3, 'used'),
        ]
    )
    assert totals([made], {HELD}) == {'0000:3b:00.0': {'CUSTOM_FPGA': (4, 2)}}


def test_a_device_that_has_failed_is_given_to_nobody():
    made = device(
        handles=[handle(0), handle(1, 'used', HELD), handle(2, 'reserved')],
        health='unhealthy',
    )
    assert totals([made], {HELD}) == {'0000:3b:00.0': {'CUSTOM_FPGA': (3, 2)}}


def test_a_device_with_nothing_to_count_has_no_inventory():
    made = device(handles=[handle(0, 'host', reason='it is mounted')])
    assert totals([made]) == {'0000:3b:00.0': {}}


@pytest.mark.parametrize(
    'name', ['', 'FPGA', 'VGPU', 'custom_fpga', 'CUSTOM_' + 'X' * 249]
)
def test_other_resource_classes_are_left_out(name):
    assert totals([device(name, handles=[handle(0)])]) == {}


@pytest.mark.parametrize(
    ('inside', 'held', 'total'),
    [(None, None, None), ('aes', None, 1), (None, HELD, 1)],
)
def test_what_is_programmed_ahead_of_time_only(inside, held, total):
    """Without a function, it has no inventory, unless somebody has it."""
    made = device(
        programming='dynamic',
        functions={'1': inside, '2': None},
        handles=[
            handle(1, 'used' if held else 'free', held, region='1'),
            handle(2, region='2'),
        ],
    )
    kept = [reserved.Reserved('0000:3b:00.0', '1', ahead_of_time=True)]
    found = inventory.providers([made], (), kept)
    one, two = (found[f'0000:3b:00.0_{n}'] for n in (1, 2))
    assert [each.total for each in one.inventories.values()] == (
        [] if total is None else [total]
    )
    assert [each.total for each in two.inventories.values()] == [1]
    assert functions.EMPTY in two.traits


@pytest.mark.parametrize(('health', 'reserved'), [('ok', 0), ('reboot', 2)])
def test_a_device_of_version_1_0_has_numbers_only(health, reserved):
    made = device(health=health)
    made.handles_total, made.handles_free = 5, 2
    assert totals([made]) == {'0000:3b:00.0': {'CUSTOM_FPGA': (5, reserved)}}


def test_mediated_devices_of_others_are_not_counted():
    made = device(
        'CUSTOM_MTTY',
        handles=[mdev(1, 'used', holder=HELD), mdev(2)],
        types=[kind('mtty-1', 4)],
        traits=['CUSTOM_MDEV_MTTY_1'],
    )
    assert totals([made], {HELD}) == {'0000:3b:00.0': {'CUSTOM_MTTY': (5, 0)}}
    assert totals([made]) == {'0000:3b:00.0': {'CUSTOM_MTTY': (5, 1)}}
    made.health = 'unhealthy'
    assert totals([made], {HELD}) == {'0000:3b:00.0': {'CUSTOM_MTTY': (5, 4)}}


def test_mdev_types_that_share_a_class_count_as_the_smallest():
    made = device(
        'CUSTOM_VGPU',
        types=[kind('a-1', 8), kind('a-4', 2)],
        traits=['CUSTOM_MDEV_A_1', 'CUSTOM_MDEV_A_4'],
    )
    assert totals([made]) == {'0000:3b:00.0': {'CUSTOM_VGPU': (2, 0)}}


def test_the_class_of_one_mdev_type_counts_this_type_only():
    made = device(
        'CUSTOM_MDEV_A_1',
        types=[kind('a-1', 8), kind('a-4', 2)],
        traits=['CUSTOM_X', 'CUSTOM_MDEV_A_1', 'CUSTOM_MDEV_A_4'],
    )
    assert totals([made]) == {'0000:3b:00.0': {'CUSTOM_MDEV_A_1': (8, 0)}}
    (found,) = inventory.providers([made]).values()
    assert found.traits == {'CUSTOM_X', 'CUSTOM_MDEV_A_1'}


def requests(
    extra_specs, allocated, devices, image_traits=(), vans=(), taken=()
):
    return choice.requests(
        INSTANCE,
        flavor.groups(extra_specs, image_traits),
        allocated,
        inventory.providers(devices),
        {van.uuid: van for van in vans},
        taken,
    )


def asked(made):
    return [(each.resource_class, each.traits) for each in made]


def handles(made):
    return [each.handle.identity for each in made]


ONE, TWO = '0000:3b:00.0', '0000:3d:00.0'
FPGA = device(
    handles=[handle(0), handle(1)],
    traits=['CUSTOM_A', 'CUSTOM_B', 'HW_NIC_SRIOV'],
    programming='single',
)
DSA = device(
    'CUSTOM_DSA',
    handles=[handle(2)],
    traits=['CUSTOM_A', 'CUSTOM_D'],
    address=TWO,
)


def test_a_request_for_each_unit_names_a_handle_of_the_device():
    specs = {
        'resources:CUSTOM_FPGA': '2',
        'resources:CUSTOM_DSA': '1',
        'resources:VGPU': '1',
        'resources:CUSTOM_LICENCE': '1',
        'hw:cpu_policy': 'dedicated',
        'trait:HW_CPU_X86_AVX2': 'required',
    }
    allocated = {ONE: {'CUSTOM_FPGA': 2}, TWO: {'CUSTOM_DSA': 1}}
    made = requests(specs, allocated, [FPGA, DSA])
    assert asked(made) == [
        ('CUSTOM_DSA', []),
        ('CUSTOM_FPGA', []),
        ('CUSTOM_FPGA', []),
    ]
    assert handles(made) == [
        f'pci/0000:3b:02.{number}' for number in (2, 0, 1)
    ]
    assert {each.driver for each in made} == {'any'}
    assert {each.instance_uuid for each in made} == {INSTANCE}
    again = requests(specs, allocated, [FPGA, DSA])
    assert [each.uuid for each in again] == [each.uuid for each in made]
    assert [each.uuid for each in made] == flavor.request_uuids(INSTANCE, 3)
    assert all(flavor.is_of_flavor(each.uuid) for each in made)


def two_cards(number):
    return [
        device(
            handles=[handle(each), handle(each + 4)],
            address=f'0000:4{each}:00.0',
            traits=[f'CUSTOM_{each}'],
        )
        for each in range(number)
    ]


def test_the_allocated_device_is_taken_and_no_other():
    for number in range(3):
        made = requests(
            {'resources:CUSTOM_FPGA': '1'},
            {f'0000:4{number}:00.0': {'CUSTOM_FPGA': 1}},
            two_cards(3),
        )
        assert handles(made) == [f'pci/0000:3b:02.{number}']


def test_what_others_have_chosen_is_left_to_them():
    allocated = {'0000:40:00.0': {'CUSTOM_FPGA': 1}}
    specs = {'resources:CUSTOM_FPGA': '1'}
    taken = ['pci/0000:3b:02.0']
    made = requests(specs, allocated, two_cards(1), taken=taken)
    assert handles(made) == ['pci/0000:3b:02.4']
    taken.append('pci/0000:3b:02.4')
    with pytest.raises(exception.DeviceNotFound, match='no free handle'):
        requests(specs, allocated, two_cards(1), taken=taken)


def test_no_free_handle_names_why():
    made = device(handles=[handle(0, 'host', reason='eth4 is up')])
    with pytest.raises(exception.DeviceNotFound, match='eth4 is up'):
        requests(
            {'resources:CUSTOM_FPGA': '1'}, {ONE: {'CUSTOM_FPGA': 1}}, [made]
        )


def test_what_is_plugged_stays():
    specs = {'resources1:CUSTOM_FPGA': '1', 'resources2:CUSTOM_FPGA': '1'}
    allocated = {
        f'0000:4{number}:00.0': {'CUSTOM_FPGA': 1} for number in range(2)
    }
    first, _ = flavor.request_uuids(INSTANCE, 2)
    van = objects.VAN.partial(
        uuid=first,
        device='0000:41:00.0',
        handle=objects.PCIHandle(address='0000:3b:02.1'),
    )
    made = requests(specs, allocated, two_cards(2), vans=[van])
    assert handles(made) == ['pci/0000:3b:02.1', 'pci/0000:3b:02.0']


def test_each_group_gets_the_device_with_its_traits():
    allocated = {
        f'0000:4{number}:00.0': {'CUSTOM_FPGA': 1} for number in range(2)
    }
    for first, second in ((0, 1), (1, 0)):
        made = requests(
            {
                'resources1:CUSTOM_FPGA': '1',
                f'trait1:CUSTOM_{first}': 'required',
                'resources2:CUSTOM_FPGA': '1',
                f'trait2:CUSTOM_{second}': 'required',
            },
            allocated,
            two_cards(2),
        )
        assert handles(made) == [
            f'pci/0000:3b:02.{first}',
            f'pci/0000:3b:02.{second}',
        ]


def test_groups_share_a_device():
    made = requests(
        {
            'resources1:CUSTOM_FPGA': '1',
            'resources2:CUSTOM_FPGA': '2',
            'resources3:CUSTOM_FPGA': '1',
        },
        {
            '0000:40:00.0': {'CUSTOM_FPGA': 2},
            '0000:41:00.0': {'CUSTOM_FPGA': 2},
        },
        two_cards(2),
    )
    assert handles(made) == [f'pci/0000:3b:02.{n}' for n in (0, 1, 5, 4)]


def test_an_mdev_of_the_device_and_of_the_type():
    made = device(
        'CUSTOM_VGPU',
        types=[kind('a-1', 8), kind('a-4', 2)],
        traits=['CUSTOM_MDEV_A_1', 'CUSTOM_MDEV_A_4'],
    )
    (request,) = requests(
        {
            'resources:CUSTOM_VGPU': '1',
            'trait:CUSTOM_MDEV_A_4': 'required',
        },
        {ONE: {'CUSTOM_VGPU': 1}},
        [made],
    )
    assert request.handle.uuid == request.uuid
    assert (request.handle.parent, request.handle.type) == (ONE, 'a-4')


def test_a_driver_that_lists_no_handles_chooses_itself():
    made = device()
    made.handles_total = made.handles_free = 5
    (request,) = requests(
        {'resources:CUSTOM_FPGA': '1'}, {ONE: {'CUSTOM_FPGA': 1}}, [made]
    )
    assert request.handle is None
    assert request.driver == 'any'


def test_a_trait_goes_to_the_devices_that_have_it():
    made = requests(
        {
            'resources:CUSTOM_FPGA': '1',
            'resources:CUSTOM_DSA': '1',
            'trait:CUSTOM_A': 'required',
            'trait:CUSTOM_B': 'required',
            'trait:CUSTOM_D': 'forbidden',
            # of the host, or of a deployer
            'trait:CUSTOM_RACK_7': 'required',
        },
        {ONE: {'CUSTOM_FPGA': 1}, TWO: {'CUSTOM_DSA': 1}},
        [FPGA, DSA],
        image_traits=['HW_NIC_SRIOV'],
    )
    assert asked(made) == [
        ('CUSTOM_DSA', ['CUSTOM_A']),
        ('CUSTOM_FPGA', ['CUSTOM_A', 'CUSTOM_B', 'HW_NIC_SRIOV']),
    ]


def test_groups_have_their_own_traits_and_functions():
    made = requests(
        {
            'resources1:CUSTOM_FPGA': '1',
            'trait1:CUSTOM_A': 'required',
            'os_acc1:function_id': 'aes',
            'os_acc1:bitstream': 'https://site/aes.bin',
            'resources_2:CUSTOM_FPGA': '1',
            'trait_2:CUSTOM_B': 'required',
            'resources_2:CUSTOM_DSA': '1',
            'os_acc_2:function_id': 'gzip',
            'group_policy': 'none',
        },
        {ONE: {'CUSTOM_FPGA': 2}, TWO: {'CUSTOM_DSA': 1}},
        [FPGA, DSA],
    )
    assert [
        (each.resource_class, each.traits, each.function_id, each.bitstream)
        for each in made
    ] == [
        ('CUSTOM_FPGA', ['CUSTOM_A'], 'aes', 'https://site/aes.bin'),
        ('CUSTOM_DSA', [], None, None),
        ('CUSTOM_FPGA', ['CUSTOM_B'], 'gzip', None),
    ]


@pytest.mark.parametrize('amount', ['0', 'many', ''])
def test_what_is_no_amount_is_not_requested(amount):
    assert (
        flavor.amounts(flavor.groups({'resources:CUSTOM_FPGA': amount})) == {}
    )


def test_an_allocation_of_another_amount_is_refused():
    with pytest.raises(exception.InvalidRequest) as caught:
        requests(
            {'resources1:CUSTOM_FPGA': '1', 'resources2:CUSTOM_FPGA': '1'},
            {ONE: {'CUSTOM_FPGA': 1}},
            [FPGA],
        )
    assert 'resources:CUSTOM_FPGA of its flavor is 2' in str(caught.value)
    assert INSTANCE in str(caught.value)


def test_an_allocation_that_no_group_fits_is_refused():
    with pytest.raises(exception.InvalidRequest, match='amounts that fit'):
        requests(
            {'resources:CUSTOM_FPGA': '2'},
            {
                '0000:40:00.0': {'CUSTOM_FPGA': 1},
                '0000:41:00.0': {'CUSTOM_FPGA': 1},
            },
            two_cards(2),
        )


def test_an_allocated_device_that_is_gone():
    with pytest.raises(exception.DeviceNotFound, match=TWO):
        requests(
            {'resources:CUSTOM_DSA': '1'}, {TWO: {'CUSTOM_DSA': 1}}, [FPGA]
        )


def test_a_function_for_nothing_that_can_be_programmed():
    specs = {'resources1:CUSTOM_DSA': '1', 'os_acc1:function_id': 'aes'}
    with pytest.raises(exception.InvalidRequest, match='os_acc1:function_id'):
        requests(specs, {TWO: {'CUSTOM_DSA': 1}}, [DSA])
    specs = {
        'resources1:CUSTOM_FPGA': '1',
        'os_acc:bitstream': 'https://me:secret@site/aes.bin',
    }
    with pytest.raises(exception.InvalidRequest) as caught:
        requests(specs, {ONE: {'CUSTOM_FPGA': 1}}, [FPGA])
    assert 'secret' not in str(caught.value)


def test_an_unknown_key_is_refused():
    with pytest.raises(exception.InvalidRequest, match='os_acc:function_id'):
        flavor.groups({'os_acc:function': 'aes'})


def test_the_way_of_a_flavor():
    assert flavor.way({}) is None
    assert flavor.way({'os_acc:migration': 'cold'}) == 'cold'
    # It is no wish for a device.
    (group,) = flavor.groups({'os_acc:migration': 'cold'})
    assert group == flavor.Group('')
    for read in (flavor.way, flavor.groups):
        with pytest.raises(exception.InvalidRequest, match='live or replug'):
            read({'os_acc:migration': 'warm'})
    with pytest.raises(exception.InvalidRequest, match='os_acc1:migration'):
        flavor.groups({'os_acc1:migration': 'cold'})
