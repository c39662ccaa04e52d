# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""A device that discovery reports."""

from __future__ import annotations

from oslo_versionedobjects import fields as ovo_fields

from os_acc.objects import base
from os_acc.objects import fields

#: The device cannot be programmed.
PROGRAMMING_NONE = 'none'
#: It holds one function at a time, for all of its handles.
PROGRAMMING_SINGLE = 'single'
#: Each region of the device holds its own function.
PROGRAMMING_DYNAMIC = 'dynamic'


class ProgrammingField(ovo_fields.AutoTypedField[str]):
    AUTO_TYPE = ovo_fields.Enum(
        valid_values=(
            PROGRAMMING_NONE,
            PROGRAMMING_SINGLE,
            PROGRAMMING_DYNAMIC,
        )
    )


@base.VersionedObjectRegistry.register
class Device(base.VersionedObject):
    """An accelerator of this host, and how many attach handles it has."""

    # Version 1.0: Initial version
    VERSION = '1.0'

    fields = {
        'address': fields.DeviceAddressField(),
        'driver': fields.NameField(),
        # 4 hex digits; empty if the device has none.
        'vendor_id': ovo_fields.StringField(default=''),
        'product_id': ovo_fields.StringField(default=''),
        'resource_class': ovo_fields.StringField(default=''),
        'traits': ovo_fields.ListOfStringsField(default=[]),
        'numa_node': ovo_fields.IntegerField(nullable=True),
        'handles_total': fields.CountField(),
        'handles_free': fields.CountField(),
        'programming': ProgrammingField(default=PROGRAMMING_NONE),
        'function_id': fields.NameField(nullable=True),
    }
