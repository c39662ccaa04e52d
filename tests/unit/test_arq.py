# SPDX-License-Identifier: Apache-2.0

"""Cyborg's ARQs: real answers of Cyborg, and malformed ones."""

from __future__ import annotations

import copy
import json
import pathlib
import uuid

from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st
import pytest

from os_acc import exception
from os_acc import objects

DATA = pathlib.Path(__file__).parent.parent / 'data'

# Every field, and every part of the handle info, that os-acc reads.
FIELDS = (
    'uuid',
    'state',
    'hostname',
    'instance_uuid',
    'device_profile_name',
    'device_profile_group_id',
    'device_rp_uuid',
    'attach_handle_type',
    'attach_handle_uuid',
    'attach_handle_info',
)
INFO_FIELDS = (
    'domain',
    'bus',
    'device',
    'function',
    'asked_type',
    'physical_network',
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(['0', '0c', '0x0c', '../..', 'Bound', 'PCI', 'MDEV']),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(INFO_FIELDS) | st.text(max_size=5),
            inner,
            max_size=6,
        )
    ),
    max_leaves=8,
)


def arqs(name):
    text = (DATA / f'bound-arqs-{name}.json').read_text(encoding='utf-8')
    return json.loads(text)['arqs']


def pci(**changes):
    return {**arqs('pci-mdev')[0], **changes}


def mdev(**changes):
    return {**arqs('pci-mdev')[1], **changes}


def with_info(arq, **changes):
    info = {**arq['attach_handle_info'], **changes}
    return {**arq, 'attach_handle_info': info}


def without(arq, *keys):
    """Remove a key; a dot leads to a nested key: attach_handle_info.bus."""
    arq = copy.deepcopy(arq)
    for key in keys:
        outer, _, inner = key.partition('.')
        del (arq[outer] if inner else arq)[inner or outer]
    return arq


def parse(arq):
    return objects.AcceleratorRequest.from_arq(arq)


def refused(arq, field, value):
    """Check that the error names the ARQ's uuid, the field and the value."""
    with pytest.raises(exception.InvalidRequest) as caught:
        parse(arq)
    text = str(caught.value)
    assert text.startswith(f'ARQ {arq.get("uuid")}: {field} is {value!r}, ')
    assert 'expected ' in text
    assert caught.value.kwargs['field'] == field
    return caught.value


class TestReal:
    def test_pci(self):
        assert parse(pci()) == objects.AcceleratorRequest(
            uuid='9ae35b76-f322-49dc-ab63-c80d16eb1810',
            state='Bound',
            hostname='node-7',
            instance_uuid='0d573cd0-f0c1-4f7d-9b6f-9a8714390489',
            device_profile_name='rig-b323440ebeeb',
            device_profile_group_id=0,
            device_rp_uuid='9274e912-7cde-3cbd-a9a3-c773a6576e5d',
            handle=objects.PCIHandle(address='0000:66:00.0'),
        )

    def test_mdev(self):
        # The UUID is the attach handle's UUID. The parent is in the info.
        assert parse(mdev()) == objects.AcceleratorRequest(
            uuid='73d53cf1-c5c4-4929-9879-9327d28c5b93',
            state='Bound',
            hostname='node-7',
            instance_uuid='0d573cd0-f0c1-4f7d-9b6f-9a8714390489',
            device_profile_name='rig-b323440ebeeb',
            device_profile_group_id=1,
            device_rp_uuid='8f138e78-c71e-3d64-a241-128722383fb6',
            handle=objects.MdevHandle(
                uuid='21ceb89a-693d-421b-81d4-4e4e73b85c6d',
                parent='0000:65:00.0',
                type='nvidia-223',
            ),
        )

    def test_fake(self):
        expected = [
            objects.AcceleratorRequest(
                uuid=arq_uuid,
                state='Bound',
                hostname='vm',
                instance_uuid='ac407c84-63e6-412c-91a9-6bf933a420ad',
                device_profile_name='rig-da4a81d9b8ed',
                device_profile_group_id=0,
                device_rp_uuid='823f5e9e-ef5b-3461-bd09-8006cc3755d1',
                handle=objects.TestHandle(name=name),
            )
            for arq_uuid, name in (
                ('061c0c22-0139-4404-af0c-dad4469dc6b7', '0000:0c:00.1'),
                ('55eba8b3-4994-44b8-94ef-d6b0bcc48fbd', '0000:0c:00.2'),
            )
        ]
        assert objects.AcceleratorRequest.from_arqs(arqs('fake')) == expected

    def test_nothing_else_is_set(self):
        for arq in arqs('fake') + arqs('pci-mdev'):
            request = parse(arq)
            assert request.resource_class is None
            assert request.traits == []
            assert request.driver is None
            assert request.bitstream is None
            assert request.function_id is None

    def test_order_is_kept(self):
        listed = arqs('pci-mdev')
        for order in (listed, listed[::-1], tuple(listed)):
            requests = objects.AcceleratorRequest.from_arqs(order)
            assert [r.uuid for r in requests] == [a['uuid'] for a in order]
        assert objects.AcceleratorRequest.from_arqs([]) == []

    def test_the_arq_is_left_as_it_was(self):
        arq = mdev()
        before = copy.deepcopy(arq)
        parse(arq)
        assert arq == before

    @pytest.mark.parametrize('padded', ['0', '00'])
    def test_padding(self, padded):
        arq = with_info(pci(), device=padded, bus=padded, domain=padded)
        assert parse(arq).handle.address == '0000:00:00.0'

    def test_upper_case_and_the_highest(self):
        info = {
            'domain': 'FFFFFFFF',
            'bus': 'FF',
            'device': '1F',
            'function': '7',
        }
        arq = with_info(pci(), **info)
        assert parse(arq).handle.address == 'ffffffff:ff:1f.7'

    def test_hex_without_prefix(self):
        arq = with_info(pci(), bus='10', device='10')
        assert parse(arq).handle.address == '0000:10:10.0'

    def test_physical_network(self):
        arq = with_info(pci(), physical_network='physnet1')
        assert parse(arq).handle.physical_network == 'physnet1'

    def test_extra_keys(self):
        arq = with_info(pci(new='x', other={'a': [1]}), vendor_new=[1, None])
        assert parse(arq) == parse(pci())

    @pytest.mark.parametrize(
        'key',
        [
            'hostname',
            'instance_uuid',
            'device_profile_name',
            'device_profile_group_id',
            'device_rp_uuid',
            'attach_handle_uuid',
            'project_id',
            'links',
            'created_at',
            'updated_at',
        ],
    )
    def test_keys_that_may_be_missing(self, key):
        request = parse(without(pci(), key))
        assert request.handle == parse(pci()).handle
        if key in request.fields:
            assert getattr(request, key) is None

    @given(st.uuids(), st.text(max_size=30), st.integers(0, 2**31))
    def test_any_values(self, instance, profile, group):
        request = parse(
            pci(
                instance_uuid=str(instance).upper(),
                device_profile_name=profile,
                device_profile_group_id=group,
            )
        )
        assert request.instance_uuid == str(instance)
        assert request.device_profile_name == profile
        assert request.device_profile_group_id == group

    @given(
        st.integers(0, 0xFFFFFFFF),
        st.integers(0, 0xFF),
        st.integers(0, 0x1F),
        st.integers(0, 7),
    )
    def test_any_address(self, domain, bus, device, function):
        address = f'{domain:04x}:{bus:02x}:{device:02x}.{function}'
        for info in (
            {
                'domain': f'{domain:x}',
                'bus': f'{bus:x}',
                'device': f'{device:x}',
                'function': f'{function:x}',
            },
            {
                'domain': f'{domain:08X}',
                'bus': f'{bus:02X}',
                'device': f'{device:02X}',
                'function': f'{function:X}',
            },
        ):
            assert parse(with_info(pci(), **info)).handle.address == address
            assert parse(with_info(mdev(), **info)).handle.parent == address


class TestNotBound:
    @pytest.mark.parametrize(
        'state',
        [
            'Initial',
            'BindStarted',
            'BindFailed',
            'Unbound',
            'UnbindFailed',
            'Deleting',
            'bound',
            'Bound ',
            '',
            None,
        ],
    )
    def test_state(self, state):
        arq = pci(state=state)
        assert type(refused(arq, 'state', state)) is exception.ARQNotBound
        # Cyborg sends the ARQ like this in that state.
        arq.update(
            attach_handle_type='',
            attach_handle_info={},
            attach_handle_uuid=None,
        )
        assert type(refused(arq, 'state', state)) is exception.ARQNotBound

    def test_no_state(self):
        arq = without(pci(), 'state')
        assert type(refused(arq, 'state', None)) is exception.ARQNotBound

    def test_one_of_several(self):
        listed = arqs('pci-mdev')
        listed[1]['state'] = 'BindFailed'
        with pytest.raises(exception.ARQNotBound, match=listed[1]['uuid']):
            objects.AcceleratorRequest.from_arqs(listed)


class TestBad:
    @pytest.mark.parametrize(
        ('field', 'value'),
        [
            ('uuid', None),
            ('uuid', 'junk'),
            ('uuid', ''),
            ('uuid', 5),
            ('uuid', '../../9ae35b76-f322-49dc-ab63-c80d16eb1810'),
            ('uuid', '9ae35b76f32249dcab63c80d16eb1810'),
            ('uuid', ['9ae35b76-f322-49dc-ab63-c80d16eb1810']),
            ('uuid', {}),
            ('state', ['Bound']),
            ('state', {}),
            ('hostname', '../node'),
            ('hostname', 'a/b'),
            ('hostname', ''),
            ('hostname', 'node 7'),
            ('hostname', 'node-7\n'),
            ('hostname', 7),
            ('instance_uuid', 'junk'),
            ('instance_uuid', 7),
            ('instance_uuid', {}),
            ('device_rp_uuid', 'junk'),
            ('device_rp_uuid', ''),
            ('device_profile_name', ['p']),
            ('device_profile_name', {}),
            ('device_profile_group_id', -1),
            ('device_profile_group_id', 'zero'),
            ('device_profile_group_id', ''),
            ('device_profile_group_id', [0]),
            ('device_profile_group_id', {}),
            ('device_profile_group_id', float('inf')),
            ('device_profile_group_id', float('-inf')),
            ('attach_handle_type', None),
            ('attach_handle_type', ''),
            ('attach_handle_type', 'pci'),
            ('attach_handle_type', 'GPU'),
            ('attach_handle_type', 5),
            ('attach_handle_type', ['PCI']),
            ('attach_handle_type', {}),
            ('attach_handle_info', None),
            ('attach_handle_info', []),
            ('attach_handle_info', [['bus', '0c']]),
            ('attach_handle_info', '{}'),
            ('attach_handle_info', 5),
        ],
    )
    def test_field(self, field, value):
        refused(pci(**{field: value}), field, value)

    @pytest.mark.parametrize(
        'value', [None, '', 'junk', 5, '../..', {}, ['21ceb89a']]
    )
    def test_attach_handle_uuid(self, value):
        refused(mdev(attach_handle_uuid=value), 'attach_handle_uuid', value)

    @pytest.mark.parametrize('make', [pci, mdev])
    @pytest.mark.parametrize(
        ('part', 'value'),
        [
            ('domain', '100000000'),
            ('domain', '-1'),
            ('bus', '0x0c'),
            ('bus', 'zz'),
            ('bus', '../..'),
            ('bus', '100'),
            ('bus', '00c'),
            ('bus', '0c '),
            ('bus', '0c\n'),
            ('bus', '\u0661'),
            ('bus', ''),
            ('bus', 12),
            ('bus', 0),
            ('bus', 1.0),
            ('bus', True),
            ('bus', None),
            ('bus', ['0c']),
            ('bus', {}),
            ('device', '20'),
            ('device', 'ff'),
            ('device', '+1'),
            ('device', '1_0'),
            ('function', '8'),
            ('function', 'f'),
            ('function', '00'),
            ('function', '0.1'),
        ],
    )
    def test_part_of_the_address(self, make, part, value):
        arq = with_info(make(), **{part: value})
        refused(arq, f'attach_handle_info.{part}', value)

    def test_part_of_the_address_of_a_test_handle(self):
        arq = with_info(arqs('fake')[0], device='20')
        refused(arq, 'attach_handle_info.device', '20')

    @pytest.mark.parametrize(
        'value', [None, '', '../x', 'a/b', '..', 'a\n', 223, ['nvidia-223']]
    )
    def test_asked_type(self, value):
        refused(
            with_info(mdev(), asked_type=value),
            'attach_handle_info.asked_type',
            value,
        )

    @pytest.mark.parametrize('value', ['', '../x', 'phys net', 1, ['p'], {}])
    def test_physical_network(self, value):
        refused(
            with_info(pci(), physical_network=value),
            'attach_handle_info.physical_network',
            value,
        )

    @pytest.mark.parametrize(
        ('make', 'key'),
        [
            (pci, 'uuid'),
            (pci, 'attach_handle_type'),
            (pci, 'attach_handle_info'),
            (pci, 'attach_handle_info.domain'),
            (pci, 'attach_handle_info.bus'),
            (pci, 'attach_handle_info.device'),
            (pci, 'attach_handle_info.function'),
            (mdev, 'attach_handle_uuid'),
            (mdev, 'attach_handle_info.bus'),
            (mdev, 'attach_handle_info.asked_type'),
        ],
    )
    def test_missing(self, make, key):
        refused(without(make(), key), key, None)

    @pytest.mark.parametrize(
        'value', [None, 'x', 5, [], [('uuid', 'x')], set(), b'{}']
    )
    def test_not_a_dict(self, value):
        for call in (
            lambda: parse(value),
            lambda: objects.AcceleratorRequest.from_arqs([pci(), value]),
        ):
            with pytest.raises(exception.InvalidRequest) as caught:
                call()
            assert f'ARQ is {value!r}, expected a dict' in str(caught.value)

    @pytest.mark.parametrize('value', [None, 'x', b'x', 5, {'arqs': []}])
    def test_not_a_list(self, value):
        with pytest.raises(exception.InvalidRequest) as caught:
            objects.AcceleratorRequest.from_arqs(value)
        assert f'arqs is {value!r}, expected a list' in str(caught.value)

    def test_long_uuid_is_cut(self):
        with pytest.raises(exception.InvalidRequest) as caught:
            parse(pci(uuid='x' * 5000))
        assert caught.value.kwargs['subject'] == 'ARQ ' + 'x' * 80


class TestAnything:
    """Any input gives a request or raises InvalidRequest."""

    @staticmethod
    def check(arq):
        try:
            request = parse(arq)
        except exception.InvalidRequest as err:
            assert str(err)
            return
        # An accepted value is in its canonical form.
        assert str(uuid.UUID(request.uuid)) == request.uuid
        assert request.state == 'Bound'
        assert isinstance(request.handle, objects.AttachHandle)
        assert '/' not in (request.hostname or '')
        again = objects.AcceleratorRequest.obj_from_primitive(
            json.loads(json.dumps(request.obj_to_primitive()))
        )
        assert again == request

    @given(st.sampled_from([pci, mdev]), st.sampled_from(FIELDS), JSON)
    @example(pci, 'device_profile_group_id', float('inf'))
    def test_field(self, make, field, value):
        self.check(make(**{field: value}))

    @given(st.sampled_from([pci, mdev]), st.sampled_from(INFO_FIELDS), JSON)
    def test_info(self, make, field, value):
        self.check(with_info(make(), **{field: value}))

    @given(st.dictionaries(st.sampled_from(FIELDS), JSON))
    def test_many_fields(self, changes):
        self.check(pci(**changes))
        self.check(changes)

    @given(st.lists(st.sampled_from(FIELDS), unique=True))
    def test_missing(self, keys):
        self.check(without(mdev(), *keys))

    @given(JSON)
    def test_no_arq_at_all(self, value):
        with pytest.raises(exception.InvalidRequest):
            parse(value)
        if value != []:
            with pytest.raises(exception.InvalidRequest):
                objects.AcceleratorRequest.from_arqs(value)


@pytest.mark.parametrize(
    ('arq', 'says'),
    [
        (without(pci(), 'uuid'), 'ARQ None: uuid is None, expected a value'),
        (
            without(mdev(), 'attach_handle_uuid'),
            f'ARQ {mdev()["uuid"]}: attach_handle_uuid is None, expected a '
            'value',
        ),
    ],
)
def test_what_is_missing_is_told_plainly(arq, says):
    with pytest.raises(exception.InvalidRequest) as caught:
        parse(arq)
    assert str(caught.value) == says


class TestProfiles:
    """The functions and bitstreams come from the device profiles."""

    @staticmethod
    def arq(number, group=0, profile='crypto'):
        made = pci()
        made['uuid'] = f'0f5d1c7e-6a83-4b0e-9c59-5f3f1c9be00{number}'
        made['device_profile_name'] = profile
        made['device_profile_group_id'] = group
        return made

    GROUPS = [
        {'resources:FPGA': '1', 'trait:CUSTOM_FPGA': 'required'},
        {'accel:function_id': '3AFE', 'accel:bitstream_id': 'an-image'},
    ]

    def test_each_arq_has_its_group(self):
        profiles = {'crypto': self.GROUPS, 'zip': self.GROUPS[1:], 'no': []}
        made = objects.AcceleratorRequest.from_arqs(
            [self.arq(1, 1), self.arq(2, 0), self.arq(3, 0, 'zip')], profiles
        )
        assert [r.function_id for r in made] == ['3AFE', None, '3AFE']
        assert [r.bitstream for r in made] == ['an-image', None, 'an-image']
        assert objects.AcceleratorRequest.from_arqs([], {}) == []

    @pytest.mark.parametrize(
        ('profiles', 'group', 'field'),
        [
            ({}, 0, 'device_profile_name'),
            ({'other': GROUPS}, 0, 'device_profile_name'),
            ({'crypto': GROUPS}, 2, 'device_profile_group_id'),
            ({'crypto': []}, 0, 'device_profile_group_id'),
            ({'crypto': GROUPS}, None, 'device_profile_group_id'),
            ({'crypto': None}, 0, 'the groups of'),
            ({'crypto': ['x']}, 0, 'the groups of'),
            ({'crypto': [{'accel:function_id': '../x'}]}, 0, 'function_id'),
            ({'crypto': [{'accel:bitstream_id': [1]}]}, 0, 'bitstream_id'),
        ],
    )
    def test_what_is_missing_or_malformed(self, profiles, group, field):
        with pytest.raises(exception.InvalidRequest, match=field) as caught:
            objects.AcceleratorRequest.from_arqs(
                [self.arq(1, group)], profiles
            )
        assert self.arq(1)['uuid'] in str(caught.value)
