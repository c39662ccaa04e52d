# SPDX-License-Identifier: Apache-2.0

"""Giving back the PCI function of a VAN: clean it, bind it as it was."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import logging

from oslo_config import cfg

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc import progress
from os_acc.availability import storage
from os_acc.availability import vfio_rules
from os_acc.drivers import allocation
from os_acc.drivers import failing
from os_acc.kernel import nvme
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vfio
from os_acc.kinds.pci.driver import companions
from os_acc.kinds.pci.driver import port
from os_acc.privileged import root_folder
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# Keys of VAN.driver_data, beside those of pci_vfs.
BIND = 'bind'
IDS = 'ids'
UNPROGRAMMED = 'unprogrammed'  # other ids, which it has if it loses its image
DRIVE = 'drive'  # which NVMe drive it is; unknown if it was bound to VFIO
RESET = 'reset'
COMMAND_EMPTIES = 'command_empties'  # if so: cleaning_command empties it
VFIO_DRIVER = 'vfio_driver'  # the driver to bind the function to
HOST_DRIVER = 'host_driver'  # the same, for a service of the host itself
IOMMUFD = 'iommufd'  # a hint for the plugin: the kernel has no VFIO groups
DRIVER_BEFORE = 'driver_before'
CLEANED = 'cleaned'  # the addresses of functions that need no cleaning again

_OF_FUNCTION = (BIND, IDS, DRIVE, RESET, VFIO_DRIVER, DRIVER_BEFORE)

#: The values of BIND with which the privileged half binds a function.
BOUND_BY_OS_ACC = (device_spec.BIND_OS_ACC, device_spec.BIND_HOST)

# Seconds between two reports of the progress.
_REPORT_EVERY = 2.0


def give_back(
    driver: driver_base.DriverBase, van: objects.VAN, keep: bool = False
) -> None:
    """Clean the function of a VAN, and bind it to its earlier driver.

    Then do the same for its companions. If the instance keeps another function
    of the IOMMU group, the function may have to stay on VFIO: then the VAN of
    the other function gives it back, see _hand_over(). The settings of the
    function's network port are restored in between.

    Does nothing for a function that is gone, or if another one is at its
    address. If os-acc had bound the function, but somebody else has bound it
    since, it keeps that driver and is not cleaned. The privileged half knows
    by its own record how the function was bound before.

    :param keep: functions that os-acc has bound to VFIO stay bound to it
    """
    _give_back(driver, van, allocation.address_of(van), van.driver_data, keep)
    for address, data in companions.own(driver, van).items():
        _give_back(driver, van, address, data, keep)


def _give_back(
    driver: driver_base.DriverBase,
    van: objects.VAN,
    address: str,
    data: dict[str, str],
    keep: bool,
) -> None:
    """Give back one function of a VAN.

    :param data: as driver_data, for this function
    """
    own = address == allocation.address_of(van)
    function = still_there(van, address, data, van.device if own else None)
    if function is None:
        return
    logger = log.about(LOG, van.instance_uuid, van.uuid)
    shares = _staying(driver, van, function) is not None
    if is_clean(van, address):
        before = data.get(DRIVER_BEFORE)
    else:
        with failing.noticed(driver, address):
            before = _cleaned(van, function, data, shares)
    if own:
        # Before the host's own driver of the VF reads them.
        port.restore(van)
    if data[BIND] not in BOUND_BY_OS_ACC:
        finish(van, function)
        return
    function = pci.find(address) or function
    if keep and vfio.is_bound(function):
        finish(van, function)
        logger.info(
            'PCI function %s stays bound to %s', address, function.driver
        )
        return
    if data[BIND] == device_spec.BIND_OS_ACC and before not in (
        None,
        function.driver,
    ):
        # Two VANs of the instance may hand over functions at the same time.
        with allocation.group_lock(driver, function):
            if (stays := _staying(driver, van, function)) is not None:
                _hand_over(driver, stays, address, data)
                logger.info(
                    'PCI function %s stays on VFIO with VAN %s, which has '
                    'another function of its IOMMU group',
                    address,
                    stays.uuid,
                )
                return
    from os_acc.privileged.pci import functions as privileged

    if not privileged.give_back(
        address, function.ids, CONF.os_acc.device_timeout, shares
    ):
        _check_given_back(function, data.get(DRIVER_BEFORE))
        let_go(address, function.ids)
        logger.info(
            'PCI function %s was already returned: its driver is %s; it was '
            '%s when it was taken',
            address,
            function.driver or 'none',
            data.get(DRIVER_BEFORE, 'none'),
        )
    failing.check_answers(driver, address)


def give_back_clean(driver: driver_base.DriverBase, van: objects.VAN) -> None:
    """Clean the function of a VAN of another driver, which binds none."""
    address = allocation.address_of(van)
    function = still_there(van, address, van.driver_data)
    if function is None:
        return
    if not is_clean(van, address):
        stays = companions.staying(driver, van, function)
        with failing.noticed(driver, address):
            clean(van, function, shares=stays is not None)
    finish(van, function)


def still_there(
    van: objects.VAN,
    address: str,
    data: dict[str, str],
    parent: str | None = None,
) -> pci.Function | None:
    """The function that a VAN has. If it is gone, it is let go.

    :param data: as driver_data, for this function
    :param parent: its PF, or its own address; None: any
    :returns: None also if another function is at its address now
    """
    function = pci.find(address)
    if function is not None:
        other = _other(function, data)
        if other is None and parent in (None, function.parent):
            return function
        log.about(LOG, van.instance_uuid, van.uuid).warning(
            'PCI function %s is left alone: device %s is at its address now',
            address,
            other[0] if other else function.ids,
        )
    let_go(address, data[IDS])
    return None


def identity(function: pci.Function) -> dict[str, str]:
    """What distinguishes a function from others, for driver_data."""
    drive = nvme.drive_of(function)
    return {IDS: function.ids} | ({DRIVE: drive} if drive else {})


def _other(
    function: pci.Function, data: dict[str, str]
) -> tuple[str, str] | None:
    """What a function is, and what a VAN has got; None: they are the same.

    Only what is known of both is compared.
    """
    for key, now in identity(function).items():
        if (before := data.get(key, now)) != now:
            return now, before
    return None


def check_same(van: objects.VAN, function: pci.Function) -> None:
    """Check that a function is the one that a VAN has got.

    Drives of one model may have each other's addresses after a reboot.
    """
    other = _other(function, van.driver_data)
    if other is not None and other[0] != van.driver_data.get(UNPROGRAMMED):
        raise exception.DeviceNotFound(
            wanted=f'PCI function {function.address}',
            reason=f'device {other[0]} is at that address now; '
            f'when it was plugged, {other[1]} was',
        )


def hints(
    function: pci.Function, spec: device_spec.Spec, bind: str
) -> dict[str, str]:
    """What the plugin has to know of a function, for driver_data."""
    data = {}
    if not vfio.has_groups():
        data[IOMMUFD] = 'yes'
    if bind == device_spec.BIND_LIBVIRT and spec.vfio_driver is not None:
        data[VFIO_DRIVER] = vfio_rules.driver_for(function, spec)
    return data


def _check_given_back(function: pci.Function, before: str | None) -> None:
    """Check a function that the privileged half has not taken in this boot.

    It was given back already if a crash came between that and the deletion of
    the VAN's row, or if the host was rebooted. If it is still bound to VFIO,
    an earlier version of os-acc has bound it, or the record was lost.

    :param before: its driver before it was taken, by the journal
    """
    if vfio.is_bound(function) and function.driver != before:
        there = f'{sysfs.SYS}/bus/pci'
        raise exception.DeviceError(
            device=f'PCI function {function.address}',
            reason=f'it is bound to {function.driver}, but the privileged '
            'daemon has no record of it: it was taken by an earlier version '
            f'of os-acc, or the record below {root_folder.PATH} was lost. '
            f'Bind it to its driver ({before or "none"}) as root, and run '
            f'os-acc recover: echo > {there}/devices/{function.address}'
            f'/driver_override; echo {function.address} > {there}/drivers/'
            f'{function.driver}/unbind; echo {function.address} > {there}'
            '/drivers_probe',
        )


def _staying(
    driver: driver_base.DriverBase, van: objects.VAN, function: pci.Function
) -> objects.VAN | None:
    """The VAN that can give back a function later, see companions.staying()"""
    stays = companions.staying(driver, van, function)
    # Another driver knows nothing of companions.
    if stays is not None and BIND in stays.driver_data:
        return stays
    return None


def _cleaned(
    van: objects.VAN,
    function: pci.Function,
    data: dict[str, str],
    shares: bool,
) -> str | None:
    """Clean a function, unless no guest had it or somebody else has it now.

    :returns: the driver that it is to be bound to
    """
    before = data.get(DRIVER_BEFORE)
    if data[BIND] == device_spec.BIND_HOST:
        if function.driver != before:
            clean(van, function, data, shares)
        return before
    bound_by_os_acc = data[BIND] == device_spec.BIND_OS_ACC
    # After a reboot it is bound to its driver again, but was not cleaned.
    rebooted = van.boot_id != sysfs.boot_id()
    foreign = function.driver not in (None, before)
    stores = storage.is_storage(function)
    if bound_by_os_acc and foreign and not vfio.is_bound(function):
        if stores:
            raise exception.DeviceBusy(
                device=f'PCI function {function.address}',
                reason=f'it is bound to {function.driver}, not by os-acc, and '
                'was not erased. Unbind it, and run os-acc recover',
            )
        log.about(LOG, van.instance_uuid, van.uuid).warning(
            'PCI function %s is left bound: somebody has bound it to %s',
            function.address,
            function.driver,
        )
        return function.driver
    # Somebody may have bound it to its earlier driver by hand.
    is_back = (
        bound_by_os_acc
        and not rebooted
        and function.driver == before
        and not vfio.is_bound(function)
    )
    if stores or not is_back:
        clean(van, function, data, shares, only_if_used=is_back)
    return before


def _hand_over(
    driver: driver_base.DriverBase,
    to: objects.VAN,
    address: str,
    data: dict[str, str],
) -> None:
    """Make another VAN of the instance give back a function.

    While a guest uses the IOMMU group, the kernel lets no driver of the host
    bind the function; before Linux 5.19 it stopped with a BUG instead. If the
    guest is off, the group would be unusable at its next start.
    """
    record = {key: data[key] for key in _OF_FUNCTION if key in data}
    records = companions.of(to) | {address: record}
    to.driver_data = {**to.driver_data, **companions.to_data(records)}
    driver.journal.save(to)


def clean(
    van: objects.VAN,
    function: pci.Function,
    data: dict[str, str] | None = None,
    shares: bool = False,
    only_if_used: bool = False,
) -> None:
    """Clean a function of a VAN, once its guest has closed it.

    Emptying a function that stores data may take hours: the progress is
    reported. See privileged.pci.clean.

    :param data: has IDS and RESET; None: the VAN's driver_data
    """
    from os_acc.privileged.pci import functions as privileged

    conf, data = CONF.os_acc, data or van.driver_data
    try:
        with _progress(van, function):
            privileged.clean(
                function.address,
                data[IDS],
                data[RESET],
                conf.release_timeout,
                conf.device_timeout,
                only_if_used,
                shares,
                van.instance_uuid,
            )
    except exception.DeviceInUseByHost as err:
        # libvirt or a reboot has given it back already. A network function
        # keeps no data of its last guest, but a disk may.
        if (
            function.base_class != pci.CLASS_NETWORK
            or data.get(BIND) == device_spec.BIND_HOST
        ):
            raise
        log.about(LOG, van.instance_uuid, van.uuid).warning(
            'PCI function %s is not cleaned: %s', function.address, err
        )


def hold(address: str) -> None:
    """Tell the privileged half that a VAN has a function.

    This is for functions that it is not asked to take: libvirt or the operator
    binds them. The VAN then keeps the function if device_spec changes.
    """
    from os_acc.privileged.pci import functions as privileged

    privileged.hold(address)


def let_go(address: str, ids: str) -> None:
    """Tell the privileged half that the VAN of hold() is released."""
    from os_acc.privileged.pci import functions as privileged

    privileged.let_go(address, ids)


def finish(van: objects.VAN, function: pci.Function) -> None:
    """Save that a function of a VAN is clean; then let it go.

    The privileged half does not clean a function that device_spec no longer
    offers and that no VAN has. So if the VAN's row cannot be deleted, the next
    attempt to release the VAN must not clean the function again.
    """
    done = {*van.driver_data.get(CLEANED, '').split(), function.address}
    van.driver_data = {**van.driver_data, CLEANED: ' '.join(sorted(done))}
    van.save()
    let_go(function.address, function.ids)


def is_clean(van: objects.VAN, address: str) -> bool:
    """Whether finish() was called for a function of a VAN."""
    return address in van.driver_data.get(CLEANED, '').split()


@contextlib.contextmanager
def _progress(van: objects.VAN, function: pci.Function) -> Iterator[None]:
    """Report how far the privileged half has emptied a function."""
    if not storage.is_storage(function):
        yield
        return
    from os_acc.privileged.pci import storage_calls

    with progress.asked(
        lambda: storage_calls.cleaning_progress(function.address),
        van.report_progress,
        _REPORT_EVERY,
    ):
        yield
