# SPDX-License-Identifier: Apache-2.0

"""Ids of functions: vendors' tools write one id in several ways."""

from __future__ import annotations

from os_acc.texts import uuid_forms


def canonical(function_id: str | None) -> str:
    """Give the one form in which ids are compared.

    :param function_id: a UUID in any form that uuid_forms knows, or a name
    :returns: it in lower case and without hyphens; '' for None
    """
    text = function_id or ''
    return (uuid_forms.canonical(text) or text.lower()).replace('-', '')


def same(one: str | None, other: str | None) -> bool:
    """Say whether two ids name the same function; None means no function."""
    return canonical(one) == canonical(other)
