# SPDX-License-Identifier: Apache-2.0

"""How a VAN uses a programmed device, as its driver_data says.

A VAN that has a handle of a programmable device counts as a user of what is
programmed, unless its driver_data has the key UNDECIDED.
"""

from __future__ import annotations

from os_acc import objects
from os_acc.journal import programs
from os_acc.kernel import chip as chips

#: Key of VAN.driver_data: the VAN has a handle and does not use the function.
UNDECIDED = 'function_undecided'

#: Key of VAN.driver_data: the identity of the chip that the VAN was given.
CHIP = 'chip'

#: Values of UNDECIDED: the VAN has not used the function yet, or it did and
#: has released it.
NEVER, LEFT = 'never', 'left'


def undecide(van: objects.VAN, region: str | None = None) -> None:
    """Note that a VAN does not use the function of its device yet.

    The caller saves the VAN, together with its handle.

    :param region: the region that the handle belongs to, if it is known
    """
    data = {**van.driver_data, UNDECIDED: NEVER}
    if region is not None:
        data[programs.REGION] = region
    van.driver_data = data


def decide(van: objects.VAN, function_id: str | None) -> None:
    """Note that a VAN uses the function of its device, and save the VAN."""
    data = dict(van.driver_data)
    data.pop(UNDECIDED, None)
    van.driver_data = data
    van.function_id = function_id
    van.save()


def leave(van: objects.VAN) -> None:
    """Note that a VAN has released the function, and save the VAN."""
    van.driver_data = {**van.driver_data, UNDECIDED: LEFT}
    van.save()


def chip_replaced(van: objects.VAN, chip: chips.Chip | None) -> bool:
    """Say whether the card that the VAN was given was replaced."""
    known = van.driver_data.get(CHIP)
    return chip is not None and known is not None and chip.is_other(known)


def describe(van: objects.VAN) -> str:
    """Name a user of a device in a message for a person."""
    text = f'instance {van.instance_uuid} (VAN {van.uuid})'
    if van.function_id is not None:
        text += f' with {van.function_id}'
    return text
