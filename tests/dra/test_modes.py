# SPDX-License-Identifier: Apache-2.0

"""VFIO for KubeVirt and Kata, a claim of several Pods, claims of monitors."""

from __future__ import annotations

import json
import pathlib
import uuid

from node_parts import DRIVER
from node_parts import GPU
from node_parts import NAME
from node_parts import PAIR
import pytest
import stand_in_kubelet

import os_acc
from os_acc import objects
from os_acc_dra import claims
from os_acc_dra import metadata
from os_acc_dra import node as node_module
from os_acc_dra import offers

ONE, TWO, THREE = (
    offers.name_of(f'pci/{each}') for each in (GPU, PAIR[0], PAIR[1])
)
CLAIMS = '/apis/resource.k8s.io/v1/namespaces/default/resourceclaims'
INSIDE = '/var/run/kubernetes.io/dra-device-attributes'
BUS_ID = 'resource.kubernetes.io/pciBusID'


def edits(node, ids):
    """What the containers of a Pod get, by a reading of the CDI specs."""
    found = {}
    for path in (node.kernel.root / 'run/cdi').iterdir():
        spec = json.loads(path.read_text())
        for device in spec['devices']:
            name = f'{spec["kind"]}={device["name"]}'
            found[name] = device['containerEdits']
    return [found[each] for each in ids]


def files_of(node, ids):
    return sorted(
        each['path'].removeprefix(str(node.kernel.root))
        for made in edits(node, ids)
        for each in made.get('deviceNodes', ())
    )


def read(node, ids):
    """The metadata files by their paths in the container."""
    return {
        mount['containerPath']: json.loads(
            pathlib.Path(mount['hostPath']).read_text()
        )
        for made in edits(node, ids)
        for mount in made.get('mounts', ())
        if mount['options'] == ['ro', 'bind']
    }


def test_the_metadata_of_a_function(node):
    claim = node.claim('gpu', ONE)
    ids = node.kubelet.prepare(claim)
    ((path, body),) = read(node, ids).items()
    assert path == f'{INSIDE}/resourceclaims/gpu/acc0/{DRIVER}-metadata.json'
    assert body['apiVersion'] == 'metadata.resource.k8s.io/v1alpha1'
    assert body['kind'] == 'DeviceMetadata'
    assert body['metadata'] == {
        'name': 'gpu',
        'namespace': 'default',
        'uid': claim['metadata']['uid'],
        'generation': 1,
    }
    assert 'podClaimName' not in body
    ((request,),) = [body['requests']]
    (device,) = request['devices']
    assert request['name'] == 'acc0'
    assert (device['driver'], device['pool']) == (DRIVER, NAME)
    assert device['name'] == ONE
    assert device['attributes'][BUS_ID] == {'string': GPU}


def test_the_metadata_of_a_claim_of_a_template(node):
    claim = node.claim('vm-gpu-x7k2p', ONE)
    claim['metadata']['annotations'] = {
        'resource.kubernetes.io/pod-claim-name': 'gpu'
    }
    node.server.put(f'{CLAIMS}/vm-gpu-x7k2p', claim)
    ((path, body),) = read(node, node.kubelet.prepare(claim)).items()
    assert path == (
        f'{INSIDE}/resourceclaimtemplates/gpu/acc0/{DRIVER}-metadata.json'
    )
    assert body['podClaimName'] == 'gpu'


@pytest.mark.parametrize('name', ['../../../../../etc', 'a/b', 'A', ''])
def test_a_template_that_a_user_has_made_up(node, name):
    """The path of a mount stays in its directory."""
    claim = node.claim('one', ONE)
    claim['metadata']['annotations'] = {
        'resource.kubernetes.io/pod-claim-name': name
    }
    node.server.put(f'{CLAIMS}/one', claim)
    ((path, body),) = read(node, node.kubelet.prepare(claim)).items()
    assert path == f'{INSIDE}/resourceclaims/one/acc0/{DRIVER}-metadata.json'
    assert 'podClaimName' not in body


def test_one_file_for_each_request(node):
    claim = node.claim('both', ONE, TWO, THREE)
    results = claim['status']['allocation']['devices']['results']
    results[1]['request'] = results[2]['request'] = 'pair/first'
    claim = node.server.put(f'{CLAIMS}/both', claim)
    ids = node.kubelet.prepare(claim)
    assert len(ids) == 3 + 2
    found = {
        path.split('/')[-2]: [
            each['attributes'][BUS_ID]['string']
            for each in body['requests'][0]['devices']
        ]
        for path, body in read(node, ids).items()
    }
    assert found == {'acc0': [GPU], 'pair': list(PAIR)}


def test_the_metadata_of_a_mediated_device(tmp_path):
    handle = objects.MdevHandle(
        uuid=str(uuid.uuid4()), parent=GPU, type='nvidia-222'
    )
    claim = {
        'metadata': {
            'name': 'vgpu',
            'namespace': 'default',
            'uid': str(uuid.uuid4()),
        }
    }
    made = metadata.Metadata(str(tmp_path), str(tmp_path), DRIVER)
    result = claims.Result('gpu', NAME, 'mdev-1')
    assert made.write(claim, [(result, handle)]) == {
        'gpu': f'{DRIVER}/metadata={claim["metadata"]["uid"]}_gpu'
    }
    (path,) = tmp_path.rglob('gpu-metadata.json')
    (request,) = json.loads(path.read_text())['requests']
    (device,) = request['devices']
    assert device['attributes']['mdevUUID'] == {'string': handle.uuid}
    assert BUS_ID not in device['attributes']


def test_a_device_file_has_no_metadata(tmp_path):
    handle = objects.DeviceFileHandle(name='char-1-250')
    made = metadata.Metadata(str(tmp_path), str(tmp_path), DRIVER)
    result = claims.Result('acc', NAME, 'file-1')
    assert made.write({}, [(result, handle)]) == {}
    assert list(tmp_path.iterdir()) == []


def test_the_files_end_with_the_claim(node):
    claim, other = node.claim('one', ONE), node.claim('two', TWO)
    node.kubelet.prepare(claim, other)
    node.kubelet.unprepare(claim)
    left = [
        path
        for directory in (node.kernel.root, node.kubelet.directory)
        for path in directory.rglob('*')
        if claim['metadata']['uid'] in str(path)
    ]
    assert left == []
    node.kubelet.unprepare(other)
    assert list((node.kernel.root / 'run/cdi').iterdir()) == []


def test_the_start_writes_specs_of_the_files_again(node):
    claim, gone = node.claim('one', ONE), node.claim('two', TWO)
    ids = node.kubelet.prepare(claim)
    before = read(node, ids)
    node.kubelet.prepare(gone)
    # Released while the driver was away, by os-acc unplug.
    os_acc.unplug(objects.InstanceInfo(uuid=gone['metadata']['uid']))
    for path in (node.kernel.root / 'run/cdi').iterdir():
        path.unlink()
    assert node_module.restore(node.described, node.locks) == []
    assert read(node, ids) == before
    assert not list(
        node.kubelet.directory.rglob(f'*{gone["metadata"]["uid"]}*')
    )


def test_a_damaged_file_stops_no_other_claim(node):
    """The power has failed, or somebody has put something there."""
    first, second = node.claim('one', ONE), node.claim('two', TWO)
    ids = node.kubelet.prepare(first, second)
    before = read(node, ids)
    data = node.kubelet.directory / 'plugins' / DRIVER / 'metadata'
    for path in (node.kernel.root / 'run/cdi').iterdir():
        path.unlink()
    (data / 'lost+found').mkdir()
    damaged = {first['metadata']['uid'], 'lost+found'}
    (data / first['metadata']['uid'] / 'spec.json').write_text('')
    failed = str(node_module.restore(node.described, node.locks))
    assert {uid for uid in damaged if uid in failed} == damaged
    assert read(node, ids[2:]).items() <= before.items()
    node.kubelet.prepared.clear()
    assert read(node, node.kubelet.prepare(first, second)) == before


def test_a_start_without_any_claim(node):
    assert node_module.restore(node.described, node.locks) == []


def test_files_that_cannot_be_written(node, monkeypatch):
    """The claim is not prepared; the next try repairs it."""
    claim = node.claim('one', ONE)
    data = node.kubelet.directory / 'plugins' / DRIVER / 'metadata'
    data.write_text('a file in the way')
    with pytest.raises(stand_in_kubelet.PrepareFailed, match='metadata'):
        node.kubelet.prepare(claim)
    data.unlink()
    assert len(read(node, node.kubelet.prepare(claim))) == 1


@pytest.mark.parametrize('iommufd', [False, True])
def test_group_or_iommufd_never_both(node, iommufd):
    """Kata fails if a container has both files of one device."""
    if iommufd:
        node.kernel.without_groups()
    found = files_of(node, node.kubelet.prepare(node.claim('one', ONE)))
    if iommufd:
        assert found[0] == '/dev/iommu'
        assert found[1].startswith('/dev/vfio/devices/vfio')
    else:
        assert found[1] == '/dev/vfio/vfio'
        assert found[0].removeprefix('/dev/vfio/').isdigit()
    assert len(found) == 2


def test_a_claim_of_two_pods(node):
    """It is prepared once, and unprepared after the last Pod."""
    claim = node.claim('shared', ONE)
    pods = [
        {'resource': 'pods', 'name': name, 'uid': str(uuid.uuid4())}
        for name in ('first', 'second')
    ]
    claim['status']['reservedFor'] = pods
    claim = node.server.put(f'{CLAIMS}/shared', claim)
    first = node.kubelet.prepare(claim)
    # The kubelet's memory is lost between the two Pods.
    node.kubelet.prepared.clear()
    claim['status']['reservedFor'] = pods[1:]
    node.server.put(f'{CLAIMS}/shared', claim)
    assert node.kubelet.prepare(claim) == first
    assert len(os_acc.get_vans()) == 1
    node.kubelet.unprepare(claim)
    assert len(os_acc.get_vans()) == 0


def test_a_claim_that_the_scheduler_has_made(node):
    """For an extended resource: as pkg/scheduler's DRA plugin names it."""
    name = 'pod-extended-resources-4xk7p'
    claim = node.claim(name, ONE)
    claim['metadata']['annotations'] = {
        'resource.kubernetes.io/extended-resource-claim': 'true'
    }
    request = 'container-0-request-0'
    claim['spec']['devices']['requests'][0]['name'] = request
    results = claim['status']['allocation']['devices']['results']
    results[0]['request'] = request
    claim = node.server.put(f'{CLAIMS}/{name}', claim)
    (answer,) = node.kubelet.call('NodePrepareResources', [claim]).values()
    assert answer.error == ''
    assert list(answer.devices[0].request_names) == [request]


def test_a_monitor_is_refused_with_a_reason(node):
    claim = node.claim('monitor', ONE)
    results = claim['status']['allocation']['devices']['results']
    results[0]['adminAccess'] = True
    claim = node.server.put(f'{CLAIMS}/monitor', claim)
    with pytest.raises(
        stand_in_kubelet.PrepareFailed, match='while a monitor has'
    ):
        node.kubelet.prepare(claim)
    assert len(os_acc.get_vans()) == 0
