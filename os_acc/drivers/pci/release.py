# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Giving back the PCI function of a VAN: clean it, bind it as it was."""

from __future__ import annotations

import logging

from oslo_config import cfg

from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.devices import boot
from os_acc.devices import device_spec
from os_acc.devices import pci
from os_acc.devices import root_folder
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


def give_back(van: objects.VAN) -> None:
    """Clean the function of a VAN, and bind it to its earlier driver.

    Does nothing if the function is gone, or another one is at its address. If
    os-acc had bound the function, but somebody else has bound it since, it
    keeps that driver and is not cleaned. The privileged half knows by its own
    record how the function was bound before.

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
    if ours and foreign and not vfio.is_bound(function):
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


def clean(van: objects.VAN, function: pci.Function) -> None:
    """Clean the function of a VAN, once its guest has closed it.

    The VAN's driver_data has IDS and RESET.

    :raises: as privileged.pci.clean
    """
    from os_acc.privileged import pci as privileged

    conf, data = CONF.os_acc, van.driver_data
    try:
        privileged.clean(
            function.address,
            data[IDS],
            data[RESET],
            conf.release_timeout,
            conf.device_timeout,
        )
    except exception.DeviceInUseByHost as err:
        # libvirt or a reboot has given it back already. A network function
        # keeps no data of its last guest, but a disk may.
        if function.base_class != pci.CLASS_NETWORK:
            raise
        log.about(LOG, van.instance_uuid, van.uuid).warning(
            'PCI function %s is not cleaned: %s', function.address, err
        )
