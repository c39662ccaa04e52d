# SPDX-License-Identifier: Apache-2.0

"""The methods that the objects override return the same as oslo's."""

from __future__ import annotations

import datetime

from hypothesis import given
from hypothesis import strategies as st
from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import fields as ovo_fields
import pytest

from os_acc import objects
from os_acc.objects import base

UUID = '6a3f41cb-1d6b-4d0c-9c9e-54d8f0e2a001'
OSLO = ovo_base.VersionedObject

handles = st.one_of(
    st.builds(
        objects.PCIHandle,
        address=st.sampled_from(['0c:00.1', '10000:e1:00.0']),
        managed=st.none() | st.booleans(),
    ),
    st.builds(
        objects.MdevHandle,
        uuid=st.uuids().map(str),
        parent=st.just('0000:3b:00.0'),
        type=st.just('nvidia-35'),
    ),
)
vans = st.builds(
    objects.VAN,
    uuid=st.uuids().map(str),
    handle=st.none() | handles,
    device=st.none() | st.just('0000:0c:00.0'),
    driver_data=st.dictionaries(st.text(), st.text(), max_size=3),
    error=st.none() | st.text(),
    # A versioned object's text keeps whole seconds only.
    created_at=st.none()
    | st.datetimes(datetime.datetime(2000, 1, 1)).map(
        lambda time: time.replace(microsecond=0)
    ),
)
requests = st.builds(
    objects.AcceleratorRequest, uuid=st.uuids().map(str), handle=handles
)
lists = st.lists(vans, max_size=3).map(
    lambda found: objects.VANList(objects=found)
)


def check(obj):
    for name in obj.fields:
        assert obj.obj_attr_is_set(name) == OSLO.obj_attr_is_set(obj, name)
    if not isinstance(obj, ovo_base.ObjectListBase):
        assert obj.obj_what_changed() == OSLO.obj_what_changed(obj)
    ours, theirs = obj.obj_to_primitive(), OSLO.obj_to_primitive(obj)
    assert _sorted(ours) == _sorted(theirs)
    read = type(obj).obj_from_primitive(ours)
    assert read == obj
    assert read.obj_what_changed() == obj.obj_what_changed()


def read_as_oslo(cls, primitive):
    """Read an object as oslo does: each field by its setter."""
    made = cls()
    data = primitive['versioned_object.data']
    for name, field in cls.fields.items():
        if name in data:
            value = field.from_primitive(made, name, data[name])
            setattr(made, name, value)
    made.obj_reset_changes(recursive=False)
    return made


@given(vans | requests | lists, st.booleans())
def test_read_as_oslo(obj, reset):
    if reset:
        obj.obj_reset_changes(recursive=True)
    primitive = obj.obj_to_primitive()
    ours = type(obj).obj_from_primitive(primitive)
    theirs = read_as_oslo(type(obj), primitive)
    assert ours == theirs == obj
    for name in obj.fields:
        assert ours.obj_attr_is_set(name) == theirs.obj_attr_is_set(name)
        if ours.obj_attr_is_set(name):
            mine, other = getattr(ours, name), getattr(theirs, name)
            assert type(mine) is type(other)
    assert ours.obj_what_changed() == set(
        primitive.get('versioned_object.changes', [])
    )
    if isinstance(obj, objects.VAN):
        # The values still refuse what the fields refuse.
        with pytest.raises(ValueError):
            ours.driver_data['key'] = object()


@pytest.mark.parametrize(
    ('field', 'value', 'error'),
    [
        ('uuid', 'x', ValueError),
        ('uuid', None, ValueError),
        ('state', 'dancing', ValueError),
        ('driver_data', 'text', AttributeError),
        ('handle', 'text', TypeError),
        ('created_at', 'yesterday', ValueError),
    ],
)
def test_a_wrong_value_is_refused_as_by_oslo(field, value, error):
    primitive = objects.VAN(uuid=UUID).obj_to_primitive()
    primitive['versioned_object.data'][field] = value
    with pytest.raises(error):
        read_as_oslo(objects.VAN, primitive)
    with pytest.raises(error):
        objects.VAN.obj_from_primitive(primitive)


@pytest.mark.parametrize(
    'text',
    [
        '2026-01-02T03:04:05Z',
        '2026-01-02T03:04:05+00:00',
        '2026-01-02 03:04:05.678901+00:00',
        '2026-01-02T03:04:05',
        '2026-01-02T03:04:05+02:00',
        '20260102T030405Z',
    ],
)
def test_a_time_as_oslo_reads_it(text):
    made, field = objects.VAN(), ovo_fields.DateTimeField()
    ours = objects.VAN.fields['created_at'].from_primitive(made, 'x', text)
    assert ours == field.from_primitive(made, 'x', text)
    assert ours.utcoffset() == (
        field.from_primitive(made, 'x', text).utcoffset()
    )


def _sorted(primitive):
    """Sort the lists of changes, which have no order."""
    if isinstance(primitive, dict):
        return {
            key: sorted(value)
            if key == 'versioned_object.changes'
            else _sorted(value)
            for key, value in primitive.items()
        }
    if isinstance(primitive, list):
        return [_sorted(each) for each in primitive]
    return primitive


@given(vans | requests | lists, st.data())
def test_as_oslo(obj, data):
    check(obj)
    reset = data.draw(st.sampled_from(['none', 'own', 'all']), 'reset')
    if reset != 'none':
        obj.obj_reset_changes(recursive=reset == 'all')
        check(obj)


@given(vans, st.booleans())
def test_a_change_inside(van, reset):
    van.handle = objects.PCIHandle(address='0c:00.1')
    if reset:
        van.obj_reset_changes(recursive=True)
    van.handle.managed = True
    check(van)
    assert 'handle' in van.obj_what_changed()


def test_what_is_no_field():
    van = objects.VAN()
    with pytest.raises(AttributeError, match='nonsense'):
        van.obj_attr_is_set('nonsense')


def test_a_handle_of_somebody_elses_with_an_object_in_it():
    class Holder(base.VersionedObject):
        VERSION = '1.0'
        fields = {
            'inner': ovo_fields.ObjectField(
                'AttachHandle', subclasses=True, nullable=True
            ),
            'more': ovo_fields.ListOfObjectsField(
                'AttachHandle', subclasses=True
            ),
        }

    # What register() does, but without an entry in the registry.
    ovo_base._make_class_properties(Holder)
    inner = objects.TestHandle(name='a')
    made = Holder(inner=inner, more=[objects.TestHandle(name='b')])
    made.obj_reset_changes(recursive=True)
    for each in (lambda: None, lambda: setattr(inner, 'name', 'c')):
        each()
        assert made.obj_what_changed() == OSLO.obj_what_changed(made)
        assert made.obj_to_primitive() == OSLO.obj_to_primitive(made)
    assert made.obj_what_changed() == {'inner'}
