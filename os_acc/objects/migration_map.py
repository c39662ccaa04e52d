# SPDX-License-Identifier: Apache-2.0

"""What changes in the definition of a guest that moves."""

from __future__ import annotations

from oslo_versionedobjects import fields as ovo_fields

from os_acc.objects import base
from os_acc.objects import fields
from os_acc.objects.fields import UUIDValue


@base.VersionedObjectRegistry.register
class MigrationChange(base.VersionedObject):
    """What changes for one accelerator; the rest stays as on the source."""

    # Version 1.0: Initial version
    VERSION = '1.0'

    uuid: UUIDValue
    source: str
    target: str

    fields = {
        # The UUID of the VAN, on both hosts.
        'uuid': fields.UUIDField(),
        # What the definition says on each host, in the plugin's own format.
        'source': ovo_fields.StringField(),
        'target': ovo_fields.StringField(),
    }


@base.VersionedObjectRegistry.register
class MigrationMap(base.VersionedObject):
    """What changes in a guest's definition, which it takes to the target."""

    # Version 1.0: Initial version
    VERSION = '1.0'

    format: str
    changes: list[MigrationChange]

    fields = {
        # As HostPluginInfo.guest_config_format.
        'format': fields.NameField(),
        # Of the VANs that are in the definition.
        'changes': ovo_fields.ListOfObjectsField('MigrationChange'),
    }
