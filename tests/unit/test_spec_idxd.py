# SPDX-License-Identifier: Apache-2.0

"""The entries of device_spec that offer work queues, and their layout."""

from __future__ import annotations

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from os_acc import exception
from os_acc.kernel import idxd
from os_acc.kinds.idxd import entry as spec_idxd
from os_acc.kinds.idxd import names as idxd_names
from os_acc.kinds.idxd import rules as idxd_availability
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts

DSA = '0000:6a:01.0'


def parse(**entry):
    (spec,) = device_spec.parse(json.dumps(entry))
    return spec


def test_the_defaults():
    spec = parse(idxd='6A:01.0')
    assert spec.address.complete == DSA
    assert spec.queues == spec_idxd.Queues()
    assert spec_parts.asked_for(spec) == {spec_parts.Part.OF_KIND}
    assert parse(address=DSA).queues is None


@pytest.mark.parametrize(
    ('entry', 'field'),
    [
        ({'idxd': ''}, 'idxd'),
        ({'idxd': None}, 'idxd'),
        ({'idxd': 'dsa0'}, 'idxd'),
        ({'idxd': '*:01.0'}, 'idxd'),
        ({'idxd': {'bus': '6a'}}, 'idxd'),
        ({'idxd': [DSA]}, 'idxd'),
        ({'idxd': DSA, 'address': DSA}, 'key'),
        ({'idxd': DSA, 'bind': 'none'}, 'key'),
        ({'idxd': DSA, 'deny': True}, 'key'),
        ({'idxd': DSA, 'wq_mode': 'both'}, 'wq_mode'),
        ({'idxd': DSA, 'wq_size': 0}, 'wq_size'),
        ({'idxd': DSA, 'wq_size': '16'}, 'wq_size'),
        ({'idxd': DSA, 'wq_size': True}, 'wq_size'),
        ({'idxd': DSA, 'wq_count': 257}, 'wq_count'),
        ({'idxd': DSA, 'wq_groups': 0}, 'wq_groups'),
        ({'idxd': DSA, 'wq_groups': 3, 'wq_count': 2}, 'wq_groups'),
        ({'idxd': DSA, 'priority': 16}, 'priority'),
        ({'idxd': DSA, 'threshold': 4}, 'threshold'),
        (
            {'idxd': DSA, 'wq_mode': 'shared', 'wq_size': 4, 'threshold': 5},
            'threshold',
        ),
        ({'idxd': DSA, 'max_batch_size': 3}, 'max_batch_size'),
        ({'idxd': DSA, 'max_transfer_size': 0}, 'max_transfer_size'),
        ({'address': DSA, 'wq_size': 16}, 'wq_size'),
        ({'address': DSA, 'priority': 1}, 'priority'),
    ],
)
def test_what_is_refused(entry, field):
    with pytest.raises(exception.InvalidRequest) as caught:
        parse(**entry)
    assert caught.value.kwargs['field'] == field


@given(
    st.builds(
        spec_idxd.Queues,
        st.sampled_from(spec_idxd.MODES),
        st.none() | st.integers(1, 200),
        st.none() | st.integers(1, 20),
        st.integers(1, 10),
        st.integers(1, 15),
        st.none() | st.integers(1, 200),
    ),
    st.integers(0, 16),
    st.integers(0, 256),
    st.integers(0, 8),
    st.integers(0, 8),
)
def test_a_layout_fits_or_the_shortage_is_told(
    settings, queues, size, groups, engines
):
    device = idxd.Device(
        DSA,
        '/sys/dsa0',
        'dsa',
        'disabled',
        True,
        True,
        queues,
        size,
        groups,
        240,
        tuple(_queue(number) for number in range(queues)),
        dict.fromkeys(range(engines), idxd.NO_GROUP),
    )
    if idxd_availability.shortage(device, settings) is not None:
        assert idxd_availability.numbers(device, settings) == []
        return
    layout = idxd_availability.plan(device, settings)
    assert 0 < len(layout.queues) <= queues
    assert len(layout.queues) * layout.size <= size
    assert settings.wq_size in (None, layout.size)
    assert settings.wq_count in (None, len(layout.queues))
    used = set(layout.queues.values())
    assert used == set(layout.engines.values()) == set(range(len(used)))
    assert len(used) == settings.wq_groups <= groups
    assert set(layout.engines) == set(range(engines))
    noted = json.loads(json.dumps(dataclasses.asdict(settings)))
    assert spec_idxd.of_note(noted) == settings


def _queue(number):
    return idxd.Queue(
        f'/sys/dsa0/wq0.{number}',
        number,
        'disabled',
        'none',
        'shared',
        0,
        idxd.NO_GROUP,
        0,
        '',
        None,
        0,
        None,
    )


@pytest.mark.parametrize('value', [None, [], {'other': 1}])
def test_a_note_that_is_not_one(value):
    assert spec_idxd.of_note(value) is None


@pytest.mark.parametrize(
    'name', ['', DSA, f'{DSA}-wq', f'{DSA}-wq01', 'x-wq1', f'{DSA}-wq1000']
)
def test_names(name):
    assert idxd_names.split(name) is None
    text = '^DeviceFileHandle: name is .* expected the name of a work queue'
    with pytest.raises(exception.InvalidRequest, match=text):
        idxd_names.parse(name)
    assert idxd_names.split(idxd_names.name_of(DSA, 7)) == (DSA, 7)
