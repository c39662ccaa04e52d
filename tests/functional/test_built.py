# SPDX-License-Identifier: Apache-2.0

"""What the built distributions have: all that the tree has.

The other tests run on an editable install, where nothing can be missing. The
build needs no package index, because it uses the setuptools that is installed.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]

# Where the packages of a distribution are in the tree.
PLACES = {
    '.': ('os_acc', 'vif_like_plugins', 'contrib'),
    'contrib/os-acc-dra': ('os_acc_dra',),
    'contrib/os-acc-nova': ('os_acc_nova', 'nova'),
}
# What a source distribution has besides, so that it can be tested.
BESIDE = (
    *('.ci', '.gitignore', '.pre-commit-config.yaml', 'LICENSE'),
    *('CONTRIBUTING.rst', 'SECURITY.md'),
    *('README.rst', 'benchmarks', 'contrib', 'doc', 'pyproject.toml'),
    *('releasenotes', 'tests', 'tox.ini'),
)
NOT_COPIED = ('.*', 'build', 'dist', '*.egg-info', '__pycache__', '*.pyc')

# Loads what the entry points of a distribution name, from one directory.
LOAD = """
import json, sys
from importlib import metadata
sys.path.insert(0, sys.argv[1])
wrong = {}
(found,) = metadata.distributions(path=[sys.argv[1]])
for each in found.entry_points:
    try:
        each.load()
        place = sys.modules[each.module].__file__
        assert place.startswith(sys.argv[1]), place
    except Exception as err:
        wrong[f'{each.group} {each.name}'] = f'{type(err).__name__}: {err}'
print(json.dumps([len(found.entry_points), wrong]))
"""


def build(source: pathlib.Path, out: pathlib.Path, *kinds: str) -> str:
    """Build distributions. Return what the build said."""
    done = subprocess.run(
        (
            *(sys.executable, '-m', 'build', '--no-isolation', *kinds),
            *('--outdir', str(out), str(source)),
        ),
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
        # With this variable, setuptools warns that it compiles nothing.
        env={
            name: value
            for name, value in os.environ.items()
            if name != 'PYTHONDONTWRITEBYTECODE'
        },
    )
    return done.stdout + done.stderr


def not_copied(directory: str, names: list[str]) -> set[str]:
    found = shutil.ignore_patterns(*NOT_COPIED)(directory, names)
    return set(found) - set(BESIDE)


@pytest.fixture(scope='module', params=PLACES)
def built(request, tmp_path_factory):
    """A copy of the tree, with its wheel and its source distribution."""
    top = tmp_path_factory.mktemp('built')
    shutil.copytree(
        ROOT / request.param,
        top / 'tree',
        ignore=not_copied,
        symlinks=True,
    )
    said = build(top / 'tree', top / 'dist', '--sdist', '--wheel')
    (top / 'said').write_text(said)
    return request.param, top


def only(directory: pathlib.Path, pattern: str) -> pathlib.Path:
    (found,) = directory.glob(pattern)
    return found


def expected(name: str, tree: pathlib.Path) -> set[str]:
    """The files of the tree that a wheel must have."""
    found = set()
    for place in PLACES[name]:
        base = (
            tree
            if place in ('os_acc', 'os_acc_dra', 'os_acc_nova', 'nova')
            else (tree / place)
        )
        for path in (tree / place).rglob('*'):
            relative = path.relative_to(base)
            if path.is_file() and not relative.parts[0].startswith('os-acc'):
                found.add(str(relative))
    return found


def test_the_build_warns_of_nothing(built):
    _, top = built
    said = (top / 'said').read_text().lower()
    assert 'success' in said
    for word in ('warn', 'deprecat', 'no previously-included'):
        assert [x for x in said.splitlines() if word in x] == []


def test_the_wheel_has_what_the_tree_has(built):
    name, top = built
    with zipfile.ZipFile(only(top / 'dist', '*.whl')) as wheel:
        names = {x for x in wheel.namelist() if '.dist-info/' not in x}
    assert names == expected(name, top / 'tree')
    if name == '.':
        assert 'os_acc/py.typed' in names
        assert 'os_acc/powervm/__init__.py' in names


def files(top: pathlib.Path, name: str) -> set[str]:
    """A file of a directory, or all files below a directory of it."""
    paths = [top / name, *(top / name).rglob('*')]
    return {str(x.relative_to(top)) for x in paths if x.is_file()}


def test_the_source_distribution_makes_the_same_wheel(built, tmp_path):
    name, top = built
    with tarfile.open(only(top / 'dist', '*.tar.gz')) as archive:
        archive.extractall(tmp_path)
    source = only(tmp_path, '*')
    build(source, tmp_path / 'dist', '--wheel')
    contents = []
    for directory in (top / 'dist', tmp_path / 'dist'):
        with zipfile.ZipFile(only(directory, '*.whl')) as wheel:
            contents.append(
                {each: wheel.read(each) for each in wheel.namelist()}
            )
    assert contents[0].keys() == contents[1].keys()
    assert [x for x in contents[0] if contents[0][x] != contents[1][x]] == []
    if name == '.':
        for each in BESIDE:
            wanted = files(top / 'tree', each)
            assert wanted
            assert wanted - files(source, each) == set()


def test_every_entry_point_can_be_loaded(built, tmp_path):
    _, top = built
    with zipfile.ZipFile(only(top / 'dist', '*.whl')) as wheel:
        wheel.extractall(tmp_path)
    result = subprocess.run(
        [sys.executable, '-P', '-c', LOAD, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    number, wrong = json.loads(result.stdout.splitlines()[-1])
    assert number > 0
    # Cyborg, Nova and gRPC are not in this environment; their own tests have
    # them.
    missing = {
        name
        for name, text in wrong.items()
        if text.startswith(
            (
                "ModuleNotFoundError: No module named 'cyborg",
                "ModuleNotFoundError: No module named 'grpc",
                "ModuleNotFoundError: No module named 'nova",
            )
        )
    }
    assert {name: wrong[name] for name in wrong.keys() - missing} == {}
    assert len(missing) <= 1
