# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

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
