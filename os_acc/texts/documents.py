# SPDX-License-Identifier: Apache-2.0

"""JSON and YAML that a person has written: read strictly, by one function.

JSON and YAML readers keep the last of two equal keys without a word. In an
entry that denies a device, this would offer the device.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any
from typing import NoReturn

_BOM = b'\xef\xbb\xbf'
_STRING = r'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(_STRING + r'|[{}\[\],:]')
_TOO_DEEP = 'it is nested too deeply'
# No document of ours has ten levels. Python's limit is not enough: what is
# done with the value later may need more of the stack.
_DEEPEST = 100
_SURROGATE = re.compile(r'\\u[dD][89a-fA-F]|[\ud800-\udfff]')


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
        found = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_number,
            parse_int=_whole_number,
        )
        _check_depth(found)
        if _SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except json.JSONDecodeError as err:
        raise ValueError(
            f'{err.msg} at line {err.lineno}, column {err.colno}'
        ) from err
    except _DuplicateKey as err:
        raise ValueError(_second_key(text)) from err
    except _WrongNumber as err:
        raise ValueError(f'{err}{_place(text, err.text)}') from err
    except UnicodeEncodeError as err:
        raise ValueError(
            'it has half a character of UTF-16: '
            f'\\u{ord(err.object[err.start]):04x}'
        ) from err
    except RecursionError as err:
        raise ValueError(_TOO_DEEP) from err


def _check_depth(found: Any) -> None:
    """Check that whoever uses a value can recurse through it.

    :raises ValueError: if it is nested too deeply
    """
    level = [found]
    for _ in range(_DEEPEST + 1):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise ValueError(_TOO_DEEP)


def yaml_of(data: bytes | str) -> Any:
    """Read a YAML document. See json_of().

    :raises ValueError: if it is no YAML, or has a key twice in one mapping, or
        a number that is not finite
    """
    import yaml

    text = text_of(data)
    try:
        _check(_composed(text), yaml.SafeLoader(''), set())
        return yaml.safe_load(text)
    except yaml.reader.ReaderError as err:
        raise ValueError(
            f'{err.reason}: #x{err.character:04x}{_at(text, err.position)}'
        ) from err
    except yaml.YAMLError as err:
        raise ValueError(' '.join(str(err).split())) from err
    except RecursionError as err:
        raise ValueError(_TOO_DEEP) from err


def _composed(text: str) -> Any:
    """Make the tree of YAML nodes; None if the document is empty.

    :raises YAMLError, ValueError: if it is no YAML, or has another document
    """
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        return loader.get_single_node()
    except ValueError as err:  # such as "\U00110000": no such character
        raise ValueError(f'{err}{_at(text, loader.index)}') from err


def _check(node: Any, loader: Any, seen: set[int], depth: int = 0) -> None:
    """Check the keys and the scalars of a tree of YAML nodes.

    :param loader: makes a value of a node: 1 and 0x1 are one key
    :param seen: the ids of nodes that were checked: an alias may name a node
        above itself
    :param depth: how many nodes are around it
    :raises ValueError: if a mapping has a key twice, a scalar is not what its
        tag says, a number is not finite, or it is nested too deeply
    """
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node.value, str):
        made = _made(node, loader)
        if node.tag == _FLOAT and not math.isfinite(made):
            raise ValueError(f'{node.value} is no finite number{_mark(node)}')
        return
    if depth == _DEEPEST:
        raise ValueError(_TOO_DEEP + _mark(node))
    keys = set()
    for each in node.value:
        if not isinstance(each, tuple):
            _check(each, loader, seen, depth + 1)
            continue
        key, value = each
        if isinstance(key.value, str):
            made = _made(key, loader)
            if made in keys:
                raise ValueError(
                    f'the key {key.value!r} is there twice{_mark(key)}'
                )
            keys.add(made)
        _check(key, loader, seen, depth + 1)
        _check(value, loader, seen, depth + 1)


_FLOAT = 'tag:yaml.org,2002:float'
_MERGE = 'tag:yaml.org,2002:merge'


def _made(node: Any, loader: Any) -> Any:
    """The value of a scalar.

    :raises YAMLError: if there is no such tag
    :raises ValueError: if it is no value of its tag
    """
    import yaml

    if _SURROGATE.search(node.value):
        half = ascii(node.value)
        raise ValueError(f'{half:.60} has half a character{_mark(node)}')
    try:
        return (
            node.value if node.tag == _MERGE else loader.construct_object(node)
        )
    except yaml.YAMLError:
        raise
    except Exception as err:  # PyYAML lets any error of a conversion pass.
        raise ValueError(
            f'{node.value!r:.60} is no {node.tag.rpartition(":")[2]}'
            + _mark(node)
        ) from err


def _mark(node: Any) -> str:
    mark = node.start_mark
    return f' at line {mark.line + 1}, column {mark.column + 1}'


class _WrongNumber(Exception):
    """A number that is none, or is too large.

    :ivar text: as it stands in the document
    """

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f'the number {text:.40} {why}')
        self.text = text


class _DuplicateKey(Exception):
    """An object has a key twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _DuplicateKey
    return found


def _second_key(text: str) -> str:
    """Say which key of a JSON text is there twice, and where.

    :param text: up to the second key, it is correct JSON
    """
    # The keys of each object around the place; None for a list.
    around: list[set[str] | None] = []
    before = ''
    for token in _TOKEN.finditer(text):
        what = token[0]
        if what in ('{', '['):
            around.append(set() if what == '{' else None)
        elif what in ('}', ']'):
            around.pop()
        elif what[0] == '"' and before in ('{', ','):
            keys = around[-1]
            key = json.loads(what)
            if keys is not None and key in keys:
                return f'the key {key!r} is there twice' + _at(
                    text, token.start()
                )
            if keys is not None:
                keys.add(key)
        before = what
    return 'a key is there twice'


def _place(text: str, number: str) -> str:
    """Where a number stands for the first time, outside of strings."""
    for token in re.finditer(f'{_STRING}|{re.escape(number)}', text):
        if token[0] == number:
            return _at(text, token.start())
    return ''


def _at(text: str, at: int) -> str:
    line = text.count('\n', 0, at) + 1
    return f' at line {line}, column {at - text.rfind(chr(10), 0, at)}'


def _no_constant(name: str) -> NoReturn:
    raise _WrongNumber(name, 'is none that JSON has')


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _WrongNumber(text, 'is too large')
    return number


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError as err:  # sys.int_info: a limit of Python
        raise _WrongNumber(text, 'has too many digits') from err
