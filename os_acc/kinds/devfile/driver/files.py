# SPDX-License-Identifier: Apache-2.0

"""Device files as VANs have them: handles, and what driver_data says."""

from __future__ import annotations

import logging
import re

from os_acc import objects
from os_acc.drivers import given_files
from os_acc.drivers import inventory
from os_acc.drivers import pci_functions
from os_acc.kinds.devfile import groups as file_groups
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)

#: The prefix of the resource classes of files whose entry sets none.
PREFIX = 'CUSTOM_FILE_'

# Keys of VAN.driver_data.
ENTRY = given_files.ENTRY
PENDING = 'pending'  # set until the instance may have got the files
SUBSYSTEM = 'subsystem'  # whose kernel events tell that the device is back


def kind_of(found: file_groups.Accelerator) -> inventory.Names:
    """Name an accelerator as Placement does.

    Its traits are those of its entry, and those of the PCI function behind
    it.
    """
    traits = found.spec.traits
    function = file_groups.function_of(found)
    if function is not None:
        behind = pci_functions.kind_of(function, device_spec.Spec())
        traits = tuple(dict.fromkeys((*traits, *behind.traits)))
    name = found.spec.resource_class
    if name is None:
        letters = re.sub('[^A-Za-z]', '', found.path.rpartition('/')[2])
        name = PREFIX + (letters.upper() or 'DEVICE')
    return inventory.Names(name, traits)


def handle_of(
    found: file_groups.Accelerator, share: str | None
) -> objects.DeviceFileHandle:
    return objects.DeviceFileHandle(
        name=found.name,
        share=share,
        files=given_files.described(found.files, found.spec.permissions),
    )
