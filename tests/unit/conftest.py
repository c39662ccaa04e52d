# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The fixture ``host``: a real journal, real locks, a driver and a plugin.

The driver and the plugin record their calls. A test can make a call fail.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import os
import pathlib
import signal
import tempfile
import threading
from typing import Any
import uuid

import hypothesis
import kernel as kernel_module
import pages
import pytest

import os_acc
from os_acc import driver
from os_acc import loader
from os_acc import objects
from os_acc import plugin
from os_acc.devices import root_folder
from os_acc.devices import sysfs
from os_acc.privileged import context

# An example that takes long on a busy machine is no failure.
hypothesis.settings.register_profile(
    'os-acc',
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile('os-acc')

MEMORY = '/dev/shm'
# Bytes that must be free there. All unit tests together need 350 MB.
_NEEDED = 1 << 30


def _has_room(folder: str) -> bool:
    """Whether the tests can write files there and run them as programs."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return (
        os.access(folder, os.W_OK)
        and found.f_bavail * found.f_frsize >= _NEEDED
        and not found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        'markers',
        'shown(page, language, marker): the test runs the code block of the '
        'page that contains the marker. See test_programming_page.py.',
    )
    _keep_in_memory(config)


@pytest.fixture(autouse=True)
def _reads_what_is_shown(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that a test with the marker shown reads the block of the page."""
    pages.READ.clear()
    yield
    read = set(pages.READ)
    for mark in request.node.iter_markers('shown'):
        page, language, _ = mark.args
        (text,) = pages.blocks(*mark.args)
        assert (page, language, text) in read, mark


def _keep_in_memory(config: pytest.Config) -> None:
    """Keep the temporary files of the unit tests in memory if possible.

    The tests create about 200,000 small files and commit to hundreds of
    journals, which takes twice the time on a disk. Set TMPDIR to keep them
    elsewhere. Other tests of the same run would use the same folder, so this
    is done only if the run has unit tests alone.
    """
    here = pathlib.Path(__file__).parent
    asked = [config.invocation_params.dir / arg for arg in config.args]
    only = all(path.resolve().is_relative_to(here) for path in asked)
    if only and 'TMPDIR' not in os.environ and _has_room(MEMORY):
        # The environment is for the workers of xdist and other processes.
        os.environ['TMPDIR'] = tempfile.tempdir = MEMORY


class Calls:
    """The calls in their order, and hooks that run at a call."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.hooks: dict[tuple[str, str | None], Callable[[Any], None]] = {}
        self._lock = threading.Lock()

    def __call__(self, step: str, van: objects.VAN) -> None:
        with self._lock:
            self.log.append((step, van.uuid))
        for key in ((step, van.uuid), (step, None)):
            if key in self.hooks:
                self.hooks[key](van)

    def on(
        self,
        step: str,
        do: Callable[[Any], None] | BaseException,
        van: str | None = None,
    ) -> None:
        def fail(_van: Any) -> None:
            raise do

        act = fail if isinstance(do, BaseException) else do
        self.hooks[(step, van)] = act

    def of(self, *steps: str) -> list[str]:
        """Return the UUIDs of the VANs that had these steps, in order."""
        return [van for step, van in self.log if step in steps]

    def clear(self) -> None:
        self.log.clear()
        self.hooks.clear()


class RecordingDriver(driver.DriverBase):
    calls: Calls
    claims = True
    handle_types: tuple[str, ...] = ()

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        return self.claims

    def get_devices(self) -> list[objects.Device]:
        return [
            objects.Device(
                address='dev0',
                driver=self.name,
                handles_total=8,
                handles_free=8,
            )
        ]

    def prepareVAN(self, van, request, instance_info) -> None:
        if van.handle is None:
            van.handle = request.handle or objects.TestHandle(
                name=f'made-{van.uuid}'
            )
        van.device = 'dev0'
        van.driver_data = {'was': 'free'}
        van.save()
        self.calls('prepareVAN', van)

    def postplug(self, van, instance_info) -> None:
        self.calls('postplug', van)

    def unprepareVAN(self, van, instance_info) -> None:
        self.calls('unprepareVAN', van)


class RecordingPlugin(plugin.PluginBase):
    calls: Calls
    takes: tuple[str, ...] = ('TestHandle', 'PCIHandle')

    def describe(self) -> objects.HostPluginInfo:
        return objects.HostPluginInfo(
            plugin_name=self.name,
            handle_info=[objects.HostHandleInfo.of(n) for n in self.takes],
        )

    def plug(self, van, instance_info, live) -> None:
        self.calls('plug', van)
        van.guest_config = f'<{van.handle.identity} live={live}>'

    def unplug(self, van, instance_info, live) -> None:
        self.calls('unplug', van)


class Host:
    """A host with the recording driver and plugin."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.driver = RecordingDriver.load('recording')
        self.plugin = RecordingPlugin.load('recording')
        self.driver.calls = self.plugin.calls = self.calls
        self.errors: dict[str, str] = {}
        self.drivers: dict[str, Any] = {'recording': self.driver}

    def load(self) -> loader.Extensions:
        return loader.Extensions(
            self.drivers, {'recording': self.plugin}, self.errors
        )

    @staticmethod
    def restart() -> None:
        """Initialize again, as a new process does."""
        os_acc.initialize(reset=True)

    @staticmethod
    def instance() -> objects.InstanceInfo:
        return objects.InstanceInfo(
            uuid=uuid.uuid4(), name='guest', project_id='project'
        )

    @staticmethod
    def request(**kwargs: Any) -> objects.AcceleratorRequest:
        return objects.AcceleratorRequest(uuid=uuid.uuid4(), **kwargs)

    def requests(self, count: int) -> list[objects.AcceleratorRequest]:
        return [self.request() for _ in range(count)]

    @staticmethod
    def states() -> dict[str, str]:
        return {van.uuid: van.state for van in os_acc.get_vans()}


@pytest.fixture
def clean(tmp_path, monkeypatch) -> Iterator[None]:
    """os_acc as in a new process, with a state path of its own."""
    monkeypatch.setattr(os_acc, '_host', None)
    # Not the devices of the machine that the tests run on.
    monkeypatch.setattr(sysfs, 'SYS', str(tmp_path / 'sys'))
    # Not the privileged half's folder of this machine, nor a daemon.
    monkeypatch.setattr(root_folder, 'PATH', str(tmp_path / 'os-acc'))
    monkeypatch.setattr(context, 'start_in_background', lambda: None)
    conf = os_acc.CONF
    conf([], project='os-acc', default_config_files=[])
    conf.set_override('state_path', str(tmp_path / 'state'), 'os_acc')
    conf.set_override('device_spec_dir', str(tmp_path / 'specs'), 'os_acc')
    conf.set_override('lock_timeout', 5.0, 'os_acc')
    yield
    if os_acc._host is not None:
        os_acc._host.close()
    conf.clear_override('plugin', 'os_acc')
    conf.reset()
    for group in list(conf._groups):
        if group.startswith('os_acc'):
            for option in conf._groups[group]._opts:
                conf.clear_override(option, group)


@pytest.fixture
def kernel(clean, tmp_path, monkeypatch) -> Iterator[kernel_module.Kernel]:
    """A tree of files in place of the kernel, without privsep's daemon."""
    made = kernel_module.Kernel(tmp_path / 'host')
    made.install(monkeypatch)
    os_acc.CONF.set_override('release_timeout', 0.2, 'os_acc')
    os_acc.CONF.set_override('device_timeout', 2.0, 'os_acc')
    yield made
    context.pctxt.set_client_mode(True)


@pytest.fixture
def host(clean, monkeypatch) -> Host:
    made = Host()
    monkeypatch.setattr(loader, 'load_all', made.load)
    os_acc.CONF.set_override('plugin', 'recording', 'os_acc')
    os_acc.initialize()
    return made


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Also where the tests run in the background: a shell ignores it there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
