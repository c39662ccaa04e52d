# SPDX-License-Identifier: Apache-2.0

"""Who excludes whom: the one rule of os_acc.claims, and the older rules.

Set OS_ACC_CLAIMS_EXAMPLES to the number of generated hosts, each of which
gives some 400 situations, and OS_ACC_CLAIMS_SEED to get other ones. With
pytest's -s, the test prints the seed, and how many situations there were.
"""

from __future__ import annotations

import os
import pathlib
import random
import sys
import tempfile

import claim_cards
import claim_hosts
import claim_walks
from hypothesis import given
from hypothesis import seed
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import of_handle

EXAMPLES = int(os.environ.get('OS_ACC_CLAIMS_EXAMPLES', '12'))
SEED = int(os.environ.get('OS_ACC_CLAIMS_SEED', '31'))

HOST = conflict.Resource('host', 'this')
PF = conflict.Resource('function', 'PF', HOST)
VFS = [conflict.Resource('function', f'VF{n}', PF) for n in range(2)]
QUEUE = conflict.Resource('queue', 'q', VFS[0])
GROUP = conflict.Resource('group', '7')


def holding(van, *claims):
    return conflict.Holding(
        van, tuple(each for some in claims for each in some)
    )


def has(van, node, mode=conflict.EXCLUSIVE, owner=None):
    return holding(van, conflict.claims_of(node, mode, owner or van))


def nodes(wanted, *held):
    return [
        (each.node, each.holding.van_uuid)
        for each in conflict.conflicts(wanted, held)
    ]


# --- The rule


def test_one_node_goes_to_one_van():
    assert nodes(has('b', PF), has('a', PF)) == [(PF, 'a')]


def test_what_a_van_has_itself_is_no_obstacle():
    assert nodes(has('a', PF), has('a', PF)) == []


def test_not_even_if_it_had_it_for_another_owner():
    before = has('a', PF, conflict.EXCLUSIVE, 'instance')
    assert nodes(has('a', PF), before) == []
    before = has('a', PF, conflict.SHARED, 'instance')
    assert nodes(has('a', PF, conflict.shared(1)), before) == []


@pytest.mark.parametrize('part', [*VFS, QUEUE])
def test_a_node_and_what_is_in_it_exclude_each_other(part):
    assert nodes(has('b', PF), has('a', part)) == [(PF, 'a')]
    assert nodes(has('b', part), has('a', PF)) == [(PF, 'a')]


def test_parts_beside_each_other_do_not():
    assert nodes(has('b', VFS[1]), has('a', VFS[0]), has('c', QUEUE)) == []


def test_a_shared_node_excludes_its_parts():
    shared = has('a', PF, conflict.SHARED)
    assert nodes(has('b', VFS[0]), shared) == [(PF, 'a')]
    assert nodes(has('b', HOST), shared) == [(HOST, 'a')]
    assert nodes(has('b', PF, conflict.SHARED), shared) == []
    assert nodes(has('b', PF), shared) == [(PF, 'a')]


@pytest.mark.parametrize('most', [1, 2, 3])
def test_so_many_share_a_node(most):
    mode = conflict.shared(most)
    held = [has(f'a{n}', PF, mode) for n in range(most)]
    assert nodes(has('b', PF, mode), *held[1:]) == []
    assert nodes(has('b', PF, mode), *held) == [
        (PF, each.van_uuid) for each in held
    ]
    # One of them gets it again.
    assert nodes(held[0], *held) == []


def test_what_counts_is_how_many_the_one_who_comes_may_share_with():
    many = [has(f'a{n}', PF, conflict.SHARED) for n in range(3)]
    assert len(nodes(has('b', PF, conflict.shared(2)), *many)) == 3
    assert nodes(has('b', PF, conflict.shared(4)), *many) == []


def test_claims_of_one_owner_do_not_exclude_each_other():
    group = conflict.EXCLUSIVE, 'instance'
    assert nodes(has('b', GROUP, *group), has('a', GROUP, *group)) == []
    other = has('c', GROUP, conflict.EXCLUSIVE, 'another')
    assert nodes(has('b', GROUP, *group), other) == [(GROUP, 'c')]
    # An instance is no VAN.
    assert nodes(has('b', GROUP, *group), has('a', GROUP)) == [(GROUP, 'a')]


def test_nodes_of_one_name_and_of_different_kinds_are_different():
    other = conflict.Resource('queue', PF.name)
    assert nodes(has('b', other), has('a', PF)) == []


def test_a_node_is_the_same_wherever_it_is():
    """Where a function was is unknown once it is gone."""
    gone = conflict.Resource('function', VFS[0].name)
    assert nodes(has('b', gone), has('a', VFS[0])) == [(VFS[0], 'a')]


def test_all_who_are_in_the_way_are_named():
    held = [has('a', VFS[0]), has('b', VFS[1]), has('c', GROUP)]
    assert nodes(has('d', PF), *held) == [(PF, 'a'), (PF, 'b')]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([HOST, PF, *VFS, QUEUE, GROUP]),
            st.sampled_from(
                [conflict.EXCLUSIVE, conflict.PART, conflict.SHARED]
            ),
            st.sampled_from(['x', 'y', 'z']),
        ),
        min_size=2,
        max_size=2,
    )
)
def test_who_comes_first_does_not_count(claims):
    one, other = (has(f'van{n}', *each) for n, each in enumerate(claims))
    forward = {node for node, _ in nodes(one, other)}
    assert forward == {node for node, _ in nodes(other, one)}


# --- What is not there


class Host:
    """A host that has lost all but one PF, as after a reboot."""

    def function(self, address):
        if address != '0000:10:00.0':
            return None
        return facts.Function(address, address, '7')

    def files(self, name, numbers):
        return facts.Files(('0000:10:00.4',))

    def mdev_parent(self, uuid):
        return None

    def is_set_up(self, address):
        return True

    def slot(self, index):
        return None


@pytest.mark.parametrize(
    ('handle', 'device'),
    [
        ('pci/0000:10:00.4', '0000:10:00.0'),
        ('file/0000:10:00.4+drm+card', '0000:10:00.0'),
        ('mdev/9a1c2b48-3b1e-4b52-8cf0-34c64f2b7d10', '0000:10:00.0'),
        ('file/0000:10:00.0-wq1', '0000:10:00.0'),
    ],
)
def test_a_part_that_is_not_back_yet_keeps_its_whole(handle, device):
    whole = facts.Row('pci/0000:10:00.0', '0000:10:00.0', 'b', 'second')
    part = facts.Row(handle, device, 'a', 'first')
    claims = [of_handle.holding(each, Host()) for each in (whole, part)]
    assert list(conflict.conflicts(claims[0], claims[1:]))
    assert list(conflict.conflicts(claims[1], claims[:1]))
    # Who only asks for it does not keep it.
    asks = of_handle.holding(facts.Row(handle, None, 'a', 'first'), Host())
    assert not list(conflict.conflicts(claims[0], [asks]))


@pytest.mark.parametrize('handle', ['drc/21010001', 'test/a', 'block/eui.1'])
def test_one_handle_goes_to_one_van(handle):
    one, other = (
        of_handle.holding(facts.Row(handle, None, van, 'instance'), Host())
        for van in 'ab'
    )
    assert list(conflict.conflicts(one, [other]))


# --- Beside the older rules


#: What the new rule refuses and the older ones do not, and the other way
#: round. claim_walks says when each of them applies.
KNOWN = {
    'other order: disk',
    'other order: IOMMU group',
    'other order: PCI function',
    'other order: place in an FPGA',
    'other order: setting up of',
    'other order: whole PCI function',
    'hidden by another file',
    'IOMMU group of a vGPU',
    'mdev of a VF, and its PF',
    'file of an mdev, and of its parent',
    'mdev on a PF of an FPGA',
    'FPGA in two slots',
    'FPGA in one group',
    'companion that is only requested',
}


def compare(cards, number, count):
    draw = random.Random(number)
    directory = '/dev/shm' if os.access('/dev/shm', os.W_OK) else None
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(dir=directory) as root,
    ):
        host = claim_hosts.Host(pathlib.Path(root), patch)
        if draw.random() < 0.5:
            host.kernel.bus += '/0000:00:01.0'  # a bridge above all
        for name in cards:
            claim_cards.CARDS[name](host, draw)
        host.finish()
        claim_walks.Walk(host, draw, count).run()


def test_it_answers_as_the_older_rules_do():
    total = claim_walks.Count()

    @seed(SEED)
    @settings(max_examples=EXAMPLES, database=None)
    @given(
        st.lists(
            st.sampled_from(sorted(claim_cards.CARDS)), min_size=2, max_size=5
        ),
        st.integers(0, 2**32),
    )
    def each(cards, number):
        count = claim_walks.Count()
        compare(cards, number, count)
        assert not count.unknown, '\n\n'.join(count.unknown)
        assert not count.words, '\n\n'.join(count.words)
        total.add(count)

    each()
    sys.stdout.write(
        f'seed {SEED}: {total.situations} situations, {total.refused} '
        f'refused; differences: {dict(total.known)}\n'
    )
    assert total.known.keys() <= KNOWN
    assert 0 < total.refused < total.situations
