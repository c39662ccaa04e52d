# SPDX-License-Identifier: Apache-2.0

"""Attach and detach: error codes and events that the lab cannot force.

The rest is tested with libvirt itself, in tests/lab/test_live.py.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
import types

import libvirt_double as double
from lxml import etree
import pytest

import acc_plug_libvirt
from acc_plug_libvirt import connection
from acc_plug_libvirt import detach
import os_acc
from os_acc import exception
from os_acc import objects

UUID = '0b0a6bb0-1111-4222-8333-444455556666'
INSTANCE = objects.InstanceInfo(uuid=UUID, name='guest', project_id='p')
VAN = '00000001-1111-4222-8333-444455556666'
ADDRESS = '0000:0c:00.1'
LIVE, CONFIG = 1, 2


@pytest.fixture
def libvirt(monkeypatch):
    made = double.Module()
    monkeypatch.setitem(sys.modules, 'libvirt', made)
    return made


@pytest.fixture
def daemon(libvirt):
    return libvirt.daemon


@pytest.fixture
def plugin(clean, libvirt):
    made = acc_plug_libvirt.LibvirtPlugin.load('libvirt')
    conf = os_acc.CONF
    for name, value in {
        # A busy machine takes its time; who waits in vain sets less.
        'connect_timeout': 30.0,
        'attach_timeout': 5.0,
        'detach_timeout': 3.0,
        'detach_attempts': 3,
        'detach_attempt_timeout': 0.4,
    }.items():
        conf.set_override(name, value, 'os_acc_libvirt')
    return made


def give_up_soon() -> None:
    """For a guest that does not give the device back in three attempts."""
    conf = os_acc.CONF
    conf.set_override('detach_timeout', 1.0, 'os_acc_libvirt')
    conf.set_override('detach_attempt_timeout', 0.1, 'os_acc_libvirt')


def new_van(handle=None, number: int = 1) -> objects.VAN:
    return objects.VAN(
        uuid=f'0000000{number}-1111-4222-8333-444455556666',
        instance_uuid=UUID,
        driver='pci',
        plugin='libvirt',
        state='plugging',
        handle=handle or objects.PCIHandle(address=ADDRESS),
        boot_id='boot',
    )


@pytest.fixture
def van():
    return new_van()


def test_has_guest(plugin, daemon):
    assert plugin.has_guest(INSTANCE) is False
    daemon.domain(UUID)
    assert plugin.has_guest(INSTANCE) is True


def test_undefine_command(plugin, daemon):
    assert plugin.undefine_command(INSTANCE) is None
    domain = daemon.domain(UUID)
    assert plugin.undefine_command(INSTANCE) is None
    domain.active = False
    assert plugin.undefine_command(INSTANCE) == (
        f'virsh --connect qemu:///system undefine --keep-nvram {UUID}'
    )


def test_runs_guest(plugin, daemon):
    assert plugin.runs_guest(INSTANCE) is False
    domain = daemon.domain(UUID)
    assert plugin.runs_guest(INSTANCE) is True
    # What is paused, or has a job, may run on another host the next moment.
    domain.job = 2
    assert plugin.runs_guest(INSTANCE) is None
    domain.job, domain.paused = 0, True
    assert plugin.runs_guest(INSTANCE) is None
    domain.active = False
    assert plugin.runs_guest(INSTANCE) is False
    daemon.up = False
    os_acc.CONF.set_override('connect_timeout', 0.1, 'os_acc_libvirt')
    # The timeout is that of the first connection.
    other = acc_plug_libvirt.LibvirtPlugin.load('libvirt')
    with pytest.raises(exception.HypervisorError):
        other.runs_guest(INSTANCE)


@pytest.fixture
def plugged(plugin, daemon, van):
    """A domain that has the device, live and in its definition."""
    domain = daemon.domain(UUID)
    plugin.plug(van, INSTANCE, True)
    assert (len(domain.live), len(domain.config)) == (1, 1)
    daemon.calls.clear()
    return domain


def error(text: str, code: int, domain: int = double.VIR_FROM_QEMU):
    return double.libvirtError(text, code, domain)


# --- attach


@pytest.mark.parametrize(
    'active, persistent, flags',
    [(True, True, LIVE | CONFIG), (False, True, CONFIG), (True, False, LIVE)],
)
def test_attach(plugin, daemon, van, active, persistent, flags):
    domain = daemon.domain(UUID, active=active, persistent=persistent)
    plugin.plug(van, INSTANCE, True)
    assert daemon.calls[-1] == ('attach', flags)
    for _ in range(2):
        assert len(domain.live) == bool(flags & LIVE)
        assert len(domain.config) == bool(flags & CONFIG)
        plugin.plug(van, INSTANCE, True)


@pytest.mark.parametrize('there, flags', [(LIVE, CONFIG), (CONFIG, LIVE)])
def test_attach_what_is_missing(plugin, daemon, van, there, flags):
    """Only the guest or only its definition has the device."""
    plugin.plug(van, INSTANCE, False)
    domain = daemon.domain(UUID)
    domain.add(etree.fromstring(van.guest_config), there)
    plugin.plug(van, INSTANCE, True)
    assert daemon.calls == [('attach', LIVE | CONFIG), ('attach', flags)]
    assert (len(domain.live), len(domain.config)) == (1, 1)


@pytest.mark.parametrize('alias', [None, 'hostdev0'])
def test_it_is_there_by_its_source(plugin, daemon, van, alias):
    plugin.plug(van, INSTANCE, False)
    element = etree.fromstring(van.guest_config)
    element.find('alias').set('name', alias or 'x')
    if alias is None:
        element.remove(element.find('alias'))
    for name in ('domain', 'bus', 'slot', 'function'):
        address = element.find('source/address')
        address.set(name, str(int(address.get(name), 16)))
    domain = daemon.domain(UUID)
    domain.add(element, LIVE | CONFIG)
    plugin.plug(van, INSTANCE, True)
    assert (len(domain.live), len(domain.config)) == (1, 1)


def test_it_is_there_under_the_alias_of_another(plugin, daemon, van):
    plugin.plug(van, INSTANCE, False)
    element = etree.fromstring(van.guest_config)
    element.find('alias').set('name', 'ua-mine')
    domain = daemon.domain(UUID)
    domain.add(element, LIVE | CONFIG)
    with pytest.raises(exception.DeviceBusy, match='ua-mine'):
        plugin.plug(van, INSTANCE, True)
    assert (len(domain.live), len(domain.config)) == (1, 1)


def test_another_domain_has_it(plugin, daemon, van):
    plugin.plug(van, INSTANCE, False)
    other = daemon.domain('another', name='other')
    other.add(etree.fromstring(van.guest_config), LIVE)
    daemon.domain(UUID)
    with pytest.raises(exception.DeviceBusy, match='domain other'):
        plugin.plug(van, INSTANCE, True)


def test_no_such_domain(plugin, van):
    with pytest.raises(exception.DeviceNotFound, match=UUID):
        plugin.plug(van, INSTANCE, True)


def test_no_free_port(plugin, daemon, van):
    daemon.domain(UUID)
    daemon.script['attach'] = [
        error(
            'internal error: No more available PCI slots',
            double.VIR_ERR_INTERNAL_ERROR,
        )
    ]
    with pytest.raises(exception.HypervisorError, match='pcie-root-port'):
        plugin.plug(van, INSTANCE, True)


def test_libvirt_refuses(plugin, daemon, van):
    daemon.domain(UUID)
    daemon.script['attach'] = [error('no', double.VIR_ERR_OPERATION_FAILED)]
    with pytest.raises(exception.HypervisorError, match='libvirt error 9'):
        plugin.plug(van, INSTANCE, True)


def test_libvirt_takes_it_and_does_nothing(plugin, daemon, van):
    daemon.domain(UUID)
    daemon.script['attach'] = [lambda *_: None]
    with pytest.raises(exception.HypervisorError, match='does not have it'):
        plugin.plug(van, INSTANCE, True)


def test_libvirtd_goes_away_in_the_attach(plugin, daemon, van):
    """libvirtd had attached the device already: it is not attached twice."""

    def done_and_gone(domain, element):
        domain.add(element, LIVE | CONFIG)
        raise double.broken()

    daemon.domain(UUID)
    daemon.script['attach'] = [done_and_gone]
    plugin.plug(van, INSTANCE, True)
    there = daemon.domains[UUID]
    assert (len(there.live), len(there.config)) == (1, 1)


def test_the_guest_is_shut_off_meanwhile(plugin, daemon, van):
    def shut_off(domain, element):
        domain.active = False
        raise error('not running', double.VIR_ERR_OPERATION_INVALID)

    domain = daemon.domain(UUID)
    daemon.script['attach'] = [shut_off]
    plugin.plug(van, INSTANCE, True)
    assert (len(domain.live), len(domain.config)) == (0, 1)


def test_the_guest_is_started_meanwhile(plugin, daemon, van):
    """The guest was shut off when listed, and started without the device."""

    def started(domain, element):
        domain.active = True
        domain.add(element, CONFIG)

    domain = daemon.domain(UUID, active=False)
    daemon.script['attach'] = [started]
    plugin.plug(van, INSTANCE, True)
    assert (len(domain.live), len(domain.config)) == (1, 1)


def test_libvirtd_stays_away(plugin, daemon, van):
    os_acc.CONF.set_override('connect_timeout', 0.5, 'os_acc_libvirt')
    daemon.up = False
    with pytest.raises(exception.HypervisorError, match='tried for'):
        plugin.plug(van, INSTANCE, True)


def test_libvirt_does_not_answer(plugin, daemon, van):
    daemon.domain(UUID)
    go_on = threading.Event()
    daemon.script['attach'] = [lambda *_: go_on.wait(30)]
    os_acc.CONF.set_override('attach_timeout', 1.0, 'os_acc_libvirt')
    with pytest.raises(exception.Timeout, match='libvirt to attach'):
        plugin.plug(van, INSTANCE, True)
    go_on.set()


def test_one_connection_for_all(plugin, daemon, van):
    daemon.domain(UUID)
    plugin.plug(van, INSTANCE, True)
    plugin.unplug(van, INSTANCE, True)
    assert daemon.opened == 1
    daemon.script['lookup'] = [double.broken()]
    plugin.unplug(van, INSTANCE, True)
    assert daemon.opened == 2


# --- detach


def test_detach(plugin, daemon, van, plugged):
    """The device is removed from the definition first."""
    plugin.unplug(van, INSTANCE, True)
    assert daemon.calls == [('detach', CONFIG), ('detach', LIVE)]
    assert (plugged.live, plugged.config) == ([], [])
    plugin.unplug(van, INSTANCE, True)
    assert (plugged.live, plugged.config) == ([], [])
    assert plugged.connection.listeners == {}


def test_the_answer_comes_later(plugin, daemon, van, plugged):
    daemon.script['detach'] = [
        None,
        plugged.later(0.2, plugged.let_go),
    ]
    daemon.script['detach'][0] = lambda d, e: d.drop(d.config, e)
    plugin.unplug(van, INSTANCE, True)
    assert daemon.calls == [('detach', CONFIG), ('detach', LIVE)]


def config_first(domain, element):
    domain.drop(domain.config, element)


def test_an_event_that_is_lost(plugin, daemon, van, plugged):
    """A restart of libvirtd loses the event: the plugin polls as well."""

    def quietly(element):
        plugged.drop(plugged.live, element)

    daemon.script['detach'] = [config_first, plugged.later(0.1, quietly)]
    plugin.unplug(van, INSTANCE, True)
    assert plugged.live == []


def test_the_guest_says_no_and_then_yes(
    plugin, daemon, van, plugged, monkeypatch
):
    monkeypatch.setattr(detach, 'PAUSE', 0.05)
    daemon.script['detach'] = [
        config_first,
        plugged.later(0.05, plugged.refuse),
    ]
    plugin.unplug(van, INSTANCE, True)
    assert daemon.calls == [('detach', CONFIG)] + [('detach', LIVE)] * 2


def test_the_guest_does_not_answer(plugin, daemon, van, plugged):
    nothing = [lambda *_: None] * 3
    daemon.script['detach'] = [config_first, *nothing]
    give_up_soon()
    with pytest.raises(exception.Timeout, match='3 attempts'):
        plugin.unplug(van, INSTANCE, True)
    assert len(plugged.live) == 1
    assert plugged.connection.listeners == {}
    os_acc.CONF.set_override('detach_timeout', 20.0, 'os_acc_libvirt')
    plugin.unplug(van, INSTANCE, True)
    assert plugged.live == []


def test_the_deadline_is_for_all_attempts(plugin, daemon, van, plugged):
    conf = os_acc.CONF
    conf.set_override('detach_attempts', 1000, 'os_acc_libvirt')
    conf.set_override('detach_timeout', 1.0, 'os_acc_libvirt')
    daemon.script['detach'] = [config_first, *([lambda *_: None] * 1000)]
    before = time.monotonic()
    with pytest.raises(exception.Timeout):
        plugin.unplug(van, INSTANCE, True)
    assert time.monotonic() - before < 20


@pytest.mark.parametrize(
    'err',
    [
        error('device not found: no', double.VIR_ERR_DEVICE_MISSING),
        error('operation failed: not found', double.VIR_ERR_OPERATION_FAILED),
        error('no domain', double.VIR_ERR_NO_DOMAIN),
        error('domain is not running', double.VIR_ERR_OPERATION_INVALID),
    ],
)
def test_gone_is_done(plugin, daemon, van, plugged, err):
    def gone(domain, element):
        domain.live.clear()
        raise err

    daemon.script['detach'] = [config_first, gone]
    plugin.unplug(van, INSTANCE, True)
    assert plugged.live == []
    # The first attempt was enough.
    assert daemon.calls == [('detach', CONFIG), ('detach', LIVE)]


def test_it_is_gone_from_the_definition(plugin, daemon, van, plugged):
    def gone(domain, element):
        domain.config.clear()
        raise error('no', double.VIR_ERR_DEVICE_MISSING)

    daemon.script['detach'] = [gone]
    plugin.unplug(van, INSTANCE, True)
    assert plugged.live == []


def test_it_has_been_asked_before(plugin, daemon, van, plugged):
    def asked(domain, element):
        domain.later(0.1, domain.let_go)(domain, element)
        raise error(
            "internal error: unable to execute QEMU command 'device_del': "
            'Device ua is already in the process of unplug',
            double.VIR_ERR_INTERNAL_ERROR,
        )

    daemon.script['detach'] = [config_first, asked]
    plugin.unplug(van, INSTANCE, True)
    assert len(daemon.calls) == 2


@pytest.mark.parametrize(
    'err',
    [
        error('rejected by the guest', double.VIR_ERR_OPERATION_FAILED),
        error('cannot acquire lock', double.VIR_ERR_OPERATION_TIMEOUT),
        error(
            'Hot-unplug failed: guest is busy', double.VIR_ERR_INTERNAL_ERROR
        ),
    ],
)
def test_not_now(plugin, daemon, van, plugged, err, monkeypatch):
    """The guest is asked again; the last error is in the Timeout."""
    monkeypatch.setattr(detach, 'PAUSE', 0.05)
    daemon.script['detach'] = [config_first, err]
    plugin.unplug(van, INSTANCE, True)
    assert plugged.live == []
    plugin.plug(van, INSTANCE, True)
    give_up_soon()
    daemon.script['detach'] = [config_first, *([err] * 3)]
    with pytest.raises(exception.Timeout, match=str(err)):
        plugin.unplug(van, INSTANCE, True)
    assert len(plugged.live) == 1


# --- a slow guest, on a clock of its own


@pytest.fixture
def clock(plugin, monkeypatch):
    """A clock for the detach, and the default options."""
    for name in ('attempts', 'attempt_timeout', 'timeout'):
        os_acc.CONF.clear_override(f'detach_{name}', 'os_acc_libvirt')
    made = double.Clock()
    monkeypatch.setattr(detach, 'time', made)
    monkeypatch.setattr(detach, 'threading', made)
    return made


@pytest.fixture
def answer(daemon, plugged):
    """A function: each request to detach from the guest calls another."""

    def do(act):
        daemon.script['detach'] = [config_first, *([act] * 1000)]

    return do


QEMU = [(4, 2), (5, 2), (7, 2)]


@pytest.mark.parametrize('version', QEMU)
@pytest.mark.parametrize('slowness', [1, 3, 5, 6, 8, 10, 16, 20])
def test_a_guest_slower_than_its_clock(
    plugin, van, plugged, clock, answer, version, slowness
):
    slot = double.PcieSlot(clock, version, 5.0 * slowness)
    answer(slot.ask)
    plugin.unplug(van, INSTANCE, True)
    assert plugged.live == []
    assert clock.now <= 160
    if version >= (5, 0) or slowness < 4:
        # Nobody has disturbed it.
        assert slot.requests == [0]
        assert clock.now <= 5 * slowness + 2


@pytest.mark.parametrize('version', QEMU)
def test_a_guest_that_is_too_slow(plugin, van, clock, answer, version):
    slot = double.PcieSlot(clock, version, 1000)
    answer(slot.ask)
    with pytest.raises(exception.Timeout) as err:
        plugin.unplug(van, INSTANCE, True)
    assert 159 <= clock.now <= 161
    assert 'still has the device after' in str(err.value)
    assert 'Wait and unplug again' in str(err.value)
    if version >= (6, 2):
        assert 'is still working on a request' in str(err.value)


def test_a_guest_that_never_answers(plugin, van, plugged, clock, answer):
    times = []
    answer(lambda *_: times.append(clock.now))
    with pytest.raises(exception.Timeout) as err:
        plugin.unplug(van, INSTANCE, True)
    assert times == [0, 20, 60]
    assert clock.now == 160
    text = str(err.value)
    assert text.startswith(f'Waited 160 s for guest {UUID} to release VAN')
    for part in (
        'it still has the device after 3 attempts: it has the request, but '
        'has not answered. Wait and unplug again.',
        'acpiphp or pciehp',
        'shut it down',
    ):
        assert part in text
    assert len(plugged.live) == 1


def test_a_paused_guest(plugin, van, plugged, clock, answer):
    plugged.paused = True
    answer(lambda *_: None)
    with pytest.raises(
        exception.Timeout, match=r'it is paused\. Resume it and unplug again'
    ):
        plugin.unplug(van, INSTANCE, True)


def test_a_guest_that_always_refuses(plugin, van, plugged, clock, answer):
    times = []

    def refuse(domain, element):
        times.append(clock.now)
        domain.refuse(element)

    answer(refuse)
    with pytest.raises(
        exception.Timeout, match=r'8 attempts: it refused\. Unplug again later'
    ):
        plugin.unplug(van, INSTANCE, True)
    assert times == [0, 1, 3, 7, 15, 31, 63, 127]


def test_a_device_that_the_guest_is_powering_on(
    plugin, van, plugged, clock, answer
):
    """QEMU passes the request on only after that."""
    slot = double.PcieSlot(clock, (7, 2))
    slot.blink_for(7)
    answer(slot.ask)
    plugin.unplug(van, INSTANCE, True)
    assert slot.requests == [7]
    assert clock.now <= 15


def test_the_options_of_the_operator(plugin, van, clock, answer):
    conf = os_acc.CONF
    conf.set_override('detach_attempts', 2, 'os_acc_libvirt')
    conf.set_override('detach_attempt_timeout', 10, 'os_acc_libvirt')
    answer(lambda *_: None)
    with pytest.raises(exception.Timeout, match='2 attempts'):
        plugin.unplug(van, INSTANCE, True)
    assert clock.now == 30


def test_libvirtd_goes_away_in_the_detach(plugin, daemon, van, plugged):
    def gone(domain, element):
        domain.later(0.2, domain.let_go)(domain, element)
        domain.connection.alive = False
        raise double.broken()

    daemon.script['detach'] = [config_first, gone]
    plugin.unplug(van, INSTANCE, True)
    assert plugged.live == []
    assert daemon.opened == 2


def test_the_domain_is_gone(plugin, daemon, van, plugged):
    daemon.domains.clear()
    plugin.unplug(van, INSTANCE, True)


def test_it_was_shut_off(plugin, daemon, van, plugged):
    plugged.active = False
    plugin.unplug(van, INSTANCE, True)
    assert plugged.config == []


def test_a_transient_domain(plugin, daemon, van):
    domain = daemon.domain(UUID, persistent=False)
    plugin.plug(van, INSTANCE, True)
    assert (len(domain.live), len(domain.config)) == (1, 0)
    plugin.unplug(van, INSTANCE, True)
    assert daemon.calls[-1] == ('detach', LIVE)
    assert domain.live == []


@pytest.mark.parametrize(
    'version, fine', [(12000000, False), (12001000, True)]
)
def test_iommufd_needs_a_libvirt_that_knows_it(
    plugin, daemon, van, monkeypatch, version, fine
):
    monkeypatch.setattr(
        double.Connection, 'getLibVersion', lambda _: version, raising=False
    )
    domain = daemon.domain(UUID)
    van.driver_data = {'iommufd': 'yes'}
    if fine:
        plugin.plug(van, INSTANCE, True)
    else:
        with pytest.raises(
            exception.HypervisorError, match=r'before 12\.1 does not know'
        ):
            plugin.plug(van, INSTANCE, True)
    assert len(domain.live) == int(fine)


def test_the_doctor_on_iommufd(plugin, kernel, monkeypatch):
    kernel.without_groups()
    for name, value in (('getLibVersion', 12000000), ('numOfDomains', 0)):
        monkeypatch.setattr(
            double.Connection, name, lambda _, v=value: v, raising=False
        )
    version, found = plugin.diagnose()
    assert version.verdict == 'ok'
    assert found.verdict == 'error'
    assert 'CONFIG_VFIO_GROUP' in found.text


def test_a_test_handle_needs_no_libvirt(plugin, daemon):
    van = new_van(objects.TestHandle(name='none'))
    plugin.plug(van, INSTANCE, True)
    plugin.unplug(van, INSTANCE, True)
    assert daemon.opened == 0


def test_doctor(plugin, libvirt, daemon, monkeypatch):
    monkeypatch.setattr(
        double.Connection, 'getLibVersion', lambda _: 9000000, raising=False
    )
    monkeypatch.setattr(
        double.Connection, 'numOfDomains', lambda _: 2, raising=False
    )
    os_acc.CONF.set_override('connect_timeout', 5.0, 'os_acc_libvirt')
    (found,) = plugin.diagnose()
    assert (found.verdict, found.text) == (
        'ok',
        'version 9.0.0, 2 running guests',
    )
    daemon.up = False
    (found,) = plugin.diagnose()
    assert found.verdict == 'warning'
    assert 'Failed to connect socket' in found.text
    monkeypatch.setitem(sys.modules, 'libvirt', None)
    (found,) = plugin.diagnose()
    assert 'libvirt-python' in found.text


def test_libvirt_prints_nothing_unless_the_program_uses_it(monkeypatch):
    registered = []
    made = types.SimpleNamespace(
        registerErrorHandler=lambda *given: registered.append(given)
    )
    monkeypatch.setattr(importlib, 'import_module', lambda name: made)
    monkeypatch.setitem(sys.modules, 'libvirt', made)
    assert connection.module() is made
    assert registered == []
    monkeypatch.delitem(sys.modules, 'libvirt')
    assert connection.module() is made
    ((handler, context),) = registered
    assert handler(context, 'an error') is None


# --- an attach whose caller has given up


def test_a_late_attach_is_taken_out_again(plugin, daemon, van):
    """The undo waits until the attach has ended."""
    domain = daemon.domain(UUID)
    go_on = threading.Event()

    def late(there, element):
        go_on.wait(30)
        there.add(element, LIVE | CONFIG)

    daemon.script['attach'] = [late]
    os_acc.CONF.set_override('attach_timeout', 1.0, 'os_acc_libvirt')
    with pytest.raises(exception.Timeout):
        plugin.plug(van, INSTANCE, True)
    os_acc.CONF.set_override('detach_timeout', 0.3, 'os_acc_libvirt')
    with pytest.raises(
        exception.Timeout, match=r'Waited 0\.3 s for an earlier operation'
    ):
        plugin.unplug(van, INSTANCE, True)
    os_acc.CONF.set_override('detach_timeout', 20.0, 'os_acc_libvirt')
    go_on.set()
    plugin.unplug(van, INSTANCE, True)
    assert (domain.live, domain.config) == ([], [])


OTHER = '7c1d1f0e-8a4e-4d6b-9f1d-0c2b3a4d5e6f'
QEMU = 'http://libvirt.org/schemas/domain/qemu/1.0'


def other(daemon, monkeypatch, xml, active=False):
    """Let another domain have an XML; an error is raised instead."""
    domain = double.Domain(daemon, OTHER, active=active, name='web')
    daemon.domains[OTHER] = domain

    def read(flags):
        if isinstance(xml, Exception):
            raise xml
        return xml

    monkeypatch.setattr(domain, 'XMLDesc', read)


@pytest.mark.parametrize(
    'argument',
    [
        'vfio-pci,host={short}',
        'vfio-pci,host={address},id=x',
        'driver=vfio-pci,bus=pci.1,host={address}',
        'vfio-pci-nohotplug,sysfsdev=/sys/bus/pci/devices/{address}',
        '{{"driver":"vfio-pci","host":"{address}","id":"x"}}',
    ],
)
def test_a_shut_off_domain_has_the_device_by_its_command_line(
    plugin, daemon, van, monkeypatch, argument
):
    daemon.domain(UUID)
    text = argument.format(
        address=van.handle.address,
        short=van.handle.address.removeprefix('0000:'),
    ).replace('"', '&quot;')
    other(
        daemon,
        monkeypatch,
        f'<domain xmlns:q="{QEMU}"><q:commandline><q:arg value="-device"/>'
        f'<q:arg value="{text}"/></q:commandline></domain>',
    )
    with pytest.raises(exception.DeviceBusy, match='domain web'):
        plugin.plug(van, INSTANCE, True)


@pytest.mark.parametrize(
    'argument',
    ['virtio-net-pci,host={}', 'vfio-pci,host=0000:ff:1f.7', '{{', 'vfio-pci'],
)
def test_a_command_line_without_the_device(
    plugin, daemon, van, monkeypatch, argument
):
    daemon.domain(UUID)
    text = argument.format(van.handle.address)
    other(
        daemon,
        monkeypatch,
        f'<domain xmlns:q="{QEMU}"><q:commandline><q:arg value="{text}"/>'
        '</q:commandline></domain>',
    )
    plugin.plug(van, INSTANCE, True)


@pytest.mark.parametrize(
    'xml',
    [
        error('internal error: cannot format the XML', 1),
        '<domain><name>a\x01b</name></domain>',
        '<domain><devices>',
        '',
    ],
)
@pytest.mark.parametrize('active', [True, False])
def test_another_domain_whose_xml_cannot_be_read(
    plugin, daemon, van, monkeypatch, caplog, xml, active
):
    domain = daemon.domain(UUID)
    other(daemon, monkeypatch, xml, active)
    plugin.plug(van, INSTANCE, True)
    assert domain.live
    assert f'domain web ({OTHER}) cannot be read' in caplog.text


def test_a_broken_xml_that_names_the_device(plugin, daemon, van, monkeypatch):
    daemon.domain(UUID)
    address = van.handle.address
    other(daemon, monkeypatch, f'<domain><x>\x01</x> host={address}')
    with pytest.raises(exception.DeviceBusy, match='domain web'):
        plugin.plug(van, INSTANCE, True)


def test_nothing_is_begun_for_a_caller_that_has_left(plugin, daemon, van):
    domain = daemon.domain(UUID)
    go_on = threading.Event()
    listed = double.Connection.listAllDomains

    def slow(opened, flags):
        go_on.wait(30)
        return listed(opened, flags)

    double.Connection.listAllDomains = slow
    try:
        os_acc.CONF.set_override('attach_timeout', 1.0, 'os_acc_libvirt')
        with pytest.raises(exception.Timeout):
            plugin.plug(van, INSTANCE, True)
        go_on.set()
        plugin.unplug(van, INSTANCE, True)
    finally:
        double.Connection.listAllDomains = listed
    assert not any(what == 'attach' for what, _ in daemon.calls)
    assert (domain.live, domain.config) == ([], [])


def test_a_call_of_a_killed_process_that_is_under_way(plugin, daemon, van):
    """The guest has no device yet; libvirtd detaches after the attach."""
    plugin.plug(van, INSTANCE, False)
    domain = daemon.domain(UUID)

    def both(there, element):
        there.add(element, LIVE)
        there.let_go(element)

    # A busy machine delivers the event late; that is no reason to ask again.
    os_acc.CONF.set_override('detach_timeout', 60.0, 'os_acc_libvirt')
    os_acc.CONF.set_override('detach_attempt_timeout', 30.0, 'os_acc_libvirt')
    daemon.script['detach'] = [
        error('not found', double.VIR_ERR_DEVICE_MISSING),
        both,
    ]
    plugin.unplug(van, INSTANCE, True)
    assert domain.live == []
    assert daemon.calls == [('detach', CONFIG), ('detach', LIVE)]


def test_the_device_under_the_alias_of_another_stays(plugin, daemon, van):
    plugin.plug(van, INSTANCE, False)
    element = etree.fromstring(van.guest_config)
    element.find('alias').set('name', 'ua-mine')
    domain = daemon.domain(UUID)
    domain.add(element, LIVE | CONFIG)
    plugin.unplug(van, INSTANCE, True)
    assert daemon.calls == []
    assert (len(domain.live), len(domain.config)) == (1, 1)


def test_unplug_removes_its_alias_with_another_device(plugin, daemon, van):
    """The alias is the VAN's own, whatever device the definition names."""
    earlier = new_van(objects.PCIHandle(address='0000:0c:00.7'))
    plugin.plug(earlier, INSTANCE, False)
    domain = daemon.domain(UUID)
    domain.add(etree.fromstring(earlier.guest_config), CONFIG)
    plugin.unplug(van, INSTANCE, True)
    assert domain.config == []


@pytest.mark.parametrize('alias', ['ua-mine', None])
def test_the_definition_keeps_the_device_of_another(
    plugin, daemon, van, alias
):
    """Only a device without an alias of another is the VAN's."""
    plugin.plug(van, INSTANCE, False)
    element = etree.fromstring(van.guest_config)
    if alias is None:
        element.remove(element.find('alias'))
    else:
        element.find('alias').set('name', alias)
    domain = daemon.domain(UUID, active=False)
    domain.add(element, CONFIG)
    daemon.script['detach'] = [lambda d, e: d.config.clear()]
    plugin.unplug(van, INSTANCE, True)
    assert len(domain.config) == (alias is not None)


def test_its_alias_with_another_device(plugin, daemon, van):
    """The definition still has the hostdev of an earlier plug."""
    earlier = new_van(objects.PCIHandle(address='0000:0c:00.7'))
    plugin.plug(earlier, INSTANCE, False)
    daemon.domain(UUID).add(etree.fromstring(earlier.guest_config), CONFIG)
    with pytest.raises(exception.DeviceBusy, match='0c:00'):
        plugin.plug(van, INSTANCE, True)


@pytest.mark.parametrize(
    'xml',
    [
        "<interface type='hostdev'><source><address type='pci' domain='0' "
        "bus='0x0c' slot='0' function='1'/></source></interface>",
        "<disk type='nvme'><source><address domain='0' bus='0x0c' slot='0' "
        "function='1'/></source></disk>",
    ],
)
@pytest.mark.parametrize('where', [LIVE, CONFIG])
def test_another_domain_has_it_otherwise(plugin, daemon, van, xml, where):
    daemon.domain('another', name='other').add(etree.fromstring(xml), where)
    daemon.domain(UUID)
    with pytest.raises(exception.DeviceBusy, match='domain other'):
        plugin.plug(van, INSTANCE, True)


# --- libvirt's PCI code, libvirtd that hangs, forks


def test_a_refusal_is_not_taken_for_a_broken_connection(plugin, daemon, van):
    """src/util/virpci.c raises error 1 without an error domain."""
    daemon.domain(UUID)
    daemon.script['attach'] = [
        error(
            'internal error: Unable to reset PCI device 0000:0c:00.1',
            double.VIR_ERR_INTERNAL_ERROR,
            double.VIR_FROM_NONE,
        )
    ]
    with pytest.raises(exception.HypervisorError, match='Unable to reset'):
        plugin.plug(van, INSTANCE, True)
    assert len(daemon.calls) == 1


def test_a_libvirtd_that_hangs(plugin, libvirt, van, monkeypatch):
    os_acc.CONF.set_override('connect_timeout', 0.2, 'os_acc_libvirt')
    go_on = threading.Event()
    monkeypatch.setattr(libvirt, 'open', lambda uri: go_on.wait(30))
    (found,) = plugin.diagnose()
    assert found.verdict == 'warning'
    assert 'to answer' in found.text
    with pytest.raises(exception.ExceptionBase, match='to answer'):
        plugin.plug(van, INSTANCE, True)
    go_on.set()


def test_a_fork_leaves_the_parents_connection(plugin, daemon, van):
    daemon.domain(UUID)
    plugin.plug(van, INSTANCE, True)
    opened = plugin.libvirt().get()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = 'nothing was raised'
        try:
            plugin.unplug(van, INSTANCE, True)
        except BaseException as err:
            text = str(err)
        os.write(writing, f'{text} {opened.alive}'.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    said = os.read(reading, 4096).decode()
    assert 'was forked from one that used libvirt' in said
    assert said.endswith('True')
    plugin.unplug(van, INSTANCE, True)
    assert daemon.opened == 1
