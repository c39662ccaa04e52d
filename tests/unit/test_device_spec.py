# SPDX-License-Identifier: Apache-2.0

"""The option device_spec: what it takes, and what it means."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re

import devices
from hypothesis import given
from hypothesis import strategies as st
import pytest

import os_acc
from os_acc import exception
from os_acc.kernel import pci
from os_acc.kernel import pci_scan
from os_acc.kinds.idxd import entry as spec_idxd
from os_acc.spec import address as spec_address
from os_acc.spec import device_spec
from os_acc.spec import reading as spec_reading


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    return kernel


def named(*entries) -> set[str]:
    """The functions that a device_spec names."""
    texts = [json.dumps(entry).replace('$', '$$') for entry in entries]
    os_acc.CONF.set_override('device_spec', texts, 'os_acc')
    specs = device_spec.load(os_acc.CONF)
    return {
        f.address for f in pci_scan.functions() if specs.find(f) is not None
    }


@pytest.mark.parametrize(
    ('entry', 'expected'),
    [
        ({'address': devices.GPU}, {devices.GPU}),
        ({'address': '02:00.0'}, {devices.GPU}),
        ({'address': ':02:00.0'}, {devices.GPU}),
        ({'address': '*:06:00.*'}, {devices.SHARED, devices.SHARED_NIC}),
        (
            {'address': {'bus': '06', 'function': '[1-7]'}},
            {devices.SHARED_NIC},
        ),
        ({'address': '*'}, set(devices.FUNCTIONS)),
        ({'address': {}}, set(devices.FUNCTIONS)),
        ({'address': None}, set(devices.FUNCTIONS)),
        ({'address': 'mtty'}, set()),
        ({'devname': 'eth0'}, {devices.NIC}),
        ({'devname': 'eth0', 'vendor_id': '10de'}, set()),
        ({'devname': 'eth9'}, set()),
        ({'vendor_id': '10DE'}, {devices.GPU}),
        ({'vendor_id': '0x10de', 'product_id': '1eb8'}, {devices.GPU}),
        ({'vendor_id': '10de', 'product_id': 'ffff'}, set()),
        (
            {'vendor_id': '*', 'product_id': '10d3'},
            {devices.NIC, devices.SHARED_NIC},
        ),
    ],
)
def test_what_it_names(here, entry, expected):
    assert named(entry) == expected


def test_not_set_it_names_nothing(here):
    assert named() == set()
    specs = device_spec.load(os_acc.CONF)
    assert specs.find_parent('mtty') is None
    with pytest.raises(exception.DeviceNotFound) as caught:
        specs.check(pci.get(devices.GPU))
    entry = {'vendor_id': '10de', 'product_id': '1eb8'}
    line = device_spec.line({'address': devices.GPU, **entry})
    assert line in str(caught.value)
    assert f'os-acc device allow {devices.GPU}' in str(caught.value)
    with pytest.raises(exception.DeviceNotFound) as caught:
        specs.check_parent('mtty')
    assert 'device_spec = {"address": "mtty"}' in str(caught.value)


def test_the_line_of_the_error_offers_the_device(here):
    devices.spec()
    with pytest.raises(exception.DeviceNotFound) as caught:
        device_spec.load(os_acc.CONF).check(pci.get(devices.GPU))
    text = str(caught.value).rpartition('device_spec = ')[2]
    assert named(json.loads(text)) == {devices.GPU}


@pytest.mark.parametrize('first', [True, False])
def test_a_denial_counts_before_all_others(here, first):
    entries = [{'address': '*'}, {'vendor_id': '8086', 'deny': True}]
    found = named(*(reversed(entries) if first else entries))
    assert found == {devices.GPU, devices.DISK, devices.BRIDGE, devices.SHARED}


def test_a_denied_pf_and_a_denied_vf(here):
    here.set_numvfs(devices.PF, 2)
    offered, vf = {'address': '*:01:00.*'}, devices.VFS[0]
    assert named(offered, {'address': devices.PF, 'deny': True}) == set()
    found = named(offered, {'address': vf, 'deny': True})
    assert found == {devices.PF, devices.VFS[1]}


def test_a_denied_pf_by_its_ids(here):
    """Its VFs are denied too, though they have another product id."""
    here.set_numvfs(devices.PF, 2)
    for address in devices.VFS[:2]:
        path = here.pci / 'devices' / address / 'modalias'
        path.write_text(path.read_text().replace('d00004940', 'd000037C9'))
    found = named(
        {'address': devices.PF}, {'product_id': '4940', 'deny': True}
    )
    assert found == set()


def test_a_denied_parent(here):
    devices.spec({'address': 'm*'}, {'address': 'mtty', 'deny': True})
    assert device_spec.load(os_acc.CONF).find_parent('mtty') is None


def test_what_is_held_is_not_denied(here):
    devices.spec(
        {'address': devices.GPU, 'deny': True},
        {'address': devices.GPU, 'resource_class': 'CUSTOM_A'},
    )
    function = pci.get(devices.GPU)
    specs = device_spec.load(os_acc.CONF)
    assert specs.held(function).resource_class == 'CUSTOM_A'
    devices.spec()
    bare = device_spec.load(os_acc.CONF).held(function)
    assert bare == device_spec.Spec(address=spec_address.Address(devices.GPU))


def test_mdev_types(here):
    devices.spec({'address': 'mtty', 'mdev_types': ['mtty-1']})
    specs = device_spec.load(os_acc.CONF)
    assert specs.check_mdev('mtty', 'mtty-1').address.name == 'mtty'
    with pytest.raises(exception.DeviceNotFound, match='types mtty-1'):
        specs.check_mdev('mtty', 'mtty-2')


def test_vfs_are_named_with_their_pf(here):
    here.set_numvfs(devices.PF, 2)
    expected = {devices.PF, *devices.VFS[:2]}
    assert named({'address': devices.PF, 'num_vfs': 2}) == expected
    assert named({'address': devices.VFS[0]}) == {devices.VFS[0]}


def test_the_first_that_names_it_counts(here):
    devices.spec(
        {'address': devices.GPU, 'resource_class': 'CUSTOM_A'},
        {'vendor_id': '10de', 'resource_class': 'CUSTOM_B'},
    )
    spec = device_spec.load(os_acc.CONF).check(pci.get(devices.GPU))
    assert spec.resource_class == 'CUSTOM_A'


def test_a_list_in_one_value_and_commas(here):
    text = json.dumps(
        [
            {'address': 'mtty', 'mdev_types': 'mtty-1,mtty-2'},
            {'vendor_id': '10de', 'traits': 'CUSTOM_A, HW_NIC_SRIOV'},
        ]
    )
    os_acc.CONF.set_override('device_spec', [text], 'os_acc')
    first, second = device_spec.load(os_acc.CONF).entries
    assert first.mdev_types == ('mtty-1', 'mtty-2')
    assert second.traits == ('CUSTOM_A', 'HW_NIC_SRIOV')


@pytest.mark.parametrize(
    ('entry', 'bind'),
    [
        ({'managed': 'yes'}, 'libvirt'),
        ({'managed': 'no'}, 'none'),
        ({'managed': False}, 'none'),
        ({'managed': None}, None),
        ({'managed': True}, 'libvirt'),
        ({'managed': 'yes', 'bind': 'none'}, 'none'),
        ({'bind': 'none', 'managed': 'yes'}, 'none'),
    ],
)
def test_managed_is_novas_word_for_bind(clean, entry, bind):
    devices.spec(entry)
    assert device_spec.load(os_acc.CONF).entries[0].bind == bind


@pytest.mark.parametrize(
    ('entry', 'network', 'trusted'),
    [
        ({}, None, None),
        ({'physical_network': 'physnet1'}, 'physnet1', None),
        ({'physical_network': None, 'trusted': 'true'}, None, True),
        ({'trusted': True}, None, True),
        ({'trusted': 'False'}, None, False),
    ],
)
def test_networks_as_in_nova(clean, entry, network, trusted):
    devices.spec(entry)
    (spec,) = device_spec.load(os_acc.CONF).entries
    assert (spec.physical_network, spec.trusted) == (network, trusted)


@pytest.mark.parametrize(
    ('text', 'field'),
    [
        ('{', 'JSON'),
        ('7', 'entry'),
        ('["a"]', 'entry'),
        ('{"adress": "*"}', 'key'),
        ('{"address": 7}', 'address'),
        ('{"address": " "}', 'address'),
        ('{"address": ""}', 'address'),
        ('{"address": []}', 'address'),
        ('{"address": "0.8"}', 'address'),
        ('{"address": "0000:06:00.[1-7]"}', 'address'),
        ('{"address": {"func": "0"}}', 'address'),
        ('{"address": {"bus": 2}}', 'address'),
        ('{"address": {"bus": null}}', 'address'),
        ('{"address": {"bus": "0{99999999999}"}}', 'address'),
        ('{"devname": "../eth0"}', 'devname'),
        ('{"devname": ".."}', 'devname'),
        ('{"devname": "sixteen-letters-"}', 'devname'),
        ('{"devname": 7}', 'devname'),
        ('{"devname": "eth0", "address": "*"}', 'devname'),
        ('{"vendor_id": ""}', 'vendor_id'),
        ('{"vendor_id": null}', 'vendor_id'),
        ('{"vendor_id": "10deg"}', 'vendor_id'),
        ('{"vendor_id": "110de"}', 'vendor_id'),
        ('{"product_id": 4318}', 'product_id'),
        ('{"num_vfs": null}', 'num_vfs'),
        # shlex.split(None) would read the standard input.
        ('{"program": null}', 'program'),
        ('{"num_vfs": 0}', 'num_vfs'),
        ('{"num_vfs": true}', 'num_vfs'),
        ('{"num_vfs": "many"}', 'num_vfs'),
        ('{"managed": "maybe"}', 'managed'),
        ('{"managed": 2}', 'managed'),
        ('{"remote_managed": true}', 'remote_managed'),
        ('{"remote_managed": "maybe"}', 'remote_managed'),
        ('{"trusted": "maybe"}', 'trusted'),
        ('{"one_time_use": []}', 'one_time_use'),
        ('{"physical_network": " "}', 'physical_network'),
        ('{"physical_network": 7}', 'physical_network'),
        ('{"vfio_driver": "../vfio"}', 'vfio_driver'),
        ('{"vfio_driver": null}', 'vfio_driver'),
        ('{"between_tenants": "kvm"}', 'between_tenants'),
        ('{"companions": "all"}', 'companions'),
        ('{"bind": "kvm"}', 'bind'),
        ('{"reset": "bus"}', 'reset'),
        ('{"resource_class": 7}', 'resource_class'),
        ('{"resource_class": "CUSTOM_"}', 'resource_class'),
        (f'{{"resource_class": "{"A" * 249}"}}', 'resource_class'),
        ('{"traits": 7}', 'traits'),
        ('{"traits": "CUSTOM_A,"}', 'traits'),
        ('{"traits": ["CUSTOM_"]}', 'traits'),
        ('{"mdev_types": {}}', 'mdev_types'),
        ('{"deny": "maybe"}', 'deny'),
        ('{"physical_network": 7}', 'physical_network'),
        ('{"trusted": "perhaps"}', 'trusted'),
    ],
)
def test_malformed_is_a_clear_error(clean, text, field):
    os_acc.CONF.set_override('device_spec', [text], 'os_acc')
    with pytest.raises(exception.InvalidRequest, match='device_spec') as err:
        device_spec.load(os_acc.CONF)
    assert err.value.kwargs['field'] == field


@pytest.mark.parametrize('part', ['vgpu_type', 'mdev_types'])
@pytest.mark.parametrize(
    ('key', 'value', 'why'),
    [
        ('one_time_use', True, 'can be reserved after their release'),
        ('trusted', 'yes', 'whole functions and VFs only'),
        ('physical_network', 'net1', 'whole functions and VFs only'),
        ('live_migratable', True, 'whole functions and VFs only'),
        ('managed', 'no', 'whole functions and VFs only'),
        ('bind', 'none', 'whole functions and VFs only'),
        ('vfio_driver', 'mlx5_vfio_pci', 'whole functions and VFs only'),
        ('between_tenants', 'vfio', 'whole functions and VFs only'),
        ('companions', True, 'whole functions and VFs only'),
        ('num_vfs', 2, 'whole functions and VFs only'),
        ('reset', 'required', 'whole functions and VFs only'),
        ('program', '/x {address} {file}', 'whole functions and VFs only'),
        ('check', '/x {address}', 'whole functions and VFs only'),
    ],
)
def test_a_key_that_does_not_apply_to_parts(clean, part, key, value, why):
    """It would be ignored, so it is an error."""
    devices.spec({'address': '*', part: 'x', key: value})
    with pytest.raises(exception.InvalidRequest) as err:
        device_spec.load(os_acc.CONF)
    assert err.value.kwargs['field'] == key
    for text in (f'{key} is {value!r}', f'an entry with {part}', why):
        assert text in str(err.value)


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('programming', 'dynamic'),
        ('check', '/bin/true {address}'),
        ('clear', '/bin/true {address}'),
        ('progress', r'(\d+)%'),
        ('activation', 'reenumerate'),
        ('function_file', 'x'),
        ('persistent', True),
        ('region_type', 'x'),
    ],
)
def test_a_key_that_needs_a_program(clean, key, value):
    devices.spec({'address': '*', key: value})
    with pytest.raises(exception.InvalidRequest, match='without program') as e:
        device_spec.load(os_acc.CONF)
    assert e.value.kwargs['field'] == key
    program = '/bin/true {address} {file}'
    devices.spec({'address': '*', key: value, 'program': program})
    (spec,) = device_spec.load(os_acc.CONF).entries
    assert getattr(spec, key)


def test_values_that_change_nothing_apply_everywhere(clean):
    devices.spec(
        {
            'vgpu_type': '558',
            'mdev_types': ['nvidia-558'],
            'max_instances': 2,
            'resource_class': 'VGPU',
            'traits': 'CUSTOM_A',
            'deny': False,
            'remote_managed': False,
            'managed': None,
            'trusted': False,
            'one_time_use': 'no',
            'programming': 'single',
            'persistent': False,
        }
    )
    (spec,) = device_spec.load(os_acc.CONF).entries
    assert spec.max_instances == 2


@pytest.mark.parametrize(
    ('entry', 'field', 'expected'),
    [
        ({}, 'trusted', None),
        ({'trusted': 'Yes'}, 'trusted', True),
        ({'trusted': 'false'}, 'trusted', False),
        ({}, 'physical_network', None),
        ({'physical_network': ' net1 '}, 'physical_network', 'net1'),
        ({'one_time_use': True}, 'one_time_use', True),
        ({'command_empties': 'yes'}, 'command_empties', True),
        ({}, 'vfio_driver', None),
        ({'vfio_driver': 'mlx5_vfio_pci'}, 'vfio_driver', 'mlx5_vfio_pci'),
        ({}, 'between_tenants', None),
        ({'between_tenants': 'vfio'}, 'between_tenants', 'vfio'),
        ({'between_tenants': 'host'}, 'between_tenants', 'host'),
        ({}, 'companions', False),
        ({'companions': True}, 'companions', True),
        ({'vendor_id': '0x10DE'}, 'vendor_id', '10de'),
        ({'vendor_id': ' 10d '}, 'vendor_id', '010d'),
        ({'product_id': '*'}, 'product_id', None),
        # Placement refuses the hyphen, which Nova keeps.
        (
            {'resource_class': 'CUSTOM_my-gpu'},
            'resource_class',
            'CUSTOM_MY_GPU',
        ),
        ({'traits': ['b', 'a', 'B']}, 'traits', ('CUSTOM_B', 'CUSTOM_A')),
        # Only a standard trait in upper case is one, in Nova too.
        ({'traits': 'hw_nic_sriov'}, 'traits', ('CUSTOM_HW_NIC_SRIOV',)),
    ],
)
def test_what_is_stored(clean, entry, field, expected):
    devices.spec(entry)
    (spec,) = device_spec.load(os_acc.CONF).entries
    assert getattr(spec, field) == expected


def test_keys_about_vfs_name_the_vfs_of_a_pf(here):
    """A VF may have another product id than its PF."""
    (here.pci / 'devices' / devices.PF / 'sriov_vf_device').write_text('37c9')
    here.set_numvfs(devices.PF, 2)
    vfs = set(devices.VFS[:2])
    for address in vfs:
        path = here.pci / 'devices' / address / 'modalias'
        path.write_text(path.read_text().replace('d00004940', 'd000037C9'))
    ids = {'vendor_id': '8086', 'product_id': '4940'}
    assert named(ids) == {devices.PF}
    assert named({**ids, 'num_vfs': 2}) == {devices.PF, *vfs}
    assert named({**ids, 'vgpu_type': '558'}) == {devices.PF, *vfs}
    program = {'program': '/bin/true {address} {file}'}
    assert named({**ids, **program}) == {devices.PF, *vfs}
    assert named({'vendor_id': '10de', **program}) == {devices.GPU}


def test_a_glob_does_not_stand_for_vfs(here):
    """Only a complete address of a PF does, as in Nova."""
    here.set_numvfs(devices.PF, 2)
    assert named({'address': '*:01:00.0'}) == {devices.PF}
    assert named({'address': {'bus': '01', 'function': '0'}}) == {devices.PF}


@pytest.mark.parametrize(
    ('entry', 'expected'),
    [
        ({'address': 'mtty'}, True),
        ({'address': 'm*'}, True),
        ({'address': '*'}, True),
        ({'mdev_types': 'mtty-1'}, True),
        ({'address': '*:*:*.*'}, False),
        ({'address': {}, 'vendor_id': '8086'}, False),
        ({'devname': 'eth0'}, False),
        ({'address': 'ap*'}, False),
    ],
)
def test_mdev_parents_that_are_no_pci_function(here, entry, expected):
    devices.spec(entry)
    found = device_spec.load(os_acc.CONF).find_parent('mtty')
    assert (found is not None) is expected


@pytest.mark.parametrize(
    ('address', 'expected'),
    [
        ('*', True),
        ('*:e1:00.0', True),
        ({'domain': '10000'}, True),
        (
            {'domain': '10000', 'bus': 'e1', 'slot': '00', 'function': '0'},
            True,
        ),
        ('1000:e1:00.*', False),
        ('1000:e1:00.0', False),
        ({'domain': '1000$'}, False),
    ],
)
def test_a_domain_that_nova_does_not_know(kernel, address, expected):
    """Domains of Intel's VMD begin at 10000."""
    kernel.add_function('10000:e1:00.0')
    assert bool(named({'address': address})) is expected


def test_a_ccw_device_is_a_name(clean):
    devices.spec({'address': '0.0.26ab'})
    specs = device_spec.load(os_acc.CONF)
    assert specs.find_parent('0.0.26ab') is not None
    assert specs.find_parent('0.0.26ac') is None


# How a field of a glob may be written: the text, and what it must equal.
def _field(largest: int) -> st.SearchStrategy[tuple[str, int | None]]:
    numbers = st.integers(0, largest)
    return st.one_of(
        st.sampled_from([('*', None), ('', None), (' * ', None)]),
        st.builds(
            lambda number, width, style: (
                style(f'{number:0{width}x}'),
                number,
            ),
            numbers,
            st.integers(1, 5),
            st.sampled_from([str, str.upper, '0x{}'.format, ' {} '.format]),
        ),
    )


_NUMBERS = st.tuples(
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFF),
    st.integers(0, 0x1F),
    st.integers(0, 7),
)
_GLOBS = st.tuples(_field(0xFFFF), _field(0xFF), _field(0x1F), _field(7))


def function(numbers: tuple[int, ...]) -> pci.Function:
    return pci.Function(
        '%04x:%02x:%02x.%x' % numbers,
        '8086',
        '10d3',
        0x020000,
        '',
        None,
        frozenset(),
    )


@given(_GLOBS, _NUMBERS, st.integers(0, 2), st.booleans())
def test_globs(fields, numbers, left_out, dotted):
    """Each field is a number or anything; fields on the left may be missing.

    :param left_out: how many of the fields before the slot are missing
    :param dotted: whether there is a dot, and so a function
    """
    written = list(fields)
    for place in range(left_out):
        written[place] = ('', None)
    if not dotted:
        written[3] = ('', None)
    text = ':'.join(each for each, _ in written[left_out:3])
    if dotted:
        text += f'.{written[3][0]}'
    if not text.strip() or re.fullmatch(
        r'\s*[0-9a-f]{1,2}:[0-9a-f]{1,2}:[0-7]\s*', text, re.IGNORECASE
    ):
        return  # refused: see test_malformed_is_a_clear_error
    spec = spec_reading.read({'address': text})
    # Most random numbers differ, so take the wanted ones in half the fields.
    near = tuple(
        wanted if wanted is not None and place % 2 else number
        for place, ((_, wanted), number) in enumerate(
            zip(written, numbers, strict=True)
        )
    )
    same = tuple(
        number if wanted is None else wanted
        for (_, wanted), number in zip(written, numbers, strict=True)
    )
    for each in (numbers, near, same):
        expected = all(
            wanted in (None, number)
            for (_, wanted), number in zip(written, each, strict=True)
        )
        assert spec.matches(function(each)) is expected
    assert spec.matches(function(same))


_PATTERNS = ['', '.*', '0', '0.', '[0-3]', '0a|0b', '(?i)0A$', '^1', '.', '7']


@given(
    st.dictionaries(
        st.sampled_from(['domain', 'bus', 'slot', 'function']),
        st.sampled_from(_PATTERNS),
        min_size=1,
    ),
    _NUMBERS,
)
def test_regular_expressions(patterns, numbers):
    wanted = function(numbers)
    domain, bus, rest = wanted.address.split(':')
    slot, number = rest.split('.')
    expected = (
        re.match(patterns.get('domain', ''), domain)
        and re.match(patterns.get('bus', ''), bus)
        and re.match(patterns.get('slot', ''), slot)
        and re.match(patterns.get('function', ''), number)
    )
    spec = spec_reading.read({'address': patterns})
    assert spec.matches(wanted) is bool(expected)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.text(), children, max_size=3)
    ),
    max_leaves=5,
)
_KEYS = sorted(
    {field.name for field in dataclasses.fields(device_spec.Spec)}
    - {'source', 'of_kind', 'companion_files'}
    | {'managed', 'remote_managed', 'with'}
    | spec_idxd.KEYS
)


@given(st.sampled_from(_KEYS), _JSON)
def test_any_value_is_read_or_refused(key, value):
    try:
        spec_reading.read({key: value})
    except exception.InvalidRequest as err:
        # nvme_of has keys of its own.
        assert err.kwargs['field'].partition('.')[0] == key


@given(st.text('0123456789abcdefx:.* [-]mt', max_size=20))
def test_any_address_is_read_or_refused(text):
    try:
        spec = spec_reading.read({'address': text})
    except exception.InvalidRequest as err:
        assert err.kwargs['field'] == 'address'
    else:
        spec.matches(function((0, 1, 2, 3)))


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        device_spec.parse(text)
    except exception.InvalidRequest as err:
        assert 'device_spec' in str(err)


# --- the directory


@pytest.fixture
def directory(clean):
    path = pathlib.Path(os_acc.CONF.os_acc.device_spec_dir)
    path.mkdir(0o755)
    path.chmod(0o755)
    return path


def put(path, *entries) -> None:
    path.write_text(json.dumps(list(entries)))
    path.chmod(0o644)


def sources() -> list[str]:
    return [spec.source for spec in device_spec.load(os_acc.CONF).entries]


def test_the_directory_comes_first_and_is_looked_at_anew(directory):
    devices.spec({'address': 'a'}, {'address': 'b'})
    option = ['device_spec, entry 1', 'device_spec, entry 2']
    assert sources() == option
    put(directory / '20.json', {'address': 'c'}, {'address': 'd'})
    (directory / '10.json').write_text('{"address": "e"}')
    (directory / '10.json').chmod(0o644)
    assert sources() == [
        f'{directory}/10.json, entry 1',
        f'{directory}/20.json, entry 1',
        f'{directory}/20.json, entry 2',
        *option,
    ]
    (directory / '20.json').unlink()
    assert sources() == [f'{directory}/10.json, entry 1', *option]


def test_other_files_do_not_count(directory):
    for name in ('a.json~', '.b.json', 'README'):
        (directory / name).write_text('{')
    assert sources() == []


@pytest.mark.parametrize('value', ['', '/nowhere/at/all'])
def test_no_directory(clean, value):
    os_acc.CONF.set_override('device_spec_dir', value, 'os_acc')
    devices.spec({'address': 'a'})
    assert sources() == ['device_spec, entry 1']


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        (b'{', "JSON is '{'"),
        (b'', "JSON is ''"),
        (b'{"adress": "x"}', "key is 'adress'"),
        (b'[{"address": "x"}, {"num_vfs": 0}]', 'num_vfs is 0'),
        (b'\xff', 'encoding is'),
    ],
)
def test_a_malformed_file_is_named_and_nothing_is_offered(
    directory, text, says
):
    devices.spec({'address': '*'})
    (directory / 'bad.json').write_bytes(text)
    (directory / 'bad.json').chmod(0o644)
    with pytest.raises(exception.InvalidRequest) as caught:
        device_spec.load(os_acc.CONF)
    said = str(caught.value).replace('bad.json:1: ', 'bad.json: ')
    assert said.startswith(f'{directory}/bad.json: {says}')


@pytest.mark.parametrize('mode', [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write(directory, mode):
    put(directory / 'a.json', {'address': '*'})
    (directory / 'a.json').chmod(mode)
    with pytest.raises(exception.InvalidRequest, match='mode is') as caught:
        device_spec.load(os_acc.CONF)
    assert str(caught.value).startswith(f'{directory}/a.json: ')


@pytest.mark.parametrize('mode', [0o775, 0o757, 0o1777])
def test_a_directory_that_others_can_write(directory, mode):
    directory.chmod(mode)
    with pytest.raises(exception.InvalidRequest, match='mode is') as caught:
        device_spec.load(os_acc.CONF)
    assert str(caught.value).startswith(f'{directory}: ')


def test_a_directory_in_a_directory_that_others_can_write(directory):
    directory.parent.chmod(0o777)
    with pytest.raises(exception.InvalidRequest, match='mode is') as caught:
        device_spec.load(os_acc.CONF)
    assert str(caught.value).startswith(f'{directory.parent}: ')
    directory.parent.chmod(0o1777)  # nobody can replace the directory
    assert sources() == []


def test_a_file_of_another_user(directory, monkeypatch):
    put(directory / 'a.json', {'address': '*'})
    stat = os.fstat

    def other(fd):
        found = list(stat(fd))
        found[4] = 4711
        return os.stat_result(found)

    monkeypatch.setattr(os, 'fstat', other)
    with pytest.raises(exception.InvalidRequest, match='user id 4711'):
        device_spec.load(os_acc.CONF)


def test_a_link_to_a_place_that_others_can_write(directory, tmp_path):
    place = tmp_path / 'place'
    place.mkdir()
    put(place / 'a.json', {'address': '*'})
    (directory / 'a.json').symlink_to(place / 'a.json')
    place.chmod(0o755)
    assert len(sources()) == 1
    place.chmod(0o777)
    with pytest.raises(exception.InvalidRequest, match='mode is'):
        device_spec.load(os_acc.CONF)


def test_a_named_pipe_does_not_block(directory):
    os.mkfifo(directory / 'a.json', 0o644)
    with pytest.raises(exception.InvalidRequest, match='type is'):
        device_spec.load(os_acc.CONF)


def test_a_directory_that_is_none(directory):
    os_acc.CONF.set_override(
        'device_spec_dir', str(directory / 'a.json'), 'os_acc'
    )
    put(directory / 'a.json', {'address': '*'})
    with pytest.raises(exception.InvalidRequest, match='access is'):
        device_spec.load(os_acc.CONF)


def test_a_relative_directory_is_refused(clean):
    os_acc.CONF.set_override('device_spec_dir', 'specs', 'os_acc')
    with pytest.raises(exception.InvalidRequest, match='device_spec_dir'):
        os_acc.initialize()


def test_a_change_of_the_option_without_a_restart(here, tmp_path):
    conf, path = os_acc.CONF, tmp_path / 'os-acc.conf'
    conf.clear_override('device_spec', 'os_acc')
    path.write_text('[os_acc]\n')
    conf(['--config-file', str(path)], project='os-acc')
    assert device_spec.load(conf).entries == ()
    path.write_text('[os_acc]\ndevice_spec = {"address": "*"}\n')
    conf.mutate_config_files()
    assert device_spec.load(conf).find(pci.get(devices.GPU)) is not None
    path.write_text('[os_acc]\n')
    conf.mutate_config_files()
    assert device_spec.load(conf).entries == ()
