# SPDX-License-Identifier: Apache-2.0

"""Says each test as it begins and ends: hooks for a conftest.py of the lab.

boot.py reads these lines: see watch.py. Each conftest.py of tests that run in
the lab imports the three hooks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


def _say(config: pytest.Config, text: str) -> None:
    reporter = config.pluginmanager.getplugin('terminalreporter')
    # It writes past pytest's capture, and flushes.
    reporter.ensure_newline()
    reporter.write_line(f'lab: {text}')
    reporter.flush()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _say(item.config, f'begins {item.nodeid}')
    result = yield
    _say(item.config, f'ends {item.nodeid}')
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    made = yield
    if made.failed:
        # At once, since the machine may stop before the test ends.
        _say(item.config, f'failed {item.nodeid} ({made.when})')
    return made


def pytest_report_teststatus(
    report: pytest.TestReport,
) -> tuple[str, str, str] | None:
    """Print no dot for a test that has passed: its line is enough."""
    if report.when == 'call' and report.passed:
        return 'passed', '', ''
    return None
