# SPDX-License-Identifier: Apache-2.0

"""os-acc apply is killed at its boundaries, with a document of all keys.

Each test takes every fifth boundary. With OS_ACC_EXAMPLES=5 it takes all.
"""

from __future__ import annotations

import json

import applied
import described
import described_parts
import examples
import idxd_model
import pytest

import os_acc
from os_acc.desired import documents
from os_acc.programming import hooks

STEP = max(1, 5 // examples.costly(1))
PF, OTHER = applied.PFS
ONE = (
    {PF: (2, 0), described_parts.NIC: (2, 1)},
    (558, {0, 1}),
    {
        described_parts.DSAS[0]: (2, 1, True),
        described_parts.DSAS[1]: (1, 1, True),
    },
    {'mtty-1': 2},
    {described_parts.GPUS[0]: 'CPX'},
    {described.FILES[0]},
    {('fpga', '0'): 'aes'},
    ({('card', ''): {'project': 'one'}}, {'aes': {}}),
)
TWO = (
    {PF: (3, 0), OTHER: (1, 0), described_parts.NIC: (2, 2)},
    (559, {1, 2}),
    {
        described_parts.DSAS[0]: (3, 2, True),
        described_parts.DSAS[1]: (1, 1, False),
    },
    {'mtty-1': 1, 'mtty-2': 1},
    dict.fromkeys(described_parts.GPUS, 'DPX'),
    {described.FILES[1]},
    {('fpga', '0'): 'sha', ('card', ''): 'aes'},
    ({(PF, ''): {'project': 'two'}}, {'gzip': {'min_free': 2}}),
)


@pytest.fixture
def host(kernel, tmp_path, monkeypatch):
    idxd_model.show_files(monkeypatch)
    # Hooks write nothing, and to find them takes longer than a boundary.
    monkeypatch.setattr(hooks, 'call', lambda event: None)
    return described.Host(kernel, tmp_path, monkeypatch)


def test_the_document_has_all_keys(host):
    schema = json.loads(json.dumps(described.documents.schema()))
    assert host.normal(TWO).keys() == schema['properties'].keys()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize('reboots', [False, True])
def test_a_kill_at_every_boundary(host, monkeypatch, reboots):
    """A restart of the service finishes it; so does the next apply."""
    number, died = 2 * reboots, True
    while died:
        os_acc.apply(host.written(ONE))
        host.begin(ONE)
        host.check()
        died = applied.dies_at(
            host.kernel,
            monkeypatch,
            number,
            lambda: os_acc.apply(host.written(TWO)),
        )
        kept = os_acc._host.journal.desired()
        begun = documents.stored(kept).as_object() == host.normal(TWO)
        host.begin(TWO if begun else ONE)
        if reboots:
            host.reboot()
        else:
            os_acc.initialize(reset=True)
        host.check()
        os_acc.apply(host.written(TWO))
        host.begin(TWO)
        host.check()
        again = os_acc.apply(host.written(TWO))
        assert again.results() == {'unchanged'}, number
        number += STEP
    assert number > 40
