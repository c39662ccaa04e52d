# SPDX-License-Identifier: Apache-2.0

"""The driver nvme_of, by os_acc's own calls, on a kernel of files."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid

import command
import devices
import nvme_of_model as model
import previews
import pytest

import os_acc
from os_acc import exception
from os_acc import health
from os_acc import objects
from os_acc.journal import health as rows
from os_acc.kernel import nvme_of
from os_acc.kernel import open_files
from os_acc.kinds.nvme_of import entry as spec_nvme_of
from os_acc.kinds.nvme_of import use as availability
from os_acc.privileged import notes as root_notes
from os_acc.privileged.kernel import module_loading
from os_acc.privileged.nvme_of import commands
from os_acc.privileged.nvme_of import connections as records
from os_acc.privileged.nvme_of import namespaces as privileged
from os_acc.privileged.nvme_of import notes
from os_acc.spec import device_spec
from os_acc.testing import mortal

A = 'uuid.1b4e28ba-2fa1-11d2-883f-0016d3cca427'
B = 'uuid.1b4e28ba-2fa1-11d2-883f-0016d3cca428'
N = 'eui.0123456789abcdef0123456789abcdef'
OTHER = 'nqn.2024-01.org.example:other'
KEY = 'DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:'
CLASS = 'CUSTOM_FAST'


def entry(*names: str, **values) -> dict:
    of = {
        'nqn': model.NQN,
        'portals': [['192.0.2.1', 4420, 'tcp']],
        'namespaces': [name.removeprefix('uuid.') for name in names],
    }
    of |= values
    return {'nvme_of': of, 'resource_class': CLASS, 'traits': 'CUSTOM_NVME'}


@pytest.fixture
def fabric(kernel, monkeypatch):
    made = model.Fabric(kernel)
    made.install(monkeypatch)
    made.target(A, B)
    devices.spec(entry(A, B))
    os_acc.initialize()
    return made


def give_up_soon() -> None:
    """For a test that waits for a deadline."""
    for name in ('connect_timeout', 'disconnect_timeout'):
        os_acc.CONF.set_override(name, 1.0, 'os_acc_nvme_of')


def wanted(*traits: str) -> objects.AcceleratorRequest:
    return devices.wanted(CLASS, *traits)


def named(wwn: str, path: str | None = None) -> objects.AcceleratorRequest:
    handle = objects.BlockHandle(path=path or nvme_of.link(wwn), wwn=wwn)
    return objects.AcceleratorRequest(uuid=str(uuid.uuid4()), handle=handle)


def host_of(instance) -> str:
    return f'nqn.2014-08.org.nvmexpress:uuid:{instance.uuid}'


def cause(*requests, instance=None) -> BaseException:
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance or devices.instance(), list(requests))
    assert caught.value.undo_errors == []
    return caught.value.__cause__


def test_a_dry_run(fabric, tmp_path):
    previews.check(tmp_path, wanted('CUSTOM_NVME'))


def all_notes(fabric) -> list[str]:
    return root_notes.files.names() + records.connections.names()


@pytest.mark.parametrize('real', [False, True])
def test_plug_and_unplug(fabric, monkeypatch, real):
    if real:
        fabric.real_brick(monkeypatch)
    instance = devices.instance()
    request = wanted('CUSTOM_NVME')
    (van,) = os_acc.plug(instance, [request])
    assert (van.driver, van.device) == ('nvme_of', A)
    assert van.handle.identity == f'block/{A}'
    assert van.handle.path == f'/dev/disk/by-id/nvme-{A}'
    (there,) = fabric.connections()
    assert (there['nqn'], there['host']) == (model.NQN, host_of(instance))
    assert (fabric.ctl / there['name'] / 'fast_io_fail_tmo').read_text() == (
        '120\n'
    )
    assert f"dev='{van.handle.path}'" in van.guest_config.replace('"', "'")
    # Again: nothing happens.
    before = list(fabric.commands)
    assert list(os_acc.plug(instance, [request])) == [van]
    assert fabric.commands == before
    fabric.namespace(A).data = 'secret'
    assert os_acc.unplug(instance) == 1
    assert fabric.connections() == []
    assert fabric.namespace(A).data == ''
    assert all_notes(fabric) == []
    assert [each[:2] for each in fabric.commands[len(before) :]] == [
        ['blkdiscard', '--zeroout'],
    ]
    assert os_acc.unplug(instance) == 0


def test_two_of_one_instance_share_a_connection(fabric):
    instance = devices.instance()
    requests = [wanted(), wanted()]
    vans = os_acc.plug(instance, requests)
    assert {van.device for van in vans} == {A, B}
    assert len(fabric.connections()) == 1
    os_acc.unplug(instance, requests[:1])
    assert len(fabric.connections()) == 1
    os_acc.unplug(instance)
    assert fabric.connections() == []


def test_two_instances(fabric):
    """Each is a host of its own; a namespace is with one only."""
    one, two = devices.instance(), devices.instance()
    (mine,) = os_acc.plug(one, [wanted()])
    (its,) = os_acc.plug(two, [wanted()])
    assert {mine.device, its.device} == {A, B}
    assert {each['host'] for each in fabric.connections()} == {
        host_of(one),
        host_of(two),
    }
    err = cause(wanted())
    assert isinstance(err, exception.DeviceNotFound)
    assert f'instance {one.uuid} has it' in str(err)
    err = cause(named(mine.device))
    assert isinstance(err, exception.DeviceBusy)
    os_acc.unplug(one)
    assert [each['host'] for each in fabric.connections()] == [host_of(two)]
    os_acc.unplug(two)
    assert fabric.connections() == []


def test_a_namespace_with_an_nguid(fabric, monkeypatch):
    fabric.real_brick(monkeypatch)
    fabric.target(N, nqn=OTHER)
    devices.spec(entry(N, nqn=OTHER))
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [named(N)])
    assert van.device == N
    os_acc.unplug(instance)
    assert fabric.connections() == []


@pytest.mark.parametrize('real', [False, True])
def test_several_portals(fabric, monkeypatch, real):
    """All are connected; one of them is down at first."""
    if real:
        fabric.real_brick(monkeypatch)
    more = ('2001:db8::1', '4420', 'tcp')
    fabric.targets[model.NQN].portals = [model.PORTAL, more]
    portals = [
        ['192.0.2.1', 4420, 'tcp'],
        ['192.0.2.9', 4420, 'tcp'],
        ['2001:DB8:0::1', 4420, 'tcp'],
    ]
    devices.spec(entry(A, portals=portals))
    instance = devices.instance()
    os_acc.plug(instance, [wanted()])
    assert [each['portal'] for each in fabric.connections()] == [
        model.PORTAL,
        more,
    ]
    os_acc.unplug(instance)
    assert fabric.connections() == []


def test_a_connection_that_was_there_stays(fabric):
    instance = devices.instance()
    name = fabric.connect(model.NQN, host_of(instance))
    other = fabric.connect(model.NQN, 'nqn.2014-08.org.nvmexpress:uuid:x')
    os_acc.plug(instance, [wanted()])
    os_acc.unplug(instance)
    assert [each['name'] for each in fabric.connections()] == [name, other]


def test_another_namespace_of_the_connection_is_in_use(fabric, kernel, caplog):
    """The connection stays, and ends when nobody needs it any more."""
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    number = (kernel.sys / 'class/block' / fabric.block(B) / 'dev').read_text()
    kernel.write_file(
        'proc/self/mountinfo',
        f'36 35 {number.strip()} / /data rw - ext4 /dev/x rw\n',
    )
    give_up_soon()
    os_acc.unplug(instance)
    os_acc.CONF.clear_override('connect_timeout', 'os_acc_nvme_of')
    os_acc.CONF.clear_override('disconnect_timeout', 'os_acc_nvme_of')
    assert len(fabric.connections()) == 1
    assert 'stays: block device' in caplog.text
    found = list(os_acc_findings('connection'))
    assert 'has no VAN' in found[0].text
    kernel.write_file('proc/self/mountinfo', '')
    other = devices.instance()
    os_acc.plug(other, [named(A)])
    os_acc.unplug(other)
    assert fabric.connections() == []


def os_acc_findings(subject: str):
    driver = os_acc._host.extensions.drivers['nvme_of']
    return [e for e in driver.diagnose() if e.subject.startswith(subject)]


@pytest.mark.parametrize('real', [False, True])
def test_the_target_is_down(fabric, monkeypatch, real):
    if real:
        fabric.real_brick(monkeypatch)
    fabric.targets[model.NQN].up = False
    err = cause(named(A))
    assert isinstance(err, exception.DeviceError)
    assert 'could not add new controller: refused' in str(err)
    assert not os_acc.get_vans()
    assert all_notes(fabric) == []


def test_the_next_target_is_taken(fabric):
    fabric.target(N, nqn=OTHER)
    fabric.targets[model.NQN].up = False
    devices.spec(entry(A), entry(N, nqn=OTHER))
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [wanted()])
    assert van.device == N
    os_acc.unplug(instance)


def test_an_old_nvme_cli(fabric):
    fabric.old_cli = True
    one = devices.instance()
    os_acc.plug(one, [named(A)])
    assert 'nvme-cli before 2.6' in str(cause(named(B)))
    os_acc.unplug(one)


def test_the_namespace_is_not_there(fabric):
    give_up_soon()
    devices.spec(entry(A.replace('1b4e', '2b4e')))
    err = cause(wanted())
    assert 'shows no block device' in str(err)
    assert fabric.connections() == []


def test_one_that_no_entry_names(fabric, monkeypatch):
    """Root is not even asked."""
    asked = []
    monkeypatch.setattr(
        privileged, 'connect', lambda *args: asked.append(args)
    )
    err = cause(named(N))
    assert isinstance(err, exception.DeviceNotFound)
    assert 'device_spec does not name it' in str(err)
    assert asked == []


def test_udev_makes_no_link(fabric):
    give_up_soon()
    fabric.links = False
    err = cause(named(A))
    assert isinstance(err, exception.Timeout)
    assert 'udev' in str(err)
    assert fabric.connections() == []


# --- whose data


def test_the_target_is_lost(fabric, caplog):
    """What could not be emptied is emptied before the next instance."""
    one, two = devices.instance(), devices.instance()
    os_acc.plug(one, [named(A)])
    fabric.namespace(A).data = 'secret'
    fabric.lose()
    (driver,) = os_acc_findings('namespace ' + A)
    assert driver.verdict == 'warning'
    os_acc.unplug(one)
    assert fabric.connections() == []
    assert 'before another instance gets it' in caplog.text
    fabric.lose(state='live')
    # Its own data is no secret.
    os_acc.plug(one, [named(A)])
    assert fabric.namespace(A).data == 'secret'
    fabric.lose()
    os_acc.unplug(one)
    fabric.lose(state='live')
    fabric.blkdiscard_fails = True
    err = cause(named(A), instance=two)
    assert isinstance(err, exception.CleaningFailed)
    fabric.blkdiscard_fails = False
    os_acc.plug(two, [named(A)])
    assert fabric.namespace(A).data == ''
    os_acc.unplug(two)
    assert all_notes(fabric) == []


def test_the_target_is_lost_while_udev_reads(fabric, kernel, monkeypatch):
    """What only reads is not awaited, for the target may stay away long."""
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    guest = fabric.hold(A)
    reader = fabric.hold(A, 'udev-worker', os.O_RDONLY)
    fabric.lose()
    with pytest.raises(exception.UnplugException, match=f'process {guest} '):
        os_acc.unplug(instance)
    kernel.end(guest)
    fabric.lose(state='live')
    with pytest.raises(exception.UnplugException, match=f'process {reader} '):
        os_acc.unplug(instance)
    fabric.lose()

    def opened(names):
        raise AssertionError('the open waits')

    monkeypatch.setattr(open_files, 'exclusively_used', opened)
    os_acc.unplug(instance)
    assert fabric.connections() == []
    assert all_notes(fabric) != []


def test_it_cannot_be_emptied(fabric):
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    fabric.blkdiscard_fails = True
    with pytest.raises(exception.UnplugException) as caught:
        os_acc.unplug(instance)
    assert isinstance(caught.value.__cause__, exception.CleaningFailed)
    fabric.blkdiscard_fails = False
    assert len(os_acc.recover().released) == 1
    assert fabric.connections() == []


@pytest.mark.parametrize('lost', [False, True])
def test_the_owner_of_the_storage_empties_it(fabric, caplog, lost):
    devices.spec(entry(A, erase='none'))
    one, two = devices.instance(), devices.instance()
    os_acc.plug(one, [named(A)])
    fabric.namespace(A).data = 'data'
    if lost:
        fabric.lose()
    os_acc.unplug(one)
    fabric.lose(state='live')
    os_acc.plug(two, [named(A)])
    assert fabric.namespace(A).data == 'data'
    os_acc.unplug(two)
    assert all_notes(fabric) == []


def test_the_command_runs_when_the_target_is_back(fabric, tmp_path):
    """The owner of the storage empties nothing; the command does it late."""
    said = tmp_path / 'said'
    os_acc.CONF.set_override(
        'cleaning_command', f"sh -c 'echo $0 >> {said}' {{address}}", 'os_acc'
    )
    devices.spec(entry(A, erase='none'))
    one, two = devices.instance(), devices.instance()
    os_acc.plug(one, [named(A)])
    fabric.lose()
    os_acc.unplug(one)
    assert not said.exists()
    fabric.lose(state='live')
    os_acc.plug(two, [named(A)])
    assert said.read_text() == f'{A}\n'
    os_acc.unplug(two)
    assert all_notes(fabric) == []


def test_a_note_that_cannot_be_read(fabric):
    """It may be the data of anybody."""
    fabric.namespace(A).data = 'secret'
    root_notes.files.write(f'namespace-{A}', '{')
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    assert fabric.namespace(A).data == ''
    os_acc.unplug(instance)


def test_the_journal_was_lost(fabric):
    one = devices.instance()
    os_acc.plug(one, [named(A)])
    with pytest.raises(exception.DeviceBusy, match=one.uuid):
        privileged.connect(A, devices.instance().uuid, 1.0, 0)
    # It is not the other one's to release either.
    assert privileged.release(A, devices.instance().uuid, 0.1, 1.0)
    assert len(fabric.connections()) == 1
    os_acc.unplug(one)


def test_the_entry_is_removed(fabric):
    """The VAN keeps its namespace, also over a reboot; nobody else gets it."""
    one = devices.instance()
    os_acc.plug(one, [named(A)])
    devices.spec()
    assert isinstance(cause(named(B)), exception.DeviceNotFound)
    fabric.reboot()
    os_acc.initialize(reset=True)
    assert len(fabric.connections()) == 1
    fabric.namespace(A).data = 'secret'
    os_acc.unplug(one)
    assert fabric.namespace(A).data == ''
    with pytest.raises(exception.DeviceNotFound):
        privileged.connect(A, one.uuid, 1.0, 0)


# --- in use


def test_a_process_has_it_open(fabric, kernel):
    fabric.connect(model.NQN, 'nqn.2014-08.org.nvmexpress:uuid:x')
    pid = fabric.hold(A, 'dd')
    give_up_soon()
    err = cause(named(A))
    assert isinstance(err, exception.DeviceBusy)
    assert f'process {pid} (dd)' in str(err)
    kernel.end(pid)
    os_acc.CONF.clear_override('connect_timeout', 'os_acc_nvme_of')
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    pid = fabric.hold(A)
    with pytest.raises(exception.UnplugException, match=f'process {pid}'):
        os_acc.unplug(instance)
    fabric.namespace(A).data = 'data'
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance)
    assert fabric.namespace(A).data == 'data'
    kernel.end(pid)
    os_acc.unplug(instance)


@pytest.mark.parametrize('how', ['mounted', 'holder', 'swap', 'partition'])
def test_the_host_uses_it(fabric, kernel, how):
    fabric.connect(model.NQN, 'nqn.2014-08.org.nvmexpress:uuid:x')
    name = fabric.block(A)
    block = (kernel.sys / 'class/block' / name).resolve()
    number = (block / 'dev').read_text().strip()
    if how == 'partition':
        part = block / f'{name}p1'
        (part / 'holders/dm-3').mkdir(parents=True)
        (part / 'dev').write_text('259:99\n')
        (kernel.sys / 'class/block' / part.name).symlink_to(part)
        (kernel.root / 'dev' / part.name).touch()
    elif how == 'holder':
        (block / 'holders/dm-3').mkdir()
    elif how == 'swap':
        kernel.write_file('proc/swaps', f'Filename\n/dev/{name} partition 1\n')
    else:
        kernel.write_file(
            'proc/self/mountinfo',
            f'36 35 {number} / /data rw - ext4 /dev/{name} rw\n',
        )
    err = cause(named(A))
    assert isinstance(err, exception.DeviceInUseByHost)
    (device, _) = os_acc.get_devices()[-2:]
    assert device.address == A
    assert device.handles[0].state == 'host'
    # Also if it begins after the check.
    with pytest.raises(exception.DeviceInUseByHost):
        privileged.connect(A, devices.instance().uuid, 1.0, 0)


def test_the_host_begins_to_use_it(fabric, kernel):
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    block = (kernel.sys / 'class/block' / fabric.block(A)).resolve()
    (block / 'holders/dm-3').mkdir()
    with pytest.raises(exception.UnplugException, match='dm-3'):
        os_acc.unplug(instance)
    (block / 'holders/dm-3').rmdir()
    os_acc.unplug(instance)


def test_a_local_drive_has_the_name(fabric, kernel):
    path = kernel.add_function('0000:0b:00.0', '1b36:0010', 0x010802, 'nvme')
    controller = path / 'nvme/nvme0'
    block = controller / 'nvme0n1'
    block.mkdir(parents=True)
    (block / 'wwid').write_text(f'{A}\n')
    (block / 'dev').write_text('259:0\n')
    (controller / 'transport').write_text('pcie\n')
    (controller / 'nvme0n1').mkdir(exist_ok=True)
    (kernel.sys / 'class/nvme/nvme0').symlink_to(controller)
    (kernel.sys / 'class/block/nvme0n1').symlink_to(block)
    err = cause(named(A))
    assert isinstance(err, exception.DeviceError)
    assert 'nvme0 of this host (pcie)' in str(err)
    assert fabric.commands == []


def test_another_target_has_the_name(fabric):
    fabric.targets.pop(model.NQN)
    fabric.target(A, nqn=OTHER)
    fabric.connect(OTHER, 'nqn.2014-08.org.nvmexpress:uuid:x')
    assert OTHER in str(cause(named(A)))


def test_without_multipathing(fabric, kernel):
    fabric.multipath = False
    kernel.write_file('sys/module/nvme_core/parameters/multipath', 'N\n')
    one = devices.instance()
    os_acc.plug(one, [named(A)])
    # The other one's connection would show this one's namespace again.
    assert 'shows' not in str(err := cause(named(B)))
    assert 'appears more than once' in str(err)
    os_acc.unplug(one)
    assert fabric.connections() == []
    (found,) = os_acc_findings('NVMe multipathing')
    assert found.verdict == 'warning'


# --- again


def test_after_a_reboot(fabric):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [named(A)])
    fabric.namespace(A).data = 'data'
    fabric.reboot()
    assert fabric.connections() == []
    os_acc.initialize(reset=True)
    (again,) = os_acc.get_vans()
    assert again.guest_config == van.guest_config
    assert [each['host'] for each in fabric.connections()] == [
        host_of(instance)
    ]
    assert fabric.namespace(A).data == 'data'
    os_acc.unplug(instance)
    assert fabric.connections() == []
    assert all_notes(fabric) == []


def test_after_a_reboot_a_van_keeps_what_has_failed(fabric):
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    health.mark(os_acc._host.journal, A, rows.CLEANING, 'it is slow')
    fabric.reboot()
    os_acc.initialize(reset=True)
    (van,) = os_acc.get_vans()
    assert (van.state, van.error) == ('plugged', None)
    os_acc.unplug(instance)


def test_the_target_is_gone_after_a_reboot(fabric):
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    fabric.namespace(A).data = 'data'
    fabric.reboot()
    fabric.targets[model.NQN].up = False
    os_acc.initialize(reset=True)
    (van,) = os_acc.get_vans()
    assert 'refused' in van.error
    fabric.targets[model.NQN].up = True
    os_acc.recover()
    (van,) = os_acc.get_vans()
    assert (van.state, van.error) == ('plugged', None)
    os_acc.unplug(instance)


@pytest.mark.parametrize('what', ['connection', 'link'])
def test_it_is_not_intact(fabric, kernel, what):
    instance, request = devices.instance(), named(A)
    os_acc.plug(instance, [request])
    link = kernel.root / 'dev/disk/by-id' / f'nvme-{A}'
    if what == 'connection':
        fabric.end(fabric.connections()[0]['name'])
    else:
        link.unlink()
        link.symlink_to('../../sda')
        give_up_soon()
        with pytest.raises(exception.PlugException, match='udev'):
            os_acc.plug(instance, [request])
        link.unlink()
        link.symlink_to(f'../../{fabric.block(A)}')
        os_acc.CONF.clear_override('connect_timeout', 'os_acc_nvme_of')
    os_acc.plug(instance, [request])
    assert len(fabric.connections()) == 1
    os_acc.unplug(instance)


def test_a_repair_while_its_guest_has_it_open(fabric, kernel):
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    pid = fabric.hold(A)
    with devices.acting():
        privileged.connect(A, instance.uuid, 1.0, 0)
    kernel.end(pid)
    os_acc.unplug(instance)


# --- killed


@pytest.mark.parametrize('after', [False, True])
@pytest.mark.parametrize('call', ['plug', 'unplug'])
def test_killed_at_each_step(fabric, kernel, monkeypatch, call, after):
    """A new process finds all plugged or all as before."""
    instance, died = devices.instance(), 0
    for number in range(30):
        if call == 'unplug':
            os_acc.plug(instance, [named(A)])
            fabric.namespace(A).data = 'secret'
        kernel.crash_at(number, after)
        with contextlib.suppress(
            exception.PlugException,
            exception.UnplugException,
            mortal.Crash,
        ):
            if call == 'plug':
                os_acc.plug(instance, [named(A)])
            else:
                os_acc.unplug(instance)
        dead = kernel.dead
        kernel.revive()
        if dead:
            died += 1
            os_acc.initialize(reset=True)
        if call == 'unplug' or dead:
            assert not os_acc.get_vans(), number
            assert fabric.connections() == [], number
            assert all_notes(fabric) == [], number
            assert fabric.namespace(A).data == ''
        if not dead:
            break
    assert died >= 4
    os_acc.unplug(instance)


# --- the secret


@pytest.fixture
def secret(fabric, tmp_path):
    path = tmp_path / 'secret'
    path.write_text(f'{KEY}\n')
    path.chmod(0o600)
    fabric.targets[model.NQN].secret = KEY
    devices.spec(entry(A, dhchap_secret_file=str(path)))
    return path


def test_a_secret(fabric, kernel, secret, tmp_path, caplog):
    caplog.set_level('DEBUG')
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    (there,) = fabric.connections()
    shown = fabric.ctl / there['name'] / 'dhchap_secret'
    assert shown.stat().st_mode & 0o777 == 0o600
    assert KEY not in str(fabric.commands)
    shown.unlink()
    secret.unlink()
    for directory, _, files in os.walk(tmp_path):
        for name in files:
            path = os.path.join(directory, name)
            if os.path.exists(path):  # some links lead nowhere
                with open(path, 'rb') as file:
                    assert KEY.encode() not in file.read(), name
    assert KEY not in caplog.text
    os_acc.unplug(instance)


@pytest.mark.parametrize('what', ['mode', 'content', 'absent', 'writable'])
def test_a_bad_secret(fabric, secret, what):
    if what == 'content':
        secret.write_text('top secret')
    elif what == 'absent':
        secret.unlink()
    else:
        secret.chmod(0o640 if what == 'mode' else 0o622)
    err = cause(named(A))
    assert isinstance(err, exception.InvalidRequest)
    assert str(secret) in str(err)
    assert 'top secret' not in str(err)
    assert fabric.commands == []
    assert all_notes(fabric) == []


@pytest.mark.parametrize('options', ['nqn=%s,transport=%s', None])
def test_a_kernel_that_knows_no_secret(fabric, kernel, secret, options):
    """It would write the secret to its log."""
    file = kernel.root / 'dev/nvme-fabrics'
    if options is None:
        file.unlink()
        file.mkdir()  # reading it fails
    else:
        file.write_text(options)
    err = cause(named(A))
    assert isinstance(err, exception.DeviceError)
    assert 'Linux 6.0' in str(err)
    assert fabric.commands == []


# --- requests and reports


def test_requests(fabric):
    driver = os_acc._host.extensions.drivers['nvme_of']
    assert driver.can_handle(named(A))
    assert driver.can_handle(wanted())
    assert not driver.can_handle(devices.wanted('CUSTOM_OTHER'))
    assert not driver.can_handle(devices.pci('0c:00.1'))
    assert not driver.can_handle(
        objects.AcceleratorRequest(uuid=str(uuid.uuid4()))
    )
    err = cause(named(A, '/dev/sda'))
    assert isinstance(err, exception.InvalidRequest)
    assert 'handle.path' in str(err)
    request = devices.pci('0c:00.1')
    request.driver = 'nvme_of'
    assert isinstance(cause(request), exception.UnsupportedHandle)
    err = cause(wanted('CUSTOM_SLOW'))
    assert 'device_spec offers no such namespace' in str(err)
    assert driver.is_intact(objects.VAN(handle=objects.TestHandle(name='a')))


def test_reports(fabric):
    instance = devices.instance()
    free = os_acc.get_devices()
    assert [(d.address, d.handles_free) for d in free] == [(A, 1), (B, 1)]
    assert free[0].resource_class == CLASS
    assert free[0].traits == ['CUSTOM_NVME']
    driver = os_acc._host.extensions.drivers['nvme_of']
    assert driver.show_device('uuid.x') is None
    before = driver.show_device(A)
    assert before['block devices'] == before['connections'] == []
    assert before['status'] == 'no VAN has it'
    os_acc.plug(instance, [named(A)])
    after = driver.show_device(A)
    assert after['host nqn'] == host_of(instance)
    assert after['block devices'][0].endswith('(1048576 bytes)')
    assert 'tcp 192.0.2.1 port 4420, live' in after['connections'][0]
    assert after['dh-chap secret'] == 'none'
    devices.spec()
    assert 'subsystem' not in driver.show_device(A)
    assert list(driver.diagnose()) == []
    assert driver.get_devices() == []
    devices.spec(entry(A, B))
    texts = [each.text for each in os_acc_findings('namespace')]
    assert texts[0].startswith(f'instance {instance.uuid} has it; it is')
    assert texts[1].startswith('no VAN has it; it is connected: ')
    os_acc.unplug(instance)
    assert 'it is not connected' in os_acc_findings('namespace')[0].text


def test_what_the_doctor_misses(fabric, kernel, monkeypatch):
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    monkeypatch.setattr('shutil.which', lambda name, path: None)
    portals = [['192.0.2.1', 4420, 'rdma']]
    devices.spec(entry(A, portals=portals))
    found = {e.subject: e.verdict for e in os_acc_findings('')}
    for subject in (
        'os-brick',
        'program nvme',
        'program blkdiscard',
        'kernel module nvme-rdma',
    ):
        assert found[subject] == 'error'


GOOD = {
    'nqn': model.NQN,
    'portals': [['192.0.2.1', 4420, 'tcp']],
    'namespaces': [A],
}


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('nvme_of', 'x'),
        ('nvme_of.nqn', None),
        ('nvme_of.nqn', 7),
        ('nvme_of.nqn', 'x'),
        ('nvme_of.nqn', 'nqn.2014-08.org.nvmexpress.discovery'),
        ('nvme_of.nqn', 'nqn.2014-08.org.example:a,hostnqn=b'),
        ('nvme_of.portals', []),
        ('nvme_of.portals', ['192.0.2.1', 4420, 'tcp']),
        ('nvme_of.portals', [['192.0.2.1', 4420]]),
        ('nvme_of.portals', [['a.example', 4420, 'tcp']]),
        ('nvme_of.portals', [['192.0.2.1', 0, 'tcp']]),
        ('nvme_of.portals', [['192.0.2.1', True, 'tcp']]),
        ('nvme_of.portals', [['192.0.2.1', 4420, 'pcie']]),
        ('nvme_of.portals', [['192.0.2.1', 4420, 'tcp']] * 2),
        ('nvme_of.namespaces', []),
        ('nvme_of.namespaces', A),
        ('nvme_of.namespaces', ['1']),
        ('nvme_of.namespaces', [1]),
        ('nvme_of.namespaces', [str(uuid.UUID(int=0))]),
        ('nvme_of.namespaces', ['eui.0123456789abcdef']),
        ('nvme_of.dhchap_secret_file', 'secret'),
        ('nvme_of.dhchap_secret_file', '/etc/../x'),
        ('nvme_of.erase', 'format'),
        ('nvme_of.secret', 'DHHC-1:00:x:'),
        ('address', '*'),
        ('num_vfs', 2),
    ],
)
def test_bad_entries(field, value):
    """The error names the key. No entry contains a secret."""
    item = {'nvme_of': dict(GOOD)}
    if field == 'nvme_of':
        item[field] = value
    elif '.' in field:
        item['nvme_of'][field.partition('.')[2]] = value
    else:
        item[field] = value
    with pytest.raises(exception.InvalidRequest) as caught:
        device_spec.parse(json.dumps(item))
    assert caught.value.kwargs['field'] == field


def test_a_good_entry():
    more = {
        'portals': [['2001:DB8::0:1', 4420, 'rdma']],
        'namespaces': [A.upper().replace('UUID', 'uuid'), A, N],
        'dhchap_secret_file': '/etc/os-acc/secret',
        'erase': 'none',
    }
    (found,) = device_spec.parse(json.dumps({'nvme_of': GOOD | more}))
    assert found.nvme_of == spec_nvme_of.Target(
        model.NQN,
        (nvme_of.Portal('2001:db8::1', 4420, 'rdma'),),
        (A, N),
        '/etc/os-acc/secret',
        'none',
    )
    # It names nothing else.
    assert not found.matches_parent('mtty')


def test_an_entry_with_a_key_missing():
    with pytest.raises(exception.InvalidRequest, match=r'nvme_of\.portals'):
        device_spec.parse(json.dumps({'nvme_of': {'nqn': model.NQN}}))


def test_an_unhealthy_namespace(fabric):
    journal = os_acc._host.journal
    health.mark(journal, A, rows.CLEANING, 'it is slow')
    assert isinstance(cause(named(A)), exception.DeviceUnhealthy)
    assert [d.handles_free for d in os_acc.get_devices()] == [0, 1]
    (found, _) = os_acc_findings('namespace')
    assert found.verdict == 'warning'
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [wanted()])
    assert van.device == B
    os_acc.unplug(instance)


def test_an_entry_that_denies(fabric):
    deny = {'nvme_of': entry(A)['nvme_of'], 'deny': True}
    devices.spec(entry(A, B), deny)
    assert [d.address for d in os_acc.get_devices()] == [B]
    assert isinstance(cause(named(A)), exception.DeviceNotFound)


# --- os-brick's commands


def test_the_module_is_loaded(fabric, kernel, monkeypatch):
    (kernel.sys / 'module/nvme_tcp').rmdir()
    loaded = []
    monkeypatch.setattr(
        module_loading, 'load', lambda name, _: loaded.append(name)
    )
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    assert loaded == ['nvme-tcp']
    os_acc.unplug(instance)


def test_only_these_commands(fabric):
    from oslo_concurrency import processutils

    from os_acc.deadlines import waiting

    run = commands.Commands('it', waiting.Deadline(9.0), [3])
    for words in (['rm', 'x'], ['nvme', 'format'], ['nvme', 'disconnect']):
        with pytest.raises(processutils.ProcessExecutionError):
            run(*words)
    assert fabric.commands == []
    late = commands.Commands('it', waiting.Deadline(0.0), [3])
    with pytest.raises(exception.Timeout):
        late('nvme', 'ns-rescan', '/dev/nvme0')


def test_a_connection_that_ends_by_itself_at_the_same_time(fabric, kernel):
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    (there,) = fabric.connections()

    def ends() -> None:
        fabric.end(there['name'])
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    kernel.fail(f'sys/*/{there["name"]}/delete_controller', ends)
    assert os_acc.unplug(instance) == 1
    assert fabric.connections() == []


def test_a_connection_that_cannot_be_ended(fabric, monkeypatch):
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    (there,) = fabric.connections()
    name = f'sys/*/{there["name"]}/delete_controller'
    fabric.kernel.fail(name, 5)
    with pytest.raises(
        exception.UnplugException,
        match='delete_controller: Input/output error',
    ):
        os_acc.unplug(instance)
    # Others are not kept from their work.
    fabric.kernel.fail(name, 5)
    other = devices.instance()
    os_acc.plug(other, [named(B)])
    os_acc.unplug(other)
    os_acc.recover()
    assert fabric.connections() == []


def test_a_program_is_missing(kernel):
    with pytest.raises(exception.DeviceError, match='install a-package'):
        commands.program('no-such-program', 'a-package', 'it')
    assert commands.program('sh', 'dash', 'it').endswith('/sh')


def test_os_brick_is_missing(kernel, monkeypatch):
    import sys

    name = 'os_brick.initiator.connectors'
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(exception.PrivilegeError, match=r'os-acc\[remote\]'):
        commands.connector(lambda *words: None, False)


def test_os_brick_locks_in_a_directory_of_root(kernel):
    made = commands.connector(lambda *words: ('', ''), False)
    assert made.use_multipath is False
    path = os_acc.CONF.os_brick.lock_path
    assert path == str(kernel.root / 'run/os-acc/os-brick')


@pytest.mark.parametrize(
    'arguments',
    [
        ('x', 'uuid', 1.0, 0),
        ('uuid.x', devices.instance().uuid, 1.0, 0),
        (A, 'x', 1.0, 0),
        (A, devices.instance().uuid, -1.0, 0),
        (A, devices.instance().uuid, 1.0, -5),
        (5, devices.instance().uuid, 1.0, 0),
    ],
)
def test_bad_arguments(fabric, arguments):
    with pytest.raises(exception.InvalidRequest):
        privileged.connect(*arguments)
    assert fabric.commands == []


def test_a_note_says_what_it_knows(fabric):
    note = notes.Note('x', False, None)
    notes.write(A, note)
    assert (
        json.loads(root_notes.files.read(f'namespace-{A}'))['target'] is None
    )
    assert notes.read(A).instance == notes.UNKNOWN
    notes.delete(A, root_notes.Cleaned.GONE)
    assert notes.read(A) is None


# --- names that change their owner


def test_the_name_of_a_connection_has_another_one_now(fabric, monkeypatch):
    """It ends by itself while it is examined; it is not ours any more."""
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    (there,) = fabric.connections()
    real, others = availability.users_of, []

    def users_of(names, snapshot, reachable):
        if fabric.commands[-1][0] != 'blkdiscard':
            return real(names, snapshot, reachable)
        if not others:
            fabric.end(there['name'])
            monkeypatch.setattr(
                fabric, '_controllers', int(there['name'][4:]) - 1
            )
            host = 'nqn.2014-08.org.nvmexpress:uuid:x'
            others.append(fabric.connect(model.NQN, host))
        return []

    monkeypatch.setattr(availability, 'users_of', users_of)
    os_acc.unplug(instance)
    assert others == [there['name']]
    assert [each['name'] for each in fabric.connections()] == others


def test_the_name_of_a_namespace_has_another_one_now(
    fabric, kernel, monkeypatch
):
    """What has the name now is not emptied."""
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    path = f'sys/class/block/{fabric.block(A)}/wwid'

    def program(name, package, device):
        if name == 'blkdiscard':
            kernel.write_file(path, 'uuid.other\n')
        return name

    with monkeypatch.context() as patch:
        patch.setattr(commands, 'program', program)
        with pytest.raises(exception.UnplugException, match='another') as err:
            os_acc.unplug(instance)
    assert isinstance(err.value.__cause__, exception.CleaningFailed)
    assert not any('blkdiscard' in each for each in fabric.commands)
    kernel.write_file(path, f'{A}\n')
    os_acc.unplug(instance)


def test_a_secret_without_the_namespace(fabric, secret, monkeypatch):
    """Nobody can read it, although the connection is of no use."""
    real = model.Connector.connect_volume

    def fails(brick, properties):
        real(brick, properties)
        raise RuntimeError('Volume device not found')

    monkeypatch.setattr(model.Connector, 'connect_volume', fails)
    instance = devices.instance()
    with pytest.raises(exception.DeviceError, match='not found'):
        privileged.connect(A, instance.uuid, 60.0, 0)
    (there,) = fabric.connections()
    shown = fabric.ctl / there['name'] / 'dhchap_secret'
    assert shown.stat().st_mode & 0o777 == 0o600
    privileged.release(A, instance.uuid, 0.0, 60.0)


def test_who_denies_a_device_does_not_forget_whose_data_it_has(fabric):
    devices.spec(entry(A))
    target = device_spec.load(os_acc.CONF).find_namespace(A).nvme_of
    note = notes.Note(devices.instance().uuid, False, target)
    notes.write(A, note)
    root_notes.forget_unused(A, lambda part: False, '', lambda each: False)
    assert notes.read(A) == note


# --- os-acc device allow and deny


@pytest.fixture
def run(fabric, capsys, monkeypatch):
    path = os_acc.CONF.os_acc.state_path
    return command.Command(path, capsys, monkeypatch)


@pytest.mark.parametrize('text', [A, A.upper(), A.removeprefix('uuid.')])
def test_deny_and_allow(fabric, run, text):
    path = f'{os_acc.CONF.os_acc.device_spec_dir}/50-os-acc-{A}.json'
    out = run.fine('device', 'deny', text).out
    assert out == f'wrote {path}\n{A} is not offered\n'
    assert [each.address for each in os_acc.get_devices()] == [B]
    assert 'device_spec does not name it' in str(cause(named(A)))
    with pytest.raises(exception.DeviceNotFound):
        privileged.connect(A, devices.instance().uuid, 60.0, 0)
    driver = os_acc._host.extensions.drivers['pci']
    assert not [each for each in driver.diagnose() if path in each.subject]
    out = run.fine('device', 'allow', text).out
    assert out == f'removed {path}\n{A} is offered by device_spec, entry 1\n'
    assert {each.address for each in os_acc.get_devices()} == {A, B}


def test_deny_what_an_instance_has(fabric, run):
    instance = devices.instance()
    os_acc.plug(instance, [named(A)])
    out = run.fine('device', 'deny', A).out
    assert f'instance {instance.uuid} keeps block/{A} until' in out
    assert all_notes(fabric) != []
    assert os_acc.unplug(instance) == 1


def test_deny_of_every_device(fabric):
    devices.spec(entry(A), {'address': '*', 'deny': True})
    assert os_acc.get_devices() == []


def test_allow_what_no_entry_names(fabric, run):
    line = run.fails(4, 'device', 'allow', N)
    assert f'namespace {N}' in line
    assert 'add its UUID to the namespaces of an entry with nvme_of' in line
    assert not os.path.exists(os_acc.CONF.os_acc.device_spec_dir)


def test_allow_what_another_entry_denies(fabric, run):
    devices.spec(entry(A), {**entry(A), 'deny': True})
    line = run.fails(4, 'device', 'allow', A)
    assert 'device_spec, entry 2 denies it' in line


def test_allow_what_the_host_uses(fabric, run):
    fabric.targets.pop(model.NQN)
    fabric.target(A, nqn=OTHER)
    fabric.connect(OTHER, 'nqn.2014-08.org.nvmexpress:uuid:x')
    run.fine('device', 'deny', A)
    out = run.fine('device', 'allow', A).out
    assert 'but it is not available now' in out


def test_the_doctor_goes_on_after_a_namespace_that_vanishes(
    fabric, monkeypatch
):
    def blocks(wwn):
        raise FileNotFoundError(errno.ENOENT, 'gone', '/sys/block/nvme0n1')

    monkeypatch.setattr(nvme_of, 'blocks', blocks)
    driver = os_acc._host.extensions.drivers['nvme_of']
    found = [each for each in driver.diagnose() if 'gone' in each.text]
    assert len(found) == 2
