# SPDX-License-Identifier: Apache-2.0

"""The lists of packages in the project's files name every package."""

import ast
import configparser
import importlib
from importlib import metadata
import pathlib
import re
import shlex
import sys
import tomllib

import import_all
import yaml

ROOT = pathlib.Path(__file__).parents[2]
TOOLS = tomllib.loads((ROOT / 'pyproject.toml').read_text())['tool']
INSTALLED = set(
    (metadata.distribution('os-acc').read_text('top_level.txt') or '').split()
)
# The module that is outside of the package os_acc on purpose.
OUTSIDE = {'os_acc_pytest'}


def test_there_are_packages():
    assert {'os_acc', 'acc_plug_libvirt'} | OUTSIDE <= INSTALLED


def test_the_layers():
    contracts = TOOLS['importlinter']
    assert set(contracts['root_packages']) == INSTALLED - OUTSIDE
    layers = ' '.join(contracts['contracts'][0]['layers'])
    assert {
        name for name in INSTALLED - OUTSIDE if name not in layers
    } == set()


def test_coverage():
    measured = TOOLS['coverage']['run']['source_pkgs']
    assert set(measured) == INSTALLED - OUTSIDE


def test_the_order_of_imports():
    lint = TOOLS['ruff']['lint']['isort']['known-first-party']
    others = {'os_acc_dra', 'os_acc_ironic', 'os_acc_nova'}
    assert set(lint) == INSTALLED | others


def test_types():
    files = TOOLS['mypy']['files']
    names = {'os_acc', 'vif_like_plugins'}
    assert set(files) == names | {f'contrib/{name}' for name in OUTSIDE} | {
        'contrib/os-acc-apply/os_acc_ironic',
        'contrib/os-acc-dra/os_acc_dra',
        'contrib/os-acc-nova/os_acc_nova',
    }


def test_every_module_is_imported_on_each_python():
    assert set(import_all.PACKAGES) == INSTALLED - OUTSIDE


def test_the_package_of_a_driver_says_which_it_is():
    packages = {
        each.name: importlib.import_module(each.module.rpartition('.')[0])
        for each in metadata.entry_points(group='os_acc.drivers')
        if each.module.startswith('os_acc.kinds.')
    }
    # The driver of drc is one module.
    del packages['drc']
    assert {'devfile', 'pci'} <= packages.keys()
    for name, package in packages.items():
        assert (package.__doc__ or '').startswith(f'The driver {name}')


# How Python names what a distribution has, if not by its own name.
MODULES = {
    'libvirt-python': 'libvirt',
    'openstacksdk': 'openstack',
    'pyyaml': 'yaml',
}
# Services whose processes import os-acc, and what they have in any case.
OF_SERVICES = {'castellan', 'cyborg', 'nova'}


def modules_of(requirements):
    """The modules that requirements bring."""
    names = {re.match(r'[\w.-]+', x)[0].lower() for x in requirements}
    return {
        MODULES.get(name, name.replace('-', '_').replace('.', '_'))
        for name in names
    }


def imported():
    """The packages that the modules of os-acc import, anywhere."""
    found = set()
    for package in INSTALLED:
        directory = pathlib.Path(
            importlib.import_module(package).__file__
        ).parent
        for path in directory.rglob('*.py'):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {x.name.partition('.')[0] for x in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module.partition('.')[0])
    return found - INSTALLED - sys.stdlib_module_names


def test_a_plain_installation_brings_what_is_imported_and_no_more():
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    required = modules_of(project['dependencies'])
    found = imported()
    assert required - found == set()
    extras = modules_of(
        each
        for name, group in project['optional-dependencies'].items()
        if name not in ('test', 'docs', 'lab')
        for each in group
    )
    assert found - required - extras - OF_SERVICES == set()


def test_the_hooks_run_what_tox_runs():
    """But for the tests of a client's types, which take minutes."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / 'tox.ini')
    commands = {
        line
        for line in tox['testenv:pep8']['commands'].splitlines()
        if line and line[0] != '#' and 'tests/client_types' not in line
    }
    hooks = {
        hook['id']: hook.get('entry', '')
        for repo in yaml.safe_load(
            (ROOT / '.pre-commit-config.yaml').read_text()
        )['repos']
        for hook in repo['hooks']
    }
    assert {'ruff-check', 'ruff-format'} <= hooks.keys()
    run = {
        shlex.split(entry)[-1].partition('commands=')[2]
        for entry in hooks.values()
        if entry
    }
    assert commands - run == {'ruff check .', 'ruff format --check .'}
