# SPDX-License-Identifier: Apache-2.0

"""Says which devices are programmed together: those of one chip."""

from __future__ import annotations

from os_acc import objects


def of(device: objects.Device, region: str | None) -> tuple[str, str]:
    """Say what is programmed with a region of a device.

    Two PFs of one chip are two devices. What is programmed through one of them
    is also in the other.

    :returns: the address of the chip, or of a device without one, and the
        region; it is the same for all that is programmed together
    """
    return device.chip.address if device.chip else device.address, region or ''


def addresses(device: objects.Device) -> set[str]:
    """The addresses of a device, and of all functions of its chip."""
    return {device.address, *(device.chip.functions if device.chip else ())}
