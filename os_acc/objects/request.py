# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What the caller wants: one accelerator for one instance."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from oslo_versionedobjects import fields as ovo_fields

from os_acc import exception
from os_acc.objects import arq as arq_format
from os_acc.objects import base
from os_acc.objects import fields


@base.VersionedObjectRegistry.register
class AcceleratorRequest(base.VersionedObject):
    """An accelerator request (ARQ) of Cyborg's, or a selector.

    An ARQ comes with an attach handle. A selector says by resource_class,
    traits and driver what it wants; the driver then chooses the device.
    """

    # Version 1.0: Initial version
    VERSION = '1.0'

    fields = {
        # Becomes the VAN's uuid.
        'uuid': fields.UUIDField(),
        'state': ovo_fields.StringField(nullable=True),
        'hostname': fields.NameField(nullable=True),
        'instance_uuid': fields.UUIDField(nullable=True),
        'device_profile_name': ovo_fields.StringField(nullable=True),
        'device_profile_group_id': fields.CountField(nullable=True),
        'device_rp_uuid': fields.UUIDField(nullable=True),
        'handle': ovo_fields.ObjectField(
            'AttachHandle', subclasses=True, nullable=True
        ),
        'resource_class': fields.NameField(nullable=True),
        'traits': ovo_fields.ListOfStringsField(default=[]),
        # Name of the driver to use, whatever the others claim.
        'driver': fields.NameField(nullable=True),
        # Path, URL or image id of what to program.
        'bitstream': ovo_fields.StringField(nullable=True),
        'function_id': fields.NameField(nullable=True),
    }

    #: The fields that say which device and what on it: asking again for a
    #: plugged VAN with another value in one of them is not the same request.
    SELECTORS = (
        'handle',
        'resource_class',
        'traits',
        'driver',
        'bitstream',
        'function_id',
    )

    @classmethod
    def from_arq(cls, arq: Mapping[str, Any]) -> AcceleratorRequest:
        """Take an ARQ as Cyborg's REST API (v2) gives it.

        :param arq: one item of the answer's ``arqs``; keys that os-acc does
            not know are left alone
        :returns: the request, with its handle
        :raises ARQNotBound: its state is not Bound
        :raises InvalidRequest: a value is malformed, out of range or missing;
            the error names the ARQ, the field and the value
        """
        request = cls()
        arq_format.fill(request, arq)
        return request

    @classmethod
    def from_arqs(
        cls, arqs: Sequence[Mapping[str, Any]]
    ) -> list[AcceleratorRequest]:
        """Take a list of ARQs, in its order. See from_arq."""
        if not isinstance(arqs, Sequence) or isinstance(arqs, str | bytes):
            raise exception.InvalidRequest(
                subject='ARQs',
                field='arqs',
                value=arqs,
                expected="a list of ARQs (the 'arqs' of Cyborg's answer)",
            )
        return [cls.from_arq(arq) for arq in arqs]
