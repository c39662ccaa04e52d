# SPDX-License-Identifier: Apache-2.0

"""Looking at device files, and what they are called."""

from __future__ import annotations

import json
import os

import device_nodes
from hypothesis import HealthCheck
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from os_acc import exception
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import sysfs
from os_acc.kinds.devfile import entry as spec_device_files
from os_acc.kinds.devfile import groups as file_groups
from os_acc.objects import fields
from os_acc.privileged import file_owners
from os_acc.spec import device_spec

GPU = '0000:3b:00.0'
DSA = '0000:6a:01.0'
UUID = '0f6a7b8c-1111-4222-8333-444455556666'


@pytest.fixture
def nodes(kernel, monkeypatch):
    made = device_nodes.Nodes(kernel)
    made.install(monkeypatch)
    made.kernel = kernel
    return made


def name_of(path: str) -> str:
    return file_place.of(device_files.get(path).number).name


def test_look(nodes):
    nodes.add('dri/renderD128', 'c 226:128', mode=0o666)
    found = device_files.get('/dev/dri/renderD128')
    assert found.number == device_files.Number('c', 226, 128)
    assert (found.uid, found.gid, found.mode) == (0, 6, 0o666)
    assert device_files.look('/dev/dri/renderD129') is None
    with pytest.raises(exception.DeviceNotFound, match='renderD129'):
        device_files.get('/dev/dri/renderD129')


def test_look_at_a_real_device_file(monkeypatch, tmp_path):
    """Without the kernel of files: /dev/null of the machine."""
    monkeypatch.setattr(sysfs, 'DEV', '/dev')
    found = device_files.get('/dev/null')
    assert found.number == device_files.Number('c', 1, 3)
    assert found.mode == os.stat('/dev/null').st_mode & 0o7777
    assert device_files.look('/dev/fd') is None


def test_owner_and_mode_of_a_file_opened_by_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sysfs, 'DEV', str(tmp_path))
    tmp_path.chmod(0o755)
    (tmp_path / 'file').touch(0o600)
    with device_files.opened('/dev/file') as fd:
        assert device_files.status(fd).number is None
        file_owners.set_owner(fd, os.getuid(), os.getgid())
        file_owners.set_mode(fd, 0o640)
        assert device_files.status(fd).mode == 0o640


@pytest.mark.parametrize(
    'path',
    [
        '/dev',
        '/dev/',
        '/etc/passwd',
        '/dev/../etc/passwd',
        '/dev/a/./b',
        '/dev/a//b',
        '/dev/a b',
        '/dev/ä',
        '/dev/\U0001d11e',
        'dev/a',
        '',
        None,
        7,
    ],
)
def test_what_is_no_path(path):
    with pytest.raises(exception.InvalidRequest, match='below /dev'):
        device_files.check_path(path)


def test_no_link_is_followed(nodes):
    nodes.add('real/a', 'c 240:1')
    dev = nodes.kernel.root / 'dev'
    (dev / 'link').symlink_to('real/a')
    (dev / 'directory').symlink_to('real')
    (dev / 'out').symlink_to('/etc/hostname')
    assert device_files.look('/dev/link') is None
    with pytest.raises(exception.DeviceError, match='directory above it'):
        device_files.look('/dev/directory/a')
    assert device_files.resolve('/dev/link') == '/dev/real/a'
    assert device_files.resolve('/dev/directory/a') == '/dev/real/a'
    assert device_files.resolve('/dev/out') is None
    assert device_files.resolve('/dev/none') is None
    assert device_files.expand('/dev/*') == [
        '/dev/real',
        '/dev/real/a',
        '/dev/vfio',
    ]


def test_a_directory_that_others_can_write_to(nodes):
    nodes.add('open/a', 'c 240:1')
    (nodes.kernel.root / 'dev/open').chmod(0o777)
    with pytest.raises(exception.DeviceError, match='users other than root'):
        device_files.look('/dev/open/a')


def test_a_link_in_a_directory_that_others_can_write_to(nodes):
    nodes.add('acc', 'c 240:1')
    directory = nodes.kernel.root / 'dev/shm'
    directory.mkdir(mode=0o755)
    (directory / 'acc9').symlink_to('../acc')
    assert device_files.expand('/dev/*/acc9') == ['/dev/acc']
    directory.chmod(0o1777)
    assert device_files.expand('/dev/*/acc9') == []


def test_globs_are_in_the_order_of_numbers(nodes):
    for number in (10, 9, 1):
        nodes.add(f'dsa/wq0.{number}', f'c 240:{number}')
    assert device_files.expand('/dev/dsa/wq0.*') == [
        '/dev/dsa/wq0.1',
        '/dev/dsa/wq0.9',
        '/dev/dsa/wq0.10',
    ]


# --- names


def test_the_name_of_a_render_node_stays(nodes):
    nodes.kernel.add_function(GPU, '1002:740f', 0x038000)
    nodes.render(GPU, 128)
    assert name_of('/dev/dri/renderD128') == f'{GPU}+drm+renderd'
    for name in ('renderD128', 'card0'):
        nodes.remove(f'dri/{name}')
    nodes.render(GPU, 130)
    assert name_of('/dev/dri/renderD130') == f'{GPU}+drm+renderd'
    assert name_of('/dev/dri/card2') == f'{GPU}+drm+card'


@pytest.mark.parametrize(
    ('number', 'directory', 'expected'),
    [
        (
            'c 240:3',
            f'pci0000:6a/{DSA}/dsa2/wq2.1/dsa!wq2.1',
            f'{DSA}+dsa+wq.1+dsa-wq.1',
        ),
        (
            'b 259:1',
            f'pci0000:00/0000:00:01.0/{GPU}/nvme/nvme3/nvme3n1',
            f'{GPU}+nvme+nvme+nvmen1',
        ),
        ('b 7:3', 'virtual/block/loop3', 'virtual+block+loop3'),
        ('c 235:0', 'virtual/kfd/kfd', 'virtual+kfd+kfd'),
        (
            'c 261:4',
            'platform/fdab0000.npu/accel/accel4',
            'platform+fdab0000.npu+accel+accel',
        ),
        (
            'c 511:2',
            f'pci0000:00/{GPU}/{UUID}/vfio-dev/vfio7',
            f'{UUID}+vfio-dev+vfio',
        ),
        ('c 240:9', '', 'char-240-9'),
        ('b 240:9', '', 'block-240-9'),
    ],
)
def test_names(nodes, number, directory, expected):
    nodes.add('a', number, directory)
    found = name_of('/dev/a')
    assert found == expected
    assert fields.DeviceAddress().coerce(None, 'name', found) == found


def test_two_devices_of_one_function(nodes):
    """The first one keeps its name when the second one comes."""
    there = f'pci0000:00/{GPU}/uio'
    nodes.add('uio3', 'c 240:3', f'{there}/uio3')
    assert name_of('/dev/uio3') == f'{GPU}+uio+uio'
    nodes.add('uio11', 'c 240:11', f'{there}/uio11')
    assert name_of('/dev/uio3') == f'{GPU}+uio+uio'
    assert name_of('/dev/uio11') == f'{GPU}+uio+uio=1'


def test_a_group_of_vfio(nodes):
    other = '0000:3b:00.1'
    for address in (other, GPU):
        nodes.kernel.add_function(address, group=12)
    nodes.add('vfio/12', 'c 244:1', 'virtual/vfio/12', 'vfio')
    place = file_place.of(device_files.get('/dev/vfio/12').number)
    assert place.name == f'{GPU}+vfio'
    assert place.functions == (GPU, other)
    nodes.add('vfio/13', 'c 244:2', 'virtual/vfio/13', 'vfio')
    assert name_of('/dev/vfio/13') == 'group-13+vfio'


def test_files_of_nvidia(nodes):
    nodes.kernel.add_function(GPU, '10de:2330', 0x030200)
    nodes.kernel.write_file(
        f'proc/driver/nvidia/gpus/{GPU}/information',
        'Model: A\nDevice Minor: 3\n',
    )
    nodes.add('nvidia3', 'c 195:3')
    nodes.add('nvidiactl', 'c 195:255')
    place = file_place.of(device_files.get('/dev/nvidia3').number)
    assert (place.name, place.function) == (f'{GPU}+nvidia', GPU)
    assert name_of('/dev/nvidiactl') == 'char-195-255'


@given(
    st.lists(
        st.text(
            st.characters(
                codec='utf-8', exclude_characters='/\0', min_codepoint=33
            ),
            min_size=1,
            max_size=80,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_path_gives_a_name(parts):
    name = file_place.name_of(parts)
    assert fields.Name().coerce(None, 'name', name) == name
    assert len(name) <= 180


# --- groups


def read(*entries):
    specs = tuple(spec for each in entries for spec in device_spec.parse(each))
    return file_groups.read(
        device_spec.Specs(
            tuple(
                device_spec.dataclasses.replace(spec, source=f'entry {n}')
                for n, spec in enumerate(specs, 1)
            )
        )
    )


def paths(found):
    return [
        ([x.path for x in each.own], [x.path for x in each.common])
        for each in found
    ]


def test_kfd_is_common_and_the_card_is_the_gpus(nodes):
    for number, address in enumerate((GPU, '0000:5e:00.0')):
        nodes.kernel.add_function(address, '1002:740f', 0x038000)
        nodes.render(address, 128 + number)
    nodes.add('kfd', 'c 235:0', 'virtual/kfd/kfd', 'kfd')
    found = read(
        '{"devices": "/dev/dri/renderD*", '
        '"with": ["/dev/kfd", "/dev/dri/card*"]}'
    )
    assert paths(found) == [
        (['/dev/dri/renderD128', '/dev/dri/card0'], ['/dev/kfd']),
        (['/dev/dri/renderD129', '/dev/dri/card1'], ['/dev/kfd']),
    ]


def test_what_goes_along_is_no_accelerator_of_its_own(nodes):
    for name, number in (('0', 0), ('1', 1), ('ctl', 255), ('-uvm', 9)):
        nodes.add(f'nvidia{name}', f'c 195:{number}')
    found = read(
        '{"devices": "/dev/nvidia*", "with": ["/dev/nvidiactl", '
        '"/dev/nvidia-uvm"]}'
    )
    common = ['/dev/nvidiactl', '/dev/nvidia-uvm']
    assert paths(found) == [
        (['/dev/nvidia0'], common),
        (['/dev/nvidia1'], common),
    ]


def test_one_number_is_one_accelerator(nodes):
    nodes.add('a', 'c 240:1')
    nodes.add('b', 'c 240:1')
    nodes.add('c', 'c 240:2')
    assert paths(read('{"devices": ["/dev/[abc]"]}')) == [
        (['/dev/a'], []),
        (['/dev/c'], []),
    ]


def test_deny(nodes):
    nodes.kernel.add_function(GPU, '1002:740f', 0x038000)
    nodes.render(GPU, 128)
    nodes.add('a', 'c 240:1')
    nodes.add('b', 'c 240:2')
    found = read(
        '{"devices": ["/dev/a", "/dev/b", "/dev/dri/renderD*"]}',
        '{"devices": "/dev/a", "deny": true}',
        f'{{"address": "{GPU}", "deny": true}}',
    )
    assert [each.denied_by for each in found] == ['entry 2', None, 'entry 3']


@pytest.mark.parametrize(
    ('one', 'other', 'against'),
    [
        ('{"devices": "/dev/a"}', '{"devices": "/dev/a"}', False),
        (
            '{"devices": "/dev/a", "traits": ["CUSTOM_A"]}',
            '{"devices": "/dev/?"}',
            False,
        ),
        (
            '{"devices": "/dev/a", "shared": 2}',
            '{"devices": "/dev/a"}',
            True,
        ),
        (
            '{"devices": "/dev/a", "with": "/dev/c"}',
            '{"devices": "/dev/b", "with": "/dev/c"}',
            False,
        ),
        (
            '{"devices": "/dev/a", "with": "/dev/c"}',
            '{"devices": "/dev/c"}',
            True,
        ),
        (
            '{"devices": "/dev/a", "mode": "0600"}',
            '{"devices": "/dev/a", "mode": "0660"}',
            True,
        ),
    ],
)
def test_entries_that_contradict_each_other(nodes, one, other, against):
    for number, name in enumerate('abc'):
        nodes.add(name, f'c 240:{number}')
    for pair in ((one, other), (other, one)):
        found = {each.path: each.against for each in read(*pair)}
        assert bool(found['/dev/a']) is against
        if against:
            (which,) = found['/dev/a']
            assert which in ('entry 1', 'entry 2')


NAMES = st.sampled_from(['a', 'b', 'c0', 'c1', 'd'])
GLOBS = st.sampled_from(
    ['/dev/a', '/dev/b', '/dev/c*', '/dev/?', '/dev/[ab]', '/dev/none']
)
ENTRIES = st.fixed_dictionaries(
    {'devices': st.lists(GLOBS, min_size=1, max_size=3)},
    optional={
        'with': st.lists(GLOBS, min_size=1, max_size=2),
        'shared': st.sampled_from([True, False, 1, 5]),
        'deny': st.just(True),
    },
)


@pytest.fixture
def five(kernel, monkeypatch):
    """Five device files, for many examples."""
    made = device_nodes.Nodes(kernel)
    made.install(monkeypatch)
    for number, name in enumerate(['a', 'b', 'c0', 'c1', 'd']):
        made.add(name, f'c 240:{number}')
    return made


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(ENTRIES, max_size=4))
@example([{'devices': ['/dev/a'], 'with': ['/dev/a']}])
def test_no_file_belongs_to_two_accelerators(five, entries):
    """Unless the entries contradict each other, and then both say so."""
    found = read(*map(json.dumps, entries))
    own: dict = {}
    for each in found:
        assert each.own[0].number not in {x.number for x in each.common}
        for node in each.own:
            own.setdefault(node.number, []).append(each)
    for each in found:
        beside = {node.number for node in each.common}
        for number in each.numbers | beside:
            for other in own.get(number, ()):
                if other is not each:
                    assert each.against
                    assert other.against
    # The entry of each can be written down and read again.
    for each in found:
        text = file_groups.to_text(each.spec)
        again = file_groups.from_text(text)
        assert spec_device_files.alike(again, each.spec)
        assert again.devices == each.spec.devices
    assert file_groups.from_text(None) is None


# --- keys


# For each key, values that are not its default.
VALUES = {
    'devices': ['/dev/a', ['/dev/b', '/dev/c*']],
    'with': ['/dev/d', ['/dev/e', '/dev/f*']],
    'shared': [True, 1, 7],
    'owner': ['qemu', 0, '107'],
    'group': ['render', 44],
    'mode': ['0600', '777', '0000'],
    'permissions': ['r', 'rwm'],
    'keeps_data': [True],
}


@pytest.mark.parametrize('key', spec_device_files.KEYS)
def test_no_key_is_lost_over_a_reboot(key):
    """What is written down for a VAN says it, and so does the comparison."""
    entry = {'resource_class': 'CUSTOM_A', 'devices': '/dev/a'}
    field = 'companion_files' if key == 'with' else key
    (plain,) = device_spec.parse(json.dumps(entry))
    for value in VALUES[key]:
        text = json.dumps(entry | {key: value})
        (spec,) = device_spec.parse(text)
        again = file_groups.from_text(file_groups.to_text(spec))
        assert getattr(again, field) == getattr(spec, field)
        assert spec_device_files.alike(again, spec)
        # Which files they name does not count.
        assert spec_device_files.alike(plain, spec) is (key == 'devices')


@pytest.mark.parametrize(
    ('text', 'key'),
    [
        ('{"devices": "/dev/*"}', 'devices'),
        ('{"devices": "/dev/**/a"}', 'devices'),
        ('{"devices": "/etc/passwd"}', 'devices'),
        ('{"devices": "/dev/../etc/passwd"}', 'devices'),
        ('{"devices": []}', 'devices'),
        ('{"devices": 7}', 'devices'),
        ('{"devices": "/dev/a", "with": "b"}', 'with'),
        ('{"devices": "/dev/a", "shared": 0}', 'shared'),
        ('{"devices": "/dev/a", "shared": "2"}', 'shared'),
        ('{"devices": "/dev/a", "owner": "a b"}', 'owner'),
        ('{"devices": "/dev/a", "owner": -1}', 'owner'),
        ('{"devices": "/dev/a", "owner": "4294967295"}', 'owner'),
        ('{"devices": "/dev/a", "group": true}', 'group'),
        ('{"devices": "/dev/a", "mode": "4777"}', 'mode'),
        ('{"devices": "/dev/a", "mode": 660}', 'mode'),
        ('{"devices": "/dev/a", "permissions": "rx"}', 'permissions'),
        ('{"devices": "/dev/a", "permissions": "rr"}', 'permissions'),
        ('{"devices": "/dev/a", "address": "*"}', 'address'),
        ('{"devices": "/dev/a", "num_vfs": 2}', 'num_vfs'),
        ('{"devices": "/dev/a", "shared": true, "mode": "0660"}', 'mode'),
        ('{"with": "/dev/a"}', 'with'),
        ('{"address": "*", "shared": true}', 'shared'),
    ],
)
def test_a_bad_entry_is_refused(text, key):
    with pytest.raises(exception.InvalidRequest) as caught:
        device_spec.parse(text)
    assert caught.value.kwargs['field'] == key


def test_an_entry_for_files_names_no_function(kernel):
    kernel.add_function(GPU)
    (spec,) = device_spec.parse('{"devices": "/dev/a", "mode": "640"}')
    specs = device_spec.Specs((spec,))
    assert spec.mode == 0o640
    assert specs.first(device_spec.pci.get(GPU)) is None
    assert specs.first_parent('mtty') is None
    assert not spec.names_any


def test_values_of_shared():
    read = spec_device_files.shared
    assert read('shared', False) is None
    assert read('shared', True) == spec_device_files.ANY_NUMBER
    assert read('shared', 1024) == 1024
