# SPDX-License-Identifier: Apache-2.0

"""acc_plug_powervm.operation: the note of an operation in driver_data."""

from __future__ import annotations

import json
import time
import uuid

import pytest

from acc_plug_powervm import operation
from os_acc import exception
from os_acc import objects

LPAR = '3D3DE3FA-5DD6-439D-BF4C-1835C340A9BD'


@pytest.fixture
def van():
    made = objects.VAN(uuid=uuid.uuid4(), driver_data={'other': 'kept'})
    saved = []
    made.connect(lambda van: saved.append(dict(van.driver_data)))
    made.saved = saved
    return made


def begin(seconds: float = 60) -> operation.Operation:
    return operation.Operation.begin(
        operation.ATTACH, '21030011', LPAR, seconds
    )


def test_a_note(van):
    assert operation.noted(van) is None
    begun = begin()
    operation.note(van, begun)
    assert operation.noted(van) == begun
    (saved,) = van.saved
    assert saved.keys() == {'other', operation.KEY}
    operation.forget(van)
    assert operation.noted(van) is None
    assert van.driver_data == {'other': 'kept'}


def test_its_text():
    begun = operation.Operation('attach', '21030011', LPAR, 0.0, 'p')
    assert str(begun) == f'attach slot 21030011 to LPAR {LPAR}'
    assert begun.end == '1970-01-01 00:00:00 UTC'
    begun = operation.Operation('detach', '21030011', LPAR, 0.0, 'p')
    assert 'detach slot 21030011 from LPAR' in str(begun)


def test_what_is_unknown():
    later, past = time.time() + 60, time.time() - 1
    values = ('attach', '21030011', LPAR)
    assert not begin().is_unknown
    assert operation.Operation(*values, later, 'another').is_unknown
    assert not operation.Operation(*values, past, 'another').is_unknown


@pytest.mark.parametrize(
    'text',
    [
        '',
        '[]',
        '{}',
        '{"until": 1}',
        json.dumps(
            {
                'kind': 'attach',
                'drc_index': '21030011',
                'lpar_uuid': LPAR,
                'until': 'soon',
                'process': 'p',
            }
        ),
    ],
)
def test_a_note_that_cannot_be_read(van, text):
    van.driver_data = {operation.KEY: text}
    with pytest.raises(exception.InvalidRequest, match='powervm_operation'):
        operation.noted(van)
