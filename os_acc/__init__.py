# SPDX-License-Identifier: Apache-2.0

"""os-acc attaches accelerators to instances, as os-vif attaches VIFs.

Call initialize() once per process. Call plug() once with all accelerators of
an instance, and unplug() when the guest is gone.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import os
import threading
from typing import TYPE_CHECKING
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc import objects
from os_acc import opts
from os_acc.state import selection

if TYPE_CHECKING:
    from os_acc import host
    from os_acc import progress as progress_module

CONF = cfg.CONF
opts.register(CONF)

_host: host.Host | None = None
_initializing = threading.Lock()


def initialize(
    reset: bool = False, read_only: bool = False, owner: str | None = None
) -> objects.RecoveryReport | None:
    """Load drivers and plugins, open the journal, and recover().

    Call it once per process, after oslo.config has read its files and before
    any other call. If the process forks afterwards, both the parent and the
    child may use os_acc. If device_spec offers devices, the privileged daemon
    is started in a background thread.

    :param reset: True: load and open everything again, even if initialize()
        was called before; no other call may be running
    :param read_only: True: for a process that only reads, such as a monitor.
        Nothing is recovered or created, and plug() and the other calls that
        change something raise ReadOnly
    :param owner: a name for the caller, such as 'nova'. Every VAN that this
        process plugs has it as its owner, and release_orphans() releases only
        VANs of this owner. None: the name of the program, such as
        nova-compute. It is not an option, because several programs may read
        one configuration file
    :returns: what recover() did; None: this process was initialized before,
        or read_only is True
    :raises InvalidRequest: if an option is invalid, or owner is not a name
    :raises JournalError: if the journal cannot be opened, or its directory
        belongs to another user and is not shared with a group of this user;
        the error says what to do
    """
    with _initializing:
        selected = selection.current()
        before = _host if selected is None else selected.host
        if (
            before is not None
            and not reset
            and (read_only or not before.read_only)
            and owner in (None, before.owner)
        ):
            return None
        from os_acc import host
        from os_acc.desired import applying
        from os_acc.operations import recovery

        conf = CONF if selected is None else selected.conf
        made = host.Host.open(conf, read_only, owner)
        # Before recover(): the hooks that it calls may call get_devices().
        _use(made, selected)
        report = None
        try:
            if not read_only:
                made.start_daemon()
                applying.before_instances(made)
                report = recovery.recover(made, at_start=True)
                applying.again(made)
        except BaseException:
            _use(before, selected)
            made.close()
            raise
        if before is not None:
            before.close()
        return report


def _use(made: host.Host | None, selected: selection.Selected | None) -> None:
    """Let all calls use a host; None: initialize() was not called."""
    global _host
    if selected is None:
        _host = made
    else:
        selected.host = made


def plug(
    instance_info: objects.InstanceInfo,
    requests: Sequence[objects.AcceleratorRequest],
    live: bool = False,
    progress: progress_module.Callback | None = None,
    plugin: str | None = None,
) -> objects.VANList:
    """Give an instance its accelerators. The operation is all-or-nothing.

    For accelerators that are already plugged, it returns the same VANs. It
    checks their devices: one that was unbound or removed by hand is prepared
    again, unless the guest runs with it, which is an error. A call with
    live=True does not attach what was plugged with live=False to the running
    guest.

    :param instance_info: the instance
    :param requests: one for each accelerator
    :param live: also attach them to the running guest; otherwise the caller
        puts each VAN's guest_config into the guest's definition
    :type progress: os_acc.progress.Callback | None
    :param progress: called with os_acc.progress.Progress objects, from
        several threads but one at a time; its errors are only logged
    :param plugin: the plugin for the accelerators that are not plugged yet,
        such as 'cdi' on a host that also runs guests; None: ``[os_acc]
        plugin``
    :returns: the VANs, in the order of the requests
    :raises LibraryNotInitialized: if initialize() was not called
    :raises ReadOnly: if initialize() was called with read_only=True
    :raises InvalidRequest: if a value is wrong, or an ARQ is bound to another
        host. This error and all others except PlugException are raised before
        anything is touched
    :raises ARQNotBound: if the state of an ARQ is not Bound
    :raises NoMatchingDriver: if no driver claims a request
    :raises AmbiguousDriver: if more than one driver claims a request
    :raises NoMatchingPlugin: if the plugin is not loaded, or its describe()
        fails
    :raises UnsupportedHandle: if the plugin does not accept such a handle
    :raises LiveNotSupported: if the plugin cannot attach to a running guest
    :raises MigrationConflict: if the instance is being moved: see
        os_acc.migration
    :raises HypervisorError: if live is True and the plugin cannot attach now,
        for example because a package is not installed
    :raises PlugException: if a step failed; what this call did is undone. Its
        cause is the first failure, its undo_errors are the failed undos
    """
    from os_acc.attach import plug as attach

    return attach.plug(
        _writable('os_acc.plug'),
        instance_info,
        requests,
        live,
        progress,
        plugin,
    )


def replug(
    instance_info: objects.InstanceInfo | str,
    progress: progress_module.Callback | None = None,
) -> objects.VANList:
    """Plug an instance again from the journal alone, without requests.

    For a guest that is started again without its ARQs at hand, such as after
    a reboot of the host. The guest must not run. VANs from before the reboot,
    and VANs whose devices are not intact, are prepared again with the same
    handle; see plug(). VANs that are only partly plugged or unplugged do not
    belong to the guest: they are left to recover() and unplug().

    :param instance_info: an InstanceInfo or an instance's UUID
    :type progress: os_acc.progress.Callback | None
    :param progress: as for plug
    :returns: the instance's plugged VANs, in the order in which they were
        plugged; empty if it has none
    :raises LibraryNotInitialized, ReadOnly, InvalidRequest: as for plug
    :raises PlugException: if a device could not be prepared again. The VANs
        stay plugged, and the next call tries again
    """
    from os_acc.attach import plug as attach

    return attach.replug(_writable('os_acc.replug'), instance_info, progress)


def unplug(
    instance_info: objects.InstanceInfo,
    requests: Iterable[objects.AcceleratorRequest | objects.VAN | str]
    | None = None,
    live: bool = False,
    progress: progress_module.Callback | None = None,
) -> int:
    """Detach accelerators from an instance, last plugged first.

    After a failure it continues with the other VANs. A VAN that does not
    exist is not an error.

    :param instance_info: the instance
    :param requests: the accelerators, as AcceleratorRequests, as VANs or as
        their UUIDs; None: all that the instance has
    :param live: also detach them from the running guest, and wait until the
        guest has released them
    :type progress: os_acc.progress.Callback | None
    :param progress: as for plug
    :returns: the number of VANs that were released
    :raises LibraryNotInitialized, ReadOnly, InvalidRequest: as for plug
    :raises UnplugException: if some VANs could not be released. Its
        undo_errors has a reason for each; a later unplug() or recover() tries
        again. If undo_errors is empty, nothing was touched
    """
    from os_acc.attach import release

    return release.unplug(
        _writable('os_acc.unplug'), instance_info, requests, live, progress
    )


def get_vans(
    instance_info: objects.InstanceInfo | str | None = None,
) -> objects.VANList:
    """Read VANs from the journal, in every state.

    A row that cannot be read is logged and skipped, for example if the package
    of its handle class was removed. os-acc van list shows it.

    :param instance_info: an InstanceInfo or an instance's UUID; None: the
        VANs of all instances
    :returns: copies, in the order in which they were plugged
    :raises LibraryNotInitialized: if initialize() was not called
    :raises InvalidRequest: if instance_info is not one of these
    :raises JournalError: if the journal cannot be read
    """
    from os_acc.operations import discovery

    return discovery.vans(_get(), instance_info)


def get_devices() -> list[objects.Device]:
    """List the devices that the drivers discover on this host.

    :raises LibraryNotInitialized: if initialize() was not called
    :raises DiscoveryFailed: if a driver failed; the error's devices are those
        that the other drivers found
    """
    from os_acc.operations import discovery

    return discovery.devices(_get())


def get_exclusions(
    devices: Iterable[objects.Device],
) -> dict[str, frozenset[str]]:
    """Return which handles exclude each other.

    Two handles exclude each other if plug() refuses one while another
    instance has the other one, such as a PF and its VFs, or two functions of
    one IOMMU group. It does not matter which of them is free now.

    :param devices: from get_devices()
    :returns: for the identity of each handle, the identities of the handles
        that it excludes
    :raises LibraryNotInitialized: if initialize() was not called
    :raises InvalidRequest: if device_spec is invalid
    :raises JournalError: if the journal cannot be read
    """
    from os_acc.operations import discovery

    return discovery.exclusions(_get(), devices)


def host_info(
    permitted_handle_names: Collection[str] | None = None,
) -> objects.HostInfo:
    """Describe this host's plugins and drivers, and their handle versions.

    :param permitted_handle_names: names of handle classes, such as
        'PCIHandle'. Only plugins and drivers that support one of them are
        returned; None: all
    :raises LibraryNotInitialized: if initialize() was not called
    """
    from os_acc.operations import host_info

    return host_info.describe(_get(), permitted_handle_names)


def recover() -> objects.RecoveryReport:
    """Finish or undo what a crash or a reboot of the host left behind.

    VANs that are only partly plugged or unplugged are released. VANs that were
    plugged before a reboot are prepared again with the same handle. A
    migration that has exceeded migration_timeout is settled by where the guest
    runs: see os_acc.migration. If an instance is a process
    (InstanceInfo.process) that has ended, its VANs are released. An instance
    that another running thread or process is working on is left alone.

    :returns: what was done with each VAN
    :raises LibraryNotInitialized: if initialize() was not called
    :raises ReadOnly: if initialize() was called with read_only=True
    :raises JournalError: if the journal cannot be read
    """
    from os_acc.operations import recovery

    return recovery.recover(_writable('os_acc.recover'))


def release_orphans(
    known_instance_uuids: Iterable[str], minimum_age: float
) -> objects.VANList:
    """Release the VANs of instances that no longer exist.

    A VAN is an orphan if its instance is not in known_instance_uuids, the
    hypervisor has no guest of the instance (as far as the plugin can tell),
    no VAN of the instance was changed for minimum_age seconds, and its owner
    is that of this process: see initialize(). An instance that another thread
    or process is working on is left alone, and so is one that is being moved.
    An error of one instance does not stop the others.

    :param known_instance_uuids: all instances of this host that exist or are
        being built, according to the caller's database. Read the list from
        there shortly before the call
    :param minimum_age: seconds; longer than a build can last between its
        entry in the database and the caller's reading of the list
    :returns: the orphans. A VAN without error was released. Any other keeps
        its device, and its error says why
    :raises LibraryNotInitialized, ReadOnly: as for plug
    :raises InvalidRequest: if a UUID or minimum_age is wrong
    :raises JournalError: if the journal cannot be read
    """
    from os_acc.operations import orphans

    host = _writable('os_acc.release_orphans')
    return orphans.release(host, known_instance_uuids, minimum_age, host.owner)


def program_device(
    address: str,
    bitstream: str | None,
    function_id: str | None = None,
    region: str | None = None,
    progress: progress_module.Callback | None = None,
) -> bool:
    """Program a function into a device before an instance requests it.

    Does nothing if the device already holds this bitstream. If programming is
    interrupted, no instance gets the device until it is programmed again.

    :param address: the device's address, as get_devices() returns it
    :param bitstream: a path, an https URL or an image's UUID; None: the
        image whose properties name the function
    :param function_id: the function that the bitstream holds
    :param region: the region of a dynamic device
    :type progress: os_acc.progress.Callback | None
    :param progress: as for plug; the objects name the device, not a VAN
    :returns: True if the device was programmed; False if it already held the
        bitstream
    :raises LibraryNotInitialized, ReadOnly: as for plug
    :raises InvalidRequest: if a value is wrong
    :raises DeviceNotFound: if no driver knows the device
    :raises DeviceBusy: if the device is in use; the error names the users
    :raises BitstreamError: if the bitstream is unavailable or does not match;
        after this error and those before it, the device was not touched
    :raises DeviceError, Timeout: if programming failed; no instance gets the
        device until it is programmed again
    """
    from os_acc.operations import device_programming

    return device_programming.program_device(
        _writable('os_acc.program_device'),
        address,
        bitstream,
        function_id,
        region,
        progress,
    )


def apply(
    document: Mapping[str, Any],
    check: bool = False,
    progress: progress_module.Callback | None = None,
) -> objects.ApplyReport:
    """Bring this host's devices into the state that a document describes.

    It does not touch devices that are already in that state, or that are in
    use. The journal keeps the document. initialize() applies it again after a
    crash or a reboot of the host, and as long as something prevented a step.

    :param document: its keys are those of ``os_acc/desired/schema.json``
    :param check: True: only report what would be done
    :type progress: os_acc.progress.Callback | None
    :param progress: as for program_device
    :raises LibraryNotInitialized: if initialize() was not called
    :raises ReadOnly: as for plug, unless check is True
    :raises InvalidRequest: if the document is wrong. After this error and the
        next one, no device was touched, and the earlier document remains in
        force
    :raises PrivilegeError: if the process may not write to device_spec_dir,
        and what is offered would change
    :raises LockTimeout: if another process is applying a document
    """
    from os_acc.desired import applying
    from os_acc.desired import documents

    read = documents.read(document)
    if check:
        return applying.check(_get(), read)
    return applying.apply(_writable('os_acc.apply'), read, progress)


def apply_again() -> objects.ApplyReport | None:
    """Do what apply() could not do because a device was in use.

    A service calls it regularly, such as every minute. It costs one read of
    the journal if there is nothing to do. An error of a step is not raised: it
    is in the report and in the log.

    :returns: what the document describes, as apply() does; None: there was
        nothing to do, or another process is applying a document
    :raises LibraryNotInitialized: if initialize() was not called
    :raises ReadOnly: as for plug
    """
    from os_acc.desired import applying

    return applying.again(_writable('os_acc.apply_again'))


def keep_pools(
    progress: progress_module.Callback | None = None,
) -> objects.ApplyReport:
    """Program idle devices until each pool has the wanted number.

    The pools are those of the document of apply(). A service or a timer calls
    this every few minutes, in a thread of its own, because programming can
    take long. If another process is already doing this, nothing is done.
    Devices that are in use, or that another pool needs, are not touched.

    :type progress: os_acc.progress.Callback | None
    :param progress: as for program_device
    :returns: a step for each device that had to be programmed; empty if there
        was nothing to do
    :raises LibraryNotInitialized, ReadOnly: as for plug
    :raises InvalidRequest: if device_spec cannot be read, or a later version
        of os-acc has written the document
    :raises JournalError: if the journal cannot be read
    """
    from os_acc.desired import pools

    return pools.keep(_writable('os_acc.keep_pools'), progress)


def this_host(call: str | None = None) -> host.Host:
    """Return the host of this process, for the other parts of the API.

    :param call: the name of the call, if it changes something; None: it does
        not
    :raises LibraryNotInitialized: if initialize() was not called
    :raises ReadOnly: if call is given, and this process changes nothing
    """
    return _get() if call is None else _writable(call)


def _get() -> host.Host:
    selected = selection.current()
    found = _host if selected is None else selected.host
    if found is None:
        raise exception.LibraryNotInitialized()
    return found


def _writable(call: str) -> host.Host:
    found = _get()
    found.check_writable(call)
    return found


def _after_fork() -> None:
    # Another thread of the parent may have held the lock during the fork.
    global _initializing
    _initializing = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
