# SPDX-License-Identifier: Apache-2.0

"""What the page "Compatibility" promises is kept."""

from __future__ import annotations

import copy
import json

import promises
import pytest


@pytest.fixture(scope='module')
def record():
    return json.loads(promises.RECORD.read_text())


def test_nothing_is_taken_away(record):
    assert promises.taken_away(record, promises.current()) == []


def test_the_record_has_what_users_use(record):
    assert record['api']['os_acc.plug'][:2] == ['instance_info', 'requests']
    assert record['objects']['VAN']['handle'] == 'ObjectField, may be None'
    assert 'handles_free' in record['columns']['device list']
    assert 'device_spec' in record['options']['os_acc']


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (lambda new: new['api'].pop('os_acc.plug'), 'os_acc.plug is gone'),
        (
            lambda new: new['api']['os_acc.plug'].remove('requests'),
            'os_acc.plug: the parameter requests is gone',
        ),
        (
            lambda new: new['api']['os_acc.plug'].append('more'),
            'os_acc.plug: the parameter more is now required',
        ),
        (
            lambda new: new['objects']['VAN'].update(state='IntegerField'),
            'objects: VAN.state is IntegerField, and was',
        ),
        (
            lambda new: new['columns']['van list'].remove('uuid'),
            'columns: van list has no uuid',
        ),
        (
            lambda new: new['options']['os_acc'].remove('plugin'),
            'options: os_acc has no plugin',
        ),
        (
            lambda new: new['exit codes'].remove(5),
            'the exit code 5 is gone',
        ),
        (
            lambda new: new['migrations of the journal'].pop(0),
            'the migrations of the journal differ',
        ),
    ],
)
def test_what_is_taken_away_is_found(record, change, said):
    new = copy.deepcopy(record)
    change(new)
    (found,) = promises.taken_away(record, new)
    assert found.startswith(said)


def test_what_is_new_takes_nothing_away(record):
    new = copy.deepcopy(record)
    new['api']['os_acc.plug'].append('more=')
    new['objects']['VAN']['more'] = 'StringField'
    new['columns']['van list'].append('more')
    new['migrations of the journal'].append('more')
    assert promises.taken_away(record, new) == []
