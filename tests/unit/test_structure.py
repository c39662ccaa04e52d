# SPDX-License-Identifier: Apache-2.0

"""The structure of the sources: no circles, and a directory for each kind."""

from __future__ import annotations

import ast
import collections
import fnmatch
import pathlib
import sys
import tomllib

import pytest

import os_acc

SOURCE = pathlib.Path(os_acc.__file__).parent
ROOT = pathlib.Path(__file__).parents[2]
KINDS = {
    path.name for path in (SOURCE / 'kinds').iterdir() if path.name[0] != '_'
}

# What the directory of a kind can have: see the page "Architecture".
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


# The parts of a kind that what serves all kinds asks for by name, also in the
# daemon that runs as root: see os_acc.kinds.
ASKED_FOR = ('claims', 'entry', 'names')


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
def test_the_directory_of_a_kind(kind):
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


def test_each_plugin_is_kept_apart_from_the_drivers():
    with open(ROOT / 'pyproject.toml', 'rb') as file:
        read = tomllib.load(file)
    points = read['project']['entry-points']['os_acc.plugins'].values()
    plugins = {point.partition(':')[0] for point in points}
    of = {
        each['name']: each
        for each in read['tool']['importlinter']['contracts']
    }
    away = of['no driver imports a plugin']['forbidden_modules']
    assert set(away) - {'os_acc.plugin'} == plugins
    assert set(of['no plugin imports a driver']['source_modules']) == plugins


def reached():
    """The modules that root reaches, at any distance."""
    of = imports()
    todo = [
        name
        for name in of
        if name.startswith('os_acc.privileged')
        or (
            name.startswith('os_acc.kinds.')
            and name.rpartition('.')[2] in ASKED_FOR
        )
    ]
    found = set()
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += of[name]
    return found


def test_root_reaches_only_what_it_needs():
    """What runs as root must be readable alone: see the page "Architecture".

    The contract says what root does not reach. It prints the rest.
    """
    with open(ROOT / 'pyproject.toml', 'rb') as file:
        contracts = tomllib.load(file)['tool']['importlinter']['contracts']
    (contract,) = (
        each
        for each in contracts
        if each['name'] == 'root does not reach what it does not need'
    )
    names = {name_of(path): path for path in SOURCE.rglob('*.py')}
    found = reached()
    modules, lines = collections.Counter(), collections.Counter()
    for name in found:
        modules[room := name.split('.')[1]] += 1
        lines[room] += len(names[name].read_text().splitlines())
    for room, count in lines.most_common():
        sys.stdout.write(f'{count:6} lines, {modules[room]:3} in {room}\n')
    sys.stdout.write(f'{lines.total()} lines, {len(found)} modules\n')

    for each in contract['forbidden_modules']:
        those = {
            name
            for name in names
            if fnmatch.fnmatchcase(f'{name}.', f'{each}.*')
        }
        assert those, f'{each}: there is no such module'
        assert not those & found, f'root reaches {each}'
    rooms = {name.split('.')[1] for name in names if '.' in name}
    kept_out = {each.split('.')[1] for each in contract['forbidden_modules']}
    # A new room is one or the other.
    assert rooms - kept_out <= lines.keys()
