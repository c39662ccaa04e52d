# SPDX-License-Identifier: Apache-2.0

"""What a faulty driver gets wrong is told with its name; the rest works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import command
import pytest

import os_acc
from os_acc import exception
from os_acc import finding
from os_acc import objects
from os_acc.operations import discovery
from os_acc.privileged import context
from os_acc.privileged import offers


def device(**fields: Any) -> objects.Device:
    """A device of driver 'odd', with other fields; None leaves one out."""
    values = {
        'address': 'dev1',
        'driver': 'odd',
        'vendor_id': '10de',
        'product_id': '1EB8',
        'handles_total': 2,
        'handles_free': 1,
        **fields,
    }
    return objects.Device(**{k: v for k, v in values.items() if v is not None})


@pytest.fixture
def odd(host) -> Callable[[Any], None]:
    """Load a driver 'odd' whose get_devices() does what it is given."""

    def load(devices: Any, types: Any = ()) -> Any:
        class Odd(type(host.driver)):
            handle_types = types

            def get_devices(self) -> Any:
                return devices() if callable(devices) else devices

        host.drivers['odd'] = Odd.load('odd')
        host.drivers['odd'].calls = host.calls
        host.restart()
        return host.drivers['odd']

    return load


def fail():
    raise OSError('no bus')


def fail_after_one():
    yield device()
    raise OSError('no bus')


def fail_with_devices():
    raise exception.DiscoveryFailed([device()], errors='chip 7 is dead')


@pytest.mark.parametrize(
    ('given', 'text'),
    [
        (device(handles_total=None), 'device dev1: handles_total is not set'),
        (device(handles_free=None), 'device dev1: handles_free is not set'),
        (
            device(address=None),
            'device 0 of get_devices(): address is not set',
        ),
        (device(driver=None), 'device dev1: driver is not set'),
        (
            device(handles_free=3),
            'device dev1: handles_free is 3, expected at most handles_total, '
            'which is 2',
        ),
        (
            device(vendor_id='0x8086'),
            "device dev1: vendor_id is '0x8086', expected 4 hex digits",
        ),
        (
            device(product_id='57'),
            "device dev1: product_id is '57', expected 4 hex digits",
        ),
        (
            device(product_id='1eb8\n'),
            r"device dev1: product_id is '1eb8\n', expected 4 hex digits",
        ),
        (
            device(driver='other'),
            "device dev1: driver is 'other', expected 'odd'",
        ),
        ('dev1', 'get_devices() gave a str, expected objects.Device'),
        (None, 'get_devices() gave a NoneType, expected objects.Device'),
    ],
)
def test_a_faulty_device(host, odd, given, text):
    odd([given, device(address='dev2', vendor_id='', product_id='')])
    with pytest.raises(exception.DiscoveryFailed) as caught:
        os_acc.get_devices()
    assert f"driver 'odd': {text}" in str(caught.value)
    # The other devices, of this driver and of others, are reported.
    found = [d.address for d in caught.value.devices]
    assert sorted(found) == ['dev0', 'dev2']


def test_all_faults_of_a_device_are_told(host, odd):
    driver = odd([device(vendor_id='x', handles_free=9, driver='other')])
    examined = discovery.examine(driver)
    assert [fault.split(' is ')[0] for fault in examined.faults] == [
        'device dev1: vendor_id',
        'device dev1: driver',
        'device dev1: handles_free',
    ]
    assert examined.devices == []


@pytest.mark.parametrize(
    ('given', 'text', 'reported'),
    [
        (fail, 'OSError: no bus', []),
        (fail_after_one, 'OSError: no bus', []),
        (fail_with_devices, 'chip 7 is dead', ['dev1']),
        (lambda: None, "TypeError: 'NoneType' object is not iterable", []),
        (lambda: 7, "TypeError: 'int' object is not iterable", []),
    ],
)
def test_get_devices_that_fails(host, odd, given, text, reported):
    odd(given)
    with pytest.raises(exception.DiscoveryFailed) as caught:
        os_acc.get_devices()
    assert "driver 'odd': " in str(caught.value)
    assert text in str(caught.value)
    found = [d.address for d in caught.value.devices]
    assert sorted(found) == ['dev0', *reported]


def test_devices_that_are_as_the_contract_says(host, odd):
    odd(
        [
            device(handles_free=0, handles_total=0),
            device(address='dev2', handles_free=2),
        ]
    )
    found = [d.address for d in os_acc.get_devices()]
    assert sorted(found) == ['dev0', 'dev1', 'dev2']


@pytest.mark.parametrize(
    ('types', 'text'),
    [
        (('PCIHandle', 'USBHandle'), "'USBHandle' is not one"),
        (('VAN',), "'VAN' is not one"),
        (('PCIHandle', ['x']), "['x'] is not one"),
        ('PCIHandle', 'expected a tuple of names of handle classes'),
        (None, 'expected a tuple of names of handle classes'),
    ],
)
def test_wrong_handle_types(host, odd, types, text):
    odd([], types)
    info = os_acc.host_info()
    assert not info.has_driver('odd')
    assert info.has_driver('recording')
    assert info.has_plugin('recording')
    (name,) = info.load_errors
    assert name == 'driver odd'
    assert info.load_errors[name].startswith(
        f"driver 'odd': handle_types is {types!r}, expected "
    )
    assert text in info.load_errors[name]


# --- the command


@pytest.fixture
def run(host, odd, capsys, monkeypatch):
    # In place of the daemon.
    monkeypatch.setattr(context, 'whoami', lambda: (0, []))
    monkeypatch.setattr(context, 'check_users', lambda: None)
    monkeypatch.setattr(offers, 'count', lambda: 0)
    monkeypatch.setattr(context, 'check_directory', lambda: None)
    path = os_acc.CONF.os_acc.state_path
    return command.Command(path, capsys, monkeypatch)


def problems(run):
    result = run('doctor', '--problems', '-f', 'json')
    return result.code, [
        (row['subject'], row['verdict'], row['finding']) for row in result.json
    ]


def test_device_list_shows_the_other_devices(run, odd):
    odd([device(handles_free=3), device(address='dev2')])
    result = run('device', 'list', '-f', 'json')
    assert result.code == 1
    assert {row['address'] for row in result.json} == {'dev0', 'dev2'}
    assert result.err.startswith(
        "DiscoveryFailed: Discovery failed: driver 'odd': device dev1: "
        'handles_free is 3, expected'
    )


def test_host_show_names_a_faulty_driver(run, odd):
    odd([], ('USBHandle',))
    rows = run.fine('host', 'show', '-f', 'json').json
    status = {row['name']: row['status'] for row in rows}
    assert status['odd'].startswith("faulty: driver 'odd': handle_types is")
    assert status['recording'].startswith('loaded')


def test_doctor_names_driver_device_field_and_value(run, odd):
    odd([device(vendor_id='0x8086')])
    assert problems(run) == (
        1,
        [
            (
                'driver odd',
                finding.ERROR,
                "device dev1: vendor_id is '0x8086', expected 4 hex digits "
                'or an empty text',
            )
        ],
    )


def test_doctor_names_wrong_handle_types(run, odd):
    odd([], ('USBHandle',))
    code, ((subject, verdict, text),) = problems(run)
    assert (code, subject, verdict) == (1, 'driver odd', finding.ERROR)
    assert "('USBHandle',)" in text


@pytest.mark.parametrize('given', [fail, lambda: None])
def test_doctor_survives_get_devices(run, odd, given):
    odd(given)
    code, ((subject, verdict, _),) = problems(run)
    assert (code, subject, verdict) == (1, 'driver odd', finding.ERROR)


@pytest.mark.parametrize(
    ('answer', 'text'),
    [
        (lambda: None, "TypeError: 'NoneType' object is not iterable"),
        (
            lambda: ['ill'],
            'TypeError: it returned a str, expected os_acc.finding',
        ),
        (fail, 'OSError: no bus'),
    ],
)
def test_doctor_survives_diagnose(run, odd, monkeypatch, answer, text):
    driver = odd([])
    monkeypatch.setattr(driver, 'diagnose', answer)
    code, ((subject, verdict, told),) = problems(run)
    assert (code, subject, verdict) == (1, 'driver odd', finding.ERROR)
    assert text in told


def test_doctor_tells_one_cause_once(run, odd, monkeypatch):
    driver = odd(fail)
    monkeypatch.setattr(driver, 'diagnose', fail)
    code, ((subject, _, text),) = problems(run)
    assert (code, subject, text) == (1, 'driver odd', 'OSError: no bus')


@pytest.mark.parametrize('answer', [fail, lambda: 7])
def test_device_show_survives_a_driver(run, odd, monkeypatch, answer):
    driver = odd([])
    monkeypatch.setattr(driver, 'show_device', lambda address: answer())
    result = run('device', 'show', 'dev0', '-f', 'json')
    assert result.code == 0
    assert result.json['address'] == 'dev0'
    assert result.err.startswith("driver 'odd': ")


# --- load()


def test_a_driver_that_load_made_says_what_to_do(host):
    driver = type(host.driver).load('alone')
    for call in (
        lambda: driver.lock('dev0'),
        lambda: driver.vans_on('dev0'),
        lambda: driver.requests_of(host.instance().uuid),
    ):
        with pytest.raises(exception.LibraryNotInitialized) as caught:
            call()
        text = str(caught.value)
        assert text.startswith("Driver 'alone' is not connected")
        assert 'Use the driver that os_acc.initialize() has loaded' in text
        assert 'call connect()' in text
