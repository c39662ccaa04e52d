# SPDX-License-Identifier: Apache-2.0

"""The report of recover()."""

from __future__ import annotations

from oslo_versionedobjects import fields as ovo_fields

from os_acc.objects import base
from os_acc.objects.van import VAN


@base.VersionedObjectRegistry.register
class RecoveryReport(base.VersionedObject):
    """What recover() found after a crash or a reboot, and what it did."""

    # Version 1.0: Initial version
    # Version 1.1: Added errors
    VERSION = '1.1'

    ADDED_IN = {'errors': '1.1'}

    released: list[VAN] = []
    restored: list[VAN] = []
    failed: list[VAN] = []
    unreadable: dict[str, str] = {}
    busy: list[str] = []
    errors: dict[str, str] = {}

    fields = {
        # VANs whose plug or unplug was interrupted. They have been released,
        # and are no longer in the journal.
        'released': ovo_fields.ListOfObjectsField('VAN', default=[]),
        # VANs that were plugged before a reboot of the host. Their devices
        # have been prepared again.
        'restored': ovo_fields.ListOfObjectsField('VAN', default=[]),
        # VANs that could not be released or prepared again. The error of
        # each VAN says why; the next recover() tries again.
        'failed': ovo_fields.ListOfObjectsField('VAN', default=[]),
        # Instances with rows in the journal that cannot be read: the reason,
        # by instance UUID.
        'unreadable': ovo_fields.DictOfStringsField(default={}),
        # UUIDs of instances that another thread or process is working on.
        'busy': ovo_fields.ListOfStringsField(default=[]),
        # Instances whose recovery ended with an unexpected error: the error,
        # by instance UUID.
        'errors': ovo_fields.DictOfStringsField(default={}),
    }
