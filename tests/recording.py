# SPDX-License-Identifier: Apache-2.0

"""A host with a driver and a plugin that record their calls.

A test can make a call fail. The fixture ``host`` gives one to a test.
"""

from __future__ import annotations

from collections.abc import Callable
import threading
from typing import Any
import uuid

import os_acc
from os_acc import driver
from os_acc import loader
from os_acc import objects
from os_acc import plugin


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
