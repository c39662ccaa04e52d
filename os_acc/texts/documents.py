# SPDX-License-Identifier: Apache-2.0

"""JSON that a person has written, read strictly. For YAML see yaml_documents.

Readers of JSON and YAML silently keep the last of two equal keys. In an entry
that denies a device, this would offer the device.
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
TOO_DEEP = 'it is nested too deeply'
#: No document of os-acc has ten levels. Python's limit is not enough: what is
#: done with the value later may need more of the stack.
DEEPEST = 100
#: A lone surrogate of UTF-16.
SURROGATE = re.compile(r'\\u[dD][89a-fA-F]|[\ud800-\udfff]')


def text_of(data: bytes | str) -> str:
    """Decode a document. A byte order mark at its start is left out."""
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
        if SURROGATE.search(text):
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
            'it has a lone surrogate of UTF-16: '
            f'\\u{ord(err.object[err.start]):04x}'
        ) from err
    except RecursionError as err:
        raise ValueError(TOO_DEEP) from err


def _check_depth(found: Any) -> None:
    """Check that whoever uses a value can recurse through it."""
    level = [found]
    for _ in range(DEEPEST + 1):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise ValueError(TOO_DEEP)


class _WrongNumber(Exception):
    """A number that JSON does not have, or that is too large."""

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
    """Say which key of a JSON text occurs twice, and where.

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
                return f'the key {key!r} occurs twice' + at(
                    text, token.start()
                )
            if keys is not None:
                keys.add(key)
        before = what
    return 'a key occurs twice'


def _place(text: str, number: str) -> str:
    """Where a number occurs first, outside of strings."""
    for token in re.finditer(f'{_STRING}|{re.escape(number)}', text):
        if token[0] == number:
            return at(text, token.start())
    return ''


def at(text: str, place: int) -> str:
    """Say where a place in a text is, for the end of an error."""
    line = text.count('\n', 0, place) + 1
    return f' at line {line}, column {place - text.rfind(chr(10), 0, place)}'


def _no_constant(name: str) -> NoReturn:
    raise _WrongNumber(name, 'does not exist in JSON')


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
