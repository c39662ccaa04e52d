# SPDX-License-Identifier: Apache-2.0

"""The pytest plugin that registers the marker of os_acc.testing.

pytest loads it by its entry point in every run where os-acc is installed. So
it is outside the package os_acc, and imports nothing: such a run must neither
load os-acc nor hide its lines from a measurement of coverage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, which --strict-markers demands."""
    config.addinivalue_line(
        'markers',
        'os_acc_processes: a test of os_acc.testing that starts processes, '
        'and kills them',
    )
