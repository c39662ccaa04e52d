# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

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
