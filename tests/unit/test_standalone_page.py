# SPDX-License-Identifier: Apache-2.0

"""Runs the commands of standalone.rst, and compares what they print."""

from __future__ import annotations

import pages
import pytest
import standalone
import yaml

PAGE = 'standalone.rst'


@pytest.fixture
def run(clean, tmp_path, capfd, monkeypatch):
    made = standalone.make(tmp_path, capfd, monkeypatch)
    (text,) = pages.blocks(PAGE, 'ini', '[os_acc_fake]')
    state = f'{tmp_path}/state'
    text = text.replace('/tmp/os-acc-try', state)
    # The page shows the handles in the order of the requests.
    made.path.write_text(
        text.replace('[os_acc]\n', '[os_acc]\nmax_workers = 1\n')
    )
    return made


def play(run, marker, stdin=''):
    """Run the commands of a block."""
    (text,) = pages.blocks(PAGE, 'console', marker)
    for arguments, said in pages.steps(text):
        given = ''
        if '<' in arguments:
            arguments, given = arguments[: arguments.index('<')], stdin
        result = run(*arguments, stdin=given)
        pages.check_sample(PAGE, said, result.out + result.err)


@pytest.mark.shown(PAGE, 'ini', '[os_acc_fake]')
def test_plug_by_a_name_and_json(run):
    play(run, '--instance job/7')
    play(run, 'unplug job/7 --json')
    assert run.handles() == []


def test_run(run):
    play(run, 'os-acc run')
    assert run.handles() == []


def test_cni_like(run, monkeypatch):
    monkeypatch.setenv('CNI_CONTAINERID', 'c1')
    monkeypatch.setenv('CNI_IFNAME', 'acc0')
    (text,) = pages.blocks(PAGE, 'json', 'resourceClass')
    play(run, 'cni-like add', text)
    assert run.handles() == []


def test_the_playbook(run):
    (text,) = pages.blocks(PAGE, 'yaml', 'device, program')
    (task,) = yaml.safe_load(text)
    argv = task['ansible.builtin.command']['argv']
    name, _, changed = task['changed_when'].partition('.stdout == ')
    assert (argv[0], name) == ('os-acc', task['register'])
    first, second = (run.fine(*argv[1:]).out.strip() for _ in range(2))
    assert f"'{first}'" == changed
    assert second == 'already programmed'
    assert run(*argv[1:-1]).code == 2
    argv[3] = 'fpga9'
    assert run(*argv[1:]).code == 4
