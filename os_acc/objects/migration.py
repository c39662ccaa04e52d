# SPDX-License-Identifier: Apache-2.0

"""What the target host of a migration must provide, and what changes there."""

from __future__ import annotations

from oslo_versionedobjects import fields as ovo_fields

from os_acc.objects import base
from os_acc.objects import fields
from os_acc.objects.fields import UUIDValue
from os_acc.objects.request import AcceleratorRequest
from os_acc.texts import ways


class WayField(ovo_fields.AutoTypedField[str]):
    AUTO_TYPE = ovo_fields.Enum(valid_values=ways.WAYS)


@base.VersionedObjectRegistry.register
class MigrationAccelerator(base.VersionedObject):
    """An accelerator of the instance, and what the target must provide."""

    VERSION = '1.0'

    uuid: UUIDValue
    driver: str
    handle_type: str
    mdev_type: str | None = None
    way: str
    live_migratable: bool | None = None
    left_behind: str | None = None
    obstacle: str | None = None
    request: AcceleratorRequest

    fields = {
        # The UUID of the VAN, on both hosts.
        'uuid': fields.UUIDField(),
        # The driver that must provide it, and the class of its attach handle.
        'driver': fields.NameField(),
        'handle_type': fields.NameField(),
        # The type of a mediated device. The hypervisor does not compare the
        # types, and a migration to another type fails midway.
        'mdev_type': fields.NameField(nullable=True),
        # The best way in which it can move: live, replug or cold.
        'way': WayField(),
        # As in the VAN.
        'live_migratable': fields.FlagField(nullable=True),
        # What stays on its device.
        'left_behind': ovo_fields.StringField(nullable=True),
        # Why it cannot move.
        'obstacle': ovo_fields.StringField(nullable=True),
        # What is asked of the target: a request without a handle.
        'request': ovo_fields.ObjectField('AcceleratorRequest'),
    }


@base.VersionedObjectRegistry.register
class MigrationPlan(base.VersionedObject):
    """What the target must provide, and how the instance moves."""

    VERSION = '1.0'

    instance_uuid: UUIDValue
    way: str
    obstacles: list[str]
    accelerators: list[MigrationAccelerator]

    fields = {
        'instance_uuid': fields.UUIDField(),
        # The best way for all of the accelerators: live, replug or cold.
        'way': WayField(),
        # Why some of them cannot move; empty if all can.
        'obstacles': ovo_fields.ListOfStringsField(),
        'accelerators': ovo_fields.ListOfObjectsField('MigrationAccelerator'),
    }


@base.VersionedObjectRegistry.register
class MigrationChange(base.VersionedObject):
    """What changes for one accelerator; the rest stays as on the source."""

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

    VERSION = '1.0'

    format: str
    changes: list[MigrationChange]

    fields = {
        # As HostPluginInfo.guest_config_format.
        'format': fields.NameField(),
        # Of the VANs that are in the definition.
        'changes': ovo_fields.ListOfObjectsField('MigrationChange'),
    }
