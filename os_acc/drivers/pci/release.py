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
from os_acc.devices import vfio
from os_acc.drivers import allocation
from os_acc.drivers.pci import port

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# Keys of VAN.driver_data, beside those of pci_vfs.
BIND = 'bind'
IDS = 'ids'
RESET = 'reset'
VFIO_DRIVER = 'vfio_driver'  # the driver to bind the function to
DRIVER_BEFORE = 'driver_before'
OVERRIDE_BEFORE = 'override_before'


def give_back(van: objects.VAN) -> None:
    """Clean the function of a VAN, and bind it to its earlier driver.

    Restores the settings of its network port in between.

    Does nothing if the function is gone, or another one is at its address. If
    os-acc had bound the function, but somebody else has bound it since, it
    keeps that driver and is not cleaned; only its driver_override is restored.

    :raises: as clean(), port.restore() and privileged.pci.give_back
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
        before = function.driver
    elif (
        not ours
        or rebooted
        or function.driver != before
        or vfio.is_bound(function)
    ):
        clean(van, function)
    # Before the host's own driver of the VF reads them.
    port.restore(van)
    if ours:
        privileged.give_back(
            address,
            function.ids,
            before,
            data.get(OVERRIDE_BEFORE),
            conf.device_timeout,
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
