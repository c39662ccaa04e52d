# SPDX-License-Identifier: Apache-2.0
"""Names that os-acc's devices have in Cyborg and in Placement."""

from __future__ import annotations

import re
from typing import Any
import uuid

from os_acc import objects
from os_acc import opts
from os_acc.options import placement as placement_opts
from os_acc.placement import functions

#: The name of os-acc's driver in Cyborg, and its vendor in function traits.
DRIVER = 'os_acc'

FUNCTION_PREFIX = functions.PREFIX
function_trait = functions.trait

_UNUSABLE = re.compile(r'[^A-Za-z0-9_.-]')


def host(conf: Any) -> str:
    """Return the name with which the names of this host's deployables begin.

    It may differ from that in ARQs: see [os_acc_placement] host.
    """
    chosen: str = conf[placement_opts.GROUP].host
    return chosen or opts.host(conf)


def deployable(host: str, device: str, part: str = '') -> str:
    """Name a deployable, which is also the name of its resource provider.

    The name is the same after a reboot, and on no other host.

    :param host: [DEFAULT] host of Cyborg
    :param device: the address of the device, as get_devices() gives it
    :param part: what tells several deployables of one device apart, such as
        an mdev type
    """
    parts = [host, device, *([part] if part else [])]
    return _UNUSABLE.sub('_', '_'.join(parts))


def provider_uuid(name: str) -> str:
    """Return the UUID of the resource provider of a deployable.

    Cyborg's conductor makes it so (get_rp_uuid_from_obj in
    cyborg/conductor/manager.py).
    """
    return str(uuid.uuid3(uuid.NAMESPACE_DNS, name))


def function_traits(device: objects.Device) -> set[str]:
    """Name the traits of all functions that a device has.

    :param device: as get_devices() returns it. A dynamic device may have
        another function in each region
    """
    there = {device.function_id, *device.functions.values()}
    return {function_trait(each) for each in there if each}
