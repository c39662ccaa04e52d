# SPDX-License-Identifier: Apache-2.0


"""The network port that a VF serves: which VF may, and its settings."""

from __future__ import annotations

import json
import logging
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.drivers import allocation
from os_acc.kernel import network
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.refusals import report_refusals
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# Keys of VAN.driver_data.
PORT = 'port'  # JSON: the settings to make, those before, and when
REPRESENTOR = 'representor'  # of the VF, in switchdev mode; for os-vif


def mismatch(
    spec: device_spec.Spec, request: objects.AcceleratorRequest
) -> str | None:
    """Say why the devices of an entry may not serve the request's port.

    :returns: a clause; None if they may
    """
    wanted = request.physical_network
    if wanted is not None and spec.physical_network != wanted:
        return report_refusals.PHYSICAL_NETWORK.reason(
            network=spec.physical_network or '(none)', wanted=wanted
        ).text
    if request.port is not None and request.port.trusted and not spec.trusted:
        return report_refusals.NOT_TRUSTED.reason().text
    return None


def check(
    address: str,
    spec: device_spec.Spec,
    request: objects.AcceleratorRequest,
) -> None:
    """Check that a function may serve the request's port."""
    if (reason := mismatch(spec, request)) is not None:
        raise exception.DeviceNotFound(
            wanted=f'PCI function {address}', reason=reason
        )


def state(
    function: pci.Function,
    request: objects.AcceleratorRequest,
    known: dict[str, str],
) -> dict[str, str]:
    """What VAN.driver_data is to say about a port before anything is set.

    :param known: what driver_data has now. What was read in this boot counts,
        because a part of the settings may have been made since then
    """
    data = {}
    if (name := network.representor(function)) is not None:
        data[REPRESENTOR] = name
    wanted = request.port.settings() if request.port is not None else {}
    if not wanted:
        return data
    now = sysfs.boot_id()
    if PORT in known and json.loads(known[PORT])['boot'] == now:
        return {**data, PORT: known[PORT]}
    from os_acc.privileged.pci import network as privileged

    before = privileged.read_port(function.address, CONF.os_acc.device_timeout)
    record = {
        'boot': now,
        'port_uuid': request.port_uuid,
        'wanted': wanted,
        'before': {name: before[name] for name in wanted},
    }
    return {**data, PORT: json.dumps(record)}


def set_up(van: objects.VAN) -> None:
    """Make the settings of a VAN's port on the PF.

    Without a port, a VF of a NIC gets those of vf_settings, if it has lost
    them.
    """
    record = _record(van)
    address = allocation.address_of(van)
    if record is None and not network.is_vf(pci.get(address)):
        return
    from os_acc.privileged.pci import network as privileged

    wanted = record['wanted'] if record is not None else {}
    privileged.set_port(address, wanted, CONF.os_acc.device_timeout)
    if record is None:
        return
    log.about(LOG, van.instance_uuid, van.uuid).info(
        'VF %s serves port %s: its PF has set %s',
        address,
        record['port_uuid'],
        record['wanted'],
    )


def restore(van: objects.VAN) -> None:
    """Restore the settings that a VF had before set_up().

    Does nothing if they were made in an earlier boot of the host, because the
    reboot has undone them. Gives up if the PF has no network interface.
    """
    record = _record(van)
    if record is None or record['boot'] != sysfs.boot_id():
        return
    from os_acc.privileged.pci import network as privileged

    logger = log.about(LOG, van.instance_uuid, van.uuid)
    address = allocation.address_of(van)
    function = pci.get(address)
    try:
        network.vf_port(function)
    except exception.DeviceNotFound as err:
        logger.warning(
            'VF %s keeps the settings of its last guest, %s: %s',
            address,
            record['wanted'],
            err,
        )
        return
    changed = {
        name: value
        for name, value in record['wanted'].items()
        if value != record['before'][name]
    }
    for clause in privileged.restore_port(
        address, changed, CONF.os_acc.device_timeout
    ):
        logger.warning('VF %s is not restored: %s', address, clause)


def _record(van: objects.VAN) -> dict[str, Any] | None:
    text = van.driver_data.get(PORT)
    found: dict[str, Any] | None = json.loads(text) if text else None
    return found
