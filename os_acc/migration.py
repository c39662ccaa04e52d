# SPDX-License-Identifier: Apache-2.0

"""Moves an instance with its accelerators from one host to another.

The caller, such as a compute service, makes these calls in this order::

    describe(...)   source   what the target must provide
    prepare(...)    target   reserve, program and create it
    hand_over(...)  source   from now on the guest cannot get it here
    redefine(...)   source   only live: the guest's definition on the target
    (the caller moves the guest)
    switch(...)     target   assign it to the instance
    finish(...)     source   release what stayed behind

Until switch() has returned, abort() undoes all of it: on the target first,
then on the source. Each call may be repeated. The UUID of the migration
connects the calls, and both journals have it. On each host,
os_acc.initialize() must have been called.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import os_acc
from os_acc import objects
from os_acc import progress as progress_module


def describe(instance_info: objects.InstanceInfo) -> objects.MigrationPlan:
    """Say what the target must provide. Nothing is changed.

    :param instance_info: the instance
    :returns: the plan for prepare(). Its ``obj_to_primitive()`` goes over a
        network. ``way`` is the best way for all of the accelerators: live,
        replug or cold. ``obstacles`` says what cannot move, and why
    :raises LibraryNotInitialized: if os_acc.initialize() was not called
    :raises InvalidRequest: if instance_info is wrong
    :raises MigrationConflict: if the instance has no accelerators here, or
        they are not plugged
    :raises JournalError: if the journal cannot be read
    """
    from os_acc.moving import plans

    return plans.describe(os_acc.this_host(), instance_info)


def prepare(
    instance_info: objects.InstanceInfo,
    plan: objects.MigrationPlan | Mapping[str, Any],
    migration_uuid: str,
    progress: progress_module.Callback | None = None,
    requests: Sequence[objects.AcceleratorRequest] | None = None,
) -> objects.VANList:
    """Prepare accelerators on the target. The operation is all-or-nothing.

    No other instance gets them, and neither does this one yet: the VANs are
    ``incoming``. Their guest_config is for its definition on this host. They
    have the UUIDs that they have on the source.

    :type plan: os_acc.objects.MigrationPlan | Mapping
    :param plan: what describe() has returned on the source, or its primitive
    :param migration_uuid: a new UUID for each attempt to move an instance
    :type progress: os_acc.progress.Callback | None
    :param progress: as for os_acc.plug
    :param requests: what the caller has chosen on this host for each
        accelerator of the plan, with the same UUIDs, such as devices that
        Placement has allocated. None: os-acc chooses what the plan asks for
    :raises LibraryNotInitialized, ReadOnly: as for os_acc.plug
    :raises InvalidRequest: if an argument is wrong, or something cannot move;
        the error names the field of the plan
    :raises NoMatchingDriver, AmbiguousDriver, NoMatchingPlugin: as for plug
    :raises UnsupportedHandle: as for plug
    :raises MigrationConflict: if the instance has other VANs on this host.
        After this error and those before it, nothing was touched
    :raises PlugException: if a step failed, or the driver, the handle or the
        type of an mdev is not as on the source; all is undone
    """
    from os_acc.moving import moves

    return moves.prepare(
        os_acc.this_host('os_acc.migration.prepare'),
        instance_info,
        plan,
        migration_uuid,
        progress,
        requests,
    )


def hand_over(
    instance_info: objects.InstanceInfo,
    migration_uuid: str,
    live: bool = False,
    progress: progress_module.Callback | None = None,
    vans: Collection[str] | None = None,
) -> objects.VANList:
    """Give up the accelerators on the source, for the target to take them.

    The VANs are ``outgoing``. They keep their devices, and the instance is
    plugged with nothing on this host until abort().

    :param live: True: also detach them from the running guest. False: it does
        not run, or runs with them until the hypervisor has moved it
    :type progress: os_acc.progress.Callback | None
    :param progress: as for os_acc.plug
    :param vans: the UUIDs of the plan. An accelerator that was plugged or
        unplugged since describe() is then refused; the target has prepared
        nothing for it. None: whatever the instance has
    :returns: the VANs
    :raises LibraryNotInitialized, ReadOnly, InvalidRequest: as for prepare
    :raises LiveNotSupported, HypervisorError: as for os_acc.plug
    :raises MigrationConflict: if the instance has no accelerators here, or
        others than those of ``vans``, or another migration has them
    :raises UnplugException: if the guest does not release them. They are
        plugged again; if that fails too, they stay outgoing
    """
    from os_acc.moving import moves

    return moves.hand_over(
        os_acc.this_host('os_acc.migration.hand_over'),
        instance_info,
        migration_uuid,
        live,
        progress,
        vans,
    )


def redefine(
    instance_info: objects.InstanceInfo,
    vans: objects.VANList,
    definition: str,
) -> str:
    """Make the definition with which a guest moves live. Nothing is changed.

    Call it on the source. The guest keeps its devices while it moves. So only
    what names the devices of the host differs: see PluginBase.redefine().

    :param vans: what prepare() has returned on the target
    :param definition: the definition of the guest on this host, for its
        hypervisor. For libvirt, call this twice: for the XML of the running
        guest (VIR_DOMAIN_XML_MIGRATABLE), and for the XML that is kept
    :returns: the definition for the target
    :raises LibraryNotInitialized, JournalError: as for describe
    :raises InvalidRequest: if an argument is wrong, or the definition has not
        the devices of the VANs
    :raises MigrationConflict: if the instance has no accelerators here, or
        one of them cannot move live
    """
    from os_acc.moving import definitions

    return definitions.redefine(
        os_acc.this_host(), instance_info, vans, definition
    )


def switch(
    instance_info: objects.InstanceInfo,
    migration_uuid: str,
    live: bool = False,
    progress: progress_module.Callback | None = None,
) -> objects.VANList:
    """Assign prepared accelerators to the instance, on the target.

    Call it only after hand_over() has returned on the source.

    :param live: True: also attach them to the guest, which runs here already
    :returns: the VANs, which are ``plugged``
    :raises LibraryNotInitialized, ReadOnly, InvalidRequest: as for prepare
    :raises LiveNotSupported, HypervisorError: as for os_acc.plug
    :raises MigrationConflict: if the migration is not prepared here, if a VAN
        that prepare() has returned was unplugged, or if migration_timeout has
        passed and the guest does not run here
    :raises PlugException: if a step failed. The VANs stay incoming: try again
        or abort
    """
    from os_acc.moving import moves

    return moves.switch(
        os_acc.this_host('os_acc.migration.switch'),
        instance_info,
        migration_uuid,
        live,
        progress,
    )


def finish(
    instance_info: objects.InstanceInfo,
    migration_uuid: str,
    progress: progress_module.Callback | None = None,
) -> int:
    """Release on the source what the instance has left behind.

    Call it only after switch() has returned on the target.

    :returns: the number of VANs that were released
    :raises LibraryNotInitialized, ReadOnly, InvalidRequest: as for prepare
    :raises MigrationConflict: if this migration has not handed over the VANs,
        or the guest runs on this host
    :raises UnplugException: if some VANs could not be released; the next
        finish() or recover() tries again
    """
    from os_acc.moving import moves

    return moves.finish(
        os_acc.this_host('os_acc.migration.finish'),
        instance_info,
        migration_uuid,
        progress,
    )


def abort(
    instance_info: objects.InstanceInfo,
    migration_uuid: str,
    progress: progress_module.Callback | None = None,
) -> int:
    """Undo this host's part of a migration. Call it on the target first.

    The target releases what it has prepared. The source plugs again what it
    has handed over.

    :returns: the number of VANs that it has undone
    :raises LibraryNotInitialized, ReadOnly, InvalidRequest: as for prepare
    :raises MigrationConflict: if the migration has switched to this host, or
        the guest runs here. Then do not abort it on the source either
    :raises UnplugException: if a step failed; try again
    """
    from os_acc.moving import moves

    return moves.abort(
        os_acc.this_host('os_acc.migration.abort'),
        instance_info,
        migration_uuid,
        progress,
    )
