# SPDX-License-Identifier: Apache-2.0

"""Devices that a document reserves: plug, dry run, list and doctor agree."""

from __future__ import annotations

import json

import applied
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import finding
from os_acc import objects
from os_acc.doctor import reservations
from os_acc.journal import desired
from os_acc.operations import preview

PROJECT = 'a-project'


@pytest.fixture
def here(kernel, tmp_path):
    return applied.Host(kernel, tmp_path)


def instance(project):
    made = devices.instance()
    return objects.InstanceInfo(uuid=made.uuid, project_id=project)


def taken(request, project='other'):
    """Plug, as the dry run has said, and unplug.

    :returns: the device and its region; or why there is none
    """
    guest = instance(project)
    (planned,) = preview.plug(os_acc._host, guest, [request])
    try:
        (van,) = os_acc.plug(guest, [request])
    except exception.PlugException as err:
        assert planned.obstacle is not None, err
        return str(err.__cause__)
    assert planned.obstacle is None
    assert van.device in planned.devices
    os_acc.unplug(guest)
    return van.device, van.driver_data.get('region')


def test_for_a_function(here):
    """A request for another function, or for none, gets another device."""
    here.apply(
        functions=[('fpga', '0', 'aes'), ('card', '', 'aes')],
        reserved=[{'device': 'fpga', 'function': 'sha'}],
    )
    for function in ('aes', None):
        found = taken(applied.fake_request(function))
        assert found == ('card', '')
    assert taken(applied.fake_request('sha'))[0] == 'fpga'
    here.apply(
        reserved=[
            {'device': name, 'function': 'sha'} for name in ('fpga', 'card')
        ],
    )
    found = taken(applied.fake_request('gzip'))
    assert 'reserves it for the function sha' in found
    assert 'names the function gzip' in found


def test_for_a_function_of_one_region(here):
    here.apply(
        functions=[('fpga', '0', 'aes'), ('fpga', '1', 'aes')],
        reserved=[
            {'device': 'fpga', 'region': '0', 'function': 'sha'},
            {'device': 'card', 'project': PROJECT},
        ],
    )
    assert taken(applied.fake_request('aes')) == ('fpga', '1')
    assert taken(applied.fake_request('gzip')) == ('fpga', '1')


@pytest.mark.parametrize('device', [devices.PF, devices.VFS[0]])
def test_for_a_project(here, device):
    """The address is that of the device, or of one of its handles."""
    here.apply(
        applied.pf(number=1), reserved=[{'device': device, 'project': PROJECT}]
    )
    request = devices.pci(devices.VFS[0])
    assert taken(request, PROJECT) == (devices.PF, None)
    found = taken(request)
    assert f'reserves it for the project {PROJECT}' in found
    assert 'the project of the instance is other' in found
    assert 'is none' in taken(request, None)


def test_ahead_of_time(here):
    """What it contains is given out, and nothing else is programmed."""
    here.apply(
        functions=[('card', '', 'aes')],
        reserved=[
            {'device': name, 'ahead_of_time': True}
            for name in ('fpga', 'card')
        ],
    )
    assert taken(applied.fake_request('aes')) == ('card', '')
    assert 'lets nobody program it' in taken(applied.fake_request('sha'))
    assert here.inside() == [None, None, 'aes']
    assert os_acc.program_device('fpga', None, 'sha', '0')
    assert taken(applied.fake_request('sha')) == ('fpga', '0')


def test_ahead_of_time_is_chosen_last(here):
    """A device that can be programmed comes before an empty one."""
    here.apply(
        functions=[('card', '', 'aes')],
        reserved=[{'device': 'fpga', 'ahead_of_time': True}],
    )
    assert taken(applied.fake_request('sha')) == ('card', '')
    assert here.inside() == [None, None, 'sha']


@pytest.mark.parametrize(
    'rule', [{'ahead_of_time': True}, {'function': 'aes'}]
)
def test_a_handle_of_a_device_with_one_function(here, rule):
    """No other handle of the device is a way to program it."""
    (card,) = (d for d in os_acc.get_devices() if d.address == 'card')
    handle = card.handles[1].handle.address
    here.apply(
        functions=[('card', '', 'aes')],
        reserved=[
            {'device': 'fpga', 'project': PROJECT},
            {'device': handle, **rule},
        ],
    )
    assert 'os-acc apply' in taken(applied.fake_request('sha'))
    assert here.inside()[2] == 'aes'
    assert taken(applied.fake_request('aes')) == ('card', '')


def test_what_a_later_version_has_written(here):
    """Nobody gets a device, and the error says what to do."""
    document = {'version': 1, 'reserved': [{'device': 'card', 'until': 5}]}
    os_acc._host.journal.save_desired(desired.Desired(json.dumps(document)))
    guest, request = instance('other'), applied.fake_request('aes')
    with pytest.raises(exception.PlugException, match='apply a document'):
        os_acc.plug(guest, [request])
    assert not os_acc.get_vans()
    with pytest.raises(exception.DiscoveryFailed, match='apply a document'):
        os_acc.get_devices()
    (found,) = reservations.findings(os_acc._host)
    assert found.verdict == finding.ERROR
    assert 'no instance gets a device' in found.text
    here.apply()
    assert os_acc.plug(guest, [request])


def test_an_instance_keeps_what_it_has(here):
    here.apply(functions=[('card', '', 'aes')])
    guest = instance('other')
    request = applied.fake_request('aes')
    (van,) = os_acc.plug(guest, [request])
    here.apply(
        functions=[('card', '', 'aes')],
        reserved=[{'device': van.device, 'project': PROJECT}],
    )
    here.kernel.reboot()
    os_acc.initialize(reset=True)
    (again,) = os_acc.plug(guest, [request])
    assert again.handle.identity == van.handle.identity


def test_the_report_says_for_whom_it_is(here):
    reserved = [
        {'device': 'fpga', 'region': '0', 'function': 'aes', 'project': 'p'},
        {'device': 'card', 'ahead_of_time': True},
    ]
    report = here.apply(reserved=reserved)
    assert applied.results(report) == {'fpga 0': 'changed', 'card': 'changed'}
    assert here.apply(reserved=reserved).results() == {'unchanged'}
    found = {each.address: each for each in os_acc.get_devices()}
    shown = [(each.region, each.reason) for each in found['fpga'].handles]
    text = 'only for the function aes, only for the project p'
    assert shown == [('0', text), ('1', None)]
    text = 'programmed ahead of time only'
    assert {each.reason for each in found['card'].handles} == {text}
    assert {each.state for each in found['card'].handles} == {'free'}
    report = here.apply()
    assert report.results() == {'changed'}
    assert {each.after for each in report.steps} == {'for everybody'}


def test_the_doctor(here):
    here.apply(
        reserved=[
            {'device': 'fpga', 'region': '0', 'function': 'aes'},
            {'device': 'fpga', 'region': '7', 'function': 'aes'},
            {'device': 'none', 'ahead_of_time': True},
        ]
    )
    found = [e.verdict for e in reservations.findings(os_acc._host)]
    assert found == [finding.OK, finding.WARNING, finding.WARNING]


def test_a_check_reserves_nothing(here):
    reserved = [{'device': 'card', 'project': PROJECT}]
    report = here.apply(reserved=reserved, check=True)
    assert report.results() == {'would change'}
    assert {e.reason for d in os_acc.get_devices() for e in d.handles} == {
        None
    }


@pytest.mark.parametrize(
    ('item', 'field', 'expected'),
    [
        ({'device': 'fpga'}, 'reserved[0]', 'at least one of the last three'),
        ({'device': 'fpga', 'projekt': 'p'}, 'reserved[0].projekt', 'project'),
        ({'project': 'p'}, 'reserved[0].device', 'a value'),
        (
            {'device': 'fpga', 'ahead_of_time': False},
            'reserved[0].ahead_of_time',
            'true',
        ),
        (
            {'device': 'fpga', 'function': 'a b'},
            'reserved[0].function',
            'name',
        ),
    ],
)
def test_a_wrong_reservation(here, item, field, expected):
    with pytest.raises(exception.InvalidRequest) as caught:
        here.apply(reserved=[item])
    assert caught.value.kwargs['field'] == field
    assert expected in caught.value.kwargs['expected']


def test_what_a_plug_reads_once(here, monkeypatch):
    """It reads neither for each VAN nor for each region that it ranks."""
    here.apply(
        reserved=[{'device': 'none', 'project': PROJECT}],
        pools=[{'function': 'aes'}],
    )
    journal, read = os_acc._host.journal, []
    for name in ('desired', 'pools'):
        call = getattr(journal, name)
        monkeypatch.setattr(
            journal, name, lambda n=name, c=call: (read.append(n), c())[1]
        )
    os_acc.plug(instance(PROJECT), [applied.fake_request(None)])
    assert sorted(read) == ['desired', 'desired', 'pools']
    read.clear()
    requests = [applied.fake_request('aes') for _ in range(3)]
    os_acc.plug(instance(PROJECT), requests)
    # Once for the whole call, for the choice of a device for each, before a
    # device is programmed, and when that begins.
    assert read.count('desired') <= 2 + 2 * len(requests)
    assert read.count('pools') == len(requests)
