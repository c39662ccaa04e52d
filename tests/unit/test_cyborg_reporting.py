# SPDX-License-Identifier: Apache-2.0

"""The reports of one agent process, with Cyborg's API in the test."""

from __future__ import annotations

import json
import logging
import uuid

import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.cyborg import api as api_module
from os_acc.cyborg import names
from os_acc.cyborg import report
from os_acc.cyborg import reporting

HOST = 'node-1'
PF = '0000:01:00.0'
NAME = names.deployable(HOST, PF)


def device(*numbers):
    """A device whose handles are the VFs with these numbers."""
    made = objects.Device(
        address=PF,
        driver='pci',
        resource_class='CUSTOM_A',
        handles=[
            objects.DeviceHandleInfo(
                handle=objects.PCIHandle(address=f'0000:01:00.{number}')
            )
            for number in numbers
        ],
    )
    made.handles_total, made.handles_free = made.counted()
    return made


class Cyborg(api_module.API):
    """Has one deployable, and the ARQs that a test binds."""

    def __init__(self):
        self.bound = {}
        self.count = 0
        self.lists = 0
        self.up = True

    def bind(self, number, **values):
        handle = report.pci_handle(f'0000:01:00.{number}')
        self.bound[number] = {
            'uuid': str(uuid.uuid4()),
            'state': 'Bound',
            'hostname': HOST,
            'device_rp_uuid': names.provider_uuid(NAME),
            'instance_uuid': f'instance-{number}',
            'attach_handle_type': 'PCI',
            'attach_handle_info': json.loads(handle.info),
            **values,
        }

    def sees_all(self):
        if not self.up:
            raise exception.RemoteServiceError(
                service='accelerator', reason='down'
            )
        return True

    def arqs(self, instance_uuid=None):
        self.lists += 1
        return list(self.bound.values())

    def arq(self, wanted):
        self.sees_all()
        for each in self.bound.values():
            if each['uuid'] == wanted:
                return each
        return None

    def deployables(self):
        return [
            {
                'name': NAME,
                'driver_name': names.DRIVER,
                'rp_uuid': names.provider_uuid(NAME),
                'num_accelerators': self.count,
                'attributes_list': json.dumps([{'rc': 'CUSTOM_A'}]),
            }
        ][: 1 if self.count else 0]

    def devices(self):
        return [
            {
                'hostname': HOST,
                'vendor': '8086',
                'model': '4941',
                'type': 'PCI',
                'std_board_info': '{}',
                'vendor_board_info': json.dumps({'address': PF}),
            }
        ]


class Agent:
    """The agent, and the conductor that gets its reports."""

    def __init__(self, cyborg):
        self.cyborg = cyborg
        self.start()

    def start(self):
        self._reporter = reporting.Reporter(HOST, {HOST}, lambda: self.cyborg)

    def period(self, *numbers, lost=False):
        """Make a report. Returns the VFs in it, and what may be given out."""
        made = self._reporter.make([device(*numbers)], ())
        parts = [each for _, each in report.deployables(made)]
        count = sum(part.count for part in parts)
        if not lost:
            self.cyborg.count = count
        return {int(key[-1]) for part in parts for key in part.handles}, count


@pytest.fixture
def agent():
    return Agent(Cyborg())


def test_cyborg_is_asked_until_it_shows_what_was_reported(agent):
    for _ in range(6):
        assert agent.period(1, 2) == ({1, 2}, 2)
    assert agent.cyborg.lists == 3


def test_a_report_that_is_lost_is_asked_about_again(agent):
    for _ in range(3):
        agent.period(1, 2)
    # Cyborg deletes the wrong handles, so all of them are made again.
    assert agent.period(1, lost=True) == (set(), 0)
    assert agent.period(1, lost=True) == (set(), 0)
    # Cyborg can still bind what the lost report left out.
    agent.cyborg.bind(2)
    assert agent.period(1) == ({1, 2}, 2)


def test_what_is_bound_stays_until_its_arq_is_deleted(agent, caplog):
    caplog.set_level(logging.INFO)
    for _ in range(3):
        agent.period(1, 2)
    agent.cyborg.bind(2)
    for _ in range(4):
        assert agent.period(1) == ({1, 2}, 2)
    warned = [
        each for each in caplog.records if each.levelno == logging.WARNING
    ]
    (warning,) = [each.getMessage() for each in warned]
    assert 'pci/0000:01:00.2' in warning and 'instance-2' in warning
    lists = agent.cyborg.lists
    agent.period(1)
    assert agent.cyborg.lists == lists
    agent.cyborg.bound.clear()
    assert agent.period(1) == (set(), 0)
    assert agent.period(1) == ({1}, 1)
    assert 'is no longer kept for ARQ' in caplog.text


def test_what_vanished_while_the_agent_was_down(agent):
    agent.period(1, 2)
    agent.start()
    assert agent.period(1) == (set(), 0)
    assert agent.period(1) == ({1}, 1)


def test_a_restarted_agent_knows_what_is_bound(agent):
    agent.period(1, 2)
    agent.cyborg.bind(2)
    agent.start()
    assert agent.period(1) == ({1, 2}, 2)


def test_without_an_answer_nothing_is_reported(agent):
    agent.cyborg.up = False
    with pytest.raises(exception.RemoteServiceError, match='down'):
        agent.period(1, 2)
    agent.cyborg.up = True
    for _ in range(3):
        agent.period(1, 2)
    agent.cyborg.up = False
    assert agent.period(1, 2) == ({1, 2}, 2)
    with pytest.raises(exception.RemoteServiceError, match='down'):
        agent.period(1)


def test_a_bind_that_goes_on_at_the_start(agent):
    """Cyborg does not show which handle the ARQ has."""
    agent.cyborg.bind(2, state='BindStarted')
    agent.cyborg.count = 2
    with pytest.raises(exception.RemoteServiceError, match='BindStarted'):
        agent.period(1)
    assert agent.period(1, 2) == ({1, 2}, 2)


def test_the_vans_of_arqs(clean):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    info = objects.InstanceInfo(
        uuid=str(uuid.uuid4()), name='i', project_id='p'
    )
    handles = [objects.TestHandle(name=f'0000:0c:00.{n}') for n in (1, 2)]
    ours, theirs = [
        objects.AcceleratorRequest(
            uuid=str(uuid.uuid4()), handle=handle, state=state
        )
        for handle, state in zip(handles, ('Bound', None), strict=True)
    ]
    os_acc.plug(info, [ours, theirs])
    conf = os_acc.CONF.os_acc
    assert reporting.arq_vans(conf.state_path, 5.0) == {ours.uuid}
