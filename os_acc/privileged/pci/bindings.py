# SPDX-License-Identifier: Apache-2.0

"""How PCI functions were bound before os-acc changed that, as root.

The caller holds the operation lock of the function.
"""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses

from os_acc import exception
from os_acc.availability import functions as availability
from os_acc.availability import host_use
from os_acc.availability import storage as storage_functions
from os_acc.claims import vans
from os_acc.kernel import modules
from os_acc.kernel import pci
from os_acc.kernel import vfio
from os_acc.privileged import device_users
from os_acc.privileged import function_notes
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import storage
from os_acc.privileged import undo_log
from os_acc.privileged.kernel import vfio_binding
from os_acc.spec import device_spec


@dataclasses.dataclass(frozen=True)
class Function:
    """A PCI function that was bound to VFIO, or to its host_driver.

    :ivar ids: vendor:product
    :ivar driver: its driver before; None if it had none
    :ivar override: its driver_override before; None if it was unset
    :ivar vfio_driver: the driver that it was to be bound to
    """

    ids: str
    driver: str | None
    override: str | None
    vfio_driver: str


functions = undo_log.Records('functions', Function)


def remember(
    function: pci.Function,
    driver: str,
    spec: device_spec.Spec | None = None,
    for_host: bool = False,
) -> None:
    """Write the record of a function that is about to be bound to a driver.

    If an earlier take() or give_back() was interrupted, there is a record
    already. It says what was there before os-acc changed anything, so it
    stays.

    :param driver: the VFIO driver, or the host_driver of the entry
    :param for_host: whether a service of the host itself gets it
    """
    now = vfio.Binding.of(function)
    known = functions.of(function)
    if (
        known is not None
        and now.driver not in (None, known.vfio_driver)
        and not _wrote_override(now, known)
    ):
        # The function is not as take() or give_back() leave it: somebody else
        # has bound it since.
        known = None
    noted = 'host_driver' if for_host else 'vfio_driver'
    function_notes.note_function(function, spec, **{noted: driver})
    functions.write(
        function.address,
        dataclasses.replace(known, vfio_driver=driver)
        if known is not None
        else Function(function.ids, now.driver, now.override, driver),
    )


def restore(
    address: str, ids: str, seconds: float, shares: bool = False
) -> bool:
    """Bind a function as the record says. See pci.give_back()."""
    now = same(address, ids)
    known = functions.of(now)
    if known is None:
        return False
    to = _before(now, known)
    if to.driver != now.driver:
        device = f'PCI function {address}'
        device_users.wait_until_closed(now.path, device, 0, shares)
        if now.driver == known.vfio_driver and not vfio.is_bound(now):
            check_unused(now, '', shares)  # a service of the host had it
        storage.check_empty(now)
        if to.driver and modules.loaded_driver(to.driver) is None:
            raise exception.DeviceError(
                device=device,
                reason=f'its previous driver {to.driver} is no longer loaded: '
                'load it',
            )
    vfio_binding.restore(address, to, seconds)
    functions.delete(address)
    notes.forget(notes.PCI, address, notes.Cleaned.EARLIER)
    return True


def _before(function: pci.Function, known: Function) -> vfio.Binding:
    """How a function is to be bound again.

    This leaves alone a driver or a driver_override that somebody else has set
    since take().
    """
    now = vfio.Binding.of(function)
    foreign = now.driver not in (
        None,
        known.vfio_driver,
    ) and not vfio.is_bound(function)
    return vfio.Binding(
        now.driver if foreign else known.driver,
        known.override if _wrote_override(now, known) else now.override,
    )


def _wrote_override(now: vfio.Binding, known: Function) -> bool:
    """Whether driver_override is as take() or give_back() have written it.

    vfio_binding.restore() writes the earlier driver to it for a moment.
    """
    return now.override is not None and now.override in (
        known.vfio_driver,
        known.driver,
    )


def same(address: str, ids: str) -> pci.Function:
    """Read a function again, under the lock."""
    function = pci.get(address)
    if function.ids != ids:
        raise exception.DeviceNotFound(
            wanted=f'PCI function {address}, {ids}',
            reason=f'{function.ids} is at that address now',
        )
    return function


# Functions that nobody uses, although they are not bound to VFIO. A driver of
# the host has them again after a reboot, or once libvirt has given them back.

# The reasons that somebody other than the host itself uses a function.
_USED = (availability.Category.HAS_VFS, availability.Category.OPEN)


def check_unused(
    function: pci.Function, instance_uuid: str, shares: bool
) -> None:
    """Check under the lock that a function can be cleaned.

    A function that stores data is to be bound to VFIO first, so this asks what
    is asked before one is taken. Of another function, which stays bound, it
    asks only who uses it.

    :param instance_uuid: the instance that had it: its domain may still name
        the function. Empty: none
    :param shares: whether its guest keeps other functions of the IOMMU group
    :raises DeviceBusy, DeviceInUseByHost: if it is used
    :raises DeviceError: if it stores data and cannot be bound to VFIO
    """
    stores = storage_functions.is_storage(function)
    for obstacle in availability.obstacles(
        function,
        offers.entry(function) if stores else None,
        device_spec.BIND_OS_ACC,
        vans.Vans().asked_by(vans.Taker(functions=_idle_members(function))),
        as_root=True,
        held=True,
        users=lambda: device_users.find(function, instance_uuid, shares),
    ):
        if stores or obstacle.category is availability.Category.HOST_USE:
            raise obstacle.error()
        if obstacle.category in _USED:
            raise exception.DeviceInUseByHost(
                device=obstacle.device, by=obstacle.text
            )


def idle(names: Iterable[str]) -> list[pci.Function]:
    """Find the functions in a list that os-acc could take, too.

    device_spec offers them, and the host does not use them, whatever driver
    they have.
    """
    return [
        function
        for function in map(pci.find, names)
        if function is not None
        and offers.has(function)
        and host_use.by_host(function) is None
    ]


def _idle_members(function: pci.Function) -> frozenset[str]:
    """The idle members of its IOMMU group; the instance may have had them."""
    members = pci.group_members(function.iommu_group or '')
    found = idle(filter(pci.is_address, members))
    return frozenset(each.address for each in found)
