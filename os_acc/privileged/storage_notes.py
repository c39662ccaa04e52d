# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Which functions that store data may hold the data of an instance.

There is a note from before a guest gets the function until the function was
emptied. Notes survive a reboot of the host, which the record in /run does not.

Callers hold the operation lock of the function.
"""

from __future__ import annotations

import json
import logging
import os

from os_acc import exception
from os_acc.devices import atomic_file
from os_acc.devices import pci
from os_acc.devices import trust
from os_acc.privileged import held

LOG = logging.getLogger(__name__)

#: In place of the UUID of an instance, if it is unknown which one it was.
UNKNOWN = 'unknown'

_INSTANCE = 'instance'


def path(function: pci.Function) -> str:
    """The file of a function's note.

    Its name has vendor:product, so that the note of a drive that was pulled
    out stays while another one is at its address.
    """
    name = f'disk-{function.address}-{function.ids}'
    return os.path.join(held.FOLDER, name)


def holder(function: pci.Function) -> str | None:
    """The instance whose data a function may hold.

    :returns: its UUID; UNKNOWN if there is a note that cannot be read; None
        if there is no note
    """
    try:
        with open(path(function), encoding='utf-8') as file:
            return str(json.load(file)[_INSTANCE])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as err:
        LOG.warning('%s: %s', path(function), exception.describe(err))
        return UNKNOWN


def write(function: pci.Function, instance_uuid: str) -> None:
    """Note that a function may hold the data of an instance.

    Call it before a guest gets the function.

    :raises PrivilegeError: if the note cannot be written
    """
    try:
        if os.path.exists(held.FOLDER):
            trust.check_folder(held.FOLDER)
        if holder(function) != instance_uuid:
            text = json.dumps({_INSTANCE: instance_uuid})
            atomic_file.write(path(function), text, 0o600, 0o700)
    except (OSError, exception.InvalidRequest) as err:
        raise exception.PrivilegeError(
            reason=f'{path(function)} cannot be written '
            f'({exception.describe(err)}). Without this note, PCI function '
            f'{function.address} could be given to another instance after a '
            'reboot before it was emptied, so it is not given out'
        ) from err


def delete(function: pci.Function) -> None:
    """Delete the note of a function that was emptied, if there is one.

    :raises PrivilegeError: if it cannot be deleted
    """
    # A file system that is read-only refuses to delete even what is not there.
    if not os.path.lexists(path(function)):
        return
    try:
        atomic_file.remove(path(function))
    except OSError as err:
        raise exception.PrivilegeError(
            reason=f'{path(function)} cannot be deleted: '
            f'{exception.describe(err)}'
        ) from err
