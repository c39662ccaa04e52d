# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Ids of functions: vendors' tools write one id in several ways."""

from __future__ import annotations


def canonical(function_id: str | None) -> str:
    """Give the one form in which ids are compared.

    :param function_id: such as a UUID, with or without hyphens
    :returns: it in lower case and without hyphens; '' for None
    """
    return (function_id or '').lower().replace('-', '')


def same(one: str | None, other: str | None) -> bool:
    """Say whether two ids name the same function; None means no function."""
    return canonical(one) == canonical(other)
