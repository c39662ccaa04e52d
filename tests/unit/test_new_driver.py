# SPDX-License-Identifier: Apache-2.0

"""The command os-acc new-driver.

The test of the tutorial runs the tests that it writes.
"""

from __future__ import annotations

import ast
import builtins
import errno
import os
import tomllib

import command
import pytest


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return command.Command(tmp_path / 'state', capsys, monkeypatch)


FILES = [
    'README.rst',
    'os_acc_my_card2/__init__.py',
    'os_acc_my_card2/devices.py',
    'os_acc_my_card2/driver.py',
    'os_acc_my_card2/privileged.py',
    'pyproject.toml',
    'tests/test_my_card2_driver.py',
]


def test_it_writes_a_distribution(run, tmp_path):
    result = run('new-driver', 'my_card2')
    assert result.code == 0
    assert result.err.startswith('Next: cd ./os-acc-my-card2; pip install ')
    assert sorted(result.out.splitlines()) == [
        f'./os-acc-my-card2/{name}' for name in FILES
    ]
    directory = tmp_path / 'os-acc-my-card2'
    texts = {name: (directory / name).read_text() for name in FILES}
    for name, text in texts.items():
        assert 'acme' not in text.lower(), name
        if name.endswith('.py'):
            ast.parse(text)
    project = tomllib.loads(texts['pyproject.toml'])
    assert project['project']['name'] == 'os-acc-my-card2'
    assert project['project']['entry-points'] == {
        'os_acc.drivers': {'my_card2': 'os_acc_my_card2.driver:MyCard2Driver'}
    }
    assert project['tool']['setuptools']['packages'] == ['os_acc_my_card2']
    driver = texts['os_acc_my_card2/driver.py']
    assert 'class MyCard2Driver(driver.DriverBase):' in driver
    assert "RESOURCE_CLASS = 'CUSTOM_MY_CARD2'" in driver
    # It needs no journal, and makes none.
    assert not run.state_path.exists()


def test_another_directory(run, tmp_path):
    place = tmp_path / 'a b'
    # A path that is mistyped makes no directories.
    error = run.fails(2, 'new-driver', 'x', '--directory', str(place))
    assert 'No such file or directory' in error
    place.mkdir()
    result = run('new-driver', 'x', '--directory', str(place))
    assert (result.code, f"cd '{place}/os-acc-x';" in result.err) == (0, True)
    assert sorted(os.listdir(place / 'os-acc-x')) == [
        'README.rst',
        'os_acc_x',
        'pyproject.toml',
        'tests',
    ]


@pytest.mark.parametrize(
    'name',
    ['', 'A', '1', 'a-b', '_a', 'a__b', 'a_', 'ä', '../a', 'a' * 33, 'pci'],
)
def test_a_name_that_cannot_be_one(run, tmp_path, name):
    error = run.fails(2, 'new-driver', name)
    assert 'new-driver: NAME is ' in error
    assert sorted(os.listdir(tmp_path)) == []


def test_a_directory_that_exists(run, tmp_path):
    (tmp_path / 'os-acc-x').mkdir()
    error = run.fails(2, 'new-driver', 'x')
    assert 'directory is ./os-acc-x' in error.replace("'", '')
    assert 'it exists already' in error
    assert os.listdir(tmp_path / 'os-acc-x') == []


@pytest.mark.parametrize('name', ['acmecard', 'my_acme'])
def test_a_name_with_the_name_of_the_skeleton_in_it(run, tmp_path, name):
    assert run('new-driver', name).code == 0
    directory = tmp_path / f'os-acc-{name.replace("_", "-")}'
    assert f'os_acc_{name}' in os.listdir(directory)
    text = (directory / f'os_acc_{name}' / 'driver.py').read_text()
    words = ''.join(each.capitalize() for each in name.split('_'))
    assert f'class {words}Driver(driver.DriverBase):' in text
    assert f"RESOURCE_CLASS = 'CUSTOM_{name.upper()}'" in text


def test_nothing_is_left_after_an_error(run, tmp_path, monkeypatch):
    real = builtins.open

    def fail(path, mode='r', *args, **kwargs):
        if str(path).endswith('pyproject.toml') and 'x' in mode:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return real(path, mode, *args, **kwargs)

    monkeypatch.setattr(builtins, 'open', fail)
    error = run.fails(1, 'new-driver', 'x')
    assert 'No space left on device' in error
    assert os.listdir(tmp_path) == []
