# SPDX-License-Identifier: Apache-2.0

"""What the operator offers, as the privileged half reads it.

No caller can say what is offered. The daemon reads the configuration files
that it was started with, and the directory device_spec_dir, at each call. It
refuses a file that a user other than root could have written.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import logging

from oslo_config import cfg

from os_acc import exception
from os_acc.availability import companions
from os_acc.availability import functions as availability
from os_acc.claims import holder
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.kernel import vgpu
from os_acc.options import common
from os_acc.privileged import context
from os_acc.privileged import function_notes
from os_acc.privileged import noted
from os_acc.privileged import notes
from os_acc.privileged import root_options
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)


def specs() -> device_spec.Specs:
    """Read device_spec and the files of device_spec_dir.

    If an entry is malformed, or a user other than root could have written a
    file, nothing new is offered, and VANs keep what they have. See
    device_spec.Unreadable.
    """
    return device_spec.load_for_vans(configuration())


def configuration() -> cfg.ConfigOpts:
    """The options that the privileged half uses. No caller can set them."""
    conf = cfg.CONF
    # privsep-helper defines this option. Without it, this is a service that
    # runs as root and calls the privileged half in its own process.
    return reread(conf) if 'privsep_context' in conf else conf


def reread(conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """Read os-acc's options again. See root_options.reread()."""
    return root_options.reread(conf, common.register)


def entry(function: pci.Function) -> device_spec.Spec:
    """The entry of device_spec by which a function may be touched.

    For a function that a VAN has, this is an entry that offers it, if there is
    one. What the VAN was given by an earlier entry stays.

    :raises DeviceNotFound: if device_spec offers neither it nor the function
        whose companion it is, and no VAN already has it
    """
    known = function_notes.of_function(notes.PCI, function)
    if known is not None:
        spec = specs().held(function, known.vfio_driver, known.command_empties)
        return dataclasses.replace(
            spec,
            trusted=spec.trusted or known.trusted,
            host_driver=known.host_driver or spec.host_driver,
        )
    return companions.entry_for(specs(), function)


def check(function: pci.Function) -> None:
    """Check that a function may be touched as a whole.

    :raises DeviceNotFound: as entry(), and if device_spec offers parts of it
        only. See spec_parts
    """
    if function_notes.has(function):
        return
    for obstacle in availability.offer_obstacles(function, entry(function)):
        raise obstacle.error()


def check_part(function: pci.Function) -> None:
    """Check that a device may be programmed, or parts of it touched.

    :raises DeviceNotFound: as entry(), if no VAN has a VF of it either
    """
    if not function_notes.has_part(function):
        entry(function)


def vfs_entry(
    pf: pci.Function,
) -> tuple[device_spec.Spec, frozenset[int]]:
    """The entry of a PF, and how many VFs may be made on it.

    That is num_vfs, and as many as were made for VANs: an instance gets its VF
    back although num_vfs has become smaller.

    :raises DeviceNotFound: if device_spec does not offer the PF, and no VAN
        already has VFs of it
    """
    found = specs()
    numbers = function_notes.vfs_of(pf)
    if numbers and _is_gone(found, pf):
        return found.held(pf), numbers
    spec = found.check(pf)
    if spec.num_vfs is not None:
        numbers |= {spec.num_vfs}
    return spec, numbers


def _is_gone(found: device_spec.Specs, function: pci.Function) -> bool:
    """Whether device_spec does not offer a function, or cannot be read."""
    if isinstance(found, device_spec.Unreadable):
        return True
    return found.find(function) is None


def has(function: pci.Function) -> bool:
    """Whether a function may be touched as a whole. See check()."""
    try:
        check(function)
    except exception.DeviceNotFound:
        return False
    return True


def has_nothing_to_undo(check: Callable[[], None], wanted: noted.Note) -> bool:
    """Whether the VAN that is undone was refused the device.

    The service's configuration may offer a device that root's does not. Root
    has then changed nothing for the VAN, and has no note of it. The same is
    true if a VAN of another journal excludes it: see notes.undoes_own().

    :param check: raises DeviceNotFound if device_spec does not offer the
        device, and no VAN already has it
    :param wanted: the note that the VAN would have of the device
    :raises DeviceNotFound: if this call is made for no VAN
    :raises DeviceBusy: if another VAN excludes it
    :raises PrivilegeError: if the notes cannot be read or trusted
    """
    try:
        check()
    except exception.DeviceNotFound as err:
        who = holder.current()
        if who is None or not who.van:
            raise
        notes.files.names()  # a note that cannot be read is not "no note"
        LOG.info('VAN %s: nothing to undo: %s', who.van, err)
        return True
    notes.check_not_refused(wanted)
    return False


def check_mdev(wanted: mdev.Mdev, new: bool) -> None:
    """Check that a mediated device may be given out, or touched.

    :param new: whether it is to be made, or given out; else it is released
    :raises DeviceNotFound: if device_spec does not offer it, and no VAN
        already has it
    """
    if notes.is_noted(
        notes.MDEV, wanted.uuid, function_notes.mdev_text(wanted)
    ):
        return
    if new:
        specs().check_mdev(wanted.parent, wanted.type)
    else:
        specs().check_parent(wanted.parent)


def check_vgpu(vf: pci.Function, number: int) -> None:
    """Check that a vGPU type may be set on a VF.

    :raises DeviceNotFound: if device_spec does not set this type, and no VAN
        already has the VF with this type
    """
    known = function_notes.of_function(notes.VGPU, vf)
    if known is not None and known.number == number:
        return
    wanted = specs().check(vf).vgpu_type
    if wanted is None or vgpu.find_type(vf.address, wanted) != number:
        raise exception.DeviceNotFound(
            wanted=f'vGPU type {number} on VF {vf.address}',
            reason=f'[os_acc] device_spec sets the type {wanted} for it',
        )


@context.entry
def count() -> int:
    """Count the entries that the privileged half has, for os-acc doctor."""
    return len(specs().entries)
