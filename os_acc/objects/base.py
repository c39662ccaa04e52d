# SPDX-License-Identifier: Apache-2.0

"""The base class and the registry of the os-acc objects."""

from __future__ import annotations

import collections
from collections.abc import Collection
import copy
import difflib
from typing import Any
from typing import ClassVar
from typing import Self
from typing import dataclass_transform

from oslo_utils import versionutils
from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import exception as ovo_exception
from oslo_versionedobjects import fields as ovo_fields

from os_acc import exception

_CHANGES = 'versioned_object.changes'


class VersionedObjectRegistry(ovo_base.VersionedObjectRegistry):
    """A registry that contains only os-acc's classes.

    oslo's own registry is shared by the whole process and identifies a class
    by its name alone. In nova-compute, os-vif's InstanceInfo and os-acc's
    would replace each other in it.
    """

    _own: ClassVar[Any] = collections.defaultdict(list)

    def __new__(cls) -> Self:
        self = object.__new__(cls)
        self._obj_classes = cls._own
        return self

    @classmethod
    def classes(cls, name: str) -> list[type[ovo_base.VersionedObject]]:
        """Return all versions of a class by its name, the newest first."""
        found: list[type[ovo_base.VersionedObject]] = cls._own.get(name, [])
        return found


@dataclass_transform(kw_only_default=True, eq_default=False)
class VersionedObject(ovo_base.VersionedObject):
    """Base of the objects: unset nullable fields read as None.

    A new minor version adds fields, or lets a field be None. Any other change
    needs a new major version. So an object of any minor version can be read.
    A class annotates each of its ``fields``, so that type checkers see it.
    ``ADDED_IN`` maps each field that was added later to the minor version that
    added it; obj_make_compatible() uses it.
    """

    OBJ_PROJECT_NAMESPACE = 'os_acc'

    ADDED_IN: ClassVar[dict[str, str]] = {}

    @classmethod
    def obj_class_from_name(
        cls, objname: str, objver: str
    ) -> type[ovo_base.VersionedObject]:
        """Find the class with a name and the major version of objver."""
        known = VersionedObjectRegistry.classes(objname)
        if not known:
            raise ovo_exception.UnsupportedObjectError(objtype=objname)
        wanted = versionutils.convert_version_to_tuple(objver)
        for candidate in known:
            got = versionutils.convert_version_to_tuple(candidate.VERSION)
            if got[0] == wanted[0]:
                return candidate
        raise ovo_exception.IncompatibleObjectVersion(
            objname=objname, objver=objver, supported=known[0].VERSION
        )

    @classmethod
    def partial(cls, **values: Any) -> Self:
        """Make an object, some of whose fields are set later.

        For type checkers, which want all fields without a default in a call
        of the class.
        """
        return cls(**values)

    # Set if the object was read from a newer minor version: that version, and
    # the primitives of the fields that this class does not have.
    _newer: tuple[str, dict[str, Any]] | None = None

    @classmethod
    def obj_from_primitive(
        cls, primitive: dict[str, Any], context: Any = None
    ) -> Self:
        """Read an object. Its primitive names the class."""
        name = primitive[f'{cls.OBJ_SERIAL_NAMESPACE}.name']
        project = primitive[f'{cls.OBJ_SERIAL_NAMESPACE}.namespace']
        version = primitive[f'{cls.OBJ_SERIAL_NAMESPACE}.version']
        if project != cls.OBJ_PROJECT_NAMESPACE:
            raise ovo_exception.UnsupportedObjectError(
                objtype=f'{project}.{name}'
            )
        found: Any = cls.obj_class_from_name(name, version)
        made: Self = found._obj_from_primitive(context, version, primitive)
        return made

    @classmethod
    def _obj_from_primitive(
        cls, context: Any, objver: str, primitive: dict[str, Any]
    ) -> Self:
        """Read an object of any minor version into this class.

        Fields that a newer minor version added are kept for
        obj_to_primitive().
        """
        made: Self = super()._obj_from_primitive(context, objver, primitive)
        del made.VERSION  # oslo has set it to the version that was read
        data = primitive[cls._obj_primitive_key('data')]
        to_tuple = versionutils.convert_version_to_tuple
        if to_tuple(objver) > to_tuple(cls.VERSION):
            made._newer = (
                objver,
                {n: v for n, v in data.items() if n not in cls.fields},
            )
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = super().__deepcopy__(memo)
        made._newer = copy.deepcopy(self._newer)
        return made

    def obj_load_attr(self, attrname: str) -> None:
        field = self.fields[attrname]
        if field.default is not ovo_fields.UnspecifiedDefault:
            value = field.coerce(self, attrname, copy.deepcopy(field.default))
        elif field.nullable:
            value = None
        else:
            raise exception.InvalidRequest(
                subject=self.obj_name(),
                field=attrname,
                value=None,
                expected='a value',
            )
        # The field's own setter would mark the field as changed.
        setattr(self, '_obj_' + attrname, value)

    def __init__(self, context: Any = None, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in self.fields:
                raise TypeError(_unknown(self, name))
        super().__init__(context, **kwargs)

    def obj_to_primitive(
        self,
        target_version: str | None = None,
        version_manifest: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        made: dict[str, Any] = super().obj_to_primitive(
            target_version, version_manifest
        )
        if self._newer is not None and not (
            target_version or version_manifest
        ):
            version, more = self._newer
            made[self._obj_primitive_key('version')] = version
            made[self._obj_primitive_key('data')] |= copy.deepcopy(more)
        return made

    def stored(self, without: Collection[str] = ()) -> dict[str, Any]:
        """The primitive of a stored object, which has no changed fields.

        :param without: fields that are stored elsewhere
        """
        primitive: dict[str, Any] = _unchanged(self.obj_to_primitive())
        data = primitive[self._obj_primitive_key('data')]
        for name in without:
            data.pop(name, None)
        return primitive

    def obj_make_compatible(
        self, primitive: dict[str, Any], target_version: str
    ) -> None:
        if getattr(self, '_obj_version_manifest', None):
            # Only a manifest gives the target versions of nested objects.
            # Without one, nested objects stay unchanged; the reader can still
            # read them.
            super().obj_make_compatible(primitive, target_version)
        target = versionutils.convert_version_to_tuple(target_version)
        for name, version in self.ADDED_IN.items():
            if target < versionutils.convert_version_to_tuple(version):
                primitive.pop(name, None)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(
            _peek(self, name) == _peek(other, name) for name in self.fields
        )

    __hash__ = None  # type: ignore[assignment]  # mutable, compared by value


def _unknown(obj: VersionedObject, name: str) -> str:
    """Say that a class has no such field, and which one may be meant."""
    near = difflib.get_close_matches(name, obj.fields, n=1)
    meant = f"; did you mean '{near[0]}'?" if near else ''
    return f'{obj.obj_name()} has no field {name!r}{meant}'


def _unchanged(value: Any) -> Any:
    """Remove the lists of changed fields from primitives of objects."""
    if isinstance(value, dict):
        return {
            key: _unchanged(inner)
            for key, inner in value.items()
            if key != _CHANGES
        }
    if isinstance(value, list):
        return [_unchanged(inner) for inner in value]
    return value


def _peek(obj: Any, name: str) -> Any:
    """Return the value of a field; None if the field is not set."""
    field = obj.fields[name]
    if not obj.obj_attr_is_set(name) and not (
        field.nullable or field.default is not ovo_fields.UnspecifiedDefault
    ):
        return None
    return getattr(obj, name)
