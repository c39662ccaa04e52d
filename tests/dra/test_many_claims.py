# SPDX-License-Identifier: Apache-2.0

"""200 claims at once, as when a node comes back with all of its Pods."""

from __future__ import annotations

import concurrent.futures
import re
import threading

from node_parts import DRIVER
from node_parts import NAME
from node_parts import PAIR
import pytest

import os_acc
from os_acc import exception
from os_acc_dra import claims
from os_acc_dra import node as node_module
from os_acc_dra import offers
from os_acc_dra import shared
from os_acc_dra import workers

COUNT = 200
#: What an answer says if the kubelet is to ask again; '' is success.
AGAIN = '^$| goes on: |: nobody waits for it any more|: Waited '


def ask(node, method, wanted):
    """Ask for all claims in each call until all are done, as the kubelet does.

    A call that is not answered within 45 s is an error here. A claim may fail
    if its turn comes between two calls, and if this machine is so busy that a
    wait of os-acc ends.
    """
    node.calls.timeout = 20.0
    left = {each['metadata']['uid']: each for each in wanted}
    while left:
        answers = node.kubelet.call(method, list(left.values()))
        for uid, answer in answers.items():
            assert re.search(AGAIN, answer.error)
            if not answer.error:
                del left[uid]


@pytest.mark.timeout(1200)
def test_200_claims_at_once(node, monkeypatch):
    """Each is answered in time, and gets its own device."""
    addresses = [
        f'0000:{16 + number // 8:02x}:{number % 8:02x}.0'
        for number in range(COUNT)
    ]
    for each in addresses:
        node.kernel.add_function(each, '10de:1eb8', 0x030200)
    made = [
        node.claim(f'claim-{number}', offers.name_of(f'pci/{each}'))
        for number, each in enumerate(addresses)
    ]
    plugs, looks = [], []
    node.during.append(lambda: plugs.append(1))
    get_devices = os_acc.get_devices
    monkeypatch.setattr(
        os_acc, 'get_devices', lambda: looks.append(1) or get_devices()
    )
    ask(node, 'NodePrepareResources', made)
    assert {
        van.instance_uuid: van.handle.identity for van in os_acc.get_vans()
    } == {
        claim['metadata']['uid']: f'pci/{address}'
        for claim, address in zip(made, addresses, strict=True)
    }
    # They share their looks at the devices.
    assert len(looks) < len(plugs) / 2
    ask(node, 'NodeUnprepareResources', made)
    assert len(os_acc.get_vans()) == 0
    assert node.specs() == set()


class Look:
    """A look that takes until the test lets it go on; it counts."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.times = 0

    def __call__(self):
        self.times += 1
        self.begun.set()
        assert self.go_on.wait(60)
        return self.times


def test_a_look_that_is_shared_is_never_older_than_the_call():
    look = Look()
    once = shared.Shared(look)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = pool.submit(once)
        assert look.begun.wait(60)
        later = [pool.submit(once) for _ in range(4)]
        look.go_on.set()
        assert first.result(60) == 1
        assert all(each.result(60) > 1 for each in later)


def test_a_look_that_fails():
    """All who share it are told, and the next call looks again."""
    answers = iter((ValueError('no devices'), 'devices'))

    def look():
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    once = shared.Shared(look)
    with pytest.raises(ValueError, match='no devices'):
        once()
    assert once() == 'devices'


def test_a_claim_that_waits_for_its_turn(node):
    """One claim at a time, and the second one says what it waits for."""
    alone = node_module.Node(
        node.cluster, DRIVER, NAME, node.described, node.locks, most=1
    )
    first, second = (
        node.claim(f'claim-{number}', offers.name_of(f'pci/{each}'))
        for number, each in enumerate(PAIR)
    )
    look, said = Look(), threading.Event()
    node.during.append(look)

    def prepare(claim, tell=lambda text: None):
        worker = workers.Worker('prepare', lambda each: None, None, '')
        worker.join(lambda: True)
        worker.say = tell
        wanted = claims.Reference(
            'default', claim['metadata']['name'], claim['metadata']['uid']
        )
        return alone.prepare(wanted, worker)

    def heard(text):
        if 'many other claims come first' in text:
            said.set()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        done = [pool.submit(prepare, first)]
        assert look.begun.wait(60)
        done.append(pool.submit(prepare, second, heard))
        assert said.wait(60)
        assert look.times == 1
        look.go_on.set()
        # Both are of one IOMMU group, so only one claim can have them.
        done[0].result(60)
        with pytest.raises(exception.PlugException):
            done[1].result(60)
