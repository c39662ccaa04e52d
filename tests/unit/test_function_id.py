# SPDX-License-Identifier: Apache-2.0

"""Ids of functions are compared by their canonical form."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st
import pytest

from os_acc.texts import forms


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        (None, ''),
        ('', ''),
        ('AES', 'aes'),
        (
            'D8424DC4-A4A3-C413-F89E-433683F9040B',
            'd8424dc4a4a3c413f89e433683f9040b',
        ),
    ],
)
def test_canonical(text, expected):
    assert forms.function_id(text) == expected


@given(st.uuids(), st.uuids())
def test_same_for_each_way_to_write_a_uuid(one, other):
    texts = [str(one), one.hex, str(one).upper(), one.hex.upper()]
    for form in texts:
        assert forms.same_function(form, str(one))
        assert forms.same_function(form, other.hex) is (one == other)


def test_none_is_no_function():
    assert forms.same_function(None, None)
    assert forms.same_function(None, '')
    assert not forms.same_function(None, uuid.uuid4().hex)
