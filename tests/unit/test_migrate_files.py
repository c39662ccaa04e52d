# SPDX-License-Identifier: Apache-2.0

"""os-acc migrate: whether both hosts have the same files."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

from os_acc import exception
from os_acc.kernel import file_system
from os_acc.moving import answers
from os_acc.moving import storage


@pytest.fixture
def path(tmp_path):
    made = tmp_path / 'disk'
    made.write_bytes(b'x')
    return str(made)


@pytest.fixture
def kind(monkeypatch):
    """Set the type of all file systems."""

    def put(value):
        monkeypatch.setattr(file_system, 'type_of', lambda _: value)

    put('nfs4')
    return put


def sent(seen):
    """What another host reads of it."""
    answer = json.loads(json.dumps(answers.of_look([], [], seen)))
    return answers.look(answer).seen


def elsewhere(seen, **values):
    """What another machine sees."""
    return sent(dataclasses.replace(seen, **{'boot_id': 'other', **values}))


def resized(seen, path, size):
    file = dataclasses.replace(seen.files[path], size=size)
    return {'files': {path: file}}


def test_a_file_that_is_shared(path, kind):
    seen = storage.look([path])
    assert seen.inodes == {path: os.stat(path).st_ino}
    assert seen.files[path].file_system == 'nfs4'
    assert sent(seen) == seen
    for off in (False, True):
        assert storage.differences(seen, elsewhere(seen), off) == []


def test_a_file_that_is_not(path, kind, tmp_path):
    here = storage.look([path])
    copy = tmp_path / 'copy'
    copy.write_bytes(b'x')
    there = elsewhere(here, inodes={path: os.stat(copy).st_ino})
    (text,) = storage.differences(here, there)
    assert f'has another {path}' in text
    os.unlink(path)
    (text,) = storage.differences(here, storage.look([path]))
    assert f'has no {path}' in text


@pytest.mark.parametrize('name', ['ext4', 'xfs', 'btrfs', 'tmpfs', 'overlay'])
def test_one_inode_on_two_local_file_systems(path, kind, name):
    """Two new file systems give their first file the same inode."""
    kind(name)
    here = storage.look([path])
    (text,) = storage.differences(here, elsewhere(here))
    assert text.startswith(f'{path} is on a file system of one host ({name})')
    # One machine, such as two hosts of a test: it is the same file.
    assert storage.differences(here, sent(here)) == []
    # One kernel, and two file systems of containers.
    file = dataclasses.replace(here.files[path], device=1)
    other = sent(dataclasses.replace(here, files={path: file}))
    assert len(storage.differences(here, other)) == 1


@pytest.mark.parametrize('name', ['nfs', 'ceph', 'fuse.glusterfs', 'x', None])
def test_a_file_system_that_may_be_shared(path, kind, name):
    kind(name)
    here = storage.look([path])
    assert storage.differences(here, elsewhere(here)) == []


def test_only_the_target_is_local(path, kind):
    here = storage.look([path])
    kind('xfs')
    there = elsewhere(storage.look([path]))
    (text,) = storage.differences(here, there)
    assert '(xfs)' in text


def test_a_machine_that_does_not_say_which_it_is(path, kind):
    kind('xfs')
    here = dataclasses.replace(storage.look([path]), boot_id=None)
    assert len(storage.differences(here, sent(here))) == 1


def test_the_sizes_count_when_nobody_writes(path, kind):
    here = storage.look([path])
    there = elsewhere(here, **resized(here, path, 2))
    assert storage.differences(here, there) == []
    (text,) = storage.differences(here, there, is_off=True)
    assert 'of another size' in text


def test_a_target_of_an_earlier_version(path, kind):
    """It answers the inodes only."""
    here = storage.look([path])
    answer = {'obstacles': [], 'plugins': [], 'files': here.inodes}
    there = answers.look(answer).seen
    assert storage.differences(here, there, True) == []
    kind('ext4')
    assert len(storage.differences(storage.look([path]), there)) == 1


def test_a_source_of_an_earlier_version(path):
    """It reads the inodes only."""
    seen = storage.look([path])
    assert answers.of_look([], [], seen)['files'] == seen.inodes


def test_files_that_a_host_cannot_see_are_not_compared(path, kind):
    here = storage.look([path])
    assert storage.differences(here, storage.Seen({})) == []
    os.unlink(path)
    there = storage.Seen({path: 7})
    assert storage.differences(storage.look([path]), there) == []
    assert storage.look(['/\0']).inodes == {}


def test_devices_are_named_as_unchecked(monkeypatch):
    seen = storage.Seen({'/dev/b': 0, '/c': 7, '/d': None})
    assert storage.unchecked(seen) == ['/dev/b']
    assert storage.differences(seen, elsewhere(seen)) == []


WRONG = {
    'nothing': {},
    'obstacles': {'obstacles': 5},
    'an obstacle': {'obstacles': [1]},
    'a plugin': {'plugins': [['x']]},
    'plugins': {'plugins': 'noop'},
    'files': {'files': []},
    'an inode': {'files': {'/a': 'x'}},
    'details': {'details': [1]},
    'a detail': {'details': {'/a': 5}},
    'a size': {'details': {'/a': {'size': None, 'device': 1}}},
    'a type': {'details': {'/a': {'size': 1, 'device': 1, 'file_system': 5}}},
    'a boot': {'boot_id': 5},
}


@pytest.mark.parametrize('name', WRONG)
def test_a_wrong_answer_is_named(name):
    usual = {'obstacles': [], 'plugins': [], 'files': {}}
    answer = {**usual, **WRONG[name]} if WRONG[name] else {}
    field = next(iter(WRONG[name]), 'obstacles')
    with pytest.raises(exception.TargetError) as error:
        answers.look(answer)
    assert f'wrong answer: {field} is' in str(error.value)


def test_no_obstacle_controls_the_terminal():
    found = answers.look(
        {'obstacles': ['\x1b]0;x\x07\n\x1b[2J'], 'plugins': ['\x1b']}
    )
    assert found.obstacles == [r'\x1b]0;x\x07 \x1b[2J']
    assert found.plugins == [r'\x1b']
