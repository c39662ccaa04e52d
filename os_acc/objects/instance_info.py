# SPDX-License-Identifier: Apache-2.0

"""The instance that the accelerators are attached to."""

from __future__ import annotations

from typing import Any
from typing import ClassVar

from oslo_utils import versionutils
from oslo_versionedobjects import fields as ovo_fields

from os_acc.objects import base
from os_acc.objects import fields
from os_acc.objects.fields import UUIDValue
from os_acc.state import instance_names


@base.VersionedObjectRegistry.register
class InstanceInfo(base.VersionedObject):
    """What drivers and plugins know about an instance.

    Only the uuid is required.
    """

    # Version 1.0: Initial version
    # Version 1.1: name and project_id may be None
    # Version 1.2: Added process
    VERSION = '1.2'
    ADDED_IN: ClassVar[dict[str, str]] = {'process': '1.2'}

    uuid: UUIDValue
    name: str | None = None
    project_id: str | None = None
    image_id: str | None = None
    hypervisor_id: str | None = None
    process: str | None = None

    fields = {
        'uuid': fields.UUIDField(),
        'name': ovo_fields.StringField(nullable=True),
        'project_id': ovo_fields.StringField(nullable=True),
        'image_id': ovo_fields.StringField(nullable=True),
        # The hypervisor's own id of the instance. PowerVM: the UUID of the
        # LPAR. libvirt: not needed, as the domain has the instance's UUID.
        'hypervisor_id': ovo_fields.StringField(nullable=True),
        # The process that uses the accelerators, as os_acc.kernel.process
        # identifies it. When it has ended, recover() releases them. None: the
        # instance is not a process.
        'process': ovo_fields.StringField(nullable=True),
    }

    @property
    def host_service(self) -> str | None:
        """Its name if it is a service of the host, such as host:ovs."""
        return instance_names.host_service(self.uuid, self.name)

    def obj_make_compatible(
        self, primitive: dict[str, Any], target_version: str
    ) -> None:
        """Put '' in place of None for a reader of version 1.0."""
        super().obj_make_compatible(primitive, target_version)
        if versionutils.convert_version_to_tuple(target_version) < (1, 1):
            for name in ('name', 'project_id'):
                if primitive.get(name) is None:
                    primitive[name] = ''
