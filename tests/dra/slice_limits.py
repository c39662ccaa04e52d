# SPDX-License-Identifier: Apache-2.0

"""The rules for ResourceSlices that their JSON schemas do not have."""

from __future__ import annotations

from collections.abc import Iterator
import re
from typing import Any

_LABEL = re.compile(r'[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?')
_SUBDOMAIN = r'[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?'
_ATTRIBUTE = re.compile(rf'({_SUBDOMAIN}/)?[A-Za-z_][A-Za-z0-9_]{{0,31}}')
_NODES = ('nodeName', 'nodeSelector', 'allNodes', 'perDeviceNodeSelection')
_EFFECTS = ('None', 'NoSchedule', 'NoExecute')
_TAINT = re.compile('([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?')


def is_label(name: str) -> bool:
    return _LABEL.fullmatch(name) is not None


def faults(body: dict[str, Any]) -> list[str]:
    """Say what is wrong with a slice."""
    spec = body['spec']
    devices = spec.get('devices') or []
    counters = spec.get('sharedCounters') or []
    special = any({'taints', 'consumesCounters'} & set(d) for d in devices)
    rules = {
        'spec: exactly one of ' + ', '.join(_NODES): sum(
            name in spec for name in _NODES
        )
        == 1,
        'spec: devices beside sharedCounters': not (devices and counters),
        f'spec.devices: {len(devices)} are too many': len(devices)
        <= (64 if special else 128),
        'spec.devices: duplicate name': len({d['name'] for d in devices})
        == len(devices),
        'spec.sharedCounters: more than 8': len(counters) <= 8,
    }
    for each in counters:
        names = [each['name'], *each['counters']]
        where = f'counter set {each["name"]}'
        rules[f'{where}: a name'] = all(map(_LABEL.fullmatch, names))
        rules[f'{where}: more than 32'] = len(names) <= 33
    found = [text for text, kept in rules.items() if not kept]
    return found + [text for each in devices for text in _of_device(each)]


def _of_device(device: dict[str, Any]) -> Iterator[str]:
    attributes = device.get('attributes') or {}
    taints = device.get('taints') or []
    rules = {
        'no DNS label': _LABEL.fullmatch(device['name']),
        'more than 32 attributes and capacities': len(attributes)
        + len(device.get('capacity') or {})
        <= 32,
        'more than 2 counter sets': len(device.get('consumesCounters') or ())
        <= 2,
        'more than 16 taints': len(taints) <= 16,
    }
    for name, value in attributes.items():
        rules[f'the name of {name}'] = _ATTRIBUTE.fullmatch(name)
        rules[f'the value of {name}'] = _is_value(value)
    for each in taints:
        rules[f'effect {each["effect"]}'] = each['effect'] in _EFFECTS
        value = each.get('value', '')
        rules[f'taint {value!r}'] = _TAINT.fullmatch(value)
    for text, kept in rules.items():
        if not kept:
            yield f'device {device["name"]}: {text}'


def _is_value(value: dict[str, Any]) -> bool:
    if len(value) != 1:
        return False
    ((kind, found),) = value.items()
    types = {'int': int, 'bool': bool, 'string': str, 'version': str}
    return type(found) is types.get(kind) and len(str(found)) <= 64
