# SPDX-License-Identifier: Apache-2.0

"""Checks that what several VANs add to one container fits together.

A runtime merges the edits of all CDI devices of a container: see Append() in
pkg/cdi/container-edits.go of
https://github.com/cncf-tags/container-device-interface. Of two values for one
variable, and of two mounts on one path, only one remains.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
import os
import stat
from typing import Any

from os_acc.spec import edits as spec_edits

# The types of mounts whose source is a path of the host.
_BINDS = (None, 'bind', 'none')


def of_text(text: str) -> dict[str, str]:
    """What a spec that container_spec.build() has made sets in a container.

    :returns: texts that tell whether two values differ, by what is set, such
        as 'variable ACME_DEVICE' and 'path /dev/acme0'
    """
    found: dict[str, str] = {}
    for device in json.loads(text)['devices']:
        edits = device['containerEdits']
        for each in edits.get('env', ()):
            name, _, value = each.partition('=')
            found[f'variable {name}'] = value
        for node in edits.get('deviceNodes', ()):
            number = [node.get(key) for key in ('type', 'major', 'minor')]
            found[f'path {node["path"]}'] = f'device {number}'
        for mount in edits.get('mounts', ()):
            found[f'path {mount["containerPath"]}'] = _mount(mount)
    return found


def hidden(text: str) -> str | None:
    """A path at which a mount would hide a device file of the same spec."""
    for device in json.loads(text)['devices']:
        edits = device['containerEdits']
        nodes = {node['path'] for node in edits.get('deviceNodes', ())}
        for mount in edits.get('mounts', ()):
            if mount['containerPath'] in nodes:
                return f'path {mount["containerPath"]}'
    return None


def conflict(one: str, other: str) -> str | None:
    """Find a variable or path that two specs set to different values.

    :returns: its name; None if there is none
    """
    mine, theirs = of_text(one), of_text(other)
    for name in sorted(mine.keys() & theirs.keys()):
        if mine[name] != theirs[name]:
            return name
    return None


def missing(edits: spec_edits.Edits) -> Iterator[str]:
    """Say what an entry refers to on this host that is not there.

    Only the runtime opens it, when the container starts.

    :returns: a clause for each mount and hook, such as 'the source /opt/x of
        a mount does not exist'
    """
    for mount in edits.mounts:
        if mount.type in _BINDS and not os.path.exists(mount.host_path):
            yield f'the source {mount.host_path} of a mount does not exist'
    for hook in edits.hooks:
        try:
            mode = os.stat(hook.path).st_mode
        except OSError as err:
            yield f'the program {hook.path} of a hook: {err.strerror}'
            continue
        if not stat.S_ISREG(mode) or not mode & 0o111:
            yield f'the program {hook.path} of a hook cannot be executed'


def _mount(mount: dict[str, Any]) -> str:
    options = sorted(mount.get('options', ()))
    return json.dumps([mount['hostPath'], mount.get('type'), options])
