# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What all os-acc objects share."""

from __future__ import annotations

import collections
import copy
from typing import Any
from typing import ClassVar
from typing import Self

from oslo_utils import versionutils
from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import exception as ovo_exception
from oslo_versionedobjects import fields as ovo_fields

from os_acc import exception


class VersionedObjectRegistry(ovo_base.VersionedObjectRegistry):
    """A registry of our own.

    oslo's is one for the whole process and knows a class by its bare name:
    os-vif's InstanceInfo and ours, both in nova-compute, would take each
    other's place there.
    """

    _own: ClassVar[Any] = collections.defaultdict(list)

    def __new__(cls) -> Self:
        self = object.__new__(cls)
        self._obj_classes = cls._own
        return self


class VersionedObject(ovo_base.VersionedObject):
    """Base of the objects: unset nullable fields read as None.

    Minor versions only add fields. So an object of any minor version can be
    read here, and ``ADDED_IN`` is the whole of what obj_make_compatible
    needs: it maps each field that a later minor version brought to that
    version. Anything else is a new major version.
    """

    OBJ_PROJECT_NAMESPACE = 'os_acc'

    ADDED_IN: ClassVar[dict[str, str]] = {}

    @classmethod
    def obj_class_from_name(
        cls, objname: str, objver: str
    ) -> type[ovo_base.VersionedObject]:
        """Find the class of that name, of any version of the same major."""
        known = VersionedObjectRegistry.obj_classes().get(objname)
        if not known:
            raise ovo_exception.UnsupportedObjectError(objtype=objname)
        if objver == known[0].VERSION:
            return known[0]
        wanted = versionutils.convert_version_to_tuple(objver)
        for candidate in known:
            got = versionutils.convert_version_to_tuple(candidate.VERSION)
            if got[0] == wanted[0]:
                return candidate
        raise ovo_exception.IncompatibleObjectVersion(
            objname=objname, objver=objver, supported=known[0].VERSION
        )

    @classmethod
    def obj_from_primitive(
        cls, primitive: dict[str, Any], context: Any = None
    ) -> Self:
        """Read an object, of another minor version too: it is then ours."""
        made = super().obj_from_primitive(primitive, context)
        made.__dict__.pop('VERSION', None)
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
        # Not by the setter: a field that was only read has not changed.
        setattr(self, '_obj_' + attrname, value)

    # The same as oslo's, which are most of the time of a plug's own: each
    # step of each VAN is written to the journal.

    def obj_to_primitive(
        self,
        target_version: str | None = None,
        version_manifest: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        if target_version is not None or version_manifest:
            return super().obj_to_primitive(target_version, version_manifest)
        values, key = self.__dict__, self._obj_primitive_key
        data = {
            name: field.to_primitive(self, name, values[f'_obj_{name}'])
            for name, field in self.fields.items()
            if f'_obj_{name}' in values
        }
        primitive = {
            key('name'): self.obj_name(),
            key('namespace'): self.OBJ_PROJECT_NAMESPACE,
            key('version'): self.VERSION,
            key('data'): data,
        }
        if changed := self.obj_what_changed() & data.keys():
            primitive[key('changes')] = list(changed)
        return primitive

    def obj_attr_is_set(self, attrname: str) -> bool:
        if attrname not in self.fields:
            return super().obj_attr_is_set(attrname)
        return f'_obj_{attrname}' in self.__dict__

    def obj_what_changed(self) -> set[str]:
        changed = set(self._changed_fields & self.fields.keys())
        # A copy: another thread may read a field for the first time.
        for name, value in tuple(self.__dict__.items()):
            if (
                isinstance(value, ovo_base.VersionedObject)
                and name.removeprefix('_obj_') in self.fields
                and value.obj_what_changed()
            ):
                changed.add(name.removeprefix('_obj_'))
        return changed

    def obj_make_compatible(
        self, primitive: dict[str, Any], target_version: str
    ) -> None:
        if getattr(self, '_obj_version_manifest', None):
            # Objects inside: only with a manifest is it known what they
            # should be. Without one they can be read as they are.
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


def _peek(obj: Any, name: str) -> Any:
    """The value of a field; None if it has none yet."""
    field = obj.fields[name]
    if not obj.obj_attr_is_set(name) and not (
        field.nullable or field.default is not ovo_fields.UnspecifiedDefault
    ):
        return None
    return getattr(obj, name)
