# SPDX-License-Identifier: Apache-2.0

"""The inventories of devices, and the requests of flavors."""

from __future__ import annotations

import uuid

import pytest

from os_acc import exception
from os_acc import objects
from os_acc.placement import flavor
from os_acc.placement import inventory
from os_acc.placement import provider_config

INSTANCE = 'a0000000-0000-4000-8000-000000000001'
NOTHING = provider_config.Published()


def handle(number, state='free', holder=None, reason=None):
    return objects.DeviceHandleInfo(
        handle=objects.PCIHandle(address=f'0000:3b:02.{number}'),
        state=state,
        holder=holder,
        reason=reason,
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


def totals(offer):
    return {
        name: (each.total, each.reserved)
        for name, each in offer.inventories.items()
    }


def test_the_handles_of_all_devices_of_a_class_are_added():
    offer = inventory.offer(
        [
            device(handles=[handle(0), handle(1)], traits=['CUSTOM_A']),
            device(
                handles=[handle(2, 'used')],
                traits=['CUSTOM_B'],
                address='0000:3c:00.0',
            ),
            device('CUSTOM_DSA', handles=[handle(3)], address='0000:3d:00.0'),
        ]
    )
    assert totals(offer) == {'CUSTOM_FPGA': (3, 0), 'CUSTOM_DSA': (1, 0)}
    assert offer.traits == {'CUSTOM_A', 'CUSTOM_B'}
    assert offer.notes == []


def test_handles_that_no_guest_can_get_are_not_counted():
    offer = inventory.offer(
        [
            device(
                handles=[
                    handle(0),
                    handle(1, 'host', reason='interface eth4 is up'),
                    handle(2, 'host', reason='interface eth4 is up'),
                    handle(3, 'absent', reason='it has no IOMMU group'),
                    handle(4, 'reserved', reason='it was not cleaned'),
                ]
            )
        ]
    )
    # An operator frees a reserved handle, maybe before nova-compute starts
    # again.
    assert totals(offer) == {'CUSTOM_FPGA': (2, 1)}
    where = '0000:3b:00.0 (CUSTOM_FPGA): '
    assert offer.notes == [
        f'{where}1 of its handles is not counted: it has no IOMMU group',
        f'{where}2 of its handles are not counted: interface eth4 is up',
    ]


def test_a_device_without_a_usable_handle_is_left_out():
    offer = inventory.offer(
        [device(handles=[handle(0, 'host', reason='it is mounted')])]
    )
    assert offer.inventories == {}
    assert offer.notes[-1].endswith(
        'it is left out: it has no handle that a guest could get'
    )


@pytest.mark.parametrize(
    'name', ['', 'FPGA', 'VGPU', 'custom_fpga', 'CUSTOM_' + 'X' * 249]
)
def test_other_resource_classes_are_left_out(name):
    offer = inventory.offer([device(name, handles=[handle(0)])])
    assert offer.inventories == {}
    (note,) = offer.notes
    assert note.startswith('0000:3b:00.0 (')
    assert 'begin with CUSTOM_' in note
    assert 'Set resource_class' in note


def test_other_traits_are_left_out():
    offer = inventory.offer(
        [device(handles=[handle(0)], traits=['CUSTOM_A', 'HW_NIC_SRIOV'])]
    )
    assert offer.traits == {'CUSTOM_A'}
    (note,) = offer.notes
    assert 'HW_NIC_SRIOV' in note


def test_a_device_of_version_1_0_has_a_number_only():
    made = device()
    made.handles_total, made.handles_free = 5, 2
    assert totals(inventory.offer([made])) == {'CUSTOM_FPGA': (5, 0)}


def test_mediated_devices_of_others_are_not_counted():
    offer = inventory.offer(
        [
            device(
                'CUSTOM_MTTY',
                handles=[
                    mdev(1, 'used', holder=str(uuid.uuid4())),
                    mdev(2),
                ],
                types=[kind('mtty-1', 4)],
                traits=['CUSTOM_MDEV_MTTY_1'],
            )
        ]
    )
    assert totals(offer) == {'CUSTOM_MTTY': (5, 0)}
    assert offer.traits == {'CUSTOM_MDEV_MTTY_1'}


def test_mdev_types_that_share_a_class_count_as_the_smallest():
    offer = inventory.offer(
        [
            device(
                'CUSTOM_VGPU',
                types=[kind('a-1', 8), kind('a-4', 2)],
                traits=['CUSTOM_MDEV_A_1', 'CUSTOM_MDEV_A_4'],
            )
        ]
    )
    assert totals(offer) == {'CUSTOM_VGPU': (2, 0)}
    assert offer.traits == {'CUSTOM_MDEV_A_1', 'CUSTOM_MDEV_A_4'}
    (note,) = offer.notes
    assert 'a-1, a-4 share its capacity' in note


def test_the_class_of_one_mdev_type_counts_this_type_only():
    offer = inventory.offer(
        [
            device(
                'CUSTOM_MDEV_A_1',
                types=[kind('a-1', 8), kind('a-4', 2)],
                traits=['CUSTOM_X', 'CUSTOM_MDEV_A_1', 'CUSTOM_MDEV_A_4'],
            )
        ]
    )
    assert totals(offer) == {'CUSTOM_MDEV_A_1': (8, 0)}
    assert offer.traits == {'CUSTOM_X', 'CUSTOM_MDEV_A_1'}
    (note,) = offer.notes
    assert 'a-4' in note


def test_a_class_that_no_driver_takes_is_left_out():
    offer = inventory.offer(
        [device(handles=[handle(0)])], lambda name: f'nobody takes {name}'
    )
    assert offer.inventories == {}
    (note,) = offer.notes
    assert 'nobody takes CUSTOM_FPGA' in note


def test_only_some_classes():
    devices = [
        device(handles=[handle(0)]),
        device('FPGA', handles=[handle(1)], address='0000:3c:00.0'),
    ]
    offer = inventory.offer(devices, only=['CUSTOM_FPGA', 'CUSTOM_GONE'])
    assert totals(offer) == {'CUSTOM_FPGA': (1, 0)}
    assert offer.notes == [
        'no device of this host has the resource class CUSTOM_GONE, or it is '
        'left out'
    ]


def requests(
    extra_specs, allocated, devices, published=NOTHING, image_traits=()
):
    return flavor.requests(
        INSTANCE,
        flavor.groups(extra_specs, image_traits),
        allocated,
        devices,
        published,
    )


def asked(made):
    return [(each.resource_class, each.traits) for each in made]


FPGA = device(
    handles=[handle(0), handle(1)],
    traits=['CUSTOM_A', 'CUSTOM_B', 'HW_NIC_SRIOV'],
    programming='single',
)
DSA = device(
    'CUSTOM_DSA',
    handles=[handle(2)],
    traits=['CUSTOM_A', 'CUSTOM_D'],
    address='0000:3d:00.0',
)


def test_a_request_for_each_unit():
    specs = {
        'resources:CUSTOM_FPGA': '2',
        'resources:CUSTOM_DSA': '1',
        'resources:VGPU': '1',
        'resources:CUSTOM_LICENCE': '1',
        'hw:cpu_policy': 'dedicated',
        'trait:HW_CPU_X86_AVX2': 'required',
    }
    allocated = {'CUSTOM_FPGA': 2, 'CUSTOM_DSA': 1, 'CUSTOM_LICENCE': 1}
    made = requests(specs, allocated, [FPGA, DSA])
    assert asked(made) == [
        ('CUSTOM_DSA', []),
        ('CUSTOM_FPGA', []),
        ('CUSTOM_FPGA', []),
    ]
    assert {each.instance_uuid for each in made} == {INSTANCE}
    again = requests(specs, allocated, [FPGA, DSA])
    assert [each.uuid for each in again] == [each.uuid for each in made]
    assert len({each.uuid for each in made}) == 3
    assert made[0].uuid == str(
        uuid.uuid5(uuid.UUID(INSTANCE), 'accelerator 0')
    )


def test_a_trait_goes_to_the_classes_that_have_it():
    made = requests(
        {
            'resources:CUSTOM_FPGA': '1',
            'resources:CUSTOM_DSA': '1',
            'trait:CUSTOM_A': 'required',
            'trait:CUSTOM_B': 'required',
            'trait:CUSTOM_D': 'forbidden',
            'trait:CUSTOM_RACK_7': 'required',
        },
        {'CUSTOM_FPGA': 1, 'CUSTOM_DSA': 1},
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
        {'CUSTOM_FPGA': 2, 'CUSTOM_DSA': 1},
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
    specs = {'resources:CUSTOM_FPGA': amount}
    assert requests(specs, {'CUSTOM_FPGA': 1}, [FPGA]) == []


def test_what_another_provider_has_is_not_requested():
    assert requests({'resources:CUSTOM_FPGA': '1'}, {}, [FPGA]) == []


def test_an_allocation_of_another_amount_is_refused():
    with pytest.raises(exception.InvalidRequest) as caught:
        requests(
            {'resources1:CUSTOM_FPGA': '1', 'resources2:CUSTOM_FPGA': '1'},
            {'CUSTOM_FPGA': 1},
            [FPGA],
        )
    assert 'resources:CUSTOM_FPGA of its flavor is 2' in str(caught.value)
    assert INSTANCE in str(caught.value)


def test_a_class_that_was_published_and_is_gone():
    with pytest.raises(exception.DeviceNotFound, match='CUSTOM_DSA') as caught:
        requests(
            {'resources:CUSTOM_DSA': '1'},
            {'CUSTOM_DSA': 1},
            [FPGA],
            provider_config.Published(frozenset({'CUSTOM_DSA'})),
        )
    assert 'provider-config --install' in str(caught.value)


def test_a_trait_that_was_published_and_is_gone():
    published = provider_config.Published(
        frozenset({'CUSTOM_FPGA'}), frozenset({'CUSTOM_A', 'CUSTOM_GONE'})
    )
    specs = {'resources:CUSTOM_FPGA': '1', 'trait:CUSTOM_GONE': 'required'}
    with pytest.raises(exception.DeviceNotFound, match='trait CUSTOM_GONE'):
        requests(specs, {'CUSTOM_FPGA': 1}, [FPGA], published)
    # A trait of another class says which host is wanted.
    specs = {'resources:CUSTOM_DSA': '1', 'trait:CUSTOM_B': 'required'}
    made = requests(specs, {'CUSTOM_DSA': 1}, [FPGA, DSA], published)
    assert asked(made) == [('CUSTOM_DSA', [])]


def test_a_function_for_nothing_that_can_be_programmed():
    specs = {'resources1:CUSTOM_DSA': '1', 'os_acc1:function_id': 'aes'}
    with pytest.raises(exception.InvalidRequest, match='os_acc1:function_id'):
        requests(specs, {'CUSTOM_DSA': 1}, [DSA])
    specs = {
        'resources1:CUSTOM_FPGA': '1',
        'os_acc:bitstream': 'https://me:secret@site/aes.bin',
    }
    with pytest.raises(exception.InvalidRequest) as caught:
        requests(specs, {'CUSTOM_FPGA': 1}, [FPGA])
    assert 'secret' not in str(caught.value)


def test_an_unknown_key_is_refused():
    with pytest.raises(exception.InvalidRequest, match='os_acc:function_id'):
        flavor.groups({'os_acc:function': 'aes'})
