# SPDX-License-Identifier: Apache-2.0

"""Ids of functions: vendors' tools write one id in several ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def never_bound(group: Mapping[str, Any]) -> str | None:
    """Say why Cyborg never ends the bind of a device profile's group.

    For the resource class FPGA, Cyborg makes the name of a trait from the
    function's id, and leaves its hyphens in. Placement refuses that name, and
    the ARQ stays in state BindStarted (_update_placement in
    cyborg/objects/extarq/fpga_ext_arq.py of Cyborg 17).

    :param group: as Cyborg's API returns it
    :returns: a sentence; None: Cyborg has no such problem with the group
    """
    function_id = group.get('accel:function_id')
    if 'resources:FPGA' not in group or '-' not in str(function_id or ''):
        return None
    return (
        f'accel:function_id {function_id} has hyphens: with the resource '
        'class FPGA, Cyborg programs the device and then leaves the ARQ in '
        'state BindStarted, because Placement refuses the name of the '
        f'function trait. Write {canonical(function_id)} in the device '
        'profile and in the properties of the image'
    )
