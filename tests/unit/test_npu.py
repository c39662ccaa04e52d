# SPDX-License-Identifier: Apache-2.0

"""The driver npu, by os_acc's own calls, on a kernel of files."""

from __future__ import annotations

from concurrent import futures
import errno
import json
import uuid

import accel_model
import command
import device_nodes
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import health
from os_acc import objects
from os_acc.kernel import open_files
from os_acc.kernel import sysfs
from os_acc.privileged import container_specs
from os_acc.privileged import file_owners
from os_acc.privileged import notes
from os_acc.privileged.npu import devices as privileged
from os_acc.spec import device_spec

NPU, OTHER = '0000:00:0b.0', '0000:c5:00.1'
NAME = f'{NPU}+npu=whole'


@pytest.fixture
def model(kernel, monkeypatch):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.CONF.set_override('device_timeout', 60.0, 'os_acc')
    os_acc.CONF.set_override('release_timeout', 0.0, 'os_acc')
    nodes = device_nodes.Nodes(kernel)
    nodes.install(monkeypatch)
    return accel_model.Accel(kernel, nodes)


@pytest.fixture
def npu(model):
    model.add(NPU)
    devices.spec({'npu': {'owner': 1001, 'group': 1002, 'mode': '0600'}})
    os_acc.initialize()
    return model


@pytest.fixture
def run(npu, capsys, monkeypatch):
    path = os_acc.CONF.os_acc.state_path
    return command.Command(path, capsys, monkeypatch)


def wanted(*traits):
    return devices.wanted('CUSTOM_NPU', *traits)


def named(name=NAME):
    handle = objects.DeviceFileHandle(name=name, files=[])
    return objects.AcceleratorRequest(uuid=str(uuid.uuid4()), handle=handle)


def plug(request=None):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [request or wanted()])
    return instance, van


def cause(instance):
    """Unplug in vain. Returns why."""
    with pytest.raises(exception.UnplugException) as caught:
        os_acc.unplug(instance)
    return caught.value.__cause__


def noted():
    """What root has noted and recorded."""
    return [
        *notes.files.names(),
        *file_owners.changes.names(),
        *privileged.resets.names(),
    ]


def rebinds(kernel):
    return [
        (name.rpartition('/')[2], text)
        for name, text in kernel.writes
        if name.startswith('sys/bus/pci/drivers/')
    ]


# --- plug and unplug


def test_plug_and_unplug(npu, kernel):
    before, number = npu.snapshot(), npu.number(NPU)
    instance, van = plug()
    assert (van.driver, van.device) == ('npu', NPU)
    assert van.handle.identity == f'file/{NAME}'
    (file,) = van.handle.files
    assert file.path == npu.path(NPU)
    assert f'{file.type} {file.major}:{file.minor}' == number
    assert npu.of(NPU) == (1001, 1002, 0o600)
    assert rebinds(kernel) == []
    assert os_acc.unplug(instance) == 1
    assert rebinds(kernel) == [('unbind', NPU), ('bind', NPU)]
    assert npu.number(NPU) != number
    assert npu.snapshot() == before
    assert noted() == []


def test_the_owner_stays_if_the_entry_sets_none(npu):
    devices.spec({'npu': {}, 'address': NPU})
    before = npu.of(NPU)
    instance, _ = plug(named())
    assert npu.of(NPU) == before
    os_acc.unplug(instance)


def test_class_and_traits_of_the_entry(npu):
    devices.spec(
        {'npu': {}, 'resource_class': 'CUSTOM_A', 'traits': ['CUSTOM_B']}
    )
    (device,) = os_acc.get_devices()
    assert device.resource_class == 'CUSTOM_A'
    assert set(device.traits) >= {'CUSTOM_B', 'CUSTOM_PCI_PRODUCT_7D1D'}
    instance, _ = plug(devices.wanted('CUSTOM_A', 'CUSTOM_B'))
    os_acc.unplug(instance)
    with pytest.raises(exception.NoMatchingDriver):
        plug()


def test_the_number_of_the_next_van_is_new(npu):
    """It is found by the PCI address after each rebind."""
    seen = set()
    for _ in range(3):
        instance, van = plug()
        seen.add(van.handle.files[0].path)
        os_acc.unplug(instance)
    assert len(seen) == 3


def test_the_device_is_cleaned_before_it_is_reset(npu, kernel, tmp_path):
    log = tmp_path / 'log'
    text = f'sh -c "echo {{address}} > {log}"'
    os_acc.CONF.set_override('cleaning_command', text, 'os_acc')
    instance, _ = plug()
    os_acc.unplug(instance)
    assert log.read_text() == f'{NPU}\n'
    os_acc.CONF.set_override('cleaning_command', 'false', 'os_acc')
    instance, _ = plug()
    writes = len(rebinds(kernel))
    assert isinstance(cause(instance), exception.CleaningFailed)
    assert len(rebinds(kernel)) == writes
    assert isinstance(devices.refused(wanted()), exception.DeviceNotFound)


# --- refusals


def not_offered(model):
    devices.spec({'address': NPU}, {'npu': {}})


def denied(model):
    devices.spec({'npu': {}}, {'address': NPU, 'deny': True})


def no_driver(model):
    model.kernel.write(f'{model.kernel.pci}/drivers/intel_vpu/unbind', NPU)


def makes_no_file(model):
    model.broken.add(NPU)
    model.sync()


def nobody(model):
    devices.spec({'npu': {'owner': 'nobody-of-that-name'}})


def no_group(model):
    devices.spec({'npu': {'group': 'no-group-of-that-name'}})


def of_a_pf(model):
    model.kernel.add_function(OTHER, '8086:7d1d', 0x120000, totalvfs=2)
    model.kernel.file(NPU, 'physfn').symlink_to(
        model.kernel.pci / 'devices' / OTHER
    )


def with_vfs(model):
    directory = model.kernel.file(NPU, '')
    (directory / 'sriov_totalvfs').write_text('4\n')
    for number in range(2):
        (directory / f'virtfn{number}').symlink_to(directory)


def an_interface(model):
    path = model.kernel.file(NPU, '').resolve()
    model.kernel.add_net(path, 'eth9')
    (path / 'net/eth9/flags').write_text('0x1003\n')


def failed(model):
    health.mark(os_acc._get().journal, NPU, 'test', 'it has failed')


def no_answer(model):
    model.kernel.file(NPU, 'config').write_bytes(b'\xff' * 64)


@pytest.mark.parametrize(
    ('prepare', 'kind', 'text'),
    [
        (
            not_offered,
            exception.DeviceNotFound,
            'does not offer its device file as an NPU: add an entry such as '
            'device_spec = {"npu": {}, "address": "0000:00:0b.0", '
            '"vendor_id": "8086", "product_id": "7d1d"}',
        ),
        (denied, exception.DeviceNotFound, 'does not offer its device file'),
        (
            no_driver,
            exception.DeviceError,
            'it is bound to no driver, which creates no file below /dev/accel',
        ),
        (
            makes_no_file,
            exception.DeviceError,
            'it is bound to intel_vpu, which creates no file below /dev/accel',
        ),
        (nobody, exception.DeviceError, 'the user nobody-of-that-name'),
        (no_group, exception.DeviceError, 'the group no-group-of-that-name'),
        (
            of_a_pf,
            exception.DeviceError,
            f'it is a VF of {OTHER}, and os-acc assigns NPUs as whole',
        ),
        (with_vfs, exception.DeviceBusy, 'it is a PF that has 2 VFs'),
        (
            an_interface,
            exception.DeviceInUseByHost,
            'eth9 is up',
        ),
        (failed, exception.DeviceUnhealthy, 'it has failed'),
        (no_answer, exception.DeviceError, 'does not answer'),
    ],
)
def test_what_is_refused(npu, prepare, kind, text):
    prepare(npu)
    before = npu.snapshot()
    error = devices.refused(named())
    assert isinstance(error.__cause__ or error, kind), error
    assert text in str(error)
    assert npu.snapshot() == before
    assert noted() == []
    found = [each for each in os_acc.get_devices() if each.driver == 'npu']
    assert not any(each.handles_free for each in found)


def test_root_looks_for_what_others_use_exclusively(npu, monkeypatch):
    monkeypatch.setattr(open_files, 'exclusively_used', lambda names: ['sdx'])
    error = devices.refused(named())
    assert isinstance(error, exception.DeviceInUseByHost)
    assert 'opened block device sdx exclusively' in str(error)


def test_a_pf_without_vfs_is_given_out(npu, kernel):
    (kernel.file(NPU, '') / 'sriov_totalvfs').write_text('4\n')
    instance, _ = plug()
    os_acc.unplug(instance)


def test_the_doctor_says_why_an_entry_offers_nothing(npu):
    makes_no_file(npu)
    (found,) = devices.problems()
    assert 'which creates no file below /dev/accel' in found.text
    assert os_acc.get_devices().__len__() == 0
    error = devices.refused(wanted())
    assert 'which creates no file below /dev/accel' in str(error)


def test_a_platform_device_is_refused(npu):
    path = npu.add_platform('fdab0000.npu')
    devices.spec({'npu': {}, 'address': 'fdab0000.npu'})
    (found,) = devices.problems()
    text = (
        'fdab0000.npu is not a PCI function, and os-acc resets an NPU '
        'between two tenants by binding its PCI function again: if the next '
        'tenant may get it without a reset, offer its file with "devices": '
        f'"{path}"'
    )
    assert text in found.text
    assert text in str(devices.refused(wanted()))
    # An entry for another device says nothing of this one.
    devices.spec({'npu': {}, 'address': 'fdab0001.npu'})
    assert 'fdab0000.npu' not in str(devices.refused(wanted()))
    devices.spec({'devices': path})
    instance, van = plug(devices.wanted('CUSTOM_FILE_ACCEL'))
    assert van.driver == 'devfile'
    os_acc.unplug(instance)


@pytest.mark.parametrize('when', ['first', 'meanwhile'])
def test_a_file_that_a_process_has_open(npu, kernel, when):
    """Before its owner is changed, or while it is."""
    if when == 'first':
        npu.hold(NPU, 'jupyter')
    else:
        kernel.fail('*/chown', lambda: npu.hold(NPU, 'jupyter'))
    before = npu.snapshot()
    error = devices.refused(named())
    assert isinstance(error, exception.DeviceBusy)
    assert '(jupyter) has ' in str(error)
    assert '/dev/accel/accel0 open' in str(error)
    assert npu.snapshot() == before
    assert noted() == []
    assert rebinds(kernel) == []


def test_another_file_of_the_function_is_open(npu, kernel):
    """Such as the render node of a driver that makes one, too."""
    directory = f'pci0000:00/{NPU}/drm/renderD128'
    npu.nodes.add('dri/renderD128', 'c 226:128', directory, 'drm')
    uevent = kernel.sys / 'devices' / directory / 'uevent'
    uevent.write_text('DEVNAME=dri/renderD128\n')
    instance, _ = plug()
    pid = kernel.hold('/dev/dri/renderD128', 'Xorg', 'c 226:128')
    assert 'Xorg' in str(cause(instance))
    assert rebinds(kernel) == []
    kernel.end(pid)
    os_acc.unplug(instance)
    kernel.hold('/dev/dri/renderD128', 'Xorg', 'c 226:128')
    error = devices.refused(named())
    assert isinstance(error, exception.DeviceBusy)
    assert '(Xorg) has ' in str(error)
    assert '/dev/dri/renderD128 open' in str(error)


def test_a_domain_of_libvirt_has_the_function(npu, kernel):
    kernel.write_file(
        'libvirt/win.xml',
        '<domstatus><domain><name>win</name><uuid>'
        f'{uuid.uuid4()}</uuid><devices><hostdev type="pci" managed="yes">'
        '<source><address domain="0x0000" bus="0x00" slot="0x0b" '
        'function="0x0"/></source></hostdev></devices></domain></domstatus>',
    )
    assert 'win' in str(devices.refused(named()))


@pytest.mark.parametrize('entry', [{'address': '*'}, {'address': NPU}])
def test_it_is_not_offered_for_vfio_too(npu, entry):
    devices.spec({'npu': {}}, entry)
    error = devices.refused(devices.pci(NPU))
    assert isinstance(error, exception.DeviceNotFound)
    assert 'NPUs by their device files' in str(error)


# --- other VANs


def by_vfio(model):
    devices.spec({'address': NPU, 'bind': 'libvirt'})
    return devices.pci(NPU)


def by_its_file(model):
    devices.spec({'devices': model.path(NPU)})
    return devices.wanted('CUSTOM_FILE_ACCEL')


def by_this_driver(model):
    devices.spec({'npu': {}})
    return named()


WAYS = [by_vfio, by_its_file, by_this_driver]


@pytest.mark.parametrize('second', WAYS)
@pytest.mark.parametrize('first', WAYS)
def test_one_tenant_at_a_time(npu, first, second):
    """Whatever device_spec says by the time of the second."""
    instance, van = plug(first(npu))
    error = devices.refused(second(npu))
    assert isinstance(
        error, (exception.DeviceBusy, exception.DeviceNotFound)
    ), error
    assert [each.uuid for each in os_acc.get_vans()] == [van.uuid]
    first(npu)
    os_acc.unplug(instance)
    other, _ = plug(second(npu))
    os_acc.unplug(other)


@pytest.mark.parametrize('second', WAYS)
def test_one_time_use(npu, run, second):
    """Whatever device_spec says by the time of the second."""
    devices.spec({'address': NPU, 'bind': 'libvirt', 'one_time_use': True})
    instance, _ = plug(devices.pci(NPU))
    os_acc.unplug(instance)
    request = second(npu)
    error = devices.refused(request)
    assert 'it is reserved' in str(error)
    assert f'os-acc device free {NPU}' in str(error)
    assert run('device', 'free', NPU).code == 0
    plug(request)


def test_a_function_of_its_group_by_vfio(npu, model):
    for address in ('0000:10:00.0', '0000:10:00.1'):
        model.add(address, group=40)
    model.kernel.unbind('0000:10:00.1')
    model.sync()
    devices.spec(
        {'address': '0000:10:00.1', 'bind': 'libvirt'},
        {'npu': {}, 'address': '0000:10:00.0'},
    )
    instance, _ = plug(named('0000:10:00.0+npu=whole'))
    assert devices.refused(devices.pci('0000:10:00.1')) is not None
    os_acc.unplug(instance)


def test_two_npus_of_one_group(npu, model):
    """Both are driven by the host: two instances can have them."""
    for address in ('0000:10:00.0', '0000:10:00.1'):
        model.add(address, group=40)
    for address in ('0000:10:00.0', '0000:10:00.1'):
        plug(named(f'{address}+npu=whole'))


def test_the_devices_are_counted(npu):
    (device,) = os_acc.get_devices()
    assert (device.driver, device.address) == ('npu', NPU)
    assert (device.handles_total, device.handles_free) == (1, 1)
    plug()
    (device,) = os_acc.get_devices()
    assert device.handles_free == 0
    assert 'has it' in device.handles[0].reason


def test_it_is_not_free_while_its_file_is_given(npu):
    devices.spec({'devices': npu.path(NPU)}, {'npu': {}})
    instance, _ = plug(devices.wanted('CUSTOM_FILE_ACCEL'))
    found = {each.driver: each for each in os_acc.get_devices()}
    assert found['npu'].handles_free == 0
    os_acc.unplug(instance)
    found = {each.driver: each for each in os_acc.get_devices()}
    assert found['npu'].handles_free == 1


# --- the release


def test_the_release_waits_until_it_is_closed(npu, kernel):
    instance, _ = plug()
    pid = npu.hold(NPU)
    error = cause(instance)
    assert '(python3) has ' in str(error)
    assert '/dev/accel/accel0 open' in str(error)
    assert isinstance(error, exception.DeviceBusy)
    assert rebinds(kernel) == []
    assert npu.of(NPU) == (1001, 1002, 0o600)
    kernel.end(pid)
    assert os_acc.unplug(instance) == 1


def test_it_does_not_come_back(npu):
    instance, van = plug()
    npu.broken.add(NPU)
    os_acc.CONF.set_override('device_timeout', 0.5, 'os_acc')
    error = cause(instance)
    assert (
        'NPU 0000:00:0b.0' in str(error)
        and 'its kernel driver intel_vpu has not created a file below '
        '/dev/accel again'
        in str(error)
    )
    (left,) = os_acc.get_vans()
    assert (left.uuid, left.state) == (van.uuid, 'error')
    assert 'has not created a file below /dev/accel again' in left.error
    # Nobody gets it meanwhile, not even by its file or by VFIO.
    npu.broken.clear()
    npu.sync()
    for way in WAYS:
        assert devices.refused(way(npu)) is not None
    devices.spec({'npu': {}})
    os_acc.recover()
    assert os_acc.get_vans().objects == []
    assert noted() == []
    plug()


@pytest.mark.parametrize('name', ['unbind', 'bind'])
def test_the_kernel_refuses_the_reset(npu, kernel, name):
    instance, _ = plug()
    kernel.fail(f'*/intel_vpu/{name}', errno.EBUSY)
    assert 'busy' in str(cause(instance))
    assert notes.files.names() == [f'file-{NAME}']
    os_acc.recover()
    assert os_acc.get_vans().objects == []
    assert kernel.driver_of(NPU) == 'intel_vpu'
    assert noted() == []


def test_the_next_take_completes_a_reset(npu, kernel):
    """The process has died between unbind and bind."""
    privileged.resets.write(NPU, privileged.Reset('8086:7d1d', 'intel_vpu'))
    kernel.write(f'{kernel.pci}/drivers/intel_vpu/unbind', NPU)
    with devices.acting(), pytest.raises(exception.DeviceBusy):
        privileged.take(NPU, [], 60.0)
    assert kernel.driver_of(NPU) == 'intel_vpu'
    assert privileged.resets.names() == []
    plug()


def test_a_process_has_opened_it_since_a_reset_was_interrupted(npu, kernel):
    """The operator has brought it back, and the host uses it."""
    privileged.resets.write(NPU, privileged.Reset('8086:7d1d', 'intel_vpu'))
    npu.hold(NPU, 'jupyter')
    files = [['/dev/accel/accel0', 'c', 261, 0]]
    with (
        devices.acting(),
        pytest.raises(exception.DeviceBusy, match='jupyter'),
    ):
        privileged.take(NPU, files, 60.0)
    assert rebinds(kernel) == []


def test_a_record_of_another_device_is_dropped(npu, kernel):
    privileged.resets.write(NPU, privileged.Reset('8086:0000', 'intel_vpu'))
    plug()
    assert rebinds(kernel) == []


def test_another_driver_has_it_by_now(npu, kernel):
    """The operator has bound it to VFIO while the VAN had it."""
    instance, _ = plug()
    kernel.write(f'{kernel.pci}/drivers/intel_vpu/unbind', NPU)
    kernel.set_override(kernel.file(NPU, 'driver_override'), 'vfio-pci')
    kernel.write(f'{kernel.pci}/drivers/vfio-pci/bind', NPU)
    assert os_acc.unplug(instance) == 1
    assert kernel.driver_of(NPU) == 'vfio-pci'
    assert noted() == []


def test_it_has_left_the_bus(npu):
    instance, _ = plug()
    npu.leave(NPU)
    assert os_acc.unplug(instance) == 1
    assert noted() == []
    npu.come_back()
    plug()


def test_another_device_has_its_address(npu, kernel):
    instance, _ = plug()
    npu.leave(NPU)
    kernel.add_function(NPU, '1234:11e8', 0xFF00, 'qat')
    assert os_acc.unplug(instance) == 1
    assert rebinds(kernel) == []
    assert kernel.driver_of(NPU) == 'qat'
    assert noted() == []


def test_a_van_that_was_forgotten(npu, kernel):
    """The next VAN does not get the device as the other has left it."""
    plug()
    (van,) = os_acc.get_vans()
    os_acc._get().journal.forget(van.uuid, [])
    devices.refused(wanted())  # its files have other numbers since the reset
    assert rebinds(kernel) == [('unbind', NPU), ('bind', NPU)]
    plug()


# --- after a reboot, and repairs


def boots(monkeypatch, model):
    again = str(uuid.uuid4())
    monkeypatch.setattr(sysfs, 'boot_id', lambda: again)
    model.reboot()
    os_acc.initialize(reset=True)


def test_after_a_reboot_it_has_another_number(npu, monkeypatch):
    instance, before = plug()
    boots(monkeypatch, npu)
    (van,) = os_acc.get_vans(instance)
    assert (van.state, van.error) == ('plugged', None)
    assert van.handle.identity == before.handle.identity
    (file,) = van.handle.files
    assert file.path == npu.path(NPU) != before.handle.files[0].path
    assert npu.of(NPU) == (1001, 1002, 0o600)
    assert os_acc.unplug(instance) == 1


def test_after_a_reboot_it_is_unhealthy(npu, monkeypatch):
    """The VAN keeps what it has."""
    instance, _ = plug()
    failed(npu)
    boots(monkeypatch, npu)
    (van,) = os_acc.get_vans(instance)
    assert (van.state, van.error) == ('plugged', None)
    assert npu.of(NPU) == (1001, 1002, 0o600)
    assert os_acc.unplug(instance) == 1


def test_after_a_reboot_its_entry_is_gone(npu, monkeypatch):
    instance, _ = plug()
    devices.spec()
    boots(monkeypatch, npu)
    (van,) = os_acc.get_vans(instance)
    assert (van.state, van.error) == ('plugged', None)
    assert npu.of(NPU) == (1001, 1002, 0o600)
    assert os_acc.unplug(instance) == 1
    assert noted() == []
    assert devices.refused(named()) is not None


def test_after_a_reboot_roots_note_has_no_settings(npu, monkeypatch):
    """Whose files they were to be is unknown; the VAN keeps its device."""
    instance, _ = plug()
    note = json.loads(notes.files.read(f'file-{NAME}'))
    del note['settings']
    notes.files.write(f'file-{NAME}', json.dumps(note))
    devices.spec()
    boots(monkeypatch, npu)
    (van,) = os_acc.get_vans(instance)
    assert (van.state, van.error) == ('plugged', None)


def test_after_a_reboot_the_numbers_are_swapped(npu, model, monkeypatch):
    """Each VAN gets its own device, and no number keeps it from that."""
    model.add(OTHER, 'amdxdna', '1022:17f0')
    one, other = plug(named())[1], plug(named(f'{OTHER}+npu=whole'))[1]
    numbers = [van.handle.files[0].minor for van in (one, other)]
    swapped = {NPU: numbers[1], OTHER: numbers[0]}
    model.next_numbers = dict(swapped)
    boots(monkeypatch, npu)
    vans = os_acc.get_vans()
    assert [van.error for van in vans] == [None, None]
    assert swapped == {van.device: van.handle.files[0].minor for van in vans}


def test_after_a_reboot_a_process_has_it(npu, kernel, monkeypatch):
    instance, _ = plug()
    again = str(uuid.uuid4())
    monkeypatch.setattr(sysfs, 'boot_id', lambda: again)
    npu.reboot()
    npu.hold(NPU, 'ollama')
    os_acc.initialize(reset=True)
    (van,) = os_acc.get_vans(instance)
    assert '(ollama) has ' in van.error


def repaired(instance, van):
    assert not os_acc._get().extensions.drivers['npu'].is_intact(van)
    request = objects.AcceleratorRequest(
        uuid=van.uuid, resource_class='CUSTOM_NPU'
    )
    (now,) = os_acc.plug(instance, [request])
    assert os_acc._get().extensions.drivers['npu'].is_intact(now)
    return now


def test_udev_has_changed_the_owner(npu):
    instance, van = plug()
    npu.set(NPU, 0, 6, 0o660)
    repaired(instance, van)
    assert npu.of(NPU) == (1001, 1002, 0o600)


def test_somebody_has_bound_it_again(npu, kernel):
    instance, van = plug()
    for name in ('unbind', 'bind'):
        kernel.write(f'{kernel.pci}/drivers/intel_vpu/{name}', NPU)
    now = repaired(instance, van)
    assert now.handle.files[0].path == npu.path(NPU)
    assert npu.of(NPU) == (1001, 1002, 0o600)
    os_acc.unplug(instance)
    assert noted() == []


# --- what is shown


def test_show_and_doctor(npu, kernel):
    driver = os_acc._get().extensions.drivers['npu']
    shown = driver.show_device(NPU)
    assert shown['can be given out as an NPU'] == 'yes'
    assert shown['device files'] == ['/dev/accel/accel0 (c 261:0)']
    assert [each.text for each in driver.diagnose()] == ['/dev/accel/accel0']
    _, van = plug()
    shown = driver.show_device(NPU)
    assert van.uuid in shown['can be given out as an NPU']
    no_driver(npu)
    assert driver.show_device('fdab0000.npu') is None
    assert driver.show_device('0000:00:1f.0') is None


def test_an_npu_that_cannot_be_read(npu, kernel, monkeypatch):
    """It is told to who wants one; what another entry names is not one."""
    kernel.add_function(devices.GPU, '10de:1eb8', 0x030200)
    devices.spec({'npu': {}, 'address': NPU}, {'address': devices.GPU})
    real = sysfs.read

    def read(path):
        for address in (NPU, devices.GPU):
            if path.endswith(f'{address}/modalias'):
                raise OSError(errno.EIO, 'Input/output error', path)
        return real(path)

    monkeypatch.setattr(sysfs, 'read', read)
    driver = os_acc._get().extensions.drivers['npu']
    assert [each.address for each in driver.get_devices()] == [NPU]
    (found,) = driver.diagnose()
    assert (found.subject, found.verdict) == (f'NPU {NPU}', 'error')
    assert 'modalias cannot be read' in str(devices.refused(wanted()))


def test_denied_while_a_van_has_it(npu):
    """The VAN keeps it; then nobody gets it."""
    instance, _ = plug()
    denied(npu)
    assert os_acc.unplug(instance) == 1
    assert isinstance(devices.refused(named()), exception.DeviceNotFound)


def test_deny_deletes_the_note_of_a_lost_van(run):
    plug()
    (van,) = os_acc.get_vans()
    os_acc._get().journal.forget(van.uuid, [])
    assert run('device', 'deny', NPU).code == 0
    assert notes.files.names() == []


# --- the entry


@pytest.mark.parametrize(
    ('entry', 'field', 'text'),
    [
        ({'npu': True}, 'npu', 'a JSON object, which may be empty'),
        ({'npu': {'uid': 1}}, 'npu.uid', 'only the keys group, mode, owner'),
        ({'npu': {'owner': 'a b'}}, 'npu.owner', 'the name or number'),
        ({'npu': {'group': -1}}, 'npu.group', 'the name or number'),
        ({'npu': {'mode': 384}}, 'npu.mode', 'three octal digits'),
        (
            {'npu': {}, 'bind': 'os-acc'},
            'key',
            'one of address, env, hooks, mounts, npu, product_id, '
            'resource_class, traits, vendor_id, in an entry with npu',
        ),
    ],
)
def test_an_entry_that_is_refused(entry, field, text):
    with pytest.raises(exception.InvalidRequest, match=text) as caught:
        device_spec.parse(json.dumps(entry))
    assert caught.value.kwargs['field'] == field


def test_the_settings_that_are_noted(npu):
    plug()
    note = json.loads(notes.files.read(f'file-{NAME}'))
    assert note['what'] == '8086:7d1d'
    assert note['settings'] == {'owner': '1001', 'group': '1002', 'mode': 384}


# --- containers


@pytest.fixture
def cdi(npu, kernel):
    """The same host with the plugin cdi; its specs are in a directory."""
    os_acc.CONF.set_override('plugin', 'cdi', 'os_acc')
    devices.spec({'npu': {}, 'env': ['NPU=1']})
    os_acc.initialize(reset=True)
    directory = kernel.root / 'run/cdi'
    os_acc.CONF.set_override('spec_dir', str(directory), 'os_acc_cdi')
    return directory


def edits(cdi):
    (path,) = cdi.iterdir()
    (device,) = json.loads(path.read_text())['devices']
    return device['containerEdits']


def written(van, handle=None, name=None):
    primitive = (handle or van.handle).obj_to_primitive()
    container_specs.write(name or van.uuid, van.instance_uuid, primitive)


def test_a_container_gets_it(npu, cdi):
    instance, van = plug()
    found = edits(cdi)
    assert found['env'] == ['NPU=1']
    assert [
        (each['path'], each['major'], each['minor'])
        for each in found['deviceNodes']
    ] == [(npu.path(NPU), 261, 0)]
    devices.spec({'address': NPU, 'env': ['OTHER=1']})
    written(van)
    assert 'env' not in edits(cdi)
    with pytest.raises(exception.DeviceNotFound, match='does not have it'):
        written(van, name=str(uuid.uuid4()))
    os_acc.unplug(instance)
    assert list(cdi.iterdir()) == []
    with pytest.raises(exception.DeviceNotFound, match='does not have it'):
        written(van)


@pytest.mark.parametrize(
    ('field', 'value', 'text'),
    [
        ('path', '/dev/accel/accel7', 'has changed'),
        ('minor', 7, 'has changed'),
        ('permissions', 'rwm', 'at most rw'),
    ],
)
def test_a_container_gets_no_other_file(cdi, field, value, text):
    _, van = plug()
    handle = objects.DeviceFileHandle.obj_from_primitive(
        van.handle.obj_to_primitive()
    )
    setattr(handle.files[0], field, value)
    with pytest.raises(exception.ExceptionBase, match=text):
        written(van, handle)


def test_the_kernel_makes_one_change_after_the_other(model):
    """Of two threads that bind two functions, as an undo of two VANs does."""
    for address in (NPU, OTHER):
        model.add(address)
    driver = f'{sysfs.SYS}/bus/pci/drivers/intel_vpu'

    def rebind(address):
        for _ in range(100):
            sysfs.write(f'{driver}/unbind', address)
            sysfs.write(f'{driver}/bind', address)

    with futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(rebind, (NPU, OTHER)))
    assert model.path(NPU) != model.path(OTHER)
