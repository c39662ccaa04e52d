# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""JSON and YAML that a person has written: read strictly, by one function.

JSON and YAML readers keep the last of two equal keys without a word. In an
entry that denies a device, this would offer the device.
"""

from __future__ import annotations

import json
import math
from typing import Any
from typing import NoReturn

_BOM = b'\xef\xbb\xbf'


def text_of(data: bytes | str) -> str:
    """Decode a document. A byte order mark at its start is left out.

    :raises ValueError: if it is not UTF-8
    """
    if isinstance(data, str):
        return data.removeprefix('\ufeff')
    data = data.removeprefix(_BOM)
    try:
        return data.decode('utf-8')
    except UnicodeDecodeError as err:
        line = data.count(b'\n', 0, err.start) + 1
        column = err.start - data.rfind(b'\n', 0, err.start)
        raise ValueError(
            f'it is not UTF-8: byte 0x{data[err.start]:02x} at line {line}, '
            f'column {column}'
        ) from err


def json_of(data: bytes | str) -> Any:
    """Read a JSON document.

    :raises ValueError: if it is no JSON as RFC 8259 defines it, has a key
        twice in one object, a number that is too large, or is nested too
        deeply. The error names line and column, or the key
    """
    text = text_of(data)
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_number,
        )
    except json.JSONDecodeError as err:
        raise ValueError(
            f'{err.msg} at line {err.lineno}, column {err.colno}'
        ) from err
    except _DuplicateKey as err:
        raise ValueError(
            f'the key {err.key!r} is there twice{_place(text, err.key)}'
        ) from err
    except RecursionError as err:
        raise ValueError('it is nested too deeply') from err


def yaml_of(data: bytes | str) -> Any:
    """Read a YAML document. See json_of().

    :raises ValueError: if it is no YAML, or has a key twice in one mapping
    """
    import yaml

    text = text_of(data)
    try:
        _check_keys(yaml.compose(text, yaml.SafeLoader), set())
        return yaml.safe_load(text)
    except yaml.YAMLError as err:
        raise ValueError(' '.join(str(err).split())) from err
    except RecursionError as err:
        raise ValueError('it is nested too deeply') from err


def _check_keys(node: Any, seen: set[int]) -> None:
    """Check that no mapping of a tree of YAML nodes has a key twice.

    :param seen: the ids of nodes that were checked: an alias may name a node
        above itself
    :raises ValueError: if one has
    """
    if id(node) in seen or isinstance(getattr(node, 'value', ''), str):
        return
    seen.add(id(node))
    keys = set()
    for each in node.value:
        if isinstance(each, tuple):
            key, value = each
            known = (key.tag, str(key.value))
            if known in keys:
                mark = key.start_mark
                raise ValueError(
                    f'the key {key.value!r} is there twice at line '
                    f'{mark.line + 1}, column {mark.column + 1}'
                )
            keys.add(known)
            _check_keys(value, seen)
        else:
            _check_keys(each, seen)


class _DuplicateKey(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKey(key)
        found[key] = value
    return found


def _place(text: str, key: str) -> str:
    """Where a key stands for the second time, if that is plain to see."""
    quoted = json.dumps(key, ensure_ascii=False)
    first = text.find(quoted)
    at = text.find(quoted, first + 1)
    if first < 0 or at < 0 or text.find(quoted, at + 1) >= 0:
        return ''
    line = text.count('\n', 0, at) + 1
    return f' at line {line}, column {at - text.rfind(chr(10), 0, at)}'


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f'{name} is no number that JSON has')


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f'the number {text} is too large')
    return number
