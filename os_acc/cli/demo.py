# SPDX-License-Identifier: Apache-2.0

"""os-acc demo: a plug, a rollback and an unplug on fake devices."""

from __future__ import annotations

import argparse
from collections.abc import Callable
import tempfile
import time
import uuid

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc import progress
from os_acc.cli import base
from os_acc.cli import progress as cli_progress
from os_acc.objects import van as states

_DEVICES = ['nic0:pci:4', 'gpu0:mdev:4', 'fpga0:pci:2:single']
_WANTED = (
    ('a PCI function', 'CUSTOM_FAKE_PCI', None),
    ('a mediated device', 'CUSTOM_FAKE_MDEV', None),
    ('an FPGA function', 'CUSTOM_FAKE_PCI', 'aes-256'),
)
# Seconds that the fake driver takes for a step.
DELAYS = {'prepareVAN': '0.2', 'program': '1.5'}


class Demo(base.Command):
    """Show a plug, a rollback and an unplug on fake devices.

    The demo uses a temporary journal and the real libvirt plugin. It changes
    nothing on this host.
    """

    announces = False

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        with tempfile.TemporaryDirectory(prefix='os-acc-demo-') as directory:
            self._start(directory)
            first = self._instance('web-1')
            self._plug(first)
            self._fail(first)
            self._unplug(first)

    def _say(self, text: str = '') -> None:
        self.out(text)

    def _start(self, directory: str) -> None:
        conf = os_acc.CONF
        conf.set_override('state_path', directory, 'os_acc')
        conf.set_override('lock_path', '', 'os_acc')
        conf.set_override('plugin', 'libvirt', 'os_acc')
        # Offer no device of this host.
        conf.set_override('device_spec', [], 'os_acc')
        conf.set_override('device_spec_dir', '', 'os_acc')
        os_acc.initialize()
        conf.set_override('hardware_path', '', 'os_acc_fake')
        conf.set_override('devices', _DEVICES, 'os_acc_fake')
        conf.set_override('discover', True, 'os_acc_fake')
        conf.set_override('fail', [], 'os_acc_fake')
        conf.set_override('delays', DELAYS, 'os_acc_fake')
        self._say(
            f'== A host with three fake devices; journal in {directory}\n'
        )
        for device in self._devices():
            self._say(
                f'   {device.address:6} {device.resource_class:17} '
                f'{device.handles_free} of {device.handles_total} handles '
                f'free, programming: {device.programming}'
            )

    @staticmethod
    def _devices() -> list[objects.Device]:
        """The fake devices, even if another driver cannot list its own."""
        try:
            devices = os_acc.get_devices()
        except exception.DiscoveryFailed as err:
            devices = err.devices
        return [device for device in devices if device.driver == 'fake']

    @staticmethod
    def _instance(name: str) -> objects.InstanceInfo:
        return objects.InstanceInfo(
            uuid=uuid.uuid4(), name=name, project_id='demo'
        )

    @staticmethod
    def _requests() -> list[objects.AcceleratorRequest]:
        return [
            objects.AcceleratorRequest(
                uuid=uuid.uuid4(),
                driver='fake',
                resource_class=resource_class,
                function_id=function,
            )
            for _, resource_class, function in _WANTED
        ]

    def _plug(self, instance: objects.InstanceInfo) -> None:
        requests = self._requests()
        self._say(
            f'\n== plug: three accelerators for {instance.name} in one call'
        )
        names = self._name(requests)
        vans = os_acc.plug(instance, requests, progress=self._teller(names))
        for van in vans:
            self._say(
                f'\n   {names[van.uuid]}, element for the libvirt domain:\n'
            )
            for line in (van.guest_config or '').splitlines():
                self._say(f'      {line}')
        self._say('\n== plug again: the same VANs, no device is touched')
        again = os_acc.plug(instance, requests, progress=self._teller(names))
        self._say(f'   the same {len(again)} VANs: {again == vans}')

    def _fail(self, first: objects.InstanceInfo) -> None:
        instance, requests = self._instance('web-2'), self._requests()
        # The FPGA already holds this function: web-1 uses it.
        os_acc.CONF.set_override(
            'fail', [f'postplug@{requests[1].uuid}'], 'os_acc_fake'
        )
        self._say(
            f'\n== plug for {instance.name}: the last step of the second VAN '
            'fails on purpose'
        )
        names = self._name(requests)
        try:
            os_acc.plug(instance, requests, progress=self._teller(names))
        except exception.PlugException as err:
            self._say(f'\n   PlugException: {err}')
        left = len(os_acc.get_vans(instance))
        self._say(f'   {instance.name} has {left} VANs')
        kept = sum(
            van.state == states.PLUGGED for van in os_acc.get_vans(first)
        )
        self._say(
            f'   A plug that fails leaves nothing behind. {first.name} keeps '
            f'its {kept} VANs.'
        )

    def _unplug(self, instance: objects.InstanceInfo) -> None:
        self._say(f'\n== unplug {instance.name}, last plugged first')
        names = self._name(
            [
                objects.AcceleratorRequest(uuid=van.uuid)
                for van in os_acc.get_vans(instance)
            ]
        )
        count = os_acc.unplug(instance, progress=self._teller(names))
        left = len(os_acc.get_vans())
        self._say(f'   released {count}; left in the journal: {left} VANs')
        self._say(
            '\nThe journal of the demo is deleted now. Next: os-acc doctor '
            'checks this host, os-acc device list shows its devices.'
        )

    @staticmethod
    def _name(requests: list[objects.AcceleratorRequest]) -> dict[str, str]:
        return {
            request.uuid: f'VAN {request.uuid[:8]} ({wanted[0]})'
            for request, wanted in zip(requests, _WANTED, strict=True)
        }

    def _teller(
        self, names: dict[str, str]
    ) -> Callable[[progress.Progress], None]:
        """Return a callback that prints each step when it ends.

        It also draws a bar for a step that reports its progress.
        """
        start = time.monotonic()
        bar = cli_progress.Bar(self.app.stdout)

        def tell(event: progress.Progress) -> None:
            bar(event)
            if event.status in (progress.DONE, progress.FAILED):
                seconds = time.monotonic() - start
                self._say(
                    f'   at {seconds:5.3f} s  {event.step:12} '
                    f'{names[event.van_uuid]:34} {event.status}'
                )

        return tell
