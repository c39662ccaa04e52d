# SPDX-License-Identifier: Apache-2.0

"""What the privileged half has done in this boot, by its own record.

The privileged half trusts no caller: it undoes only what the record says that
it did, and restores what the record says was there before. A record is written
before the device is touched, and deleted after the undo is complete. After a
crash in between, the record may name a device that was not changed, or not
any more. The undo therefore compares it with the device.

The caller holds the operation lock of the device.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any
from typing import Generic
from typing import TypeVar

from os_acc import exception
from os_acc.kernel import boot
from os_acc.privileged import root_files
from os_acc.privileged import root_folder


@dataclasses.dataclass(frozen=True)
class Record:
    """What an undo needs to know of a device."""


@dataclasses.dataclass(frozen=True)
class Function(Record):
    """A PCI function that was bound to VFIO.

    :ivar ids: vendor:product
    :ivar driver: its driver before; None if it had none
    :ivar override: its driver_override before; None if it was unset
    :ivar vfio_driver: the driver that it was to be bound to
    """

    ids: str
    driver: str | None
    override: str | None
    vfio_driver: str


@dataclasses.dataclass(frozen=True)
class Vfs(Record):
    """The VFs that were made on a PF.

    :ivar number: how many
    :ivar autoprobe: the PF's sriov_drivers_autoprobe before; None if the
        kernel has no such file
    """

    number: int
    autoprobe: str | None


@dataclasses.dataclass(frozen=True)
class Mdev(Record):
    """A mediated device that was made."""

    parent: str
    type: str


@dataclasses.dataclass(frozen=True)
class Vgpu(Record):
    """The vGPU type that was set on a VF."""

    number: int


@dataclasses.dataclass(frozen=True)
class Storage(Record):
    """A PCI function that stores data.

    :ivar ids: vendor:product
    :ivar empty: True: it was emptied, and no guest has had it since; False: a
        guest has had it since
    :ivar instance: the instance that has had it since; None if it is empty
    """

    ids: str
    empty: bool
    instance: str | None = None


@dataclasses.dataclass(frozen=True)
class Port(Record):
    """The settings of a NIC's VF that were changed on its PF.

    :ivar ids: vendor:product
    :ivar ours: what was set, by the names of rtnetlink.SETTINGS
    :ivar before: what was there before, by the same names
    """

    ids: str
    ours: dict[str, Any]
    before: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class DflCard(Record):
    """A card whose ports or driver os-acc is changing. See dfl_ports.

    :ivar released: the numbers of the ports that were to be released
    :ivar unbound: whether it was to be unbound from its driver and bound again
    """

    released: list[int]
    unbound: bool


@dataclasses.dataclass(frozen=True)
class Removal(Record):
    """A chip whose functions are being removed from the bus.

    :ivar buses: the buses to scan, so that its functions are found again
    """

    buses: list[str]


@dataclasses.dataclass(frozen=True)
class DflPort(Record):
    """A port of a card whose programming has begun and has not succeeded.

    :ivar failed: True: it has failed; False: it may still be under way
    """

    failed: bool


@dataclasses.dataclass(frozen=True)
class DeviceFile(Record):
    """A device file whose owner or permissions were changed.

    :ivar name: of the accelerator that the file is of
    :ivar inode: another file at the same path has another one
    :ivar before: user id, group id and permissions before
    :ivar ours: the same, as they were to be set
    """

    name: str
    path: str
    inode: int
    before: list[int]
    ours: list[int]


@dataclasses.dataclass(frozen=True)
class ContainerSpec(Record):
    """The CDI spec of a VAN. See container_specs.

    :ivar folder: where its file is
    :ivar kind: of its device
    :ivar instance: the instance of the VAN
    :ivar nodes: path, type, major and minor of each device file in it, without
        those that every such container has
    :ivar handle: the identity of the VAN's handle
    :ivar containers: those that were seen with its device, see
        container_use.User
    """

    folder: str
    kind: str
    instance: str
    nodes: list[list[Any]]
    handle: str = ''
    containers: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class IdxdDevice(Record):
    """A device of Intel DSA or IAA that was set up and enabled.

    :ivar ids: vendor:product
    :ivar mode: of each work queue, as size
    :ivar queues: the group of each work queue, by its number in digits
    :ivar engines: the group of each engine, by its number in digits
    """

    ids: str
    mode: str
    size: int
    queues: dict[str, int]
    engines: dict[str, int]


@dataclasses.dataclass(frozen=True)
class IdxdQueue(Record):
    """A work queue of Intel DSA or IAA that was configured and enabled.

    :ivar ids: vendor:product
    :ivar van: the UUID of the VAN that has it
    :ivar before: what its files contained before, by their names
    """

    ids: str
    van: str
    before: dict[str, str]


@dataclasses.dataclass(frozen=True)
class IdxdFiles(Record):
    """The device files that a work queue has had for a VAN in this boot.

    The kernel forgets who has a work queue open when it is disabled, and gives
    it another number when it is enabled again.

    :ivar files: path, major number, minor number and, as
        open_files.place_of() says it, the place of each
    """

    van: str
    files: list[list[Any]]


@dataclasses.dataclass(frozen=True)
class Connection(Record):
    """The connections of an instance to a subsystem of an NVMe-oF target.

    :ivar nqn: of the subsystem
    :ivar instance: its UUID
    :ivar portals: those that nobody was connected to before, each as address,
        port and transport
    :ivar namespaces: the world wide names of those that the instance has by
        these connections
    """

    nqn: str
    instance: str
    portals: list[list[Any]]
    namespaces: list[str]


_T = TypeVar('_T', bound=Record)


class Records(Generic[_T]):
    """The records of one kind: a small file for each device.

    The files need not survive a loss of power, because the state of the
    devices does not survive it either.

    :param folder: the name of their folder below root_folder.PATH
    :param kind: the class of their contents
    """

    def __init__(self, folder: str, kind: type[_T]) -> None:
        self._kind = kind
        self._files = root_files.RootFiles(
            lambda: f'{root_folder.PATH}/{folder}',
            lambda: root_folder.open_folder(folder),
            durable=False,
        )

    def names(self) -> list[str]:
        """The names of the devices that have a record, of any boot."""
        return self._files.names()

    def read(self, name: str) -> _T | None:
        """Read the record of a device; None if there is none of this boot.

        :raises PrivilegeError: if it cannot be read
        """
        if (text := self._files.read(name)) is None:
            return None
        try:
            found: dict[str, Any] = json.loads(text)
            # /run of a container may outlive a reboot of the host.
            if found['boot_id'] != boot.boot_id():
                return None
            return self._kind(**found['before'])
        except (ValueError, TypeError, KeyError) as err:
            raise exception.PrivilegeError(
                reason=f'the record {self._files.path(name)} cannot be read '
                f'({exception.describe(err)}); it was changed by hand or '
                'written by another version of os-acc'
            ) from err

    def write(self, name: str, value: _T) -> None:
        """Write the record of a device, before the device is touched.

        :raises PrivilegeError: if it cannot be written
        """
        self._files.write(
            name,
            json.dumps(
                {
                    'boot_id': boot.boot_id(),
                    'before': dataclasses.asdict(value),
                }
            ),
        )

    def delete(self, name: str) -> None:
        """Delete the record of a device, if there is one."""
        self._files.delete(name)


functions = Records('functions', Function)
vfs = Records('vfs', Vfs)
mdevs = Records('mdevs', Mdev)
vgpus = Records('vgpus', Vgpu)
storage = Records('storage', Storage)
ports = Records('ports', Port)
dfl_cards = Records('dfl-cards', DflCard)
removals = Records('removals', Removal)
dfl_ports = Records('dfl-ports', DflPort)
device_files = Records('device-files', DeviceFile)
container_specs = Records('container-specs', ContainerSpec)
idxd_devices = Records('idxd-devices', IdxdDevice)
idxd_queues = Records('idxd-queues', IdxdQueue)
idxd_files = Records('idxd-files', IdxdFiles)
connections = Records('connections', Connection)
