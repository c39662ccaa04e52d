# SPDX-License-Identifier: Apache-2.0

"""The chart, the plain manifests, the examples and the image.

No API server is to be had here. So the manifests are held against the schemas
of four versions of Kubernetes, and against limits that these do not have.
"""

from __future__ import annotations

import configparser
import pathlib
import re
import tomllib

import cel
import charts
import helm_python
import kubernetes_validate
from node_parts import DRIVER
from node_parts import GPU
from node_parts import NAME
from oslo_config import cfg
from oslo_privsep import capabilities
import pytest
import yaml

from os_acc.containers import options as container_opts
from os_acc.kernel import libvirt_domains
from os_acc.kernel import sysfs
from os_acc.options import common
from os_acc.privileged import container_specs
from os_acc.privileged import context
from os_acc.privileged import notes
from os_acc.privileged import root_folder
from os_acc.spec import device_spec
from os_acc_dra import errors
from os_acc_dra import offers
from os_acc_dra import options
from os_acc_dra import orphans
from os_acc_dra import publisher

# Read here, because the fixtures of other tests put other paths there.
OF_ROOT = (sysfs.DEV, sysfs.SYS, root_folder.PATH, notes.FOLDER)
READ = (
    sysfs.LIB_MODULES,
    sysfs.UDEV_DATA,
    libvirt_domains.STATE_DIRECTORY,
    f'{sysfs.ETC}/fstab',
    *container_specs.DIRECTORIES,
)

VERSIONS = ('1.34', '1.35', '1.36', '1.37')
EXAMPLES = sorted((charts.DEPLOY / 'examples').glob('*.yaml'))
#: Every value differs from the default.
OTHER = {
    'bindingConditions': True,
    'image': {
        'repository': 'example.com/a',
        'tag': '2',
        'pullPolicy': 'Never',
    },
    'imagePullSecrets': [{'name': 'secret'}],
    'createNamespace': True,
    'driverName': 'acc.example.com',
    'kubeletPath': '/var/lib/k0s/kubelet',
    'cdiSpecDir': '/run/cdi',
    'deviceSpec': [
        {'vendor_id': '10de', 'env': ['A=$B']},
        {'address': '*:3b:*'},
    ],
    'extraConfig': '[os_acc_dra]\npublish_interval = 5\n',
    'privileged': True,
    'hostFiles': [],
    'nodeSelector': {'accelerators': 'true'},
    'affinity': {'nodeAffinity': {}},
    'tolerations': [],
    'priorityClassName': 'high',
    'resources': {'limits': {'memory': '1Gi'}},
    'deviceClasses': [
        {'name': 't4', 'kind': 'pci', 'extendedResourceName': 'a.com/t4'}
    ],
}
_LABEL = re.compile('[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?')


@pytest.fixture(scope='module')
def plain():
    return charts.objects(charts.PLAIN.read_text())


@pytest.fixture(scope='module')
def other():
    return charts.objects(charts.render(**OTHER))


def pod(found):
    return charts.of_kind(found, 'DaemonSet')['spec']['template']['spec']


def test_the_plain_manifests_are_those_of_the_chart():
    assert charts.PLAIN.read_text() == charts.plain(), (
        'run python tests/dra/charts.py'
    )


def test_the_chart_has_no_faults():
    found = helm_python.lint(str(charts.CHART))
    assert found['errors'] == []


@pytest.mark.parametrize('version', VERSIONS)
def test_the_schemas_of_kubernetes(plain, other, version):
    examples = [
        each for path in EXAMPLES for each in charts.objects(path.read_text())
    ]
    assert len(examples) >= 2 * len(EXAMPLES) > 0
    for body in (*plain, *other, *examples):
        kubernetes_validate.validate(body, version, strict=True)


def test_limits_that_the_schemas_do_not_have(plain, other):
    for found in (plain, other):
        for body in found:
            assert _LABEL.fullmatch(body['metadata']['name'])
            for value in body['metadata'].get('labels', {}).values():
                assert len(value) <= 63
        spec = pod(found)
        (container,) = spec['containers']
        volumes = [each['name'] for each in spec['volumes']]
        mounts = container['volumeMounts']
        assert all(map(_LABEL.fullmatch, volumes))
        assert sorted(volumes) == sorted(each['name'] for each in mounts)
        places = [each['mountPath'] for each in mounts]
        assert len(set(places)) == len(places)
        # Exactly one may differ from 0 (ValidateRollingUpdateDaemonSet). Two
        # Pods of one node can have no port of the host.
        update = charts.of_kind(found, 'DaemonSet')['spec']['updateStrategy']
        assert update['rollingUpdate'] == {'maxSurge': 1, 'maxUnavailable': 0}
        assert 'ports' not in container


def test_the_objects_belong_together(plain):
    daemon = charts.of_kind(plain, 'DaemonSet')
    labels = daemon['spec']['template']['metadata']['labels']
    assert daemon['spec']['selector']['matchLabels'] == labels
    account = charts.of_kind(plain, 'ServiceAccount')['metadata']
    binding = charts.of_kind(plain, 'ClusterRoleBinding')
    (subject,) = binding['subjects']
    assert (subject['name'], subject['namespace']) == (
        account['name'],
        account['namespace'],
    )
    assert pod(plain)['serviceAccountName'] == account['name']
    role = charts.of_kind(plain, 'ClusterRole')['metadata']['name']
    assert binding['roleRef']['name'] == role
    policy = charts.of_kind(plain, 'ValidatingAdmissionPolicy')['metadata']
    bound = charts.of_kind(plain, 'ValidatingAdmissionPolicyBinding')
    assert bound['spec']['policyName'] == policy['name']


def test_the_examples_name_classes_that_there_are(plain):
    names = {
        each['metadata']['name']
        for each in plain
        if each['kind'] == 'DeviceClass'
    }
    for path in EXAMPLES:
        text = path.read_text()
        used = set(re.findall(r'deviceClassName: (\S+)', text))
        assert used <= names, path


# --- what the Pod may do


def test_the_capabilities_are_those_of_the_privileged_half(plain, other):
    security = pod(plain)['containers'][0]['securityContext']
    needed = {
        capabilities.CAPS_BYVALUE[each].removeprefix('CAP_')
        for each in context.CAPABILITIES
    }
    assert set(security['capabilities']['add']) == needed
    assert security['capabilities']['drop'] == ['ALL']
    assert 'privileged' not in security
    assert pod(other)['containers'][0]['securityContext']['privileged'] is True


def test_the_namespaces_of_the_host(plain):
    spec = pod(plain)
    assert spec['hostPID'] is True
    assert spec['hostNetwork'] is True
    level = charts.of_kind(plain, 'Namespace')['metadata']['labels']
    assert level == {'pod-security.kubernetes.io/enforce': 'privileged'}


def test_the_paths_are_those_of_the_host(plain):
    spec = pod(plain)
    host = {
        each['name']: each['hostPath']['path']
        for each in spec['volumes']
        if 'hostPath' in each
    }
    mounts = spec['containers'][0]['volumeMounts']
    for each in mounts:
        if each['name'] in host:
            assert host[each['name']] == each['mountPath']
            assert 'subPath' not in each
    writable = {
        each['mountPath'] for each in mounts if not each.get('readOnly')
    }
    for path in (
        *OF_ROOT,
        default(common.OPTS, 'state_path'),
        default(common.OPTS, 'device_spec_dir'),
        default(container_opts.OPTS, 'spec_dir'),
        default(options.OPTS, 'kubelet_path'),
    ):
        assert path in writable
    read = [each['mountPath'] for each in mounts]
    for path in READ:
        assert any(f'{path}/'.startswith(f'{each}/') for each in read), path


def default(opts, name):
    (found,) = (each.default for each in opts if each.name == name)
    return found


def test_the_rights_are_those_that_the_driver_uses(node, plain):
    """All tests have a server that refuses others: see the fixture."""
    node.server.put(
        f'/api/v1/nodes/{NAME}',
        {'apiVersion': 'v1', 'kind': 'Node', 'metadata': {'name': NAME}},
    )
    made = publisher.Publisher(node.cluster, DRIVER, NAME, 1.0)
    made.publish()
    stale = node.server.slices()[-1]
    node.server.put(
        '/apis/resource.k8s.io/v1/resourceslices/stale',
        {**stale, 'metadata': {'name': 'stale'}},
    )
    made.publish()  # writes the pool again, and deletes the stale slice

    def happen():
        node.claim('one', offers.name_of(f'pci/{GPU}'))
        node.server.compact()  # the watch ends with 410

    with pytest.raises(errors.ServerError, match='410'):
        node.cluster.watch_slices(DRIVER, NAME, happen)
    claim = node.claim('one', offers.name_of(f'pci/{GPU}'))
    node.kubelet.prepare(claim)
    node.kubelet.checkpoint.unlink()
    orphans.release(
        node.cluster, DRIVER, NAME, str(node.kubelet.directory), 0.0
    )
    allowed = {
        (group, resource, verb)
        for rule in charts.of_kind(plain, 'ClusterRole')['rules']
        for group in rule['apiGroups']
        for resource in rule['resources']
        for verb in rule['verbs']
    }
    assert node.server.used == allowed


# --- what CEL says


def slice_of(driver=DRIVER, **spec):
    return {'spec': {'driver': driver, **spec}}


def decide(found, operation, user, extra, before, after):
    """What the policy says: None if it is not for the request."""
    spec = charts.of_kind(found, 'ValidatingAdmissionPolicy')['spec']
    request = {'operation': operation, 'userInfo': {'username': user}}
    if extra is not None:
        request['userInfo']['extra'] = extra
    known = {'request': request, 'object': after, 'oldObject': before}
    if not all(
        cel.evaluate(each['expression'], known)
        for each in spec['matchConditions']
    ):
        return None
    known['variables'] = {}
    for each in spec['variables']:
        known['variables'][each['name']] = cel.evaluate(
            each['expression'], known
        )
    for each in spec['validations']:
        if cel.evaluate(each['expression'], known) is not True:
            return each['message']
    return ''


DRIVERS = 'system:serviceaccount:os-acc:os-acc-dra'
TOKEN = {'authentication.kubernetes.io/node-name': ['node-1']}
OWN, FOREIGN = slice_of(nodeName='node-1'), slice_of(nodeName='node-2')


@pytest.mark.parametrize(
    ('operation', 'extra', 'before', 'after', 'said'),
    [
        ('CREATE', TOKEN, None, OWN, ''),
        ('UPDATE', TOKEN, OWN, OWN, ''),
        ('DELETE', TOKEN, OWN, None, ''),
        ('CREATE', TOKEN, None, FOREIGN, 'only the slices of this node'),
        ('DELETE', TOKEN, FOREIGN, None, 'only the slices of this node'),
        ('CREATE', TOKEN, None, slice_of(allNodes=True), 'of this node'),
        ('CREATE', {}, None, OWN, 'names no node'),
        ('CREATE', None, None, OWN, 'names no node'),
        (
            'CREATE',
            TOKEN,
            None,
            slice_of('another.example.com', nodeName='node-1'),
            'only its own slices',
        ),
    ],
)
def test_a_node_writes_its_own_slices_only(
    plain, operation, extra, before, after, said
):
    found = decide(plain, operation, DRIVERS, extra, before, after)
    assert said in found
    assert bool(said) == bool(found)


def test_the_policy_is_for_the_driver_alone(plain):
    kubelet = 'system:node:node-2'
    assert decide(plain, 'DELETE', kubelet, {}, OWN, None) is None


def test_the_classes_select_by_kind(node, plain):
    made = publisher.Publisher(node.cluster, DRIVER, NAME, 1.0)
    node.server.put(
        f'/api/v1/nodes/{NAME}',
        {'apiVersion': 'v1', 'kind': 'Node', 'metadata': {'name': NAME}},
    )
    made.publish()
    devices = [
        each
        for slice_ in node.server.slices()
        for each in slice_['spec'].get('devices', ())
    ]
    assert devices
    classes = {
        each['metadata']['name']: each['spec']['selectors'][0]['cel']
        for each in plain
        if each['kind'] == 'DeviceClass'
    }
    assert set(classes) == {f'os-acc-{x}' for x in offers.KINDS.values()}
    for device in devices:
        values = {
            name: next(iter(value.values()))
            for name, value in device['attributes'].items()
            if '/' not in name
        }
        known = {'driver': DRIVER, 'attributes': {DRIVER: values}}
        fitting = {
            name
            for name, selector in classes.items()
            if cel.evaluate(selector['expression'], {'device': known})
        }
        assert fitting == {f'os-acc-{values["kind"]}'}


def test_the_selectors_of_the_examples_are_cel():
    found = [
        text
        for path in EXAMPLES
        for body in charts.objects(path.read_text())
        for text in expressions(body)
    ]
    assert found
    for text in found:
        assert len(text) <= 10 * 1024
        cel.compile(text)


def expressions(body):
    """All values of a key "expression"."""
    if isinstance(body, list):
        body = dict(enumerate(body))
    if isinstance(body, dict):
        for key, value in body.items():
            if key == 'expression':
                yield value
            else:
                yield from expressions(value)


# --- what is started


def configuration(found):
    text = charts.of_kind(found, 'ConfigMap')['data']['os-acc.conf']
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.read_string(text)
    return text, read


def test_the_configuration(plain, other):
    text, read = configuration(other)
    assert (
        text.count('device_spec = {"env":["A=$$B"],"vendor_id":"10de"}') == 1
    )
    assert 'device_spec = {"address":"*:3b:*"}' in text
    assert dict(read['os_acc_cdi']) == {'spec_dir': '/run/cdi'}
    assert dict(read['os_acc_dra']) == {
        'binding_conditions': 'true',
        'driver_name': 'acc.example.com',
        'kubelet_path': '/var/lib/k0s/kubelet',
        'publish_interval': '5',
    }
    names = {each.name for each in options.OPTS}
    assert set(configuration(plain)[1]['os_acc_dra']) <= names


def test_a_changed_configuration_starts_new_pods(plain):
    changed = charts.objects(charts.render(deviceSpec=[{'address': '*'}]))
    before, after = (
        charts.of_kind(each, 'DaemonSet')['spec']['template']['metadata']
        for each in (plain, changed)
    )
    assert before['annotations'] != after['annotations']


def test_the_commands_of_the_image(plain):
    project = tomllib.loads(
        (charts.DEPLOY.parent / 'pyproject.toml').read_text()
    )['project']
    text = (charts.DEPLOY / 'Containerfile').read_text()
    (entry,) = re.findall(r'^ENTRYPOINT \["(.+)"\]$', text, re.MULTILINE)
    assert entry in project['scripts']
    (container,) = pod(plain)['containers']
    for name in ('startupProbe', 'livenessProbe', 'readinessProbe'):
        (command,) = container[name]['exec']['command']
        assert command in project['scripts']
    root = pathlib.Path(__file__).parents[2]
    for path in re.findall(r'/source/([\w/-]+)', text):
        assert (root / path / 'pyproject.toml').exists()
    chart = charts.objects((charts.CHART / 'Chart.yaml').read_text())[0]
    assert chart['appVersion'] == project['version']


def test_the_values_of_the_page(tmp_path):
    """os-acc reads what the chart makes of them."""
    page = pathlib.Path(__file__).parents[2] / 'doc/source/kubernetes.rst'
    lines = page.read_text().splitlines()
    start = lines.index('      image:')
    end = lines.index('', start)
    values = yaml.safe_load('\n'.join(lines[start:end]))
    text, _ = configuration(charts.objects(charts.render(**values)))
    path = tmp_path / 'os-acc.conf'
    path.write_text(text)
    conf = cfg.ConfigOpts()
    common.register(conf)
    conf(['--config-file', str(path)])
    entries = device_spec.load(conf).entries
    assert [each.vendor_id for each in entries] == ['10de', None]
    assert entries[1].devices == ('/dev/dri/renderD*',)
    assert conf.os_acc.plugin == 'cdi'
