# SPDX-License-Identifier: Apache-2.0

"""The options --fail-on-skip and --installed, which CI uses.

--fail-on-skip: a skipped test fails the run. CI installs everything that the
tests need, so a skipped test means that an installation is incomplete.

--installed: the run fails unless os-acc is installed as an operator installs
it, so that the tests see what the wheel has and not what the tree has.
"""

from __future__ import annotations

from importlib import metadata
import importlib.util
import pathlib
import sysconfig

import pytest

# A failed assert in what tests share says its values, as one in a test.
pytest.register_assert_rewrite(
    *(
        path.stem
        for path in pathlib.Path(__file__).parent.glob('*/*.py')
        if not path.stem.startswith(('test_', 'conftest', '__'))
    )
)

# Tests that may be skipped: the reason, by the start of the node id.
ALLOWED: dict[str, str] = {
    'tests/unit/test_contracts.py::TestFake::'
    'test_undo_while_a_guest_holds_the_device': 'it has no device file',
    **{
        f'tests/unit/test_contracts.py::TestCDI::test_{name}': 'it is not live'
        for name in (
            'live',
            'not_live_while_a_guest_runs',
            'a_guest_that',
            'a_kill_in_a_live',
            'an_api_that_fails',
            'has_guest_before_and_after',
            'runs_guest_before_and_after',
        )
    },
    **{
        f'tests/unit/test_contracts.py::{plugin}::test_{name}': 'it asks no '
        'hypervisor'
        for plugin in ('TestNoop', 'TestAny')
        for name in ('a_guest_that_keeps_the_device', 'an_api_that_fails')
    },
    'tests/unit/test_kit_finds.py::TestCard::'
    'test_a_failed_device_does_not_stop_the_next': 'it knows one card',
    'tests/unit/test_readme.py::TestReadme::'
    'test_a_failed_device_does_not_stop_the_next': 'its example has one card',
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        '--fail-on-skip',
        action='store_true',
        help='fail the run if a test is skipped, unless tests/conftest.py '
        'allows it',
    )
    parser.addoption(
        '--installed',
        action='store_true',
        help='fail the run unless all packages of os-acc come from '
        'site-packages',
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    if not session.config.getoption('--installed'):
        return
    site = pathlib.Path(sysconfig.get_path('purelib'))
    found = metadata.distribution('os-acc').read_text('top_level.txt') or ''
    for name in found.split():
        spec = importlib.util.find_spec(name)
        place = spec.origin if spec is not None else None
        if place is None or site not in pathlib.Path(place).parents:
            raise pytest.UsageError(
                f'--installed: {name} is {place}, expected it in {site}'
            )


def _refused(config: pytest.Config) -> list[str]:
    """Return the skipped tests that ALLOWED does not name."""
    # Workers of xdist have no terminal reporter; the controller has one.
    reporter = config.pluginmanager.get_plugin('terminalreporter')
    if reporter is None or not config.getoption('--fail-on-skip'):
        return []
    return [
        report.nodeid
        for report in reporter.stats.get('skipped', [])
        if not report.nodeid.startswith(tuple(ALLOWED))
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _refused(session.config) and session.exitstatus in (
        pytest.ExitCode.OK,
        # All tests of the run were skipped when they were collected.
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    refused = _refused(config)
    if refused:
        terminalreporter.section('skipped, and --fail-on-skip is given')
        for nodeid in refused:
            terminalreporter.write_line(nodeid)
