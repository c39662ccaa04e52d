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
from typing import Any
from typing import TypeVar

from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.privileged import root_folder
from os_acc.privileged import store


@dataclasses.dataclass(frozen=True)
class Vfs:
    """The VFs that were made on a PF.

    :ivar number: how many
    :ivar autoprobe: the PF's sriov_drivers_autoprobe before; None if the
        kernel has no such file
    :ivar settings: what was set for each of them when they were made, by the
        names of rtnetlink.SETTINGS
    """

    number: int
    autoprobe: str | None
    settings: list[dict[str, Any]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Storage:
    """A PCI function that stores data.

    :ivar ids: vendor:product
    :ivar empty: True: it was emptied, and no guest has had it since; False: a
        guest has had it since
    :ivar instance: the instance that has had it since; None if it is empty
    :ivar drive: which drive it is, see kernel.nvme; None: unknown
    """

    ids: str
    empty: bool
    instance: str | None = None
    drive: str | None = None


@dataclasses.dataclass(frozen=True)
class ContainerSpec:
    """The CDI spec of a VAN. See container_specs.

    :ivar directory: where its file is
    :ivar kind: of its device
    :ivar instance: the instance of the VAN
    :ivar nodes: path, type, major and minor of each device file in it, without
        those that every such container has
    :ivar handle: the identity of the VAN's handle
    :ivar containers: those that were seen with its device, see
        container_use.User
    """

    directory: str
    kind: str
    instance: str
    nodes: list[list[Any]]
    handle: str = ''
    containers: list[str] = dataclasses.field(default_factory=list)


_T = TypeVar('_T')


class Records(store.Store[_T]):
    """The records of one kind: a small file for each device.

    The files need not survive a loss of power, because the state of the
    devices does not survive it either. A record of an earlier boot does not
    count.

    :param directory: the name of their directory below root_folder.PATH
    :param kind: a dataclass of what an undo needs to know about a device
    """

    def __init__(self, directory: str, kind: type[_T]) -> None:
        def of_this_boot(found: Any) -> _T | None:
            # /run of a container may outlive a reboot of the host.
            if found['boot_id'] != sysfs.boot_id():
                return None
            return kind(**found['before'])

        files = root_folder.RootFiles(
            lambda: f'{root_folder.PATH}/{directory}',
            lambda: root_folder.open_directory(directory),
            durable=False,
        )
        super().__init__(
            files,
            of_this_boot,
            lambda value: {'boot_id': sysfs.boot_id(), 'before': value},
            label='record',
        )

    def of(self, function: pci.Function) -> _T | None:
        """The record of a function; None: there is another one by now.

        The records have the field ids: vendor:product of the function.
        """
        found = self.read(function.address)
        return found if getattr(found, 'ids', None) == function.ids else None


vfs = Records('vfs', Vfs)
storage = Records('storage', Storage)
container_specs = Records('container-specs', ContainerSpec)
