# SPDX-License-Identifier: Apache-2.0

"""For whom a privileged call works: os_acc.claims.holder."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.claims import holder

JOURNAL = '11111111-2222-4333-8444-555555555555'
OTHER = '11111111-2222-4333-8444-666666666666'
INSTANCE = '22222222-2222-4333-8444-555555555555'
VAN = '33333333-2222-4333-8444-555555555555'
WHO = holder.Holder(JOURNAL, '/state/vans.db', INSTANCE, VAN)


@pytest.mark.parametrize(
    'wire',
    [
        WHO.to_wire(),
        tuple(WHO.to_wire()),
        [JOURNAL, '/state/vans.db', '', ''],
        [JOURNAL, '/' * 4096, INSTANCE, VAN],
    ],
)
def test_what_is_sent_is_read(wire):
    made = holder.from_wire(wire)
    assert made.to_wire() == list(wire)


@pytest.mark.parametrize(
    'wire',
    [
        None,
        '1234',
        WHO.to_wire()[:3],
        [*WHO.to_wire(), ''],
        [JOURNAL, '/state/vans.db', INSTANCE, 1],
        ['', '/state/vans.db', INSTANCE, VAN],
        ['journal', '/state/vans.db', INSTANCE, VAN],
        [JOURNAL, '/state/vans.db', 'instance', VAN],
        [JOURNAL, '/state/vans.db', INSTANCE, 'van'],
        [JOURNAL.replace('-', ''), '/state/vans.db', INSTANCE, VAN],
        [JOURNAL, '/' * 4097, INSTANCE, VAN],
        [JOURNAL, '/state/vans.db\n', INSTANCE, VAN],
    ],
)
def test_what_is_malformed_is_refused(wire):
    with pytest.raises(exception.InvalidRequest) as caught:
        holder.from_wire(wire)
    text = str(caught.value)
    assert 'privileged call' in text
    assert 'holder' in text
    assert 'the UUID and the path of a journal' in text


@pytest.mark.parametrize(
    ('journal', 'instance', 'van', 'may'),
    [
        (JOURNAL, INSTANCE, VAN, True),
        # A journal knows by itself which of its VANs has what.
        (JOURNAL, INSTANCE, OTHER, True),
        # The journal was rebuilt.
        (OTHER, INSTANCE, VAN, True),
        # The ARQ was copied for another instance.
        (OTHER, OTHER, VAN, False),
        (OTHER, INSTANCE, OTHER, False),
        (OTHER, '', '', False),
    ],
)
def test_who_may_use_what_a_van_has(journal, instance, van, may):
    who = holder.Holder(journal, '/else/vans.db', instance, van)
    assert who.may_use_what(WHO) == may
    assert holder.is_of_another(WHO)
    with holder.acting_for(who):
        assert holder.current() == who
        assert holder.is_of_another(WHO) != may
    assert holder.current() is None
