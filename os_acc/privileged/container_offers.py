# SPDX-License-Identifier: Apache-2.0

"""Whether a container may get a device, and what it gets with it, as root.

Every container that has a device like it also has its common files, such as
/dev/vfio/vfio, /dev/kfd and /dev/nvidiactl. They say nothing about the device.
"""

from __future__ import annotations

from os_acc import exception
from os_acc import kinds
from os_acc.claims import of_handle
from os_acc.containers import handle as handles
from os_acc.kernel import file_place
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.kinds.devfile import groups as file_groups
from os_acc.privileged import arguments
from os_acc.privileged import noted
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged.devfile import device_files
from os_acc.privileged.nvme_of import notes as nvme_of_notes
from os_acc.spec import device_spec
from os_acc.spec import edits as spec_edits


def edits(handle: handles.Handle, van: str) -> spec_edits.Edits:
    """Check that device_spec offers a device; return what its entry adds.

    A VAN keeps what it has: then an entry that no longer offers the device
    does not matter.

    :raises DeviceNotFound: if device_spec does not offer it, or it is gone, or
        the VAN does not have it
    :raises UnsupportedHandle: if no container can use such a handle
    """
    kind, _, name = handle.identity.partition('/')
    if kind == 'pci':
        return offers.entry(arguments.function(name)).edits
    if kind == 'mdev':
        there = arguments.mdev_there(name)
        offers.check_mdev(there, new=True)
        return _of(offers.specs().known_parent(there.parent))
    if kind == 'file':
        own = of_handle.kind_of(handle.name)
        if own is None:
            return _files(handle).spec.edits
        return _of(
            kinds.module(own, 'containers', kinds.ROOT).entry(handle, van)
        )
    if kind == 'block':
        return _of_namespace(name)
    raise handles.unsupported(kind)


def check_holder(handle: handles.Handle, van: str, instance: str) -> None:
    """Check that the notes name no other VAN for a device.

    A driver of another distribution writes no note. Then no other instance may
    have anything that excludes the device, such as a function of its group.

    :raises DeviceBusy: if a note does, or cannot be read: the guest may be
        off, so that nobody has the device open
    """
    kind, _, name = handle.identity.partition('/')
    if kind == 'file':
        name = file_place.with_share(handle.name, handle.share or '')
    kinds_of = [x for x, each in noted.KINDS.items() if each.handle == kind]
    about = [notes.any_of(each, name) for each in kinds_of]
    current = [x for x in about if x is not None and notes.is_current(x)]
    if not current:
        others = notes.of_other_instances(instance)
        wanted = _unnoted(kinds_of[0], name)
        for other in noted.Rule(others, wanted).in_the_way(wanted):
            if notes.is_current(other.note):
                raise other.note.error(other.both)
    for found in current:
        who = found.holder
        if found.is_damaged or (
            who is not None and (who.van, who.instance) != (van, instance)
        ):
            raise found.error()


def _unnoted(kind: str, name: str) -> noted.Note:
    """The note of a function or mdev that root has not given out."""
    parent = name
    if kind == noted.PCI:
        parent = pci.get(name).parent
    elif (found := mdev.find(name)) is not None:
        parent = found.parent
    return notes.made(kind, name, {'what': name, 'device': parent})


def common(handle: handles.Handle) -> frozenset[str]:
    """The paths of the device files of a handle that others have too."""
    if (
        not handle.identity.startswith('file/')
        or of_handle.kind_of(handle.name) is not None
    ):
        return frozenset()
    return frozenset(each.path for each in _files(handle).common)


def _files(handle: handles.Handle) -> file_groups.Accelerator:
    """Find the accelerator of device files that a VAN has."""
    found = device_files.held_by(handle.name, handle.share or '')
    there = {each.path for each in found.files}
    arguments.permissions(handle, found.spec.permissions)
    for file in handle.files:
        if file.path not in there:
            raise exception.DeviceNotFound(
                wanted=f'device file {file.path}',
                reason=f'the accelerator {handle.name} does not have it now',
            )
    return found


def _of_namespace(wwn: str) -> spec_edits.Edits:
    """Check that a VAN has a namespace of an NVMe-oF target."""
    note = nvme_of_notes.read(wwn)
    if note is None or not note.given:
        raise exception.DeviceNotFound(
            wanted=f'namespace {wwn}', reason='no VAN has it'
        )
    return _of(offers.specs().known_namespace(wwn))


def _of(entry: device_spec.Spec | None) -> spec_edits.Edits:
    return spec_edits.Edits() if entry is None else entry.edits
