# SPDX-License-Identifier: Apache-2.0

"""What a run of the tests leaves for people to read."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import time

import layout
import processes
import pytest


def note_result(report: pytest.TestReport) -> None:
    """Write when each test ended, to find its part of the logs."""
    if layout.LOGS.is_dir():
        with (layout.LOGS / 'tests.log').open('a') as log:
            now = time.strftime('%Y-%m-%d %H:%M:%S')
            log.write(
                f'{now} {report.nodeid} {report.when} {report.outcome} '
                f'{report.duration:.1f} s\n'
            )


def summarize(
    terminalreporter: pytest.TerminalReporter,
    exitstatus: int,
    timings: Sequence[str],
    shown: Mapping[str, int],
) -> None:
    """Show how long the start took and, after a failure, the logs.

    :param shown: the logs, and how many of their last lines
    """
    if timings:
        terminalreporter.section('start of the cloud: after how many seconds')
        for line in timings:
            terminalreporter.write_line(line)
    if exitstatus == pytest.ExitCode.OK:
        return
    for name, lines in shown.items():
        if text := processes.tail(layout.LOGS / name, lines):
            terminalreporter.section(f'end of {name}')
            terminalreporter.write_line(text)
    terminalreporter.write_line(f'All logs are in {layout.LOGS}')
