# SPDX-License-Identifier: Apache-2.0

"""Whether a container may get a work queue, as root: see container_offers."""

from __future__ import annotations

from os_acc import exception
from os_acc.containers import handle as handles
from os_acc.kernel import device_files as paths
from os_acc.kinds.idxd import names as idxd_names
from os_acc.privileged import arguments
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged.idxd import notes as idxd_notes
from os_acc.spec import device_spec


def entry(handle: handles.Handle, van: str) -> device_spec.Spec | None:
    """Check that a VAN has a work queue, and that its file is what it was.

    :returns: the entry of device_spec for it; None: none names it any more
    :raises DeviceNotFound: if it does not, or the file is a different one now
    """
    address, _ = idxd_names.parse(handle.name)
    function = arguments.there(address)
    queue, file = idxd_notes.find(handle.name)
    noted = notes.said(idxd_notes.Queue, notes.IDXD, handle.name, van)
    if (
        queue is None
        or noted is None
        or noted.ids != function.ids
        or not idxd_notes.has(queue, van)
    ):
        raise exception.DeviceNotFound(
            wanted=f'work queue {handle.name}',
            reason=f'VAN {van} does not have it',
        )
    saved = [(x.path, x.type, x.major, x.minor) for x in handle.files]
    if file is None or saved != [(paths.shown(file.path), *file.number)]:
        raise exception.DeviceNotFound(
            wanted=f'work queue {handle.name}',
            reason='its device file, or the number of that, has changed',
        )
    arguments.permissions(handle, 'rw')
    found = offers.specs().known(function)
    return found if found is not None and found.queues else None
