# SPDX-License-Identifier: Apache-2.0

"""The document of apply: its files, its schema, and what errors say."""

from __future__ import annotations

import json
import pathlib
import re

import applied
import jsonschema
import pytest

from os_acc import exception
from os_acc.desired import documents

PAGE = pathlib.Path(__file__).parents[2] / 'doc/source/describe-host.rst'

YAML = """\
version: 1
offered:
  - {address: "0000:01:00.0", num_vfs: 2}
  - devices: /dev/accel/*
    shared: 2
functions:
  - device: fpga
    region: "0"
    function: aes
"""


def fails(text, path='host.yaml'):
    with pytest.raises(exception.InvalidRequest) as caught:
        documents.from_text(text, path)
    return caught.value.kwargs, str(caught.value)


def test_the_example_of_the_page_is_a_document():
    text = PAGE.read_text()
    blocks = re.findall(r'code-block:: yaml\n\n((?:   .*\n)+)', text)
    found = documents.from_text(blocks[0].replace('\n   ', '\n')[3:], 'a.yaml')
    assert [each.num_vfs for each in found.specs] == [8, 2, None, None]
    assert [each.label for each in found.functions] == [
        '0000:5e:00.0 0',
        '0000:5e:00.0 1',
    ]


def test_the_error_of_the_page():
    text = YAML.replace('offered:\n', 'offered:\n').replace(
        'num_vfs: 2', 'num_vf: 8'
    )
    shown = ' '.join(PAGE.read_text().split())
    assert fails(text)[1] in shown


def test_yaml_and_json_say_the_same():
    found = documents.from_text(YAML, 'host.yaml')
    text = json.dumps(found.as_object(), indent='\t')
    assert documents.from_text(text, 'host.json') == found
    assert documents.read(found.as_object()) == found


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(documents.schema())


def test_the_schema_has_the_keys_of_device_spec():
    """The reader names all of its keys if one is unknown."""
    names = set()
    for entry in ('{"0": 1}', '{"idxd": "0000:6a:01.0", "0": 1}'):
        with pytest.raises(exception.InvalidRequest) as caught:
            documents.device_spec.parse(entry)
        text = caught.value.kwargs['expected'].removeprefix('one of ')
        names.update(text.partition(' in an entry')[0].rstrip(',').split(', '))
    schema = documents.schema()['properties']['offered']['items']
    assert names <= set(schema['properties'])
    unknown = 'documents of another kind'
    for name in schema['properties']:
        with pytest.raises(exception.InvalidRequest) as caught:
            documents.device_spec.parse(json.dumps({name: unknown, 'x': 1}))
        assert caught.value.kwargs['field'] in ('key', name), name


@pytest.mark.parametrize(
    ('old', 'new', 'line', 'field', 'expected'),
    [
        (
            'num_vfs',
            'num_vf',
            3,
            'offered[0].num_vf',
            "did you mean 'num_vfs'?",
        ),
        ('shared: 2', 'shared: none', 5, 'offered[1].shared', 'number'),
        ('num_vfs: 2', 'num_vfs: 0', 3, 'offered[0].num_vfs', '1 to 65535'),
        ('version: 1', 'version: 2', 1, 'version', '1'),
        ('version: 1', '', 2, 'version', 'a value'),
        ('functions', 'function', 6, 'function', "did you mean 'functions'?"),
        ('function: aes', 'x: aes', 9, 'functions[0].x', 'no such key'),
        ('device: fpga', '', 8, 'functions[0].device', 'a value'),
        ('"0"', '0', 8, 'functions[0].region', 'as a string'),
        (
            ': aes',
            ': aes\n    bitstream: a',
            10,
            'functions[0].bitstream',
            'an absolute path',
        ),
        ('device: fpga', 'device: ""', 7, 'functions[0].device', ''),
        ('aes', '"aes aes"', 9, 'functions[0].function', 'name'),
    ],
)
def test_errors_name_line_key_and_value(old, new, line, field, expected):
    text = YAML.replace(old, new)
    assert text != YAML
    found, shown = fails(text)
    assert found['subject'] == f'host.yaml, line {line}', shown
    assert found['field'] == field
    assert expected in found['expected']
    assert field in shown


@pytest.mark.parametrize(
    ('text', 'line', 'field'),
    [
        (
            'mdevs:\n- device: mtty\n  type: mtty-1\n  count: 2.0\n',
            5,
            'mdevs[0].count',
        ),
        ('pools:\n- {function: a, min_free: 1.0}\n', 3, 'pools[0].min_free'),
        ('offered:\n- {num_vfs: 2.0}\n', 3, 'offered[0].num_vfs'),
        ('mdevs:\n- {device: a, type: b, count: true}', 3, 'mdevs[0].count'),
    ],
)
def test_a_number_that_is_no_integer_in_python(text, line, field):
    """JSON schema takes 2.0 as a whole number."""
    found, shown = fails(f'version: 1\n{text}')
    assert found['field'] == field
    assert found['subject'] == f'host.yaml, line {line}', shown
    assert field in shown


@pytest.mark.parametrize('value', ['2026-11-29', '!!set {x}', '!!binary aGk='])
def test_values_that_json_does_not_have(value):
    found, shown = fails(
        f'version: 1\nreserved:\n- device: fpga\n  project: {value}\n'
    )
    assert found['subject'] == 'host.yaml'
    assert 'in YAML' in shown
    assert 'line 4' in shown


def test_reserved_devices_are_written_as_they_are_read():
    text = YAML + (
        'reserved:\n'
        '  - {device: "0000:3B:00.0", project: p, ahead_of_time: true}\n'
    )
    found = documents.from_text(text, 'host.yaml')
    assert found.reserved[0].device == '0000:3b:00.0'
    assert documents.read(found.as_object()) == found
    found, _ = fails(text + '  - {device: "0000:3b:00.0", function: aes}\n')
    assert found['field'] == 'reserved'
    assert found['value'] == '0000:3b:00.0'


@pytest.mark.parametrize(
    'text', ['', '[]', 'a: b: c', '{"version": 1', 'version: 1\nversion: 1']
)
def test_a_text_that_is_no_document(text):
    assert fails(text)[0]['subject'].startswith('host.yaml')


def test_one_region_twice():
    found, _ = fails(YAML + YAML[YAML.index('  - device: fpga') :])
    assert found['field'] == 'functions'
    assert found['value'] == 'fpga 0'


def test_a_directory(tmp_path):
    (tmp_path / '20.json').write_text(
        json.dumps(applied.document(functions=[('card', '', 'gzip')]))
    )
    (tmp_path / '10.yaml').write_text(YAML)
    (tmp_path / 'notes.txt').write_text('none')
    found = documents.from_files(str(tmp_path))
    assert [each.label for each in found.functions] == ['fpga 0', 'card']
    assert len(found.offered) == len(found.specs) == 2
    (tmp_path / '30.yml').write_text(YAML)
    with pytest.raises(exception.InvalidRequest, match='each region once'):
        documents.from_files(str(tmp_path))


def test_a_directory_without_documents(tmp_path):
    with pytest.raises(exception.InvalidRequest, match='yaml'):
        documents.from_files(str(tmp_path))


def test_secrets_are_not_shown():
    secret = 'https://user:geheim@images/aes.gbs'
    text = YAML.replace(': aes', f': aes\n    bitstream: [{secret}]')
    assert 'geheim' not in fails(text)[1]
    text = YAML.replace('shared: 2', 'env: ["TOKEN=geheim", "TOKEN=geheim2"]')
    assert 'geheim' not in fails(text)[1]


@pytest.mark.parametrize(
    'url', ['https://user:geheim@images/aes.gbs', 'https://images/a?t=geheim']
)
@pytest.mark.parametrize('part', ['functions', 'pools'])
def test_a_url_with_a_secret_would_be_in_the_journal(url, part):
    text = (
        YAML.replace(': aes', f': aes\n    bitstream: {url}')
        if part == 'functions'
        else YAML + f'pools:\n  - {{function: aes, bitstream: "{url}"}}\n'
    )
    found, shown = fails(text)
    assert found['field'] == f'{part}[0].bitstream'
    assert 'without user, password and query' in shown
    assert 'geheim' not in shown
