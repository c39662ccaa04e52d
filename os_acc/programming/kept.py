# SPDX-License-Identifier: Apache-2.0

"""The functions that pools keep ready: see os_acc.desired.pools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from os_acc.texts import forms

#: What a pool says of a function whose last user has left.
KEEP, CLEAR = 'keep', 'clear'


def is_kept(pools: Iterable[dict[str, Any]], function_id: str | None) -> bool:
    """Whether a pool keeps a function ready.

    :param pools: as Journal.pools()
    """
    return any(
        forms.same_function(each['function'], function_id) for each in pools
    )


def clears(
    pools: Iterable[dict[str, Any]], function_id: str | None
) -> bool | None:
    """Whether a function is removed when its last user has left.

    :returns: None: no pool says it
    """
    for each in pools:
        if 'after' in each and forms.same_function(
            each['function'], function_id
        ):
            return bool(each['after'] == CLEAR)
    return None
