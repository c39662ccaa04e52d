# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""os-acc attaches accelerators to instances, as os-vif does interfaces.

The way: initialize() once per process, then plug() all of an instance's
accelerators in one call, and unplug() them.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
import threading
from typing import TYPE_CHECKING

from oslo_config import cfg

from os_acc import exception
from os_acc import objects
from os_acc import opts

if TYPE_CHECKING:
    from os_acc import host
    from os_acc import progress as progress_module

CONF = cfg.CONF
opts.register(CONF)

_host: host.Host | None = None
_initializing = threading.Lock()


def initialize(reset: bool = False) -> None:
    """Load drivers and plugins, open the journal, and recover().

    Call it once, after oslo.config has read its files, before anything else.

    :param reset: do it all again; no other call may be under way
    :raises InvalidRequest: an option has a value that cannot be
    :raises JournalError: the journal cannot be opened; says what to do
    """
    global _host
    with _initializing:
        if _host is not None and not reset:
            return
        from os_acc import host
        from os_acc import recovery
        from os_acc.attach import attacher

        made = host.Host.open(CONF)
        try:
            recovery.recover(attacher.Attacher(made))
        except BaseException:
            made.close()
            raise
        if _host is not None:
            _host.close()
        _host = made


def plug(
    instance_info: objects.InstanceInfo,
    requests: Sequence[objects.AcceleratorRequest],
    live: bool = False,
    progress: progress_module.Callback | None = None,
) -> objects.VANList:
    """Give an instance its accelerators: all of them, or none.

    Plugging what is plugged returns the same VANs and touches no device; it
    does not attach live what was plugged cold.

    :param instance_info: the instance
    :param requests: one for each accelerator
    :param live: also attach them to the running guest; else the caller puts
        each VAN's guest_config into the guest's definition
    :param progress: called with os_acc.progress.Progress objects, from
        several threads but one at a time; what it raises is only logged
    :returns: the VANs, in the order of the requests
    :raises LibraryNotInitialized: initialize() was not called
    :raises InvalidRequest: a value is wrong; this and the next: nothing was
        touched
    :raises ARQNotBound: an ARQ is in another state than Bound
    :raises NoMatchingDriver: no driver claims a request
    :raises AmbiguousDriver: more than one does
    :raises NoMatchingPlugin: the host's plugin is not loaded
    :raises UnsupportedHandle: it does not take such a handle
    :raises LiveNotSupported: it cannot attach to a running guest
    :raises HypervisorError: nor can it now, as the hypervisor's management is
        not there
    :raises PlugException: it failed, and what this call did is undone; its
        cause is the first failure, its undo_errors what could not be undone
    """
    from os_acc.attach import attacher

    return attacher.Attacher(_get()).plug(
        instance_info, requests, live, progress
    )


def unplug(
    instance_info: objects.InstanceInfo,
    requests: Sequence[objects.AcceleratorRequest] | None = None,
    live: bool = False,
    progress: progress_module.Callback | None = None,
) -> int:
    """Take accelerators from an instance, last plugged first.

    Goes on after a failure. What is not there is no error.

    :param instance_info: the instance
    :param requests: which; None: all that the instance has
    :param live: also detach them from the running guest, and wait until it
        has let go
    :param progress: as plug's
    :returns: how many were released
    :raises LibraryNotInitialized, InvalidRequest: as plug
    :raises UnplugException: its undo_errors says which VANs are still there
        and why: unplug() or recover() goes on with them. Without undo_errors
        nothing was touched, as its cause says
    """
    from os_acc.attach import attacher

    return attacher.Attacher(_get()).unplug(
        instance_info, requests, live, progress
    )


def get_vans(
    instance_info: objects.InstanceInfo | None = None,
) -> objects.VANList:
    """What the journal holds, in every state.

    :param instance_info: of this instance; None: of all
    :returns: copies, in the order of their plugging
    """
    journal = _get().journal
    uuid = instance_info.uuid if instance_info is not None else None
    return objects.VANList(objects=[e.van for e in journal.entries(uuid)])


def get_devices() -> list[objects.Device]:
    """What the drivers discover on this host.

    :raises DiscoveryFailed: a driver failed; has what the others found
    """
    from os_acc import discovery

    return discovery.devices(_get())


def host_info(
    permitted_handle_names: Collection[str] | None = None,
) -> objects.HostInfo:
    """This host's plugins and drivers, and the handle versions they speak.

    :param permitted_handle_names: names of handle classes, such as
        'PCIHandle'; None: all. Only what speaks one of them is returned
    """
    from os_acc import discovery

    return discovery.info(_get(), permitted_handle_names)


def recover() -> objects.RecoveryReport:
    """Finish or undo what a crash or a reboot of the host left behind.

    Half-done VANs are released, VANs plugged before a reboot are prepared
    again with the same handle. An instance that another living thread or
    process is at work on is left alone.

    :returns: what became of each
    :raises JournalError: the journal cannot be read or written
    """
    from os_acc import recovery
    from os_acc.attach import attacher

    return recovery.recover(attacher.Attacher(_get()))


def program_device(
    address: str,
    bitstream: str | None,
    function_id: str | None = None,
    region: str | None = None,
    progress: progress_module.Callback | None = None,
) -> bool:
    """Put a function into a device, ahead of its use.

    Programming what is in already, of the same bitstream, touches nothing.
    A device whose programming was cut short is in error, and not given out,
    until it is programmed again.

    :param address: as get_devices() gives it
    :param bitstream: path, https URL or image's UUID; None: the image whose
        properties name the function
    :param function_id: the function that it has
    :param region: which, of a dynamic device
    :param progress: as plug's; its objects name the device, and no VAN
    :returns: whether it was programmed; False: it was in already
    :raises LibraryNotInitialized: initialize() was not called
    :raises InvalidRequest: a value is wrong
    :raises DeviceNotFound: no driver knows it
    :raises DeviceBusy: it is in use; names who has it
    :raises BitstreamError: it is not to be had, or not what it should be;
        this and those before: the device was not touched
    :raises DeviceError, Timeout: it failed; the device is in error
    """
    from os_acc import discovery

    return discovery.program_device(
        _get(), address, bitstream, function_id, region, progress
    )


def _get() -> host.Host:
    if _host is None:
        raise exception.LibraryNotInitialized()
    return _host
