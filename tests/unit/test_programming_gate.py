# SPDX-License-Identifier: Apache-2.0

"""The gate of programming: nobody uses any function of the chip.

Each programmer has a rig: see gate_rigs.py. To add a programmer, write a rig
with the same methods and put it into DRIVEN there.
"""

from __future__ import annotations

from concurrent import futures
import json
import threading
import time

import cyborg_host
import cyborg_stand_in
import devices
import examples
import gate_rigs
from gate_rigs import AES
from gate_rigs import IDS
from gate_rigs import PF
from gate_rigs import SHA
from gate_rigs import SIBLING
from gate_rigs import VFS
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies
import pytest
import vendor as vendor_module

import os_acc
from os_acc import exception
from os_acc import programming
from os_acc.kernel import chip
from os_acc.kernel import pci
from os_acc.spec import device_spec


@pytest.fixture(autouse=True)
def _no_plugin(kernel):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')


@pytest.fixture(params=gate_rigs.RIGS)
def rig(request, kernel, tmp_path, monkeypatch):
    return gate_rigs.RIGS[request.param](kernel, tmp_path, monkeypatch)


@pytest.fixture(params=gate_rigs.DRIVEN)
def driven(request, kernel, tmp_path, monkeypatch):
    """The rigs of drivers that program for instances."""
    return gate_rigs.DRIVEN[request.param](kernel, tmp_path, monkeypatch)


@pytest.fixture(params=gate_rigs.WITH_ROOT)
def with_root(request, kernel, tmp_path, monkeypatch):
    """The rigs with a privileged half in os-acc."""
    return gate_rigs.DRIVEN[request.param](kernel, tmp_path, monkeypatch)


def plug(address, driver='pci', function=None, rig=None):
    """Plug a function for a new instance; returns the instance."""
    instance, wanted = devices.instance(), devices.pci(address)
    wanted.driver = driver
    if function is not None:
        wanted.function_id = function
        wanted.bitstream = rig.bitstream(function)
    os_acc.plug(instance, [wanted])
    return instance


def refused(address, driver='pci', function=None, rig=None):
    """The reason why a function is not given to a new instance."""
    with pytest.raises(exception.PlugException) as caught:
        plug(address, driver, function, rig)
    assert caught.value.undo_errors == []
    return caught.value.__cause__


def busy(rig, function=SHA, error=exception.DeviceBusy):
    """The reason why the chip is not programmed."""
    before = rig.count(), os_acc._get().journal.programs()
    with pytest.raises(error) as caught:
        rig.program(function)
    assert (rig.count(), os_acc._get().journal.programs()) == before
    return str(caught.value)


# --- who uses the chip


def test_nobody(rig):
    assert rig.program(AES) is True
    assert rig.program(AES) is False
    assert rig.program(SHA) is True
    assert rig.count() == 2
    # The lowest address of the chip, whatever function it is programmed by.
    (record,) = os_acc._get().journal.programs()
    assert (record.device, record.function_id) == (SIBLING, SHA)


@pytest.mark.parametrize('place', ['sibling', 'first', 'last'])
def test_an_instance_of_any_driver(rig, place):
    rig.program(AES)
    instance = plug(rig.at(place))
    assert rig.program(AES) is False  # what it contains is shared
    assert f'instance {instance.uuid}' in busy(rig)
    os_acc.unplug(instance)
    assert rig.program(SHA) is True


@pytest.mark.parametrize('place', ['sibling', 'pf', 'first', 'last'])
def test_a_guest_outside_of_the_journal(rig, kernel, place):
    rig.program(AES)
    holder = kernel.hold(kernel.node(rig.at(place)))
    assert f'process {holder} (qemu)' in busy(rig)
    kernel.end(holder)
    assert rig.program(SHA) is True


@pytest.mark.parametrize('place', ['sibling', 'last'])
def test_a_guest_that_is_starting(rig, kernel, place):
    rig.program(AES)
    address = rig.at(place)
    path = kernel.root / 'libvirt/web.xml'
    path.write_text(
        '<domstatus pid="7"><domain><name>web</name><uuid>x</uuid><devices>'
        '<hostdev type="pci"><source><address domain="0x0000" bus="0x0a" '
        f'slot="0x00" function="0x{address[-1]}"/></source></hostdev>'
        '</devices></domain></domstatus>'
    )
    assert 'libvirt domain web has it' in busy(rig)
    path.unlink()
    assert rig.program(SHA) is True


@pytest.mark.parametrize('place', ['sibling', 'pf', 'last'])
def test_a_program_of_the_host(rig, kernel, place):
    """Such as OPAE's fpgad, which keeps the files of a card open."""
    rig.program(AES)
    address = rig.at(place)
    name = 'fpga_region/region0/dfl-fme.0'
    path = kernel.sys / f'devices/pci0000:00/{address}' / name
    path.mkdir(parents=True, exist_ok=True)
    (path / 'uevent').write_text('MAJOR=240\nDEVNAME=dfl-fme.0\n')
    (kernel.sys / 'dev/char').mkdir(parents=True)
    (kernel.sys / 'dev/char/240:7').symlink_to(
        f'../../devices/pci0000:00/{address}/{name}'
    )
    holder = kernel.hold('/dev/dfl-fme.0', 'fpgad', 'c 240:7')
    reason = busy(rig)
    assert f'process {holder} (fpgad) has' in reason
    assert 'dfl-fme.0 open' in reason
    kernel.end(holder)
    assert rig.program(SHA) is True


def test_the_host_itself(rig, kernel):
    rig.program(AES)
    path = kernel.pci / f'devices/{SIBLING}/net/fpga0/flags'
    path.write_text('0x1003\n')
    error = exception.DeviceInUseByHost
    assert 'interface fpga0 is up' in busy(rig, error=error)
    path.write_text('0x1002\n')
    assert rig.program(SHA) is True


# --- requests of instances


def test_the_same_function_is_shared(driven):
    for address in driven.vfs:
        plug(address, driven.driver, AES, driven)
    assert driven.count() == 1


def test_another_function_is_refused(driven):
    instance = plug(driven.at('first'), driven.driver, AES, driven)
    reason = refused(driven.at('last'), driven.driver, SHA, driven)
    assert isinstance(reason, exception.DeviceBusy)
    assert instance.uuid in str(reason)
    assert driven.count() == 1


def test_a_request_meets_the_holder_of_another_function(driven):
    instance = plug(SIBLING)
    reason = refused(VFS[0], driven.driver, AES, driven)
    assert isinstance(reason, exception.DeviceBusy)
    assert f'instance {instance.uuid}' in str(reason)
    assert f' has pci/{SIBLING}' in str(reason)
    assert driven.count() == 0
    os_acc.unplug(instance)
    plug(VFS[0], driven.driver, AES, driven)
    # The driver pci must not give out what could program it.
    reason = refused(SIBLING)
    assert isinstance(reason, exception.DeviceBusy)
    assert 'of the same FPGA' in str(reason)


@pytest.mark.parametrize('place', ['sibling', 'pf', 'last'])
def test_a_request_meets_a_guest_outside(driven, kernel, place):
    holder = kernel.hold(kernel.node(driven.at(place)))
    reason = refused(VFS[0], driven.driver, AES, driven)
    assert isinstance(reason, exception.DeviceBusy)
    assert f'process {holder}' in str(reason)
    assert list(os_acc.get_vans()) == []


def test_what_discovery_says_of_the_other_functions(driven):
    plug(VFS[0], driven.driver, AES, driven)
    (handle,) = (
        handle
        for device in os_acc.get_devices()
        if device.driver == 'pci'
        for handle in device.handles
        if handle.handle.identity == f'pci/{SIBLING}'
    )
    assert handle.state == 'used'
    assert 'of the same FPGA' in handle.reason


def test_one_instance_may_have_several_functions(driven):
    instance = devices.instance()
    wanted = [devices.pci(SIBLING), devices.pci(VFS[0])]
    wanted[0].driver, wanted[1].driver = 'pci', driven.driver
    os_acc.plug(instance, wanted)
    assert len(os_acc.get_vans(instance)) == 2


def test_claims_of_two_functions_at_once(driven):
    """Each of two instances wants one function of the chip."""
    done = []

    def one(address, driver):
        try:
            done.append(plug(address, driver))
        except exception.PlugException as err:
            assert isinstance(err.__cause__, exception.DeviceBusy)

    for _ in range(4):
        threads = [
            threading.Thread(target=one, args=each)
            for each in ((SIBLING, 'pci'), (VFS[0], driven.driver))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 1
        os_acc.unplug(done.pop())


def test_restored_after_a_reboot(driven):
    """The instance that is restored first is not in the way of the other."""
    for address in driven.vfs[:2]:
        plug(address, driven.driver, AES, driven)
    driven.reboot()
    report = os_acc.recover()
    assert [van.error for van in report.failed] == []
    assert len(report.restored) == len(driven.vfs[:2])
    assert driven.count() == 2


def test_a_card_that_was_replaced(driven, kernel):
    path = kernel.pci / f'devices/{SIBLING}/xmc.m.1/serial_num'
    path.parent.mkdir()
    path.write_text('card 1\n')
    instance, wanted = devices.instance(), devices.pci(VFS[0])
    wanted.driver, wanted.function_id = driven.driver, AES
    wanted.bitstream = driven.bitstream(AES)
    for _ in range(2):
        os_acc.plug(instance, [wanted])
    assert driven.count() == 1
    path.write_text('card 2\n')
    for _ in range(2):
        os_acc.plug(instance, [wanted])
    assert driven.count() == 2
    (found,) = (d for d in os_acc.get_devices() if d.chip is not None)
    assert (found.address, found.chip.serial) == (PF, 'card 2')
    assert found.chip.functions == [SIBLING, PF, *driven.vfs]


# --- a management function and a user function, without VFs


@pytest.fixture
def two_pfs(driven):
    """:returns: the rig, the PF that it programs, and the other PF"""
    return driven, *driven.two_pfs('0000:0b:00.0', '0000:0b:00.1')


def test_the_other_pf_has_an_owner(two_pfs):
    rig, own, other = two_pfs
    instance = plug(other)
    reason = refused(own, rig.driver, AES, rig)
    assert isinstance(reason, exception.DeviceBusy)
    assert f'instance {instance.uuid}' in str(reason)
    assert f' has pci/{other}' in str(reason)
    with pytest.raises(exception.DeviceBusy, match=instance.uuid):
        os_acc.program_device(own, rig.bitstream(AES), AES)
    assert rig.count() == 0


def test_the_pf_that_is_programmed_has_an_owner(two_pfs):
    rig, own, other = two_pfs
    instance = plug(own, rig.driver, AES, rig)
    reason = refused(other)
    assert isinstance(reason, exception.DeviceBusy)
    assert f'instance {instance.uuid}' in str(reason)
    assert f' has pci/{own}' in str(reason)
    os_acc.unplug(instance)
    plug(other)


def test_an_fpga_of_unknown_ids_that_was_programmed(kernel, tmp_path):
    """Its other function has an entry without program."""
    add = kernel.add_function
    own, other = '0000:0b:00.0', '0000:0b:00.1'
    for address in (own, other):
        add(address, '1d0f:f010', 0x020000, 'dfl-pci')
    tool = vendor_module.Vendor(tmp_path / 'vendor')
    tool.configure('single', address=own)
    spec = json.loads(os_acc.CONF.os_acc.device_spec[0])
    del spec['num_vfs']
    devices.spec(spec, {'address': other})
    os_acc.initialize()
    kernel.write(f'{kernel.pci}/drivers/dfl-pci/unbind', own)
    kernel.write(f'{kernel.pci}/drivers/dfl-pci/unbind', other)
    wanted = devices.pci(own)
    wanted.function_id, wanted.bitstream = AES, tool.bitstream(AES)
    os_acc.plug(devices.instance(), [wanted])
    assert 'of the same FPGA' in str(refused(other))


# --- locks


def test_claims_go_on_while_a_chip_is_programmed(
    kernel, tmp_path, monkeypatch
):
    rig = gate_rigs.CyborgRig(kernel, tmp_path, monkeypatch)
    os_acc.CONF.set_override('lock_timeout', 1.0, 'os_acc')
    other = '0000:0b:00.0'
    kernel.add_function(other, IDS, 0x120000)
    slot = cyborg_stand_in.slot
    found = cyborg_stand_in.device
    rig.host.find(
        found('fpga', PF, *(['PCI', slot(vf)] for vf in VFS)),
        found('fpga', other, ['PCI', slot(other)]),
    )
    rig.host.tell('program', 'hang')
    errors = []

    def hang():
        errors.append(refused(VFS[0], 'cyborg', AES, rig))

    thread = threading.Thread(target=hang)
    thread.start()
    hanging = rig.host.hanging()
    rig.host.tell('program', '')
    started = time.monotonic()
    assert 'has not ended' in str(refused(VFS[1]))
    # A request without an address takes the free card.
    wanted = devices.wanted('FPGA')
    wanted.driver, wanted.function_id = 'cyborg', SHA
    wanted.bitstream = rig.bitstream(SHA)
    (van,) = os_acc.plug(devices.instance(), [wanted])
    assert van.device == other
    assert thread.is_alive()
    assert time.monotonic() - started < 30
    os_acc.CONF.clear_override('lock_timeout', 'os_acc')
    for pid in hanging:
        cyborg_host.os.kill(pid, 9)
    thread.join()
    assert isinstance(errors[0], exception.DeviceError)


@pytest.mark.parametrize('functions', [(AES, SHA), (AES, None)])
def test_two_requests_get_two_cards(kernel, tmp_path, monkeypatch, functions):
    rig = gate_rigs.CommandRig(kernel, tmp_path, monkeypatch)
    other = '0000:0b:00.0'
    for tool in (rig.tool, rig.add_second(other)):
        tool.mode('slow')

    def one(function):
        wanted = devices.wanted('FPGA')
        wanted.driver, wanted.function_id = 'fpga', function
        wanted.bitstream = rig.bitstream(function or 'fft')
        (van,) = os_acc.plug(devices.instance(), [wanted])
        return van.device

    with futures.ThreadPoolExecutor(2) as pool:
        assert set(pool.map(one, functions)) == {PF, other}


def test_a_busy_card_is_left_for_the_next(kernel, tmp_path, monkeypatch):
    """A guest that os-acc does not know has a function of the first card."""
    rig = gate_rigs.CommandRig(kernel, tmp_path, monkeypatch)
    other = '0000:0b:00.0'
    rig.add_second(other)
    holder = kernel.hold(kernel.node(VFS[2]))
    wanted = devices.wanted('FPGA')
    wanted.driver, wanted.function_id = 'fpga', AES
    wanted.bitstream = rig.bitstream(AES)
    (van,) = os_acc.plug(devices.instance(), [wanted])
    assert van.device == other
    assert kernel.driver_of(VFS[0]) == 'dfl-pci'
    # With both in use, the error says why for each.
    kernel.hold(kernel.node('0000:0b:00.3'))
    wanted = devices.wanted('FPGA')
    wanted.driver, wanted.function_id = 'fpga', SHA
    wanted.bitstream = rig.bitstream(SHA)
    reason = str(devices.refused(wanted))
    assert f'process {holder}' in reason
    assert other in reason


# --- regions and the whole


@pytest.fixture(params=[gate_rigs.CommandRig, gate_rigs.DflRig])
def dynamic(request, kernel, tmp_path, monkeypatch):
    """The rigs of chips with regions."""
    return request.param(kernel, tmp_path, monkeypatch, 'dynamic')


def whole():
    """The chip as a whole, as another driver programs it."""
    found = chip.of(pci.get(SIBLING))
    return programming.Slot(
        os_acc._get().extensions.drivers['pci'],
        SIBLING,
        programmer=gate_rigs.BoardRig.Board(SIBLING),
        chip=found,
        functions=found.functions,
    )


def meanwhile(rig, monkeypatch, act):
    """Do something once while it is programmed; returns the error of it."""
    run, errors = getattr(*rig.working), []

    def running(*args, **kwargs):
        if not errors:
            errors.append(None)
            try:
                act()
            except exception.ExceptionBase as err:
                errors[0] = err
        return run(*args, **kwargs)

    monkeypatch.setattr(*rig.working, running)
    return errors


def test_the_whole_while_a_region_is_programmed(dynamic, monkeypatch):
    wanted = programming.Wanted(SHA, SHA)
    slot = whole()
    errors = meanwhile(dynamic, monkeypatch, lambda: slot.program(wanted))
    assert dynamic.program(AES, region='0') is True
    assert isinstance(errors[0], exception.DeviceBusy)
    assert 'region 0 of' in str(errors[0])
    assert slot.programmer.done == 0
    assert slot.program(wanted) is True
    # The regions have lost their functions.
    assert [each.region for each in slot.records()] == ['']
    assert dynamic.program(AES, region='0') is True
    assert [each.region for each in slot.records()] == ['0']


def test_a_region_while_the_whole_is_programmed(dynamic):
    slot, errors = whole(), []

    def during(*args):
        with pytest.raises(exception.DeviceBusy) as caught:
            dynamic.program(AES, region='1')
        errors.append(str(caught.value))
        return device_spec.PARTIAL

    slot.programmer.program = during
    assert slot.program(programming.Wanted(SHA, SHA)) is True
    assert f'{SIBLING} is being programmed now' in errors[0]
    assert dynamic.count() == 0


def test_what_was_interrupted_does_not_block_for_ever(dynamic):
    """The process that was programming the whole chip was killed."""
    slot = whole()
    slot.program(programming.Wanted(SHA, SHA))
    (record,) = slot.records()
    journal = os_acc._get().journal
    journal.save_program(
        type(record)(**{**vars(record), 'state': 'programming'})
    )
    assert dynamic.program(AES, region='0') is True


def test_users_of_regions_and_of_the_whole_meet(dynamic):
    instance = plug(VFS[1], 'fpga', AES, dynamic)
    slot = whole()
    with pytest.raises(exception.DeviceBusy, match=instance.uuid):
        slot.program(programming.Wanted(SHA, SHA))
    plug(VFS[0], 'fpga', SHA, dynamic)
    assert dynamic.count() == 2


def test_a_region_while_a_guest_has_a_whole_pf(dynamic, kernel):
    plug(VFS[1], 'fpga', AES, dynamic)
    kernel.write(f'{kernel.pci}/devices/{SIBLING}/driver_override', 'vfio-pci')
    kernel.write(f'{kernel.pci}/drivers/dfl-pci/unbind', SIBLING)
    kernel.write(f'{kernel.pci}/drivers_probe', SIBLING)
    holder = kernel.hold(kernel.node(SIBLING))
    reason = refused(VFS[0], 'fpga', SHA, dynamic)
    assert f'process {holder}' in str(reason)
    # Guests that have other regions are not in the way.
    kernel.end(holder)
    kernel.hold(kernel.node(VFS[1]))
    plug(VFS[0], 'fpga', SHA, dynamic)


# --- the privileged half asks again


@pytest.mark.parametrize('place', ['sibling', 'pf', 'first', 'last'])
def test_root_asks_again(with_root, kernel, place):
    acts = with_root.as_root(with_root.bitstream(AES))
    holder = kernel.hold(kernel.node(with_root.at(place)))
    for act in acts:
        with pytest.raises(exception.DeviceBusy, match=f'process {holder}'):
            act()
    kernel.end(holder)
    flags = kernel.pci / f'devices/{SIBLING}/net/fpga0/flags'
    flags.write_text('0x1003\n')
    with pytest.raises(exception.DeviceBusy, match='interface fpga0 is up'):
        acts[0]()
    flags.write_text('0x1002\n')
    acts[0]()
    assert with_root.count() == 0


# --- random sequences

_FUNCTIONS = (AES, SHA)
_PLACES = ('sibling', 'first', 'last')
_ACTS = strategies.one_of(
    strategies.tuples(
        strategies.just('plug'),
        strategies.sampled_from(_PLACES),
        strategies.sampled_from([None, *_FUNCTIONS]),
    ),
    strategies.tuples(
        strategies.just('program'),
        strategies.none(),
        strategies.sampled_from(_FUNCTIONS),
    ),
    strategies.tuples(
        strategies.just('unplug'),
        strategies.integers(0, 3),
        strategies.none(),
    ),
)


@settings(
    max_examples=examples.costly(4),  # of each rig
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ],
)
@given(acts=strategies.lists(_ACTS, min_size=4, max_size=12))
def test_no_user_loses_its_function(with_root, acts):
    """Whatever is done, in whatever order, over all functions of the chip."""
    rig, instances = with_root, []
    for instance in {van.instance_uuid for van in os_acc.get_vans()}:
        os_acc.unplug(os_acc.objects.InstanceInfo(uuid=instance))
    for act in acts:
        count, users = rig.count(), list(os_acc.get_vans())
        try:
            do(rig, instances, *act)
        except exception.DeviceBusy:
            pass
        except exception.PlugException as err:
            assert isinstance(err.__cause__, exception.DeviceBusy)
        assert rig.count() == count or users == [], 'done under a user'
        vans, inside = list(os_acc.get_vans()), rig.inside()
        assert {van.function_id for van in vans} <= {None, inside}
        if SIBLING in {van.handle.address for van in vans}:
            assert len({van.instance_uuid for van in vans}) == 1


def do(rig, instances, act, place, function):
    if act == 'program':
        rig.program(function)
    elif act == 'plug' and (place == 'sibling' or function is None):
        instances.append(plug(rig.at(place)))
    elif act == 'plug':
        instances.append(plug(rig.at(place), 'fpga', function, rig))
    elif instances:
        os_acc.unplug(instances.pop(place % len(instances)))
