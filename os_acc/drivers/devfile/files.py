# SPDX-License-Identifier: Apache-2.0

"""Device files as VANs have them: handles, and what driver_data says."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import re
from typing import Any

from os_acc import objects
from os_acc.claims import file_availability
from os_acc.claims import file_groups
from os_acc.drivers.pci import listing as pci_listing
from os_acc.kernel import boot
from os_acc.kernel import device_file
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.spec import device_spec

#: How the resource classes begin of files whose entry sets none.
PREFIX = 'CUSTOM_FILE_'

# Keys of VAN.driver_data.
ENTRY = 'entry'  # of device_spec, by which the VAN has got the files
OWN = 'own'  # how many of the handle's files, from the first, are not common
PENDING = 'pending'  # set until the instance can have got the files
SUBSYSTEM = 'subsystem'  # whose kernel events tell that the device is back


@dataclasses.dataclass(frozen=True)
class Kind:
    """The names in Placement that a request can select a device by."""

    resource_class: str
    traits: tuple[str, ...]

    def serves(self, request: objects.AcceleratorRequest) -> bool:
        return self.resource_class == request.resource_class and set(
            request.traits
        ) <= set(self.traits)


def kind_of(found: file_groups.Accelerator) -> Kind:
    """Name an accelerator as Placement does.

    Its traits are those of its entry, and those of the PCI function behind
    it.
    """
    traits = found.spec.traits
    function = function_of(found)
    if function is not None:
        behind = pci_listing.kind_of(function, device_spec.Spec())
        traits = tuple(dict.fromkeys((*traits, *behind.traits)))
    name = found.spec.resource_class
    if name is None:
        letters = re.sub('[^A-Za-z]', '', found.path.rpartition('/')[2])
        name = PREFIX + (letters.upper() or 'DEVICE')
    return Kind(name, traits)


def function_of(found: file_groups.Accelerator) -> pci.Function | None:
    """The PCI function behind an accelerator."""
    address = found.place.function
    return pci.find(address) if address is not None else None


def device_of(found: file_groups.Accelerator) -> str:
    """What VAN.device is: as for PCIHandle, the PF of a VF.

    So whoever asks for the VANs on a PF, such as what programs an FPGA, finds
    those that have the file of one of its VFs. The handle has the function
    itself.
    """
    function = function_of(found)
    if function is not None:
        return function.parent
    for uuid in found.place.mdevs:
        if (there := mdev.find(uuid)) is not None:
            return there.parent
    return found.name


def handle_of(
    found: file_groups.Accelerator, share: str | None
) -> objects.DeviceFileHandle:
    return objects.DeviceFileHandle(
        name=found.name,
        share=share,
        files=[
            objects.DeviceFile(
                path=each.path,
                type=each.number.kind,
                major=each.number.major,
                minor=each.number.minor,
                permissions=found.spec.permissions,
            )
            for each in found.files
        ],
    )


def arguments(nodes: Iterable[device_file.DeviceFile]) -> list[list[Any]]:
    """Name files as privileged.device_files takes them."""
    return [[each.path, *each.number] for each in nodes]


def held_by(van: objects.VAN) -> objects.DeviceFileHandle | None:
    """The handle of a VAN, if it is one of device files."""
    handle = van.handle
    return handle if isinstance(handle, objects.DeviceFileHandle) else None


def own_files(van: objects.VAN) -> list[device_file.DeviceFile]:
    """The files of a VAN that no other VAN has, with the numbers it got.

    A VAN of another driver than devfile has no common files.
    """
    handle = held_by(van)
    if handle is None:
        return []
    number = int(van.driver_data.get(OWN, len(handle.files)))
    return [
        device_file.DeviceFile(
            each.path, device_file.Number(each.type, each.major, each.minor)
        )
        for each in handle.files[:number]
    ]


def numbers(
    vans: Iterable[objects.VAN],
) -> Mapping[device_file.Number, Sequence[file_availability.Given]]:
    """Which VANs were given which device numbers in this boot of the host."""
    now = boot.boot_id()
    found: dict[device_file.Number, list[file_availability.Given]] = {}
    for van in vans:
        handle = held_by(van)
        if handle is None or van.boot_id != now:
            continue
        for file in own_files(van):
            found.setdefault(file.number, []).append(
                file_availability.Given(
                    van.uuid, van.instance_uuid, handle.name, file.path
                )
            )
    return found
