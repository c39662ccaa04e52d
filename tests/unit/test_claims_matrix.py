# SPDX-License-Identifier: Apache-2.0

"""Who excludes whom: each kind of device beside each other one.

A table has the same names in its rows and its columns:

* ``X``: no two VANs may have both,
* ``i``: no two instances may; two VANs of one instance may,
* ``.``: both may be given out.

Where the older rules answer otherwise to who comes second, in the row, there
is another letter: ``x`` and ``y`` stand for an ``X`` and an ``i`` that they do
not see, ``z`` for an ``X`` that they take for an ``i``.

Devices of different tables never exclude each other.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import tempfile

import claim_families
import claim_hosts
import claim_notes
import claim_vans
import pytest

from os_acc.claims import conflict
from os_acc.claims import of_handle
from os_acc.claims import reader
from os_acc.privileged import notes


@contextlib.contextmanager
def built(*builds, bridge=False):
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as root,
    ):
        host = claim_hosts.Host(pathlib.Path(root), patch)
        if bridge:
            host.kernel.bus += '/0000:00:01.0'
        for build in builds:
            build(host)
        host.finish()
        yield host


def new(host, one, other):
    return any(asked(host.facts, one.row, other.row))


def asked(facts, *rows):
    claims = [of_handle.holding(each, facts) for each in rows]
    return conflict.conflicts(claims[0], claims[1:])


def of_two(host, one, other):
    """As new(), by a reader that reads nothing but what these two have."""
    facts = reader.Reader(host.specs, slots=host.facts.slots)
    return any(asked(facts, one.row, other.row))


def old(host, one, other):
    return claim_vans.old(one, [other])


def letter(host, refuses, one, other):
    wanted = claim_vans.Van('new', 'first', one)
    if not refuses(host, wanted, claim_vans.Van('old', 'second', other)):
        return '.'
    same = refuses(host, wanted, claim_vans.Van('old', 'first', other))
    return 'X' if same else 'i'


def table(host, refuses):
    return [
        ''.join(letter(host, refuses, one, other) for other in host.options)
        for one in host.options
    ]


OLDER = {'x': 'X.', 'y': 'i.', 'z': 'Xi'}

TABLES = {
    claim_families.of_sriov: """
        PF                 XXXXXXX
        VF                 XX.XXXX
        other VF           X.XXX..
        file of PF         XXXX.ii
        other file of PF   XXX.Xii
        file of VF         XX.iiX.
        other file of VF   XX.ii.X
    """,
    claim_families.of_mdevs: """
        parent             XXXXX
        mdev               XX.XX
        mdev to be made    X.X.X
        file of mdev       xX.Xx
        file of parent     XXXxX
    """,
    claim_families.of_vf_mdevs: """
        PF                 XXXxXX
        VF                 XX.XX.
        other VF           X.X.XX
        mdev of VF         xX.Xx.
        file of PF         XXXxXi
        file of other VF   X.X.iX
    """,
    claim_families.of_group: """
        GPU                XiiiX
        companion          iXiiz
        neighbour          iiXXz
        file of neighbour  yyXX.
        file of group      XXX.X
    """,
    claim_families.of_fpga: """
        PF                 XiiXiXXX
        PF, network        yX.yXyyy
        PF, network too    y.Xy.yyy
        VF                 XiiX.X..
        VF, network        yX..Xy..
        file of PF         XiiXiXXx
        mdev of PF         Xyy..XXX
        file of mdev       xyy..xXX
    """,
    claim_families.of_cards: """
        management         Xi
        user function      yX
    """,
    claim_families.of_vgpus: """
        card               XXXX
        vGPU               XX..
        vGPU in group      X.Xy
        vGPU in group too  X.yX
    """,
    claim_families.of_queues: """
        DSA                XXXX.
        queue              XXX..
        file of queue      XXX..
        other queue        X..XX
        same number        ...XX
    """,
    claim_families.of_new_queues: """
        queue              X.X
        other queue        .XX
        file of queue      XxX
    """,
    claim_families.of_npu: """
        function           XiXXXiX
        neighbour          iXiiiXy
        NPU                XyXXX.X
        file of NPU        XyXX..X
        other file of it   Xyx.X..
        file of neighbour  yX...X.
        same number        XyXX..X
    """,
    claim_families.of_a_disk: """
        controller         XXXXX
        file of disk       XXXXX
        file of partition  XXX.X
        file of another    XX.XX
        file of sg         XXXXX
    """,
    claim_families.of_usb: """
        file alone         XXXXXX..
        share 0            XX..XX..
        share 1            X.X.XX..
        one too many       X..XXX..
        file of a part     XXXXXX..
        same number        XXXXXX..
        no directory       ......XX
        same number        ......XX
    """,
    claim_families.of_a_namespace: """
        namespace          XXXX
        file               XXXX
        file of partition  XXX.
        file of another    XX.X
    """,
    claim_families.of_vmd: """
        VMD                XX
        function behind    XX
    """,
    claim_families.of_a_switch: """
        PF                 X.XXX
        card beside        .X...
        VF                 X.XXX
        file of PF         X.XXi
        file of VF         X.XiX
    """,
    claim_families.of_power: """
        slot, whole bus    Xii..
        slot               iX...
        other slot         i.X..
        other bus          ...X.
        no bus             ....X
    """,
    claim_families.of_others: """
        mdev of mtty       X...
        another            .X..
        fake               ..X.
        another fake       ...X
    """,
}


def rows(text):
    return [line.split()[-1] for line in text.strip().splitlines()]


@pytest.mark.parametrize('build', TABLES)
def test_who_excludes_whom(build):
    wanted = rows(TABLES[build])
    with built(build) as host:
        found = table(host, new), table(host, old)
        assert table(host, of_two) == found[0]
    for number, rule in enumerate(found):
        assert rule == [
            ''.join(OLDER.get(each, each * 2)[number] for each in row)
            for row in wanted
        ]


@pytest.mark.parametrize('build', TABLES)
def test_a_bridge_above_all_changes_nothing(build):
    with built(build, bridge=True) as host:
        assert table(host, new) == [
            ''.join(OLDER.get(each, each)[0] for each in row)
            for row in rows(TABLES[build])
        ]


def test_the_notes_of_root_exclude_npus_as_the_rule_does():
    """Of two journals, with the notes of the first VAN alone."""
    with built(claim_families.of_npu) as host:
        (npu,) = (each for each in host.options if each.kind == 'npu')
        found = {}
        for other in host.options:
            for has, wants in ((npu, other), (other, npu)):
                with claim_notes.kept(has, host.specs):
                    before = set(notes.files.names())
                    found[has.handle, wants.handle] = claim_notes.refused(
                        wants, host.specs
                    )
                    claim_notes.delete(set(notes.files.names()) - before)
        named = {each.handle: each for each in host.options}
        assert found == {
            (has, wants): letter(host, new, named[wants], named[has]) != '.'
            for has, wants in found
        }
        assert not all(found.values())


def test_the_order_does_not_count():
    for text in TABLES.values():
        found = [
            ''.join(OLDER.get(each, each)[0] for each in row)
            for row in rows(text)
        ]
        assert found == list(map(''.join, zip(*found, strict=True)))


@pytest.mark.parametrize('bridge', [False, True])
def test_devices_of_different_tables(bridge):
    tables = {}
    for build in TABLES:
        with built(build) as host:
            tables |= {each.handle: build for each in host.options}
    with built(*TABLES, bridge=bridge) as host:
        assert len(host.options) == len(tables)
        for one, other in itertools.permutations(host.options, 2):
            if tables[one.handle] != tables[other.handle]:
                for refuses in (new, old):
                    assert letter(host, refuses, one, other) == '.'


def test_who_only_asks_for_a_device():
    """It keeps from others what the older rules keep for it.

    But for a companion: who gets it, or the GPU, has their IOMMU group.
    """
    differ, refused = [], 0
    for build in TABLES:
        with built(build) as host:
            for one, other in itertools.product(host.options, repeat=2):
                asks = claim_vans.Van('old', 'first', other, requested=True)
                for instance in ('first', 'second'):
                    wanted = claim_vans.Van('new', instance, one)
                    answers = new(host, wanted, asks), old(host, wanted, asks)
                    refused += answers[0]
                    if answers[0] != answers[1]:
                        differ.append((build, one.handle, other.handle))
    assert differ == [
        (claim_families.of_group, 'pci/0000:30:00.0', 'pci/0000:30:00.1')
    ]
    assert refused > sum(len(rows(text)) for text in TABLES.values())
