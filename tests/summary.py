# SPDX-License-Identifier: Apache-2.0

"""A summary of the work of long tests, at the end of the run."""

from __future__ import annotations

import pytest

_KEY = 'did'


@pytest.fixture
def report(request):
    """Adds a line to the summary at the end of the run."""

    def add(line: str) -> None:
        request.node.user_properties.append((_KEY, line))

    return add


def pytest_terminal_summary(terminalreporter) -> None:
    # Read the reports, because with xdist the tests ran in other processes.
    lines = [
        line
        for passed in terminalreporter.stats.get('passed', [])
        for key, line in passed.user_properties
        if key == _KEY and passed.when == 'call'
    ]
    if lines:
        terminalreporter.section('what the functional tests did')
        for line in sorted(lines):
            terminalreporter.write_line(line)
