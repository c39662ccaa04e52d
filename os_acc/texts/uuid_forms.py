# SPDX-License-Identifier: Apache-2.0

"""The ways in which people and vendors' tools write a UUID."""

from __future__ import annotations

import re

_FORM = re.compile(
    r'(?:urn:uuid:)?(\{)?([0-9a-f]{8})(-?)([0-9a-f]{4})\3([0-9a-f]{4})\3'
    r'([0-9a-f]{4})\3([0-9a-f]{12})(?(1)\})',
    re.I | re.ASCII,
)


def canonical(text: str) -> str | None:
    """Give a UUID in lower case and with hyphens.

    :param text: a UUID in lower or upper case, with or without hyphens, with
        or without braces, and with or without 'urn:uuid:' in front
    :returns: None if the text is not a UUID
    """
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    return '-'.join(match.group(2, 4, 5, 6, 7)).lower()
