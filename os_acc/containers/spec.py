# SPDX-License-Identifier: Apache-2.0

"""A CDI spec: how a container runtime learns what belongs to an accelerator.

One spec has one device. Its rules, and where they come from: SPEC.md, schema/
and pkg/ in https://github.com/cncf-tags/container-device-interface.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from os_acc.kernel import device_files
from os_acc.spec import edits as spec_edits

#: What a runtime reads in its directories of specs: scanSpecDirs() in
#: pkg/cdi/spec-dirs.go.
SUFFIXES = ('.json', '.yaml')


@dataclasses.dataclass(frozen=True)
class Node:
    """A device file that the container gets, at the same path as the host.

    :ivar permissions: letters of rwm, as in objects.DeviceFile
    :ivar common: whether every container with such a device has this file,
        such as /dev/vfio/vfio. It then says nothing about this accelerator
    """

    path: str
    number: device_files.Number
    permissions: str = 'rw'
    common: bool = False


@dataclasses.dataclass(frozen=True)
class Owner:
    """Who owns the device files in the container. None: the runtime says."""

    uid: int | None = None
    gid: int | None = None
    mode: int | None = None


def qualified_name(kind: str, name: str) -> str:
    """The name by which a container gets a device, such as
    ``vendor.com/class=name``."""
    return f'{kind}={name}'


def file_name(kind: str, name: str) -> str:
    """The name of the file of a spec that lives as long as its device.

    See GenerateTransientSpecName() in pkg/cdi/spec.go.
    """
    return f'{kind.replace("/", "-")}_{name}.json'


def build(
    kind: str,
    name: str,
    nodes: list[Node],
    edits: spec_edits.Edits,
    owner: Owner,
) -> str:
    """Write a spec with one device.

    :param kind: vendor and class, as the option allows them
    :param nodes: at least one
    """
    all_edits: dict[str, Any] = {
        'env': list(edits.env),
        'deviceNodes': [_node(each, owner) for each in nodes],
        'mounts': [_mount(each) for each in edits.mounts],
        'hooks': [_hook(each) for each in edits.hooks],
    }
    spec = {
        'cdiVersion': _lowest_version(kind, name, edits),
        'kind': kind,
        'devices': [
            {
                'name': name,
                'containerEdits': {k: v for k, v in all_edits.items() if v},
            }
        ],
    }
    return json.dumps(spec, indent=2) + '\n'


def names(parsed: Any, kind: str) -> list[str]:
    """The names of the devices of a kind that a spec defines.

    :param parsed: what JSON or YAML gives; it may be anything
    """
    if not isinstance(parsed, dict) or parsed.get('kind') != kind:
        return []
    devices = parsed.get('devices')
    return [
        each['name']
        for each in (devices if isinstance(devices, list) else [])
        if isinstance(each, dict) and isinstance(each.get('name'), str)
    ]


def is_ours(text: str, kind: str, name: str) -> bool:
    """Whether a file that has the name of a spec was written by os-acc."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return names(parsed, kind) == [name]


def _lowest_version(kind: str, name: str, edits: spec_edits.Edits) -> str:
    """The lowest version that has all that the spec uses.

    A runtime refuses a spec of a version that it does not know. See
    requiresV040() to requiresV060() in specs-go/version.go.
    """
    if '.' in kind.partition('/')[2]:
        return '0.6.0'
    if name[0].isdigit():
        return '0.5.0'
    if any(mount.type is not None for mount in edits.mounts):
        return '0.4.0'
    return '0.3.0'


def _node(node: Node, owner: Owner) -> dict[str, Any]:
    return _present(
        {
            'path': node.path,
            'type': node.number.kind,
            'major': node.number.major,
            'minor': node.number.minor,
            'fileMode': owner.mode,
            'permissions': node.permissions,
            'uid': owner.uid,
            'gid': owner.gid,
        }
    )


def _mount(mount: spec_edits.Mount) -> dict[str, Any]:
    # Without an option that says so, a runtime does not take it for a bind
    # mount.
    options = list(mount.options)
    if mount.type is None and not {'bind', 'rbind'} & set(options):
        options.append('rbind')
    return _present(
        {
            'hostPath': mount.host_path,
            'containerPath': mount.container_path,
            'type': mount.type,
            'options': options or None,
        }
    )


def _hook(hook: spec_edits.Hook) -> dict[str, Any]:
    return _present(
        {
            'hookName': hook.name,
            'path': hook.path,
            'args': list(hook.args) or None,
            'env': list(hook.env) or None,
            'timeout': hook.timeout,
        }
    )


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
