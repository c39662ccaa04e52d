# SPDX-License-Identifier: Apache-2.0

"""The journal's records of what is programmed into a chip."""

from __future__ import annotations

from os_acc import journal as journal_module
from os_acc.journal import programs
from os_acc.kernel import chip as chips
from os_acc.kernel import pci
from os_acc.kernel import sysfs


def of(
    journal: journal_module.Journal, chip: chips.Chip | None, device: str
) -> list[programs.Program]:
    """Read the records of all regions of a device or of its chip.

    An older version of os-acc recorded the device's own address instead of
    the chip's. Such records come last.
    """
    if chip is None:
        return journal.programs(device)
    found = [each for each in journal.programs() if chip.covers(each.device)]
    return sorted(found, key=lambda each: each.device != chip.address)


def overlaps(one: str | None, other: str | None) -> bool:
    """Whether two regions of a device have something in common.

    :param one: programs.WHOLE: the whole device. None: unknown, as for a VAN
        of another driver, which may use any region
    """
    return (
        None in (one, other) or one == other or programs.WHOLE in (one, other)
    )


def is_replaced(record: programs.Program, chip: chips.Chip | None) -> bool:
    """Whether the card that the record is about was replaced."""
    return (
        chip is not None
        and record.chip is not None
        and chip.is_other(
            record.chip, reprogrammed=record.state == programs.REBOOT
        )
    )


def unusable(
    journal: journal_module.Journal, device: str, region: str | None
) -> programs.Program | None:
    """Find a reason not to give out a device, whatever driver it has."""
    suspects = [
        each
        for each in journal.programs()
        if each.state != programs.CLEARED
        and not each.is_done(sysfs.boot_id())
        and overlaps(each.region, region)
    ]
    if not suspects:
        return None
    function = pci.find(device) if pci.is_address(device) else None
    chip = chips.of(function) if function is not None else None
    for each in of(journal, chip, device):
        if each in suspects and not is_replaced(each, chip):
            return each
    return None
