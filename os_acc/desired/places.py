# SPDX-License-Identifier: Apache-2.0

"""Where a key is in a text of JSON or YAML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def line_of(text: str, keys: Sequence[str | int]) -> int | None:
    """Find the line of a key, or of the innermost key around it that exists.

    :param keys: keys of objects, and numbers of items of lists
    :returns: from 1 on; None if the text cannot be read as YAML
    """
    import yaml

    try:
        # JSON may be indented with tabs, and YAML may not.
        node = yaml.compose(text.replace('\t', ' '), yaml.SafeLoader)
    except yaml.YAMLError:
        return None
    if node is None:
        return None
    line: int = node.start_mark.line
    for key in keys:
        found = _inner(node, key)
        if found is None:
            break
        line, node = found[0].start_mark.line, found[1]
    return line + 1


def _inner(node: Any, key: str | int) -> tuple[Any, Any] | None:
    """The node of a key and that of its value; an item is both."""
    import yaml

    if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
        return (node.value[key],) * 2 if key < len(node.value) else None
    if isinstance(node, yaml.MappingNode):
        return next((e for e in node.value if e[0].value == str(key)), None)
    return None
