# SPDX-License-Identifier: Apache-2.0

"""Device files: the gate of programming, and the commands."""

from __future__ import annotations

import json
import pathlib
import uuid

import command
import device_nodes
import devices
import gate_rigs
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.privileged import notes

PATH = '/dev/acc/wq0'
NAME = 'char-240-1'


@pytest.fixture
def nodes(kernel, monkeypatch):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    made = device_nodes.Nodes(kernel)
    made.install(monkeypatch)
    made.kernel = kernel
    return made


def plug(name):
    instance = devices.instance()
    handle = objects.DeviceFileHandle(name=name, files=[])
    request = objects.AcceleratorRequest(uuid=str(uuid.uuid4()), handle=handle)
    os_acc.plug(instance, [request])
    return instance


# --- the gate


@pytest.mark.parametrize('rig_name', ['command', 'dfl'])
@pytest.mark.parametrize('place', ['sibling', 'pf', 'first', 'last'])
def test_a_chip_with_a_file_in_use_is_not_programmed(
    nodes, tmp_path, monkeypatch, rig_name, place
):
    rig = gate_rigs.RIGS[rig_name](nodes.kernel, tmp_path, monkeypatch)
    address = rig.at(place)
    nodes.add('user0', 'c 250:0', f'pci0000:00/{address}/user/user0', 'user')
    os_acc.CONF.set_override(
        'device_spec',
        [*os_acc.CONF.os_acc.device_spec, '{"devices": "/dev/user*"}'],
        'os_acc',
    )
    rig.program(gate_rigs.AES)
    instance = plug(f'{address}+user+user')
    with pytest.raises(exception.DeviceBusy, match=instance.uuid):
        rig.program(gate_rigs.SHA)
    os_acc.unplug(instance)
    # A process that os-acc knows nothing of.
    pid = nodes.kernel.hold('/dev/user0', 'python3', 'c 250:0')
    (nodes.kernel.sys / 'dev/char/250:0/uevent').write_text('DEVNAME=user0\n')
    with pytest.raises(exception.DeviceBusy, match=f'process {pid}'):
        rig.program(gate_rigs.SHA)
    nodes.kernel.end(pid)
    assert rig.program(gate_rigs.SHA) is True


# --- commands


@pytest.fixture
def run(nodes, monkeypatch, capsys):
    nodes.add('acc/wq0', 'c 240:1')
    devices.spec()
    os_acc.initialize()
    path = os_acc.CONF.os_acc.state_path
    return command.Command(path, capsys, monkeypatch)


def directory() -> pathlib.Path:
    return pathlib.Path(os_acc.CONF.os_acc.device_spec_dir)


def test_allow_and_deny(run, nodes):
    path = directory() / '50-os-acc-dev+acc+wq0.json'
    out = run.fine('device', 'allow', PATH).out
    assert out == (
        f'wrote {path}\n{PATH} is offered by {path}, entry 1, as {NAME}\n'
    )
    assert json.loads(path.read_text()) == {'devices': PATH}
    instance = plug(NAME)
    out = run.fine('device', 'deny', PATH).out
    # Denied alone it is no accelerator, and the VAN keeps it.
    assert f'{PATH} is not offered' in out
    assert notes.files.names() == [f'file-{NAME}']
    os_acc.unplug(instance)
    assert notes.files.names() == []
    assert devices.refused(
        objects.AcceleratorRequest(
            uuid=str(uuid.uuid4()),
            handle=objects.DeviceFileHandle(name=NAME, files=[]),
        )
    )
    out = run.fine('device', 'allow', PATH).out
    assert out.startswith(f'removed {path}\nwrote {path}\n')


def test_deny_forgets_the_notes_that_no_van_has(run, nodes):
    nodes.kernel.add_function('0000:3b:00.0', '1002:740f', 0x038000)
    devices.spec({'devices': '/dev/acc/*'})
    instance = plug(NAME)
    with devices.acting():
        for name in (NAME, '0000:3b:00.0+drm+renderd'):
            notes.note(notes.FILE, f'{name}+share=1', name, device=PATH)
    out = run.fine('device', 'deny', PATH).out
    assert f'instance {instance.uuid} keeps file/{NAME}' in out
    run.fine('device', 'deny', '0000:3b:00.0')
    assert notes.files.names() == [
        f'file-{NAME}',
        f'file-{NAME}+share=1',
    ]
    os_acc.unplug(instance)


def test_deny_of_the_operator_is_told(run):
    devices.spec({'devices': '/dev/acc/*', 'deny': True})
    err = run('device', 'allow', PATH).err
    assert 'device_spec, entry 1 denies it' in err


def test_allow_what_is_not_there_or_never_given_out(run, nodes):
    out = run.fine('device', 'allow', '/dev/none').out
    assert out.endswith('/dev/none is offered once this host has it\n')
    nodes.add('mem', 'c 1:1')
    out = run.fine('device', 'allow', '/dev/mem').out
    assert 'is not available now: /dev/mem is the memory of the' in out
    assert 'below /dev' in run('device', 'allow', '/etc/passwd').err


def test_list_and_show(run):
    devices.spec({'devices': '/dev/acc/*', 'shared': 3})
    (row,) = run.fine('device', 'list', '-f', 'json').json
    assert (row['address'], row['driver']) == (NAME, 'devfile')
    assert (row['handles_total'], row['handles_free']) == (3, 3)
    for wanted in (NAME, PATH):
        told = run.fine('device', 'show', wanted, '-f', 'json').json
        assert told['shared'] == 'by 3 VANs'
