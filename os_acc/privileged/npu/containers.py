# SPDX-License-Identifier: Apache-2.0

"""Whether a container may get an NPU, as root: see container_offers."""

from __future__ import annotations

from os_acc import exception
from os_acc.containers import handle as handles
from os_acc.kinds.npu import facts as npu_facts
from os_acc.kinds.npu import names as npu_names
from os_acc.kinds.npu import rules as npu_rules
from os_acc.privileged import arguments
from os_acc.privileged import offers
from os_acc.privileged.npu import devices
from os_acc.spec import device_spec


def entry(handle: handles.Handle, van: str) -> device_spec.Spec | None:
    """Check that a VAN has an NPU, and that its files are what they were.

    :returns: the entry of device_spec for it; None: none names it any more
    :raises DeviceNotFound: if it does not, or a file is a different one now
    """
    address = npu_names.parse(handle.name)
    function = arguments.there(address)
    if not devices.has(van, function):
        raise exception.DeviceNotFound(
            wanted=npu_rules.label(address),
            reason=f'VAN {van} does not have it',
        )
    saved = [(x.path, x.type, x.major, x.minor) for x in handle.files]
    nodes = npu_facts.nodes_of(address)
    if not nodes or saved != [(each.path, *each.number) for each in nodes]:
        raise exception.DeviceNotFound(
            wanted=npu_rules.label(address),
            reason='its device file, or the number of that, has changed',
        )
    arguments.permissions(handle, 'rw')
    found = offers.specs().known(function)
    return found if npu_rules.settings_of(found) is not None else None
