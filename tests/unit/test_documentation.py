# SPDX-License-Identifier: Apache-2.0

"""Runs the complete examples of the documentation unchanged."""

import ast
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import devices
from pages import SOURCE
from pages import blocks
import pytest

import os_acc
from os_acc import exception
from os_acc import loader
from os_acc import opts
from os_acc.availability import proposals
from os_acc.kernel import pci
from os_acc.kernel import pci_scan
from os_acc.spec import device_spec

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = pathlib.Path(os_acc.__file__).parent


def run(directory, *arguments):
    """Run Python in a directory, with this os-acc and the directory's
    modules."""
    path = [str(directory), str(ROOT), str(ROOT / 'vif_like_plugins')]
    # The options of this run of pytest are not the example's, and neither
    # are the plugins, which take longer to import than the example runs.
    own = {k: v for k, v in os.environ.items() if k != 'PYTEST_ADDOPTS'}
    own['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1'
    return subprocess.run(
        [sys.executable, '-W', 'ignore', *arguments],
        cwd=directory,
        env={**own, 'PYTHONPATH': os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=600,
    )


def install(directory, project):
    """Install the entry points of a pyproject.toml, as pip does."""
    info = directory / f'{project["name"].replace("-", "_")}-1.0.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text(
        f'Metadata-Version: 2.1\nName: {project["name"]}\nVersion: 1.0.0\n'
    )
    lines = []
    for group, entries in project['entry-points'].items():
        lines += [f'[{group}]', *(f'{k} = {v}' for k, v in entries.items())]
    (info / 'entry_points.txt').write_text('\n'.join(lines) + '\n')


def test_the_program_for_nova_prints_what_it_says(tmp_path):
    (program,) = blocks('callers.rst', 'python', 'def main() -> None:')
    (expected,) = blocks('callers.rst', 'text', 'released 2')
    (tmp_path / 'program.py').write_text(program)
    done = run(tmp_path, 'program.py')
    assert (done.returncode, done.stderr) == (0, '')
    said, told = (t.strip().splitlines() for t in (done.stdout, expected))
    # The two are prepared at the same time.
    assert sorted(said[:2]) == sorted(told[:2])
    assert said[2:] == told[2:]


@pytest.mark.parametrize(
    ('page', 'module', 'tests'),
    [('plugin.rst', 'os_acc_qemu', 5)],
)
def test_an_example_passes_its_own_test(tmp_path, page, module, tests):
    (toml,) = blocks(page, 'toml', '[build-system]')
    install(tmp_path, tomllib.loads(toml)['project'])
    (code,) = blocks(page, 'python', 'CONFIG_OPTS = OPTS')
    (tmp_path / f'{module}.py').write_text(code)
    (test,) = blocks(page, 'python', 'import pytest')
    (tmp_path / f'test_{module}.py').write_text(test)
    done = run(tmp_path, '-m', 'pytest', '-q', '-p', 'no:cacheprovider')
    assert done.returncode == 0, done.stdout
    assert f'{tests} passed' in done.stdout


def module_of(name):
    """The module that a dotted name is, or is in."""
    while name:
        try:
            if importlib.util.find_spec(name) is not None:
                return name
        except ModuleNotFoundError:
            pass  # a part of the name is no package
        name = name.rpartition('.')[0]
    return None


def imported(code):
    """The modules of os-acc that a piece of code imports."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            yield from (
                module_of(f'{node.module}.{alias.name}')
                for alias in node.names
            )
        elif isinstance(node, ast.Import):
            yield from (module_of(alias.name) for alias in node.names)


def test_the_public_modules_are_listed():
    """What the pages describe or import, and what the skeleton imports."""
    found = set()
    for page in SOURCE.glob('*.rst'):
        found |= {
            module_of(name)
            for name in re.findall(
                r'^\.\. auto[a-z]+:: (os_acc\.?[\w.]*)$',
                page.read_text(),
                re.MULTILINE,
            )
        }
        for code in blocks(page.name, 'python', 'import '):
            found.update(imported(code))
    for page in ('driver.rst', 'plugin.rst', 'testing-kit.rst'):
        names = re.findall(r'`(os_acc\.[\w.]+)', (SOURCE / page).read_text())
        found |= {
            module_of(name)
            for name in names
            if name not in (loader.DRIVERS, loader.PLUGINS)
        }
    for path in (PACKAGE / 'cli/skeleton').glob('*.py.in'):
        found.update(imported(path.read_text()))
    table = (SOURCE / 'api.rst').read_text().partition('Exceptions\n===')[0]
    listed = re.findall(r'^``(os_acc[\w.]*)``  ', table, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == {
        name for name in found if name and name.partition('.')[0] == 'os_acc'
    }


def test_the_drivers_and_plugins_of_this_release_are_listed():
    text = (SOURCE / 'introduction.rst').read_text()
    table = text.rpartition('Drivers and plugins in this release')[2]
    rows = re.findall(r'^(\w+) +(driver|plugin) ', table, re.MULTILINE)
    listed = {(kind, name) for name, kind in rows}
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    points = project['entry-points']
    assert listed == {('driver', name) for name in points[loader.DRIVERS]} | {
        ('plugin', name) for name in points[loader.PLUGINS]
    }


def test_the_records_of_root_are_listed():
    kept = [
        name
        for path in (PACKAGE / 'privileged').rglob('*.py')
        for name in re.findall(
            r"^\w+ = (?:undo_log\.)?Records\('([\w-]+)'",
            path.read_text(),
            re.MULTILINE,
        )
    ]
    assert 'functions' in kept
    section = (SOURCE / 'linux.rst').read_text().partition('.. _record:')[2]
    listed = re.findall(r'^``([\w-]+)``  ', section, re.MULTILINE)
    assert set(kept) <= set(listed)


@pytest.mark.parametrize(
    'page',
    [
        'callers.rst',
        'device-files.rst',
        'containers.rst',
        'dsa.rst',
        'linux.rst',
        'nova.rst',
        'placement.rst',
        'programming.rst',
        'remote.rst',
    ],
)
def test_the_examples_of_device_spec_are_valid(clean, tmp_path, page):
    found = blocks(page, 'ini', 'device_spec = ')
    assert found
    for number, text in enumerate(found):
        path = tmp_path / f'{number}.conf'
        path.write_text(text)
        os_acc.CONF(['--config-file', str(path)], project='os-acc')
        values = os_acc.CONF.os_acc.device_spec
        entries = device_spec.load(os_acc.CONF).entries
        assert len(entries) == len(values) == text.count('device_spec = ')


def test_the_error_of_a_device_that_is_not_offered(kernel):
    devices.furnish(kernel)
    devices.spec()
    address = '0000:3b:00.0'
    kernel.add_function(address)
    with pytest.raises(exception.DeviceNotFound) as caught:
        device_spec.load(os_acc.CONF).check(pci.get(address))
    (text,) = blocks('linux.rst', 'none', 'No device for')
    assert ' '.join(text.split()) == str(caught.value)


def test_the_proposal_is_as_the_command_prints_it(kernel, monkeypatch):
    monkeypatch.setattr(pci_scan, 'FILES', [])
    kernel.add_function('0000:3b:00.0', '10de:1eb8', 0x030200, numa=1)
    kernel.add_function(
        '0000:5e:00.0',
        '15b3:1017',
        0x020000,
        'mlx5_core',
        numa=0,
        totalvfs=8,
        net='eth9',
    )
    found = proposals.proposals(device_spec.load(os_acc.CONF))
    said = '\n'.join(each.text() for each in found)
    (told,) = blocks('linux.rst', 'none', 'os-acc device spec')
    told = re.sub(r'(: )[^(\n]*\((\w{4}:\w{4}, [^)]*)\)', r'\1\2', told)
    assert told.rstrip().endswith(said.rstrip())


@pytest.mark.shown('programming.rst', 'ini', 'image_owners')
def test_the_options_of_images(clean, tmp_path):
    """The example of programming.rst is read as it is shown."""
    (text,) = blocks('programming.rst', 'ini', 'image_owners')
    path = tmp_path / 'os-acc.conf'
    path.write_text(text)
    os_acc.CONF([], project='os-acc', default_config_files=[str(path)])
    assert opts.faults(os_acc.CONF) == []
    group = os_acc.CONF.os_acc_bitstreams
    assert group.cloud == 'images'
    assert group.image_owners == ['8f2b1c7de05a4c1f9a3be1d8c6f70412']
    assert group.verify_signatures == 'required'
    assert len(group.trusted_certificates) == 1
