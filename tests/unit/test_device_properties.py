# SPDX-License-Identifier: Apache-2.0

"""Whatever happens in whatever order: the host ends as it began."""

from __future__ import annotations

import pathlib
import tempfile

import devices
import examples
from hypothesis import HealthCheck
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import invariant
from hypothesis.stateful import rule
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.testing import kernel
from os_acc.testing import mortal

INSTANCES = [f'{n}b0a6bb0-1111-4222-8333-444455556666' for n in range(3)]
MDEVS = [f'{n}f6a7b8c-1111-4222-8333-444455556666' for n in range(2)]

NIC_PF = '0000:08:00.0'
NIC_VFS = [f'0000:08:00.{n}' for n in (1, 2)]
PORT = {
    'mac_address': 'fa:16:3e:00:00:01',
    'vlan': 101,
    'trusted': True,
    'spoof_check': False,
}

# What may be asked for, each by one request of its own.
HANDLES = (
    *(objects.PCIHandle(address=vf) for vf in NIC_VFS),
    *(objects.PCIHandle(address=vf) for vf in devices.VFS[:3]),
    objects.PCIHandle(address=devices.PF),
    objects.PCIHandle(address=devices.DISK),
    objects.PCIHandle(address=devices.NIC),
    objects.PCIHandle(address=devices.GPU),
    *(
        objects.MdevHandle(uuid=name, parent='mtty', type='mtty-2')
        for name in MDEVS
    ),
)
# Used by the host, or not named by device_spec.
NEVER = (devices.NIC, devices.GPU)

choices = st.lists(
    st.integers(0, len(HANDLES) - 1), min_size=1, max_size=3, unique=True
)
instances = st.integers(0, len(INSTANCES) - 1)


class Host(RuleBasedStateMachine):
    """One host; its process crashes and starts again."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.patch = pytest.MonkeyPatch()
        root = pathlib.Path(self.directory.name)
        self.kernel = kernel.Kernel(root / 'host')
        self.kernel.install(self.patch)
        devices.furnish(self.kernel)
        (self.kernel.sys / 'class/net/eth0/flags').write_text('0x1003\n')
        self.kernel.add_function(
            NIC_PF, '8086:1572', 0x020000, 'i40e', totalvfs=2, net='ens8f0'
        )
        conf = os_acc.CONF
        conf([], project='os-acc', default_config_files=[])
        for name, value in {
            'state_path': str(root / 'state'),
            'release_timeout': 0.05,
            'device_timeout': 60.0,
            'lock_timeout': 5.0,
            'max_workers': 1,
        }.items():
            conf.set_override(name, value, 'os_acc')
        devices.spec(
            {'address': devices.PF, 'num_vfs': 3},
            {'address': NIC_PF, 'num_vfs': 2, 'trusted': True},
            {'address': devices.DISK},
            {'address': devices.NIC},
            {'address': 'mtty'},
        )
        self.before = self.kernel.snapshot()
        os_acc.initialize(reset=True)

    def teardown(self) -> None:
        try:
            for name in INSTANCES:
                os_acc.unplug(_instance(name))
            assert not os_acc.get_vans()
            assert self.kernel.snapshot() == self.before
        finally:
            os_acc._host.close()
            os_acc._host = None
            self.patch.undo()
            os_acc.CONF.reset()
            for option in os_acc.CONF._groups['os_acc']._opts:
                os_acc.CONF.clear_override(option, 'os_acc')
            self.directory.cleanup()

    def _do(self, act) -> None:
        """A call; if the process dies in it, a new one starts."""
        try:
            act()
        except (exception.PlugException, exception.UnplugException):
            pass
        except mortal.Crash:
            pass
        finally:
            self.kernel.calm()
            if self.kernel.dead:
                self.kernel.revive()
                os_acc.initialize(reset=True)

    @rule(which=choices, instance=instances)
    def plug(self, which, instance) -> None:
        self._do(lambda: _plug(which, instance))

    @rule(
        which=choices,
        instance=instances,
        at=st.integers(0, 6),
        after=st.booleans(),
    )
    def plug_and_crash(self, which, instance, at, after) -> None:
        self.kernel.crash_at(at, after)
        self._do(lambda: _plug(which, instance))

    @rule(instance=instances)
    def unplug(self, instance) -> None:
        self._do(lambda: os_acc.unplug(_instance(INSTANCES[instance])))

    @rule(instance=instances, at=st.integers(0, 6), after=st.booleans())
    def unplug_and_crash(self, instance, at, after) -> None:
        self.kernel.crash_at(at, after)
        self._do(lambda: os_acc.unplug(_instance(INSTANCES[instance])))

    @rule()
    def reboot(self) -> None:
        self.kernel.reboot()
        os_acc.initialize(reset=True)

    @rule()
    def recover(self) -> None:
        os_acc.recover()

    @invariant()
    def nothing_is_taken_twice_or_from_the_host(self) -> None:
        vans = os_acc.get_vans()
        handles = [van.handle.identity for van in vans if van.handle]
        assert len(handles) == len(set(handles))
        for name, text in self.kernel.writes:
            assert not any(never in (name, text) for never in NEVER)
            assert not any(f'/{never}/' in name for never in NEVER)

    @invariant()
    def a_vf_without_a_van_has_no_port(self) -> None:
        vans = os_acc.get_vans()
        held = {van.handle.address for van in vans if van.device == NIC_PF}
        for vf, found in zip(
            NIC_VFS, self.kernel.ports.get(NIC_PF, []), strict=False
        ):
            if vf not in held:
                assert found['mac_address'] == '00:00:00:00:00:00'
                assert found['vlan'] == [0, 0]
                assert not found['trusted']
                assert found['spoof_check']


def _instance(name: str) -> objects.InstanceInfo:
    return objects.InstanceInfo(uuid=name, name='guest', project_id='project')


def _plug(which, instance) -> None:
    requests = [
        objects.AcceleratorRequest(
            uuid=f'{instance}{number:07}-1111-4222-8333-444455556666',
            handle=HANDLES[number],
            port=(
                objects.PortBinding(**PORT) if number < len(NIC_VFS) else None
            ),
        )
        for number in which
    ]
    os_acc.plug(_instance(INSTANCES[instance]), requests)


TestHost = Host.TestCase
TestHost.settings = settings(
    max_examples=examples.costly(15),
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
