# SPDX-License-Identifier: Apache-2.0

"""Runs the commands of cli.rst, and compares what they print."""

from __future__ import annotations

import ast
import json
import re

import command
import pages
import pytest

from os_acc.cli import demo

PAGE = 'cli.rst'
UUID = r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'
WANTED = ('INSTANCE', 'ARQS')
#: Times, and the boot of this host. A table has blanks up to the next column.
VARYING = (
    r'Boot ID +\| [^|]*',
    r'(Created|Updated) at +\| [^|]*',
    # The history: its times and durations.
    r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d',
    r'\d\.\d{3} s',
)


def arqs():
    """The ARQs of the example in callers.rst."""
    (text,) = pages.blocks('callers.rst', 'python', 'ARQS = [')
    names = {}
    for part in ast.parse(text).body:
        if isinstance(part, ast.Assign) and part.targets[0].id in WANTED:
            exec(ast.unparse(part), names)
    return {'arqs': names['ARQS']}


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    return command.Command(tmp_path / 'state', capsys, monkeypatch)


@pytest.mark.shown(PAGE, 'ini', '[os_acc_fake]')
def test_the_session(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (text,) = pages.blocks(PAGE, 'ini', '[os_acc_fake]')
    text = text.replace('/tmp/os-acc-try', str(tmp_path / 'state'))
    (tmp_path / 'try.conf').write_text(text)
    (tmp_path / 'arqs.json').write_text(json.dumps(arqs()))
    (text,) = pages.blocks(PAGE, 'console', 'van list -f json')
    for arguments, shown in pages.steps(text.replace('\\\n>', '')):
        result = run(*arguments)
        assert result.code == 0, result
        said = result.out
        pages.check_sample(PAGE, shown, said, *VARYING)


def outline(text):
    """The lines of the demo without what differs from run to run."""
    text = re.sub(UUID, 'UUID', text)
    text = re.sub(r'\b[0-9a-f]{8}\b', 'UUID', text)
    text = re.sub(r'/\S+/os-acc-demo-\S+', 'DIRECTORY', text)
    text = re.sub(r'at \d+\.\d+ s', 'TIME', text)
    text = re.sub(r'0x\w+', 'NUMBER', text)
    return {line.strip() for line in text.splitlines()}


def test_the_demo(run, monkeypatch):
    monkeypatch.setattr(demo, 'DELAYS', command.SHORT_DELAYS)
    (text,) = pages.blocks(PAGE, 'console', 'os-acc demo')
    ((arguments, shown),) = pages.steps(text)
    said = run.fine(*arguments).out
    # The elements of the other two VANs are left out on the page.
    assert outline(shown) - outline(said) == {'[...]'}
    steps = {line for line in outline(said) if line.startswith(('==', 'TIME'))}
    assert steps <= outline(shown)
