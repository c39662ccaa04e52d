# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The instance that gets the accelerators."""

from __future__ import annotations

from oslo_versionedobjects import fields as ovo_fields

from os_acc.objects import base
from os_acc.objects import fields


@base.VersionedObjectRegistry.register
class InstanceInfo(base.VersionedObject):
    """What drivers and plugins may know of a Nova instance."""

    # Version 1.0: Initial version
    VERSION = '1.0'

    fields = {
        'uuid': fields.UUIDField(),
        'name': ovo_fields.StringField(),
        'project_id': ovo_fields.StringField(),
        'image_id': ovo_fields.StringField(nullable=True),
        # PowerVM: the LPAR's UUID. libvirt: the instance's uuid serves.
        'hypervisor_id': ovo_fields.StringField(nullable=True),
    }
