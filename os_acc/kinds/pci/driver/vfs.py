# SPDX-License-Identifier: Apache-2.0

"""VFs that os-acc makes on request and removes when no VAN needs them."""

from __future__ import annotations

import logging

from oslo_config import cfg

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.availability import functions as availability
from os_acc.availability import vf_availability
from os_acc.drivers import allocation
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# Keys of VAN.driver_data.
MADE = 'vfs_made'  # the number of VFs that os-acc has made on the PF
LET_GO = 'let_go'  # this VAN no longer needs the PF's VFs


def create(
    driver: driver_base.DriverBase,
    van: objects.VAN,
    address: str,
    pf: str,
    specs: device_spec.Specs,
) -> None:
    """Make the VFs of a PF, because a VAN needs one of them.

    The caller holds the PF's lock.
    """
    function = pci.get(pf)
    spec = specs.check(function)
    holders = allocation.holders(driver, van)
    allocation.check(
        [
            *vf_availability.vfs_obstacles(function, holders, spec),
            *availability.reserved_obstacles(address, holders),
        ]
    )
    number = sriov.count(pf)
    if spec.num_vfs is None or number:
        raise exception.DeviceNotFound(
            wanted=f'PCI function {address}',
            reason=f'PF {pf} has {number} VFs, but none at that address',
        )
    van.driver_data = {**van.driver_data, MADE: str(spec.num_vfs)}
    van.device = pf
    van.handle = objects.PCIHandle(address=address)
    van.save()
    try:
        _privileged_create(pf, spec.num_vfs)
    except exception.DeviceBusy:
        # Somebody else has made VFs meanwhile: os-acc must not remove them.
        van.driver_data = {
            key: value for key, value in van.driver_data.items() if key != MADE
        }
        van.save()
        raise
    log.about(LOG, van.instance_uuid, van.uuid).info(
        'PF %s: %d VFs created', pf, spec.num_vfs
    )


def create_again(van: objects.VAN, pf: str, specs: device_spec.Specs) -> None:
    """Make the VFs again after a reboot, if nobody else has.

    There are at least as many as before the reboot, because a VAN may have the
    last one. The caller holds the PF's lock.
    """
    if MADE not in van.driver_data or sriov.count(pf):
        return
    function = pci.get(pf)
    spec = specs.known(function)
    number = int(van.driver_data[MADE])
    if spec is not None and spec.num_vfs is not None:
        number = max(number, spec.num_vfs)
    allocation.check(vf_availability.number_obstacles(function, number))
    _privileged_create(pf, number)


def _privileged_create(pf: str, number: int) -> None:
    from os_acc.privileged.pci import vfs as privileged

    privileged.create_vfs(pf, number, CONF.os_acc.device_timeout)


def known(
    driver: driver_base.DriverBase, pf: str, specs: device_spec.Specs
) -> dict[str, str]:
    """The driver_data of a VAN on a PF whose VFs os-acc has made.

    If no VAN on the PF says so, the privileged half may have a record: when
    the last VAN was released, somebody else used one of the VFs, and they
    stayed.

    :returns: empty if os-acc has not made them
    """
    for other in driver.vans_on(pf):
        # A VAN with LET_GO still has MADE while the VFs exist.
        if MADE in other.driver_data:
            return {MADE: other.driver_data[MADE]}
    spec = specs.find(pci.get(pf))
    if spec is None or spec.num_vfs is None:
        return {}
    from os_acc.privileged.pci import vfs as privileged

    number = privileged.made_vfs(pf, CONF.os_acc.device_timeout)
    return {MADE: str(number)} if number else {}


def remove(driver: driver_base.DriverBase, van: objects.VAN) -> None:
    """Remove the VFs that os-acc made, if no other VAN needs them.

    They stay if the operator wants the PF to have them: see os_acc.desired.
    """
    from os_acc.privileged.pci import vfs as privileged

    data, pf = van.driver_data, van.device
    if MADE not in data:
        return
    assert pf is not None
    with driver.lock(pf):
        # Saved first: of two VANs that are released at the same time, the
        # second one does not see the first as a user of the VFs.
        van.driver_data = {**data, LET_GO: '1'}
        van.save()
        others = [
            other
            for other in driver.vans_on(pf)
            if other.uuid != van.uuid and LET_GO not in other.driver_data
        ]
        kept = driver.journal.kept_vfs().get(pf)
        if others or kept or pci.find(pf) is None:
            return
        users = privileged.remove_vfs(pf, CONF.os_acc.device_timeout)
    logger = log.about(LOG, van.instance_uuid, van.uuid)
    if users:
        logger.warning('PF %s keeps its VFs: %s', pf, '; '.join(users))
    else:
        logger.info('PF %s: VFs removed', pf)
