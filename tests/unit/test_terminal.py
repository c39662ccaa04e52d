# SPDX-License-Identifier: Apache-2.0

"""The picture of the demo says what the demo prints."""

from __future__ import annotations

import importlib.util
import re

import command
from lxml import etree
from pages import README
from pages import SOURCE
import pytest

from os_acc.cli import demo

PICTURE = SOURCE / '_static' / 'demo.svg'
SVG = '{http://www.w3.org/2000/svg}'


def terminal():
    path = SOURCE.parent / 'terminal.py'
    spec = importlib.util.spec_from_file_location('terminal', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outline(lines):
    """The words of all lines, without what differs from run to run.

    VANs that are prepared or released at once may end in any order, and a
    number may be longer, so that a line is wrapped elsewhere.
    """
    text = ' '.join(' '.join(lines).split())
    text = re.sub(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', 'UUID', text)
    text = re.sub(r'VAN [0-9a-f]{8} ', 'VAN UUID ', text)
    text = re.sub(r'at \d+\.\d+ s', 'at TIME', text)
    text = re.sub(r'(slot|function|bus)="0x\w+"', r'\1="NUMBER"', text)
    return sorted(re.split(r' (?=at TIME)|(?<= done) ', text))


def drawn():
    return [
        ''.join(each.itertext())
        for each in etree.parse(PICTURE).iter(f'{SVG}text')
    ]


@pytest.fixture
def said(clean, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, 'DELAYS', command.SHORT_DELAYS)
    run = command.Command(tmp_path / 'state', capsys, monkeypatch)
    return run.fine('demo').out


def test_the_picture_says_what_the_demo_prints(said):
    assert outline(drawn()) == outline(terminal().shown(said))


def test_no_line_is_wider_than_the_picture(said):
    module = terminal()
    for line in (*drawn(), *module.shown(said)):
        assert len(line) <= module.WIDTH


def test_the_readme_and_the_first_page_show_it():
    assert (
        f'image:: doc/source/_static/{PICTURE.name}'
        in (SOURCE / README).read_text()
    )
    assert (
        f'image:: _static/{PICTURE.name}' in (SOURCE / 'index.rst').read_text()
    )
