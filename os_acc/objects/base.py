# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What all os-acc objects share."""

from __future__ import annotations

import copy
from typing import Any
from typing import ClassVar

from oslo_utils import versionutils
from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import fields as ovo_fields

from os_acc import exception


class VersionedObject(ovo_base.VersionedObject):
    """Base of the objects: unset nullable fields read as None.

    ``ADDED_IN`` is the whole of what obj_make_compatible needs: it maps each
    field that a later minor version brought to that version. Minor versions
    only add fields; anything else is a new major version.
    """

    OBJ_PROJECT_NAMESPACE = 'os_acc'

    ADDED_IN: ClassVar[dict[str, str]] = {}

    def obj_load_attr(self, attrname: str) -> None:
        field = self.fields[attrname]
        if field.default is not ovo_fields.UnspecifiedDefault:
            value = copy.deepcopy(field.default)
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

    def obj_make_compatible(
        self, primitive: dict[str, Any], target_version: str
    ) -> None:
        super().obj_make_compatible(primitive, target_version)
        target = versionutils.convert_version_to_tuple(target_version)
        for name, version in self.ADDED_IN.items():
            if target < versionutils.convert_version_to_tuple(version):
                primitive.pop(name, None)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(
            getattr(self, name) == getattr(other, name)
            for name in self.fields
            if self.obj_attr_is_set(name) or other.obj_attr_is_set(name)
        )

    __hash__ = None  # type: ignore[assignment]  # mutable, compared by value
