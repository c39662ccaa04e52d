# SPDX-License-Identifier: Apache-2.0

"""Two journals on one host: no device goes to an instance of each.

A container without its volume, or a command without the service's
--config-file, has another state path. Its journal is empty.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import threading
import uuid

import accel_model
import command
import device_nodes
import devices
import idxd_model
import nvme_of_model
import pytest
import vendor

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.claims import holder
from os_acc.containers import options as cdi_options
from os_acc.kernel import pci
from os_acc.kinds.pci.driver import taking
from os_acc.privileged import container_specs
from os_acc.privileged import function_notes
from os_acc.privileged import notes as root_notes
from os_acc.privileged.devfile import device_files
from os_acc.privileged.idxd import devices as idxd_devices
from os_acc.privileged.mdev import devices as mdev_devices
from os_acc.privileged.pci import functions as privileged
from os_acc.testing import mortal

DAMAGED = 'journal.db.damaged-20260101T000000-1'
DSA = '0000:6a:01.0'
NPU = '0000:00:0b.0'
MDEV = 'c9d1b1f2-3f0f-4f65-8a54-5c3d2e0a1b01'


class Journals:
    """The journals of one host, by their names."""

    def __init__(self, tmp_path, capsys, monkeypatch) -> None:
        self.directory = tmp_path
        self._command = (capsys, monkeypatch)

    def command(self, name, *arguments):
        return command.Command(self.directory / name, *self._command)(
            *arguments
        )

    def use(self, name: str) -> None:
        path = str(self.directory / name)
        os_acc.CONF.set_override('state_path', path, 'os_acc')
        os_acc.initialize(reset=True)


@pytest.fixture
def journals(kernel, tmp_path, capsys, monkeypatch):
    devices.furnish(kernel)
    os_acc.CONF.set_override('plugin', 'libvirt', 'os_acc')
    made = Journals(tmp_path, capsys, monkeypatch)
    made.kernel = kernel
    made.nodes = device_nodes.Nodes(kernel)
    made.nodes.install(monkeypatch)
    made.use('nova')
    return made


def plug(*requests):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, list(requests))
    return instance, van


def file(name, share=None):
    handle = objects.DeviceFileHandle(name=name, share=share, files=[])
    return objects.AcceleratorRequest(uuid=str(uuid.uuid4()), handle=handle)


def a_file(journals):
    journals.nodes.add('acc1', 'c 240:1')
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    devices.spec({'devices': '/dev/acc1', 'owner': 1001})


def a_shared_file(journals):
    journals.nodes.add('acc1', 'c 240:1')
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    devices.spec({'devices': '/dev/acc1', 'shared': 4})


def queues(journals):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    idxd_model.Idxd(journals.kernel).add(DSA)
    devices.spec({'idxd': DSA, 'wq_size': 16})


def npu(journals):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    accel_model.Accel(journals.kernel, journals.nodes).add(NPU)
    devices.spec({'npu': {'owner': 1001}})


def libvirt_binds(journals):
    devices.spec({'address': '*', 'bind': 'libvirt'})


def an_mdev(journals):
    types = journals.kernel.sys / 'class/mdev_bus/mtty/mdev_supported_types'
    journals.kernel.write(str(types / 'mtty-1/create'), MDEV)


def vfs(journals):
    devices.spec({'address': devices.PF, 'num_vfs': 4})


SAME = [
    pytest.param(None, lambda: devices.pci(devices.GPU), id='function'),
    pytest.param(
        libvirt_binds, lambda: devices.pci(devices.GPU), id='of libvirt'
    ),
    pytest.param(None, lambda: devices.pci(devices.DISK), id='drive'),
    pytest.param(vfs, lambda: devices.pci(devices.VFS[1]), id='VF'),
    pytest.param(an_mdev, lambda: devices.mdev(name=MDEV), id='mdev'),
    pytest.param(a_file, lambda: file('char-240-1'), id='file'),
    pytest.param(a_shared_file, lambda: file('char-240-1', '2'), id='share'),
    pytest.param(npu, lambda: file(f'{NPU}+npu=whole'), id='NPU'),
    pytest.param(queues, lambda: file(f'{DSA}-wq1'), id='queue'),
]


def snapshot(kernel):
    return kernel.snapshot(), list(kernel.writes)


@pytest.mark.parametrize('copied', [False, True])
@pytest.mark.parametrize(('prepare', 'wanted'), SAME)
def test_the_same_device(journals, prepare, wanted, copied):
    """With copied, somebody has copied a file of ARQs for another instance."""
    if prepare is not None:
        prepare(journals)
    request = wanted()
    instance, van = plug(request)
    there = snapshot(journals.kernel)
    notes = {
        name: root_notes.files.read(name) for name in root_notes.files.names()
    }
    journals.use('other')
    error = devices.refused(request if copied else wanted())
    assert isinstance(error, exception.DeviceBusy), error
    assert van.uuid in str(error)
    if van.driver != 'idxd':
        # The label of a work queue names the VAN only.
        assert instance.uuid in str(error)
        assert f'{journals.directory}/nova/' in str(error)
    # Neither the refusal nor its undo has touched the device or the notes.
    assert snapshot(journals.kernel) == there
    assert notes == {
        n: root_notes.files.read(n) for n in root_notes.files.names()
    }
    assert os_acc.get_vans().objects == []
    journals.use('nova')
    assert os_acc.unplug(instance) == 1
    journals.use('other')
    instance, _ = plug(wanted())
    assert os_acc.unplug(instance) == 1
    assert [
        n for n in root_notes.files.names() if not n.startswith('vfs-')
    ] == []


def test_the_same_instance_in_another_journal(journals):
    """The instance is plugged again by a container without its volume."""
    instance, _ = plug(devices.pci(devices.GPU))
    journals.use('other')
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance, [devices.pci(devices.GPU)])
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)


def test_a_vf_and_then_its_pf(journals):
    vfs(journals)
    instance, _ = plug(devices.pci(devices.VFS[0]))
    journals.use('other')
    devices.spec({'address': devices.PF})
    assert isinstance(
        devices.refused(devices.pci(devices.PF)), exception.DeviceBusy
    )
    journals.use('nova')
    vfs(journals)
    assert os_acc.unplug(instance) == 1


def test_a_pf_and_then_its_vfs(journals):
    devices.spec({'address': devices.PF, 'bind': 'libvirt'})
    plug(devices.pci(devices.PF))
    journals.use('other')
    vfs(journals)
    error = devices.refused(devices.pci(devices.VFS[0]))
    assert isinstance(error, exception.DeviceBusy), error
    assert f'{journals.directory}/nova/' in str(error)


def test_two_functions_of_an_iommu_group(journals):
    """The guest is off, so libvirt has given its function back."""
    libvirt_binds(journals)
    one, other = '0000:07:00.0', '0000:07:00.1'
    for address in (one, other):
        journals.kernel.add_function(address, '1234:11e8', 0xFF00, group=60)
    instance, _ = plug(devices.pci(one))
    journals.use('other')
    error = devices.refused(devices.pci(other))
    assert isinstance(error, exception.DeviceBusy), error
    assert instance.uuid in str(error)


def test_a_file_and_then_its_function(journals):
    journals.nodes.render(devices.GPU, 128)
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    devices.spec({'devices': '/dev/dri/renderD128'}, {'address': devices.GPU})
    (found,) = [
        handle.handle
        for device in os_acc.get_devices()
        for handle in device.handles
        if handle.handle.identity.startswith('file/')
    ]
    instance, _ = plug(file(found.name))
    journals.use('other')
    os_acc.CONF.set_override('plugin', 'libvirt', 'os_acc')
    devices.spec({'address': devices.GPU})
    error = devices.refused(devices.pci(devices.GPU))
    assert isinstance(error, exception.DeviceBusy), error
    assert instance.uuid in str(error)


def test_after_a_reboot(journals):
    instance, _ = plug(devices.pci(devices.GPU))
    journals.kernel.reboot()
    journals.use('other')
    assert isinstance(
        devices.refused(devices.pci(devices.GPU)), exception.DeviceBusy
    )
    journals.use('nova')
    assert os_acc.unplug(instance) == 1


def test_another_device_at_the_address(journals):
    """The note of a card that was replaced holds nobody up."""
    plug(devices.pci(devices.GPU))
    journals.kernel.remove_function(devices.GPU)
    journals.kernel.add_function(devices.GPU, '10de:2330', 0x030200)
    journals.use('other')
    assert plug(devices.pci(devices.GPU))[1].device == devices.GPU


def test_a_journal_that_was_rebuilt_keeps_its_devices(journals):
    instance, van = plug(devices.pci(devices.GPU))
    journals.use('other')
    for end in ('', '-wal', '-shm'):
        path = journals.directory / f'nova/journal.db{end}'
        if path.exists():
            path.rename(f'{journals.directory}/nova/{DAMAGED}{end}')
    said = journals.command('nova', 'recover', '--rebuild')
    assert said.code == 0, said
    journals.use('nova')
    assert [each.uuid for each in os_acc.get_vans()] == [van.uuid]
    assert os_acc.unplug(instance) == 1
    assert root_notes.files.names() == []


def test_deny_with_the_other_journal(journals):
    """An operator's command with the wrong journal deletes no note."""
    instance, _ = plug(devices.pci(devices.GPU))
    journals.use('other')
    said = journals.command('other', 'device', 'deny', devices.GPU)
    assert f'instance {instance.uuid} keeps {devices.GPU}' in said.out
    assert '--lost-journal' in said.out
    assert root_notes.files.names() == [f'pci-{devices.GPU}']
    deny = ('device', 'deny', devices.GPU, '--lost-journal')
    said = journals.command('other', *deny)
    assert 'that journal has the VAN, so it is not lost' in said.out
    assert root_notes.files.names() == [f'pci-{devices.GPU}']
    shutil.rmtree(journals.directory / 'nova')
    journals.command('other', *deny)
    assert root_notes.files.names() == []


def test_a_busy_journal_is_not_lost(journals):
    plug(devices.pci(devices.GPU))
    journals.use('other')
    path = journals.directory / 'nova/journal.db'
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute('PRAGMA locking_mode = EXCLUSIVE')
        other.execute('BEGIN EXCLUSIVE')
        deny = ('device', 'deny', devices.GPU, '--lost-journal')
        said = journals.command('other', *deny)
    assert said.code == 0, said
    assert root_notes.files.names() == [f'pci-{devices.GPU}']


@pytest.mark.parametrize(
    'value',
    [
        'nova',
        ['x'] * 4,
        ['0' * 8, '/a', '', ''],
        [str(uuid.uuid4()), '/a\n', '', ''],
        [str(uuid.uuid4()), '/a', '../x', ''],
        [str(uuid.uuid4()), '/a' * 4096, '', ''],
        [str(uuid.uuid4()), '/a', ''],
    ],
)
def test_a_caller_that_lies_about_itself(journals, value):
    with pytest.raises(
        exception.InvalidRequest,
        match=r'^privileged call: holder is .* expected the UUID and the path',
    ):
        privileged.hold(devices.GPU, os_acc_holder=value)


def test_a_call_for_nobody(journals):
    plug(devices.pci(devices.GPU))
    assert holder.current() is None
    with pytest.raises(exception.DeviceBusy, match='has it'):
        privileged.hold(devices.GPU)


def test_device_free_with_the_other_journal(journals):
    """Nothing is emptied or bound to a driver of the host."""
    instance, _ = plug(devices.pci(devices.GPU))
    there = snapshot(journals.kernel)
    journals.use('other')
    said = journals.command('other', 'device', 'free', devices.GPU)
    assert said.code != 0
    assert instance.uuid in said.err
    assert snapshot(journals.kernel) == there


def test_another_queue_of_the_device(journals):
    """Both journals may have work queues of one device."""
    queues(journals)
    instance, van = plug(devices.wanted('CUSTOM_DSA'))
    journals.use('other')
    other, second = plug(devices.wanted('CUSTOM_DSA'))
    assert van.handle.identity != second.handle.identity
    assert os_acc.unplug(other) == 1
    journals.use('nova')
    assert os_acc.unplug(instance) == 1
    assert root_notes.files.names() == []


def busy(*requests):
    """The text of DeviceBusy, with which the other journal is refused."""
    error = devices.refused(*requests)
    assert isinstance(error, exception.DeviceBusy), error
    return str(error)


def note_of(name):
    return json.loads(root_notes.files.read(name))


@pytest.mark.parametrize('after', [False, True])
@pytest.mark.parametrize(('prepare', 'wanted'), SAME)
def test_the_refused_plug_is_killed(journals, prepare, wanted, after):
    if prepare is not None:
        prepare(journals)
    instance, van = plug(wanted())
    there = journals.kernel.snapshot()
    notes = {
        name: root_notes.files.read(name) for name in root_notes.files.names()
    }
    for number in range(4):
        journals.use('other')
        journals.kernel.crash_at(number, after)
        with contextlib.suppress(exception.PlugException, mortal.Crash):
            plug(wanted())
        journals.kernel.revive()
        journals.use('other')
        assert os_acc.get_vans().objects == []
        assert journals.kernel.snapshot() == there
        assert notes == {
            n: root_notes.files.read(n) for n in root_notes.files.names()
        }
    journals.use('nova')
    assert [each.uuid for each in os_acc.get_vans()] == [van.uuid]
    assert os_acc.unplug(instance) == 1


def test_vfs_of_the_other_journal_after_a_reboot(journals):
    """The VFs are not there yet: nothing but the notes knows of them."""
    vfs(journals)
    instance, van = plug(devices.pci(devices.VFS[0]))
    journals.kernel.reboot()
    journals.use('other')
    devices.spec({'address': devices.PF})
    assert instance.uuid in busy(devices.pci(devices.PF))
    vfs(journals)
    journals.use('nova')
    assert [each.uuid for each in os_acc.get_vans()] == [van.uuid]
    assert os_acc.unplug(instance) == 1
    assert root_notes.files.names() == []


def test_another_card_after_a_reboot(journals):
    """The notes of VFs of a card that was replaced hold nobody up."""
    vfs(journals)
    plug(devices.pci(devices.VFS[0]))
    journals.kernel.reboot()
    journals.kernel.remove_function(devices.PF)
    journals.kernel.add_function(devices.PF, '10de:2330', 0x030200)
    journals.use('other')
    devices.spec({'address': devices.PF})
    assert plug(devices.pci(devices.PF))[1].device == devices.PF


def test_vfs_stay_for_a_guest_that_is_off(journals):
    """libvirt has given the VF back: it is bound to no driver."""
    entry = {'num_vfs': 4, 'bind': 'libvirt'}
    devices.spec({'address': devices.PF, **entry})
    instance, _ = plug(devices.pci(devices.VFS[0]))
    journals.use('other')
    other, _ = plug(devices.pci(devices.VFS[1]))
    assert os_acc.unplug(other) == 1
    assert journals.kernel.driver_of(devices.VFS[0]) is None
    assert (journals.kernel.pci / 'devices' / devices.VFS[0]).exists()
    journals.use('nova')
    assert os_acc.unplug(instance) == 1
    assert not (journals.kernel.pci / 'devices' / devices.VFS[0]).exists()
    assert root_notes.files.names() == []


def test_deny_keeps_how_many_vfs_the_other_journal_needs(journals):
    vfs(journals)
    instance, _ = plug(devices.pci(devices.VFS[0]))
    journals.use('other')
    said = journals.command('other', 'device', 'deny', devices.PF)
    assert instance.uuid in said.out
    assert f'vfs-{devices.PF}' in root_notes.files.names()
    journals.kernel.reboot()
    journals.use('nova')
    assert os_acc.get_vans()[0].error is None
    assert journals.kernel.driver_of(devices.VFS[0]) == 'vfio-pci'


def test_a_namespace_of_the_same_instance(journals, monkeypatch):
    """Neither the other journal's plug nor its undo empties the namespace."""
    fabric = nvme_of_model.Fabric(journals.kernel)
    fabric.install(monkeypatch)
    wwn = 'uuid.1b4e28ba-2fa1-11d2-883f-0016d3cca427'
    fabric.target(wwn)
    entry = {
        'nqn': nvme_of_model.NQN,
        'portals': [['192.0.2.1', 4420, 'tcp']],
        'namespaces': [wwn.removeprefix('uuid.')],
    }
    devices.spec({'nvme_of': entry, 'resource_class': 'CUSTOM_FAST'})
    instance, van = plug(devices.wanted('CUSTOM_FAST'))
    there = fabric.connections()
    note = root_notes.files.read(f'namespace-{wwn}')
    journals.use('other')
    handle = objects.BlockHandle(path=van.handle.path, wwn=wwn)
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(
            instance,
            [
                objects.AcceleratorRequest(
                    uuid=str(uuid.uuid4()), handle=handle
                )
            ],
        )
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    assert van.uuid in str(caught.value)
    assert fabric.connections() == there
    assert root_notes.files.read(f'namespace-{wwn}') == note
    assert os_acc.get_vans().objects == []
    journals.use('nova')
    assert os_acc.unplug(instance) == 1


def test_a_file_whose_function_is_programmed(journals, tmp_path):
    """A container has the card's file, and does not have it open now."""
    tool = vendor.installed(journals.kernel, tmp_path / 'vendor')
    journals.use('nova')
    directory = f'pci0000:00/{vendor.FPGA}/drm/renderD129'
    journals.nodes.add('dri/renderD129', 'c 226:129', directory, 'drm')
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    given = list(os_acc.CONF.os_acc.device_spec)
    devices.spec({'devices': '/dev/dri/renderD129'})
    (name,) = (
        each.handle.name
        for device in os_acc.get_devices()
        for each in device.handles
    )
    assert vendor.FPGA in name
    instance, _ = plug(file(name))
    journals.use('other')
    os_acc.CONF.set_override('device_spec', given, 'os_acc')
    with pytest.raises(exception.DeviceBusy, match=instance.uuid):
        os_acc.program_device(vendor.FPGA, tool.bitstream('aes'), 'aes')
    assert tool.function() != 'aes'


def test_notes_of_an_earlier_version(journals):
    """The first service that opens the journal says which are its VANs'."""
    instance, _ = plug(devices.pci(devices.GPU))
    name = f'pci-{devices.GPU}'
    text = note_of(name)
    root_notes.files.write(
        name, json.dumps({k: text[k] for k in text if k != 'holder'})
    )
    journals.use('nova')
    assert note_of(name) == text
    journals.use('other')
    assert instance.uuid in busy(devices.pci(devices.GPU))
    journals.use('nova')
    assert os_acc.unplug(instance) == 1
    assert root_notes.files.names() == []


def test_a_copied_journal(journals):
    """Two containers were made of one image, with a journal in it."""
    shutil.copytree(journals.directory / 'nova', journals.directory / 'other')
    instance, _ = plug(devices.pci(devices.GPU))
    journals.use('other')
    assert instance.uuid in busy(devices.pci(devices.GPU))


def test_a_journal_from_a_backup_keeps_its_devices(journals):
    instance, _ = plug(devices.pci(devices.GPU))
    os_acc._host.close()
    state = journals.directory / 'nova'
    shutil.copytree(state, journals.directory / 'backup')
    shutil.rmtree(state)
    shutil.copytree(journals.directory / 'backup', state)
    journals.use('nova')
    journals.kernel.reboot()
    journals.use('nova')
    assert os_acc.get_vans()[0].error is None
    assert os_acc.unplug(instance) == 1
    assert root_notes.files.names() == []


def test_a_damaged_note(journals):
    """What cannot be read counts as in use."""
    instance, _ = plug(devices.pci(devices.GPU))
    name = f'pci-{devices.GPU}'
    root_notes.files.write(name, '{"what": ')
    journals.use('other')
    text = busy(devices.pci(devices.GPU))
    assert name in text
    assert root_notes.files.read(name) == '{"what": '
    said = journals.command('other', 'device', 'deny', devices.GPU)
    assert f'the note {name} cannot be read' in said.out
    assert root_notes.files.read(name) == '{"what": '
    journals.command('other', 'device', 'allow', devices.GPU)
    journals.use('nova')
    assert os_acc.unplug(instance) == 1
    assert root_notes.files.names() == []


@pytest.fixture
def cleaned(tmp_path):
    """What cleaning_command was run for."""
    path = tmp_path / 'cleaned'
    path.touch()
    command = f"sh -c 'echo $0 >> {path}' {{address}}"
    os_acc.CONF.set_override('cleaning_command', command, 'os_acc')
    return path


def damage():
    for name in root_notes.files.names():
        root_notes.files.write(name, '{"what": ')


# Those of functions and mdevs are cleaned whatever their notes say.
CLEANED = [each for each in SAME if each.id in ('file', 'NPU', 'queue')]


@pytest.mark.parametrize('again', [True, False])
@pytest.mark.parametrize(('prepare', 'wanted'), CLEANED)
def test_cleaned_although_its_note_was_damaged(
    journals, cleaned, prepare, wanted, again
):
    """With again, the service is started again before it is given back."""
    prepare(journals)
    before = journals.kernel.snapshot()
    instance, _ = plug(wanted())
    damage()
    if again:
        journals.use('nova')
    written = len(journals.kernel.writes)
    assert os_acc.unplug(instance) == 1
    assert len(cleaned.read_text().split()) == 1
    assert journals.kernel.snapshot() == before
    if prepare is npu:
        files = [file for file, _ in journals.kernel.writes[written:]]
        assert any(each.endswith('/unbind') for each in files)
    if again:
        assert root_notes.files.names() == []
    else:
        assert 'cannot be read' in busy(wanted())


def test_the_other_journal_was_faster(journals, monkeypatch):
    """The undo of who lost the race advises nothing and leaves no VAN."""
    real, others = taking.take, []

    def take(*args):
        if not others:
            others.append(None)
            os_acc._host, mine = None, os_acc._host
            journals.use('nova')
            others.append(plug(devices.pci(devices.GPU)))
            os_acc._host = mine
        return real(*args)

    journals.use('other')
    monkeypatch.setattr(taking, 'take', take)
    with pytest.raises(exception.PlugException) as caught:
        plug(devices.pci(devices.GPU))
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    assert caught.value.undo_errors == []
    assert journals.kernel.driver_of(devices.GPU) == 'vfio-pci'


def test_a_queue_after_a_reboot(journals):
    """The text of a work queue names the journal and the right command."""
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    model = idxd_model.Idxd(journals.kernel)
    model.add(DSA)
    devices.spec({'idxd': DSA, 'wq_size': 16})
    instance, _ = plug(file(f'{DSA}-wq1'))
    model.reboot()
    journals.use('other')
    text = busy(file(f'{DSA}-wq1'))
    assert instance.uuid in text
    assert '--lost-journal' in text


def test_the_next_share(journals):
    """Two VANs may share the file, whatever journals they are in."""
    journals.nodes.add('acc1', 'c 240:1')
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    shared = {'devices': '/dev/acc1', 'resource_class': 'CUSTOM_F'}
    devices.spec({**shared, 'shared': 2})
    instance, _ = plug(devices.wanted('CUSTOM_F'))
    journals.use('other')
    other, van = plug(devices.wanted('CUSTOM_F'))
    assert van.handle.share == '1'
    text = str(devices.refused(devices.wanted('CUSTOM_F')))
    assert 'all 2 shares are taken, 1 of them by VANs of other' in text
    devices.spec({**shared, 'shared': True})
    assert plug(file('char-240-1'))[1].handle.share == '2'
    assert os_acc.unplug(other) == 1
    journals.use('nova')
    assert os_acc.unplug(instance) == 1


def test_a_race_of_many_journals(journals):
    won, undone = [], []

    def run(number):
        uuids = [str(uuid.uuid4()) for _ in range(3)]
        who = holder.Holder(uuids[0], f'/{number}', *uuids[1:])
        with holder.acting_for(who):
            try:
                privileged.take(devices.GPU, 'vfio-pci', [], uuids[1], 5.0)
                won.append(who)
            except exception.DeviceBusy:
                ids = pci.get(devices.GPU).ids
                privileged.clean(devices.GPU, ids, 'auto', 0, 5.0)
                undone.append(privileged.give_back(devices.GPU, ids, 5.0))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert undone == [True] * 7
    assert note_of(f'pci-{devices.GPU}')['holder'] == won[0].to_wire()
    assert journals.kernel.driver_of(devices.GPU) == 'vfio-pci'


@pytest.mark.parametrize('after', [False, True])
def test_killed_while_the_other_journal_has_a_vf(journals, after):
    kernel, died = journals.kernel, 0
    vfs(journals)
    for number in range(30):
        journals.use('nova')
        instance, _ = plug(devices.pci(devices.VFS[0]))
        journals.use('other')
        other, _ = plug(devices.pci(devices.VFS[1]))
        journals.use('nova')
        kernel.crash_at(number, after)
        with contextlib.suppress(exception.UnplugException, mortal.Crash):
            os_acc.unplug(instance)
        died += kernel.dead
        last = not kernel.dead
        kernel.revive()
        journals.use('nova')
        os_acc.unplug(instance)
        assert kernel.driver_of(devices.VFS[1]) == 'vfio-pci', number
        journals.use('other')
        assert [each.state for each in os_acc.get_vans()] == ['plugged']
        assert os_acc.unplug(other) == 1
        assert root_notes.files.names() == [], number
        if last:
            break
    assert died > 1


def test_vans_hand_over_after_a_backup(journals):
    """The journal has another UUID than the notes of its VANs."""
    addresses = ('0000:07:00.0', '0000:07:00.1')
    for address in addresses:
        journals.kernel.add_function(address, '1234:11e8', 0xFF00, 'x', 60)
    instance = devices.instance()
    first, _ = os_acc.plug(instance, [devices.pci(a) for a in addresses])
    os_acc._host.close()
    state = journals.directory / 'nova'
    shutil.copytree(state, journals.directory / 'backup')
    shutil.rmtree(state)
    shutil.copytree(journals.directory / 'backup', state)
    journals.use('nova')
    assert os_acc.unplug(instance, [first]) == 1
    assert os_acc.unplug(instance) == 1
    assert root_notes.files.names() == []
    assert {journals.kernel.driver_of(a) for a in addresses} == {'x'}


@pytest.mark.parametrize('first', ['group', 'file'])
def test_a_file_of_a_group(journals, first):
    """The commands have different configurations, as their journals."""
    for name, number in (('card1', 1), ('renderD128', 128)):
        directory = f'pci0000:00/{devices.GPU}/drm/{name}'
        journals.nodes.add(f'dri/{name}', f'c 226:{number}', directory, 'drm')
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    group = {'devices': '/dev/dri/renderD128', 'with': ['/dev/dri/card1']}
    entries = [group, {'devices': '/dev/dri/card1'}]
    if first == 'file':
        entries.reverse()

    def wanted(entry):
        devices.spec({**entry, 'resource_class': 'CUSTOM_F'})
        return devices.wanted('CUSTOM_F')

    instance, van = plug(wanted(entries[0]))
    journals.use('other')
    error = devices.refused(wanted(entries[1]))
    assert van.uuid in str(error)
    journals.use('nova')
    assert os_acc.unplug(instance) == 1
    plug(wanted(entries[1]))


@pytest.mark.parametrize(
    ('prepare', 'wanted'),
    [
        pytest.param(None, lambda: devices.pci(devices.GPU), id='function'),
        pytest.param(an_mdev, lambda: devices.mdev(name=MDEV), id='mdev'),
        pytest.param(a_file, lambda: file('char-240-1'), id='file'),
        pytest.param(
            a_shared_file, lambda: file('char-240-1', '2'), id='share'
        ),
    ],
)
def test_no_container_gets_what_another_van_has(journals, prepare, wanted):
    """A caller of root names a device that a guest has, which may be off."""
    if prepare is not None:
        prepare(journals)
    instance, van = plug(wanted())
    handle = van.handle.obj_to_primitive()
    specs = journals.kernel.root / 'run/cdi'
    os_acc.CONF.register_opts(cdi_options.OPTS, cdi_options.GROUP)
    os_acc.CONF.set_override('spec_dir', str(specs), cdi_options.GROUP)
    other = str(uuid.uuid4())
    with pytest.raises(
        exception.DeviceBusy, match=f'instance {instance.uuid}'
    ):
        container_specs.write(other, other, handle)
    notes = {n: root_notes.files.read(n) for n in root_notes.files.names()}
    damage()
    with pytest.raises((exception.DeviceBusy, exception.DeviceNotFound)):
        container_specs.write(other, other, handle)
    assert not specs.exists()
    for name, text in notes.items():
        root_notes.files.write(name, text)
    container_specs.write(van.uuid, instance.uuid, handle)
    container_specs.withdraw(van.uuid, 0.0)
    os_acc.unplug(instance)


def test_no_container_gets_the_group_of_another_function(journals):
    """Root has not given out the function that its caller names."""
    one, other = '0000:07:00.0', '0000:07:00.1'
    for address in (one, other):
        journals.kernel.add_function(address, '1234:11e8', 0xFF00, group=60)
    instance, van = plug(devices.pci(one))
    journals.kernel.bind(other, 'vfio-pci')
    specs = journals.kernel.root / 'run/cdi'
    os_acc.CONF.register_opts(cdi_options.OPTS, cdi_options.GROUP)
    os_acc.CONF.set_override('spec_dir', str(specs), cdi_options.GROUP)
    handle = objects.PCIHandle(address=other).obj_to_primitive()
    mine, theirs = str(uuid.uuid4()), str(uuid.uuid4())
    with pytest.raises(exception.DeviceBusy, match=van.uuid):
        container_specs.write(theirs, theirs, handle)
    assert not specs.exists()
    container_specs.write(mine, instance.uuid, handle)


def stranger():
    """A VAN of another journal."""
    names = [str(uuid.uuid4()) for _ in range(3)]
    return holder.acting_for(
        holder.Holder(names[0], '/other/journal.db', names[1], names[2])
    )


def test_work_queues_are_not_kept_on_a_function_of_another(journals):
    """After a reboot, idxd has the function until its guest starts."""
    queues(journals)
    with stranger():
        function_notes.note_function(pci.get(DSA))
    with stranger(), pytest.raises(exception.DeviceBusy, match='has it'):
        idxd_devices.keep(DSA, 5.0)
    with stranger(), pytest.raises(exception.DeviceBusy, match='has it'):
        idxd_devices.let_go(DSA, 5.0)


def test_mdevs_are_not_kept_on_a_function_of_another(journals):
    parent, kernel = devices.GPU, journals.kernel
    kernel.add_mdev_parent(
        (kernel.pci / 'devices' / parent).resolve(), {'a': 2}, 2
    )
    devices.spec({'address': '*', 'mdev_types': ['a']})
    with stranger():
        function_notes.note_function(pci.get(parent))
    with stranger(), pytest.raises(exception.DeviceBusy, match='has it'):
        mdev_devices.keep(MDEV, parent, 'a', 5.0)


def test_a_damaged_note_keeps_an_mdev(journals):
    """The guest of another journal, which has it, is off."""
    devices.spec({'mdev_types': ['mtty-1']})
    with stranger():
        mdev_devices.create(MDEV, 'mtty', 'mtty-1', 5.0, kept=True)
    damage()
    there = snapshot(journals.kernel)
    with stranger(), pytest.raises(exception.DeviceBusy, match='a VAN has'):
        mdev_devices.let_go(MDEV, 'mtty', 'mtty-1', 5.0)
    assert snapshot(journals.kernel) == there


def test_a_share_has_one_name(journals):
    a_shared_file(journals)
    files = [['/dev/acc1', 'c', 240, 1]]
    with stranger():
        device_files.take('char-240-1', '2', files, 5.0)
    for share, error in (
        ('2', exception.DeviceBusy),
        ('02', exception.InvalidRequest),
        ('002', exception.InvalidRequest),
    ):
        with stranger(), pytest.raises(error):
            device_files.take('char-240-1', share, files, 5.0)
