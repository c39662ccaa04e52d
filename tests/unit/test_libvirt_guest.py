# SPDX-License-Identifier: Apache-2.0

"""How the libvirt plugin moves a domain: errors that libvirt's tests cannot
force. tests/functional/test_migrate.py moves real ones."""

from __future__ import annotations

import sys
import uuid

import libvirt_double as double
from lxml import etree
import pytest

import acc_plug_libvirt
from acc_plug_libvirt import guest as guest_module
import os_acc
from os_acc import exception
from os_acc import guest_move
from os_acc import objects
from os_acc.deadlines import waiting
from os_acc.texts import ways

UUID = '0b0a6bb0-1111-4222-8333-444455556666'
INFO = objects.InstanceInfo(uuid=UUID, name='guest', project_id='p')
HERE, THERE = 'qemu:///system', 'qemu+tls://two/system'
MIGRATING = 3


class Domain(double.Domain):
    """A domain that can be moved.

    :ivar extra: what else is in its XML
    :ivar starts_itself: whether it has autostart
    :ivar obeys: whether its guest shuts down when it is asked
    """

    def __init__(self, daemon, uuid_, **kwargs):
        super().__init__(daemon, uuid_, **kwargs)
        self.extra, self.kept = '', {}
        self.starts_itself, self.obeys = 0, True
        self.asked = 0

    def XMLDesc(self, flags):
        root = etree.fromstring(super().XMLDesc(flags))
        etree.SubElement(root, 'uuid').text = self.uuid
        for each in etree.fromstring(f'<x>{self.extra}</x>'):
            root.find('devices').append(each)
        return etree.tostring(root, encoding='unicode')

    def isActive(self):
        return self.active

    def autostart(self):
        return self.starts_itself

    def setAutostart(self, value):
        self.starts_itself = value

    def shutdown(self):
        self.asked += 1
        if self.obeys:
            self.shut_off()

    def create(self):
        self.active, self.live = True, list(self.config)

    def destroy(self):
        self.shut_off()

    def resume(self):
        self.paused = False

    def undefineFlags(self, flags):
        del self.daemon.domains[self.uuid]

    def hasManagedSaveImage(self):
        return self.kept.get('saved', 0)

    def snapshotNum(self):
        return self.kept.get('snapshots', 0)

    def listAllCheckpoints(self):
        return self.kept.get('checkpoints', [])

    def migrateToURI3(self, uri, parameters, flags):
        act = self.daemon.next('migrate')
        self.daemon.calls.append(('migrate', flags))
        self.parameters = uri, parameters
        if act is not None:
            act(self)

    def abortJob(self):
        self.daemon.calls.append(('abort', 0))
        self.job = 0


class Connection(double.Connection):
    def defineXML(self, xml):
        root = etree.fromstring(xml)
        made = Domain(self.daemon, root.findtext('uuid'), active=False)
        made.config = list(root.find('devices'))
        self.daemon.domains[made.uuid] = made


class Libvirt(double.Module):
    """Two libvirtd, by their URIs."""

    VIR_MIGRATE_PARAM_DEST_XML = 'destination_xml'
    VIR_MIGRATE_PARAM_PERSIST_XML = 'persistent_xml'

    def __init__(self):
        super().__init__()
        self.daemons = {HERE: double.Daemon(), THERE: double.Daemon()}

    def open(self, uri):
        if not self.daemons[uri].up:
            raise double.broken()
        return Connection(self.daemons[uri])


@pytest.fixture
def libvirt(clean, monkeypatch):
    made = Libvirt()
    monkeypatch.setitem(sys.modules, 'libvirt', made)
    monkeypatch.setattr(guest_module, '_LOOK', 0.01)
    return made


@pytest.fixture
def here(libvirt):
    daemon = libvirt.daemons[HERE]
    made = daemon.domains[UUID] = Domain(daemon, UUID)
    return made


@pytest.fixture
def there(libvirt):
    """The domains of the target."""
    return libvirt.daemons[THERE].domains


@pytest.fixture
def move(here):
    """Make what moves the domain as it is now."""
    plugin = acc_plug_libvirt.LibvirtPlugin.load('libvirt')
    return lambda: plugin.guest_move(INFO, THERE)


def van(address, uuid_='00000001-1111-4222-8333-444455556666'):
    made = objects.VAN(
        uuid=uuid_,
        instance_uuid=UUID,
        driver='pci',
        plugin='libvirt',
        state='plugged',
        handle=objects.PCIHandle(address=address),
    )
    plugin = acc_plug_libvirt.LibvirtPlugin.load('libvirt')
    plugin.plug(made, INFO, live=False)
    return made


def attach(domain, made):
    element = etree.fromstring(made.guest_config)
    domain.config, domain.live = [element], [element]


def on_target(there, libvirt, paused=False):
    made = Domain(libvirt.daemons[THERE], UUID)
    made.paused = paused
    there[UUID] = made
    return made


def test_a_stopped_guest_moves(move, here, there):
    here.starts_itself = 1
    old, new = van('0000:0c:00.1'), van('0000:0d:00.2')
    attach(here, old)
    guest = move()
    guest.define([old], [new])
    assert not there[UUID].active
    (element,) = there[UUID].config
    assert element.find('source/address').get('bus') == '0x0d'
    guest.stop(5.0, lambda: False)
    assert (here.active, here.starts_itself) == (False, 0)
    guest.forget()
    guest.start()
    assert (there[UUID].active, there[UUID].starts_itself) == (True, 1)
    assert here.uuid not in here.daemon.domains


def test_it_is_undone(move, here, there):
    here.starts_itself = 1
    guest = move()
    guest.define([], [])
    guest.stop(5.0, lambda: False)
    guest.discard()
    guest.restart()
    assert UUID not in there
    assert (here.active, here.starts_itself) == (True, 1)


def test_a_guest_that_was_off_is_not_started(move, here, there):
    here.shut_off()
    guest = move()
    guest.define([], [])
    guest.stop(5.0, lambda: False)
    assert here.asked == 0
    guest.start()
    guest.restart()
    assert (here.active, there[UUID].active) == (False, False)


def test_a_guest_that_runs_again_is_not_forgotten(move, here, there):
    """libvirt undefines a running domain: it goes on, as a transient one."""
    guest = move()
    guest.define([], [])
    guest.stop(5.0, lambda: False)
    here.create()
    with pytest.raises(exception.HypervisorError, match='started it again'):
        guest.forget()
    assert UUID in here.daemon.domains


def test_what_runs_on_the_target_is_not_discarded(move, there, libvirt):
    on_target(there, libvirt)
    move().discard()
    assert UUID in there


def test_a_guest_that_does_not_shut_down(move, here):
    here.obeys = False
    with pytest.raises(exception.Timeout, match='to shut down'):
        move().stop(0.05, lambda: False)
    with pytest.raises(KeyboardInterrupt):
        move().stop(60.0, lambda: True)
    assert here.active


def test_a_guest_moves_while_it_runs(move, here):
    move().carry([], [], 60.0, lambda: False)
    # libvirt's numbers: live, peer to peer, persist there, undefine here.
    assert here.daemon.calls == [('migrate', 1 | 2 | 8 | 16)]
    assert here.parameters == (THERE, {})
    here.persistent = False
    move().carry([], [], 60.0, lambda: False)
    assert here.daemon.calls[1:] == [('migrate', 1 | 2)]


def test_with_its_devices_it_gets_both_definitions(move, here):
    old, new = van('0000:0c:00.1'), van('0000:0d:00.2')
    attach(here, old)
    move().carry([old], [new], 60.0, lambda: False)
    _, parameters = here.parameters
    assert set(parameters) == {'destination_xml', 'persistent_xml'}
    for text in parameters.values():
        assert "bus='0x0d'" in text.replace('"', "'")
        assert "bus='0x0c'" not in text.replace('"', "'")


FOREIGN = (
    "<hostdev mode='subsystem' type='pci'><source><address domain='0'"
    " bus='7' slot='0' function='0'/></source></hostdev>"
)
LATER = '00000002-1111-4222-8333-444455556666'


@pytest.mark.parametrize('of_os_acc', [True, False])
@pytest.mark.parametrize('only_kept', [True, False])
@pytest.mark.parametrize('way', ways.WAYS)
def test_what_was_attached_since_the_look_does_not_move(
    move, here, there, of_os_acc, only_kept, way
):
    """The definition on the target would have the source's address."""
    old, new = van('0000:0c:00.1'), van('0000:0d:00.2')
    text = van('0000:07:00.0', LATER).guest_config if of_os_acc else FOREIGN
    if way != ways.REPLUG:
        attach(here, old)
    here.config = [*here.config, etree.fromstring(text)]
    here.live = here.live if only_kept else [*here.live, here.config[-1]]
    with pytest.raises(
        exception.MigrationConflict, match=r'pci/0000:07:00\.0'
    ):
        if way == ways.COLD:
            move().define([old], [new])
        elif way == ways.LIVE:
            move().carry([old], [new], 60.0, lambda: False)
        else:
            move().carry([], [], 60.0, lambda: False)
    assert here.daemon.calls == []
    assert UUID not in there


def test_libvirt_refuses(move, here):
    def refuse(domain):
        raise double.libvirtError('no route', 38, 10)

    here.daemon.script['migrate'] = [refuse]
    with pytest.raises(exception.HypervisorError, match='no route'):
        move().carry([], [], 60.0, lambda: False)


@pytest.mark.parametrize('by', ['time', 'Ctrl-C'])
def test_libvirt_is_asked_to_give_up(move, here, by):
    def work(domain):
        domain.job = MIGRATING
        waiting.until(lambda: not domain.job, 60.0, 'the end of the job')
        raise double.libvirtError('canceled by client', 78)

    here.daemon.script['migrate'] = [work]
    seconds = 0.05 if by == 'time' else 60.0
    with pytest.raises(exception.HypervisorError, match='canceled'):
        move().carry([], [], seconds, lambda: by == 'Ctrl-C')
    assert ('abort', 0) in here.daemon.calls


@pytest.mark.parametrize(
    ('here_is', 'there_is', 'expected'),
    [
        ('running', None, guest_move.SOURCE),
        ('running', 'off', guest_move.SOURCE),
        ('off', 'running', guest_move.TARGET),
        (None, 'running', guest_move.TARGET),
        # It has ended in the move, or crashed.
        ('off', None, guest_move.SOURCE),
        ('off', 'off', guest_move.SOURCE),
        # Nobody runs it until somebody says so.
        ('paused', None, guest_move.SOURCE),
        ('paused', 'off', guest_move.SOURCE),
        # What is here is dead weight.
        ('paused', 'running', guest_move.TARGET),
        # It is under way.
        ('job', None, None),
        ('paused with a job', 'paused', None),
        ('paused', 'paused', None),
        (None, 'paused', None),
    ],
)
def test_where_the_guest_is(
    move, here, there, libvirt, monkeypatch, here_is, there_is, expected
):
    monkeypatch.setattr(guest_module, '_GIVE_UP', 0.1)
    guest = move()
    if there_is is not None:
        on_target(there, libvirt, paused=there_is == 'paused')
        there[UUID].active = there_is != 'off'
    if here_is is None:
        del here.daemon.domains[UUID]
    elif here_is == 'off':
        here.shut_off()
    else:
        here.paused = here_is.startswith('paused')
        here.job = MIGRATING if here_is.endswith('job') else 0
    assert guest.where() == expected
    runs = {
        guest_move.SOURCE: here.active and not here.paused,
        guest_move.TARGET: there_is == 'running',
    }
    if expected is not None and here_is not in ('off', None):
        assert runs == {
            each: each == expected
            for each in (guest_move.SOURCE, guest_move.TARGET)
        }


def test_a_target_that_does_not_answer_decides_nothing(move, here, libvirt):
    os_acc.CONF.set_override('connect_timeout', 0.1, 'os_acc_libvirt')
    here.paused = True
    guest = move()
    libvirt.daemons[THERE].up = False
    assert guest.where() is None
    assert here.paused


QEMU = 'http://libvirt.org/schemas/domain/qemu/1.0'
OBSTACLES = {
    'nothing': ('', {}, ways.COLD, None),
    'a host device': (
        "<hostdev mode='subsystem' type='pci'><source><address domain='0'"
        " bus='7' slot='0' function='0'/></source></hostdev>",
        {},
        ways.REPLUG,
        'pci/0000:07:00.0 is not of os-acc',
    ),
    'an interface of vDPA': (
        "<interface type='vdpa'><source dev='/dev/vhost-vdpa-0'/></interface>",
        {},
        ways.REPLUG,
        "not of os-acc: interface[@type='vdpa']",
    ),
    'a disk of vDPA': (
        "<disk type='vhostvdpa'><source dev='/dev/vhost-vdpa-1'/></disk>",
        {},
        ways.COLD,
        "not of os-acc: disk[@type='vhostvdpa']",
    ),
    'a device that only QEMU knows': (
        f"<q:commandline xmlns:q='{QEMU}'><q:arg value='-device'/>"
        "<q:arg value='vfio-pci,host=0000:07:00.0'/></q:commandline>",
        {},
        ways.LIVE,
        'pci/0000:07:00.0 is not of os-acc: it is in <qemu:commandline>',
    ),
    'an interface': (
        "<interface type='hostdev'/>",
        {},
        ways.REPLUG,
        'not of os-acc: interface',
    ),
    'a TPM': (
        "<tpm><backend type='emulator'/></tpm>",
        {},
        ways.COLD,
        'TPM would stay',
    ),
    'a TPM of a running guest': (
        "<tpm><backend type='emulator'/></tpm>",
        {},
        ways.REPLUG,
        None,
    ),
    'a saved guest': ('', {'saved': 1}, ways.COLD, 'is saved'),
    'snapshots': ('', {'snapshots': 1}, ways.COLD, 'has snapshots'),
    'checkpoints': ('', {'checkpoints': [1]}, ways.COLD, 'has checkpoints'),
}


@pytest.mark.parametrize('name', OBSTACLES)
def test_what_is_in_the_way(move, here, name):
    here.extra, here.kept, way, expected = OBSTACLES[name]
    found = list(move().obstacles(way, []))
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]


@pytest.mark.parametrize('way', ways.WAYS)
def test_what_is_only_in_the_definition_is_in_the_way(move, here, way):
    """libvirt defines the domain on the target with it."""
    old = van('0000:0c:00.1')
    attach(here, old)
    here.config = [*here.config, etree.fromstring(FOREIGN)]
    (text,) = move().obstacles(way, [old])
    assert text.startswith('host device pci/0000:07:00.0 is not of os-acc')
    assert ('virsh dumpxml --inactive' in text) is (way != ways.COLD)
    here.persistent = way == ways.COLD
    assert len(move().obstacles(way, [old])) == (way == ways.COLD)


def test_a_device_that_only_the_definition_lacks(move, here):
    """The definition for the target could not be made."""
    old = van('0000:0c:00.1')
    attach(here, old)
    here.config = []
    (text,) = move().obstacles(ways.LIVE, [old])
    assert 'lacks the device of VAN' in text
    assert move().obstacles(ways.REPLUG, [old]) == []


def test_a_device_of_another_van_is_in_the_way(move, here):
    attach(here, van('0000:07:00.0', LATER))
    (text,) = move().obstacles(ways.COLD, [])
    assert f'(ua-acc-{LATER}) is of no VAN that moves' in text


def test_states_that_are_in_the_way(move, here, there, libvirt):
    here.job = MIGRATING
    (text,) = move().obstacles(ways.REPLUG, [])
    assert 'domjobinfo' in text
    here.job, here.paused = 0, True
    (text,) = move().obstacles(ways.REPLUG, [])
    assert 'neither runs' in text
    here.paused, here.persistent = False, False
    (text,) = move().obstacles(ways.COLD, [])
    assert 'transient' in text
    here.persistent = True
    on_target(there, libvirt)
    (text,) = move().obstacles(ways.COLD, [])
    assert text == 'its domain runs on the target'
    there.clear()
    other = str(uuid.uuid4())
    there[other] = Domain(libvirt.daemons[THERE], other)
    (text,) = move().obstacles(ways.COLD, [])
    assert text == 'the target has another domain guest'


def test_a_device_that_the_definition_lacks(move, here):
    (text,) = move().obstacles(ways.COLD, [van('0000:0c:00.1')])
    assert 'lacks the device of VAN' in text
    # It is detached anyway.
    assert move().obstacles(ways.REPLUG, [van('0000:0c:00.1')]) == []


def test_no_domain(move, here):
    here.daemon.domains.clear()
    with pytest.raises(exception.MigrationConflict, match='no such domain'):
        move()


def test_files_that_both_hosts_must_share(move, here):
    here.extra = """
        <disk type='file'><source file='/a'/></disk>
        <disk type='block'><source dev='/dev/b'/></disk>
        <disk type='network'><source protocol='rbd' name='c'/></disk>
        <disk type='file' device='cdrom'><source file='/d'/><readonly/></disk>
        <disk type='block'><source dev='/dev/e'/>
            <alias name='ua-acc-00000001-1111-4222-8333-444455556666'/></disk>
        <disk type='file' device='cdrom'/>
    """
    assert move().shared_files(ways.COLD) == ['/a', '/dev/b']
