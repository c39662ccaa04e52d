# SPDX-License-Identifier: Apache-2.0

"""The reports of recover() and apply()."""

from __future__ import annotations

from oslo_versionedobjects import fields as ovo_fields

from os_acc.objects import base
from os_acc.objects.van import VAN

#: What apply() did with a step; WOULD_CHANGE is the answer of a check.
UNCHANGED = 'unchanged'
CHANGED = 'changed'
WOULD_CHANGE = 'would change'
IN_THE_WAY = 'in the way'
FAILED = 'failed'


class StepResultField(ovo_fields.AutoTypedField[str]):
    AUTO_TYPE = ovo_fields.Enum(
        valid_values=(UNCHANGED, CHANGED, WOULD_CHANGE, IN_THE_WAY, FAILED)
    )


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
        # have been prepared again. Also VANs of a migration that were assigned
        # to the instance.
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


@base.VersionedObjectRegistry.register
class ApplyStep(base.VersionedObject):
    """One thing that a document describes, and what apply() did with it."""

    VERSION = '1.0'

    part: str
    name: str
    before: str
    after: str
    result: str
    reason: str | None = None

    fields = {
        # The part of the document: offered, vfs or functions.
        'part': ovo_fields.StringField(),
        # A file of device_spec_dir, a PF, a device or a region of it.
        'name': ovo_fields.StringField(),
        # The earlier state, and the one that the document wants.
        'before': ovo_fields.StringField(),
        'after': ovo_fields.StringField(),
        # 'in the way': somebody uses it, and nothing was touched.
        'result': StepResultField(),
        # Who is in the way, or why it failed; a clause.
        'reason': ovo_fields.StringField(nullable=True),
    }


@base.VersionedObjectRegistry.register
class ApplyReport(base.VersionedObject):
    """What apply() did, or what it would do."""

    VERSION = '1.0'

    steps: list[ApplyStep] = []

    fields = {
        'steps': ovo_fields.ListOfObjectsField('ApplyStep', default=[]),
    }

    def results(self) -> set[str]:
        """The results of all steps, each once."""
        return {each.result for each in self.steps}
