# SPDX-License-Identifier: Apache-2.0

"""The rule of os_acc.claims beside the notes of the privileged half.

The notes keep a device from the VANs of other journals, by the same rule. So
two VANs of two journals are compared, for each pair of what a generated host
has. See test_claims for the variables of the environment.
"""

from __future__ import annotations

import os
import pathlib
import random
import sys
import tempfile

import claim_cards
import claim_hosts
import claim_notes
import claim_vans
from hypothesis import given
from hypothesis import seed
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from os_acc.claims import conflict
from os_acc.claims import of_handle
from os_acc.privileged import notes

EXAMPLES = int(os.environ.get('OS_ACC_CLAIMS_EXAMPLES', '25')) // 3
SEED = int(os.environ.get('OS_ACC_CLAIMS_SEED', '31'))


def of_notes(host, options):
    """Which pairs the notes refuse, by the handles: wanted, held."""
    refused = set()
    for has in options:
        with claim_notes.kept(has, host.specs):
            before = set(notes.files.names())
            for wants in options:
                if claim_notes.refused(wants, host.specs):
                    refused.add((wants.handle, has.handle))
                claim_notes.delete(set(notes.files.names()) - before)
    return refused


def of_claims(host, options):
    """Where the rule refuses a pair: the kinds of the nodes."""

    def holding(option, van):
        row = claim_vans.Van(van, f'instance of {van}', option).row
        return of_handle.holding(row, host.facts)

    holders = [(each, holding(each, 'one')) for each in options]
    takers = [(each, holding(each, 'other')) for each in options]
    return {
        (wants.handle, has.handle): {
            each.node.kind for each in conflict.conflicts(taker, [holder])
        }
        for has, holder in holders
        for wants, taker in takers
    }


def compare(cards, number):
    """Compare all pairs of a host. Return their number."""
    draw = random.Random(number)
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as root,
    ):
        host = claim_hosts.Host(pathlib.Path(root), patch)
        for name in cards:
            claim_cards.CARDS[name](host, draw)
        host.finish()
        options = [
            each
            for each in host.options
            if each.handle.partition('/')[0] in claim_notes.NOTED
        ]
        refused = of_notes(host, options)
        for pair, nodes in of_claims(host, options).items():
            assert (pair in refused) == bool(nodes), (pair, nodes)
        return len(options) ** 2


def test_the_notes_refuse_what_the_rule_refuses():
    counted = []

    @seed(SEED)
    @settings(max_examples=EXAMPLES, database=None)
    @given(
        st.lists(
            st.sampled_from(sorted(claim_cards.CARDS)), min_size=1, max_size=3
        ),
        st.integers(0, 2**32),
    )
    def each(cards, number):
        counted.append(compare(cards, number))

    each()
    sys.stdout.write(f'seed {SEED}: {sum(counted)} pairs\n')
    assert sum(counted) > EXAMPLES
