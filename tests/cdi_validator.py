# SPDX-License-Identifier: Apache-2.0

"""Which CDI specs a container runtime takes: a checker for the tests.

It shares nothing with what writes the specs. Its rules are those of
https://github.com/cncf-tags/container-device-interface: the loader in Go that
runtimes contain (pkg/cdi/spec.go, device.go, container-edits.go and
pkg/parser/parser.go), the JSON schema (schema/), and the text (SPEC.md).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import dataclasses
import json
import re
from typing import Any


@dataclasses.dataclass(frozen=True)
class Release:
    """What differs between the releases of the loader.

    :ivar versions: the values of cdiVersion that it knows
    :ivar lowest: it refuses a version that lacks a field that the spec has
    :ivar dots: a class may contain dots
    :ivar newer: it has the fields that came with 0.6.0 and later
    :ivar device: it refuses a spec without devices
    :ivar none: it knows the permissions "none"
    """

    versions: tuple[str, ...]
    lowest: bool
    dots: bool
    newer: bool
    device: bool
    none: bool


_OLD = ('0.1.0', '0.2.0', '0.3.0', '0.4.0', '0.5.0')

#: 0.5.2 and 0.5.3. podman 4.3 contains one of them.
OLD = Release(_OLD, False, False, False, False, False)
CURRENT = Release(
    (*_OLD, '0.6.0', '0.7.0', '0.8.0', '1.0.0', '1.1.0'),
    True,
    True,
    True,
    True,
    True,
)

HOOKS = (
    'prestart',
    'createRuntime',
    'createContainer',
    'startContainer',
    'poststart',
    'poststop',
)


class Refused(Exception):
    """The loader refuses a spec."""


def refuse(*words: Any) -> None:
    raise Refused(' '.join(str(each) for each in words))


# --- the types of Go that encoding/json reads the fields into

Reader = Callable[[Any], Any]


def a_text(value: Any) -> str:
    """YAML's reader makes a text of a number or a boolean."""
    if isinstance(value, bool):
        return 'true' if value else 'false'
    if value is None:
        return ''
    if not isinstance(value, str | int):
        refuse('no text:', value)
    return str(value)


def an_int(low: int, high: int) -> Reader:
    def read(value: Any) -> int:
        if value is None:
            return 0
        if type(value) is not int or not low <= value <= high:
            refuse(f'no number of {low} to {high}:', value)
        return value

    return read


int64 = an_int(-(2**63), 2**63 - 1)
uint32 = an_int(0, 2**32 - 1)


def a_flag(value: Any) -> bool:
    if value is not None and type(value) is not bool:
        refuse('no boolean:', value)
    return bool(value)


def a_list(reader: Reader) -> Reader:
    def read(value: Any) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            refuse('no list:', value)
        return [reader(each) for each in value]

    return read


def a_map(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        refuse('no object:', value)
    return {key: a_text(each) for key, each in value.items()}


def a_struct(**fields: Reader) -> Reader:
    """Unknown fields are refused; null is like an absent field."""

    def read(value: Any) -> dict[str, Any]:
        if value is None:
            value = {}
        if not isinstance(value, dict):
            refuse('no object:', value)
        for key in value:
            if key not in fields:
                refuse('unknown field', key)
        return {
            key: reader(value[key])
            for key, reader in fields.items()
            if key in value and value[key] is not None
        }

    return read


_texts = a_list(a_text)
_NODE = a_struct(
    path=a_text,
    hostPath=a_text,
    type=a_text,
    major=int64,
    minor=int64,
    fileMode=uint32,
    permissions=a_text,
    uid=uint32,
    gid=uint32,
)
_MOUNT = a_struct(
    hostPath=a_text, containerPath=a_text, options=_texts, type=a_text
)
_HOOK = a_struct(
    hookName=a_text, path=a_text, args=_texts, env=_texts, timeout=int64
)
_RDT = a_struct(
    closID=a_text,
    l3CacheSchema=a_text,
    memBwSchema=a_text,
    schemata=_texts,
    enableMonitoring=a_flag,
)
_NET = a_struct(hostInterfaceName=a_text, name=a_text)


def _spec(release: Release) -> Reader:
    edits: dict[str, Reader] = {
        'env': _texts,
        'deviceNodes': a_list(_NODE),
        'mounts': a_list(_MOUNT),
        'hooks': a_list(_HOOK),
    }
    notes: dict[str, Reader] = {}
    if release.newer:
        edits |= {
            'intelRdt': _RDT,
            'additionalGids': a_list(uint32),
            'netDevices': a_list(_NET),
        }
        notes = {'annotations': a_map}
    all_edits = a_struct(**edits)
    device = a_struct(name=a_text, containerEdits=all_edits, **notes)
    return a_struct(
        cdiVersion=a_text,
        kind=a_text,
        devices=a_list(device),
        containerEdits=all_edits,
        **notes,
    )


# --- what the loader checks then


def check(text: str, release: Release = CURRENT) -> None:
    """Check the text of a spec as the loader does.

    :raises Refused: if it refuses the spec
    """
    try:
        parsed = json.loads(text, object_pairs_hook=_once)
    except ValueError as err:
        raise Refused(str(err)) from err
    if parsed is None:
        refuse('no spec')
    spec = _spec(release)(parsed)
    _version(spec, release)
    vendor, _, class_name = spec.get('kind', '').partition('/')
    if not vendor or not class_name:
        vendor, class_name = '', spec.get('kind', '')
    _name(vendor, 'vendor', dots=True)
    _name(class_name, 'class', dots=release.dots)
    _edits(spec.get('containerEdits', {}), release)
    seen = set()
    for device in spec.get('devices', []):
        name = device.get('name', '')
        if not re.fullmatch(
            r'[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?', name
        ):
            refuse('device name', repr(name))
        edits = device.get('containerEdits', {})
        if not any(edits.values()) and 'intelRdt' not in edits:
            refuse('empty edits of device', name)
        _edits(edits, release)
        if name in seen:
            refuse('device twice:', name)
        seen.add(name)
    if release.device and not seen:
        refuse('no devices')


def is_taken(text: str, release: Release = CURRENT) -> bool:
    try:
        check(text, release)
    except Refused:
        return False
    return True


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A strict reader of YAML refuses a key that is there twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        refuse('a key twice')
    return found


def _name(name: str, what: str, dots: bool) -> None:
    allowed = 'A-Za-z0-9_.-' if dots else 'A-Za-z0-9_-'
    if not re.fullmatch(rf'[A-Za-z]([{allowed}]*[A-Za-z0-9])?', name):
        refuse(what, repr(name))


def _edits(edits: dict[str, Any], release: Release) -> None:
    _env(edits.get('env', []))
    for node in edits.get('deviceNodes', []):
        _node(node, release)
    for hook in edits.get('hooks', []):
        if hook.get('hookName') not in HOOKS:
            refuse('hook', hook.get('hookName'))
        if not hook.get('path'):
            refuse('hook without a path')
        _env(hook.get('env', []))
    for mount in edits.get('mounts', []):
        for key in ('hostPath', 'containerPath'):
            if not mount.get(key):
                refuse('mount without', key)
    _rdt(edits.get('intelRdt', {}).get('closID', ''))
    _nets(edits.get('netDevices', []))


def _node(node: dict[str, Any], release: Release) -> None:
    if not node.get('path'):
        refuse('device node without a path')
    if node.get('type', '') not in ('', 'b', 'c', 'u', 'p'):
        refuse('type of a device node', node['type'])
    letters = node.get('permissions', '')
    if release.none and letters == 'none':
        return
    if set(letters) - set('rwm'):
        refuse('permissions', letters)


def _rdt(name: str) -> None:
    if name != '/' and (
        name in ('.', '..') or set(name) & set('/\n') or len(name) >= 4096
    ):
        refuse('closID', name)


def _nets(nets: list[dict[str, Any]]) -> None:
    names: set[tuple[str, str]] = set()
    for net in nets:
        for key in ('hostInterfaceName', 'name'):
            pair = (key, net.get(key, ''))
            if not pair[1] or pair in names:
                refuse('network device', pair)
            names.add(pair)


def _env(values: list[str]) -> None:
    for value in values:
        if value.find('=') <= 0:
            refuse('variable', repr(value))


def _version(spec: dict[str, Any], release: Release) -> None:
    version = spec.get('cdiVersion', '')
    if release.newer:
        version = version.removeprefix('v')
    if version not in release.versions:
        refuse('version', repr(version))
    lowest = lowest_version(spec)
    order = CURRENT.versions.index
    if release.lowest and order(version) < order(lowest):
        refuse('version', version, 'is lower than', lowest)


def lowest_version(spec: dict[str, Any]) -> str:
    """The lowest version that has all that a spec uses.

    MinimumRequiredVersion() in specs-go/version.go.
    """
    devices = spec.get('devices', [])
    everything = [spec, *devices]
    edits = [each.get('containerEdits', {}) for each in everything]
    rdt = [each['intelRdt'] for each in edits if 'intelRdt' in each]
    nodes = [node for each in edits for node in each.get('deviceNodes', [])]
    mounts = [mount for each in edits for mount in each.get('mounts', [])]
    if any(each.get('netDevices') for each in edits) or any(
        'schemata' in each or each.get('enableMonitoring') for each in rdt
    ):
        return '1.1.0'
    if rdt or any(each.get('additionalGids') for each in edits):
        return '0.7.0'
    if '.' in spec.get('kind', '').partition('/')[2] or any(
        each.get('annotations') for each in everything
    ):
        return '0.6.0'
    if any(node.get('hostPath') for node in nodes) or any(
        each.get('name', '')[:1].isdigit() for each in devices
    ):
        return '0.5.0'
    if any(mount.get('type') for mount in mounts):
        return '0.4.0'
    return '0.3.0'


# --- what the schema and the text of the specification ask for besides


def faults(text: str) -> Iterator[str]:
    """What is wrong with a spec that the current loader takes.

    These are rules of the JSON schema and of SPEC.md that no loader checks,
    and a version that is higher than need be.
    """
    spec = json.loads(text)
    for key in ('cdiVersion', 'kind', 'devices'):
        if key not in spec:
            yield f'no {key}'
    if spec['cdiVersion'] != lowest_version(spec):
        yield f'version {spec["cdiVersion"]}, not {lowest_version(spec)}'
    vendor, _, class_name = spec['kind'].partition('/')
    label = '[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?'
    if len(vendor) > 253 or not re.fullmatch(rf'{label}(\.{label})*', vendor):
        yield f'the vendor {vendor} is no DNS subdomain'
    if len(class_name) > 63:
        yield f'the class {class_name} is too long'
    for device in spec['devices']:
        if 'containerEdits' not in device or 'name' not in device:
            yield 'a device without name or containerEdits'
            continue
        yield from _faults_of(device['containerEdits'])
    yield from _faults_of(spec.get('containerEdits', {}))


def _faults_of(edits: dict[str, Any]) -> Iterator[str]:
    nodes = edits.get('deviceNodes', [])
    paths = [node['path'] for node in nodes]
    if len(set(paths)) != len(paths):
        yield 'a device node twice'
    for node in nodes:
        for key in ('path', 'type', 'permissions'):
            if not isinstance(node.get(key, ''), str):
                yield f'{key} is no text'
    for mount in edits.get('mounts', []):
        paths += [mount['hostPath'], mount['containerPath']]
    for hook in edits.get('hooks', []):
        paths.append(hook['path'])
        if not 0 < hook.get('timeout', 1) < 2**32:
            yield 'the timeout of a hook'
    for path in paths:
        if not path.startswith('/'):
            yield f'{path} is not absolute'
