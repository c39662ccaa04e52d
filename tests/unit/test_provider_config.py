# SPDX-License-Identifier: Apache-2.0

"""The files provider.yaml that nova-compute reads."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.placement import provider_config

OWN = """\
meta:
  schema_version: '1.0'
  generated_by: os-acc
providers:
- identification:
    uuid: $COMPUTE_NODE
  inventories:
    additional:
    - CUSTOM_FPGA:
        total: 1
    - CUSTOM_DSA:
        total: 4
"""


def test_no_directory_has_no_file(tmp_path):
    assert provider_config.own(str(tmp_path / 'none')) is None
    assert provider_config.classes(str(tmp_path / 'none')) == {}


def test_the_file_of_an_earlier_version(tmp_path):
    path = tmp_path / 'os-acc.yaml'
    path.write_text(OWN)
    assert provider_config.own(str(tmp_path)) == str(path)
    assert provider_config.classes(str(tmp_path)) == {
        'CUSTOM_FPGA': str(path),
        'CUSTOM_DSA': str(path),
    }


@pytest.mark.parametrize(
    'text',
    [
        '',
        '[]',
        'providers: 1',
        'providers: [1, {inventories: {additional: [1]}}]',
        OWN.replace('CUSTOM_FPGA', 'A')
        .replace('CUSTOM_DSA', 'B')
        .replace('generated_by: os-acc', 'generated_by: me'),
    ],
)
def test_files_of_others(tmp_path, text):
    (tmp_path / 'mine.yaml').write_text(text)
    assert provider_config.own(str(tmp_path)) is None
    assert 'CUSTOM_FPGA' not in provider_config.classes(str(tmp_path))


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / 'mine.yaml').write_text('a: [')
    for call in (provider_config.own, provider_config.classes):
        with pytest.raises(exception.InvalidRequest, match=r'mine\.yaml'):
            call(str(tmp_path))
