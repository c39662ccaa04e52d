# SPDX-License-Identifier: Apache-2.0

"""The request for one accelerator of one instance."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar

from oslo_versionedobjects import fields as ovo_fields

from os_acc import exception
from os_acc.bitstreams import reference as bitstream_reference
from os_acc.objects import arq as arq_format
from os_acc.objects import base
from os_acc.objects import device_profile
from os_acc.objects import fields
from os_acc.objects.fields import UUIDOrNone
from os_acc.objects.fields import UUIDValue
from os_acc.objects.handle import AttachHandle
from os_acc.objects.handle import PCIHandle
from os_acc.objects.port import PortBinding


@base.VersionedObjectRegistry.register
class AcceleratorRequest(base.VersionedObject):
    """An accelerator request (ARQ) of Cyborg, or a selector.

    An ARQ has an attach handle already. A selector describes the wanted
    device by resource_class, traits and driver; the driver then chooses a
    device that fits.
    """

    # Version 1.0: Initial version
    # Version 1.1: Added port_uuid and port
    VERSION = '1.1'

    ADDED_IN: ClassVar[dict[str, str]] = {'port_uuid': '1.1', 'port': '1.1'}

    uuid: UUIDValue
    state: str | None = None
    hostname: str | None = None
    instance_uuid: UUIDOrNone = UUIDOrNone()
    device_profile_name: str | None = None
    device_profile_group_id: int | None = None
    device_rp_uuid: UUIDOrNone = UUIDOrNone()
    handle: AttachHandle | None = None
    resource_class: str | None = None
    traits: list[str] = []
    driver: str | None = None
    bitstream: str | None = None
    function_id: str | None = None
    port_uuid: UUIDOrNone = UUIDOrNone()
    port: PortBinding | None = None

    fields = {
        # The VAN of this request gets the same UUID.
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
        # The name of the driver to use. If it is set, no driver is asked
        # whether it handles the request.
        'driver': fields.NameField(nullable=True),
        # Path, URL or image id of the bitstream to program.
        'bitstream': ovo_fields.StringField(nullable=True),
        'function_id': fields.NameField(nullable=True),
        # The network port that the accelerator serves.
        'port_uuid': fields.UUIDField(nullable=True),
        # What that port needs of the accelerator.
        'port': ovo_fields.ObjectField(PortBinding.obj_name(), nullable=True),
    }

    #: The fields that say which device is wanted, and with which function. A
    #: repeated request for a plugged VAN must have the same values in them.
    SELECTORS = (
        'handle',
        'resource_class',
        'traits',
        'driver',
        'bitstream',
        'function_id',
        'port',
    )

    def __repr__(self) -> str:
        """Show the fields, and the bitstream without its URL's secrets."""
        shown = self.obj_clone()
        if shown.bitstream is not None:
            shown.bitstream = bitstream_reference.masked(shown.bitstream)
        return str(super(AcceleratorRequest, shown).__repr__())

    @property
    def physical_network(self) -> str | None:
        """The physical network of its port or handle; None if any will do.

        :raises InvalidRequest: if port and handle name different ones
        """
        by_port: str | None = None
        by_handle: str | None = None
        if self.port is not None:
            by_port = self.port.physical_network
        if isinstance(self.handle, PCIHandle):
            by_handle = self.handle.physical_network
        if by_port and by_handle and by_port != by_handle:
            raise exception.InvalidRequest(
                subject=f'request {self.uuid}',
                field='port.physical_network',
                value=by_port,
                expected=f'{by_handle}, as in the handle',
            )
        return by_port or by_handle

    @classmethod
    def from_arq(cls, arq: Mapping[str, Any]) -> AcceleratorRequest:
        """Make a request from an ARQ of Cyborg's REST API (v2).

        :param arq: one item of ``arqs`` in Cyborg's response; unknown keys
            are ignored
        :returns: the request, with its handle
        :raises ARQNotBound: if the state of the ARQ is not Bound
        :raises InvalidRequest: if a value is malformed, out of range or
            missing; the error names the ARQ, the field and the value
        """
        request = cls.partial()
        arq_format.fill(request, arq)
        return request

    @classmethod
    def from_arqs(
        cls,
        arqs: Sequence[Mapping[str, Any]],
        profiles: device_profile.Profiles | None = None,
    ) -> list[AcceleratorRequest]:
        """Make a request from each ARQ of a list, in the same order.

        :param arqs: the ARQs; see from_arq
        :param profiles: the groups of each device profile by its name, as
            ``groups`` in Cyborg's GET /v2/device_profiles. The group of an
            ARQ gives the request its function_id (accel:function_id) and
            bitstream (accel:bitstream_id), which os-acc then programs. None:
            the requests name no function
        :raises ARQNotBound, InvalidRequest: see from_arq
        :raises InvalidRequest: also if profiles lacks the device profile or
            the group of an ARQ
        """
        if not isinstance(arqs, Sequence) or isinstance(arqs, str | bytes):
            raise exception.InvalidRequest(
                subject='ARQs',
                field='arqs',
                value=arqs,
                expected="a list of ARQs ('arqs' in Cyborg's response)",
            )
        requests = [cls.from_arq(arq) for arq in arqs]
        if profiles is not None:
            for request in requests:
                device_profile.fill(request, profiles)
        return requests
