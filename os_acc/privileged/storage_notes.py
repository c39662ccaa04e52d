# SPDX-License-Identifier: Apache-2.0

"""Which functions that store data may hold the data of an instance.

There is a note from before a guest gets the function until the function was
emptied. Notes survive a reboot of the host, which the record in /run does not.

Callers hold the operation lock of the function.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

from os_acc.kernel import pci
from os_acc.privileged import notes
from os_acc.privileged import store

#: In place of the UUID of an instance, if it is unknown which one it was.
UNKNOWN = 'unknown'


@dataclasses.dataclass(frozen=True)
class _Disk(store.Said):
    instance: Annotated[str, str]


_notes = store.Store(notes.files, _Disk.of, damaged=_Disk(UNKNOWN))


def name(function: pci.Function) -> str:
    """The name of a function's note in notes.files.

    It has vendor:product, so that the note of a drive that was pulled out
    stays while another one is at its address.
    """
    return f'disk-{function.address}-{function.ids}'


def holder(function: pci.Function) -> str | None:
    """The instance whose data a function may hold.

    :returns: its UUID; UNKNOWN if there is a note that says nothing; None if
        there is no note
    """
    found = _notes.read(name(function))
    return None if found is None else found.instance


def write(function: pci.Function, instance_uuid: str) -> None:
    """Note that a function may hold the data of an instance.

    Call it before a guest gets the function.

    :raises PrivilegeError: if the note cannot be written. Without it, the
        function could be given to another instance after a reboot before it
        was emptied
    """
    _notes.keep(name(function), _Disk(instance_uuid))


def delete(function: pci.Function) -> None:
    """Delete the note of a function that was emptied, if there is one."""
    # A file system that is read-only refuses to delete even what is not there.
    if holder(function) is not None:
        _notes.delete(name(function))
