# SPDX-License-Identifier: Apache-2.0

"""The annotations of the objects, which type checkers read, fit the fields."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
from typing import Any
from typing import get_args
from typing import get_origin
from typing import get_type_hints

from oslo_versionedobjects import fields as ovo_fields
import pytest

from os_acc import objects
from os_acc.objects import fields

CLASSES = [getattr(objects, name) for name in objects.__all__]

# What a field reads as, by its class. Others say it in their base class.
READS = {
    ovo_fields.EnumField: str,
    fields.UUIDField: fields.UUIDValue,
    fields.DRCIndexField: fields.DRCIndexValue,
}


def annotations(cls: type) -> dict[str, Any]:
    """The annotations of a class, without class variables."""
    texts = {
        name: text
        for name, text in cls.__annotations__.items()
        if not text.startswith('ClassVar')
    }
    own = types.SimpleNamespace(__annotations__=texts)
    return get_type_hints(own, vars(sys.modules[cls.__module__]))


def field_type(field: ovo_fields.Field) -> Any:
    """The type that the annotation of a field must be, without None."""
    if isinstance(field, ovo_fields.ObjectField):
        return getattr(objects, field.objname)
    if isinstance(field, ovo_fields.ListOfObjectsField):
        return list[getattr(objects, field.objname)]
    if type(field) in READS:
        return READS[type(field)]
    (of,) = (
        get_args(parent)[0]
        for cls in type(field).__mro__
        for parent in getattr(cls, '__orig_bases__', ())
        if get_origin(parent) is ovo_fields.AutoTypedField
    )
    return of


def optional(kind: Any) -> Any:
    if get_origin(kind) is fields.Value:
        return fields.Value[tuple(each | None for each in get_args(kind))]
    return kind | None


def defaults(cls: type) -> dict[str, Any]:
    """What the annotated lines of a class assign, by the field's name."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    names = dict(vars(sys.modules[cls.__module__]))
    return {
        line.target.id: eval(ast.unparse(line.value), names)
        for line in body.body
        if isinstance(line, ast.AnnAssign)
        and line.value is not None
        and line.target.id in cls.fields
    }


@pytest.mark.parametrize('cls', CLASSES)
def test_each_field_has_its_annotation(cls):
    if cls is objects.AttachHandle:
        assert not cls.fields
        return
    expected = {
        name: optional(field_type(field))
        if field.nullable
        else field_type(field)
        for name, field in cls.fields.items()
    }
    assert annotations(cls) == expected


@pytest.mark.parametrize('cls', CLASSES)
def test_a_field_may_be_left_out_if_it_has_a_default(cls):
    told = defaults(cls)
    for name, field in cls.fields.items():
        if cls is objects.VANList:
            assert told == {'objects': []}  # ObjectListBase sets it
        elif field.default is not ovo_fields.UnspecifiedDefault:
            assert told[name] == field.default
        elif field.nullable:
            nothing = told[name]
            assert nothing is None or isinstance(nothing, fields.Value)
        else:
            assert name not in told


@pytest.mark.parametrize(
    ('make', 'said'),
    [
        (
            lambda: objects.InstanceInfo(uid='x'),
            "InstanceInfo has no field 'uid'; did you mean 'uuid'?",
        ),
        (
            lambda: objects.PCIHandle(adress='0000:3b:00.0'),
            "PCIHandle has no field 'adress'; did you mean 'address'?",
        ),
        (
            lambda: objects.VANList(elephants=[]),
            "VANList has no field 'elephants'",
        ),
        (
            lambda: objects.Device.partial(elephant='x'),
            "Device has no field 'elephant'",
        ),
    ],
)
def test_a_wrong_keyword_is_refused(make, said):
    with pytest.raises(TypeError) as caught:
        make()
    assert str(caught.value) == said


def test_partial_leaves_fields_for_later():
    made = objects.MdevHandle.partial(parent='0000:3B:00.0')
    assert made.parent == '0000:3b:00.0'
    made.type = 'nvidia-63'
    assert made.obj_what_changed() == {'parent', 'type'}
