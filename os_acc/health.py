# SPDX-License-Identifier: Apache-2.0

"""Health: devices that have failed are assigned to nobody.

A device is unhealthy from the failure until an operator frees it (``os-acc
device free``). If its programming has failed, a programming that succeeds ends
this too. A VAN that has the device keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable

from oslo_utils import timeutils

from os_acc import exception
from os_acc import journal as journal_module
from os_acc.journal import health as rows
from os_acc.kernel import aer
from os_acc.kernel import chip as chips
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.refusals import reasons
from os_acc.refusals import report_refusals


class View:
    """Which devices have failed, read once from the journal."""

    def __init__(self, journal: journal_module.Journal) -> None:
        self._causes: dict[str, list[rows.Health]] = {}
        for each in journal.unhealthy():
            if counts(each):
                self._causes.setdefault(each.device, []).append(each)
        self._journal = journal
        # By PF, because find() is called for each VF.
        self._fatal: dict[str, rows.Health | None] = {}

    def find(self, address: str) -> rows.Health | None:
        """Say why a device is assigned to nobody.

        :param address: of a device, or of any PCI function
        :returns: the most important cause; None: the device is healthy
        """
        function = pci.find(address) if pci.is_address(address) else None
        if function is None:
            return _first(self._causes.get(address, ()))
        return self._of_function(function)

    def of_function(self, function: pci.Function) -> reasons.Reason | None:
        """See claims.allocated.Unhealthy."""
        found = self._of_function(function)
        return None if found is None else reason_of(found)

    def of_device(self, address: str) -> reasons.Reason | None:
        """See claims.allocated.Unhealthy."""
        found = self.find(address)
        return None if found is None else reason_of(found)

    def _of_function(self, function: pci.Function) -> rows.Health | None:
        parent = function.parent
        keys = {function.address, parent}
        slot = _slot_of(parent)
        beside = [each for each in self._causes if _slot_of(each) == slot]
        if beside:
            chip = chips.of(function)
            keys.add(chip.address)
            # The PF after which the chip was named may have left the bus.
            keys.update(
                each
                for each in beside
                if chip.covers(each)
                and any(map(rows.concerns_chip, self._causes[each]))
            )
        causes = [cause for key in keys for cause in self._causes.get(key, ())]
        return _first(causes) or self._of_aer(parent)

    def _of_aer(self, address: str) -> rows.Health | None:
        if address not in self._fatal:
            self._fatal[address] = fatal_errors(self._journal, address)
        return self._fatal[address]


def _first(causes: Iterable[rows.Health]) -> rows.Health | None:
    """Return the oldest failure; if there is none, the pending reboot."""
    return min(
        causes,
        key=lambda each: (each.cause == rows.REBOOT, each.since),
        default=None,
    )


def _slot_of(address: str) -> str:
    return address.rpartition('.')[0]


def counts(found: rows.Health) -> bool:
    """Whether a row of the journal applies to this boot of the host."""
    return found.cause != rows.REBOOT or found.boot_id == sysfs.boot_id()


def check(journal: journal_module.Journal, device: str) -> None:
    """:raises DeviceUnhealthy: if a device is assigned to nobody"""
    found = View(journal).find(device)
    if found is not None:
        raise exception.DeviceUnhealthy(
            device=device, reason=reason_of(found).text
        )


def reason_of(found: rows.Health) -> reasons.Reason:
    """Say why and since when a device is assigned to nobody, and the
    remedy."""
    since = found.since[:19]
    if found.cause == rows.REBOOT:
        return report_refusals.REBOOT_PENDING.reason(
            since=since, reason=found.reason
        )
    return report_refusals.UNHEALTHY.reason(
        since=since, reason=found.reason, device=found.device
    )


def mark(
    journal: journal_module.Journal,
    device: str,
    cause: str,
    reason: str,
    driver: str = '',
    announced: bool = True,
) -> rows.Health:
    """Stop assigning a device to anybody.

    os_acc.programming.announcing.mark() also calls the hooks.

    :param device: its address; for one with a chip, the chip's
    :param cause: see journal.health
    :param reason: a clause
    :param announced: whether the hooks need not be called for this
    """
    found = _row(device, cause, reason, driver, announced)
    journal.save_unhealthy(found)
    return found


def _row(
    device: str, cause: str, reason: str, driver: str, announced: bool
) -> rows.Health:
    return rows.Health(
        device=device,
        cause=cause,
        reason=reason,
        boot_id=sysfs.boot_id(),
        since=timeutils.utcnow(with_timezone=True).isoformat(),
        driver=driver,
        announced=announced,
    )


def fatal_errors(
    journal: journal_module.Journal, address: str
) -> rows.Health | None:
    """Say whether the kernel has counted fatal PCIe errors of a function.

    Those that an operator has acknowledged in this boot do not count. The
    result is not written to the journal.
    """
    found = aer.fatal(address)
    if found is None or not found.count:
        return None
    known = rows.FatalErrors(address, found.generation, 0)
    for each in journal.acknowledged():
        if (each.device, each.generation) == (address, found.generation):
            known = each
    new = found.count - known.count
    if new <= 0:
        return None
    reason = f'the kernel has counted {new} fatal PCIe errors (aer_dev_fatal)'
    return _row(address, rows.AER, reason, '', False)


def free(journal: journal_module.Journal, address: str) -> list[str]:
    """Return a device to service: the operator has checked that it works.

    A pending reboot stays: the device would have its old function.

    :param address: of a device, or of a PCI function of its chip
    :returns: a clause for each cause that was ended
    :raises DeviceUnhealthy: if there is only a pending reboot
    """
    keys = [address]
    function = pci.find(address) if pci.is_address(address) else None
    if function is not None:
        chip = chips.of(function)
        if address in chip.parents:
            keys = list(dict.fromkeys((address, *chip.parents)))
    ended, pending = [], []
    for each in journal.unhealthy():
        if each.device not in keys or not counts(each):
            continue
        if each.cause == rows.REBOOT:
            pending.append(each)
        elif journal.forget_unhealthy(each.device, each.cause):
            ended.append(
                'it is in service again; it was unhealthy since '
                f'{each.since[:19]}: {each.reason}'
            )
    for key in keys if function is not None else ():
        ended += _acknowledge(journal, key)
    if pending and not ended:
        raise exception.DeviceUnhealthy(
            device=address, reason=reason_of(pending[0]).text
        )
    return ended


def _acknowledge(journal: journal_module.Journal, address: str) -> list[str]:
    """Acknowledge the fatal errors of a function."""
    new = fatal_errors(journal, address)
    found = aer.fatal(address)
    if new is None or found is None:
        return []
    journal.acknowledge(
        rows.FatalErrors(address, found.generation, found.count)
    )
    return [f'acknowledged that {new.reason}']
