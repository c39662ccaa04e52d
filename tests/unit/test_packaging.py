# SPDX-License-Identifier: Apache-2.0

"""The lists of packages in the project's files name every package."""

import importlib
from importlib import metadata
import pathlib
import tomllib

import import_all

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
    assert set(lint) == INSTALLED | {'os_acc_nova'}


def test_types():
    files = TOOLS['mypy']['files']
    names = {'os_acc', 'vif_like_plugins'}
    assert set(files) == names | {f'contrib/{name}' for name in OUTSIDE} | {
        'contrib/os-acc-nova/os_acc_nova'
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
