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

from os_acc import driver
from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.devices import boot
from os_acc.devices import device_spec
from os_acc.devices import pci
from os_acc.devices import vfio
from os_acc.drivers import allocation
from os_acc.drivers.pci import companions

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# Keys of VAN.driver_data, beside those of pci_vfs.
BIND = 'bind'
IDS = 'ids'
RESET = 'reset'
VFIO_DRIVER = 'vfio_driver'  # the driver to bind the function to
IOMMUFD = 'iommufd'  # a hint for the plugin: the kernel has no VFIO groups
DRIVER_BEFORE = 'driver_before'
OVERRIDE_BEFORE = 'override_before'

_OF_FUNCTION = (
    BIND,
    IDS,
    RESET,
    VFIO_DRIVER,
    DRIVER_BEFORE,
    OVERRIDE_BEFORE,
)


def give_back(by: driver.DriverBase, van: objects.VAN) -> None:
    """Clean the function of a VAN, and bind it to its earlier driver.

    Then do the same for its companions. If the instance keeps another function
    of the IOMMU group, the function may have to stay on VFIO: then the VAN of
    the other function gives it back, see _hand_over().

    Does nothing for a function that is gone, or if another one is at its
    address. If os-acc had bound the function, but somebody else has bound it
    since, it keeps that driver and is not cleaned; only its driver_override is
    restored.

    :raises: as clean() and privileged.pci.give_back
    """
    _give_back(by, van, allocation.address_of(van), van.driver_data)
    for address, data in companions.own(by, van).items():
        _give_back(by, van, address, data)


def _give_back(
    by: driver.DriverBase,
    van: objects.VAN,
    address: str,
    data: dict[str, str],
) -> None:
    """Give back one function of a VAN.

    :param data: as driver_data, for this function
    """
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
    shares = _staying(by, van, function) is not None
    before = _cleaned(van, function, data, shares)
    if data[BIND] != device_spec.BIND_OS_ACC:
        let_go(address)
        return
    if before not in (None, function.driver):
        # Two VANs of the instance may hand over functions at the same time.
        with allocation.group_lock(by, function):
            if (stays := _staying(by, van, function)) is not None:
                _hand_over(by, stays, address, data)
                logger.info(
                    'PCI function %s stays on VFIO with VAN %s, which has '
                    'another function of its IOMMU group',
                    address,
                    stays.uuid,
                )
                return
    from os_acc.privileged import pci as privileged

    privileged.give_back(
        address,
        function.ids,
        before,
        data.get(OVERRIDE_BEFORE),
        CONF.os_acc.device_timeout,
        shares,
    )


def _staying(
    by: driver.DriverBase, van: objects.VAN, function: pci.Function
) -> objects.VAN | None:
    """The VAN that can give back a function later, see companions.staying()"""
    stays = companions.staying(by, van, function)
    if stays is None or BIND not in stays.driver_data:
        return None  # its driver knows nothing of companions
    return stays


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
    ours = data[BIND] == device_spec.BIND_OS_ACC
    # After a reboot it is bound to its driver again, but was not cleaned.
    rebooted = van.boot_id != boot.boot_id()
    foreign = function.driver not in (None, before)
    if ours and foreign and not vfio.is_bound(function):
        log.about(LOG, van.instance_uuid, van.uuid).warning(
            'PCI function %s is left bound: somebody has bound it to %s',
            function.address,
            function.driver,
        )
        return function.driver
    if (
        not ours
        or rebooted
        or function.driver != before
        or vfio.is_bound(function)
    ):
        clean(van, function, data, shares)
    return before


def _hand_over(
    by: driver.DriverBase, to: objects.VAN, address: str, data: dict[str, str]
) -> None:
    """Make another VAN of the instance give back a function.

    While a guest uses the IOMMU group, the kernel lets no driver of the host
    bind the function; before Linux 5.19 it stopped with a BUG instead. If the
    guest is off, the group would be unusable at its next start.
    """
    record = {key: data[key] for key in _OF_FUNCTION if key in data}
    records = companions.of(to) | {address: record}
    to.driver_data = {**to.driver_data, **companions.to_data(records)}
    by.journal.save(to)


def clean(
    van: objects.VAN,
    function: pci.Function,
    data: dict[str, str] | None = None,
    shares: bool = False,
) -> None:
    """Clean a function of a VAN, once its guest has closed it.

    :param data: has IDS and RESET; None: the VAN's driver_data
    :param shares: whether the guest keeps other functions of its IOMMU group
    :raises: as privileged.pci.clean
    """
    from os_acc.privileged import pci as privileged

    conf, data = CONF.os_acc, data or van.driver_data
    try:
        privileged.clean(
            function.address,
            data[IDS],
            data[RESET],
            conf.release_timeout,
            conf.device_timeout,
            shares,
        )
    except exception.DeviceInUseByHost as err:
        # libvirt or a reboot has given it back already. A network function
        # keeps no data of its last guest, but a disk may.
        if function.base_class != pci.CLASS_NETWORK:
            raise
        log.about(LOG, van.instance_uuid, van.uuid).warning(
            'PCI function %s is not cleaned: %s', function.address, err
        )


def hold(address: str) -> None:
    """Tell the privileged half that a VAN has a function.

    This is for functions that it is not asked to take: libvirt or the operator
    binds them. The VAN then keeps the function if device_spec changes.

    :raises: as privileged.pci.hold
    """
    from os_acc.privileged import pci as privileged

    privileged.hold(address)


def let_go(address: str) -> None:
    """Tell the privileged half that the VAN of hold() is released."""
    from os_acc.privileged import pci as privileged

    privileged.let_go(address)
