# SPDX-License-Identifier: Apache-2.0

"""The structure of the sources: no circles, and a folder for each kind."""

from __future__ import annotations

import ast
import pathlib
import tomllib

import pytest

import os_acc

SOURCE = pathlib.Path(os_acc.__file__).parent
ROOT = pathlib.Path(__file__).parents[2]
KINDS = {
    path.name for path in (SOURCE / 'kinds').iterdir() if path.name[0] != '_'
}

# What the folder of a kind can have: see the page "Architecture".
FILES = {
    'claims.py',
    'driver',
    'driver.py',
    'entry.py',
    'facts.py',
    'groups.py',
    'ids.py',
    'names.py',
    'refusals.py',
    'rules.py',
    'use.py',
    'words.py',
}


def name_of(path):
    parts = path.relative_to(SOURCE.parent).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def imports():
    """The modules of os_acc that each module imports, at any depth."""
    names = {name_of(path): path for path in SOURCE.rglob('*.py')}
    found = {}
    for name, path in names.items():
        of = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                of.update(each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                for each in node.names:
                    inner = f'{node.module}.{each.name}'
                    of.add(inner if inner in names else node.module)
        of &= names.keys()
        if path.name == '__init__.py':
            # A package that loads its modules when they are first used names
            # them for the type checker only.
            of = {each for each in of if not each.startswith(f'{name}.')}
        found[name] = of - {name}
    return found


def test_no_module_imports_itself_in_a_circle():
    """Each module can be read after those that it imports."""
    left = imports()
    while True:
        ready = {name for name, needs in left.items() if not needs}
        if not ready:
            break
        left = {
            name: needs - ready
            for name, needs in left.items()
            if name not in ready
        }
    assert left == {}


@pytest.mark.parametrize('kind', sorted(KINDS))
def test_the_folder_of_a_kind(kind):
    found = {
        path.name
        for path in (SOURCE / 'kinds' / kind).iterdir()
        if path.name[:2] != '__'
    }
    assert found <= FILES


def test_each_kind_has_its_driver_and_its_layer():
    with open(ROOT / 'pyproject.toml', 'rb') as file:
        read = tomllib.load(file)
    points = read['project']['entry-points']['os_acc.drivers'].values()
    assert {
        point.removeprefix('os_acc.kinds.').partition('.')[0]
        for point in points
    } == KINDS
    layers, *others = read['tool']['importlinter']['contracts']
    listed = {
        module.strip()
        for layer in layers['layers']
        for module in layer.replace(':', '|').split('|')
    }
    for path in (SOURCE / 'kinds').glob('*/[!_]*'):
        assert name_of(path) in listed
    (apart,) = (
        each for each in others if each['name'] == 'no kind imports another'
    )
    assert set(apart['modules']) == {f'os_acc.kinds.{kind}' for kind in KINDS}
