# SPDX-License-Identifier: Apache-2.0

"""Writes files of [os_acc] device_spec_dir, for ``os-acc device allow``."""

from __future__ import annotations

from collections.abc import Callable
import functools
import json
import os
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc.spec import device_spec
from os_acc.spec import files as spec_files
from os_acc.spec import root_writer
from os_acc.spec import values as spec_values

# See keep_root().
_root: root_writer.RootWriter | None = None


def path_of(directory: str, name: str) -> str:
    """The file that ``os-acc device allow`` and ``deny`` write for a device.

    :param name: a PCI address in its canonical form, or the name of a parent
        of mediated devices: without slashes
    """
    return os.path.join(directory, f'50-os-acc-{name}.json')


def check_names(entry: dict[str, Any], name: str) -> None:
    """Check that an entry can be read, and names one device and no other.

    :param name: the device: a PCI address in its canonical form, the path of a
        device file, or another name
    :raises InvalidRequest: if it cannot be read, or names something else: an
        address of fewer parts, such as 1f, names many functions, and a path
        is a glob, so that x[1] names x1
    """
    (spec,) = device_spec.parse(json.dumps(entry))
    said = spec.address.complete or spec.address.name
    if 'devices' in entry:
        (said,) = spec.devices
    if said != name or set(name) & set('*?['):
        spec_values.refuse(
            next(iter(entry)),
            name,
            'the whole PCI address of one function, dddd:bb:ss.f, the path of '
            'one device file without *, ? and [, or the name of another '
            'device; as an entry of device_spec, this names others',
        )


def add(conf: cfg.ConfigOpts, path: str, *entries: dict[str, Any]) -> None:
    """Write a file of device_spec_dir with entries that can be read.

    :raises InvalidRequest: if an entry is refused. The file then stays as it
        was
    """
    text = json.dumps(entries if len(entries) > 1 else entries[0])
    device_spec.parse(text)
    before = spec_files.read(path)
    write(path, text + '\n')
    try:
        device_spec.load(conf)
    except exception.InvalidRequest:
        if before is None:
            remove(path)
        else:
            write(path, before)
        raise


def keep_root(path: str) -> None:
    """Make write() and remove() act as root on a file from now on.

    Call it as root, before this process becomes another user.
    """
    global _root
    _root = root_writer.RootWriter(path)


def write(path: str, text: str) -> None:
    """Write a file, atomically. See path_of() and add().

    The directory is made if it does not exist.
    """
    try:
        _writer_of(path)(text)
    except OSError as err:
        raise _unwritable(path, err) from err


def remove(path: str) -> bool:
    """Remove a file that write() has made.

    :returns: False if it does not exist
    """
    try:
        return _writer_of(path)(None)
    except OSError as err:
        raise _unwritable(path, err) from err


def _writer_of(path: str) -> Callable[[str | None], bool]:
    if _root is not None and _root.path == path:
        return _root.write
    return functools.partial(root_writer.write, path)


def _unwritable(path: str, err: OSError) -> exception.PrivilegeError:
    return exception.PrivilegeError(
        reason=f'{path} cannot be changed: {err.strerror}. Run the command as '
        'root'
    )
