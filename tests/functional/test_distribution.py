# SPDX-License-Identifier: Apache-2.0

"""A driver and a plugin of another distribution, which is installed.

os-acc does not know acc-example, but finds it by its entry points. The options
of acc-example are in [os_acc_example]. The installation needs a package index,
because pip builds the wheel with the setuptools that acc-example requires.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

EXAMPLE = pathlib.Path(__file__).parent / 'acc-example'

BROKEN = {
    'pyproject.toml': """
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "acc-broken"
version = "1.0.0"

[project.entry-points."os_acc.drivers"]
broken = "acc_broken:NotThere"
missing = "acc_missing:Driver"

[project.entry-points."os_acc.plugins"]
broken = "acc_broken_plugin:Plugin"

[tool.setuptools]
py-modules = ["acc_broken", "acc_broken_plugin"]
""",
    'acc_broken.py': '',
    'acc_broken_plugin.py': "raise RuntimeError('the bus\\nis gone')\n",
}

PLUG = """
import json, os, sys, uuid
import os_acc
from os_acc import exception, objects

os_acc.CONF(sys.argv[1:], project='os-acc')
os_acc.initialize()
group = os_acc.CONF.os_acc_example
instance = objects.InstanceInfo(uuid=uuid.uuid4(), name='g', project_id='p')

def request():
    return objects.AcceleratorRequest(
        uuid=uuid.uuid4(), resource_class='CUSTOM_EXAMPLE'
    )

def guest():
    with open(os.path.join(group.guests, instance.uuid)) as file:
        return file.read()

told = []
vans = os_acc.plug(instance, [request(), request()], live=True,
                   progress=lambda event: told.append(event.step))
said = {
    'options': [group.slots, group.element],
    'vans': [[v.driver, v.plugin, v.state, v.handle.name, v.guest_config]
             for v in vans],
    'steps': sorted(set(told)),
    'used': sorted(os.listdir(group.directory)),
    'guest': guest(),
}
try:
    os_acc.plug(instance, [request()])
except exception.PlugException as err:
    said['cause'] = type(err.__cause__).__name__
try:
    devices = os_acc.get_devices()
except exception.DiscoveryFailed as err:
    said['missing'] = str(err)
    devices = err.devices
said['free'] = [d.handles_free for d in devices if d.driver == 'example']
info = os_acc.host_info()
said['drivers'] = {d.driver_name: [h.handle_object_name
                                   for h in d.handle_info]
                   for d in info.driver_info}
said['plugins'] = {p.plugin_name: [h.handle_object_name
                                   for h in p.handle_info]
                   for p in info.plugin_info}
said['permitted'] = sorted(
    p.plugin_name for p in os_acc.host_info(['MdevHandle']).plugin_info)
said['errors'] = dict(info.load_errors)
said['released'] = os_acc.unplug(instance, live=True)
said['left'] = [os.listdir(group.directory), guest(), len(os_acc.get_vans())]
json.dump(said, sys.stdout)
"""


class Environment:
    """A virtual environment that sees the packages of this one."""

    def __init__(self, path):
        self.path = path
        self.python = path / 'bin' / 'python'
        command = [sys.executable, '-m', 'venv', '--without-pip', path]
        subprocess.run(command, check=True)
        # --system-site-packages would show the interpreter's own, not those
        # of the environment that the tests run in. addsitedir() reads the
        # .pth files there too: os-acc may be installed by one.
        purelib = self.run(
            'import sysconfig; print(sysconfig.get_path("purelib"))'
        ).strip()
        here = sysconfig.get_path('purelib')
        pathlib.Path(purelib, 'this.pth').write_text(
            f'import site; site.addsitedir({here!r})\n'
        )

    def run(self, script, *arguments):
        done = subprocess.run(
            [self.python, '-W', 'ignore', '-c', script, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=self.path,
            # Another tool that runs the tests must not be seen.
            env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, *directories):
        """Install distributions without their dependencies."""
        done = subprocess.run(
            [
                *(sys.executable, '-m', 'pip', '--python', self.python),
                *('install', '--no-deps', '--quiet'),
                *('--disable-pip-version-check', *directories),
            ],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope='module')
def environment(tmp_path_factory):
    """An environment with the example."""
    path = tmp_path_factory.mktemp('distribution')
    # pip builds in the directory itself, so use a copy.
    shutil.copytree(EXAMPLE, path / 'acc-example')
    made = Environment(path / 'venv')
    made.install(path / 'acc-example')
    return made


@pytest.fixture(scope='module')
def broken(environment, tmp_path_factory):
    """An environment with the example, and with one that does not load."""
    path = tmp_path_factory.mktemp('acc-broken')
    for name, text in BROKEN.items():
        (path / name).write_text(text)
    environment.install(path)
    return environment


@pytest.fixture
def arguments(tmp_path, environment):
    """What the example needs; its daemon runs as the user of the tests."""
    helper = f'{environment.python} -m oslo_privsep.daemon'
    conf = tmp_path / 'os-acc.conf'
    for name in ('slots', 'guests'):
        (tmp_path / name).mkdir()
    conf.write_text(
        f"""
[os_acc]
plugin = example
state_path = {tmp_path}/state

[os_acc_example_privileged]
helper_command = {helper} --config-file {conf}
capabilities =

[os_acc_example]
slots = a, b
directory = {tmp_path}/slots
guests = {tmp_path}/guests
element = device
"""
    )
    return ['--config-file', str(conf)]


def assert_it_works(said):
    assert said['options'] == [['a', 'b'], 'device']
    vans = sorted(said['vans'], key=lambda van: van[3])
    assert vans == [
        ['example', 'example', 'plugged', slot, f'<device {slot}>']
        for slot in ('a', 'b')
    ]
    assert said['steps'] == ['plug', 'postplug', 'prepareVAN']
    assert said['used'] == ['a', 'b']
    assert said['guest'] == 'a b'
    assert said['cause'] == 'DeviceNotFound'
    assert said['free'] == [0]
    assert said['released'] == 2
    assert said['left'] == [[], '', 0]
    assert said['drivers']['example'] == ['TestHandle']
    assert said['plugins']['example'] == ['TestHandle']
    # os-acc's own drivers and plugins still load.
    assert 'fake' in said['drivers']
    assert {'libvirt', 'noop'} <= set(said['plugins'])
    assert 'example' not in said['permitted']
    assert 'libvirt' in said['permitted']


def test_an_installed_driver_and_plugin(environment, arguments):
    said = json.loads(environment.run(PLUG, *arguments))
    assert_it_works(said)
    assert said['errors'] == {}


def test_its_options_are_in_the_sample_configuration(environment):
    sample = environment.run(
        'import sys; from oslo_config import generator;'
        'sys.exit(generator.main())',
        *('--namespace', 'os_acc'),
    )
    group = sample.partition('[os_acc_example]')[2].partition('\n[')[0]
    for option in ('slots = slot0', 'element = slot', 'directory', 'guests'):
        assert f'#{option}' in group


def test_one_that_does_not_load_leaves_the_others(broken, arguments):
    said = json.loads(broken.run(PLUG, *arguments))
    assert_it_works(said)
    errors = said['errors']
    assert sorted(errors) == [
        'driver broken',
        'driver missing',
        'plugin broken',
    ]
    assert 'NotThere' in errors['driver broken']
    assert "No module named 'acc_missing'" in errors['driver missing']
    assert 'RuntimeError: the bus' in errors['plugin broken']
    assert 'broken' not in {**said['drivers'], **said['plugins']}
    # Their devices are missing, which must not read as "there are none".
    for name in ('broken', 'missing'):
        assert f"driver '{name}' is not loaded" in said['missing']


def test_host_show_names_the_one_that_does_not_load(broken, arguments):
    command = 'import sys; from os_acc.cli import app; sys.exit(app.main())'
    rows = {
        (row['kind'], row['name']): row
        for row in json.loads(
            broken.run(command, *arguments, 'host', 'show', '-f', 'json')
        )
    }
    status = rows['plugin', 'broken']['status']
    assert status.startswith('not loaded: RuntimeError: the bus')
    assert 'not loaded' in rows['driver', 'missing']['status']
    assert rows['driver', 'example']['status'] == 'loaded'
    chosen = rows['plugin', 'example']
    assert chosen['status'] == "loaded, this host's plugin"
    assert chosen['handles'] == 'TestHandle 1.0'
    assert rows['plugin', 'libvirt']['status'] == 'loaded'
