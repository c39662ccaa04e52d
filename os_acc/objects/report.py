# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What recover() did."""

from __future__ import annotations

from oslo_versionedobjects import fields as ovo_fields

from os_acc.objects import base


@base.VersionedObjectRegistry.register
class RecoveryReport(base.VersionedObject):
    """What a crash or a reboot had left, and what became of it."""

    # Version 1.0: Initial version
    # Version 1.1: Added errors
    VERSION = '1.1'

    ADDED_IN = {'errors': '1.1'}

    fields = {
        # Half done before; undone or finished now, and gone.
        'released': ovo_fields.ListOfObjectsField('VAN', default=[]),
        # Plugged before a reboot of the host; prepared again.
        'restored': ovo_fields.ListOfObjectsField('VAN', default=[]),
        # Still to be done; each VAN's error says why.
        'failed': ovo_fields.ListOfObjectsField('VAN', default=[]),
        # By instance UUID: why its rows in the journal cannot be read.
        'unreadable': ovo_fields.DictOfStringsField(default={}),
        # UUIDs of instances that another thread or process is working on.
        'busy': ovo_fields.ListOfStringsField(default=[]),
        # By instance UUID: the unexpected error that ended its recovery.
        'errors': ovo_fields.DictOfStringsField(default={}),
    }
