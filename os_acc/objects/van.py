# SPDX-License-Identifier: Apache-2.0

"""The Virtual Accelerator Nexus: one accelerator in one instance."""

from __future__ import annotations

from collections.abc import Callable
import datetime
from typing import Any
from typing import ClassVar

from oslo_utils import versionutils
from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import fields as ovo_fields

from os_acc import exception
from os_acc.objects import base
from os_acc.objects import fields
from os_acc.objects.fields import UUIDOrNone
from os_acc.objects.fields import UUIDValue
from os_acc.objects.handle import AttachHandle

PREPARING = 'preparing'
PREPARED = 'prepared'  # not used now; objects may still contain it
PLUGGING = 'plugging'
PLUGGED = 'plugged'
INCOMING = 'incoming'
OUTGOING = 'outgoing'
UNPLUGGING = 'unplugging'
UNPREPARING = 'unpreparing'
ERROR = 'error'

STATES = (
    PREPARING,
    PREPARED,
    PLUGGING,
    PLUGGED,
    INCOMING,
    OUTGOING,
    UNPLUGGING,
    UNPREPARING,
    ERROR,
)

#: The instance moves to this host, or away from it: see os_acc.migration.
MOVING = (INCOMING, OUTGOING)
#: Both halves are done, and nothing is being undone.
WHOLE = (PLUGGED, *MOVING)


class VANStateField(ovo_fields.AutoTypedField[str]):
    AUTO_TYPE = ovo_fields.Enum(valid_values=STATES)


class _Connected:
    """What the methods of a VAN call. It is not a field of the VAN."""

    _save: Callable[[VAN], None] | None = None
    _report: Callable[[float | None, str | None], None] | None = None
    _time_left: Callable[[float], float] | None = None
    _others: Callable[[], list[VAN]] | None = None


@base.VersionedObjectRegistry.register
class VAN(_Connected, base.VersionedObject):
    """One accelerator attached to one instance, as a VIF is for a port.

    os-acc creates and stores it. A driver sets handle, device, function_id,
    live_migratable and driver_data; a plugin sets guest_config.
    """

    # Version 1.0: Initial version
    # Version 1.1: Added live_migratable
    # Version 1.2: Added owner
    # Version 1.3: Added migration_uuid, and the states incoming and outgoing
    # Version 1.4: Added migration_vans
    VERSION = '1.4'
    ADDED_IN: ClassVar[dict[str, str]] = {
        'live_migratable': '1.1',
        'owner': '1.2',
        'migration_uuid': '1.3',
        'migration_vans': '1.4',
    }

    uuid: UUIDValue
    instance_uuid: UUIDValue
    driver: str
    plugin: str
    owner: str | None = None
    state: str
    handle: AttachHandle | None = None
    device: str | None = None
    function_id: str | None = None
    guest_config: str | None = None
    driver_data: dict[str, str] = {}
    boot_id: str
    error: str | None = None
    live_migratable: bool | None = None
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None
    migration_uuid: UUIDOrNone = UUIDOrNone()
    migration_vans: list[str] | None = None

    fields = {
        # The UUID of the request.
        'uuid': fields.UUIDField(),
        'instance_uuid': fields.UUIDField(),
        'driver': fields.NameField(),
        'plugin': fields.NameField(),
        # Who plugged it: the owner that initialize() of that process got.
        # None: an earlier version of os-acc did.
        'owner': fields.NameField(nullable=True),
        'state': VANStateField(),
        'handle': ovo_fields.ObjectField(
            'AttachHandle', subclasses=True, nullable=True
        ),
        # Address of the parent device. DriverBase.vans_on() finds the VAN by
        # this address.
        'device': fields.DeviceAddressField(nullable=True),
        'function_id': fields.NameField(nullable=True),
        # For the guest's definition, in the plugin's own format.
        'guest_config': ovo_fields.StringField(nullable=True),
        # What the driver needs for the undo, and hints for the plugin. What
        # the plugin needs for the undo has keys that begin with its name.
        'driver_data': ovo_fields.DictOfStringsField(default={}),
        # The boot of the host in which the device was prepared.
        'boot_id': ovo_fields.StringField(),
        'error': ovo_fields.StringField(nullable=True),
        # Whether the instance can be live migrated with it; None: unknown.
        'live_migratable': ovo_fields.BooleanField(nullable=True),
        'created_at': ovo_fields.DateTimeField(nullable=True),
        'updated_at': ovo_fields.DateTimeField(nullable=True),
        # The migration that brings it, has brought it, or takes it away.
        'migration_uuid': fields.UUIDField(nullable=True),
        # The UUIDs of all VANs that were prepared for the migration together.
        # None: the VAN is not incoming.
        'migration_vans': ovo_fields.ListOfStringsField(nullable=True),
    }

    def obj_make_compatible(
        self, primitive: dict[str, Any], target_version: str
    ) -> None:
        """Show a VAN that is being moved as prepared to an older reader."""
        super().obj_make_compatible(primitive, target_version)
        target = versionutils.convert_version_to_tuple(target_version)
        if target < (1, 3) and primitive.get('state') in MOVING:
            primitive['state'] = PREPARED

    def connect(
        self,
        save: Callable[[VAN], None] | None,
        report: Callable[[float | None, str | None], None] | None = None,
        time_left: Callable[[float], float] | None = None,
        others: Callable[[], list[VAN]] | None = None,
    ) -> None:
        """Set what the following methods call. Only os-acc calls it."""
        self._save = save
        self._report = report
        self._time_left = time_left
        self._others = others

    def save(self) -> None:
        """Write the VAN to the journal. It is on the disk at the return.

        A driver calls it after it has set what the undo will need, and
        before it touches the device. A plugin does so in plug() and unplug(),
        before it asks the hypervisor for what may outlive the call.

        :raises DeviceBusy: if another VAN has the same handle, or, in
            prepareVAN, a device that excludes this one; this VAN is then set
            back to what was saved of it last
        :raises JournalError: if it cannot be written, or if os-acc is not
            working on this VAN now (get_vans() returns copies)
        """
        if self._save is None:
            raise exception.JournalError(
                path='(none)',
                reason=f'VAN {self.uuid} is a copy; only the driver or '
                'plugin that os-acc calls with a VAN can save it',
            )
        self._save(self)
        self.obj_reset_changes()

    def report_progress(
        self, fraction: float | None, message: str | None = None
    ) -> None:
        """Report the progress of the current step to the caller of plug.

        :param fraction: 0.0 to 1.0; None: unknown
        :param message: what is being done, in a few words
        """
        if self._report is not None:
            self._report(fraction, message)

    def others(self) -> list[VAN]:
        """The other VANs of the instance, as they were last saved.

        A plugin looks there for what only one device of a guest can have,
        such as an address in the guest. Each VAN is a copy.

        :raises JournalError: if the journal cannot be read
        """
        return [] if self._others is None else self._others()

    def time_left(self, seconds: float) -> float:
        """How long a plugin may still wait in unplug().

        The VANs of an instance are unplugged one after the other, and often
        wait for the same event: the end of its guest. So they share the time,
        which begins when the first of them asks.

        :param seconds: for all VANs of the call together
        :returns: seconds; 0 if none are left: then check once, without waiting
        """
        return seconds if self._time_left is None else self._time_left(seconds)


@base.VersionedObjectRegistry.register
class VANList(ovo_base.ObjectListBase['VAN'], base.VersionedObject):
    """VANs, in the order of the requests."""

    VERSION = '1.0'

    objects: list[VAN] = []

    fields = {
        'objects': ovo_fields.ListOfObjectsField('VAN'),
    }
