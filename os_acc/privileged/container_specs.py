# SPDX-License-Identifier: Apache-2.0

"""The CDI specs of containers, written as root.

Container runtimes run as root and do what a spec says: they make the device
files that it names, and run its hooks. So no caller can say what is in a spec.
It names a VAN's handle; the device files are those that the kernel shows for
it, and all else comes from the entry of device_spec.
"""

from __future__ import annotations

from collections.abc import Collection
import dataclasses
import os
import stat
from typing import Any

from oslo_config import cfg
import yaml

from os_acc import exception
from os_acc.containers import edits as container_edits
from os_acc.containers import handle as handles
from os_acc.containers import nodes as container_nodes
from os_acc.containers import options as container_opts
from os_acc.containers import spec as container_spec
from os_acc.containers import use as container_use
from os_acc.kernel import device_files
from os_acc.options import values as option_values
from os_acc.privileged import arguments
from os_acc.privileged import container_offers
from os_acc.privileged import container_users
from os_acc.privileged import context
from os_acc.privileged import offers
from os_acc.privileged import operation_lock
from os_acc.privileged import root_folder
from os_acc.privileged import undo_log
from os_acc.spec import edits as spec_edits

#: Where runtimes look for specs besides the directory of the option.
DIRECTORIES = ('/etc/cdi', '/var/run/cdi')

# How long to wait for other specs to be written. Each takes milliseconds.
_LOCK_SECONDS = 30.0

# No real spec is larger.
_LARGEST = 1 << 20


@context.entry
def write(van: str, instance: str, handle: dict[str, Any]) -> str:
    """Write the spec of a VAN, and replace one that it had before.

    :returns: the qualified name of its device
    :raises DeviceNotFound: if device_spec does not offer the device
    :raises DeviceError: if a container cannot use the device as it is, or
        its entry refers to a file that is not there
    :raises InvalidRequest: if a spec of another VAN of the instance sets a
        variable or a path to another value
    :raises DeviceBusy: if another VAN has the device, or a spec for the handle
        or for one of its device numbers, somebody else's spec has the
        name, or a container has the device files of the earlier spec
    """
    arguments.uuid(van)
    arguments.uuid(instance)
    conf = _options()
    text, nodes, identity, edits = _content(conf, van, handle)
    container_offers.check_holder(handles.read(handle), van, instance)
    wanted = undo_log.ContainerSpec(
        conf.spec_dir, conf.kind, instance, _own(nodes), identity
    )
    # Two VANs that want one device must not both find that no VAN has it.
    with operation_lock.named('container-specs', _LOCK_SECONDS):
        known = undo_log.container_specs.read(van)
        if known is not None:
            wanted = dataclasses.replace(wanted, containers=known.containers)
            if known != wanted:
                _replace(van, known, wanted)
        _refuse_second(van, wanted)
        _refuse_others(conf, van)
        files = _files(conf.spec_dir)
        name = container_spec.file_name(conf.kind, van)
        is_new = files.read(name) != text
        if is_new:
            _refuse_missing(identity, edits)
            _refuse_conflict(van, wanted, text)
        undo_log.container_specs.write(van, wanted)
        if is_new:
            files.write(name, text)
    return container_spec.qualified_name(conf.kind, van)


@context.entry
def is_written(van: str, handle: dict[str, Any]) -> bool:
    """Whether the spec of a VAN is there, as write() would write it.

    The arguments and errors are those of write().
    """
    arguments.uuid(van)
    conf = _options()
    text, *_ = _content(conf, van, handle)
    name = container_spec.file_name(conf.kind, van)
    return _files(conf.spec_dir).read(name) == text


@context.entry
def withdraw(van: str, seconds: float) -> None:
    """Remove the spec of a VAN, and wait until no container has its device.

    A spec of somebody else stays, whatever its name.

    :raises DeviceBusy: if a container still has the device then. The spec is
        removed, so that no other container gets the device
    """
    arguments.uuid(van)
    seconds = arguments.seconds(seconds)
    known = undo_log.container_specs.read(van)
    if known is None:
        # Nothing of this boot is left, unless the directory survives a reboot.
        conf = _options()
        _delete(conf.spec_dir, conf.kind, van)
        return
    _delete(known.directory, known.kind, van)
    container_users.wait(van, known, seconds)
    undo_log.container_specs.delete(van)


@context.entry
def users_of(instance: str) -> list[str]:
    """Find the containers that have a device of an instance.

    :returns: a clause for each process, see container_use.users_of()
    """
    arguments.uuid(instance)
    found: list[str] = []
    for van in undo_log.container_specs.names():
        known = undo_log.container_specs.read(van)
        if known is not None and known.instance == instance:
            found += container_users.find(van, known)
    return found


@context.entry
def check_users() -> None:
    """Look for containers with a device as each release does, for the doctor.

    :raises PrivilegeError: if not all processes of the host can be seen, or
        the control group of a container cannot be read
    """
    nothing = container_spec.Node('no device', device_files.NO_DEVICE)
    container_use.users_of([nothing])


def _options() -> cfg.ConfigOpts.GroupAttr:
    """The options of the group [os_acc_cdi], which no caller can set."""
    conf = offers.configuration()
    conf.register_opts(container_opts.OPTS, group=container_opts.GROUP)
    found: cfg.ConfigOpts.GroupAttr = conf[container_opts.GROUP]
    for option in container_opts.OPTS:
        option_values.read(conf, container_opts.GROUP, option)
    return found


def _content(
    conf: cfg.ConfigOpts.GroupAttr, van: str, primitive: dict[str, Any]
) -> tuple[str, list[container_spec.Node], str, spec_edits.Edits]:
    """Make the spec of a VAN.

    :returns: the text of the file, the device files in it, the identity of
        the handle, and what the entry of device_spec adds
    """
    handle = handles.read(primitive)
    edits = container_offers.edits(handle, van)
    common = container_offers.common(handle)
    nodes = [
        dataclasses.replace(each, common=each.common or each.path in common)
        for each in container_nodes.of_handle(handle, conf.iommufd)
    ]
    mode = conf.device_mode
    owner = container_spec.Owner(
        conf.device_uid,
        conf.device_gid,
        None if mode is None else int(mode, 8),
    )
    text = container_spec.build(conf.kind, van, nodes, edits, owner)
    return text, nodes, handle.identity, edits


def _refuse_second(van: str, wanted: undo_log.ContainerSpec) -> None:
    """Check that no other VAN has a spec for a handle, or for its numbers.

    The kernel may give the number of a device to another one, as when its
    driver is bound again. Containers that have a file with the number would
    then have the other device.

    A record whose spec the operator has removed does not count, if no
    container has the device: its VAN was lost with the journal.
    """
    for name in undo_log.container_specs.names():
        other = undo_log.container_specs.read(name) if name != van else None
        if other is None:
            continue
        if other.handle == wanted.handle:
            device, what = wanted.handle, 'it'
        elif not container_users.may_share(wanted, other) and (
            both := container_users.numbers(wanted)
            & container_users.numbers(other)
        ):
            kind, major, minor = min(both)
            device = f'device number {kind} {major}:{minor}'
            what = f'it, as {other.handle}'
        else:
            continue
        file = container_spec.file_name(other.kind, name)
        there = _files(other.directory).read(file) is not None
        if not there and not container_users.find(name, other):
            undo_log.container_specs.delete(name)
            continue
        raise exception.DeviceBusy(
            device=device,
            reason=f'VAN {name} of instance {other.instance} has a spec for '
            f'{what}',
        )


def _refuse_missing(device: str, edits: spec_edits.Edits) -> None:
    """Check that what an entry refers to on this host is there."""
    if absent := '; '.join(container_edits.missing(edits)):
        raise exception.DeviceError(
            device=device,
            reason=f'its entry of device_spec: {absent}. No container could '
            'start with it. Install it, or change "mounts" or "hooks"',
        )


def _refuse_conflict(
    van: str, wanted: undo_log.ContainerSpec, text: str
) -> None:
    """Check that a spec does not conflict with the instance's other specs."""
    if (name := container_edits.hidden(text)) is not None:
        raise exception.InvalidRequest(
            f'device_spec: the entry of {wanted.handle} has a device file and '
            f'a mount at one place ({name}). Change "mounts" of the entry'
        )
    for each in undo_log.container_specs.names():
        other = undo_log.container_specs.read(each) if each != van else None
        if other is None or other.instance != wanted.instance:
            continue
        file = container_spec.file_name(other.kind, each)
        theirs = _files(other.directory).read(file)
        if theirs is None or not container_spec.is_ours(
            theirs, other.kind, each
        ):
            continue
        if (name := container_edits.conflict(text, theirs)) is not None:
            raise exception.InvalidRequest(
                f'device_spec: the entries of {wanted.handle} (VAN {van}) and '
                f'{other.handle} (VAN {each}) set the {name} to different '
                'values, and both devices are for one container, which would '
                'see one value only. Give the entries different names or '
                'paths, or the same value'
            )


def _own(nodes: Collection[container_spec.Node]) -> list[list[Any]]:
    return [[node.path, *node.number] for node in nodes if not node.common]


def _files(directory: str) -> root_folder.RootFiles:
    return root_folder.RootFiles(
        lambda: directory,
        lambda: root_folder.open_at(directory, 0o755),
        durable=True,
        mode=0o644,
    )


def _replace(
    van: str, known: undo_log.ContainerSpec, wanted: undo_log.ContainerSpec
) -> None:
    """Withdraw a spec that differs from the one that is wanted."""
    gone = [each for each in known.nodes if each not in wanted.nodes]
    if gone or (known.directory, known.kind) != (
        wanted.directory,
        wanted.kind,
    ):
        # First, so that no container starts with it after the check.
        _delete(known.directory, known.kind, van)
    container_users.wait(van, dataclasses.replace(known, nodes=gone), 0)


def _delete(directory: str, kind: str, van: str) -> None:
    files, name = _files(directory), container_spec.file_name(kind, van)
    text = files.read(name)
    # None: a write may have been interrupted.
    if text is None or container_spec.is_ours(text, kind, van):
        files.delete(name)


def _refuse_others(conf: cfg.ConfigOpts.GroupAttr, van: str) -> None:
    """Check that nobody else defines a VAN's device.

    A runtime drops a device that two specs of one directory define:
    resolveConflict in pkg/cdi/cache.go. Of two directories, the later one
    counts.
    """
    own = container_spec.file_name(conf.kind, van)
    for directory in dict.fromkeys((conf.spec_dir, *DIRECTORIES)):
        for name in _names(directory):
            path = f'{directory}/{name}'
            text = _text(path)
            if van not in text or (
                name == own
                and _same(directory, conf.spec_dir)
                and container_spec.is_ours(text, conf.kind, van)
            ):
                continue
            if van in container_spec.names(_parsed(text), conf.kind) or (
                name == own
            ):
                raise exception.DeviceBusy(
                    device=container_spec.qualified_name(conf.kind, van),
                    reason=f'{path}, which os-acc has not written, defines '
                    'it; a container runtime would take neither. Remove that '
                    'file',
                )


def _names(directory: str) -> list[str]:
    try:
        found = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(x for x in found if x.endswith(container_spec.SUFFIXES))


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _text(path: str) -> str:
    """Read somebody else's file; '' if it is not readable text."""
    try:
        # A named pipe would block.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, encoding='utf-8', errors='replace') as file:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return file.read(_LARGEST)
    except OSError:
        pass
    return ''


def _parsed(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
