# SPDX-License-Identifier: Apache-2.0

"""Pods, guests and jobs take and give devices of one host, at random.

Pods come by the driver's service, guests by the plugin noop, and jobs ask for
any device of a class, as os-acc run does. A model says who must get what.

OS_ACC_EXAMPLES makes so many times as many operations. OS_ACC_SEED chooses
others. A run that fails prints its last operations.
"""

from __future__ import annotations

import concurrent.futures
import os
import random
import sys
import uuid

import examples
from node_parts import DRIVER
from node_parts import GPU
from node_parts import NAME
from node_parts import PAIR
from node_parts import VFS
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc_dra import messages
from os_acc_dra import node as node_module
from os_acc_dra import offers
from os_acc_dra import service
from os_acc_dra import workers

SEED = int(os.environ.get('OS_ACC_SEED', '33'))
OPERATIONS = examples.costly(60)
GPUS = {f'pci/{each}' for each in (GPU, *PAIR)}
#: What guests and Pods ask for; a VF is made for its first user.
DEVICES = sorted({*GPUS, *(f'pci/{each}' for each in VFS[:2])})
GROUP = {f'pci/{each}' for each in PAIR}
CLASS = 'PGPU'


class Claims:
    """The API server, as far as a Prepare asks it."""

    def __init__(self):
        self.there = {}

    def claim(self, namespace, name):
        return self.there[name]

    def add(self, uid, devices):
        self.there[uid] = {
            'metadata': {'uid': uid, 'name': uid, 'namespace': 'default'},
            'status': {
                'reservedFor': [{'resource': 'pods', 'name': 'pod'}],
                'allocation': {
                    'devices': {
                        'results': [
                            {
                                'request': f'acc{number}',
                                'driver': DRIVER,
                                'pool': NAME,
                                'device': offers.name_of(each),
                            }
                            for number, each in enumerate(devices)
                        ]
                    }
                },
            },
        }


class Context:
    """A call of the kubelet without a deadline."""

    def time_remaining(self):
        return None

    def is_active(self):
        return True


class Host:
    """The host and its model.

    :ivar has: of each user the devices that it has, in the model
    :ivar kinds: of each user 'pod', 'guest' or 'job'
    """

    def __init__(self, node):
        self._node, self._claims = node, Claims()
        self._calls = service.Calls(
            node_module.Node(
                self._claims, DRIVER, NAME, node.described, node.locks, 32
            ),
            workers.Workers(),
            600.0,
        )
        self.has, self.kinds = {}, {}

    def is_free(self, devices, user):
        """Whether nobody else has one of the devices, or of its group."""
        taken = {
            each
            for other, found in self.has.items()
            if other != user
            for each in found
        }
        if taken & GROUP:
            taken |= GROUP
        return not taken & set(devices)

    # --- what users do; each says whether it got what it wanted

    def take(self, kind, user, devices):
        return getattr(self, f'_{kind}')(user, devices)

    def _pod(self, user, devices):
        self._claims.add(user, devices)
        return self._call('prepare', 'NodePrepareResources', user)

    def _guest(self, user, devices):
        requests = [
            objects.AcceleratorRequest(
                uuid=str(uuid.uuid5(uuid.UUID(user), each)),
                handle=objects.PCIHandle(address=each.removeprefix('pci/')),
            )
            for each in devices
        ]
        return self._plug(user, requests, 'noop')

    def _job(self, user, devices):
        request = objects.AcceleratorRequest(
            uuid=str(uuid.uuid5(uuid.UUID(user), CLASS)), resource_class=CLASS
        )
        return self._plug(user, [request], 'cdi')

    def _plug(self, user, requests, plugin):
        try:
            os_acc.plug(
                objects.InstanceInfo(uuid=user), requests, plugin=plugin
            )
        except exception.ExceptionBase:
            return False
        return True

    def give(self, user):
        if self.kinds.get(user) in ('guest', 'job'):
            os_acc.unplug(objects.InstanceInfo(uuid=user))
            return True
        return self._call('unprepare', 'NodeUnprepareResources', user)

    def _call(self, method, message, user):
        claim = messages.DRA['Claim'](namespace='default', name=user, uid=user)
        request = messages.DRA[f'{message}Request'](claims=[claim])
        answer = getattr(self._calls, method)(request, Context())
        return not answer.claims[user].error

    def restart(self):
        """The driver starts again, and the directory of CDI was emptied."""
        directory = self._node.kernel.root / 'run/cdi'
        for path in directory.iterdir() if directory.exists() else ():
            path.unlink()
        os_acc.recover()
        # The specs of jobs are theirs to repair; here the owner is the same.
        assert not node_module.restore(self._node.described, self._node.locks)

    # --- whether the host is as the model

    def check(self):
        found, specs = {}, set()
        for van in os_acc.get_vans():
            found.setdefault(van.instance_uuid, []).append(van.handle.identity)
            assert van.state == 'plugged'
            if self.kinds[van.instance_uuid] != 'guest':
                specs.add(van.uuid)
        given = [each for devices in found.values() for each in devices]
        assert len(set(given)) == len(given)
        assert {user: sorted(each) for user, each in found.items()} == {
            user: sorted(each) for user, each in self.has.items()
        }
        assert self._node.specs() == specs


class Randomly:
    """Operations on a host.

    :ivar done: what was done, the last one at the end
    """

    def __init__(self, host, seed):
        self._host, self._random = host, random.Random(seed)
        self.done = []

    def step(self):
        kinds = (self.new, self.again, self.give, self.race, self.restart)
        (do,) = self._random.choices(kinds, (40, 15, 35, 8, 2))
        do()

    def _user(self):
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _wish(self):
        """A new user, and what it wants."""
        user = self._user()
        kind = self._random.choice(('pod', 'pod', 'guest', 'job'))
        number = self._random.choice((1, 1, 2))
        devices = self._random.sample(DEVICES, number)
        if kind == 'job':
            devices = []
        return kind, user, devices

    def _say(self, *what):
        self.done.append(what)

    def new(self):
        kind, user, devices = self._wish()
        self._say('new', kind, user, devices)
        host = self._host
        got = host.take(kind, user, devices)
        if kind == 'job':
            assert got == any(host.is_free([each], user) for each in GPUS)
        else:
            assert got == host.is_free(devices, user)
        self._note(kind, user, devices, got)

    def _note(self, kind, user, devices, got):
        self._host.kinds[user] = kind
        if not got:
            return
        if kind == 'job':  # os-acc has chosen
            (van,) = os_acc.get_vans(user)
            devices = [van.handle.identity]
            assert self._host.is_free(devices, user)
        self._host.has[user] = devices

    def again(self):
        """A user asks again for what it has."""
        if not self._host.has:
            return
        user = self._random.choice(sorted(self._host.has))
        self._say('again', user)
        assert self._host.take(
            self._host.kinds[user], user, self._host.has[user]
        )

    def give(self):
        """A user gives its devices back; one that has none may, too."""
        there = [*sorted(self._host.has), self._user()]
        user = self._random.choice(there)
        self._say('give', user)
        assert self._host.give(user)
        self._host.has.pop(user, None)

    def race(self):
        """A Pod and a guest want one device at the same time."""
        device = self._random.choice(DEVICES)
        both = [(kind, self._user()) for kind in ('pod', 'guest')]
        self._say('race', both, device)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            got = list(
                pool.map(lambda each: self._host.take(*each, [device]), both)
            )
        assert got.count(True) == self._host.is_free([device], '')
        for (kind, user), has in zip(both, got, strict=True):
            self._note(kind, user, [device], has)

    def restart(self):
        self._say('restart')
        self._host.restart()


@pytest.mark.timeout(60 + 10 * OPERATIONS)
def test_a_host_as_its_model(node):
    host = Host(node)
    randomly = Randomly(host, SEED)
    for number in range(OPERATIONS):
        try:
            randomly.step()
            host.check()
        except BaseException:
            sys.stderr.write(
                f'OS_ACC_SEED={SEED}, {number} operations before: '
                f'{randomly.done[-20:]}\n'
            )
            raise
        if number % 100 == 99:
            sys.stderr.write(f'{number + 1} operations, OS_ACC_SEED={SEED}\n')
    for user in list(host.has):
        assert host.give(user)
    host.has.clear()
    host.check()
