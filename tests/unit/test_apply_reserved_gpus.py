# SPDX-License-Identifier: Apache-2.0

"""Reserved AMD GPUs, whose names change with their compute partitions."""

from __future__ import annotations

import amd_model
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import finding
from os_acc.doctor import reservations
from os_acc.kernel import file_place

CARD = '0000:c1:00.0'
WHOLE = f'{CARD}+drm+renderd'


@pytest.fixture
def cards(kernel, monkeypatch):
    return amd_model.installed(kernel, monkeypatch, CARD)


def partition(mode, number):
    return f'{CARD}+{mode}={number}+drm+renderd'


def apply(mode, device):
    """Reserve a device, and set the mode of the card."""
    os_acc.apply(
        {
            'version': 1,
            'offered': [amd_model.ENTRY],
            'partitions': [{'device': CARD, 'compute': mode}],
            'reserved': [{'device': device, 'project': 'mine'}],
        }
    )


def given():
    """What another project gets."""
    found = []
    while True:
        guest = devices.instance()
        guest.project_id = 'other'
        try:
            (van,) = os_acc.plug(guest, [devices.wanted('CUSTOM_GPU')])
        except exception.PlugException as err:
            assert 'for the project mine' in str(err) or found
            return found
        found.append(van.handle.identity.removeprefix('file/'))


@pytest.mark.parametrize(
    ('mode', 'device', 'expected'),
    [
        ('SPX', WHOLE, []),
        ('DPX', WHOLE, []),
        ('SPX', partition('dpx', 1), []),
        ('DPX', partition('dpx', 1), [partition('dpx', 0)]),
        ('DPX', partition('cpx', 7), []),
    ],
)
def test_whatever_the_mode_is(cards, mode, device, expected):
    apply(mode, device)
    assert cards.mode(CARD) == mode
    assert given() == expected
    (found,) = reservations.findings(os_acc._host)
    assert found.verdict == finding.OK


@pytest.mark.parametrize(
    ('one', 'other', 'expected'),
    [
        (WHOLE, WHOLE, True),
        (WHOLE, partition('cpx', 3), True),
        (partition('cpx', 3), partition('cpx', 3), True),
        (partition('cpx', 3), partition('cpx', 4), False),
        (partition('cpx', 3), partition('dpx', 0), True),
        (WHOLE, WHOLE.replace('c1', 'c6'), False),
        (WHOLE.replace('c1', 'c6'), partition('cpx', 3), False),
        (f'{CARD}+drm+card', partition('cpx', 3), False),
        # Other drivers' names with a rank or a share.
        (f'{CARD}+nvme=1+ng', f'{CARD}+ng', False),
        (f'{WHOLE}+share=0', f'{WHOLE}+share=1', False),
        (CARD, partition('cpx', 3), False),
        ('fpga', 'card', False),
    ],
)
def test_names_that_overlap(one, other, expected):
    assert file_place.overlap(one, other) is expected
    assert file_place.overlap(other, one) is expected
