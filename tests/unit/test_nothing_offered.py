# SPDX-License-Identifier: Apache-2.0

"""An entry that names a device and offers nothing of it: why, everywhere."""

from __future__ import annotations

import errno
import os

import command
import devices
import examples
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest
import vgpu_card

import os_acc
from os_acc.availability import nothing_offered
from os_acc.kernel import sysfs
from os_acc.kernel import vgpu_cards
from os_acc.spec import device_spec

PF, OTHER = '0001:c8:00.0', '0000:41:00.0'
VGPU = {'vgpu_type': 'A40-1Q', 'resource_class': 'CUSTOM_V'}
MDEV = {'mdev_types': ['nvidia-558'], 'resource_class': 'CUSTOM_V'}
TYPES = {558: ('A40-1Q', 1), 559: ('A40-2Q', 2)}


@pytest.fixture(autouse=True)
def no_vgpu_manager(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(vgpu_cards, 'PATH', str(tmp_path / 'missing.xml'))


def gpu(kernel, driver='nvidia', totalvfs=2, ids='10de:2235'):
    return kernel.add_function(PF, ids, 0x030200, driver, totalvfs=totalvfs)


def no_vfs(kernel):
    """sriov-manage has not run since the host was booted."""
    gpu(kernel)
    return VGPU, f'sriov-manage -e {PF}'


def vfs_without_files(kernel):
    """The driver was upgraded to one without vGPUs."""
    gpu(kernel)
    kernel.write_numvfs(PF, 2)
    return VGPU, 'no file nvidia/current_vgpu_type'


def no_driver(kernel):
    gpu(kernel, driver=None)
    return VGPU, 'bound to no driver'


def driver_of_displays(kernel):
    kernel.add_driver('nouveau')
    gpu(kernel, driver='nouveau')
    return VGPU, 'bound to nouveau'


def vfs_of_vfio(kernel):
    """Somebody has bound the VFs to VFIO, as for another vendor's GPU."""
    gpu(kernel)
    kernel.set_numvfs(PF, 1)
    vf = f'{PF[:-1]}1'
    kernel.unbind(vf)
    kernel.write(str(kernel.file(vf, 'driver_override')), 'vfio-pci')
    kernel.write(str(kernel.pci / 'drivers_probe'), vf)
    return VGPU, 'bound to vfio-pci'


def no_sriov(kernel):
    """SR-IOV is off in the firmware, or the GPU is a Tesla T4."""
    gpu(kernel, totalvfs=0, ids='10de:1eb8')
    return VGPU, 'enable SR-IOV in the firmware'


def another_vendor(kernel):
    gpu(kernel, driver='amdgpu', ids='1002:74a1')
    return VGPU, 'bound to amdgpu'


def vgpus_are_mdevs(kernel):
    """The host was booted with an older kernel."""
    path = gpu(kernel, totalvfs=0)
    kernel.add_mdev_parent(path, {'nvidia-558': 1}, 4)
    return VGPU, 'set mdev_types instead'


def no_such_vgpu_type(kernel):
    vgpu_card.Card(kernel, PF, TYPES, size=48, vfs=2)
    return {**VGPU, 'vgpu_type': 'A40-3Q'}, '558 (A40-1Q), 559 (A40-2Q)'


def mig_without_instances(kernel):
    """The GPU instances are gone after a reboot."""
    vgpu_card.Card(kernel, PF, {}, size=48, vfs=2)
    return VGPU, 'nvidia-smi mig -cgi'


def vgpus_without_a_type(kernel):
    """The service of the operator that sets the types has not run."""
    vgpu_card.Card(kernel, PF, TYPES, size=48, vfs=2)
    return (
        {'bind': 'none', 'resource_class': 'CUSTOM_V'},
        'no vGPU type is set on it',
    )


def no_mdev_parent(kernel):
    gpu(kernel)
    return MDEV, 'bound to nvidia, and has no VFs'


def no_driver_for_mdevs(kernel):
    gpu(kernel, driver=None, totalvfs=0, ids='8086:3e92')
    return MDEV, 'bound to no driver'


def mdevs_are_vgpus(kernel):
    """The host was upgraded to Linux 6.8."""
    vgpu_card.Card(kernel, PF, TYPES, size=48, vfs=2)
    return MDEV, 'set vgpu_type instead'


def no_such_mdev_type(kernel):
    kernel.add_mdev_parent(gpu(kernel, totalvfs=0), {'nvidia-47': 2}, 24)
    return MDEV, 'its mdev types are nvidia-47'


def a_pf_on_vfio(kernel):
    gpu(kernel, driver='vfio-pci', ids='8086:56c0')
    return (
        {'num_vfs': 2, 'resource_class': 'CUSTOM_V'},
        'bound to the VFIO driver vfio-pci',
    )


def a_pf_without_a_driver(kernel):
    gpu(kernel, driver=None, ids='8086:56c0')
    return (
        {'num_vfs': 2, 'resource_class': 'CUSTOM_V'},
        'no driver that could create VFs',
    )


SITUATIONS = {
    each.__name__: each
    for each in (
        no_vfs,
        vfs_without_files,
        no_driver,
        driver_of_displays,
        vfs_of_vfio,
        no_sriov,
        another_vendor,
        vgpus_are_mdevs,
        no_such_vgpu_type,
        mig_without_instances,
        vgpus_without_a_type,
        no_mdev_parent,
        no_driver_for_mdevs,
        mdevs_are_vgpus,
        no_such_mdev_type,
        a_pf_on_vfio,
        a_pf_without_a_driver,
    )
}


@pytest.fixture
def run(kernel, capsys, monkeypatch):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    path = os_acc.CONF.os_acc.state_path
    return command.Command(path, capsys, monkeypatch)


@pytest.mark.parametrize('situation', SITUATIONS)
def test_everybody_says_why(kernel, run, situation):
    entry, why = SITUATIONS[situation](kernel)
    devices.spec({'address': PF, **entry})
    before = kernel.snapshot()
    (found,) = devices.problems()
    assert PF in found.subject
    assert 'device_spec, entry 1 offers nothing' in found.text
    assert why in f'{found.text}; {found.advice}'
    assert found.advice
    refusal = str(devices.refused(devices.wanted('CUSTOM_V')))
    assert why in refusal
    assert PF in refusal
    listed = run('device', 'list')
    assert 'device_spec, entry 1 offers nothing of' in listed.err
    assert why in listed.err
    dry = run(
        'plug', 'vm', '--dry-run', '--resource-class', 'CUSTOM_V', '-f', 'json'
    )
    (planned,) = dry.json
    assert PF in planned['obstacle']
    assert why in planned['obstacle'] or situation == 'vgpus_without_a_type'
    assert sum(each.handles_free for each in os_acc.get_devices()) == 0
    assert kernel.snapshot() == before


@pytest.mark.parametrize(
    'situation',
    [
        no_vfs,
        vfs_without_files,
        no_driver,
        driver_of_displays,
        vfs_of_vfio,
        no_sriov,
        another_vendor,
        vgpus_are_mdevs,
    ],
)
def test_another_card_that_works_is_given_out(kernel, run, situation):
    """The doctor still says what is wrong with the first one."""
    entry, why = situation(kernel)
    vgpu_card.Card(kernel, OTHER, TYPES, size=4, vfs=2)
    devices.spec(
        {'address': PF, **entry},
        {'address': OTHER, **entry},
    )
    (van,) = os_acc.plug(devices.instance(), [devices.wanted('CUSTOM_V')])
    assert van.device == OTHER
    (found,) = devices.problems()
    assert PF in found.subject
    assert why in f'{found.text}; {found.advice}'


def test_the_default_resource_class(kernel, run):
    no_vfs(kernel)
    devices.spec({'address': PF, 'vgpu_type': 'A40-1Q'})
    text = str(devices.refused(devices.wanted('VGPU')))
    assert f'sriov-manage -e {PF}' in text


def test_what_another_entry_should_offer_is_not_said(kernel, run):
    no_vfs(kernel)
    kernel.add_function(OTHER, '8086:4940', 0x0B4000, 'qat')
    devices.spec(
        {'address': PF, **VGPU},
        {'address': OTHER, 'num_vfs': 2, 'resource_class': 'CUSTOM_Q'},
    )
    text = str(devices.refused(devices.wanted('CUSTOM_Q')))
    assert OTHER in text
    assert PF not in text


def test_a_full_card_offers_something(kernel, run):
    card = vgpu_card.Card(kernel, PF, TYPES, size=1, vfs=2)
    devices.spec({'address': PF, **VGPU})
    card.preset(card.vfs[0], 558)
    assert devices.problems() == []
    text = str(devices.refused(devices.wanted('CUSTOM_V')))
    assert f'GPU {PF}' not in text


def test_the_sound_function_of_a_gpu_is_left_out(kernel, run):
    """An entry for a whole vendor names it, too."""
    vgpu_card.Card(kernel, OTHER, TYPES, size=48, vfs=2)
    kernel.add_function('0000:41:01.0', '10de:10f8', 0x040300)
    no_vfs(kernel)
    devices.spec({'vendor_id': '10de', **VGPU})
    (found,) = devices.problems()
    assert found.subject == f'GPU {PF}'


def test_vfs_that_are_made_on_request(kernel, run):
    """One of them has an entry of its own, and is not there yet."""
    kernel.add_function(PF, '8086:56c0', 0x030200, 'i915', totalvfs=4)
    devices.spec(
        {'address': f'{PF[:-1]}2', 'trusted': True},
        {'address': PF, 'num_vfs': 4},
    )
    assert devices.problems() == []


def test_a_parent_that_is_no_pci_function(kernel, run):
    kernel.add_mtty()
    devices.spec({'address': 'mtty', 'mdev_types': ['mtty-9']})
    (found,) = devices.problems()
    assert found.subject == 'mdev parent mtty'
    assert 'mtty-1, mtty-2' in found.text
    text = str(devices.refused(devices.wanted('CUSTOM_MDEV_MTTY_9')))
    assert 'its mdev types are mtty-1, mtty-2' in text


def test_a_parent_that_is_gone(kernel, run):
    devices.spec({'address': 'mtty', 'mdev_types': ['mtty-1']})
    (found,) = devices.problems()
    assert found.subject == 'device_spec, entry 1'
    text = str(devices.refused(devices.wanted('CUSTOM_MDEV_MTTY_1')))
    assert 'device_spec, entry 1: it names no device of this host' in text


def test_the_class_of_vgpus_that_are_mdevs(kernel, run):
    """It is listed, so it can be requested, and its refusal is true."""
    kernel.add_mdev_parent(gpu(kernel, totalvfs=0), {'nvidia-558': 1}, 1)
    devices.spec({'address': PF, 'mdev_types': ['nvidia-558']})
    (device,) = os_acc.get_devices()
    assert (device.resource_class, device.handles_free) == ('VGPU', 1)
    (van,) = os_acc.plug(devices.instance(), [devices.wanted('VGPU')])
    assert van.driver == 'mdev'
    devices.spec({'address': PF, 'mdev_types': ['nvidia-47']})
    text = str(devices.refused(devices.wanted('VGPU')))
    assert 'nvidia-558' in text


@pytest.mark.parametrize(
    ('entry', 'why'),
    [
        ({'address': PF}, f'no device is at {PF} now'),
        ({'devname': 'ens9'}, 'no PCI function has the interface ens9'),
        ({'vendor_id': '10de'}, 'it names no device of this host'),
    ],
)
def test_what_is_not_there(kernel, run, entry, why):
    devices.spec({**entry, 'resource_class': 'CUSTOM_V'})
    (found,) = devices.problems()
    assert found.subject == 'device_spec, entry 1'
    assert why in found.text
    assert why in str(devices.refused(devices.wanted('CUSTOM_V')))


def test_device_files_that_are_not_there(kernel, run):
    devices.spec({'devices': '/dev/accel/*', 'resource_class': 'CUSTOM_N'})
    (found,) = devices.problems()
    assert 'no device file' in found.text
    text = str(devices.refused(devices.wanted('CUSTOM_N')))
    assert 'its globs name no device file' in text
    assert '/dev/accel/*' in text


@pytest.mark.parametrize(
    ('driver', 'why'), [(None, 'no driver'), ('vfio-pci', 'vfio-pci')]
)
def test_work_queues_without_idxd(kernel, run, driver, why):
    kernel.add_function('0000:6a:01.0', '8086:11fb', 0x088000, driver)
    devices.spec({'idxd': '0000:6a:01.0'})
    (found,) = devices.problems()
    assert f'bound to {why}, and not to the kernel driver idxd' in found.text
    text = str(devices.refused(devices.wanted('CUSTOM_DSA')))
    assert 'modprobe idxd' in text


def test_a_bridge(kernel, run):
    kernel.add_function(PF, '8086:2030', 0x060400)
    devices.spec({'address': PF, 'resource_class': 'CUSTOM_B'})
    (found,) = devices.problems()
    assert 'it is a bridge' in found.text
    assert 'it is a bridge' in str(devices.refused(devices.wanted('CUSTOM_B')))


@pytest.mark.parametrize(
    ('first', 'verb'), [({}, 'names'), ({'deny': True}, 'denies')]
)
def test_another_entry_counts_before_it(kernel, run, first, verb):
    gpu(kernel)
    devices.spec(
        {'vendor_id': '10de', **first},
        {'address': PF, 'resource_class': 'CUSTOM_V'},
    )
    (found,) = devices.problems()
    assert found.subject == 'device_spec, entry 2'
    assert f'device_spec, entry 1 {verb} {PF}' in found.text


def test_a_card_that_cannot_be_read_is_not_called_missing(
    kernel, run, monkeypatch
):
    """The driver reports it as failed, with the file and the error."""
    gpu(kernel)
    devices.spec({'address': PF, **VGPU})
    read = sysfs.read

    def broken(path):
        if path.endswith(f'{PF}/modalias'):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return read(path)

    monkeypatch.setattr(sysfs, 'read', broken)
    assert devices.problems() == []


def test_what_a_van_has_is_offered(kernel, run):
    """The firmware was reset while an instance has a VF of the card."""
    kernel.add_function(PF, '8086:4940', 0x0B4000, 'qat', totalvfs=2)
    devices.spec({'address': PF, 'num_vfs': 2, 'resource_class': 'CUSTOM_V'})
    os_acc.plug(devices.instance(), [devices.wanted('CUSTOM_V')])
    assert devices.problems() == []


def test_entries_that_offer_something(kernel, run):
    devices.furnish(kernel)
    devices.spec(
        {'address': devices.PF, 'num_vfs': 4},
        {'address': devices.GPU},
        {'address': 'mtty', 'mdev_types': ['mtty-1']},
        {'address': '0000:77:00.0', 'deny': True},
    )
    assert nothing_offered.find(device_spec.load(os_acc.CONF)) == []


def test_allow_says_that_there_is_nothing_yet(kernel, run):
    no_vfs(kernel)
    devices.spec({'address': PF, **VGPU})
    out = run.fine('device', 'allow', PF).out
    assert 'is offered by device_spec, entry 1, but there is nothing' in out
    assert f'sriov-manage -e {PF}' in out


ENTRIES = (
    {'vgpu_type': 'A40-1Q'},
    {'vgpu_type': '558'},
    {'mdev_types': ['nvidia-558']},
    {'num_vfs': 2},
    {'num_vfs': 3},
)
cards = st.fixed_dictionaries(
    {
        'ids': st.sampled_from(['10de:2235', '8086:56c0']),
        'pci_class': st.sampled_from([0x030200, 0x120000]),
        'driver': st.sampled_from([None, 'nvidia', 'vfio-pci', 'qat']),
        'totalvfs': st.sampled_from([0, 2, 4]),
    }
)


@given(
    card=cards,
    vfs=st.booleans(),
    files=st.sampled_from([None, '', '558 : A40-1Q\n', '9 : A40-9Q\n']),
    mdevs=st.sampled_from([None, 'PF', 'VF']),
    kind=st.sampled_from(['nvidia-558', 'nvidia-47']),
    entry=st.sampled_from(ENTRIES),
    address=st.sampled_from([PF, '*', '0001:c8:*']),
)
@settings(
    max_examples=examples.costly(50),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_an_entry_offers_something_or_the_doctor_says_why(
    kernel, card, vfs, files, mdevs, kind, entry, address
):
    """Whatever the card, its driver and its software look like."""
    if (kernel.pci / 'devices' / PF).exists():
        for link in (kernel.sys / 'class/mdev_bus').iterdir():
            link.unlink()
        kernel.take_off(PF)
    path = kernel.add_function(PF, **card)
    vf = kernel.pci / 'devices' / f'{PF[:-1]}1'
    if card['totalvfs'] and vfs:
        kernel.set_numvfs(PF, 2)
        if files is not None and card['driver'] == 'nvidia':
            (vf / 'nvidia').mkdir()
            (vf / 'nvidia/current_vgpu_type').write_text('0\n')
            (vf / 'nvidia/creatable_vgpu_types').write_text(files)
        if mdevs == 'VF':
            kernel.add_mdev_parent(vf.resolve(), {kind: 1}, 4)
    if mdevs == 'PF':
        kernel.add_mdev_parent(path, {kind: 1}, 4)
    devices.spec({'address': address, **entry, 'resource_class': 'CUSTOM_V'})
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize(reset=True)
    found = os_acc.get_devices()
    offered = sum(each.handles_free for each in found)
    problems = devices.problems()
    assert bool(offered) != bool(problems), (found, problems)
    if problems:
        text = str(devices.refused(devices.wanted('CUSTOM_V')))
        for each in problems:
            reason = each.text.partition('offers nothing of it: ')[2]
            assert (reason or each.text) in text
    else:
        os_acc.unplug(_plugged())


def _plugged():
    instance = devices.instance()
    os_acc.plug(instance, [devices.wanted('CUSTOM_V')])
    return instance
