# SPDX-License-Identifier: Apache-2.0

"""tests/unit/libvirt_double.py has the same constants as libvirt."""

from __future__ import annotations

import pathlib
import sys

import libvirt

sys.path.append(str(pathlib.Path(__file__).parents[1] / 'unit'))


def test_numbers():
    import libvirt_double

    for name, value in libvirt_double.NUMBERS.items():
        assert getattr(libvirt, name) == value, name
