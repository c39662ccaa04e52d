# SPDX-License-Identifier: Apache-2.0

"""Device files as VANs have them: handles, and what driver_data says."""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import logging
import re
from typing import Any

from os_acc import objects
from os_acc.drivers import given_files
from os_acc.kernel import device_file
from os_acc.kinds.devfile import groups as file_groups
from os_acc.kinds.pci.driver import listing as pci_listing
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)

#: How the resource classes begin of files whose entry sets none.
PREFIX = 'CUSTOM_FILE_'

# Keys of VAN.driver_data.
ENTRY = given_files.ENTRY
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
    function = file_groups.function_of(found)
    if function is not None:
        behind = pci_listing.kind_of(function, device_spec.Spec())
        traits = tuple(dict.fromkeys((*traits, *behind.traits)))
    name = found.spec.resource_class
    if name is None:
        letters = re.sub('[^A-Za-z]', '', found.path.rpartition('/')[2])
        name = PREFIX + (letters.upper() or 'DEVICE')
    return Kind(name, traits)


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
