# SPDX-License-Identifier: Apache-2.0

"""Claims are prepared and unprepared, as the kubelet asks for it."""

from __future__ import annotations

import concurrent.futures
import threading
import uuid

from node_parts import GPU
from node_parts import NAME
from node_parts import PAIR
import pytest
import stand_in_kubelet

import os_acc
from os_acc import objects
from os_acc import progress as progress_module
from os_acc_dra import messages
from os_acc_dra import node as node_module
from os_acc_dra import offers

KIND = 'os-acc.openstack.org/accelerator'
ONE = offers.name_of(f'pci/{GPU}')
TWO = offers.name_of(f'pci/{PAIR[0]}')
PrepareFailed = stand_in_kubelet.PrepareFailed


def uid_of(claim):
    return claim['metadata']['uid']


def identities(uid=None):
    return {van.handle.identity for van in os_acc.get_vans(uid)}


def accelerators(ids):
    """The VANs whose devices have these names of CDI."""
    pairs = (each.partition('=') for each in ids)
    return {name for kind, _, name in pairs if kind == KIND}


def test_a_claim_gets_exactly_its_device(node):
    claim = node.claim('one', ONE)
    (answer,) = node.kubelet.call('NodePrepareResources', [claim]).values()
    (device,) = answer.devices
    (van,) = os_acc.get_vans(uid_of(claim))
    assert van.handle.identity == f'pci/{GPU}'
    assert list(device.request_names) == ['acc0']
    assert (device.pool_name, device.device_name) == (NAME, ONE)
    assert accelerators(device.cdi_device_ids) == {van.uuid}
    assert node.specs() == {van.uuid}
    node.kubelet.unprepare(claim)
    assert len(os_acc.get_vans()) == 0
    assert node.specs() == set()


def test_a_claim_with_two_devices_and_a_subrequest(node):
    claim = node.claim('both', ONE, TWO)
    results = claim['status']['allocation']['devices']['results']
    results[1]['request'] = 'acc1/fast'
    claim = node.server.put(
        '/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/both',
        claim,
    )
    (answer,) = node.kubelet.call('NodePrepareResources', [claim]).values()
    assert [list(each.request_names) for each in answer.devices] == [
        ['acc0'],
        ['acc1'],
    ]
    assert identities() == {f'pci/{GPU}', f'pci/{PAIR[0]}'}


def test_a_repeated_prepare_gives_the_same(node):
    claim = node.claim('one', ONE)
    first = node.kubelet.prepare(claim)
    node.kubelet.prepared.clear()
    assert node.kubelet.prepare(claim) == first
    assert len(os_acc.get_vans()) == 1


def test_a_repeated_prepare_needs_no_discovery(node, monkeypatch):
    claim = node.claim('one', ONE)
    first = node.kubelet.prepare(claim)
    monkeypatch.setattr(os_acc, 'get_devices', None)
    node.kubelet.prepared.clear()
    assert node.kubelet.prepare(claim) == first


def test_a_repeated_prepare_writes_a_spec_that_is_gone(node):
    claim = node.claim('one', ONE)
    first = node.kubelet.prepare(claim)
    for path in (node.kernel.root / 'run/cdi').iterdir():
        path.unlink()
    node.kubelet.prepared.clear()
    assert node.kubelet.prepare(claim) == first
    assert node.specs() == accelerators(first)


def test_the_start_writes_specs_that_are_gone(node):
    claim = node.claim('one', ONE)
    first = node.kubelet.prepare(claim)
    for path in (node.kernel.root / 'run/cdi').iterdir():
        path.unlink()
    assert node_module.restore(node.described, node.locks) == []
    assert node.specs() == accelerators(first)


def test_the_start_leaves_what_others_have(node, monkeypatch):
    """A container of another caller of os-acc may not run now."""
    node.kubelet.prepare(node.claim('one', ONE))
    for path in (node.kernel.root / 'run/cdi').iterdir():
        path.unlink()
    monkeypatch.setattr('os_acc_dra.OWNER', 'another')
    assert node_module.restore(node.described, node.locks) == []
    assert node.specs() == set()


def test_the_start_leaves_what_another_process_works_on(node):
    """Another Pod of the driver, during a rolling update."""
    claim = node.claim('one', ONE)
    first = node.kubelet.prepare(claim)
    for path in (node.kernel.root / 'run/cdi').iterdir():
        path.unlink()
    with node.locks.instance(uid_of(claim)):
        assert node_module.restore(node.described, node.locks) == []
        assert node.specs() == set()
    assert node_module.restore(node.described, node.locks) == []
    assert node.specs() == accelerators(first)


def test_a_claim_that_another_process_works_on(node):
    """Prepare and Unprepare wait for it, and say so."""
    claim = node.claim('one', ONE)
    with node.locks.instance(uid_of(claim)):
        for call in (node.kubelet.prepare, node.kubelet.unprepare):
            while 'waits for another process' not in refused(
                node, call, claim
            ):
                pass
    node.calls.timeout = 40.0
    node.kubelet.unprepare(claim)
    assert len(os_acc.get_vans()) == 0


def test_a_claim_that_cannot_be_restored_stops_no_other(node):
    claims = [node.claim('one', ONE), node.claim('two', TWO)]
    ids = node.kubelet.prepare(*claims)
    node.kernel.remove_function(GPU)
    for path in (node.kernel.root / 'run/cdi').iterdir():
        path.unlink()
    (failed,) = node_module.restore(node.described, node.locks)
    assert uid_of(claims[0]) in failed
    assert node.specs() == accelerators(ids[2:])


def test_each_claim_of_a_call_has_its_own_answer(node):
    good, bad = node.claim('good', ONE), node.claim('bad', 'pci-none')
    answers = node.kubelet.call('NodePrepareResources', [good, bad])
    assert answers[uid_of(good)].error == ''
    assert len(answers[uid_of(good)].devices) == 1
    assert 'no device pci-none now' in answers[uid_of(bad)].error
    assert not answers[uid_of(bad)].devices


def test_two_claims_never_get_one_device(node):
    """As after a forced deletion: the scheduler gives it out again."""
    first, second = node.claim('first', ONE), node.claim('second', ONE)
    node.kubelet.prepare(first)
    with pytest.raises(PrepareFailed, match=uid_of(first)):
        node.kubelet.prepare(second)
    node.kubelet.unprepare(first)
    node.kubelet.prepare(second)
    assert identities(uid_of(second)) == {f'pci/{GPU}'}


def test_unprepare_of_an_unknown_claim_is_success(node):
    claim = node.claim('one', ONE)
    before = list(node.server.calls)
    node.kubelet.unprepare(claim)
    assert node.server.calls == before  # the API server is not asked


def test_unprepare_while_the_server_is_down(node):
    claim = node.claim('one', ONE)
    node.kubelet.prepare(claim)
    node.server.close()
    node.kubelet.unprepare(claim)
    assert len(os_acc.get_vans()) == 0


@pytest.mark.parametrize(
    ('status', 'said'), [(0, 'API server'), (403, '403'), (500, '500')]
)
def test_prepare_while_the_server_fails(node, status, said):
    claim = node.claim('one', ONE)
    with node.server.failing('GET', status):
        with pytest.raises(PrepareFailed, match=said):
            node.kubelet.prepare(claim)
    assert len(os_acc.get_vans()) == 0
    node.kubelet.prepare(claim)


def test_another_claim_of_the_same_name(node):
    old = node.claim('one', ONE)
    node.server.delete('/resourceclaims/')
    new = node.claim('one', ONE)
    assert uid_of(old) != uid_of(new)
    with pytest.raises(PrepareFailed, match='has the UID'):
        node.kubelet.prepare(old)


def without(claim, *names):
    return {
        **claim,
        'status': {k: v for k, v in claim['status'].items() if k not in names},
    }


@pytest.mark.parametrize(
    ('gone', 'said'),
    [
        ('allocation', 'not allocated'),
        ('reservedFor', 'not reserved for a Pod'),
    ],
)
def test_prepare_after_the_end_of_the_claim(node, gone, said):
    """A late Prepare, after the claim was unprepared and given up."""
    claim = node.claim('one', ONE)
    node.kubelet.prepare(claim)
    node.kubelet.unprepare(claim)
    node.server.put(
        '/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/one',
        without(claim, gone),
    )
    with pytest.raises(PrepareFailed, match=said):
        node.kubelet.prepare(claim)
    assert len(os_acc.get_vans()) == 0


def test_a_claim_that_the_next_pod_uses_again(node):
    claim = node.claim('one', ONE)
    for _ in range(2):
        node.kubelet.prepare(claim)
        node.kubelet.unprepare(claim)


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        ({'adminAccess': True}, 'adminAccess'),
        ({'shareID': str(uuid.uuid4())}, 'shareID'),
        ({'pool': 'node-2'}, 'pool node-2'),
        ({'driver': 'other.example.org'}, 'has no device of'),
    ],
)
def test_what_is_not_offered_is_refused(node, change, said):
    claim = node.claim('one', ONE)
    claim['status']['allocation']['devices']['results'][0].update(change)
    node.server.put(
        '/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/one',
        claim,
    )
    with pytest.raises(PrepareFailed, match=said):
        node.kubelet.prepare(claim)


def test_devices_of_other_drivers_are_left_to_them(node):
    claim = node.claim('one', ONE, 'other-0')
    results = claim['status']['allocation']['devices']['results']
    results[1]['driver'] = 'other.example.org'
    node.server.put(
        '/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/one',
        claim,
    )
    assert len(accelerators(node.kubelet.prepare(claim))) == 1


def test_what_an_earlier_call_has_left_in_part(node):
    claim = node.claim('both', ONE, TWO)
    ids = node.kubelet.prepare(claim)
    instance = objects.InstanceInfo(uuid=uid_of(claim))
    os_acc.unplug(instance, [os_acc.get_vans()[0]])
    node.kubelet.prepared.clear()
    assert node.kubelet.prepare(claim) == ids
    assert len(node.specs()) == 2


# --- work that takes longer than the kubelet waits


class Slow:
    """A plug that takes until the test lets it go on."""

    def __init__(self, node):
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.times = 0
        node.during.append(self)

    def __call__(self):
        self.times += 1
        self.begun.set()
        assert self.go_on.wait(60)


def refused(node, call, claim, begun=None):
    """What a call says that is answered before its work is done.

    :param begun: an Event; the call is repeated until it is set
    """
    node.calls.timeout = 0.01
    while True:
        with pytest.raises(PrepareFailed) as caught:
            call(claim)
        if begun is None or begun.is_set():
            node.calls.timeout = 100.0
            return str(caught.value)


def test_the_answer_comes_in_time_and_says_what_goes_on(node):
    claim, slow = node.claim('one', ONE), Slow(node)
    refused(node, node.kubelet.prepare, claim, slow.begun)
    said = refused(node, node.kubelet.prepare, claim)
    assert said.startswith('prepare goes on: looks for the devices, ')
    # The next call joins the same worker.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        second = pool.submit(node.kubelet.prepare, claim)
        slow.go_on.set()
        assert len(accelerators(second.result(60))) == 1
    assert slow.times == 1


def test_the_answer_says_what_os_acc_does(node, monkeypatch):
    """The step, and how far it is, of the device by its name."""
    claim = node.claim('one', ONE)
    told, go_on = threading.Event(), threading.Event()
    plug = os_acc.plug

    def slow(instance, requests, progress=None, **kwargs):
        (request,) = requests
        progress(
            progress_module.Progress(
                instance.uuid,
                request.uuid,
                'prepareVAN',
                progress_module.RUNNING,
                0.7,
                'programming aes-256',
            )
        )
        told.set()
        assert go_on.wait(60)
        return plug(instance, requests, progress=progress, **kwargs)

    monkeypatch.setattr(os_acc, 'plug', slow)
    refused(node, node.kubelet.prepare, claim, told)
    said = refused(node, node.kubelet.prepare, claim)
    assert f'{ONE}: prepareVAN: running: programming aes-256: 70%' in said
    go_on.set()
    node.kubelet.prepare(claim)


def test_an_unprepare_waits_for_the_prepare_before_it(node):
    claim, slow = node.claim('one', ONE), Slow(node)
    refused(node, node.kubelet.prepare, claim, slow.begun)
    said = refused(node, node.kubelet.unprepare, claim)
    assert 'waits for the end of prepare (looks for the devices' in said
    slow.go_on.set()
    node.kubelet.unprepare(claim)
    assert len(os_acc.get_vans()) == 0
    assert node.specs() == set()


class SlowServer:
    """An API server that gives a claim only when the test lets it."""

    def __init__(self, node, monkeypatch):
        self.reading, self.go_on = threading.Event(), threading.Event()
        self._read = node.cluster.claim
        monkeypatch.setattr(node.cluster, 'claim', self)

    def __call__(self, *args):
        found = self._read(*args)
        self.reading.set()
        assert self.go_on.wait(60)
        return found


def test_a_prepare_that_was_overtaken_takes_nothing(node, monkeypatch):
    """Unprepare comes while Prepare still reads the claim."""
    claim, slow = node.claim('one', ONE), Slow(node)
    server = SlowServer(node, monkeypatch)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        prepare = pool.submit(node.kubelet.prepare, claim)
        assert server.reading.wait(60)
        unprepare = pool.submit(node.kubelet.unprepare, claim)
        assert wait_for(lambda: any_thread('unprepare'))
        server.go_on.set()
        with pytest.raises(PrepareFailed, match='was unprepared meanwhile'):
            prepare.result(60)
        unprepare.result(60)
    assert slow.times == 0
    assert len(os_acc.get_vans()) == 0


def test_a_prepare_that_nobody_waits_for_takes_nothing(node, monkeypatch):
    """The kubelet has given up before anything was touched."""
    claim, slow = node.claim('one', ONE), Slow(node)
    server = SlowServer(node, monkeypatch)
    said = refused(node, node.kubelet.prepare, claim, server.reading)
    assert said.startswith('prepare goes on: reads the claim, ')
    server.go_on.set()
    assert wait_for(lambda: not any_thread('prepare'))
    assert slow.times == 0
    # What failed is told if the next try is slow, too.
    server.go_on.clear()
    server.reading.clear()
    said = refused(node, node.kubelet.prepare, claim, server.reading)
    assert '; previous attempt: prepare: nobody waits for it any more' in said
    server.go_on.set()
    slow.go_on.set()
    assert wait_for(lambda: not any_thread('prepare'))
    node.kubelet.prepare(claim)


def any_thread(kind):
    return any(t.name.startswith(f'{kind} ') for t in threading.enumerate())


def wait_for(condition, seconds=30):
    step = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return True
        step.wait(0.02)
    return False


def test_many_claims_at_once(node):
    """Each in a call of its own: one of them gets the device."""
    claims = [node.claim(f'claim-{number}', ONE) for number in range(20)]

    def ask(claim):
        (answer,) = node.kubelet.call('NodePrepareResources', [claim]).values()
        return not answer.error

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        got = list(pool.map(ask, claims))
    assert got.count(True) == 1
    (van,) = os_acc.get_vans()
    assert van.instance_uuid == uid_of(claims[got.index(True)])


class Context:
    """What gRPC tells of a call."""

    def __init__(self, left, active=lambda: True):
        self._left, self.is_active = left, active

    def time_remaining(self):
        return self._left


def asked_for(claim):
    wanted = messages.DRA['Claim'](
        namespace='default', name='one', uid=uid_of(claim)
    )
    return messages.DRA['NodePrepareResourcesRequest'](claims=[wanted])


def test_a_process_that_may_have_no_more_threads(node, monkeypatch):
    """The claim fails, and the next call begins anew."""
    one, two = node.claim('one', ONE), node.claim('two', TWO)
    start, refused = threading.Thread.start, [f'prepare {uid_of(one)}']

    def limited(thread):
        if thread.name in refused:
            refused.remove(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, 'start', limited)
    answers = node.kubelet.call('NodePrepareResources', [one, two])
    assert "can't start new thread" in answers[uid_of(one)].error
    assert not answers[uid_of(two)].error
    assert identities() == {f'pci/{PAIR[0]}'}
    node.kubelet.prepare(one)
    assert identities() == {f'pci/{GPU}', f'pci/{PAIR[0]}'}


def test_a_call_that_the_kubelet_has_given_up_ends(node):
    """Its thread is free at once, and the end of the driver is not late."""
    claim, slow = node.claim('one', ONE), Slow(node)
    node.calls.timeout = 3600.0
    context = Context(None, lambda: not slow.begun.is_set())
    answer = node.calls.prepare(asked_for(claim), context)
    assert 'goes on' in answer.claims[uid_of(claim)].error
    slow.go_on.set()


def test_a_short_deadline_of_the_caller_counts(node):
    """The driver answers before it, although its own timeout is 40 s."""
    claim, slow = node.claim('one', ONE), Slow(node)
    asked = asked_for(claim)
    answer = node.calls.prepare(asked, Context(0.5))
    assert 'goes on' in answer.claims[uid_of(claim)].error
    slow.go_on.set()
    answer = node.calls.prepare(asked, Context(None))
    assert answer.claims[uid_of(claim)].error == ''
