# SPDX-License-Identifier: Apache-2.0
"""The traits that name the functions of a device in Placement."""

from __future__ import annotations

import re

from os_acc.texts import forms

#: Function traits of Cyborg begin with this (FPGA_TRAITS in
#: cyborg/common/constants.py).
PREFIX = 'CUSTOM_FPGA_FUNCTION_ID_'

#: The trait of a provider that can be programmed, and has no known function.
EMPTY = 'CUSTOM_OS_ACC_EMPTY'

_VENDOR = 'OS_ACC_'


def trait(function_id: str) -> str:
    """Name the trait of a function.

    Cyborg's conductor sets the same trait after it has programmed a device
    with os-acc's driver, if the id has no hyphens
    (_update_placement in cyborg/objects/extarq/fpga_ext_arq.py).
    """
    name = forms.function_id(function_id).upper()
    return f'{PREFIX}{_VENDOR}{re.sub(r"[^A-Z0-9_]", "_", name)}'


def is_own(name: str) -> bool:
    """Whether only os-acc sets a trait: it names a function, or EMPTY."""
    return name == EMPTY or name.startswith(f'{PREFIX}{_VENDOR}')
