# SPDX-License-Identifier: Apache-2.0

"""Says who has the devices whose notes do not say so."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from os_acc.claims import holder
from os_acc.privileged import arguments
from os_acc.privileged import context
from os_acc.privileged import notes
from os_acc.privileged import root_folder


@context.entry
def adopt(vans: Sequence[Sequence[str]]) -> None:
    """Note which VANs of the caller's journal have devices.

    Notes of earlier versions of os-acc name no journal, and a note can be
    damaged. A note that names a VAN stays.

    :param vans: for each VAN the UUID of its instance, its own, and the device
        as its attach handle names it
    """
    who = holder.current()
    if who is None:
        return
    for instance, van, device in vans:
        root_folder.check_name(f'{notes.NAMESPACE}-{device}')
        arguments.uuid(instance)
        arguments.uuid(van)
        notes.adopt(
            dataclasses.replace(who, instance=instance, van=van), device
        )
