# SPDX-License-Identifier: Apache-2.0

"""What differs between VANs, ARQs and devices is found, and nothing else."""

from __future__ import annotations

import uuid

import cloud_double
from hypothesis import given
from hypothesis import strategies as st
import pytest

from os_acc import journal
from os_acc import objects
from os_acc.cyborg import differences

HOST = 'vm'
INFO = objects.InstanceInfo(uuid=uuid.uuid4(), name='guest')


class World:
    """VANs, ARQs and devices, and what is expected of compare()."""

    def __init__(self):
        self.entries = []
        self.arqs = []
        self.handles = []
        self.expected = []
        self._addresses = (f'0000:{bus:02x}:00.0' for bus in range(1, 256))

    def address(self, state='free', reason=None):
        """An address that a device has, unless the state is None."""
        address = next(self._addresses)
        if state is not None:
            self.handles.append(
                objects.DeviceHandleInfo(
                    handle=objects.PCIHandle(address=address),
                    state=state,
                    reason=reason,
                )
            )
        return address

    def arq(self, address, **values):
        made = cloud_double.arq(
            address=address, attach_handle_type='PCI', hostname=HOST, **values
        )
        self.arqs.append(made)
        return made

    def van(self, address, arq=None):
        """A VAN that was plugged for an ARQ; None: for a selector."""
        handle = objects.PCIHandle(address=address)
        if arq is None:
            request = objects.AcceleratorRequest(
                uuid=uuid.uuid4(), resource_class='CUSTOM_X'
            )
            instance = str(uuid.uuid4())
        else:
            request = objects.AcceleratorRequest.from_arq(arq)
            request.handle = handle
            instance = arq['instance_uuid']
        van = objects.VAN(
            uuid=request.uuid,
            instance_uuid=instance,
            driver='pci',
            plugin='noop',
            state='plugged',
            handle=handle,
            boot_id='boot',
        )
        self.entries.append(
            journal.Entry(
                van=van, request=request, instance_info=INFO, live=False
            )
        )
        return van.uuid

    def expect(self, problem, van=None, arq=None):
        self.expected.append((problem, van, arq))

    def devices(self):
        return [
            objects.Device(
                address=handle.handle.address, driver='pci', handles=[handle]
            )
            for handle in self.handles
        ]

    def holders(self):
        return {
            entry.van.handle.identity: journal.Holder(
                entry.van.handle.identity,
                None,
                entry.van.uuid,
                entry.van.instance_uuid,
                entry.van.state,
                entry.called,
            )
            for entry in self.entries
        }

    def compare(self, devices=()):
        return differences.compare(
            self.entries,
            self.holders(),
            self.arqs,
            self.devices() if devices == () else devices,
            HOST,
        )

    # --- what can be wrong with a handle, and what is not wrong

    def fine(self):
        address = self.address('used')
        self.van(address, self.arq(address))

    def unused(self):
        self.address()

    def bound_only(self):
        self.arq(self.address())

    def not_bound_yet(self):
        self.arq(self.address(), state='BindStarted')

    def selector(self):
        self.van(self.address('used'))

    def bound_elsewhere(self):
        self.arq(self.address())['hostname'] = 'node-9'

    def gone(self):
        address = self.address('used')
        van = self.van(address, self.arq(address))
        self.arqs.pop()
        self.expect(differences.ARQ_GONE, van, van)

    def rebound(self):
        address = self.address('used')
        van = self.van(address, self.arq(address))
        self.arqs.pop()
        new = self.arq(address)
        self.expect(differences.HANDLE_REBOUND, van, new['uuid'])

    def not_bound(self):
        address = self.address('used')
        arq = self.arq(address)
        van = self.van(address, arq)
        arq.update(state='Unbound', hostname=None, instance_uuid=None)
        self.expect(differences.ARQ_DIFFERS, van, van)

    def other_instance(self):
        address = self.address('used')
        arq = self.arq(address)
        van = self.van(address, arq)
        arq['instance_uuid'] = str(uuid.uuid4())
        self.expect(differences.ARQ_DIFFERS, van, van)

    def other_handle(self):
        arq = self.arq(self.address())
        van = self.van(self.address('used'), arq)
        self.expect(differences.ARQ_DIFFERS, van, van)

    def other_host(self):
        address = self.address('used')
        arq = self.arq(address)
        van = self.van(address, arq)
        arq['hostname'] = 'node-9'
        self.expect(differences.OTHER_HOST, van, van)

    def taken(self):
        address = self.address('used')
        van = self.van(address)
        arq = self.arq(address)
        self.expect(differences.HANDLE_TAKEN, van, arq['uuid'])

    def missing(self):
        arq = self.arq(self.address(None))
        self.expect(differences.HANDLE_GONE, None, arq['uuid'])

    def missing_under_a_van(self):
        address = self.address(None)
        van = self.van(address, self.arq(address))
        self.expect(differences.HANDLE_GONE, van, van)

    def absent(self):
        arq = self.arq(self.address('absent', 'it has 2 VFs'))
        self.expect(differences.HANDLE_GONE, None, arq['uuid'])

    def used_by_the_host(self):
        arq = self.arq(self.address('host', 'interface eth4 is up'))
        self.expect(differences.HANDLE_UNUSABLE, None, arq['uuid'])

    def kept_back(self):
        arq = self.arq(self.address('reserved'))
        self.expect(differences.HANDLE_UNUSABLE, None, arq['uuid'])

    def malformed(self):
        arq = self.arq(self.address(), attach_handle_info={'bus': 'x'})
        self.expect(differences.ARQ_MALFORMED, None, arq['uuid'])


CASES = sorted(
    name
    for name in vars(World)
    if not name.startswith('_')
    and name
    not in ('address', 'arq', 'van', 'expect', 'devices', 'holders', 'compare')
)


def told(found):
    return sorted(
        ((each.problem, each.van, each.arq) for each in found),
        key=str,
    )


@given(
    st.lists(st.sampled_from(CASES), max_size=25),
    st.randoms(use_true_random=False),
)
def test_what_differs_is_found_and_nothing_else(cases, random):
    world = World()
    for name in cases:
        getattr(world, name)()
    random.shuffle(world.arqs)
    random.shuffle(world.entries)
    assert told(world.compare()) == sorted(world.expected, key=str)


@pytest.mark.parametrize('name', CASES)
def test_each_alone(name):
    world = World()
    getattr(world, name)()
    found = world.compare()
    assert told(found) == world.expected
    for each in found:
        assert each.details and each.advice and each.instance
        assert each.result is None and not each.fixed


def test_the_old_owner_and_the_new_arq_are_named():
    world = World()
    world.rebound()
    (found,) = world.compare()
    (entry,), (new,) = world.entries, world.arqs
    assert found.instance == entry.van.instance_uuid
    assert found.device == entry.van.handle.identity
    for uuid_ in (new['uuid'], new['instance_uuid']):
        assert uuid_ in found.details
    assert entry.van.uuid in found.advice


def test_a_taken_handle_names_its_owner():
    world = World()
    world.taken()
    (found,) = world.compare()
    (entry,) = world.entries
    assert entry.van.uuid in found.details
    assert entry.van.instance_uuid in found.details
    assert found.instance == world.arqs[0]['instance_uuid']


def test_devices_that_are_unknown():
    world = World()
    world.missing()
    world.gone()
    assert [d.problem for d in world.compare(None)] == ['arq-gone']


def test_a_reason_is_told():
    world = World()
    world.used_by_the_host()
    (found,) = world.compare()
    assert 'interface eth4 is up' in found.details


class TestMediatedDevices:
    """Cyborg's handle is a place in the parent; the device has the types."""

    @staticmethod
    def found(kind, parent='0000:65:00.0'):
        arq = cloud_double.arq(address=parent, attach_handle_type='MDEV')
        arq['attach_handle_info']['asked_type'] = kind
        device = objects.Device(
            address='0000:65:00.0',
            driver='mdev',
            mdev_types=[
                objects.DeviceMdevTypeInfo(
                    name='nvidia-223', capacity=1, available=0
                )
            ],
        )
        return differences.compare([], {}, [arq], [device], HOST)

    def test_a_type_of_the_device(self):
        assert self.found('nvidia-223') == []

    def test_another_type_or_parent(self):
        for values in (('nvidia-9',), ('nvidia-223', '0000:66:00.0')):
            (found,) = self.found(*values)
            assert found.problem == differences.HANDLE_GONE


def test_test_handles_need_no_device_unless_some_are_discovered():
    arq = cloud_double.arq()
    assert differences.compare([], {}, [arq], [], HOST) == []
    other = objects.Device(
        address='fpga0',
        driver='fake',
        handles=[
            objects.DeviceHandleInfo(handle=objects.TestHandle(name='x'))
        ],
    )
    (found,) = differences.compare([], {}, [arq], [other], HOST)
    assert found.problem == differences.HANDLE_GONE
