# SPDX-License-Identifier: Apache-2.0

"""Attach handles: a driver makes them, a plugin attaches them."""

from __future__ import annotations

from typing import Any
from typing import Self

from oslo_versionedobjects import fields as ovo_fields

from os_acc import exception
from os_acc.objects import base
from os_acc.objects import fields
from os_acc.objects.fields import DRCIndexValue
from os_acc.objects.fields import UUIDValue


@base.VersionedObjectRegistry.register
class AttachHandle(base.VersionedObject):
    """Identifies on the host an accelerator that can be attached to a guest.

    This class is abstract. A driver makes an object of a subclass.
    """

    VERSION = '1.0'

    def __init__(self, context: Any = None, **kwargs: Any) -> None:
        if type(self) is AttachHandle:
            raise TypeError('AttachHandle is abstract: use a subclass')
        super().__init__(context, **kwargs)

    @classmethod
    def cast(cls, handle: AttachHandle | None, taker: str) -> Self:
        """Return a handle that must be of this class.

        :param taker: who takes only handles of this class, for the error,
            such as "driver 'pci'"
        :raises UnsupportedHandle: if it is of another class, or None
        """
        if isinstance(handle, cls):
            return handle
        raise exception.UnsupportedHandle(
            taker=taker,
            handle=handle.obj_name() if handle is not None else None,
            takes=cls.obj_name(),
        )

    @property
    def identity(self) -> str:
        """A text that identifies the device on this host.

        Two handles with the same identity are the same device.
        """
        values = [str(getattr(self, name)) for name in sorted(self.fields)]
        return '/'.join([self.obj_name(), *values])


@base.VersionedObjectRegistry.register
class PCIHandle(AttachHandle):
    """A PCI function: a PF or a VF."""

    VERSION = '1.0'

    address: str
    managed: bool | None = None
    physical_network: str | None = None

    fields = {
        'address': fields.PCIAddressField(),
        # True: the hypervisor binds the function to vfio-pci and back, as
        # libvirt does with managed='yes'. None: the plugin's option decides.
        'managed': fields.FlagField(nullable=True),
        # The physical network that a function of a smart NIC is on.
        'physical_network': fields.NameField(nullable=True),
    }

    @property
    def identity(self) -> str:
        return f'pci/{self.address}'


@base.VersionedObjectRegistry.register
class MdevHandle(AttachHandle):
    """A mediated device: its UUID, its parent and its mdev type."""

    VERSION = '1.0'

    uuid: UUIDValue
    parent: str
    type: str

    fields = {
        'uuid': fields.UUIDField(),
        # The name of the parent in sysfs: a PCI address, or a name such as
        # mtty, matrix or 0.0.0033.
        'parent': fields.DeviceAddressField(),
        'type': fields.NameField(),
    }

    @property
    def identity(self) -> str:
        return f'mdev/{self.uuid}'


@base.VersionedObjectRegistry.register
class DRCHandle(AttachHandle):
    """An I/O slot of Power: its Dynamic Reconfiguration Connector (DRC)."""

    VERSION = '1.0'

    drc_index: DRCIndexValue
    drc_name: str | None = None
    bus_grp_required: bool | None = None

    fields = {
        'drc_index': fields.DRCIndexField(),
        # The location code, such as U78CB.001.WZS0JZB-P1-C7.
        'drc_name': fields.NameField(nullable=True),
        'bus_grp_required': fields.FlagField(nullable=True),
    }

    @property
    def identity(self) -> str:
        return f'drc/{self.drc_index}'


@base.VersionedObjectRegistry.register
class DeviceFile(base.VersionedObject):
    """A character or block device in /dev."""

    VERSION = '1.0'

    path: str
    type: str
    major: int
    minor: int
    permissions: str = 'rw'

    fields = {
        'path': fields.DevicePathField(),
        # c: a character device, b: a block device, as in mknod(1).
        'type': ovo_fields.EnumField(valid_values=['c', 'b']),
        'major': fields.CountField(),
        'minor': fields.CountField(),
        # Letters of r (read), w (write) and m (mknod). Unset, it is rw.
        'permissions': fields.PermissionsField(default='rw'),
    }


@base.VersionedObjectRegistry.register
class DeviceFileHandle(AttachHandle):
    """Files of /dev that belong to one accelerator.

    The numbers of the files are those of this boot of the host: a driver
    reads them again when it prepares the VAN after a reboot.
    """

    VERSION = '1.0'

    name: str
    share: str | None = None
    files: list[DeviceFile]

    fields = {
        # Identifies the accelerator on this host, also after a reboot.
        'name': fields.DeviceAddressField(),
        # Set if several VANs may have the accelerator at once: it then
        # differs between their handles.
        'share': fields.NameField(nullable=True),
        'files': ovo_fields.ListOfObjectsField('DeviceFile'),
    }

    @property
    def identity(self) -> str:
        if self.share is None:
            return f'file/{self.name}'
        return f'file/{self.name}/{self.share}'


@base.VersionedObjectRegistry.register
class BlockHandle(AttachHandle):
    """A block device that comes over a network, such as a namespace of NVMe.

    Its name in /dev, such as nvme1n1, may change at each connection.
    """

    VERSION = '1.0'

    path: str
    wwn: str

    fields = {
        # A symbolic link of udev that names the same device at each
        # connection, such as /dev/disk/by-id/nvme-uuid.1b4e28ba-...
        'path': fields.DevicePathField(),
        # The world wide name, as the kernel has it in the file wwid of the
        # device in sysfs, such as uuid.1b4e28ba-... or eui.0025...
        'wwn': fields.NameField(),
    }

    @property
    def identity(self) -> str:
        return f'block/{self.wwn}'


@base.VersionedObjectRegistry.register
class TestHandle(AttachHandle):
    """A handle without a device: for Cyborg's TEST_PCI and the fake driver."""

    __test__ = False  # pytest takes a class named Test... for a test

    VERSION = '1.0'

    name: str

    fields = {
        'name': fields.DeviceAddressField(),
    }

    @property
    def identity(self) -> str:
        return f'test/{self.name}'
