# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Attach handles: what a driver makes, a plugin attaches."""

from __future__ import annotations

from typing import Any

from os_acc.objects import base
from os_acc.objects import fields


@base.VersionedObjectRegistry.register
class AttachHandle(base.VersionedObject):
    """The host's name for an accelerator that can go into a guest.

    Abstract: a driver makes one of its subclasses.
    """

    # Version 1.0: Initial version
    VERSION = '1.0'

    def __init__(self, context: Any = None, **kwargs: Any) -> None:
        if type(self) is AttachHandle:
            raise TypeError('AttachHandle is abstract: use a subclass')
        super().__init__(context, **kwargs)

    @property
    def identity(self) -> str:
        """What makes it one device of this host: equal means the same."""
        values = [str(getattr(self, name)) for name in sorted(self.fields)]
        return '/'.join([self.obj_name(), *values])


@base.VersionedObjectRegistry.register
class PCIHandle(AttachHandle):
    """A PCI function, PF or VF."""

    # Version 1.0: Initial version
    VERSION = '1.0'

    fields = {
        'address': fields.PCIAddressField(),
        # True: the hypervisor binds it to VFIO and back (libvirt's managed).
        # None: the plugin's option decides.
        'managed': fields.FlagField(nullable=True),
        # The network that a smart NIC's function is on.
        'physical_network': fields.NameField(nullable=True),
    }

    @property
    def identity(self) -> str:
        return f'pci/{self.address}'


@base.VersionedObjectRegistry.register
class MdevHandle(AttachHandle):
    """A mediated device: UUID, the parent's sysfs name, the mdev type."""

    # Version 1.0: Initial version
    VERSION = '1.0'

    fields = {
        'uuid': fields.UUIDField(),
        # A PCI address, or a name: mtty, matrix, 0.0.0033
        'parent': fields.DeviceAddressField(),
        'type': fields.NameField(),
    }

    @property
    def identity(self) -> str:
        return f'mdev/{self.uuid}'


@base.VersionedObjectRegistry.register
class DRCHandle(AttachHandle):
    """A Power I/O slot by its Dynamic Reconfiguration Connector."""

    # Version 1.0: Initial version
    VERSION = '1.0'

    fields = {
        'drc_index': fields.DRCIndexField(),
        # The location code, U78CB.001.WZS0JZB-P1-C7
        'drc_name': fields.NameField(nullable=True),
        'bus_grp_required': fields.FlagField(nullable=True),
    }

    @property
    def identity(self) -> str:
        return f'drc/{self.drc_index}'


@base.VersionedObjectRegistry.register
class TestHandle(AttachHandle):
    """A handle of no device: Cyborg's TEST_PCI, and the fake driver's."""

    __test__ = False  # not a test class, whatever pytest makes of its name

    # Version 1.0: Initial version
    VERSION = '1.0'

    fields = {
        'name': fields.DeviceAddressField(),
    }

    @property
    def identity(self) -> str:
        return f'test/{self.name}'
