# SPDX-License-Identifier: Apache-2.0

"""os-acc device spec, device allow and device deny."""

from __future__ import annotations

import json
import os
import pathlib
import stat

import command
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.privileged import function_notes
from os_acc.privileged import notes
from os_acc.spec import changing
from os_acc.spec import device_spec

GPU_ENTRY = {
    'address': devices.GPU,
    'vendor_id': '10de',
    'product_id': '1eb8',
}
UUID = '11111111-2222-4333-8444-555555555555'


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    devices.spec()
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    return kernel


@pytest.fixture
def run(here, capsys, monkeypatch):
    path = os_acc.CONF.os_acc.state_path
    return command.Command(path, capsys, monkeypatch)


def directory() -> pathlib.Path:
    return pathlib.Path(os_acc.CONF.os_acc.device_spec_dir)


def file(name: str) -> pathlib.Path:
    return directory() / f'50-os-acc-{name}.json'


def offered(address: str) -> bool:
    specs = device_spec.load(os_acc.CONF)
    return specs.find(pci.get(address)) is not None


@pytest.mark.parametrize(
    'spelled', ['10000:e1:00.0', '00010000:E1:00.0', 'pci_10000_e1_00_0']
)
def test_each_command_takes_each_spelling_of_an_address(here, run, spelled):
    """libvirt and lspci write the domain of a VMD in other ways."""
    address = '10000:e1:00.0'
    here.add_function(address, '10de:1eb8', 0x030200)
    devices.spec({'address': address, 'one_time_use': True})
    run.fine('device', 'deny', spelled)
    assert not offered(address)
    run.fine('device', 'allow', spelled)
    assert offered(address)
    assert address in run.fine('device', 'show', spelled).out
    owner = devices.instance()
    os_acc.plug(owner, [devices.pci(address)])
    os_acc.unplug(owner)
    assert address in run.fine('device', 'free', spelled).out
    assert address in run.fine('events', '--device', spelled).out


def test_spec(run):
    out = run.fine('device', 'spec').out
    assert out.startswith('[os_acc]\n\n# 0000:01:00.0: ')
    assert device_spec.line(GPU_ENTRY) in out
    for address in (devices.NIC, devices.DISK, devices.SHARED):
        assert address not in out


def test_spec_where_there_is_nothing(run, here):
    for address in (devices.PF, devices.GPU):
        here.remove_function(address)
    assert run.fine('device', 'spec').out == (
        '[os_acc]\n# No accelerator was found that the host does not use.\n'
    )


@pytest.mark.parametrize('text', [devices.GPU, '02:00.0', '0000:02:00.0'])
def test_allow(run, text):
    out = run.fine('device', 'allow', text).out
    path = file(devices.GPU)
    assert out == (
        f'wrote {path}\n{devices.GPU} is offered by {path}, entry 1\n'
    )
    assert offered(devices.GPU)
    assert not offered(devices.NIC)
    assert json.loads(path.read_text()) == GPU_ENTRY
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(directory()) == [path.name]


@pytest.mark.parametrize('umask', [0, 0o077])
def test_allow_under_any_umask(run, umask):
    above = directory().parent / 'above'
    os_acc.CONF.set_override('device_spec_dir', str(above / 's'), 'os_acc')
    before = os.umask(umask)
    try:
        run.fine('device', 'allow', devices.GPU)
    finally:
        os.umask(before)
    assert offered(devices.GPU)
    for path in (above, directory()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert stat.S_IMODE(file(devices.GPU).stat().st_mode) == 0o644


def test_allow_again_writes_nothing(run):
    run.fine('device', 'allow', devices.GPU)
    run.fine('device', 'allow', devices.GPU)
    assert offered(devices.GPU)
    devices.spec({'address': devices.PF, 'num_vfs': 2})
    out = run.fine('device', 'allow', devices.PF).out
    assert out == f'{devices.PF} is offered by device_spec, entry 1\n'
    assert not file(devices.PF).exists()


def test_allow_what_cannot_be_given_out(run):
    devices.spec()
    out = run.fine('device', 'allow', devices.SHARED).out
    assert 'but it is not available now: its IOMMU group 50' in out


def test_allow_what_is_not_there_yet(run):
    out = run.fine('device', 'allow', '0000:77:00.0').out
    assert out.endswith('0000:77:00.0 is offered once this host has it\n')
    out = run.fine('device', 'allow', 'matrix').out
    assert out.endswith('matrix is offered once this host has it\n')


def test_deny_and_allow_keep_the_entry_of_the_operator(run):
    devices.spec({'address': devices.PF, 'num_vfs': 2})
    out = run.fine('device', 'deny', devices.PF).out
    path = file(devices.PF)
    assert out == f'wrote {path}\n{devices.PF} is not offered\n'
    assert not offered(devices.PF)
    out = run.fine('device', 'allow', devices.PF).out
    assert out == (
        f'removed {path}\n{devices.PF} is offered by device_spec, entry 1\n'
    )
    assert device_spec.load(os_acc.CONF).check(pci.get(devices.PF)).num_vfs


def test_deny_what_was_allowed(run):
    run.fine('device', 'allow', devices.GPU)
    run.fine('device', 'deny', devices.GPU)
    assert not offered(devices.GPU)
    assert os.listdir(directory()) == [file(devices.GPU).name]


def test_deny_what_an_instance_has(run):
    devices.spec({'address': '*'})
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(devices.GPU)])
    out = run.fine('device', 'deny', devices.GPU).out
    assert (
        f'instance {instance.uuid} keeps pci/{devices.GPU} until it is '
        f'unplugged (VAN {van.uuid})\n'
    ) in out
    assert function_notes.has(pci.get(devices.GPU))
    assert os_acc.unplug(instance) == 1
    assert not function_notes.has(pci.get(devices.GPU))


@pytest.mark.parametrize(
    ('name', 'made'),
    [
        (
            devices.GPU,
            lambda: function_notes.note_function(pci.get(devices.GPU)),
        ),
        (
            devices.GPU,
            lambda: function_notes.note_vgpu(pci.get(devices.GPU), 558),
        ),
        (devices.PF, lambda: function_notes.note_vfs(pci.get(devices.PF), 4)),
        # A VF that there is not, because the host was rebooted.
        (
            devices.PF,
            lambda: notes.note(
                notes.PCI, devices.VFS[0], '8086:4941', device=devices.PF
            ),
        ),
        (
            'mtty',
            lambda: function_notes.note_mdev(
                mdev.Mdev(UUID, 'mtty', 'mtty-1')
            ),
        ),
    ],
)
def test_deny_deletes_the_notes_that_no_van_needs(run, name, made):
    """The VANs were deleted by os-acc van forget, or never were."""
    devices.spec({'address': '*'})
    made()
    assert len(notes.of_device(name)) == 1
    run.fine('device', 'deny', name)
    assert notes.of_device(name) == []


def test_deny_keeps_the_notes_that_vans_need(run):
    devices.spec({'address': devices.PF, 'num_vfs': 4}, {'address': '*'})
    first, second = devices.instance(), devices.instance()
    os_acc.plug(first, [devices.pci(devices.VFS[0])])
    os_acc.plug(second, [devices.mdev(name=UUID)])
    other = pci.get(devices.VFS[1])
    function_notes.note_function(other)
    run.fine('device', 'deny', devices.PF)
    run.fine('device', 'deny', 'mtty')
    assert not function_notes.has(other)
    assert notes.of_device(devices.PF) == [
        ('pci', devices.VFS[0]),
        ('vfs', devices.PF),
    ]
    assert notes.of_device('mtty') == [('mdev', UUID)]
    assert os_acc.unplug(first) == os_acc.unplug(second) == 1
    assert notes.of_device(devices.PF) == []
    assert notes.of_device('mtty') == []


def test_deny_keeps_the_note_of_a_companion(run, here):
    sound = f'{devices.GPU[:-1]}1'
    here.add_driver('snd_hda_intel')
    here.add_function(
        sound,
        '10de:1aef',
        0x040300,
        'snd_hda_intel',
        group=int(pci.get(devices.GPU).iommu_group),
    )
    devices.spec({'address': devices.GPU, 'companions': True})
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    run.fine('device', 'deny', sound)
    assert function_notes.has(pci.get(sound))
    assert os_acc.unplug(instance) == 1
    assert not function_notes.has(pci.get(sound))


def test_a_parent_of_mdevs(run):
    run.fine('device', 'allow', 'mtty')
    instance = devices.instance()
    os_acc.plug(instance, [devices.mdev()])
    out = run.fine('device', 'deny', 'mtty').out
    assert f'instance {instance.uuid} keeps mdev/' in out
    assert device_spec.load(os_acc.CONF).find_parent('mtty') is None
    assert os_acc.unplug(instance) == 1


def test_a_change_takes_effect_at_once(run, here):
    """In the process that called initialize() before."""
    assert os_acc.get_devices() == []
    run.fine('device', 'allow', devices.GPU)
    os_acc.initialize()
    assert [d.address for d in os_acc.get_devices()] == [devices.GPU]
    run.fine('device', 'deny', devices.GPU)
    assert os_acc.get_devices() == []


@pytest.mark.parametrize('verb', ['allow', 'deny'])
@pytest.mark.parametrize(
    'text', ['0000:02:00.9', '2:0.0:', '../x', '*', 'a/b', '', '0000:*']
)
def test_what_is_no_device(run, verb, text):
    line = run.fails(2, 'device', verb, text)
    assert repr(text) in line
    assert not directory().exists()


@pytest.mark.parametrize('verb', ['allow', 'deny'])
def test_a_malformed_file_comes_first(run, verb):
    directory().mkdir(0o755)
    (directory() / 'x.json').write_text('{')
    (directory() / 'x.json').chmod(0o644)
    assert 'x.json' in run.fails(2, 'device', verb, devices.GPU)
    assert os.listdir(directory()) == ['x.json']


def test_another_entry_denies_it(run):
    devices.spec({'address': '*', 'deny': True})
    result = run('device', 'allow', devices.GPU)
    assert result.code == 4
    assert 'device_spec, entry 1 denies it' in result.err


def test_no_directory(run):
    os_acc.CONF.set_override('device_spec_dir', '', 'os_acc')
    line = run.fails(2, 'device', 'allow', devices.GPU)
    assert 'device_spec_dir' in line


@pytest.mark.parametrize('verb', ['allow', 'deny'])
def test_a_directory_that_cannot_be_written(run, monkeypatch, verb):
    def fail(*args, **kwargs):
        raise PermissionError(13, 'Permission denied')

    monkeypatch.setattr(os, 'mkdir', fail)
    line = run.fails(1, 'device', verb, devices.GPU)
    assert f'{file(devices.GPU)} cannot be changed: Permission denied' in line
    assert 'as root' in line


def test_nothing_is_left_of_a_failed_write(run, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(28, 'No space left on device')

    with monkeypatch.context() as patch:
        patch.setattr(os, 'replace', fail)
        line = run.fails(1, 'device', 'allow', devices.GPU)
    assert 'No space left on device' in line
    assert os.listdir(directory()) == []


@pytest.mark.parametrize('verb', ['allow', 'deny'])
@pytest.mark.parametrize('name', ['ff', '1f', '0.0', '.0', '20.0', 'cafe'])
def test_a_name_that_an_entry_cannot_say_writes_nothing(run, verb, name):
    run('device', verb, name)
    assert not list(directory().glob('*'))
    device_spec.load(os_acc.CONF)


@pytest.mark.parametrize('verb', ['allow', 'deny'])
@pytest.mark.parametrize('path', ['/dev/acc[1]', '/dev/acc?', '/dev/acc*'])
def test_a_path_that_an_entry_takes_for_a_glob(run, verb, path):
    """An entry with acc[1] would deny acc1, and not the file acc[1]."""
    line = run.fails(2, 'device', verb, path)
    assert 'names others' in line
    assert not directory().exists()


def test_the_name_that_libvirt_gives_to_a_function(run):
    run.fine('device', 'deny', 'pci_0000_02_00_0')
    assert 'deny' in file('0000:02:00.0').read_text()
    assert not offered('0000:02:00.0')


def test_an_entry_that_load_refuses_is_taken_back(run):
    path = str(file('one'))
    changing.add(os_acc.CONF, path, {'address': 'one'})
    before = file('one').read_text()
    (directory() / '99-other.json').write_text('{')
    with pytest.raises(exception.InvalidRequest):
        changing.add(os_acc.CONF, path, {'address': 'two'})
    assert file('one').read_text() == before
