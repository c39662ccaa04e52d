# SPDX-License-Identifier: Apache-2.0

"""Which functions that store data may hold the data of an instance.

There is a note from before a guest gets the function until the function was
emptied. Notes survive a reboot of the host, which the record in /run does not.

Callers hold the operation lock of the function.
"""

from __future__ import annotations

import json
import logging

from os_acc import exception
from os_acc.kernel import pci
from os_acc.privileged import held

LOG = logging.getLogger(__name__)

#: In place of the UUID of an instance, if it is unknown which one it was.
UNKNOWN = 'unknown'

_INSTANCE = 'instance'


def name(function: pci.Function) -> str:
    """The name of a function's note in held.files.

    It has vendor:product, so that the note of a drive that was pulled out
    stays while another one is at its address.
    """
    return f'disk-{function.address}-{function.ids}'


def holder(function: pci.Function) -> str | None:
    """The instance whose data a function may hold.

    :returns: its UUID; UNKNOWN if there is a note that says nothing; None if
        there is no note
    :raises PrivilegeError: if the note cannot be read or trusted
    """
    text = held.files.read(name(function))
    try:
        return None if text is None else str(json.loads(text)[_INSTANCE])
    except (ValueError, KeyError, TypeError) as err:
        path = held.files.path(name(function))
        LOG.warning('%s: %s', path, exception.describe(err))
        return UNKNOWN


def write(function: pci.Function, instance_uuid: str) -> None:
    """Note that a function may hold the data of an instance.

    Call it before a guest gets the function.

    :raises PrivilegeError: if the note cannot be written. Without it, the
        function could be given to another instance after a reboot before it
        was emptied
    """
    if holder(function) != instance_uuid:
        text = json.dumps({_INSTANCE: instance_uuid})
        held.files.write(name(function), text)


def delete(function: pci.Function) -> None:
    """Delete the note of a function that was emptied, if there is one.

    :raises PrivilegeError: if it cannot be deleted
    """
    # A file system that is read-only refuses to delete even what is not there.
    if holder(function) is not None:
        held.files.delete(name(function))
