# SPDX-License-Identifier: Apache-2.0

"""Field types that are stricter than those of oslo.versionedobjects.

Each type keeps its values in one canonical form, so that two spellings of a
device's name are never taken for two devices.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from typing import Any
from typing import Generic
from typing import NoReturn
from typing import TypeVar
import uuid

from oslo_versionedobjects import fields

from os_acc import exception
from os_acc.kernel import pci
from os_acc.texts import forms

_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', re.I)
_DRC = re.compile(r'(?:0x)?([0-9A-F]{8})', re.I)


def _refuse(obj: Any, attr: str, value: Any, expected: str) -> NoReturn:
    subject = obj.obj_name() if obj is not None else 'value'
    raise exception.InvalidRequest(
        subject=subject, field=attr, value=value, expected=expected
    )


class UUID(fields.FieldType[str]):
    """A UUID with hyphens, kept in lower case."""

    def coerce(self, obj: Any, attr: str, value: Any) -> str:
        if isinstance(value, uuid.UUID):
            return str(value)
        if isinstance(value, str) and _UUID.fullmatch(value):
            return value.lower()
        _refuse(obj, attr, value, 'a UUID')


class PCIAddress(fields.FieldType[str]):
    """A PCI address, kept as ``0000:0c:00.1``, in lower case."""

    def coerce(self, obj: Any, attr: str, value: Any) -> str:
        parts = pci.parse(value) if isinstance(value, str) else None
        if parts is None:
            _refuse(obj, attr, value, 'a PCI address (dddd:bb:ss.f)')
        return pci.join(*parts)


class Name(fields.FieldType[str]):
    """A name that is safe as one component of a path."""

    def coerce(self, obj: Any, attr: str, value: Any) -> str:
        if isinstance(value, str) and forms.NAME.fullmatch(value):
            return value
        _refuse(obj, attr, value, forms.A_NAME)


class DevicePath(fields.FieldType[str]):
    """The absolute, normal path of a device file, such as /dev/dsa/wq0.0."""

    def coerce(self, obj: Any, attr: str, value: Any) -> str:
        if isinstance(value, str) and forms.is_device_path(value):
            return value
        _refuse(obj, attr, value, forms.A_DEVICE_PATH)


class Permissions(fields.FieldType[str]):
    """What a container may do with a device file.

    The letters are those of the devices cgroup of the kernel: r (read), w
    (write) and m (mknod); see Documentation/admin-guide/cgroup-v1/devices.rst.
    They are kept in this order.
    """

    def coerce(self, obj: Any, attr: str, value: Any) -> str:
        if isinstance(value, str) and forms.is_permissions(value):
            return ''.join(each for each in 'rwm' if each in value)
        _refuse(obj, attr, value, forms.PERMISSIONS)


class DeviceAddress(Name):
    """A PCI address in its canonical form, or a name such as mtty."""

    def coerce(self, obj: Any, attr: str, value: Any) -> str:
        name = super().coerce(obj, attr, value)
        parts = pci.parse(name)
        return name if parts is None else pci.join(*parts)


class DRCIndex(fields.FieldType[str]):
    """A Power DRC index, kept as 8 upper-case hex digits; accepts an int."""

    def coerce(self, obj: Any, attr: str, value: Any) -> str:
        index = 0
        if isinstance(value, int) and not isinstance(value, bool):
            index = value
        elif isinstance(value, str) and (match := _DRC.fullmatch(value)):
            index = int(match[1], 16)
        if not 0 < index <= 0xFFFFFFFF:
            _refuse(
                obj, attr, value, '8 hex digits or an int, 1 to 0xFFFFFFFF'
            )
        return f'{index:08X}'


class Flag(fields.FieldType[bool]):
    """True or False; any other value, such as 'no', is refused."""

    def coerce(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        _refuse(obj, attr, value, 'True or False')


class Count(fields.FieldType[int]):
    """An int that is not negative."""

    def coerce(self, obj: Any, attr: str, value: Any) -> int:
        if type(value) is int and value >= 0:
            return value
        _refuse(obj, attr, value, forms.A_COUNT)


class MACAddress(fields.FieldType[str]):
    """The MAC address of one interface, kept in lower case with colons."""

    def coerce(self, obj: Any, attr: str, value: Any) -> str:
        if isinstance(value, str) and forms.is_unicast_mac(value):
            return value.lower()
        _refuse(
            obj,
            attr,
            value,
            'a unicast MAC address (xx:xx:xx:xx:xx:xx) that is not zero',
        )


class VLAN(fields.FieldType[int]):
    """The id of a VLAN; 0 for none."""

    highest = forms.HIGHEST_VLAN

    def coerce(self, obj: Any, attr: str, value: Any) -> int:
        if type(value) is int and 0 <= value <= self.highest:
            return value
        _refuse(obj, attr, value, f'an int, 0 to {self.highest}')


class VLANPriority(VLAN):
    """The priority in a VLAN tag."""

    highest = forms.HIGHEST_VLAN_PRIORITY


class UUIDField(fields.AutoTypedField[str]):
    AUTO_TYPE = UUID()


class PCIAddressField(fields.AutoTypedField[str]):
    AUTO_TYPE = PCIAddress()


class NameField(fields.AutoTypedField[str]):
    AUTO_TYPE = Name()


class DeviceAddressField(fields.AutoTypedField[str]):
    AUTO_TYPE = DeviceAddress()


class DevicePathField(fields.AutoTypedField[str]):
    AUTO_TYPE = DevicePath()


class PermissionsField(fields.AutoTypedField[str]):
    AUTO_TYPE = Permissions()


class DRCIndexField(fields.AutoTypedField[str]):
    AUTO_TYPE = DRCIndex()


class FlagField(fields.AutoTypedField[bool]):
    AUTO_TYPE = Flag()


class CountField(fields.AutoTypedField[int]):
    AUTO_TYPE = Count()


class MACAddressField(fields.AutoTypedField[str]):
    AUTO_TYPE = MACAddress()


class VLANField(fields.AutoTypedField[int]):
    AUTO_TYPE = VLAN()


class VLANPriorityField(fields.AutoTypedField[int]):
    AUTO_TYPE = VLANPriority()


_Read = TypeVar('_Read')
_Write = TypeVar('_Write')


class Value(Generic[_Read, _Write]):
    """The annotation of a field that also takes another type than it reads as.

    Only type checkers use it.
    """

    if TYPE_CHECKING:

        def __get__(self, obj: object, owner: Any) -> _Read: ...

        def __set__(self, obj: object, value: _Write) -> None: ...


UUIDValue = Value[str, str | uuid.UUID]
UUIDOrNone = Value[str | None, str | uuid.UUID | None]
DRCIndexValue = Value[str, str | int]
