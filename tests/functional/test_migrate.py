# SPDX-License-Identifier: Apache-2.0

"""os-acc migrate between two libvirtd, with guests that QEMU emulates."""

from __future__ import annotations

from collections.abc import Iterator
import json

import libvirt_hosts
import pytest

pytestmark = pytest.mark.no_cover


@pytest.fixture(scope='module')
def hosts(tmp_path_factory) -> Iterator[libvirt_hosts.Hosts]:
    made = libvirt_hosts.Hosts(tmp_path_factory.mktemp('hosts'))
    yield made
    made.close()


@pytest.fixture
def name(request) -> str:
    return f'guest-{abs(hash(request.node.name)) % 10**8}'


def move(hosts, instance, *arguments, code=0):
    done = hosts.source.os_acc(
        'migrate',
        instance,
        *hosts.target.destination(),
        *arguments,
        code=code,
    )
    return done


@pytest.mark.parametrize('way', ['replug', 'cold'])
def test_a_running_guest(hosts, name, way):
    instance = hosts.guest(name)
    done = move(hosts, instance, '--way', way, '--json')
    answer = json.loads(done.stdout)
    assert answer['left'] == []
    assert answer['way'] == way
    print([(s['step'], s['seconds']) for s in answer['steps']])
    assert hosts.source.state(name) is None
    assert hosts.target.state(name) == 'running'
    assert hosts.source.states() == []
    assert hosts.target.states() == ['plugged'] * 2
    assert (hosts.source.in_use(), hosts.target.in_use()) == (0, 2)
    hosts.remove(name, instance)
