# SPDX-License-Identifier: Apache-2.0

"""The CDI specs that os-acc writes, by the rules of an independent checker."""

from __future__ import annotations

import json
import re

import cdi_validator
import hypothesis
from hypothesis import strategies as st
from oslo_config import cfg
import pytest

from os_acc import exception
from os_acc.containers import options as container_opts
from os_acc.containers import spec as container_spec
from os_acc.kernel import device_files
from os_acc.spec import device_spec
from os_acc.spec import edits as spec_edits

KIND = 'os-acc.openstack.org/accelerator'
UUIDS = (
    '1b4e28ba-1111-4222-8333-444455556666',
    'eb4e28ba-1111-4222-8333-444455556666',
)

WORD = st.sampled_from(['a', 'B-1', 'lib.so.1', '_', '..x', 'x86_64'])
PATH = st.lists(WORD, min_size=1, max_size=3).map(lambda x: '/' + '/'.join(x))
VARIABLE = st.builds(
    '{}={}'.format,
    st.sampled_from(['A', 'b_1', '_X', 'LD_PATH']),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8),
)
MOUNT = st.fixed_dictionaries(
    {'hostPath': PATH, 'containerPath': PATH},
    optional={
        'type': st.sampled_from(['none', 'tmpfs']),
        'options': st.lists(st.sampled_from(['ro', 'bind', 'nosuid'])),
    },
)
HOOK = st.fixed_dictionaries(
    {'hookName': st.sampled_from(spec_edits.HOOK_NAMES), 'path': PATH},
    optional={
        'args': st.lists(WORD, max_size=2),
        'env': st.lists(
            VARIABLE, max_size=2, unique_by=lambda x: x.partition('=')[0]
        ),
        'timeout': st.integers(1, 100),
    },
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        'env': st.lists(
            VARIABLE, max_size=3, unique_by=lambda x: x.partition('=')[0]
        ),
        'mounts': st.lists(
            MOUNT, max_size=2, unique_by=lambda x: x['containerPath']
        ),
        'hooks': st.lists(HOOK, max_size=2),
    },
)
NODES = st.lists(
    st.builds(
        container_spec.Node,
        PATH,
        st.builds(
            device_files.Number,
            st.sampled_from('cb'),
            st.integers(1, 511),
            st.integers(0, 2**20 - 1),
        ),
        st.sampled_from(['r', 'rw', 'rwm']),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda node: node.path,
)
OWNER = st.builds(
    container_spec.Owner,
    st.none() | st.integers(0, 2**32 - 2),
    st.none() | st.integers(0, 2**32 - 2),
    st.none() | st.integers(0, 0o777),
)
KINDS = st.sampled_from(
    [KIND, 'vendor.com/fpga', 'a1/b2', 'x-y.example/c.d', 'v.org/Class_1-2']
)


def entry(**values) -> device_spec.Spec:
    (read,) = device_spec.parse(json.dumps({'address': '*', **values}))
    return read


@hypothesis.given(KINDS, st.sampled_from(UUIDS), NODES, ENTRY, OWNER)
@hypothesis.settings(max_examples=80)
def test_every_spec_is_valid_and_of_the_lowest_version(
    kind, name, nodes, values, owner
):
    assert _matches(kind)
    read = entry(**values)
    edits = spec_edits.Edits(read.env, read.mounts, read.hooks)
    text = container_spec.build(kind, name, nodes, edits, owner)
    cdi_validator.check(text)
    assert list(cdi_validator.faults(text)) == []
    (device,) = json.loads(text)['devices']
    assert device['name'] == name
    assert len(device['containerEdits']['deviceNodes']) == len(nodes)
    assert container_spec.is_ours(text, kind, name)
    assert len(container_spec.file_name(kind, name)) < 240


def _matches(kind: str) -> bool:
    return not _fault('kind', kind)


def _fault(name: str, value: str) -> str:
    conf = cfg.ConfigOpts()
    conf.register_opts(container_opts.OPTS, group=container_opts.GROUP)
    conf([])
    try:
        conf.set_override(name, value, container_opts.GROUP)
        conf[container_opts.GROUP][name]
    except ValueError as err:
        return str(err)
    return ''


def test_the_spec_of_a_function():
    text = container_spec.build(
        KIND,
        UUIDS[1],
        [
            container_spec.Node(
                '/dev/vfio/12', device_files.Number('c', 244, 1)
            ),
            container_spec.Node(
                '/dev/vfio/vfio', device_files.Number('c', 10, 196)
            ),
        ],
        spec_edits.Edits(),
        container_spec.Owner(gid=107, mode=0o660),
    )
    assert json.loads(text) == {
        'cdiVersion': '0.3.0',
        'kind': KIND,
        'devices': [
            {
                'name': UUIDS[1],
                'containerEdits': {
                    'deviceNodes': [
                        {
                            'path': f'/dev/vfio/{name}',
                            'type': 'c',
                            'major': major,
                            'minor': minor,
                            'fileMode': 0o660,
                            'permissions': 'rw',
                            'gid': 107,
                        }
                        for name, major, minor in (
                            ('12', 244, 1),
                            ('vfio', 10, 196),
                        )
                    ]
                },
            }
        ],
    }


def test_a_mount_is_a_bind_mount_unless_it_has_a_type():
    read = entry(
        mounts=[
            {'hostPath': '/opt/lib', 'containerPath': '/opt/lib'},
            {
                'hostPath': '/a',
                'containerPath': '/b',
                'options': ['ro', 'bind'],
            },
            {'hostPath': '/tmp', 'containerPath': '/c', 'type': 'tmpfs'},
        ]
    )
    text = container_spec.build(
        KIND,
        UUIDS[1],
        [container_spec.Node('/dev/a', device_files.Number('c', 1, 3))],
        spec_edits.Edits(mounts=read.mounts),
        container_spec.Owner(),
    )
    spec = json.loads(text)
    mounts = spec['devices'][0]['containerEdits']['mounts']
    assert [each.get('options') for each in mounts] == [
        ['rbind'],
        ['ro', 'bind'],
        None,
    ]
    assert spec['cdiVersion'] == '0.4.0'


GOOD_MOUNT = {'hostPath': '/a', 'containerPath': '/b'}
GOOD_HOOK = {'hookName': 'createContainer', 'path': '/bin/true'}


@pytest.mark.parametrize(
    ('key', 'value', 'named', 'expected'),
    [
        ('env', 'A=1', 'env', 'a list'),
        ('env', ['A'], 'env', 'NAME=value'),
        ('env', ['=1'], 'env', 'NAME=value'),
        ('env', ['1A=1'], 'env', 'NAME=value'),
        ('env', ['A=1\n'], 'env', 'NAME=value'),
        ('env', [1], 'env', 'NAME=value'),
        ('env', ['A=1', 'A=2'], 'env', 'each variable once: A'),
        ('mounts', [1], 'mounts', 'a list of objects'),
        ('mounts', [{'hostPath': '/a'}], 'mounts', 'with containerPath'),
        ('mounts', [GOOD_MOUNT | {'x': 1}], 'mounts', 'only the keys'),
        (
            'mounts',
            [GOOD_MOUNT | {'hostPath': 'a'}],
            'mounts.hostPath',
            'absolute',
        ),
        (
            'mounts',
            [GOOD_MOUNT | {'containerPath': '/a/../b'}],
            'mounts.containerPath',
            'without',
        ),
        (
            'mounts',
            [GOOD_MOUNT | {'hostPath': '//a'}],
            'mounts.hostPath',
            'absolute',
        ),
        (
            'mounts',
            [GOOD_MOUNT | {'options': ['ro,bind']}],
            'mounts.options',
            'a word',
        ),
        ('mounts', [GOOD_MOUNT | {'type': ''}], 'mounts.type', 'a word'),
        ('mounts', [GOOD_MOUNT, GOOD_MOUNT], 'mounts', 'each path once: /b'),
        ('hooks', [{'path': '/a'}], 'hooks', 'with hookName'),
        (
            'hooks',
            [GOOD_HOOK | {'hookName': 'start'}],
            'hooks.hookName',
            'one of prestart',
        ),
        ('hooks', [GOOD_HOOK | {'path': 'x'}], 'hooks.path', 'absolute'),
        (
            'hooks',
            [GOOD_HOOK | {'timeout': 0}],
            'hooks.timeout',
            'seconds, 1 to',
        ),
        (
            'hooks',
            [GOOD_HOOK | {'timeout': True}],
            'hooks.timeout',
            'seconds, 1 to',
        ),
        ('hooks', [GOOD_HOOK | {'args': ['\0']}], 'hooks.args', 'null'),
        ('hooks', [GOOD_HOOK | {'env': ['x']}], 'hooks.env', 'NAME=value'),
    ],
)
def test_what_an_entry_cannot_add(key, value, named, expected):
    with pytest.raises(
        exception.InvalidRequest, match=re.escape(expected)
    ) as caught:
        entry(**{key: value})
    assert caught.value.kwargs['field'] == named


@pytest.mark.parametrize('more', [{'mdev_types': ['a']}, {'num_vfs': 2}])
def test_every_kind_of_entry_can_have_them(more):
    assert entry(env=['A=1'], **more).env == ('A=1',)


@pytest.mark.parametrize(
    'kind',
    [
        '',
        'a/b',
        'vendor',
        'vendor/',
        '/class',
        'vendor.com/a/b',
        '1vendor/class',
        'ven_dor/class',
        'vendor-/class',
        'vendor..com/class',
        'vendor/class.',
        'vendor/1class',
        'vendor/class\n',
        f'{"v" * 64}/class',
        f'vendor/{"c" * 64}',
        f'{"v." * 60}org/class',
    ],
)
def test_kinds_that_are_refused(kind):
    assert not _matches(kind)


def test_the_longest_kind_makes_the_name_of_a_file():
    vendor = f'{"v" * 57}.{"w" * 58}.org'
    kind = f'{vendor}/{"c" * 63}'
    assert _matches(kind)
    assert len(f'.{container_spec.file_name(kind, UUIDS[0])}.new') < 255


@pytest.mark.parametrize(
    ('option', 'value'),
    [
        ('spec_dir', 'var/run/cdi'),
        ('spec_dir', '/var/../cdi'),
        ('spec_dir', ''),
        ('spec_dir', '/'),
        ('device_mode', '888'),
        ('device_mode', '0o660'),
        ('device_uid', -1),
        ('device_gid', 2**32 - 1),
    ],
)
def test_options_that_are_refused(option, value):
    assert _fault(option, value)


@pytest.mark.parametrize('text', ['', '[', '[1]', '{"kind": 1}'])
def test_what_is_no_spec_of_ours(text):
    assert not container_spec.is_ours(text, KIND, UUIDS[0])


@pytest.mark.parametrize(
    'devices', [1, [1], [{}], [{'name': 1}], [{'name': 'x'}, {'name': 'y'}]]
)
def test_what_is_a_spec_of_somebody_else(devices):
    text = json.dumps({'kind': KIND, 'devices': devices})
    assert not container_spec.is_ours(text, KIND, 'x')
