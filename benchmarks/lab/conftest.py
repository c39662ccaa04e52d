# SPDX-License-Identifier: Apache-2.0

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
