# SPDX-License-Identifier: Apache-2.0

"""Who has which device, as the journal knows it: os_acc.claims.allocated."""

from __future__ import annotations

import dataclasses

import pytest

from os_acc.claims import allocated

PF, VF, OTHER = '0000:3b:00.0', '0000:3b:00.1', '0000:3c:00.0'
UUID = 'c9d1b1f2-3f0f-4f65-8a54-5c3d2e0a1b01'


@dataclasses.dataclass
class Van:
    handle: str | None
    device: str | None
    van_uuid: str
    instance_uuid: str = 'instance'
    called: str = 'instance'


def test_nobody_has_anything():
    none = allocated.Holders()
    assert not none
    assert none.of_function(PF) is None
    assert not none.has(None, PF)
    assert not none.has('a', PF)
    assert none.in_the_way(f'pci/{PF}', PF) == []
    assert not allocated.Holders([Van(None, None, 'a')])


def test_who_has_a_function():
    pf, vf = Van(f'pci/{PF}', PF, 'a'), Van(f'pci/{VF}', PF, 'b')
    known = allocated.Holders([pf, vf])
    assert known
    assert known.of_function(PF) is known.of_handle(f'pci/{PF}') is pf
    assert known.of_function(VF) is vf
    assert known.of_function(OTHER) is None
    assert known.on(PF) == [pf, vf]
    assert known.on(VF) == ()
    assert known.has('a', PF)
    assert not known.has('b', PF)
    assert not known.has('a', OTHER)
    assert known.of_others('a')
    assert not allocated.Holders([pf]).of_others('a')


def test_an_instance_is_named_as_the_journal_calls_it():
    known = allocated.Holders([Van(f'pci/{PF}', PF, 'a', 'i', 'host:ovs')])
    taker = allocated.Taker('b', 'other')
    (met,) = known.asked_by(taker).in_the_way(f'pci/{PF}', PF)
    assert 'instance host:ovs has' in met.reason.text


def test_who_only_asks_for_a_function_comes_last():
    asks = Van(f'pci/{PF}', None, 'a')
    file = Van(f'file/{PF}+drm+card', PF, 'b')
    known = allocated.Holders([asks])
    assert known.of_function(PF) is asks
    assert not known.has('a', PF)
    assert known.on(PF) == ()
    known = allocated.Holders([asks, file])
    assert known.of_function(PF) is file
    assert known.has('b', PF)


def test_who_has_a_file():
    shares = [Van(f'file/{PF}+drm+card/{n}', PF, n) for n in 'ab']
    known = allocated.Holders(shares)
    assert known.of_file(f'{PF}+drm+card') == shares
    assert known.of_file(f'{PF}+drm+render') == ()
    assert known.of_function(PF) is shares[0]


def test_who_has_a_mediated_device():
    mdev = Van(f'mdev/{UUID}', PF, 'a')
    known = allocated.Holders([mdev])
    assert known.of_mdev(UUID) is mdev
    assert known.of_mdev(UUID.replace('c', 'd')) is None
    assert known.of_function(PF) is None


def test_what_an_operator_keeps_back():
    known = allocated.Holders(reserved={PF: 'it smells'})
    assert known.reserved(PF) == 'it smells'
    assert known.reserved(VF) is None


@pytest.mark.usefixtures('kernel')
def test_what_a_van_has_itself_is_not_in_its_way():
    van = Van(f'pci/{PF}', PF, 'a')
    known = allocated.Holders([van])
    (met,) = known.in_the_way(f'pci/{PF}', PF)
    assert met.said == {
        'instance': 'instance',
        'what': f'pci/{PF}',
        'van': 'a',
    }
    mine = known.asked_by(allocated.Taker('a', 'instance'))
    assert mine.in_the_way(f'pci/{PF}', PF) == []
    # The one that asked first still asks for nobody.
    assert known.taker == allocated.ANYONE


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize(('most', 'excluded'), [(0, 0), (3, 0), (2, 2)])
def test_no_more_vans_share_than_are_asked_for(most, excluded):
    shares = [Van(f'file/accel/{n}', 'accel', n) for n in 'ab']
    known = allocated.Holders(shares)
    found = known.in_the_way('file/accel/any', 'accel', most=most)
    assert len(found) == excluded


@pytest.mark.usefixtures('kernel')
def test_numbers_are_those_of_the_files_of_a_van():
    van = Van('file/accel', 'accel', 'a')
    files = {'a': (('c 240:0', '/dev/accel', ''),)}
    known = allocated.Holders([van], files=lambda: files)
    (met,) = known.in_the_way('file/late', 'late', ('c 240:0',))
    assert '240:0 of /dev/accel (VAN a)' in met.reason.text
    assert known.in_the_way('file/late', 'late', ('c 240:1',)) == []


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize('many', [False, True])
@pytest.mark.parametrize(
    ('handle', 'device'),
    [
        (f'pci/{PF}', PF),
        (f'mdev/{UUID}', 'mtty'),
        ('file/accel', 'accel'),
        ('block/eui.1', 'eui.1'),
        ('drc/21010001', 'drc'),
        ('test/a', 'card'),
    ],
)
def test_no_two_vans_get_one_handle(handle, device, many):
    known = allocated.Holders([Van(handle, device, 'a')], many=many)
    assert len(known.in_the_way(handle, device)) == 1
    assert len(known.in_the_way(handle, None)) == 1
    assert known.in_the_way('test/b', 'another') == []
