# SPDX-License-Identifier: Apache-2.0

"""Whether a guest can move live with a device that a VAN has just got.

The kernel is asked. If it cannot be asked, the answer is no: a plug does not
fail for it.
"""

from __future__ import annotations

from collections.abc import Callable
import logging

from oslo_config import cfg

from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.kernel import mdev
from os_acc.kernel import mdev_types
from os_acc.kernel import modules
from os_acc.kernel import pci

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

_VFIO_PCI = 'vfio-pci'  # the API of an mdev, as the kernel calls it


def function(van: objects.VAN, address: str) -> bool:
    """Whether a guest can move live with a VAN's PCI function.

    vfio-pci itself cannot save the state of a device, so that it is not
    asked: to open a function takes a reset.
    """

    def ask() -> str | None:
        driver = pci.get(address).driver
        if driver is None or modules.same(driver, modules.VFIO_PCI):
            return f'its driver is {driver}'
        from os_acc.privileged import migratable as privileged

        return privileged.function(address, CONF.os_acc.device_timeout)

    return _ask(van, f'PCI function {address}', ask)


def mediated(van: objects.VAN, there: mdev.Mdev) -> bool:
    """Whether a guest can move live with a VAN's mediated device.

    A device of an adapter or a channel is not asked: it is no PCI device.
    """

    def ask() -> str | None:
        api = mdev_types.type_of(there.parent, there.type).device_api
        if api != _VFIO_PCI:
            return f'its API is {api}'
        from os_acc.privileged import migratable as privileged

        return privileged.mediated(there.uuid, CONF.os_acc.device_timeout)

    return _ask(van, f'mdev {there.uuid}', ask)


def _ask(van: objects.VAN, what: str, ask: Callable[[], str | None]) -> bool:
    try:
        reason = ask()
    except Exception as err:
        reason = exception.describe(err)
    if reason is not None:
        log.about(LOG, van.instance_uuid, van.uuid).debug(
            '%s cannot be migrated live: %s', what, reason
        )
    return reason is None
