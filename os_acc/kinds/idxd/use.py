# SPDX-License-Identifier: Apache-2.0

"""What the work queues of a device of Intel DSA or IAA are used for."""

from __future__ import annotations

from os_acc.kernel import idxd
from os_acc.kernel import pci
from os_acc.kinds.idxd import refusals as idxd_refusals
from os_acc.refusals import reasons


def use_of(function: pci.Function) -> reasons.Reason | None:
    """What the work queues of a PCI function are used for; None if nothing.

    Taking the whole function removes its work queues.
    """
    if function.driver != idxd.DRIVER:
        return None
    device = idxd.find(function.address)
    if device is None:
        return None
    enabled = [queue.name for queue in device.queues if queue.is_enabled]
    if not enabled and not device.is_enabled:
        return None
    return idxd_refusals.QUEUES_IN_USE.reason(
        device=device.name, queues=', '.join(enabled) or 'none is enabled'
    )
