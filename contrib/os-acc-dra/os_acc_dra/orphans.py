# SPDX-License-Identifier: Apache-2.0

"""Releases the devices of claims that nobody has any more.

The kubelet writes a claim into its checkpoint before it asks to prepare it,
and removes it only after the claim was unprepared. If the checkpoint is lost,
nobody asks to unprepare what it had.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

import os_acc
import os_acc_dra
from os_acc_dra import claims as claims_module

if TYPE_CHECKING:
    from os_acc_dra import cluster

LOG = logging.getLogger(__name__)


def release(
    server: cluster.Cluster, driver: str, node: str, directory: str, age: float
) -> list[str]:
    """Release what belongs to no claim.

    A claim is there if the kubelet's checkpoint names its UID, or if the API
    server has it with a device of this node.

    :param directory: the kubelet's directory
    :param age: see os_acc.release_orphans
    :returns: for each VAN that belonged to no claim, what became of it
    :raises ServerError: if the API server does not answer; nothing is then
        released
    :raises OSError: if the checkpoint cannot be read; nothing is then released
    """
    start = time.monotonic()
    known = checkpoint(directory)
    lost = {uid for uid in _own() if uid not in known}
    if not lost:
        return []
    there = claims_module.uids_on(server.claims(), driver, node)
    # A claim may have been prepared meanwhile, or just now.
    passed = time.monotonic() - start
    vans = os_acc.release_orphans(_own() - (lost - there), max(age, passed))
    return [
        f'VAN {van.uuid} of claim {van.instance_uuid}: '
        f'{van.error or "released"}'
        for van in vans
    ]


def _own() -> set[str]:
    """The UIDs of the claims that have a device."""
    return {
        van.instance_uuid
        for van in os_acc.get_vans()
        if van.owner == os_acc_dra.OWNER
    }


def checkpoint(directory: str) -> str:
    """What the kubelet has noted; '' if there is no file.

    A UID is a text that nothing else has, whatever the format is.

    :param directory: the kubelet's directory
    :raises OSError: if the file cannot be read
    """
    path = os.path.join(directory, 'dra_manager_state')
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            return file.read()
    except FileNotFoundError:
        return ''
