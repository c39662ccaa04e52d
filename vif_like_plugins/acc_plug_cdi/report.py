# SPDX-License-Identifier: Apache-2.0

"""What the doctor says about the directory of the specs."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
import os
import stat
import uuid

from oslo_config import cfg

from os_acc import exception
from os_acc import finding
from os_acc.containers import edits as container_edits
from os_acc.containers import spec as container_spec
from os_acc.kernel import file_system
from os_acc.spec import device_spec


def directory(path: str) -> Iterator[finding.Finding]:
    """Report on the directory: is it there, who can write in it, does it
    stay?"""
    yield from _access(path)
    kind = file_system.type_of(path)
    if kind is not None and file_system.nature(kind) != file_system.VOLATILE:
        yield finding.Finding(
            f'file system of CDI specs {path}',
            finding.WARNING,
            f'it is {kind}, not a tmpfs: specs survive a reboot there. Until '
            'os-acc recover has run, a container that is started with one '
            'gets device numbers of the last boot, which may be those of '
            'other devices now',
            'set [os_acc_cdi] spec_dir to /var/run/cdi; or start containers '
            'only after os-acc recover',
        )


def entries(conf: cfg.ConfigOpts) -> Iterator[finding.Finding]:
    """Report entries of device_spec whose mounts or hooks are not there."""
    try:
        found = device_spec.load(conf).entries
    except exception.InvalidRequest:
        return  # the doctor reports it itself
    for entry in found:
        for absent in container_edits.missing(entry.edits):
            yield finding.Finding(
                f'containers: {entry.source}',
                finding.ERROR,
                f'{absent}; plug refuses the devices of the entry',
                'install it, or change "mounts" or "hooks" of the entry',
            )


def users() -> Iterator[finding.Finding]:
    """Report if root cannot see which container has a device."""
    # The import is here because it loads the privileged half.
    from os_acc.privileged import container_specs

    try:
        container_specs.check_users()
    except exception.ExceptionBase as err:
        yield finding.Finding(
            'containers with devices',
            finding.ERROR,
            'every unplug from a container will fail: '
            f'{exception.describe(err)}',
            'let root read /proc/PID of all processes and the control groups '
            'of the containers: see "What a container can hide" in the '
            'documentation',
        )


def _access(path: str) -> Iterator[finding.Finding]:
    subject = f'directory of CDI specs {path}'
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if os.path.isdir(os.path.dirname(path)):
            yield finding.Finding(
                subject,
                finding.OK,
                'it does not exist; the first plug creates it',
            )
            return
        yield finding.Finding(
            subject,
            finding.ERROR,
            'neither it nor the directory above it exists',
            'create the directory above it, or set [os_acc_cdi] spec_dir to a '
            'directory that the container runtimes read',
        )
        return
    if not stat.S_ISDIR(found.st_mode) or os.path.islink(path):
        yield finding.Finding(
            subject,
            finding.ERROR,
            'it is a link or a file, not a directory',
            'set [os_acc_cdi] spec_dir to the directory itself',
        )
    elif found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield finding.Finding(
            subject,
            finding.ERROR,
            f'users other than root can write to it (user id {found.st_uid}, '
            f'{stat.filemode(found.st_mode)}), and container runtimes execute '
            "its files' instructions as root. os-acc writes no spec into it",
            f'run chown root:root {path} and chmod 755 {path}',
        )
    else:
        yield finding.Finding(subject, finding.OK, 'only root can write to it')


def leftovers(
    path: str, kind: str, van_uuids: Collection[str]
) -> Iterator[finding.Finding]:
    """Report the specs of VANs that do not exist."""
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return
    for name in names:
        van = name.removesuffix('.json').rpartition('_')[2]
        if (
            van in van_uuids
            or not _is_uuid(van)
            or name != container_spec.file_name(kind, van)
        ):
            continue
        yield finding.Finding(
            f'CDI spec {path}/{name}',
            finding.WARNING,
            f'there is no VAN {van}; a container that is started with '
            f'{container_spec.qualified_name(kind, van)} gets a device that '
            'os-acc may have given to another instance',
            f'remove the file: rm {path}/{name}',
        )


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
