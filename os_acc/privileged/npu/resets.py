# SPDX-License-Identifier: Apache-2.0

"""The reset of an NPU: its driver is unbound and bound again, as root.

The record says that a reset has begun. The next caller completes it, if the
process has died in between.
"""

from __future__ import annotations

import logging

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import pci
from os_acc.kinds.npu import facts as npu_facts
from os_acc.kinds.npu import rules as npu_rules
from os_acc.privileged.kernel import vfio_binding
from os_acc.privileged.npu import records

LOG = logging.getLogger(__name__)


def run(function: pci.Function, driver: str, seconds: float) -> None:
    """Reset a function that nobody has open, and wait until it is back.

    Its files may have other numbers then.

    :param driver: the kernel driver that makes its files
    :raises DeviceError: if the kernel refuses, or it does not come back
    """
    address = function.address
    end = waiting.Deadline(seconds)
    records.resets.write(address, records.Reset(function.ids, driver))
    try:
        vfio_binding.rebind(address, driver, end.left())
        waiting.until(
            lambda: npu_facts.nodes_of(address),
            end.left(),
            f'the device file of {npu_rules.label(address)}',
            npu_facts.CLASS,
        )
    except exception.Timeout as err:
        raise exception.DeviceError(
            device=npu_rules.label(address),
            reason=f'it was reset, and its kernel driver {driver} has not '
            f'created a file below /dev/accel again ({err}). Check the kernel '
            'log (dmesg); after its firmware or the host was reset, run '
            'os-acc recover',
        ) from err
    records.resets.delete(address)
    LOG.info('NPU %s is reset', address)


def complete(address: str, seconds: float) -> None:
    """Complete a reset that was interrupted.

    :raises DeviceError: as run()
    """
    known = records.resets.read(address)
    if known is None:
        return
    function = pci.find(address)
    if (
        function is not None
        and function.ids == known.ids
        and function.driver in (None, known.driver)
    ):
        run(function, known.driver, seconds)
    else:
        records.resets.delete(address)  # it is another device by now
