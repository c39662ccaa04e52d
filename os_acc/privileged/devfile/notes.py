# SPDX-License-Identifier: Apache-2.0

"""What the note of a VAN says about its device files: see notes."""

from __future__ import annotations

import dataclasses
from typing import Any

from os_acc.claims import reader
from os_acc.kernel import device_file
from os_acc.kernel import file_place
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.kinds.devfile import groups as file_groups
from os_acc.kinds.fpga import ids as fpga_ids
from os_acc.privileged import store
from os_acc.spec import device_spec


@dataclasses.dataclass(frozen=True)
class Files(store.Said):
    """The note of an accelerator.

    :ivar entry: its entry of device_spec, see file_groups.to_text(); None: an
        earlier version did not note that
    """

    entry: str | None = None


def values(found: file_groups.Accelerator) -> dict[str, Any]:
    """The devices of an accelerator, and the devices that contain them.

    They are noted, because the kernel may have other names for them when the
    next VAN wants one of them.
    """
    behind = reader.Reader(device_spec.Specs()).files(
        found.name, device_file.texts(found.numbers)
    )
    made: dict[str, Any] = {
        'parent': _parent(found),
        'files': sorted(
            {file_place.of(each).name for each in found.numbers}.union(
                behind.places
            )
        ),
        'within': sorted(
            {
                *behind.around,
                *behind.functions,
                *behind.mdevs,
                *behind.namespaces,
                *behind.in_namespaces,
            }
        ),
        'namespaces': sorted(behind.namespaces),
    }
    if any(
        fpga_ids.is_fpga(function, found.function_spec)
        for function in map(pci.find, found.place.functions)
        if function is not None
    ):
        made['fpga'] = True
    return made


def _parent(found: file_groups.Accelerator) -> str | None:
    """The PF of a VF behind the files, or the parent of a mediated device."""
    for each in map(pci.find, found.place.functions):
        if each is not None:
            return each.parent
    for there in map(mdev.find, found.place.mdevs):
        if there is not None:
            return there.parent
    return None
