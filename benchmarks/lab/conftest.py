# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Benchmarks on the real kernel of the lab: see tests/lab/boot.py."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parents[2] / 'tests/lab'))

# pytest finds these hooks by their names in a conftest.
from says import pytest_report_teststatus  # noqa: F401
from says import pytest_runtest_makereport  # noqa: F401
from says import pytest_runtest_protocol  # noqa: F401


@pytest.fixture(scope='session', autouse=True)
def _modules() -> None:
    names = ('vfio-pci', 'nvme', 'mdev', 'mtty')
    subprocess.run(['modprobe', '-a', *names], check=True)
