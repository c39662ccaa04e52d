# SPDX-License-Identifier: Apache-2.0

"""os-acc device show and doctor: what an operator is told at night."""

from __future__ import annotations

import os
import re
import subprocess

import command
import devices
import pytest

import os_acc
from os_acc.kernel import file_system
from os_acc.kernel import open_files
from os_acc.kernel import sysfs
from os_acc.privileged import context
from os_acc.privileged import offers
from os_acc.privileged import root_folder
from os_acc.refusals import refusals

CHECK_USERS = context.check_users


@pytest.fixture
def here(kernel, monkeypatch):
    devices.furnish(kernel)
    offered = (devices.PF, devices.GPU, devices.NIC, devices.DISK, 'mtty')
    devices.spec(*({'address': address} for address in offered))
    kernel.modules(
        'kernel/drivers/vfio/pci/vfio-pci.ko.xz',
        'kernel/drivers/vfio/mdev/mdev.ko',
    )
    monkeypatch.setattr(context, 'whoami', lambda: (0, []))
    monkeypatch.setattr(context, 'check_users', lambda: None)
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    return kernel


@pytest.fixture
def run(here, capsys, monkeypatch):
    """Run the command on the state of this test."""
    path = os_acc.CONF.os_acc.state_path
    made = command.Command(path, capsys, monkeypatch)

    def run(*arguments: str):
        result = made(*arguments, '-f', 'json')
        return result.code, result.json if result.out else result.err

    run.command = made
    return run


@pytest.fixture
def findings(run):
    """What doctor says of a subject: verdict, finding, advice."""

    def findings(*arguments: str, code: int = 0):
        got, rows = run('doctor', *arguments)
        assert got == code
        found: dict[str, list[tuple[str, str, str]]] = {}
        for row in rows:
            found.setdefault(row['subject'], []).append(
                (row['verdict'], row['finding'], row['what_to_do'])
            )
        return found

    return findings


def one(found, subject):
    (only,) = found[subject]
    return only


def test_a_host_that_is_well(here, findings):
    found = findings()
    assert {v for rows in found.values() for v, _, _ in rows} == {'ok'}
    assert one(found, 'IOMMU')[1].startswith('on: ')
    assert one(found, 'kernel module vfio-pci')[1] == 'loaded'
    gpu = one(found, f'PCI function {devices.GPU}')
    assert gpu == ('ok', '10de:1eb8: free', '')
    assert one(found, 'mdev parent mtty')[1].startswith('mtty-1: 24 more')
    assert one(found, 'privsep daemon')[0] == 'ok'


def test_an_iommu_group_that_the_host_uses(here, findings):
    devices.spec({'address': devices.SHARED})
    verdict, text, _ = one(findings(), f'PCI function {devices.SHARED}')
    assert verdict == 'warning'
    assert 'IOMMU group 50 also contains 0000:06:00.1' in text


def test_what_no_guest_can_use(here, findings):
    raid = '0000:7b:00.0'
    here.add_function(raid, '1000:10e2', 0x010400, 'megaraid_sas')
    devices.spec({'address': raid})
    verdict, _, advice = one(findings(), f'PCI function {raid}')
    assert verdict == 'warning'
    assert advice == refusals.STORES_NO_COMMAND.remedy


def test_what_an_instance_has_needs_no_advice(here, findings):
    devices.spec({'address': devices.GPU})
    os_acc.plug(devices.instance(), [devices.pci(devices.GPU)])
    verdict, _, advice = one(findings(), f'PCI function {devices.GPU}')
    assert (verdict, advice) == ('ok', '')


def test_nothing_is_offered(here, findings):
    devices.spec()
    found = findings()
    verdict, text, advice = one(found, 'device_spec')
    assert verdict == 'warning'
    assert 'no device of this host is offered' in text
    assert 'os-acc device spec' in advice
    assert not any(subject.startswith('PCI function') for subject in found)


def test_the_daemon_refuses_device_spec(here, findings, monkeypatch):
    def refuse():
        raise os_acc.exception.InvalidRequest(
            subject='/etc/x', field='owner', value='user id 7', expected='root'
        )

    monkeypatch.setattr(offers, 'count', refuse)
    found = findings(code=1)
    verdict, text, advice = one(found, 'privsep daemon: device_spec')
    assert verdict == 'error'
    assert "/etc/x: owner is 'user id 7'" in text
    assert 'The privileged half' in advice


def test_the_daemon_reads_another_device_spec(here, findings, monkeypatch):
    monkeypatch.setattr(offers, 'count', lambda: 1)
    verdict, text, advice = one(findings(), 'privsep daemon: device_spec')
    assert verdict == 'warning'
    assert 'it reads 1 entries, but this process reads 5' in text
    assert 'configuration files' in advice


def test_it_looks_only(here, findings):
    os_acc.plug(devices.instance(), [devices.pci(devices.GPU)])
    here.writes.clear()
    before = here.snapshot()
    vans = os_acc.get_vans()
    findings()
    assert here.writes == []
    assert here.snapshot() == before
    assert os_acc.get_vans() == vans


def test_what_a_guest_has(here, findings):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(devices.GPU)])
    text = one(findings(), f'PCI function {devices.GPU}')[1]
    assert instance.uuid in text
    assert van.uuid in text


def test_problems_only(here, findings):
    assert findings('--problems') == {}


def test_no_iommu(here, findings):
    for group in (here.sys / 'kernel/iommu_groups').iterdir():
        group.rename(here.root / group.name)
    found = findings(code=1)
    verdict, text, advice = one(found, 'IOMMU')
    assert verdict == 'error'
    assert 'off' in text
    assert 'intel_iommu=on' in advice


def test_vfio_without_an_iommu(here, findings):
    name = 'enable_unsafe_noiommu_mode'
    here.write_file(f'sys/module/vfio/parameters/{name}', 'Y\n')
    verdict, text, _ = one(findings(code=1), 'kernel module vfio')
    assert verdict == 'error'
    assert name in text


@pytest.mark.parametrize(
    'names, verdict',
    [
        (['kernel/drivers/vfio/pci/vfio_pci.ko'], 'ok'),
        (['kernel/drivers/net/tun.ko'], 'error'),
    ],
)
def test_the_module_is_not_loaded(here, findings, names, verdict):
    (here.pci / 'drivers/vfio-pci').rename(here.root / 'vfio-pci')
    here.modules(*names)
    found = findings(code=int(verdict == 'error'))
    assert one(found, 'kernel module vfio-pci')[0] == verdict


def test_the_daemon_is_not_to_be_had(findings, monkeypatch):
    def fail():
        raise os_acc.exception.PrivilegeError(reason='sudo says no')

    monkeypatch.setattr(context, 'whoami', fail)
    verdict, text, advice = one(findings(code=1), 'privsep daemon')
    assert verdict == 'error'
    assert 'sudo says no' in text
    assert 'allow user id' in advice


@pytest.mark.parametrize(
    'who, says',
    [
        ((1000, []), 'user id 1000'),
        ((0, ['CAP_SYS_PTRACE']), 'lacks CAP_SYS_PTRACE'),
    ],
)
def test_the_daemon_may_too_little(findings, monkeypatch, who, says):
    monkeypatch.setattr(context, 'whoami', lambda: who)
    verdict, text, _ = one(findings(code=1), 'privsep daemon')
    assert verdict == 'error'
    assert says in text


@pytest.mark.parametrize('refused', ['readlink', 'listdir'])
def test_the_daemon_cannot_see_who_has_a_device_open(
    findings, monkeypatch, refused
):
    """It has its capabilities, as in some containers."""
    real = getattr(os, refused)

    def refuse(path, *args, **kwargs):
        if re.search(r'/proc/.*/fd(/\d+)?$', str(path)):
            raise PermissionError(13, 'Permission denied', path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(context, 'check_users', CHECK_USERS)
    here = subprocess.Popen(['sleep', '60'])
    try:
        with monkeypatch.context() as patch:
            patch.setattr(sysfs, 'PROC', '/proc')
            patch.setattr(os, refused, refuse)
            patch.setattr(open_files, 'check_all_seen', lambda: None)
            with pytest.raises(os_acc.exception.PrivilegeError) as caught:
                context.check_users()
    finally:
        here.kill()
        here.wait()

    def fail():
        raise caught.value

    monkeypatch.setattr(context, 'check_users', fail)
    verdict, text, advice = one(findings(code=1), 'privsep daemon')
    assert verdict == 'error'
    assert 'every plug will fail' in text
    assert 'cannot be read' in text
    assert 'CAP_' not in text + advice


def test_the_record_is_not_roots_alone(findings, here):
    os.makedirs(root_folder.PATH)
    os.chmod(root_folder.PATH, 0o777)
    verdict, text, advice = one(
        findings(code=1), 'record of the privsep daemon'
    )
    assert verdict == 'error'
    assert f'{root_folder.PATH}: users other than its owner' in text
    assert 'remove it' in advice


def test_who_the_daemon_is_is_read_from_the_kernel(here):
    user, missing = context.whoami()
    assert isinstance(user, int)
    assert set(missing) <= {
        'CAP_SYS_PTRACE',
        'CAP_DAC_READ_SEARCH',
        'CAP_NET_ADMIN',
        'CAP_CHOWN',
        'CAP_FOWNER',
    }


def test_device_spec_and_what_is_here(here, findings):
    (here.sys / 'class/net/eth0/flags').write_text('0x1003\n')
    devices.spec(
        {'address': devices.PF, 'num_vfs': 9},
        {'address': devices.NIC},
        {'address': devices.GPU, 'reset': 'required', 'num_vfs': 2},
        {'address': '0000:99:00.0'},
        {'address': 'mtty'},
    )
    found = findings(code=1)
    assert one(found, f'PF {devices.PF}')[1] == (
        'device_spec, entry 1 offers nothing of it: num_vfs is 9, but it can '
        'have only 4 VFs'
    )
    verdict, text, advice = one(found, f'PCI function {devices.NIC}')
    assert verdict == 'warning'
    assert 'interface eth0 is up' in text
    assert 'ip link set eth0 down' in advice
    assert advice.endswith('or remove it from device_spec')
    assert [row[0] for row in found[f'PCI function {devices.GPU}']] == [
        'ok',
        'error',
    ]
    assert 'does not support SR-IOV' in one(found, f'PF {devices.GPU}')[1]
    assert one(found, 'device_spec, entry 4')[0] == 'warning'
    assert 'device_spec, entry 5' not in found


@pytest.mark.parametrize('made', [False, True])
def test_pyroute2_for_vfs_of_nics(here, findings, monkeypatch, made):
    pf = '0000:08:00.0'
    here.add_function(pf, '8086:1572', 0x020000, 'i40e', totalvfs=2, net='p0')
    subject = 'Python package pyroute2'
    devices.spec({'address': pf}, {'address': devices.PF, 'num_vfs': 2})
    assert subject not in findings()
    if made:
        here.write(str(here.pci / 'devices' / pf / 'sriov_numvfs'), '2')
    else:
        devices.spec({'address': pf, 'num_vfs': 2})
    assert one(findings(), subject)[:2] == ('ok', 'installed')
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    verdict, text, advice = one(findings(), subject)
    assert verdict == 'warning'
    assert 'VFs of NICs' in text
    assert 'os-acc[nic]' in advice


def test_each_module_is_checked_once(here, findings):
    here.add_function('0000:60:00.0', '15b3:101e', 0x020000, 'mlx5_core')
    here.add_driver('mlx5_vfio_pci')
    here.aliases('vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci')
    for names in ([devices.GPU], ['0000:60:00.0'], [devices.GPU, '0000:60:*']):
        devices.spec(*({'address': name} for name in names))
        found = findings(code=0)
        modules = [name for name in found if name.startswith('kernel module ')]
        assert 'kernel module vfio-pci' in modules
        assert ('kernel module mlx5_vfio_pci' in modules) == (
            '0000:60' in names[-1]
        )
        for name in modules:
            one(found, name)


def kept(found, driver):
    """What is said of a driver whose check another one's error stopped."""
    (text,) = [
        row[1]
        for subject, rows in found.items()
        for row in rows
        if driver in subject.split(', ') and 'not fully checked' in row[1]
    ]
    return text


def test_device_spec_that_cannot_be_read(findings):
    os_acc.CONF.set_override('device_spec', ['{"adress": "x"}'], 'os_acc')
    found = findings(code=1)
    verdict, text, _ = one(found, 'device_spec')
    assert verdict == 'error'
    assert 'adress' in text
    assert 'device_spec has the error' in kept(found, 'driver pci')


@pytest.mark.parametrize(
    'there, wanted, verdict',
    [(0, 2, 'ok'), (2, 2, 'ok'), (3, 2, 'warning')],
)
def test_vfs(here, findings, there, wanted, verdict):
    devices.spec({'address': devices.PF, 'num_vfs': wanted})
    if there:
        here.write(
            str(here.pci / 'devices' / devices.PF / 'sriov_numvfs'), str(there)
        )
    found = findings()
    assert one(found, f'PF {devices.PF}')[0] == verdict
    assert one(found, f'PCI function {devices.PF}')[0] == 'ok'


def test_a_pf_without_a_driver(here, findings):
    devices.spec({'address': devices.PF, 'num_vfs': 2})
    here.write(str(here.pci / 'drivers/qat/unbind'), devices.PF)
    assert 'no driver' in one(findings(code=1), f'PF {devices.PF}')[1]


def test_bound_by_somebody_else(here, findings):
    devices.spec({'address': devices.GPU})
    here.write(
        str(here.pci / 'devices' / devices.GPU / 'driver_override'), 'vfio-pci'
    )
    here.write(str(here.pci / 'drivers_probe'), devices.GPU)
    verdict, text, advice = one(findings(), f'PCI function {devices.GPU}')
    assert verdict == 'warning'
    assert 'no VAN has it' in text
    assert 'driverctl' in advice
    devices.spec({'address': devices.GPU, 'managed': 'no'})
    found = one(findings(), f'PCI function {devices.GPU}')
    assert found[:2] == ('ok', '10de:1eb8: free')


def test_an_mdev_of_somebody_else(here, findings):
    name = 'cf6a7b8c-1111-4222-8333-444455556666'
    kind = here.sys / 'class/mdev_bus/mtty/mdev_supported_types/mtty-2'
    here.write(str(kind / 'create'), name)
    verdict, _, advice = one(findings(), f'mdev {name}')
    assert verdict == 'warning'
    assert name in advice


def test_vans(here, findings):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(devices.GPU)])
    here.boot()
    assert sysfs.boot_id() != van.boot_id
    verdict, text, advice = one(findings(), f'VAN {van.uuid}')
    assert verdict == 'warning'
    assert 'rebooted' in text
    assert 'os-acc recover' in advice


def test_a_van_in_error(here, findings):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(devices.DISK)])
    process = here.hold(here.node(devices.DISK), 'qemu-system-x86')
    with pytest.raises(os_acc.exception.UnplugException):
        os_acc.unplug(instance)
    verdict, text, advice = one(findings(code=1), f'VAN {van.uuid}')
    assert verdict == 'error'
    assert str(process) in text
    assert instance.uuid in advice


def test_a_plugin_that_is_not_there(findings):
    os_acc.CONF.set_override('plugin', 'nosuch', 'os_acc')
    verdict, text, _ = one(findings(code=1), 'plugin nosuch')
    assert verdict == 'error'
    assert 'libvirt' in text


# --- device show


def test_show_a_function(here, run):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(devices.GPU)])
    code, told = run('device', 'show', devices.GPU)
    assert code == 0
    assert told['address'] == devices.GPU
    assert told['kernel_driver'] == 'vfio-pci'
    assert told['numa_node'] == 1
    assert told['resource_class'] == 'PGPU'
    assert instance.uuid in told['status']
    assert told['vans'] == [f'{van.uuid} of instance {instance.uuid}: plugged']


def test_show_a_pf_and_its_vf(here, run):
    devices.spec({'address': devices.PF, 'num_vfs': 2})
    os_acc.plug(devices.instance(), [devices.pci(devices.VFS[1])])
    _, pf = run('device', 'show', devices.PF)
    assert pf['vfs'] == devices.VFS[:2]
    assert pf['vfs_possible'] == 4
    assert pf['handles_free'] == 1
    _, vf = run('device', 'show', devices.VFS[1])
    assert vf['pf'] == devices.PF
    assert vf['in_device_spec'] is True


def test_show_the_pcie_link(here, run):
    devices.spec({'address': devices.PF, 'num_vfs': 2})
    os_acc.plug(devices.instance(), [devices.pci(devices.VFS[1])])

    def shown(address, *link):
        """What is shown once its files have these values."""
        names = ('current_link_width', 'max_link_width', 'current_link_speed')
        for name, value in zip(names, link, strict=False):
            path = here.pci / 'devices' / address / name
            path.write_text(f'{value}\n')
        told = run('device', 'show', address)[1]
        keys = ('pcie_width', 'pcie_width_possible', 'pcie_speed')
        return tuple(told[key] for key in keys)

    none = (None, None, None)
    assert shown(devices.PF) == none  # it is a function of conventional PCI
    link = (1, 16, '8.0 GT/s PCIe')
    assert shown(devices.PF, *link) == link
    # A VF shows no link of its own.
    assert shown(devices.VFS[1], 0, 16, 'Unknown') == link
    # A part of the root complex, as Linux 6.1 and 5.4 show it.
    assert shown(devices.GPU, 0, 255, 'Unknown') == none
    assert shown(devices.GPU, 0, 255, 'Unknown speed') == none


def test_show_a_vf_of_a_nic(here, run):
    pf, vf = '0000:08:00.0', '0000:08:00.1'
    path = here.add_function(
        pf, '8086:1572', 0x020000, 'i40e', totalvfs=1, net='p0'
    )
    devices.spec({'address': pf, 'num_vfs': 1, 'physical_network': 'physnet1'})
    here.write(f'{path}/sriov_numvfs', '1')
    _, told = run('device', 'show', vf)
    assert told['physical_network'] == 'physnet1'
    assert told['representor'] is None
    here.add_net(path, 'eth7')
    for name, port in (('p0', 'p0'), ('eth7', 'pf0vf0')):
        (path / 'net' / name / 'phys_switch_id').write_text('b8cef6\n')
        (path / 'net' / name / 'phys_port_name').write_text(f'{port}\n')
    _, told = run('device', 'show', vf)
    assert told['representor'] == 'eth7'


def test_show_why_the_host_keeps_one(here, run):
    (here.sys / 'class/net/eth0/flags').write_text('0x1003\n')
    _, told = run('device', 'show', devices.NIC)
    assert 'interface eth0 is up' in told['status']


def test_show_a_parent_and_its_mdev(here, run):
    instance = devices.instance()
    request = devices.mdev('mtty-2')
    os_acc.plug(instance, [request])
    _, parent = run('device', 'show', 'mtty')
    name = request.handle.uuid
    (told,) = parent['mediated_devices']
    assert told.startswith(f'{name} (mtty-2): VAN ')
    _, own = run('device', 'show', name)
    assert own['parent'] == 'mtty'
    assert own['mdev_type'] == 'mtty-2'
    assert instance.uuid in own['status']


def test_show_a_vendor_vgpu(here, run):
    here.add_function('0000:07:00.0', '10de:2235', 0x030200, 'nvidia')
    directory = here.pci / 'devices/0000:07:00.0/nvidia'
    directory.mkdir()
    (directory / 'current_vgpu_type').write_text('558\n')
    (directory / 'creatable_vgpu_types').write_text('558 : NVIDIA A40-1B\n')
    _, told = run('device', 'show', '0000:07:00.0')
    assert told['vgpu_type'] == 558
    assert told['vgpu_types_possible'] == ['558 (NVIDIA A40-1B)']


@pytest.mark.parametrize('address', ['0000:99:00.0', 'nothing', '../etc'])
def test_show_what_is_not_there(run, address):
    code, err = run('device', 'show', address)
    assert code == 4
    assert err.startswith('DeviceNotFound: ')
    assert address in err


def test_an_option_that_cannot_be_read(findings):
    os_acc.CONF.set_override('lock_path', 'here', 'os_acc')
    found = findings(code=1)
    assert list(found) == ['configuration']
    verdict, text, advice = one(found, 'configuration')
    assert verdict == 'error'
    assert text.startswith("[os_acc] lock_path: it is 'here', expected")
    assert advice == 'fix this first: nothing else was checked'


def test_an_option_that_is_no_number(run, tmp_path):
    """Without this option nothing could be opened at all."""
    path = tmp_path / 'os-acc.conf'
    path.write_text('[os_acc]\njournal_timeout = soon\n')
    code, rows = run('--config-file', path, 'doctor')
    assert code == 1
    (row,) = rows
    assert (row['subject'], row['verdict']) == ('configuration', 'error')
    assert row['finding'].startswith(f'[os_acc] journal_timeout in {path}:2: ')


def test_a_preferred_driver_that_is_not_there(findings):
    os_acc.CONF.set_override('drivers', ['pci', 'gpu'], 'os_acc')
    verdict, text, advice = one(findings(), 'driver gpu')
    assert verdict == 'warning'
    assert text.startswith('[os_acc] drivers names it, but it is not loaded')
    assert advice == 'install it, or correct the name'


@pytest.fixture
def damaged(kernel):
    """The state path, with a journal that is no database."""
    os_acc._host.close()
    state = os_acc.CONF.os_acc.state_path
    with open(f'{state}/journal.db', 'wb') as file:
        file.write(b'not a database' * 100)
    return state


def test_a_damaged_journal_hides_nothing_else(findings, damaged):
    state, found = damaged, findings(code=1)
    verdict, text, advice = one(found, f'state path {state}')
    assert verdict == 'error'
    assert 'it is damaged: file is not a database' in text
    assert f'--state-path {state} recover --rebuild' in text
    assert advice.startswith('do what the error says')
    assert one(found, 'IOMMU')[0] == 'ok'


def test_a_damaged_journal_is_told_once(findings, damaged):
    """Each driver reads the journal, and none can."""
    found = findings(code=1)
    said = [
        row
        for rows in found.values()
        for row in rows
        if 'it is damaged:' in row[1]
    ]
    assert len(said) == 1
    for name in ('driver mdev', 'driver pci'):
        assert f'state path {damaged} has the error' in kept(found, name)


def test_a_state_path_that_cannot_be_made(findings, run, tmp_path):
    (tmp_path / 'file').touch()
    path = run.command.state_path = f'{tmp_path}/file/state'
    verdict, text, advice = one(findings(code=1), f'state path {path}')
    assert verdict == 'error'
    assert f'it cannot be created: {tmp_path}/file is not a directory' in text
    assert advice.startswith('create the directory')


def test_a_state_path_that_may_not_be_written(
    findings, run, tmp_path, monkeypatch
):
    path = run.command.state_path = f'{tmp_path}/no/state'
    monkeypatch.setattr('os.access', lambda *_: False)
    text = one(findings(code=1), f'state path {path}')[1]
    assert f'may not write to {tmp_path}' in text


def status_of(run, address: str) -> str:
    code, shown = run('device', 'show', address)
    assert code == 0
    assert shown['in_device_spec'] is False
    return shown['status']


def test_show_what_is_not_offered(here, run):
    devices.spec()
    status = status_of(run, devices.GPU)
    assert f'device_spec = {{"address": "{devices.GPU}", "ven' in status
    # To offer it would not help.
    (here.sys / 'class/net/eth0/flags').write_text('0x1003\n')
    assert status_of(run, devices.NIC) == (
        'the host uses it, so it is never assigned: interface eth0 is up'
    )


def test_show_what_is_denied_while_an_instance_has_it(here, run):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    devices.spec({'address': '*', 'deny': True})
    assert instance.uuid in status_of(run, devices.GPU)
    assert os_acc.unplug(instance) == 1


@pytest.mark.parametrize(
    ('kind', 'text'),
    [
        ('tmpfs', 'gone after a reboot'),
        ('overlay', 'of a container'),
        ('nfs4', 'SQLite'),
        ('fuse.glusterfs', 'SQLite'),
        ('fuse.fuse-overlayfs', 'of a container'),
        ('cifs', 'SQLite'),
        ('ext4', None),
        ('btrfs', None),
        ('zfs', None),
    ],
)
def test_the_file_system_of_the_journal(findings, monkeypatch, kind, text):
    monkeypatch.setattr(file_system, 'type_of', lambda path: kind)
    path = os_acc.CONF.os_acc.state_path
    found = findings().get(f'file system of the journal {path}', [])
    assert [(v, text in said) for v, said, _ in found] == (
        [] if text is None else [('warning', True)]
    )


@pytest.mark.parametrize(
    ('size', 'inodes', 'free_inodes', 'text'),
    [
        (50 * 2**20, 5000, 1000, None),
        (50 * 2**20 - 4096, 5000, 1000, 'only 49 MiB free'),
        (2**30, 5000, 999, 'only 1024 MiB and 999 inodes free'),
        (2**30, 0, 0, None),
    ],
)
def test_the_space_for_the_journal(
    findings, monkeypatch, size, inodes, free_inodes, text
):
    path = os_acc.CONF.os_acc.state_path
    disk = list(os.statvfs(path))
    disk[1], disk[4] = 4096, size // 4096
    disk[5], disk[7] = inodes, free_inodes
    monkeypatch.setattr(os, 'statvfs', lambda path: os.statvfs_result(disk))
    found = findings().get(f'file system of the journal {path}', [])
    assert [(v, text in said) for v, said, _ in found] == (
        [] if text is None else [('warning', True)]
    )
