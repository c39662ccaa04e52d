# SPDX-License-Identifier: Apache-2.0

"""A device that discovery reports, its attach handles and its mdev types."""

from __future__ import annotations

from oslo_versionedobjects import fields as ovo_fields

from os_acc.objects import base
from os_acc.objects import fields
from os_acc.objects.fields import UUIDOrNone
from os_acc.objects.handle import AttachHandle

#: The device cannot be programmed.
PROGRAMMING_NONE = 'none'
#: It holds one function at a time, for all of its handles.
PROGRAMMING_SINGLE = 'single'
#: Each region of the device holds its own function.
PROGRAMMING_DYNAMIC = 'dynamic'


#: The handle can be given to a guest now.
FREE = 'free'
#: A VAN or a guest has it, or has something that it cannot be separated from.
USED = 'used'
#: The host uses it, or uses another member of its IOMMU group.
HOST = 'host'
#: It does not exist, or no guest can get it as the host is set up.
ABSENT = 'absent'
#: It is kept back after its last use until an operator frees it.
RESERVED = 'reserved'


OK = 'ok'
UNHEALTHY = 'unhealthy'
REBOOT = 'reboot'


class HealthField(ovo_fields.AutoTypedField[str]):
    AUTO_TYPE = ovo_fields.Enum(valid_values=(OK, UNHEALTHY, REBOOT))


class HandleStateField(ovo_fields.AutoTypedField[str]):
    AUTO_TYPE = ovo_fields.Enum(
        valid_values=(FREE, USED, HOST, ABSENT, RESERVED)
    )


class ProgrammingField(ovo_fields.AutoTypedField[str]):
    AUTO_TYPE = ovo_fields.Enum(
        valid_values=(
            PROGRAMMING_NONE,
            PROGRAMMING_SINGLE,
            PROGRAMMING_DYNAMIC,
        )
    )


@base.VersionedObjectRegistry.register
class DeviceHandleInfo(base.VersionedObject):
    """An attach handle of a device, and whether it is available now."""

    VERSION = '1.0'

    handle: AttachHandle
    state: str = FREE
    holder: UUIDOrNone = UUIDOrNone()
    reason: str | None = None
    region: str | None = None

    fields = {
        'handle': ovo_fields.ObjectField('AttachHandle', subclasses=True),
        'state': HandleStateField(default=FREE),
        # UUID of the VAN that has or requests the handle.
        'holder': fields.UUIDField(nullable=True),
        # Why the handle is not free: a clause such as 'it has 2 VFs'. Of a
        # free one: for whom a document of os-acc apply reserves it.
        'reason': ovo_fields.StringField(nullable=True),
        # The region of the device that the handle gives access to, a key of
        # Device.functions. Empty: the device is programmed as a whole. None:
        # it cannot be programmed.
        'region': ovo_fields.StringField(nullable=True),
    }


@base.VersionedObjectRegistry.register
class DeviceMdevTypeInfo(base.VersionedObject):
    """A type of mediated device that a device can create.

    The types of a device share its capacity: creating a mediated device of one
    type lowers the numbers of the others.
    """

    VERSION = '1.0'

    name: str
    label: str | None = None
    capacity: int
    available: int

    fields = {
        'name': fields.NameField(),
        # The vendor's text for the type, such as 'NVIDIA A40-8Q'.
        'label': ovo_fields.StringField(nullable=True),
        # How many more of this type fit into the device.
        'capacity': fields.CountField(),
        # How many more of this type can be given out now.
        'available': fields.CountField(),
    }


@base.VersionedObjectRegistry.register
class DeviceChipInfo(base.VersionedObject):
    """The chip of a device: an FPGA, with all PCI functions that it has.

    Several devices can have one chip, such as its management function and its
    user function. Programming one of them changes all of them.
    """

    VERSION = '1.0'

    address: str
    functions: list[str] = []
    serial: str | None = None
    board: str | None = None
    interface_ids: list[str] = []

    fields = {
        # The lowest address of its PFs.
        'address': fields.DeviceAddressField(),
        # The addresses of all its PCI functions, VFs included.
        'functions': ovo_fields.ListOfStringsField(default=[]),
        'serial': ovo_fields.StringField(nullable=True),
        'board': ovo_fields.StringField(nullable=True),
        # The ids of its shell's interfaces; an image is made for one of them.
        'interface_ids': ovo_fields.ListOfStringsField(default=[]),
    }


@base.VersionedObjectRegistry.register
class Device(base.VersionedObject):
    """An accelerator of this host, and the attach handles that it has.

    The numbers of handles agree with the lists: handles_total is the number
    of handles plus the largest capacity of an mdev type; handles_free is the
    number of free handles plus the largest available number of an mdev type.
    A driver that was written for version 1.0 leaves both lists empty.
    """

    # Version 1.0: Initial version
    # Version 1.1: Added handles, mdev_types, functions
    # Version 1.2: Added health, health_reason, health_since, chip
    VERSION = '1.2'

    ADDED_IN = {
        'handles': '1.1',
        'mdev_types': '1.1',
        'functions': '1.1',
        'health': '1.2',
        'health_reason': '1.2',
        'health_since': '1.2',
        'chip': '1.2',
    }

    address: str
    driver: str
    vendor_id: str = ''
    product_id: str = ''
    resource_class: str = ''
    traits: list[str] = []
    numa_node: int | None = None
    handles_total: int
    handles_free: int
    handles: list[DeviceHandleInfo] = []
    mdev_types: list[DeviceMdevTypeInfo] = []
    programming: str = PROGRAMMING_NONE
    function_id: str | None = None
    functions: dict[str, str | None] = {}
    health: str = OK
    health_reason: str | None = None
    health_since: str | None = None
    chip: DeviceChipInfo | None = None

    fields = {
        'address': fields.DeviceAddressField(),
        'driver': fields.NameField(),
        # 4 hex digits; empty if the device has none.
        'vendor_id': ovo_fields.StringField(default=''),
        'product_id': ovo_fields.StringField(default=''),
        'resource_class': ovo_fields.StringField(default=''),
        'traits': ovo_fields.ListOfStringsField(default=[]),
        'numa_node': ovo_fields.IntegerField(nullable=True),
        'handles_total': fields.CountField(),
        'handles_free': fields.CountField(),
        'handles': ovo_fields.ListOfObjectsField(
            'DeviceHandleInfo', default=[]
        ),
        'mdev_types': ovo_fields.ListOfObjectsField(
            'DeviceMdevTypeInfo', default=[]
        ),
        'programming': ProgrammingField(default=PROGRAMMING_NONE),
        # The function that all regions have; None: none, or different ones.
        'function_id': fields.NameField(nullable=True),
        # The function of each region. The key is empty for a device that is
        # programmed as a whole. None: unknown, or none.
        'functions': ovo_fields.DictOfNullableStringsField(default={}),
        # 'unhealthy': it has failed, and is given to nobody until an operator
        # frees it. 'reboot': it is given to nobody until the host was switched
        # off and on, because it has been programmed with something new.
        'health': HealthField(default=OK),
        # Why the health is not 'ok': a clause.
        'health_reason': ovo_fields.StringField(nullable=True),
        # Since when, ISO 8601.
        'health_since': ovo_fields.StringField(nullable=True),
        # None: it is no FPGA, or its chip is unknown.
        'chip': ovo_fields.ObjectField('DeviceChipInfo', nullable=True),
    }

    def counted(self) -> tuple[int, int]:
        """Count handles_total and handles_free from the two lists."""
        free = sum(each.state == FREE for each in self.handles)
        kinds = self.mdev_types
        return (
            len(self.handles) + max((k.capacity for k in kinds), default=0),
            free + max((k.available for k in kinds), default=0),
        )
