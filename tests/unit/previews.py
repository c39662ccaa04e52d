# SPDX-License-Identifier: Apache-2.0

"""What every driver must do under --dry-run: speak, and change nothing."""

from __future__ import annotations

import os
import pathlib

import devices

import os_acc
from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc.operations import planned as planned_module
from os_acc.operations import preview


def tree(directory: pathlib.Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below a directory: mode, time of the last change, content.

    The shared memory of the journal is left out: readers write to it.
    """
    found = {}
    for path in sorted(directory.rglob('*')):
        if path.name.endswith('-shm'):
            continue
        stat = path.lstat()
        content = b''
        if path.is_symlink():
            content = os.fsencode(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        found[str(path)] = (stat.st_mode, stat.st_mtime_ns, content)
    return found


def check(
    directory: pathlib.Path, request: objects.AcceleratorRequest
) -> None:
    """Preview a plug, do it, and preview a repeated plug and an unplug.

    The preview names what the plug then takes.

    :param directory: the hardware and the journal are below it
    """
    instance = devices.instance()
    free = _look(
        directory, lambda host: preview.plug(host, instance, [request])
    )
    assert free.obstacle is None
    assert (free.action, free.state) == (planned_module.PLUG, None)
    (van,) = os_acc.plug(instance, [request])
    assert (free.driver, free.plugin) == (van.driver, van.plugin)
    assert van.device in free.devices
    assert free.handle in (None, van.handle.identity)

    again = _look(
        directory, lambda host: preview.plug(host, instance, [request])
    )
    release = _look(directory, lambda host: preview.unplug(host, instance))
    expected = (van.handle.identity, [van.device], 'plugged', None)
    for planned, action in (
        (again, planned_module.NOTHING),
        (release, planned_module.UNPLUG),
    ):
        assert planned.action == action
        assert (
            planned.handle,
            planned.devices,
            planned.state,
            planned.obstacle,
        ) == expected
    os_acc.unplug(instance)


def agrees(
    directory: pathlib.Path, requests: list[objects.AcceleratorRequest]
) -> objects.InstanceInfo | None:
    """Preview a plug, and do it: it fails if the preview has an obstacle.

    :returns: the instance; None: the plug has failed
    """
    instance = devices.instance()
    planned = _looks(
        directory, lambda host: preview.plug(host, instance, requests)
    )
    obstacles = [each.obstacle for each in planned if each.obstacle]
    try:
        vans = os_acc.plug(instance, requests)
    except exception.PlugException as err:
        assert obstacles, f'the preview has not told: {err.__cause__}'
        return None
    assert obstacles == []
    for each, van in zip(planned, vans, strict=True):
        assert van.device in each.devices
    return instance


def _look(directory, make) -> planned_module.Planned:
    (planned,) = _looks(directory, make)
    return planned


def _looks(directory, make) -> list[planned_module.Planned]:
    opened = host_module.Host.open(os_acc.CONF, read_only=True)
    before = tree(directory)
    try:
        planned = make(opened)
    finally:
        opened.close()
    assert tree(directory) == before
    return planned
