# SPDX-License-Identifier: Apache-2.0

"""The devices of this host, and who has them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import logging
import re
from typing import Any

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import health
from os_acc import host as host_module
from os_acc import log
from os_acc import objects
from os_acc import reserved
from os_acc.attach import exclusion
from os_acc.attach import plan
from os_acc.journal import health as rows
from os_acc.objects import device as device_objects
from os_acc.programming import announcing

LOG = logging.getLogger(__name__)

_PCI_ID = re.compile(r'([0-9A-Fa-f]{4})?')

# The fields of objects.Device that have no default, and the ids.
_CHECKED = (
    'address',
    'driver',
    'handles_total',
    'handles_free',
    'vendor_id',
    'product_id',
)


@dataclasses.dataclass
class Examined:
    """What one driver reports.

    :ivar devices: the devices that satisfy the contract
    :ivar faults: a sentence for each thing that is wrong
    """

    devices: list[objects.Device]
    faults: list[str]


def examine(driver: driver_base.DriverBase) -> Examined:
    """Call get_devices() of one driver, and check what it returns.

    An error of the driver becomes a fault; this function raises nothing.
    """
    result = Examined([], [])
    reported: list[Any] = []
    try:
        reported = list(driver.get_devices())
    except Exception as err:
        log.error(LOG, err, 'Discovery by driver %r failed', driver.name)
        if isinstance(err, exception.DiscoveryFailed):
            reported = err.devices
        result.faults.append(exception.describe(err))
    for place, device in enumerate(reported):
        faults = list(_faults(driver, device, place))
        result.faults += faults
        if not faults:
            result.devices.append(device)
    return result


def _faults(
    driver: driver_base.DriverBase, device: Any, place: int
) -> Iterator[str]:
    """Say what is wrong with a device: address, field and value."""
    if not isinstance(device, objects.Device):
        yield (
            f'get_devices() gave a {type(device).__name__}, expected '
            'objects.Device'
        )
        return
    values: dict[str, Any] = {}
    where = f'device {place} of get_devices()'
    for field in _CHECKED:
        try:
            values[field] = getattr(device, field)
        except Exception as err:
            yield f'{where}: {field} is not set ({exception.describe(err)})'
        if field == 'address' and field in values:
            where = f'device {values[field]}'
    for field in ('vendor_id', 'product_id'):
        if field in values and not _PCI_ID.fullmatch(values[field]):
            yield (
                f'{where}: {field} is {values[field]!r}, expected 4 hex '
                'digits or an empty text'
            )
    if values.get('driver', driver.name) != driver.name:
        yield (
            f'{where}: driver is {values["driver"]!r}, expected '
            f'{driver.name!r}'
        )
    if {'handles_free', 'handles_total'} <= values.keys():
        yield from _miscounted(device, where)


def _miscounted(device: objects.Device, where: str) -> Iterator[str]:
    """Say whether the numbers of a device's handles disagree."""
    free, total = device.handles_free, device.handles_total
    if free > total:
        yield (
            f'{where}: handles_free is {free}, expected at most '
            f'handles_total, which is {total}'
        )
        return
    # A driver that was written for Device 1.0 sets the numbers only.
    if not device.handles and not device.mdev_types:
        return
    counted = device.counted()
    if (total, free) != counted:
        yield (
            f'{where}: handles_total and handles_free are {total} and {free}, '
            f'but handles and mdev_types have {counted[0]} and {counted[1]}'
        )


def devices(host: host_module.Host) -> list[objects.Device]:
    """See os_acc.get_devices."""
    found: list[objects.Device] = []
    faults: dict[str, list[str]] = {}
    listed = _Listed()
    for name, driver in _by_rank(host):
        examined = examine(driver)
        found += listed.unknown(examined.devices)
        for fault in examined.faults:
            faults.setdefault(fault, []).append(repr(name))
    # An option that cannot be read stops every driver: report it once.
    errors = [
        f'driver{"s" if len(names) > 1 else ""} {", ".join(names)}: {fault}'
        for fault, names in faults.items()
    ]
    errors += _show_excluded(host, found)
    errors += _show_health(host, found)
    errors += _show_reserved(host, found)
    errors += _not_loaded(host)
    if errors:
        for error in errors:
            LOG.error('Discovery: %s', error)
        # Without this error, the caller would believe that the devices that
        # are missing in the list are gone.
        raise exception.DiscoveryFailed(found, errors='; '.join(errors))
    return found


def _not_loaded(host: host_module.Host) -> list[str]:
    """Say which drivers are not loaded, so that their devices are missing."""
    try:
        with_vans = {van.driver for van in host.journal.vans()}
    except exception.JournalError as err:
        return [f'the drivers of the VANs are unknown: {err}']
    lacking = host.extensions.lacking(host.conf.os_acc.drivers, with_vans)
    return [
        f'driver {name!r} is not loaded, and its devices are missing: {why}'
        for name, why in lacking.items()
    ]


def unread(
    devices: Iterable[objects.Device], driver: str
) -> list[objects.Device]:
    """The devices of a driver that cannot be read.

    What they would serve is unknown, also their resource class.
    """
    return [
        each
        for each in devices
        if each.driver == driver
        and each.health != device_objects.OK
        and not each.resource_class
    ]


def _show_excluded(
    host: host_module.Host, devices: list[objects.Device]
) -> list[str]:
    """Show what VANs exclude, whichever driver has reported it.

    :returns: why that failed, if it did
    """
    try:
        exclusion.Exclusion(host.journal, host.conf).show(devices)
    except (exception.ExceptionBase, OSError, ValueError) as err:
        return [
            'which VANs exclude each other is unknown: '
            f'{exception.describe(err)}'
        ]
    return []


def exclusions(
    host: host_module.Host, found: Iterable[objects.Device]
) -> dict[str, frozenset[str]]:
    """See os_acc.get_exclusions."""
    return exclusion.Exclusion(host.journal, host.conf).among(found)


def _show_reserved(
    host: host_module.Host, devices: list[objects.Device]
) -> list[str]:
    """Say of each free handle that it is reserved, and for whom.

    :returns: why that failed, if it did
    """
    try:
        reservations = reserved.for_vans(host.journal)
    except exception.ExceptionBase as err:
        return [f'which devices are reserved is unknown: {err}']
    for device in devices if reservations else ():
        for each in device.handles:
            if each.state == device_objects.FREE:
                addresses = reserved.names(device.address, each.handle)
                each.reason = each.reason or reserved.text(
                    reservations, addresses, each.region
                )
    return []


def _show_health(
    host: host_module.Host, devices: list[objects.Device]
) -> list[str]:
    """Set the health of devices, whichever driver has reported them.

    :returns: why that failed, if it did
    """
    try:
        view = health.View(host.journal)
    except exception.ExceptionBase as err:
        return [f'the health of the devices is unknown: {err}']
    errors = []
    for device in devices:
        try:
            if (found := view.find(device.address)) is not None:
                _show_unhealthy(host, device, found)
        except exception.JournalError as err:
            errors.append(f'the health of {device.address} is unknown: {err}')
        except (exception.ExceptionBase, OSError, ValueError) as err:
            _set_health(device, exception.describe(err), None)
    return errors


def _show_unhealthy(
    host: host_module.Host, device: objects.Device, found: rows.Health
) -> None:
    """Show that a device is not healthy: nothing of it is free.

    A fatal PCIe error that was not seen before is written to the journal,
    unless that is read-only.
    """
    if found.cause == rows.AER and not host.journal.read_only:
        announcing.mark(
            host.extensions.drivers[device.driver],
            found.device,
            found.cause,
            found.reason,
        )
        # With the time of an earlier process, if there was one.
        found = health.View(host.journal).find(device.address) or found
    _set_health(device, found.reason, health.reason_of(found).text)
    device.health_since = found.since
    if found.cause == rows.REBOOT:
        device.health = device_objects.REBOOT


def _set_health(device: objects.Device, reason: str, full: str | None) -> None:
    """Show that nothing of a device is free.

    :param full: the reason for its handles; None: the same
    """
    device.health, device.health_reason = device_objects.UNHEALTHY, reason
    for handle in device.handles:
        if handle.state == device_objects.FREE:
            handle.state = device_objects.RESERVED
            handle.reason = full or reason
    for kind in device.mdev_types:
        kind.available = 0
    # A driver that was written for Device 1.0 sets the numbers only.
    device.handles_free = 0


def _by_rank(
    host: host_module.Host,
) -> list[tuple[str, driver_base.DriverBase]]:
    """Sort the drivers as the loader does when several claim a request.

    See Extensions.driver_for(): a specific driver comes before a generic one,
    then [os_acc] drivers decides, then the name.
    """
    rank = {name: place for place, name in enumerate(host.conf.os_acc.drivers)}
    return sorted(
        host.extensions.drivers.items(),
        key=lambda each: (
            each[1].generic,
            rank.get(each[0], len(rank)),
            each[0],
        ),
    )


class _Listed:
    """The devices and handles that earlier drivers have reported.

    Several drivers may find one device, such as cyborg and mdev the parent of
    mediated devices, or cyborg and pci a VF. It is listed, and its capacity is
    counted, once.
    """

    def __init__(self) -> None:
        self._devices: set[str] = set()
        self._handles: set[str] = set()

    def unknown(self, devices: list[objects.Device]) -> list[objects.Device]:
        """Return what no earlier driver has reported of one driver's devices.

        A driver may report several devices with one address.
        """
        left = [
            each
            for each in devices
            if each.address not in self._devices and self._without_known(each)
        ]
        for each in left:
            self._devices.add(each.address)
            self._handles.update(h.handle.identity for h in each.handles)
        return left

    def _without_known(self, device: objects.Device) -> bool:
        """Remove known handles of a device; False: none of it is left."""
        left = [
            each
            for each in device.handles
            if each.handle.identity not in self._handles
        ]
        if len(left) == len(device.handles):
            return True
        device.handles = left
        device.handles_total, device.handles_free = device.counted()
        return bool(left or device.mdev_types)


def driver_of(host: host_module.Host, address: str) -> driver_base.DriverBase:
    """Return the driver that reports a device."""
    listed = _Listed()
    for _, driver in _by_rank(host):
        for device in listed.unknown(examine(driver).devices):
            if device.address == address:
                return driver
    raise exception.DeviceNotFound(
        wanted=address, reason='no driver reports this device on this host'
    )


def vans(
    host: host_module.Host, instance: objects.InstanceInfo | str | None
) -> objects.VANList:
    """See os_acc.get_vans."""
    uuid = None
    if isinstance(instance, objects.InstanceInfo):
        uuid = instance.uuid
    elif instance is not None:
        uuid = plan.van_uuid(
            instance, 'instance_info', 'an InstanceInfo or a UUID'
        )
    return host.journal.vans(uuid)
