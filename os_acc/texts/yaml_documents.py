# SPDX-License-Identifier: Apache-2.0

"""YAML that a person has written, read as strictly as JSON: see documents."""

from __future__ import annotations

from collections.abc import Iterator
import itertools
import math
import re
from typing import Any

from os_acc.texts import documents

#: How many values a document has at most. os-acc's have a few thousand.
MOST = 100_000


def yaml_of(data: bytes | str) -> Any:
    """Read a YAML document. See documents.json_of().

    :raises ValueError: if it is no YAML, or has a key twice in one mapping, or
        a number that is not finite, or of base 8 or 60, or a value that JSON
        does not have, such as a date
    """
    import yaml

    text = documents.text_of(data)
    try:
        _check(_composed(text), yaml.SafeLoader(''), itertools.count(1))
        return yaml.safe_load(text)
    except yaml.reader.ReaderError as err:
        where = documents.at(text, err.position)
        raise ValueError(
            f'{err.reason}: #x{err.character:04x}{where}'
        ) from err
    except yaml.YAMLError as err:
        raise ValueError(' '.join(str(err).split())) from err
    except RecursionError as err:
        raise ValueError(documents.TOO_DEEP) from err


def _composed(text: str) -> Any:
    """Make the tree of YAML nodes; None if the document is empty."""
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        return loader.get_single_node()
    except ValueError as err:  # such as "\U00110000": no such character
        raise ValueError(f'{err}{documents.at(text, loader.index)}') from err


def _check(
    node: Any, loader: Any, counter: Iterator[int], depth: int = 0
) -> None:
    """Check the keys and the scalars of a tree of YAML nodes.

    Each alias counts as what it names. Whoever writes the value as JSON makes
    all of it, and does not end if an alias names a node above itself.

    :param loader: makes a value from a node: 1 and 0x1 are one key
    :param counter: counts the nodes
    :param depth: how many nodes are around it
    """
    if node is None:
        return
    if next(counter) > MOST:
        raise ValueError(f'it has more than {MOST} values{_mark(node)}')
    if isinstance(node.value, str):
        _check_scalar(node, loader)
        return
    if node.tag not in _COLLECTIONS:
        raise _unknown(node)
    if depth == documents.DEEPEST:
        raise ValueError(documents.TOO_DEEP + _mark(node))
    keys = set()
    for each in node.value:
        if not isinstance(each, tuple):
            _check(each, loader, counter, depth + 1)
            continue
        key, value = each
        if isinstance(key.value, str):
            made = _made(key, loader)
            if made in keys:
                raise ValueError(
                    f'the key {key.value!r} occurs twice{_mark(key)}'
                )
            keys.add(made)
        _check(key, loader, counter, depth + 1)
        _check(value, loader, counter, depth + 1)


def _check_scalar(node: Any, loader: Any) -> None:
    made = _made(node, loader)
    if type(made) not in _SCALARS:
        raise _unknown(node)
    if isinstance(made, float) and not math.isfinite(made):
        raise ValueError(f'{node.value} is not a finite number{_mark(node)}')
    if node.tag in (_FLOAT, _INT) and _OTHER_BASE.match(node.value):
        raise ValueError(
            f'{node.value} means {made} in YAML: write that number, or '
            f'{node.value!r} in quotes{_mark(node)}'
        )


def _unknown(node: Any) -> ValueError:
    """The error of a value that JSON does not have, such as a date."""
    text = f'{node.value!r:.60}' if isinstance(node.value, str) else 'it'
    return ValueError(
        f'{text} is of type {node.tag.rpartition(":")[2]} in YAML, expected '
        f'text, a number, a list or a mapping; text may need quotes'
        + _mark(node)
    )


_SCALARS = (str, bool, int, float, type(None))
_COLLECTIONS = ('tag:yaml.org,2002:map', 'tag:yaml.org,2002:seq')
_FLOAT = 'tag:yaml.org,2002:float'
_INT = 'tag:yaml.org,2002:int'
# A number of base 8 or 60 in YAML 1.1, and another one, or a text, in 1.2. It
# is more likely to be a decimal number, or an address such as 0000:3b:00.0.
_OTHER_BASE = re.compile(r'[-+]?(0[0-9_]|[0-9_]*:)')
_MERGE = 'tag:yaml.org,2002:merge'


def _made(node: Any, loader: Any) -> Any:
    """The value of a scalar."""
    import yaml

    if documents.SURROGATE.search(node.value):
        text = ascii(node.value)
        raise ValueError(f'{text:.60} has a lone surrogate{_mark(node)}')
    try:
        return (
            node.value if node.tag == _MERGE else loader.construct_object(node)
        )
    except yaml.YAMLError:
        raise
    except Exception as err:  # PyYAML lets any error of a conversion pass.
        raise ValueError(
            f'{node.value!r:.60} is not of type {node.tag.rpartition(":")[2]}'
            + _mark(node)
        ) from err


def _mark(node: Any) -> str:
    mark = node.start_mark
    return f' at line {mark.line + 1}, column {mark.column + 1}'
