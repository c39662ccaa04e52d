# SPDX-License-Identifier: Apache-2.0

"""The devices of claims that nobody has any more."""

from __future__ import annotations

from node_parts import DRIVER
from node_parts import GPU
from node_parts import NAME
from node_parts import PAIR
from node_parts import VFS
import pytest

import os_acc
from os_acc_dra import errors
from os_acc_dra import offers
from os_acc_dra import orphans

ONE, TWO, THREE = (
    offers.name_of(f'pci/{each}') for each in (GPU, PAIR[0], VFS[0])
)


@pytest.fixture
def claims(node):
    """Two claims that are prepared; the kubelet then loses its checkpoint."""
    made = [node.claim('one', ONE), node.claim('two', TWO)]
    node.kubelet.prepare(*made)
    return made


def release(node, age=0.0):
    return orphans.release(
        node.cluster, DRIVER, NAME, str(node.kubelet.directory), age
    )


def held():
    return {van.instance_uuid for van in os_acc.get_vans()}


def uid(claim):
    return claim['metadata']['uid']


def test_what_the_kubelet_knows_stays(node, claims):
    node.server.delete('/resourceclaims/')
    before = len(node.server.calls)
    assert release(node) == []
    assert held() == {uid(each) for each in claims}
    assert len(node.server.calls) == before  # no need to ask


def test_what_the_server_knows_stays(node, claims):
    node.kubelet.checkpoint.unlink()
    assert release(node) == []
    assert held() == {uid(each) for each in claims}


def test_what_nobody_knows_is_released(node, claims):
    node.kubelet.checkpoint.unlink()
    node.server.delete('/resourceclaims/one')
    (done,) = release(node)
    assert uid(claims[0]) in done
    assert done.endswith('released')
    assert held() == {uid(claims[1])}


def test_a_claim_that_has_another_node_now(node, claims):
    node.kubelet.checkpoint.unlink()
    claim = claims[0]
    claim['status']['allocation']['devices']['results'][0]['pool'] = 'node-2'
    node.server.put(
        '/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/one',
        claim,
    )
    release(node)
    assert held() == {uid(claims[1])}


def test_nothing_is_released_too_early(node, claims):
    node.kubelet.checkpoint.unlink()
    node.server.delete('/resourceclaims/')
    assert release(node, age=3600.0) == []
    assert len(held()) == 2


@pytest.mark.parametrize('status', [0, 403, 500])
def test_nothing_is_released_while_the_server_fails(node, claims, status):
    node.kubelet.checkpoint.unlink()
    node.server.delete('/resourceclaims/')
    with node.server.failing('GET', status):
        with pytest.raises(errors.ServerError):
            release(node)
    assert len(held()) == 2


def test_nothing_is_released_if_the_checkpoint_cannot_be_read(node, claims):
    node.kubelet.checkpoint.unlink()
    node.kubelet.checkpoint.mkdir()
    node.server.delete('/resourceclaims/')
    with pytest.raises(OSError, match='directory'):
        release(node)
    assert len(held()) == 2


def test_a_claim_that_is_prepared_during_the_search_stays(node, claims):
    node.kubelet.checkpoint.unlink()
    node.server.delete('/resourceclaims/one')
    new = node.claim('new', THREE)

    class Server:
        def claims(self):
            found = node.cluster.claims()
            node.kubelet.prepare(new)
            return found

    orphans.release(Server(), DRIVER, NAME, str(node.kubelet.directory), 0.0)
    assert uid(new) in held()


@pytest.mark.parametrize('answer', [{}, [], {'items': None}, 'text'])
def test_nothing_is_released_by_an_answer_that_is_no_list(
    node, claims, answer, monkeypatch
):
    node.kubelet.checkpoint.unlink()
    monkeypatch.setattr(
        node.cluster._objects,
        'list_cluster_custom_object',
        lambda *args, **kwargs: answer,
    )
    with pytest.raises(errors.ServerError, match='claims: API server: no li'):
        release(node)
    assert len(held()) == 2


def test_what_others_have_plugged_stays(node, claims, monkeypatch):
    """A guest of Nova, or a job of os-acc run, on the same host."""
    node.kubelet.checkpoint.unlink()
    node.server.delete('/resourceclaims/')
    monkeypatch.setattr('os_acc_dra.OWNER', 'another')
    assert release(node) == []
    assert len(held()) == 2
