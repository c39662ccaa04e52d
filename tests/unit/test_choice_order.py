# SPDX-License-Identifier: Apache-2.0

"""Which device a request with a function gets, and what a dry run says."""

from __future__ import annotations

import contextlib
import json
import tempfile
import uuid

import hypothesis
from hypothesis import strategies
import pytest

import os_acc
from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc.journal import desired
from os_acc.kinds.fake.driver import driver as fake_driver
from os_acc.kinds.fake.driver import hardware as fake_hardware
from os_acc.operations import preview

CLASS = 'CUSTOM_FAKE_PCI'
FUNCTIONS = ('aes', 'sha', 'gzip')


def furnish(state, devices, holds=(), pools=()):
    """A host with fake devices.

    :param holds: (name of the device or region, function) pairs
    """
    fake_driver.FakeDriver.load('fake')
    for name, value in {
        'devices': devices,
        'hardware_path': f'{state}/hardware',
        'discover': True,
    }.items():
        os_acc.CONF.set_override(name, value, 'os_acc_fake')
    for name, value in {
        'plugin': 'noop',
        'state_path': f'{state}/state',
        'lock_path': f'{state}/locks',
        'max_workers': 1,
    }.items():
        os_acc.CONF.set_override(name, value, 'os_acc')
    os_acc.initialize(reset=True)
    hardware = fake_hardware.Hardware(f'{state}/hardware')
    for name, function in holds:
        hardware.program(name, function)
    document = {'version': 1, 'pools': [{'function': f} for f in pools]}
    os_acc._host.journal.save_desired(desired.Desired(json.dumps(document)))


def wanted(function):
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), resource_class=CLASS, function_id=function
    )


def plug(*functions):
    instance = objects.InstanceInfo(uuid=str(uuid.uuid4()))
    return instance, os_acc.plug(instance, [wanted(f) for f in functions])


def test_the_order_of_choice(clean, tmp_path):
    """It holds the function, is empty, is not kept, is kept."""
    furnish(
        tmp_path,
        [f'fpga{number}:pci:1:single' for number in range(4)],
        [('fpga0', 'sha'), ('fpga1', 'gzip'), ('fpga3', 'aes')],
        pools=['sha'],
    )
    chosen = [plug('aes')[1][0].device for _ in range(4)]
    assert chosen == ['fpga3', 'fpga2', 'fpga1', 'fpga0']
    with pytest.raises(exception.PlugException):
        plug('aes')


def test_a_request_without_function_leaves_what_a_pool_keeps(clean, tmp_path):
    furnish(
        tmp_path,
        ['fpga:pci:3:dynamic'],
        [('fpga.0', 'sha'), ('fpga.1', 'gzip')],
        pools=['sha', 'gzip'],
    )
    (van,) = plug(None)[1]
    assert van.driver_data['region'] == '2'


def test_what_a_pool_clears(clean, tmp_path):
    furnish(tmp_path, ['fpga:pci:2:dynamic'])
    document = {
        'version': 1,
        'pools': [
            {'function': 'aes', 'after': 'clear'},
            {'function': 'sha', 'after': 'keep'},
        ],
    }
    os_acc._host.journal.save_desired(desired.Desired(json.dumps(document)))
    for function, left in (('aes', ''), ('sha', 'sha')):
        instance, (van,) = plug(function)
        os_acc.unplug(instance)
        name = f'fpga.{van.driver_data["region"]}'
        hardware = fake_hardware.Hardware(f'{tmp_path}/hardware')
        assert hardware.function_of(name) == left


hosts = strategies.lists(
    strategies.tuples(
        strategies.sampled_from(['none', 'single', 'dynamic']),
        strategies.integers(1, 3),
        strategies.lists(
            strategies.sampled_from(['', *FUNCTIONS]), min_size=3, max_size=3
        ),
    ),
    min_size=1,
    max_size=4,
)
calls = strategies.lists(
    strategies.lists(
        strategies.sampled_from([None, *FUNCTIONS]), min_size=1, max_size=3
    ),
    min_size=1,
    max_size=6,
)


@hypothesis.settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(
    hosts=hosts,
    calls=calls,
    pools=strategies.sets(strategies.sampled_from(FUNCTIONS)),
    ends=strategies.data(),
)
def test_a_dry_run_names_the_device_that_is_chosen(
    clean, hosts, calls, pools, ends
):
    """On any host: the plug, and the dry run before it, agree."""
    devices, holds = [], []
    for number, (programming, count, functions) in enumerate(hosts):
        devices.append(f'd{number}:pci:{count}:{programming}')
        names = {
            'none': [],
            'single': [f'd{number}'],
            'dynamic': [f'd{number}.{region}' for region in range(count)],
        }[programming]
        holds += [
            (name, function)
            for name, function in zip(names, functions, strict=False)
            if function
        ]
    plugged = []
    with tempfile.TemporaryDirectory() as state:
        furnish(state, devices, holds, sorted(pools))
        for call in calls:
            if plugged and ends.draw(strategies.booleans()):
                os_acc.unplug(plugged.pop())
            instance = objects.InstanceInfo(uuid=str(uuid.uuid4()))
            requests = [wanted(function) for function in call]
            with contextlib.closing(
                host_module.Host.open(os_acc.CONF, read_only=True)
            ) as opened:
                planned = preview.plug(opened, instance, requests)
            said = [each.devices[:1] for each in planned]
            try:
                vans = os_acc.plug(instance, requests)
            except exception.PlugException:
                assert [] in said, planned
            else:
                plugged.append(instance)
                assert said == [[van.device] for van in vans]
