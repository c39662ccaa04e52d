# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

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
