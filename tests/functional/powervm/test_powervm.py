# SPDX-License-Identifier: Apache-2.0

"""The driver drc and the plugin powervm with the real pypowervm."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
import uuid

from lxml import etree
import novalink
from pypowervm import exceptions as pvm_exceptions
from pypowervm.utils import lpar_builder
from pypowervm.wrappers import managed_system
import pytest

from acc_plug_powervm import PowerVMPlugin
from acc_plug_powervm import to_io_slots
import os_acc
from os_acc import exception
from os_acc import health
from os_acc import objects
from os_acc.journal import health as rows

RUNNING = novalink.RUNNING[0]
FREE = [f'{index:08X}' for index in novalink.FREE_SLOTS]


def instance(lpar=RUNNING):
    return objects.InstanceInfo(
        uuid=uuid.uuid4(), name='i', project_id='p', hypervisor_id=lpar
    )


def arq(drc_index=FREE[0], drc_name=None, **keys):
    """An ARQ as Cyborg would return it if it had this handle type."""
    info = {'drc_index': drc_index}
    if drc_name is not None:
        info['drc_name'] = drc_name
    return objects.AcceleratorRequest.from_arq(
        {
            'uuid': str(uuid.uuid4()),
            'state': 'Bound',
            'attach_handle_type': 'DRC',
            'attach_handle_info': info,
            **keys,
        }
    )


def lpar_of(host):
    """The LPAR's canonical XML without white space between elements."""
    parser = etree.XMLParser(remove_blank_text=True)
    tree = etree.fromstring(host.lpar_xml(RUNNING), parser)
    return etree.tostring(tree, method='c14n')


def fails(cause, *texts, call):
    """Check that a call fails with a cause and texts in its message."""
    with pytest.raises(exception.AttachException) as caught:
        call()
    assert isinstance(caught.value.__cause__, cause), caught.value.__cause__
    for text in texts:
        assert text in str(caught.value)
    return caught.value


def option(name, value):
    os_acc.CONF.set_override(name, value, 'os_acc_powervm')


def test_live_attach_and_detach(host):
    guest, request = instance(), arq()
    before = lpar_of(host)
    (van,) = os_acc.plug(guest, [request], live=True)
    index = int(FREE[0], 16)
    assert host.slots_of(RUNNING).count(index) == 1
    assert host.owner_of(index) == RUNNING
    assert len(host.writes()) == 1
    assert van.handle.drc_name is not None
    assert json.loads(van.guest_config) == {
        'lpar_uuid': RUNNING,
        'drc_index': FREE[0],
        'drc_name': van.handle.drc_name,
        'bus_grp_required': van.handle.bus_grp_required,
    }
    assert os_acc.unplug(guest, live=True) == 1
    assert host.owner_of(index) is None
    assert len(host.writes()) == 2
    assert lpar_of(host) == before


def test_a_slot_that_another_partition_took_by_hand(host):
    guest, request = instance(), arq()
    os_acc.plug(guest, [request])
    os_acc.plug(guest, [request])
    index = int(FREE[0], 16)
    host.give(novalink.RUNNING[1], index)
    fails(
        exception.DeviceBusy,
        'partition',
        call=lambda: os_acc.plug(guest, [request]),
    )
    host.take(novalink.RUNNING[1], index)
    (van,) = os_acc.plug(guest, [request])
    assert van.error is None
    assert host.writes() == []
    os_acc.unplug(guest)


def test_what_is_attached_already_is_not_written(host):
    host.give(RUNNING, int(FREE[0], 16))
    guest = instance()
    os_acc.plug(guest, [arq()], live=True)
    assert host.writes() == []
    assert host.slots_of(RUNNING).count(int(FREE[0], 16)) == 1
    os_acc.unplug(guest, live=True)
    assert len(host.writes()) == 1


def test_what_is_detached_already_is_not_written(host):
    guest = instance()
    os_acc.plug(guest, [arq()], live=True)
    host.take(RUNNING, int(FREE[0], 16))
    del host.requests[:]
    os_acc.unplug(guest, live=True)
    assert host.writes() == []


def test_detach_from_an_lpar_that_is_gone(host):
    lpar = novalink.INACTIVE[0]
    guest = instance(lpar)
    os_acc.plug(guest, [arq()], live=True)
    host.take(lpar, int(FREE[0], 16))
    host.fail_next(404, 'no such LPAR', times=9, method='GET')
    plugin = PowerVMPlugin.load('powervm')
    (van,) = os_acc.get_vans(guest)
    plugin.unplug(van, guest, live=True)


def test_the_index_is_hex_whatever_the_rest_api_has(host):
    """pypowervm would read a string of hex digits as another slot."""
    os_acc.plug(instance(), [arq('21030011')], live=True)
    assert 0x21030011 in host.slots_of(RUNNING)
    assert str(0x21030011) in host.bodies[-1]


def test_an_lpar_that_does_not_run_needs_no_rmc(host):
    lpar = novalink.INACTIVE[0]
    os_acc.plug(instance(lpar), [arq()], live=True)
    assert host.owner_of(int(FREE[0], 16)) == lpar


def test_the_lpar_of_an_instance_is_derived_from_its_uuid(host):
    wanted = novalink.RUNNING[1]
    # PowerVM clears the highest bit: 23FEE581... and a3fee581... are the same.
    guest = instance(None)
    guest.uuid = 'a' + wanted[1:].lower()
    os_acc.plug(guest, [arq()], live=True)
    assert host.owner_of(int(FREE[0], 16)) == wanted


def test_refused_without_rmc(host):
    fails(
        exception.HypervisorError,
        'RMC',
        call=lambda: os_acc.plug(
            instance(novalink.NO_RMC), [arq()], live=True
        ),
    )
    assert host.writes() == []
    assert len(os_acc.get_vans()) == 0


def test_a_slot_of_another_partition_is_refused_before_any_write(host):
    vios_slot = f'{novalink.VIOS_SLOT:08X}'
    fails(
        exception.DeviceBusy,
        'vios1',
        call=lambda: os_acc.plug(instance(), [arq(vios_slot)], live=True),
    )
    index = int(FREE[0], 16)
    # Another LPAR gets the slot after the driver's check and before the
    # plugin's update.
    give = iter([lambda: host.give(novalink.RUNNING[1], index)])
    plugin_plug = PowerVMPlugin.plug

    def late(self, *args, **kwargs):
        next(give)()
        plugin_plug(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PowerVMPlugin, 'plug', late)
        fails(
            exception.DeviceBusy,
            novalink.RUNNING[1],
            call=lambda: os_acc.plug(instance(), [arq()], live=True),
        )
    assert host.writes() == []
    assert host.owner_of(index) == novalink.RUNNING[1]


def test_a_bus_of_which_another_has_a_part_is_refused(host):
    host.group(0x2FF, novalink.FREE_SLOTS[0], novalink.VIOS_SLOT)
    fails(
        exception.DeviceBusy,
        '000002FF',
        'vios1',
        call=lambda: os_acc.plug(instance(), [arq()], live=True),
    )
    assert host.writes() == []


@pytest.mark.parametrize(
    ('request_', 'cause', 'text'),
    [
        (arq('2FFFFFFF'), exception.DeviceNotFound, '2FFFFFFF'),
        (arq(drc_name='U1.2.3-P1-C1'), exception.InvalidRequest, 'drc_name'),
    ],
)
def test_a_slot_that_is_not_there(host, request_, cause, text):
    fails(
        cause,
        text,
        call=lambda: os_acc.plug(instance(), [request_], live=True),
    )
    assert host.writes() == []


def test_a_slot_that_has_failed(host):
    os_acc.CONF.set_override('discover', True, 'os_acc_drc')
    journal = os_acc._get().journal
    guest = instance()
    (van,) = os_acc.plug(guest, [arq()])
    address = van.device
    os_acc.unplug(guest)
    health.mark(journal, address, rows.CLEANING, 'it was not cleaned')
    fails(
        exception.DeviceUnhealthy,
        'it was not cleaned',
        f'os-acc device free {address}',
        call=lambda: os_acc.plug(instance(), [arq()]),
    )
    (found,) = (
        each for each in os_acc.get_devices() if each.address == address
    )
    assert (found.health, found.handles_free) == ('unhealthy', 0)


def test_one_slot_for_two_instances(host):
    os_acc.plug(instance(), [arq()])
    other = instance(novalink.RUNNING[1])
    fails(
        exception.DeviceBusy,
        FREE[0],
        call=lambda: os_acc.plug(other, [arq('0x' + FREE[0].lower())]),
    )


def test_select_by_what_the_slot_holds_and_where_it_is(host):
    os_acc.CONF.set_override('discover', True, 'os_acc_drc')
    # The machine that runs the test may have devices too.
    devices = {
        device.address: device
        for device in os_acc.get_devices()
        if device.driver == 'drc'
    }
    assert len(devices) == 20
    free = devices[FREE[0]]
    assert free.handles_free == 1
    assert devices[f'{novalink.VIOS_SLOT:08X}'].handles_free == 0
    location = next(t for t in free.traits if 'LOCATION' in t)
    vendor = f'CUSTOM_PCI_VENDOR_{free.vendor_id.upper()}'
    request = objects.AcceleratorRequest(
        uuid=uuid.uuid4(),
        resource_class='CUSTOM_POWER_IO_SLOT',
        traits=[location, vendor],
    )
    guest = instance()
    (van,) = os_acc.plug(guest, [request])
    assert van.handle.drc_index == FREE[0]
    assert {d.address: d for d in os_acc.get_devices()}[
        FREE[0]
    ].handles_free == 0
    again = objects.AcceleratorRequest(
        uuid=uuid.uuid4(), driver='drc', traits=[location]
    )
    fails(
        exception.DeviceNotFound,
        location,
        call=lambda: os_acc.plug(guest, [again]),
    )


def test_412_is_retried(host):
    turns = iter([host.touch, host.touch])
    host.before_post = lambda: next(turns, lambda lpar: None)(RUNNING)
    os_acc.plug(instance(), [arq()], live=True)
    assert host.slots_of(RUNNING).count(int(FREE[0], 16)) == 1
    assert len(host.writes()) == 3


def test_412_past_the_limit_is_given_up(host):
    option('update_tries', 3)
    before = lpar_of(host)
    host.before_post = lambda: host.touch(RUNNING)
    fails(
        exception.HypervisorError,
        '3 tries',
        call=lambda: os_acc.plug(instance(), [arq()], live=True),
    )
    host.before_post = None
    assert len(host.writes()) == 3
    assert lpar_of(host) == before
    assert len(os_acc.get_vans()) == 0


def test_412_past_the_deadline_is_given_up(host):
    option('update_timeout', 0.0)
    host.before_post = lambda: host.touch(RUNNING)
    fails(
        exception.HypervisorError,
        'gave up after 1 tries',
        call=lambda: os_acc.plug(instance(), [arq()], live=True),
    )


def test_404_of_the_lpar(host):
    fails(
        exception.DeviceNotFound,
        novalink.UNKNOWN,
        call=lambda: os_acc.plug(
            instance(novalink.UNKNOWN), [arq()], live=True
        ),
    )


def test_500_keeps_the_message(host):
    host.fail_next(500, 'HSCL294C: the slot is on fire')
    failure = fails(
        exception.HypervisorError,
        'HSCL294C: the slot is on fire',
        call=lambda: os_acc.plug(instance(), [arq()], live=True),
    )
    cause = failure.__cause__
    assert isinstance(cause.__cause__, pvm_exceptions.HttpError)
    assert len(os_acc.get_vans()) == 0


def test_an_attach_that_was_done_but_not_said_is_undone(host):
    before = lpar_of(host)
    host.fail_next(500, 'lost in space', applied=True)
    fails(
        exception.HypervisorError,
        call=lambda: os_acc.plug(instance(), [arq()], live=True),
    )
    assert lpar_of(host) == before


def test_the_server_is_gone(host):
    guest = instance()
    os_acc.plug(guest, [arq()], live=True)
    host.stop()
    fails(
        exception.HypervisorError,
        call=lambda: os_acc.unplug(guest, live=True),
    )
    (van,) = os_acc.get_vans(guest)
    assert van.state == 'error'


def test_a_slow_server_is_a_timeout(host):
    guest = instance()
    os_acc.plug(guest, [arq()], live=True)
    option('request_timeout', 1)
    # The log-on of a new session is fast enough for the new timeout.
    from os_acc import powervm

    powervm.adapter()
    host.delay = 20
    start = time.monotonic()
    fails(exception.Timeout, call=lambda: os_acc.unplug(guest, live=True))
    assert time.monotonic() - start < 3 * 20
    host.delay = 0
    assert os_acc.unplug(guest, live=True) == 1


def test_three_slots_of_which_the_third_is_refused(host):
    before = lpar_of(host)
    guest = instance()
    requests = [arq(index) for index in FREE]
    posts = []

    def refuse_the_third():
        posts.append(1)
        if len(posts) == 3:
            host.fail_next(500, 'no more power')

    host.before_post = refuse_the_third
    failure = fails(
        exception.HypervisorError,
        'no more power',
        call=lambda: os_acc.plug(guest, requests, live=True),
    )
    assert failure.undo_errors == []
    assert lpar_of(host) == before
    assert [host.owner_of(int(index, 16)) for index in FREE] == [None] * 3
    assert len(os_acc.get_vans()) == 0


def test_a_slot_that_the_lpar_still_has_is_not_released(host):
    guest = instance()
    os_acc.plug(guest, [arq()])
    host.give(RUNNING, int(FREE[0], 16))
    fails(exception.DeviceBusy, FREE[0], call=lambda: os_acc.unplug(guest))
    assert len(os_acc.get_vans(guest)) == 1
    host.take(RUNNING, int(FREE[0], 16))
    assert os_acc.unplug(guest) == 1


def test_cold_the_lpar_is_made_with_the_slots(host):
    guest = instance(None)
    vans = os_acc.plug(guest, [arq(index) for index in FREE])
    assert host.writes() == []
    adapter = novalink.session(host)
    (system,) = managed_system.System.get(adapter)
    builder = lpar_builder.LPARBuilder(
        adapter,
        {
            'name': 'cold',
            'uuid': json.loads(vans[0].guest_config)['lpar_uuid'],
            'memory': 1024,
            'vcpu': 1,
            'phys_io_slots': to_io_slots(vans),
        },
        lpar_builder.DefaultStandardize(system),
    )
    made = builder.build().create(parent=system)
    assert host.slots_of(made.uuid) == [int(index, 16) for index in FREE]
    for index in FREE:
        assert f'>{int(index, 16)}<' in host.bodies[-1]


def attach_in_a_process(port, state_path, lpar, drc_index, results):
    conf = os_acc.CONF
    conf([], project='os-acc', default_config_files=[])
    PowerVMPlugin.load('powervm')
    conf.set_override('state_path', state_path, 'os_acc')
    conf.set_override('plugin', 'powervm', 'os_acc')
    conf.set_override('port', port, 'os_acc_powervm')
    os_acc.initialize()
    for _ in range(3):
        guest = instance(lpar)
        os_acc.plug(guest, [arq(drc_index)], live=True)
        os_acc.unplug(guest, live=True)
    os_acc.plug(instance(lpar), [arq(drc_index)], live=True)
    results.put(drc_index)


def test_two_processes_on_one_lpar_lose_no_update(link, tmp_path):
    context = multiprocessing.get_context('spawn')
    results = context.Queue()
    before = link.slots_of(RUNNING)
    children = [
        context.Process(
            target=attach_in_a_process,
            args=(link.port, str(tmp_path), RUNNING, index, results),
        )
        for index in FREE[:2]
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
        assert child.exitcode == 0
    assert link.slots_of(RUNNING)[: len(before)] == before
    assert sorted(link.slots_of(RUNNING)[len(before) :]) == sorted(
        int(index, 16) for index in FREE[:2]
    )


def test_a_missing_pypowervm_is_named(host, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, 'pypowervm', None)
    fails(
        exception.HypervisorError,
        'os-acc[powervm]',
        call=lambda: os_acc.plug(instance(), [arq()]),
    )


# --- bus groups


def test_two_cold_lpars_get_no_halves_of_a_bus_group(host):
    """No LPAR shows the first slot yet, but the journal does."""
    os_acc.CONF.set_override('discover', True, 'os_acc_drc')
    host.group(0x2FF, *novalink.FREE_SLOTS[:2])
    first, second = instance(), instance(novalink.RUNNING[1])
    os_acc.plug(first, [arq(FREE[0])])
    failure = fails(
        exception.DeviceBusy,
        'bus group 000002FF',
        first.uuid,
        FREE[0],
        call=lambda: os_acc.plug(second, [arq(FREE[1])]),
    )
    assert failure.undo_errors == []
    device = {d.address: d for d in os_acc.get_devices()}[FREE[1]]
    assert device.handles_free == 0
    assert first.uuid in device.handles[0].reason
    (chosen,) = os_acc.plug(second, [any_slot()])  # of another bus
    assert chosen.handle.drc_index not in FREE[:2]
    # The same instance gets the other half.
    os_acc.plug(first, [arq(FREE[1])])
    assert os_acc.unplug(first) == 2
    os_acc.plug(second, [arq(FREE[1])])
    assert host.writes() == []


def any_slot():
    return objects.AcceleratorRequest(
        uuid=uuid.uuid4(), resource_class='CUSTOM_POWER_IO_SLOT'
    )


def test_many_lpars_at_once_get_one_bus_group(host):
    host.group(0x2FF, *novalink.FREE_SLOTS)
    guests = [instance(lpar) for lpar in novalink.RUNNING]
    errors = []

    def plug(guest, index):
        try:
            os_acc.plug(guest, [arq(index)])
        except exception.PlugException as err:
            errors.append(err)

    threads = [
        threading.Thread(target=plug, args=pair)
        for pair in zip(guests, FREE, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 2
    assert all(
        isinstance(err.__cause__, exception.DeviceBusy) for err in errors
    )
    assert len({van.instance_uuid for van in os_acc.get_vans()}) == 1


def test_a_group_that_one_slot_alone_requires(host):
    """The server says of one slot only that the bus moves as a whole."""
    host.group(0x2FF, *novalink.FREE_SLOTS[:2])
    host.ungroup(novalink.FREE_SLOTS[1])
    os_acc.plug(instance(), [arq(FREE[0])])
    fails(
        exception.DeviceBusy,
        '000002FF',
        call=lambda: os_acc.plug(
            instance(novalink.RUNNING[1]), [arq(FREE[1])]
        ),
    )


# --- an HMC with two managed systems

OTHER_SLOT = f'{novalink.OTHER_SLOT:08X}'


class TestHMC:
    @pytest.fixture
    def link(self):
        systems = [novalink.SYSTEM, novalink.OTHER_SYSTEM]
        with novalink.NovaLink(systems, hmc=True) as made:
            yield made

    @pytest.fixture(autouse=True)
    def log_on(self, host):
        option('protocol', 'http')
        option('username', 'hscroot')
        option('password', 'abc123')

    def test_the_system_of_the_lpar(self, host):
        theirs = instance(novalink.OTHER_LPAR)
        os_acc.plug(theirs, [arq(OTHER_SLOT)], live=True)
        assert host.owner_of(novalink.OTHER_SLOT) == novalink.OTHER_LPAR
        os_acc.plug(instance(), [arq()], live=True)
        assert host.owner_of(int(FREE[0], 16)) == RUNNING
        fails(
            exception.DeviceNotFound,
            '21010202',
            call=lambda: os_acc.plug(
                instance(novalink.RUNNING[1]), [arq('21010202')]
            ),
        )
        assert os_acc.unplug(theirs, live=True) == 1
        assert host.owner_of(novalink.OTHER_SLOT) is None

    @pytest.mark.parametrize(
        'name',
        [
            'Server-8246-L1C-SN0604C6A',
            '8246-l1c*0604C6A',
            novalink.OTHER_SYSTEM,
        ],
    )
    def test_the_option(self, host, name):
        option('managed_system', name)
        os_acc.CONF.set_override('discover', True, 'os_acc_drc')
        found = [d for d in os_acc.get_devices() if d.driver == 'drc']
        assert len(found) == 9
        guest = instance(None)  # its LPAR does not exist yet
        os_acc.plug(guest, [arq(OTHER_SLOT)])
        assert os_acc.unplug(guest) == 1

    def test_an_lpar_of_another_system_than_the_options(self, host):
        option('managed_system', novalink.OTHER_SYSTEM)
        fails(
            exception.HypervisorError,
            RUNNING,
            'HV4',
            'Server-8246-L1C-SN0604C6A',
            call=lambda: os_acc.plug(instance(), [arq(OTHER_SLOT)], live=True),
        )
        assert host.writes() == []

    @pytest.mark.parametrize('name', [None, 'HV5'])
    def test_nothing_chooses(self, host, name):
        option('managed_system', name)
        fails(
            exception.HypervisorError,
            'managed_system',
            'HV4 (MTMS 8203-E4A*ACE0001, UUID ',
            call=lambda: os_acc.plug(instance(None), [arq()]),
        )

    def test_a_cold_lpar_that_was_deleted(self, host):
        option('managed_system', novalink.SYSTEM)
        guest = instance(None)
        os_acc.plug(guest, [arq()])
        option('managed_system', None)
        assert os_acc.unplug(guest) == 1
