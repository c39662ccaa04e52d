# SPDX-License-Identifier: Apache-2.0

"""tests/lab/boot.py: which boots are repeated.

The machine is a fake of virtme-ng that does what a plan says. The time passes
as the plan says, and at each look at the clock once the machine has stopped.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
import types

import pytest

LAB = pathlib.Path(__file__).parents[1] / 'lab'
PYTHON = sys.executable
SLOW = 150  # less than watch.SIGN_SECONDS
# A boot that does what it should.
BOOTS = ['say boot 1', 'say begins a', 'say ends a', 'disk', 'code 0']
STOPS = ['say boot 1', 'disk', 'say begins a', 'stop']
FAKE = """
import json, os, pathlib, re, signal, sys, time

here = pathlib.Path(__file__).parent
out = pathlib.Path(sys.argv[sys.argv.index('--qemu') + 1]).parent
# A link that leads to this process, and so only exists while it does.
stopped = here / 'stopped'
stopped.unlink(missing_ok=True)
state = re.search(r'file=([^ ,]*/state.raw)', ' '.join(sys.argv))[1]
boot = re.search("OS_ACC_LAB_BOOT=(.)", (out / 'lab.env').read_text())[1]
plans = json.loads((here / 'plans').read_text())
plan = plans.pop(0)
(here / 'plans').write_text(json.dumps(plans))
with open(state, 'rb') as disk:
    before = disk.read(16).rstrip(bytes(1)).decode()
with open(here / 'boots', 'a') as boots:
    boots.write(f'boot {boot}, disk {before!r}; ')
for step in plan:
    what, _, rest = step.partition(' ')
    if what == 'say':
        print(f'lab: {rest}', flush=True)
    elif what == 'pass':
        # Whole or not at all.
        now = float((here / 'clock').read_text()) + float(rest)
        (here / 'clock.new').write_text(str(now))
        (here / 'clock.new').rename(here / 'clock')
    elif what == 'live':
        stopped.symlink_to(f'/proc/{os.getpid()}')
        while True:
            (out / 'alive').write_text(str(time.monotonic()))
            time.sleep(0.01)
    elif what == 'sign':
        (out / 'alive').write_text(str(time.monotonic()))
    elif what == 'disk':
        with open(state, 'r+b') as disk:
            disk.write(before.encode() + boot.encode())
    elif what == 'stop':
        stopped.symlink_to(f'/proc/{os.getpid()}')
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == 'spin':
        stopped.symlink_to(f'/proc/{os.getpid()}')
        while True:
            print('watchdog: BUG: soft lockup', flush=True)
            time.sleep(0.02)
    elif what == 'code':
        (out / 'code').write_text(rest)
    elif what == 'signal':
        (out / 'qemu-exit').write_text(str(128 + int(rest)))
"""


@pytest.fixture
def lab(monkeypatch, tmp_path):
    """boot.py, with the fake instead of virtme-ng."""
    monkeypatch.syspath_prepend(LAB)
    import boot

    monkeypatch.setattr(boot, 'LOOK_SECONDS', 0.01)
    clock = tmp_path / 'clock'
    clock.write_text('0')
    looks = 0

    def monotonic() -> float:
        nonlocal looks
        looks += (tmp_path / 'stopped').exists()
        return float(clock.read_text()) + 10 * looks

    time = types.SimpleNamespace(monotonic=monotonic)
    monkeypatch.setattr(boot, 'time', time)
    fake = tmp_path / 'fake'
    # Without the packages of the environment, which take time.
    fake.write_text(f'#!{sys.executable} -IS\n{FAKE}')
    fake.chmod(0o755)
    # boot.py calls the module virtme_ng.run of its own Python.
    monkeypatch.setattr(sys, 'executable', str(fake))
    # Any content will do for the fake.
    (tmp_path / 'mkfs.ext4').symlink_to('/bin/true')
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    monkeypatch.setenv('TMPDIR', str(tmp_path))
    return boot


@pytest.fixture
def run(lab, monkeypatch, tmp_path, capsysbinary):
    """A function: run boot.py with a plan for each boot.

    :returns: the exit code, which boots there were, and what was printed
    """

    def run(*plans: list[str], options: str = '--boots 2'):
        (tmp_path / 'plans').write_text(json.dumps(plans))
        monkeypatch.setattr(sys, 'argv', ['boot.py', *options.split()])
        code = lab.run(lab.arguments())
        assert json.loads((tmp_path / 'plans').read_text()) == []
        boots = (tmp_path / 'boots').read_text().rstrip('; ')
        return code, boots, capsysbinary.readouterr().out.decode()

    return run


def test_both_boots_pass(run):
    code, boots, _ = run(BOOTS, BOOTS)
    assert (code, boots) == (0, "boot 1, disk ''; boot 2, disk '1'")


def test_the_second_boot_stops_and_is_repeated_alone(run):
    code, boots, said = run(BOOTS, STOPS, BOOTS)
    assert code == 0
    # With the disk as it was before, though the boot that stopped wrote to it.
    assert boots == "boot 1, disk ''; boot 2, disk '1'; boot 2, disk '1'"
    assert 'lab: the guest has stopped in a: it has given no sign' in said
    assert 'state T' in said
    assert 'the monitor of QEMU does not answer' in said


def test_the_first_boot_stops_and_is_repeated(run):
    code, boots, _ = run(STOPS, BOOTS, BOOTS)
    assert code == 0
    assert boots == "boot 1, disk ''; boot 1, disk ''; boot 2, disk '1'"


@pytest.mark.parametrize(
    'stops',
    [
        # Before guest.sh, in the import of the tests, between two tests.
        ['stop'],
        ['say boot 1', 'stop'],
        ['say boot 1', 'say begins a', 'say ends a', 'stop'],
        # Its kernel prints messages and uses CPU time.
        ['say boot 1', 'say begins a', 'spin'],
        ['say boot 1', 'say begins a', 'signal 11'],
    ],
)
def test_other_ways_to_stop(run, stops):
    code, boots, _ = run(stops, BOOTS, options='')
    assert code == 0
    assert boots == "boot 1, disk ''; boot 1, disk ''"


@pytest.mark.parametrize(
    ('lives', 'step'),
    [
        (['say boot 1'], 'what follows "lab: boot 1"'),
        # pytest could not end the test at its own limit.
        (['say boot 1', 'say begins a'], 'a'),
    ],
)
def test_a_guest_that_lives_but_does_not_go_on(run, lives, step):
    code, _, said = run([*lives, 'live'], BOOTS, options='')
    assert code == 0
    assert f'lab: the guest has stopped in {step}: it has not ended' in said


@pytest.mark.parametrize('end', [['signal 11'], [], ['pass 3000', 'stop']])
def test_a_failed_test_is_not_repeated(run, end):
    """Whatever comes after it: a crash, the end of the machine, the limit."""
    plan = ['say boot 1', 'say begins a', 'say failed a (call)', *end]
    code, boots, said = run(BOOTS, plan, options='--boots 2 --tries 2')
    assert code == 1
    assert boots == "boot 1, disk ''; boot 2, disk '1'"
    assert 'failed before: a (call)' in said


def test_it_reads_what_was_said_before_the_limit(
    run, lab, monkeypatch, tmp_path
):
    """boot.py gets no CPU time until the limit is over."""

    def wait(pid):
        while not (tmp_path / 'stopped').exists():
            time.sleep(0.01)

    monkeypatch.setattr(lab, 'share_like_us', wait)
    plan = ['say boot 1', 'say begins a', 'say failed a (call)', 'pass 3000']
    code, _, said = run([*plan, 'stop'], options='--tries 2')
    assert code == 1
    assert 'failed before: a (call)' in said


def test_a_guest_that_stops_after_a_failed_test(run):
    plan = ['say boot 1', 'say begins a', 'say failed a (setup)', 'say ends a']
    code, boots, _ = run([*plan, 'stop'])
    assert (code, boots) == (1, "boot 1, disk ''")


def test_a_guest_that_stops_after_its_tests_ended(run):
    for_ever = [*BOOTS, 'stop']
    assert run(for_ever, for_ever)[0] == 0


def test_it_stops_more_often_than_the_limit(run, lab):
    code, boots, said = run(BOOTS, *[STOPS] * (lab.BREAKS + 1))
    assert code == lab.BROKEN
    assert boots.count('boot 2') == lab.BREAKS + 1
    assert said.count('lab: boot 2 of 2: the guest has stopped in a') >= 4


def test_a_slow_guest_is_not_booted_again(run):
    slow = ['say boot 1']
    for name in 'abc':
        slow += [f'pass {SLOW}', f'say begins {name}']
        # One test takes 900 s.
        slow += [f'pass {SLOW}', 'sign'] * 6 + [f'say ends {name}']
    slow += [f'pass {SLOW}', 'disk', 'code 0']
    code, boots, _ = run(slow, slow, options='--boots 2 --timeout 9000')
    assert (code, boots) == (0, "boot 1, disk ''; boot 2, disk '1'")


def test_a_boot_that_is_repeated_gets_its_time_back(run):
    slow = ['say boot 1', f'pass {SLOW}', 'code 0']
    code, _, _ = run(slow, STOPS, slow, options='--boots 2 --timeout 400')
    assert code == 0


def test_the_deadline(run, lab):
    slow = [
        'say boot 1',
        f'pass {SLOW}',
        'say begins a',
        f'pass {SLOW}',
        'stop',
    ]
    code, _, said = run(slow, options='--timeout 290')
    assert code == lab.TIMED_OUT
    assert 'still running at the deadline' in said


def test_a_machine_that_goes_down_is_not_booted_again(run, lab):
    down = ['say boot 1']
    assert run(down, options='')[0] == lab.FAILED


def test_a_machine_that_goes_down_is_booted_again_with_tries(run):
    code, boots, _ = run(
        BOOTS, ['say boot 1'], BOOTS, options='--boots 2 --tries 2'
    )
    assert code == 0
    assert boots == "boot 1, disk ''; boot 2, disk '1'; boot 2, disk '1'"


def test_the_guest_says_its_tests(tmp_path, lab):
    """pytest with the hooks of says.py, and what watch.py reads from it."""
    (tmp_path / 'conftest.py').write_text(
        'from says import pytest_report_teststatus\n'
        'from says import pytest_runtest_makereport\n'
        'from says import pytest_runtest_protocol\n'
    )
    (tmp_path / 'test_it.py').write_text(
        'import pytest\n'
        '@pytest.fixture\n'
        'def bad():\n'
        '    yield\n'
        '    raise OSError\n'
        'def test_a(): pass\n'
        'def test_b(): assert False\n'
        'def test_c(bad): print("captured")\n'
        '@pytest.mark.skip\n'
        'def test_d(): pass\n'
        '@pytest.mark.xfail\n'
        'def test_e(): assert False\n'
    )
    done = subprocess.run(
        [
            PYTHON,
            '-m',
            'pytest',
            '-q',
            '--rootdir',
            tmp_path,
            tmp_path,
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env={
            **os.environ,
            'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1',
            'PYTEST_ADDOPTS': '',
            'PYTHONPATH': str(LAB),
        },
    )
    guest = lab.watch.Watch(tmp_path / 'alive', lambda: 0.0)
    for line in done.stdout.splitlines():
        guest.line(line)
    assert guest.failed == [
        'test_it.py::test_b (call)',
        'test_it.py::test_c (teardown)',
    ]
    for name in 'abcde':
        begins = done.stdout.index(f'lab: begins test_it.py::test_{name}\n')
        assert (
            done.stdout.index(f'lab: ends test_it.py::test_{name}\n') > begins
        )
    assert lab.SUMMARY.search(done.stdout.splitlines()[-1])
