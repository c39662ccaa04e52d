# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Giving back the PCI function of a VAN: clean it, bind it as it was."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import logging
import threading

from oslo_config import cfg

from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.devices import boot
from os_acc.devices import device_spec
from os_acc.devices import pci
from os_acc.devices import root_folder
from os_acc.devices import storage
from os_acc.devices import sysfs
from os_acc.devices import vfio
from os_acc.drivers import allocation

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# Keys of VAN.driver_data, beside those of pci_vfs.
BIND = 'bind'
IDS = 'ids'
RESET = 'reset'
VFIO_DRIVER = 'vfio_driver'  # the driver to bind the function to
DRIVER_BEFORE = 'driver_before'

# Seconds between two reports of the progress.
_REPORT_EVERY = 2.0


def give_back(van: objects.VAN, keep: bool = False) -> None:
    """Clean the function of a VAN, and bind it to its earlier driver.

    Does nothing if the function is gone, or another one is at its address. If
    os-acc had bound the function, but somebody else has bound it since, it
    keeps that driver and is not cleaned. The privileged half knows by its own
    record how the function was bound before.

    :param keep: a function that os-acc has bound to VFIO stays bound to it
    :raises DeviceBusy: if somebody else has bound a function that stores data
    :raises: as clean() and privileged.pci.give_back
    """
    from os_acc.privileged import pci as privileged

    address, data = allocation.address_of(van), van.driver_data
    function = pci.find(address)
    if function is None:
        return
    logger = log.about(LOG, van.instance_uuid, van.uuid)
    if function.ids != data[IDS]:
        logger.warning(
            'PCI function %s is left alone: device %s is at its address now',
            address,
            function.ids,
        )
        return
    conf, before = CONF.os_acc, data.get(DRIVER_BEFORE)
    ours = data[BIND] == device_spec.BIND_OS_ACC
    # After a reboot it is bound to its driver again, but was not cleaned.
    rebooted = van.boot_id != boot.boot_id()
    foreign = function.driver not in (None, before)
    stores = storage.is_storage(function)
    if ours and foreign and not vfio.is_bound(function):
        if stores:
            raise exception.DeviceBusy(
                device=f'PCI function {address}',
                reason=f'it is bound to {function.driver}, by somebody else '
                'than os-acc, and was not emptied. Unbind it, and run os-acc '
                'recover',
            )
        logger.warning(
            'PCI function %s is left bound: somebody has bound it to %s',
            address,
            function.driver,
        )
    elif (
        not ours
        or rebooted
        or function.driver != before
        or vfio.is_bound(function)
    ):
        clean(van, function)
    elif stores:
        # Somebody may have bound it to its earlier driver by hand.
        clean(van, function, only_if_used=True)
    if keep and (now := pci.find(address)) and vfio.is_bound(now):
        logger.info('PCI function %s stays bound to %s', address, now.driver)
        return
    if ours and not privileged.give_back(
        address, function.ids, conf.device_timeout
    ):
        _check_given_back(function, before)
        logger.info(
            'PCI function %s was given back already: its driver is %s; it was '
            '%s when it was taken',
            address,
            function.driver or 'none',
            before or 'none',
        )


def _check_given_back(function: pci.Function, before: str | None) -> None:
    """Check a function that the privileged half has not taken in this boot.

    It was given back already if a crash came between that and the deletion of
    the VAN's row, or if the host was rebooted.

    :param before: its driver before it was taken, by the journal
    :raises DeviceError: if it is still bound to VFIO: an earlier version of
        os-acc has bound it, or the record was lost
    """
    if vfio.is_bound(function) and function.driver != before:
        there = f'{sysfs.SYS}/bus/pci'
        raise exception.DeviceError(
            device=f'PCI function {function.address}',
            reason=f'it is bound to {function.driver}, but the privileged '
            'daemon has no record of it: it was taken by an earlier version '
            f'of os-acc, or the record below {root_folder.PATH} was lost. '
            'Bind it '
            f'to its driver ({before or "none"}) as root, and run os-acc '
            f'recover: echo > {there}/devices/{function.address}'
            f'/driver_override; echo {function.address} > {there}/drivers/'
            f'{function.driver}/unbind; echo {function.address} > {there}'
            '/drivers_probe',
        )


def clean(
    van: objects.VAN, function: pci.Function, only_if_used: bool = False
) -> None:
    """Clean the function of a VAN, once its guest has closed it.

    The VAN's driver_data has IDS and RESET. Emptying a function that stores
    data may take hours: the progress is reported.

    :param only_if_used: see privileged.pci.clean
    :raises: as privileged.pci.clean
    """
    from os_acc.privileged import pci as privileged

    conf, data = CONF.os_acc, van.driver_data
    try:
        with _progress(van, function):
            privileged.clean(
                function.address,
                data[IDS],
                data[RESET],
                conf.release_timeout,
                conf.device_timeout,
                only_if_used,
            )
    except exception.DeviceInUseByHost as err:
        # libvirt or a reboot has given it back already. A network function
        # keeps no data of its last guest, but a disk may.
        if function.base_class != pci.CLASS_NETWORK:
            raise
        log.about(LOG, van.instance_uuid, van.uuid).warning(
            'PCI function %s is not cleaned: %s', function.address, err
        )


@contextlib.contextmanager
def _progress(van: objects.VAN, function: pci.Function) -> Iterator[None]:
    """Report meanwhile how far the privileged half is with emptying it."""
    if not storage.is_storage(function):
        yield
        return
    from os_acc.privileged import storage_calls

    done = threading.Event()

    def report() -> None:
        while not done.wait(_REPORT_EVERY):
            # The clean-up itself reports what is wrong with the daemon.
            with contextlib.suppress(exception.ExceptionBase):
                now = storage_calls.cleaning_progress(function.address)
                if now is not None and not done.is_set():
                    van.report_progress(*now)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
