# SPDX-License-Identifier: Apache-2.0

"""The inventory is true: what it says is free can be plugged now.

Hosts are generated. On each, some devices are plugged, and the report of every
driver is compared with itself and with what a plug then answers.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile

import devices
import examples
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest
import vgpu_card

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.kernel import vgpu_cards
from os_acc.testing import kernel as kernel_module

CARD = '0000:41:00.0'
TYPES = {564: ('NVIDIA A40-24Q', 24), 559: ('NVIDIA A40-2Q', 2)}

#: What can be special about a function, as arguments of add_function().
KINDS = {
    'plain': {},
    'no group': {'group': -1},
    'mounted': {'block': 'sda', 'driver': 'nvme', 'pci_class': 0x010802},
    'up': {'net': 'eth', 'driver': 'e1000e', 'pci_class': 0x020000},
    'console': {
        'pci_class': 0x030000,
        'files': {'boot_vga': '1\n'},
    },
    'shared': {'group': 7},
    'shared with host': {'group': 8},
    'guest': {
        'driver': 'vfio-pci',
        'files': {
            'power/runtime_status': 'active\n',
            'power/control': 'auto\n',
        },
    },
    'idle': {
        'driver': 'vfio-pci',
        'files': {
            'power/runtime_status': 'suspended\n',
            'power/control': 'auto\n',
        },
    },
}

hosts = st.fixed_dictionaries(
    {
        'kinds': st.lists(st.sampled_from(sorted(KINDS)), max_size=5),
        'num_vfs': st.sampled_from([None, 2, 4, 9]),
        'vfs': st.booleans(),
        'vgpu': st.sampled_from([None, '564', '559', 'preset']),
        'limit': st.sampled_from([None, 1, 3]),
        'mdevs': st.lists(st.sampled_from(['mtty-1', 'mtty-2']), max_size=3),
        'plugs': st.lists(st.integers(0, 40), max_size=6),
    }
)


@contextlib.contextmanager
def generated(values):
    with (
        tempfile.TemporaryDirectory() as directory,
        pytest.MonkeyPatch.context() as patch,
    ):
        root = pathlib.Path(directory)
        made = kernel_module.Kernel(root / 'host')
        made.install(patch)
        patch.setattr(vgpu_cards, 'PATH', str(root / 'missing.xml'))
        patch.setattr(os_acc, '_host', None)
        conf = os_acc.CONF
        conf([], project='os-acc', default_config_files=[])
        for name, value in {
            'state_path': str(root / 'state'),
            'release_timeout': 0.05,
            'device_timeout': 60.0,
            'lock_timeout': 5.0,
            'plugin': 'noop',
        }.items():
            conf.set_override(name, value, 'os_acc')
        furnish(made, values)
        os_acc.initialize()
        try:
            yield made
        finally:
            os_acc._host.close()
            conf.reset()
            for option in conf._groups['os_acc']._opts:
                conf.clear_override(option, 'os_acc')


def furnish(made, values) -> None:
    for number, kind in enumerate(values['kinds']):
        _add(made, number, kind)
    made.add_function('0000:0a:00.0', group=8, driver='e1000e')
    made.add_function('0000:20:00.0', driver='qat', totalvfs=4)
    if values['vfs']:
        made.write(str(made.pci / 'devices/0000:20:00.0/sriov_numvfs'), '3')
    made.add_mtty()
    types = made.sys / 'class/mdev_bus/mtty/mdev_supported_types'
    for number, kind in enumerate(values['mdevs']):
        name = f'{number}f6a7b8c-1111-4222-8333-444455556666'
        made.write(str(types / kind / 'create'), name)
    pf = {'address': '0000:20:00.0', 'num_vfs': values['num_vfs']}
    devices.spec(
        _vgpus(made, values),
        {name: value for name, value in pf.items() if value is not None},
        {'address': 'mtty'},
        {'address': {'bus': '0.', 'slot': '00', 'function': '0'}},
    )


def _add(made, number: int, kind: str) -> None:
    """Add a function of a kind, on a bus of its own."""
    arguments = dict(KINDS[kind])
    for name in ('block', 'net'):
        if name in arguments:
            arguments[name] += str(number)
    made.add_function(f'0000:0{number}:00.0', **arguments)
    if kind == 'mounted':
        made.write_file('proc/swaps', f'Filename\n/dev/sda{number} x\n')
    if kind == 'up':
        flags = made.sys / f'class/net/eth{number}/flags'
        flags.write_text('0x1003\n')


def _vgpus(made, values):
    """Add a card. Returns its entry of device_spec."""
    card = vgpu_card.Card(made, CARD, TYPES, size=48, vfs=5)
    if values['vgpu'] == 'preset':
        card.preset(card.vfs[0], 564)
        return {'address': CARD, 'bind': 'none'}
    entry = {'address': CARD, 'vgpu_type': values['vgpu']}
    if values['vgpu'] is not None:
        entry['max_instances'] = values['limit']
    return {name: value for name, value in entry.items() if value is not None}


def wanted(device) -> list[objects.AttachHandle]:
    """A handle for everything that a device says is free."""
    found = [each.handle for each in device.handles if each.state == 'free']
    return found + [
        devices.mdev(kind.name, parent=device.address).handle
        for kind in device.mdev_types
        if kind.available
    ]


def check(found: list[objects.Device]) -> None:
    for device in found:
        states = [each.state for each in device.handles]
        capacity = max((k.capacity for k in device.mdev_types), default=0)
        available = max((k.available for k in device.mdev_types), default=0)
        assert len(states) + capacity == device.handles_total
        assert states.count('free') + available == device.handles_free
        assert available <= capacity
        identities = [each.handle.identity for each in device.handles]
        assert len(set(identities)) == len(identities)
        for each in device.handles:
            assert (each.reason is None) == (each.state == 'free')
        copy = objects.Device.obj_from_primitive(device.obj_to_primitive())
        assert copy == device
    held = {
        each.holder: each.handle.identity
        for device in found
        for each in device.handles
        if each.holder is not None
    }
    assert held == {van.uuid: van.handle.identity for van in os_acc.get_vans()}


@settings(
    max_examples=examples.costly(8),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(hosts)
def test_what_is_free_can_be_plugged(values):
    with generated(values):
        for choice in values['plugs']:
            found = os_acc.get_devices()
            check(found)
            free = [handle for device in found for handle in wanted(device)]
            if free:
                _plug(free[choice % len(free)])
        found = os_acc.get_devices()
        check(found)
        # All that is left, one after the other: what each plug takes from the
        # others shows in the next report.
        before = sum(device.handles_free for device in found)
        for device in found:
            for handle in wanted(device):
                instance = _plug(handle)
                after = os_acc.get_devices()
                check(after)
                assert sum(each.handles_free for each in after) < before
                assert os_acc.unplug(instance) == 1
        after = os_acc.get_devices()
        check(after)
        assert sum(each.handles_free for each in after) == before


@settings(
    max_examples=examples.costly(5),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(hosts)
def test_what_is_not_free_is_refused(values):
    with generated(values):
        for device in os_acc.get_devices():
            for each in device.handles:
                if each.state in ('free', 'used'):
                    continue
                with pytest.raises(exception.PlugException):
                    _plug(each.handle)


def _plug(handle) -> objects.InstanceInfo:
    instance = devices.instance()
    request = objects.AcceleratorRequest(
        uuid=instance.uuid,
        handle=handle.obj_clone(),
    )
    os_acc.plug(instance, [request])
    return instance


class TestStates:
    """One host with a function of each kind."""

    @pytest.fixture
    def report(self, kernel) -> dict[str, objects.DeviceHandleInfo]:
        values = {
            'kinds': sorted(KINDS),
            'num_vfs': None,
            'vfs': False,
            'vgpu': None,
            'limit': None,
            'mdevs': [],
        }
        furnish(kernel, values)
        os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
        os_acc.initialize()
        found = {device.address: device for device in os_acc.get_devices()}
        return {
            kind: found[f'0000:0{number}:00.0'].handles[0]
            for number, kind in enumerate(sorted(KINDS))
        }

    @pytest.mark.parametrize(
        ('kind', 'state', 'reason'),
        [
            ('plain', 'free', None),
            ('no group', 'absent', 'IOMMU'),
            ('mounted', 'host', 'swap'),
            ('up', 'host', 'is up'),
            ('console', 'host', 'boot display'),
            ('shared', 'free', None),
            ('shared with host', 'host', 'e1000e'),
            ('guest', 'used', 'a guest that os-acc did not plug has it'),
            ('idle', 'free', None),
        ],
    )
    def test_state(self, report, kind, state, reason):
        info = report[kind]
        assert info.state == state
        assert info.holder is None
        if reason is None:
            assert info.reason is None
        else:
            assert reason in info.reason


def test_vfs_of_several_entries(kernel):
    """The VFs of a PF can be of several resource classes."""
    kernel.add_function('0000:20:00.0', driver='qat', totalvfs=4)
    kernel.write(str(kernel.pci / 'devices/0000:20:00.0/sriov_numvfs'), '3')
    devices.spec(
        {'address': '0000:20:00.1', 'resource_class': 'CUSTOM_ONE'},
        {
            'address': {'bus': '20', 'slot': '00', 'function': '[23]'},
            'resource_class': 'CUSTOM_TWO',
        },
    )
    os_acc.initialize()
    found = {d.resource_class: d for d in os_acc.get_devices()}
    assert {d.address for d in found.values()} == {'0000:20:00.0'}
    assert found['CUSTOM_ONE'].handles_total == 1
    assert found['CUSTOM_TWO'].handles_total == 2


def test_a_group_that_another_instance_has(kernel):
    for number in range(2):
        kernel.add_function(f'0000:06:00.{number}', group=7)
    devices.spec({'address': '0000:06:00.*'})
    os_acc.initialize()
    os_acc.plug(devices.instance(), [devices.pci('0000:06:00.0')])
    _, other = os_acc.get_devices()
    assert (other.handles_free, other.handles[0].state) == (0, 'used')
    assert 'same IOMMU group' in other.handles[0].reason


def test_the_vfs_that_a_busy_pf_would_get(kernel):
    kernel.add_function('0000:20:00.0', driver='vfio-pci', totalvfs=4)
    devices.spec({'address': '0000:20:00.0', 'num_vfs': 4})
    os_acc.initialize()
    (device,) = os_acc.get_devices()
    assert (device.handles_total, device.handles_free) == (4, 0)
    assert {each.state for each in device.handles} == {'used'}
    assert 'vfio-pci' in device.handles[0].reason


class TestMdevsOnVFs:
    """The VFs of a card are parents, and share its capacity."""

    @pytest.fixture(params=['driver', 'device_spec'])
    def here(self, request, kernel):
        kernel.add_function('0000:41:00.0', '10de:20f1', 0x030200, 'nvidia')
        for number in range(4, 8):
            path = kernel.add_function(
                f'0000:41:00.{number}',
                '10de:20f1',
                0x030200,
                'nvidia',
                physfn='0000:41:00.0',
            )
            kernel.add_mdev_parent(path, {'nvidia-468': 1}, 1)
            if request.param == 'driver':
                kind = path / 'mdev_supported_types/nvidia-468'
                (kind / 'description').write_text(
                    'num_heads=1, framebuffer=20480M, max_instance=2\n'
                )
        entry = {'vendor_id': '10de', 'mdev_types': ['nvidia-468']}
        if request.param == 'device_spec':
            entry['max_instances'] = 2
        devices.spec(entry)
        os_acc.initialize()
        return kernel

    def test_two_not_four(self, here):
        assert self.totals() == (2, 2)
        instance = devices.instance()
        os_acc.plug(
            instance, [devices.mdev('nvidia-468', parent='0000:41:00.7')]
        )
        assert self.totals() == (2, 1)
        os_acc.plug(
            devices.instance(),
            [devices.mdev('nvidia-468', parent='0000:41:00.4')],
        )
        assert self.totals() == (2, 0)
        with pytest.raises(exception.PlugException) as caught:
            os_acc.plug(
                devices.instance(),
                [devices.mdev('nvidia-468', parent='0000:41:00.5')],
            )
        assert isinstance(caught.value.__cause__, exception.DeviceBusy)
        os_acc.unplug(instance)
        assert self.totals() == (2, 1)

    @staticmethod
    def totals() -> tuple[int, int]:
        found = os_acc.get_devices()
        check(found)
        return (
            sum(device.handles_total for device in found),
            sum(device.handles_free for device in found),
        )


def test_a_driver_that_miscounts(host):
    device = objects.Device(
        address='dev0',
        driver='recording',
        handles_total=2,
        handles_free=2,
        handles=[
            objects.DeviceHandleInfo(
                handle=objects.TestHandle(name='one'), state='used'
            )
        ],
    )
    host.driver.get_devices = lambda: [device]
    with pytest.raises(exception.DiscoveryFailed, match='have 1 and 0'):
        os_acc.get_devices()
