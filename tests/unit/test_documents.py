# SPDX-License-Identifier: Apache-2.0

"""JSON and YAML of people: what is refused, and what the error says."""

from __future__ import annotations

import io
import itertools
import json
import sys

from hypothesis import given
from hypothesis import strategies as st
import pytest

from os_acc import exception
from os_acc.cli import base
from os_acc.cli import cni_config
from os_acc.placement import provider_config
from os_acc.spec import device_spec
from os_acc.texts import documents
from os_acc.texts import yaml_documents

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(_VALUES)
def test_what_json_writes_is_read(value):
    assert documents.json_of(json.dumps(value)) == value
    assert documents.json_of(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('{"a": 1,\n "a": 2}', "'a' occurs twice at line 2, column 2"),
        ('{"x": [{"deny": true, "deny": false}]}', "'deny' occurs twice"),
        ('{"a": 1, "\\u0061": 2}', "'a' occurs twice"),
        (
            '[{"a": "b", "c": ["a"], "d": {"a": 1}},\n'
            ' {"b": "\\"a\\":",\n  "a": {"a": 1}, "a": 2}]',
            "'a' occurs twice at line 3, column 18",
        ),
        ('{"a": NaN}', 'NaN does not exist in JSON at line 1, column 7'),
        ('{"a":\n [-Infinity]}', 'Infinity does not exist in JSON at line 2'),
        (
            '{"1e999": "1e999",\n "a": 1e999}',
            '1e999 is too large at line 2, column 7',
        ),
        ('{"a":\n ' + '7' * 5000 + '}', 'too many digits at line 2, column 2'),
        ('{"a": "\\ud83d"}', 'lone surrogate of UTF-16: \\ud83d'),
        ('{"a": 1}\0', 'line 1, column 9'),
        ('{"a": 1,}', 'line 1'),
        ('{"a": 1} // deny', 'line 1, column 10'),
        ('{"a": 1} {"b": 2}', 'line 1, column 10'),
        ('[' * 100_000, 'too deeply'),
        (b'{"a":\n "\xff"}', 'byte 0xff at line 2, column 3'),
        ('', 'line 1, column 1'),
    ],
)
def test_json_that_is_refused(text, said):
    with pytest.raises(ValueError) as caught:
        documents.json_of(text)
    assert said in str(caught.value)


@given(_VALUES, st.text())
def test_a_key_twice_at_any_place(value, key):
    """The error names the place of the second key."""
    inner, name = json.dumps(value), json.dumps(key)
    start = f'{{"x":\n [{inner}, {{{name}: {inner}, '
    text = f'{start}{name}: 1}}, {inner}]}}'
    column = len(start) - start.rindex('\n')
    with pytest.raises(ValueError) as caught:
        documents.json_of(text)
    assert str(caught.value) == (
        f'the key {key!r} occurs twice at line 2, column {column}'
    )


def test_a_character_of_two_halves():
    assert documents.json_of('"\\ud83d\\ude00"') == '\U0001f600'


def test_a_byte_order_mark_is_left_out():
    assert documents.json_of(b'\xef\xbb\xbf{"a": 1}') == {'a': 1}
    assert yaml_documents.yaml_of(b'\xef\xbb\xbfa: 1') == {'a': 1}


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('a: 1\na: 2\n', "'a' occurs twice at line 2, column 1"),
        ('x:\n  - {b: 1, "b": 2}\n', "'b' occurs twice"),
        ('1: a\n0x1: b\n', "'0x1' occurs twice at line 2, column 1"),
        ('yes: 1\ntrue: 2\n', "'true' occurs twice"),
        ('? {x: 1, x: 2}\n: 1\n', "'x' occurs twice"),
        ('a: [.nan]\n', '.nan is not a finite number at line 1, column 5'),
        ('a: -.inf\n', '-.inf is not a finite number'),
        ('a: 1\n---\na: 2\n', 'another document'),
        ('a: [', 'line 1'),
        (b'a: \xff', 'not UTF-8'),
        ('a:\n- !!bool x\n', "'x' is not of type bool at line 2, column 3"),
        ('!!bool x: 1', "'x' is not of type bool at line 1, column 1"),
        (
            'a: !!timestamp x',
            "'x' is not of type timestamp at line 1, column 4",
        ),
        (
            'b: 1\na: 2026-13-45',
            "'2026-13-45' is not of type timestamp at line 2",
        ),
        ('a: ' + '7' * 5000, 'is not of type int at line 1, column 4'),
        ('a: !!int "x"', "'x' is not of type int at line 1, column 4"),
        ('a: 1\nb: "\\U00110000"', 'at line 2, column '),
        ('a: 1\nb: \x1b[0m', '#x001b at line 2, column 4'),
        ('a: "\\ud83d"', "'\\ud83d' has a lone surrogate at line 1, column 4"),
        ('[' * 200 + ']' * 200, 'nested too deeply at line 1'),
        (
            'vlan: 0101',
            "0101 means 65 in YAML: write that number, or '0101' in quotes at "
            'line 1, column 7',
        ),
        ('a: -010', '-010 means -8 in YAML'),
        ('a: {b: 0000:3b:00.0, c: 0000:08:00.0}', '0000:08:00.0 means 480.0'),
        ('a: 12:34:56:12:34:56', '12:34:56:12:34:56 means 9783981296'),
        (
            'a: 1\nb: 2026-11-29',
            "'2026-11-29' is of type timestamp in YAML, expected text, a "
            'number, a list or a mapping; text may need quotes at line 2, '
            'column 4',
        ),
        ('a: 2026-11-29 01:02:03', 'is of type timestamp in YAML'),
        ('a: 1\nb: !!set {x}', 'it is of type set in YAML, expected text'),
        ('a:\n  - !!set {x: null}', 'at line 2, column 5'),
        ('a: !!omap [x: 1]', 'it is of type omap in YAML'),
        ('a: !!pairs [x: 1]', 'it is of type pairs in YAML'),
        ('a: 1\nb: !!binary aGk=', "'aGk=' is of type binary in YAML"),
    ],
)
def test_yaml_that_is_refused(text, said):
    with pytest.raises(ValueError) as caught:
        yaml_documents.yaml_of(text)
    assert said in str(caught.value)


@pytest.mark.parametrize('depth', [150, 500, 990])
def test_what_is_nested_deeply_is_refused_before_it_is_used(depth):
    """Python's own limit leaves no room for what is done with the value."""
    text = '{"nvme_of": ' + '[' * depth + ']' * depth + '}'
    with pytest.raises(exception.InvalidRequest, match='too deeply'):
        device_spec.parse(text)
    assert documents.json_of('[' * 90 + ']' * 90)
    assert yaml_documents.yaml_of('[' * 90 + ']' * 90)


def test_numbers_that_are_the_same_in_each_yaml():
    text = '[0, -1, 0.5, 0x10, 1_000, "010", 0b11]'
    assert yaml_documents.yaml_of(text) == [0, -1, 0.5, 16, 1000, '010', 3]


def test_yaml_may_name_a_node_twice():
    text = 'a: &one {x: 1}\nb: {<<: *one, y: 2}\nc: *one\n'
    assert yaml_documents.yaml_of(text)['b'] == {'x': 1, 'y': 2}


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('&all [*all]', 'nested too deeply at line 1'),
        ('a: &a {b: {c: *a}}', 'nested too deeply at line 1'),
        (
            '- &a [x, x, x, x, x, x, x, x, x, x]\n'
            + ''.join(
                f'- &{name} [{", ".join([f"*{before}"] * 10)}]\n'
                for before, name in itertools.pairwise('abcdefghi')
            ),
            'more than 100000 values at line 1',
        ),
    ],
)
def test_yaml_that_grows_without_end(text, said):
    """Whoever writes it as JSON would need all memory, or not end."""
    with pytest.raises(ValueError, match=said):
        yaml_documents.yaml_of(text)


def test_a_key_twice_in_an_entry_of_device_spec():
    text = '{"address": "0000:3b:00.0", "address": "*", "deny": true}'
    with pytest.raises(exception.InvalidRequest, match="'address' occurs"):
        device_spec.parse(text)


def test_a_key_twice_in_a_cni_configuration():
    text = b'{"name": "one", "name": "two"}'
    with pytest.raises(cni_config.CNIError, match="'name' occurs twice"):
        cni_config.decode(io.BytesIO(text))


def test_a_key_twice_in_another_provider_file(tmp_path):
    file = tmp_path / 'other.yaml'
    file.write_text('providers: []\nproviders: []\n')
    with pytest.raises(exception.InvalidRequest, match='occurs twice'):
        provider_config.classes(str(tmp_path))


def test_arqs_that_are_not_utf8_or_begin_with_a_mark(tmp_path):
    file = tmp_path / 'arqs.json'
    file.write_bytes(b'[\n"\xff"]')
    with pytest.raises(ValueError, match='0xff at line 2, column 2'):
        base.read(str(file))
    file.write_bytes(b'\xef\xbb\xbf[]')
    assert base.read(str(file)) == '[]'


@pytest.mark.parametrize('encoding', ['utf-8', 'latin-1', 'ascii'])
def test_arqs_of_standard_input_are_utf8_in_any_locale(encoding, monkeypatch):
    def given(data):
        stream = io.TextIOWrapper(
            io.BytesIO(data), encoding, errors='surrogateescape'
        )
        monkeypatch.setattr(sys, 'stdin', stream)

    given('\ufeff"ä"'.encode())
    assert base.read('-') == '"ä"'
    given(b'[\n"\xff"]')
    with pytest.raises(ValueError, match='0xff at line 2, column 2'):
        base.read('-')
