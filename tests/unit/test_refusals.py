# SPDX-License-Identifier: Apache-2.0

"""The one place of all refusals, of which the documentation has a table."""

import ast
import pathlib
import re
import string

import pytest

import os_acc
from os_acc.refusals import all_refusals
from os_acc.refusals import reasons
from os_acc.refusals import refusals

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = pathlib.Path(os_acc.__file__).parent
EVERY = {
    f'{module.__name__}.{name}': each
    for module in all_refusals.MODULES
    for name, each in vars(module).items()
    if isinstance(each, reasons.Refusal)
}

# The drivers drc and fake have no devices of Linux.
MAKE_THEIR_OWN = {
    'refusals/reasons.py',
    'kinds/drc/driver.py',
    'kinds/fake/driver/driver.py',
}


def fields(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_the_table_has_every_refusal_once():
    rows = [each for found in all_refusals.table().values() for each in found]
    assert len(rows) == len(EVERY) > 50
    assert set(rows) == set(EVERY.values())
    assert len({each.text for each in rows}) == len(rows)


def test_every_category_has_a_description_and_refusals():
    table = all_refusals.table()
    for category in reasons.Category:
        assert len(category.value.split()) > 3
        assert table[category]
        assert {each.category for each in table[category]} == {category}


@pytest.mark.parametrize('name', EVERY)
def test_a_refusal_says_when_and_what_to_do(name):
    refusal = EVERY[name]
    # A sentence each; text and remedy are put into sentences.
    assert re.fullmatch(r'[A-Za-z].*\.', refusal.when)
    for text in (refusal.text, refusal.remedy):
        assert text
        assert not text.endswith('.')
    assert not fields(refusal.when)


@pytest.mark.parametrize('name', EVERY)
def test_a_refusal_is_said_of_a_device(name):
    refusal = EVERY[name]
    values = {
        field: f'<{field}>'
        for field in fields(refusal.text) | fields(refusal.remedy)
        if field != 'remedy'
    }
    reason = refusal.reason(**values)
    assert reason.category is refusal.category
    for text in (reason.text, reason.remedy):
        assert not fields(text)
    for field in values:
        assert f'<{field}>' in reason.text + reason.remedy
    if '{remedy}' in refusal.text:
        assert reason.remedy in reason.text


def test_users_of_an_open_device_are_all_said():
    reason = refusals.opened(['libvirt domain a has it', 'process 7 has it'])
    assert reason.text == 'libvirt domain a has it; process 7 has it'
    assert reason.remedy == refusals.PROCESS.remedy


def test_no_refusal_is_made_elsewhere():
    found = set()
    for path in SOURCE.rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).rpartition('.')[2]
                if name == 'partial' and node.args:
                    name = ast.unparse(node.args[0]).rpartition('.')[2]
                if name in ('Obstacle', 'Reason', 'Refusal'):
                    found.add(str(path.relative_to(SOURCE)))
    of_table = {
        str(pathlib.Path(each.__file__).relative_to(SOURCE))
        for each in all_refusals.MODULES
    }
    assert found == MAKE_THEIR_OWN | of_table


def test_the_page_has_the_table():
    text = (ROOT / 'doc/source/linux.rst').read_text()
    assert re.search(r'^\.\. refusals::$', text, re.MULTILINE)
