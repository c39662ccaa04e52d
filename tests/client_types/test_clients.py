# SPDX-License-Identifier: Apache-2.0

"""mypy and pyright accept the programs of the README and of the pages.

They see os-acc as a client sees it: the built wheel, in an environment of its
own, and no plugin of mypy. The environment pep8 of tox runs these tests.
"""

from __future__ import annotations

import ast
import builtins
import json
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
README = ROOT / 'README.rst'
PAGES = ROOT / 'doc' / 'source'
SKELETON = ROOT / 'os_acc' / 'cli' / 'skeleton'
_BLOCK = re.compile(
    r'^\.\. code-block:: python\n\n((?:   .*\n|\n)+)', re.MULTILINE
)

# What the programs leave to the reader, as the text around them says.
GIVEN = """
from typing import Any
import logging
import uuid as uuid
from lxml import etree as etree
import os_acc as os_acc
from os_acc import objects as objects
from os_acc.progress import Progress as Progress

LOG = logging.getLogger(__name__)
accel_info: list[dict[str, Any]] = []
arqs = accel_info
instance_uuid = '9a5b6c1e-0f3d-4c52-8f4e-2f6f1a3b7c10'
instance_info = objects.InstanceInfo(uuid=instance_uuid)
known_instance_uuids = [instance_uuid]
requests = objects.AcceleratorRequest.from_arqs(arqs)
request = requests[0]
vans = os_acc.plug(instance_info, requests)
port: dict[str, Any] = {}
domain = etree.fromstring('<domain/>')
devices = etree.SubElement(domain, 'devices')
# Nova's own objects, which have no types:
guest: Any = None
instance: Any = None
is_running: Any = None
network_info: Any = None
profile_groups: Any = None


def choose_vf(request: Any, taken: Any) -> objects.PCIHandle:
    return objects.PCIHandle(address="0000:3b:00.1")


def driver_of(handle: Any) -> str:
    return ""

def bind(handle: Any) -> None: ...
def unbind(handle: Any, driver_data: dict[str, str]) -> None: ...
"""

# Mistakes that both must find, by their lines.
WRONG = """
import os_acc
from os_acc import objects

info = objects.InstanceInfo(uid='x')
info = objects.InstanceInfo(name='without an uuid')
info = objects.InstanceInfo(uuid=3)
for van in os_acc.plug(info, []):
    van.guest_conf = 'x'
    van.guest_config.lower()
    van.handle.address
objects.PCIHandle(address='0000:3b:00.0', managed='yes')
objects.VAN.cast(None)
"""
WRONG_LINES = [5, 6, 7, 9, 10, 11, 12, 13]


def blocks(path: pathlib.Path) -> list[str]:
    return [textwrap.dedent(each) for each in _BLOCK.findall(path.read_text())]


def free_names(code: str) -> list[str]:
    """The names that a program uses and does not define."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [each for each in nodes if isinstance(each, ast.Name)]
    bound = {x.id for x in names if not isinstance(x.ctx, ast.Load)}
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler):
            bound.add(node.name or '')
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name)
    used = {x.id for x in names} - bound - vars(builtins).keys()
    return sorted(used - {'__name__'})


def module(code: str) -> str:
    given = ''.join(f'from given import {x}\n' for x in free_names(code))
    return given + code


@pytest.fixture(scope='module')
def python(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The Python of an environment that has the wheel of the tree."""
    top = tmp_path_factory.mktemp('client')
    shutil.copytree(
        ROOT,
        top / 'tree',
        ignore=shutil.ignore_patterns(
            '.*', 'build', 'dist', '*.egg-info', '__pycache__', 'tests'
        ),
        symlinks=True,
    )
    run(
        *(sys.executable, '-m', 'build', '--no-isolation', '--wheel'),
        *('--outdir', str(top), str(top / 'tree')),
    )
    run(sys.executable, '-m', 'venv', '--without-pip', str(top / 'venv'))
    (site,) = (top / 'venv' / 'lib').glob('python*/site-packages')
    (wheel,) = top.glob('*.whl')
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # Behind the wheel, what this environment has.
    (site / 'this.pth').write_text(sysconfig.get_path('purelib') + '\n')
    return top / 'venv' / 'bin' / 'python'


def run(*command: str, cwd: pathlib.Path | None = None, check: bool = True):
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=cwd,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def mypy(
    python: pathlib.Path, directory: pathlib.Path, *options: str
) -> list[str]:
    """The mistakes that mypy finds, each as FILE:LINE: TEXT."""
    (directory / 'mypy.ini').write_text('[mypy]\n')
    said = run(
        *(sys.executable, '-m', 'mypy', *options, '--no-error-summary'),
        *('--python-executable', str(python), '--hide-error-context'),
        *('--config-file', 'mypy.ini', '.'),
        cwd=directory,
        check=False,
    )
    return [x for x in said.splitlines() if ': error: ' in x]


def pyright(python: pathlib.Path, directory: pathlib.Path) -> list[str]:
    """The mistakes that pyright finds, each as FILE:LINE: TEXT."""
    said = run(
        *(sys.executable, '-m', 'pyright', '--outputjson'),
        *('--pythonpath', str(python), '.'),
        cwd=directory,
        check=False,
    )
    report = json.loads(said)
    assert report['summary']['filesAnalyzed'] > 0
    return [
        f'{pathlib.Path(x["file"]).name}:{x["range"]["start"]["line"] + 1}: '
        f'{x["message"]}'
        for x in report['generalDiagnostics']
        if x['severity'] == 'error'
    ]


def write(directory: pathlib.Path, modules: dict[str, str]) -> None:
    for name, text in modules.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.fixture
def clients(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory with the programs that call os-acc."""
    found = {
        'readme.py': blocks(README)[0],
        'libvirt.py': blocks(PAGES / 'libvirt.rst')[0],
    }
    for number, code in enumerate(blocks(PAGES / 'callers.rst')):
        found[f'callers_{number}.py'] = code
    assert len(found) > 14
    write(tmp_path, {name: module(code) for name, code in found.items()})
    write(tmp_path, {'given.py': GIVEN})
    return tmp_path


@pytest.fixture
def extensions(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory with the drivers and plugins, most of them without types."""
    found = {
        'readme.py': blocks(README)[1],
        'os_acc_qemu.py': blocks(PAGES / 'plugin.rst')[0],
        'given.py': GIVEN,
    }
    for name in ('__init__', 'devices', 'driver', 'privileged'):
        text = (SKELETON / f'{name}.py.in').read_text()
        found[f'os_acc_acme/{name}.py'] = text
    write(
        tmp_path,
        {
            name: code if '/' in name else module(code)
            for name, code in found.items()
        },
    )
    return tmp_path


def test_mypy_accepts_the_clients(python, clients):
    assert mypy(python, clients, '--strict') == []


def test_pyright_accepts_the_clients(python, clients):
    assert pyright(python, clients) == []


def test_mypy_accepts_the_extensions(python, extensions):
    assert mypy(python, extensions, '--check-untyped-defs') == []


def test_pyright_accepts_the_extensions(python, extensions):
    assert pyright(python, extensions) == []


@pytest.mark.parametrize('checker', [mypy, pyright])
def test_mistakes_are_found(python, tmp_path, checker):
    write(tmp_path, {'wrong.py': WRONG})
    found = checker(python, tmp_path)
    lines = {int(each.split(':')[1]) for each in found}
    assert sorted(lines) == WRONG_LINES, found
    assert {'uid', 'guest_conf'} <= set(re.findall(r'\w+', '\n'.join(found)))
