# SPDX-License-Identifier: Apache-2.0

"""An author of a driver uses the kit without configuring pytest."""

from __future__ import annotations

from os_acc import testing

pytest_plugins = ['pytester']

# Before the run below, which forgets the modules that it imports first.
assert testing.DriverContract

TEST = """
from os_acc import testing

class TestAcme(testing.DriverContract):
    pass
"""


def test_the_marker_of_the_kit_is_registered(pytester):
    pytester.makeini('[pytest]')
    pytester.makepyfile(TEST)
    options = ('--strict-markers', '--collect-only', '-q')
    done = pytester.runpytest_inprocess(*options, '-m', 'os_acc_processes')
    assert done.ret == 0
    found = [line for line in done.outlines if '::' in line]
    assert {line.rpartition('::')[2] for line in found} == {
        'test_two_processes_that_ask_for_the_same',
        'test_sigkill_before_each_change',
    }
