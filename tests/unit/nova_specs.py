# SPDX-License-Identifier: Apache-2.0

"""What Nova's own unit tests and documentation say of [pci] device_spec.

These are the cases of Nova's nova/tests/unit/pci/test_devspec.py,
nova/tests/unit/pci/test_whitelist.py and
nova/tests/unit/compute/test_pci_placement_translator.py, and the examples of
nova/conf/pci.py and doc/source/admin/pci-passthrough.rst, as data. Each names
the test of Nova that it comes from.

Not here, because os-acc has nothing to compare with: tests of Nova's classes
and objects as such, of alias and of Placement's resource providers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

NET = {'physical_network': 'hr_net'}


@dataclasses.dataclass(frozen=True)
class Device:
    """A PCI function of a host.

    :ivar parent: the address of its PF, if it is a VF
    :ivar vfs: how many VFs it can have
    :ivar net: its network interface
    """

    address: str = '0000:0a:00.5'
    ids: str = '8086:5057'
    parent: str | None = '0000:0a:00.0'
    vfs: int = 0
    net: str | None = None


DEV = Device()
CISCO = Device(ids='1137:0071')
PF = Device(address='0000:0a:00.0', parent=None, vfs=4)
PCI = Device(address='0000:0a:00.0', parent=None)
WHITELISTED = Device('0000:00:0a.1', '8086:0001', '0000:00:0a.0')
# The PF of DEV: Nova's tests say so by a mock.
PF_OF_DEV = '0000:0a:00.0'


def regexes(
    domain: str = '.*', bus: str = '.*', slot: str = '.*', function: str = '.*'
) -> dict[str, Any]:
    return {
        'address': {
            'domain': domain,
            'bus': bus,
            'slot': slot,
            'function': function,
        }
    }


def _without(address: dict[str, Any], field: str) -> dict[str, Any]:
    fields = dict(address['address'])
    del fields[field]
    return {'address': fields}


#: (Nova's test, spec, device, whether the spec names the device)
MATCHES: list[tuple[str, dict[str, Any], Device, bool]] = [
    # PhysicalPciAddressTestCase
    ('physical match', {'address': '0000:0a:00.5'}, DEV, True),
    ('physical false_match', {'address': '0010:0a:00.5'}, DEV, False),
    ('physical false_match', {'address': '0000:0b:00.5'}, DEV, False),
    ('physical false_match', {'address': '0000:0a:01.5'}, DEV, False),
    ('physical false_match', {'address': '0000:0a:00.4'}, DEV, False),
    # PciAddressGlobSpecTestCase
    ('glob match', {'address': '*:0a:00.5'}, DEV, True),
    ('glob match', {'address': '0000:*:00.5'}, DEV, True),
    ('glob match', {'address': '0000:0a:*.5'}, DEV, True),
    ('glob match', {'address': '0000:0a:00.*'}, DEV, True),
    ('glob false_match', {'address': '*:0a:01.5'}, DEV, False),
    ('glob false_match', {'address': '0000:0a:*.4'}, DEV, False),
    # PciAddressRegexSpecTestCase
    ('regex match', regexes('.*', '0a', '00', '[5-6]'), DEV, True),
    ('regex match', regexes('.*', '0a', '.*', '[4-5]'), DEV, True),
    ('regex match', regexes('.*', '0a', '[0-3]', '.*'), DEV, True),
    (
        'regex false_match',
        regexes('.*', '0a', '00', '[5-6]'),
        Device('0000:0b:00.5', parent=None),
        False,
    ),
    (
        'regex false_match',
        regexes('.*', '02', '.*', '[4-5]'),
        Device('0000:0b:00.5', parent=None),
        False,
    ),
    (
        'regex false_match',
        regexes('.*', '02', '[0-3]', '.*'),
        Device('0000:0b:00.5', parent=None),
        False,
    ),
    # PciAddressTestCase
    (
        'wrong_address',
        {'vendor_id': '8086', 'address': '*: *: *.6', 'product_id': '5057'},
        DEV,
        False,
    ),
    (
        'address_is_undefined',
        {'vendor_id': '8086', 'product_id': '5057'},
        DEV,
        True,
    ),
    ('partial_address', {'address': ':0a:00.', **NET}, CISCO, True),
    (
        'partial_address_func',
        {'address': '.5', **NET},
        Device(ids='1137:0071'),
        True,
    ),
    ('address_is_pf', {'address': PF_OF_DEV, **NET}, DEV, True),
    (
        'address_pf_no_parent_addr',
        {'address': '0000:0a:00.5', **NET},
        Device(parent=None, vfs=4),
        True,
    ),
    (
        'spec_regex_match',
        {**regexes(slot='00', function='[5-6]'), **NET},
        DEV,
        True,
    ),
    (
        'spec_regex_no_match',
        {**regexes(slot='00', function='[6-7]'), **NET},
        DEV,
        False,
    ),
    (
        'spec_partial_bus_regex',
        {**_without(regexes(slot='00', function='[5-6]'), 'bus'), **NET},
        DEV,
        True,
    ),
    (
        'spec_partial_address_regex',
        {**_without(regexes(slot='00'), 'function'), **NET},
        DEV,
        True,
    ),
    (
        'address_is_pf_regex',
        {**regexes('0000', '0a', '00', '0'), **NET},
        DEV,
        True,
    ),
    # PciDevSpecTestCase
    (
        'spec_match',
        {'vendor_id': '8086', 'address': '*: *: *.5', 'product_id': '5057'},
        DEV,
        True,
    ),
    (
        'invalid_vendor_id',
        {'vendor_id': '8087', 'address': '*: *: *.5', 'product_id': '5057'},
        DEV,
        False,
    ),
    (
        'invalid_product_id',
        {'vendor_id': '8086', 'address': '*: *: *.5', 'product_id': '5056'},
        DEV,
        False,
    ),
    ('blank_devname', {'devname': '', **NET}, DEV, True),
    (
        'pci_obj',
        {'vendor_id': '8086', 'address': '*:*:*.5', 'product_id': '5057'},
        Device('0000:00:00.5', parent=None),
        True,
    ),
    # PciDevSpecRemoteManagedTestCase
    (
        'not_remote_managed_pf_match',
        {
            'vendor_id': '8086',
            'address': '0000:0a:00.0',
            'product_id': '5057',
            'remote_managed': 'false',
        },
        PF,
        True,
    ),
    (
        'no_remote_managed_specified_pf_match',
        {
            'vendor_id': '8086',
            'address': '0000:0a:00.0',
            'product_id': '5057',
        },
        PF,
        True,
    ),
    (
        'not_remote_managed_vf_match',
        {
            'vendor_id': '8086',
            'address': '0000:0a:00.0',
            'product_id': '5057',
            'remote_managed': 'false',
        },
        PCI,
        True,
    ),
    # WhitelistTestCase
    (
        'device_assignable_glob',
        {'address': '*:00:0a.*', **NET},
        WHITELISTED,
        True,
    ),
    (
        'device_not_assignable_glob',
        {'address': '*:00:0b.*', **NET},
        WHITELISTED,
        False,
    ),
    (
        'device_assignable_regex',
        {**regexes(slot='0a', function='[0-1]'), **NET},
        WHITELISTED,
        True,
    ),
    (
        'device_not_assignable_regex',
        {**regexes(slot='0a', function='[2-3]'), **NET},
        WHITELISTED,
        False,
    ),
    (
        'device_assignable',
        {'product_id': '0001', 'vendor_id': '8086'},
        WHITELISTED,
        True,
    ),
]

# Nova's tests add 1 to the largest value, and some write it in decimal
# digits, which are read as hex digits.
_OVER = {
    # Nova refuses 10000, but Intel VMD has it.
    'domain': ('100000000',),
    'bus': ('256', '100'),
    'slot': ('32', '20'),
    'function': ('8', '8'),
}


def _too_large(field: str, value: str) -> dict[str, Any]:
    fields = {
        'domain': '0000',
        'bus': '0a',
        'slot': '00',
        'function': '5',
        field: value,
    }
    return {'address': '{domain}:{bus}:{slot}.{function}'.format(**fields)}


#: (Nova's test, spec, the key that the error names, a part of its text)
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    *(
        (
            f'max_{field}',
            {**_too_large(field, value), **NET},
            'address',
            f'a {field} that is a hex number of at most',
        )
        for field, values in _OVER.items()
        for value in values
    ),
    (
        'init_invalid_address',
        {'address': '00:0000:0a:00.5'},
        'address',
        '[[[domain:]bus:]slot][.function]',
    ),
    (
        'address_too_big',
        {'address': '0000:0a:0b:00.5', **NET},
        'address',
        '[[[domain:]bus:]slot][.function]',
    ),
    (
        'address_invalid_character',
        {'address': '0000:h4.12:6', **NET},
        'address',
        "'h4' is not",
    ),
    (
        'regex init_invalid_address',
        regexes('*', '02', '01', '[0-2]'),
        'address',
        'a regular expression as domain',
    ),
    (
        'spec_invalid_regex',
        {**regexes(slot='00', function='[6[-7]'), **NET},
        'address',
        'a regular expression as function',
    ),
    (
        'spec_invalid_regex2',
        {**regexes('*', '*', '00', '[6-7]'), **NET},
        'address',
        'a regular expression as domain',
    ),
    (
        'spec_invalid_address',
        {'address': ['.*', '.*', '00', '[6-7]'], **NET},
        'address',
        '[[[domain:]bus:]slot][.function]',
    ),
    (
        'vendor_id_out_of_range',
        {'vendor_id': '80860', 'address': '*:*:*.5', 'product_id': '5057'},
        'vendor_id',
        'at most ffff',
    ),
    (
        'product_id_out_of_range',
        {'vendor_id': '8086', 'address': '*:*:*.5', 'product_id': '50570'},
        'product_id',
        'at most ffff',
    ),
    (
        'devname_and_address',
        {'devname': 'eth0', 'vendor_id': '8086', 'address': '*:*:*.5', **NET},
        'devname',
        'no devname if there is an address',
    ),
    # PciDevSpecRemoteManagedTestCase: os-acc serves none of them.
    *(
        (
            f'remote_managed {number}',
            {**spec, 'remote_managed': 'true'},
            'remote_managed',
            'os-acc does not attach VFs that a SmartNIC DPU manages',
        )
        for number, spec in enumerate(
            [
                {'devname': 'nonexdev0', **NET},
                {'vendor_id': '8086', 'address': '0000:0a:00.0'},
                {'vendor_id': '*', 'product_id': '5058'},
            ]
        )
    ),
    # WhitelistTestCase, test_device_managed_invalid_value
    *(
        (
            f'device_{tag}_invalid_value',
            {'product_id': '0001', 'vendor_id': '8086', tag: 'invalid'},
            tag,
            '1, t, true, on, y, yes, 0, f, false, off, n, no',
        )
        for tag in ('managed', 'live_migratable')
    ),
]

#: (tag, value, what Nova makes of it): test_device_tags, and
#: test_missing_config of the one-time use tests
TAGS = [
    *(
        (tag, value, expected)
        for tag in ('managed', 'live_migratable')
        for value, expected in (
            ('yes', True),
            ('true', True),
            ('1', True),
            ('no', False),
            ('false', False),
            ('0', False),
        )
    ),
    ('one_time_use', 'TrUe', True),
]

#: (traits, what Nova makes of them): test_trait_normalization
TRAITS: list[tuple[str | None, set[str]]] = [
    (None, set()),
    ('', set()),
    ('a', {'CUSTOM_A'}),
    ('a,b', {'CUSTOM_A', 'CUSTOM_B'}),
    ('HW_GPU_API_VULKAN', {'HW_GPU_API_VULKAN'}),
    ('CUSTOM_FOO', {'CUSTOM_FOO'}),
    ('custom_bar', {'CUSTOM_BAR'}),
    ('custom-bar', {'CUSTOM_CUSTOM_BAR'}),
    ('CUSTOM_a', {'CUSTOM_A'}),
    ('a@!#$b123X', {'CUSTOM_A_B123X'}),
    ('a!@b,a###b', {'CUSTOM_A_B'}),
]

#: (ids, resource_class, what Nova makes of it):
#: test_resource_class_normalization
RESOURCE_CLASSES: list[tuple[str, str | None, str]] = [
    ('1234:5678', None, 'CUSTOM_PCI_1234_5678'),
    ('1234:5678', '', 'CUSTOM_PCI_1234_5678'),
    ('1234:5678', 'PGPU', 'PGPU'),
    ('1234:5678', 'pgpu', 'PGPU'),
    ('1234:5678', 'foobar', 'CUSTOM_FOOBAR'),
    ('1234:5678', 'custom_foo', 'CUSTOM_FOO'),
    ('1234:5678', 'CUSTOM_foo', 'CUSTOM_FOO'),
    ('1234:5678', 'custom_FOO', 'CUSTOM_FOO'),
    ('1234:5678', 'CUSTOM_FOO', 'CUSTOM_FOO'),
    ('1234:5678', 'custom-foo', 'CUSTOM_CUSTOM_FOO'),
    ('1234:5678', 'a###b', 'CUSTOM_A_B'),
    ('123a:567b', '', 'CUSTOM_PCI_123A_567B'),
]

#: Texts that test_init_by_string_missing_values refuses as whole addresses.
INCOMPLETE = ['00:0000:0a:00.5', '0a:00.5', '0000:00.5']

# A host for the examples of Nova's documentation.

NIC_PF = Device('0000:3b:00.0', '15b3:101d', None, vfs=2, net='eth0')
NIC_VFS = (
    Device('0000:3b:00.1', '15b3:101e', NIC_PF.address),
    Device('0000:3b:00.2', '15b3:101e', NIC_PF.address),
)
CISCO_VICS = (
    Device('0000:0a:00.0', '1137:0071', None),
    Device('0000:0a:00.1', '1137:0071', None),
    Device('0001:0a:00.0', '1137:0043', None),
    Device('0000:0b:00.0', '1137:0071', None),
)
SLOTS = tuple(
    Device(f'{domain}:02:{slot}.{function}', '8086:1520', None)
    for domain in ('0000', '0001')
    for slot in ('01', '02', '03')
    for function in (0, 2, 7)
)
GPU = Device('0000:82:00.0', '1002:6929', None)
A16_PF = Device('0000:25:00.0', '10de:25b6', None, vfs=2)
A16_VFS = (
    Device('0000:25:00.4', '10de:25b6', A16_PF.address),
    Device('0000:25:00.5', '10de:25b6', A16_PF.address),
)
HOST = (
    NIC_PF,
    *NIC_VFS,
    *CISCO_VICS,
    *SLOTS,
    GPU,
    A16_PF,
    *A16_VFS,
    Device('0000:41:00.0', '8086:154d', None),
    Device('0000:06:00.0', '8086:10ca', None),
    Device('0000:06:01.0', '8086:10ca', None),
    Device('0000:00:01.0', '144d:a80a', None),
)


@dataclasses.dataclass(frozen=True)
class Example:
    """A spec from the documentation, and what it means in os-acc.

    :ivar names: the addresses on HOST that it names
    :ivar fields: the fields of Spec that it sets
    """

    spec: dict[str, Any]
    names: frozenset[str]
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)


def _of(*devices: Device) -> frozenset[str]:
    return frozenset(device.address for device in devices)


#: 11 of the 13 valid examples in the help of the option, in its order. The
#: other two are the first two of REFUSED_EXAMPLES.
HELP = [
    Example(
        {'devname': 'eth0', 'physical_network': 'physnet'},
        _of(NIC_PF, *NIC_VFS),
        {'devname': 'eth0', 'physical_network': 'physnet'},
    ),
    Example({'address': '*:0a:00.*'}, _of(*CISCO_VICS[:3])),
    Example(
        {'address': ':0a:00.', 'physical_network': 'physnet1'},
        _of(*CISCO_VICS[:3]),
        {'physical_network': 'physnet1'},
    ),
    Example(
        {'vendor_id': '1137', 'product_id': '0071'},
        _of(CISCO_VICS[0], CISCO_VICS[1], CISCO_VICS[3]),
        {'vendor_id': '1137', 'product_id': '0071'},
    ),
    Example(
        {
            'vendor_id': '1137',
            'product_id': '0071',
            'address': '0000:0a:00.1',
            'physical_network': 'physnet1',
        },
        _of(CISCO_VICS[1]),
        {'physical_network': 'physnet1'},
    ),
    Example(
        {
            **regexes('.*', '02', '01', '[2-7]'),
            'physical_network': 'physnet1',
        },
        frozenset(
            {'0000:02:01.2', '0000:02:01.7', '0001:02:01.2', '0001:02:01.7'}
        ),
        {'physical_network': 'physnet1'},
    ),
    Example(
        {
            **regexes('.*', '02', '0[1-2]', '.*'),
            'physical_network': 'physnet1',
        },
        frozenset(
            f'{domain}:02:{slot}.{function}'
            for domain in ('0000', '0001')
            for slot in ('01', '02')
            for function in (0, 2, 7)
        ),
        {'physical_network': 'physnet1'},
    ),
    Example(
        {
            'devname': 'eth0',
            'physical_network': 'physnet1',
            'trusted': 'true',
        },
        _of(NIC_PF, *NIC_VFS),
        {'trusted': True, 'physical_network': 'physnet1'},
    ),
    Example(
        {
            'vendor_id': '1002',
            'product_id': '6929',
            'address': '0000:82:00.0',
            'resource_class': 'PGPU',
            'traits': 'HW_GPU_API_VULKAN,my-awesome-gpu',
        },
        _of(GPU),
        {
            'resource_class': 'PGPU',
            'traits': ('HW_GPU_API_VULKAN', 'CUSTOM_MY_AWESOME_GPU'),
        },
    ),
    Example(
        {
            'vendor_id': '10de',
            'product_id': '25b6',
            'address': '0000:25:00.4',
            'managed': 'no',
        },
        _of(A16_VFS[0]),
        {'bind': 'none'},
    ),
    Example(
        {
            'vendor_id': '10de',
            'product_id': '25b6',
            'address': '0000:25:00.4',
            'resource_class': 'CUSTOM_A16_16A',
            'managed': 'no',
        },
        _of(A16_VFS[0]),
        {'bind': 'none', 'resource_class': 'CUSTOM_A16_16A'},
    ),
]

#: The two examples in the help that only Nova serves, and the two that are
#: invalid in Nova too, with the key that the error names.
REFUSED_EXAMPLES: list[tuple[dict[str, Any], str]] = [
    (
        {
            'vendor_id': 'a2d6',
            'product_id': '15b3',
            'remote_managed': 'true',
        },
        'remote_managed',
    ),
    (
        {
            'vendor_id': 'a2d6',
            'product_id': '15b3',
            'address': '0000:82:00.0',
            'physical_network': 'physnet1',
            'remote_managed': 'true',
        },
        'remote_managed',
    ),
    (
        {
            'devname': 'eth0',
            'physical_network': 'physnet',
            'address': '*:0a:00.*',
        },
        'devname',
    ),
    (
        {
            'address': '0000:82:00.0',
            'product_id': 'a2d6',
            'vendor_id': '15b3',
            'physical_network': None,
            'remote_managed': 'true',
        },
        'remote_managed',
    ),
]

#: The examples of the administrator's guide.
GUIDE = [
    Example({'address': '0000:41:00.0'}, frozenset({'0000:41:00.0'})),
    Example(
        {'vendor_id': '8086', 'product_id': '154d'},
        frozenset({'0000:41:00.0'}),
    ),
    Example(
        {
            'vendor_id': '10de',
            'product_id': '25b6',
            'address': '0000:25:00.5',
            'resource_class': 'CUSTOM_A16_8A',
            'managed': 'no',
        },
        _of(A16_VFS[1]),
        {'bind': 'none', 'resource_class': 'CUSTOM_A16_8A'},
    ),
    Example(
        {'vendor_id': '8086', 'product_id': '1520', 'live_migratable': 'yes'},
        _of(*SLOTS),
        {'live_migratable': True},
    ),
    Example(
        {
            'vendor_id': '8086',
            'product_id': '10ca',
            'address': '0000:06:',
            'physical_network': 'physnet2',
            'live_migratable': False,
        },
        frozenset({'0000:06:00.0', '0000:06:01.0'}),
        {'live_migratable': False, 'physical_network': 'physnet2'},
    ),
    Example(
        {'address': '0000:00:1.0', 'one_time_use': True},
        frozenset({'0000:00:01.0'}),
        {'one_time_use': True},
    ),
    Example(
        {'address': NIC_PF.address, 'physical_network': None},
        _of(NIC_PF, *NIC_VFS),
        {'physical_network': None},
    ),
]
