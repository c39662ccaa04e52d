# SPDX-License-Identifier: Apache-2.0

"""The driver idxd, by os_acc's own calls, on a kernel of files."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
import threading
import uuid

import command
import devices
import idxd_model
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc import testing
from os_acc.kernel import pci
from os_acc.privileged import notes as root_notes
from os_acc.privileged import root_folder
from os_acc.privileged.idxd import notes as records
from os_acc.privileged.idxd import queues as privileged

DSA, IAA = '0000:6a:01.0', '0000:6a:02.0'
ENTRY = {'idxd': DSA, 'wq_size': 16}


@pytest.fixture
def host(kernel):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.CONF.set_override('device_timeout', 60.0, 'os_acc')
    os_acc.CONF.set_override('lock_timeout', 60.0, 'os_acc')
    return kernel


@pytest.fixture
def model(host):
    return idxd_model.Idxd(host)


@pytest.fixture
def dsa(model):
    made = model.add(DSA)
    devices.spec(ENTRY)
    os_acc.initialize()
    return made


def wanted(*traits, kind='CUSTOM_DSA'):
    return devices.wanted(kind, *traits)


def named(name):
    handle = objects.DeviceFileHandle(name=name, files=[])
    return objects.AcceleratorRequest(uuid=str(uuid.uuid4()), handle=handle)


def plug(*requests):
    """Plug a new instance.

    :returns: the instance and its VANs
    """
    instance = devices.instance()
    return instance, list(os_acc.plug(instance, list(requests) or [wanted()]))


def refused(*requests):
    return str(devices.refused(*(requests or [wanted()])))


def notes():
    """What root has noted and recorded."""
    directory = pathlib.Path(root_notes.FOLDER)
    return [
        *(sorted(os.listdir(directory)) if directory.exists() else []),
        *records.idxd_devices.names(),
        *records.idxd_queues.names(),
    ]


# --- plug and unplug


def test_the_first_sets_up_all_and_the_last_undoes_it(dsa):
    before = dsa.snapshot()
    instance, (van,) = plug()
    assert (van.driver, van.device) == ('idxd', DSA)
    assert van.handle.identity == f'file/{DSA}-wq0'
    (file,) = van.handle.files
    assert (file.path, file.type) == ('/dev/dsa/wq0.0', 'c')
    assert (file.major, file.minor) == (dsa.major, dsa.queues[0].minor)
    assert dsa.state == 'enabled'
    assert [each.size for each in dsa.queues] == [16] * 8
    assert {each.group for each in dsa.queues} == {0}
    assert dsa.engines == [0] * 4
    queue = dsa.queues[0]
    assert (queue.type, queue.dedicated) == ('user', True)
    assert (queue.name, queue.driver_name) == (f'os-acc-{van.uuid}', 'user')
    assert queue.priority == 10
    other, (second,) = plug()
    assert second.handle.name == f'{DSA}-wq1'
    assert os_acc.unplug(instance) == 1
    assert dsa.state == 'enabled'
    assert os_acc.unplug(other) == 1
    assert dsa.snapshot() == before
    assert notes() == []


def test_all_work_queues_and_no_more(dsa):
    instance, vans = plug(*(wanted() for _ in range(8)))
    assert {van.handle.name for van in vans} == {
        f'{DSA}-wq{number}' for number in range(8)
    }
    assert 'has work queue 7' in refused()
    (device,) = os_acc.get_devices()
    assert (device.handles_total, device.handles_free) == (8, 0)
    assert os_acc.unplug(instance) == 8


def test_as_many_as_their_size_allows(dsa):
    """What was set up stays, whatever the entry says later."""
    devices.spec({'idxd': DSA, 'wq_size': 32})
    (device,) = os_acc.get_devices()
    assert device.handles_total == 4
    instance, _ = plug()
    assert [each.size for each in dsa.queues] == [32] * 4 + [0] * 4
    devices.spec(ENTRY)
    (device,) = os_acc.get_devices()
    assert (device.handles_total, device.handles_free) == (4, 3)
    os_acc.unplug(instance)


def test_shared_with_all_settings(model):
    dsa = model.add(DSA)
    devices.spec(
        {
            'idxd': DSA.upper(),
            'wq_mode': 'shared',
            'wq_size': 32,
            'wq_count': 3,
            'wq_groups': 2,
            'priority': 15,
            'threshold': 24,
            'max_batch_size': 64,
            'max_transfer_size': 65536,
            'resource_class': 'CUSTOM_COPY',
            'traits': ['CUSTOM_FAST'],
        }
    )
    os_acc.initialize()
    before = dsa.snapshot()
    request = wanted('CUSTOM_FAST', 'CUSTOM_WQ_SHARED', kind='CUSTOM_COPY')
    instance, _ = plug(request)
    queue = dsa.queues[0]
    assert (queue.dedicated, queue.size, queue.threshold) == (False, 32, 24)
    assert (queue.max_batch_size, queue.max_transfer_size) == (64, 65536)
    assert queue.priority == 15
    assert [each.group for each in dsa.queues[:4]] == [0, 1, 0, -1]
    assert dsa.engines == [0, 1, 0, 1]
    (device,) = os_acc.get_devices()
    assert (device.handles_total, device.handles_free) == (3, 2)
    assert os_acc.unplug(instance) == 1
    assert dsa.snapshot() == before


def test_the_threshold_is_the_size_if_none_is_set(dsa):
    devices.spec({**ENTRY, 'wq_mode': 'shared'})
    instance, _ = plug()
    assert dsa.queues[0].threshold == 16
    os_acc.unplug(instance)


def test_one_queue_gets_all_entries(dsa):
    devices.spec({'idxd': DSA, 'wq_count': 1})
    instance, _ = plug()
    assert [each.size for each in dsa.queues] == [128] + [0] * 7
    os_acc.unplug(instance)


@pytest.mark.parametrize('values', [{'size': 0}, {'group': -1}])
def test_a_queue_without_entries_or_group_is_not_given_out(dsa, values):
    """An operator has changed it since the device was set up."""
    instance, _ = plug()
    vars(dsa.queues[7]).update(values)
    dsa.show()
    (device,) = os_acc.get_devices()
    assert (device.handles_total, device.handles_free) == (7, 6)
    assert 'has set up 7' in refused(named(f'{DSA}-wq7'))
    os_acc.unplug(instance)


def test_the_smallest_device(model):
    dsa = model.add(DSA, queues=1, size=1, groups=1, engines=1)
    devices.spec({'idxd': DSA})
    os_acc.initialize()
    instance, _ = plug()
    assert [each.size for each in dsa.queues] == [1]
    os_acc.unplug(instance)


@pytest.mark.parametrize(
    ('made', 'text'),
    [
        ({'queues': 0}, '0 work queues, and dsa0 has 0'),
        ({'size': 4}, '8 work queues of 0 entries each'),
        ({'engines': 0}, '1 groups with an engine and a work queue each'),
    ],
)
def test_a_device_that_has_too_little(model, kernel, made, text):
    model.add(DSA, **made)
    devices.spec({'idxd': DSA})
    os_acc.initialize()
    assert text in refused(named(f'{DSA}-wq0'))
    assert kernel.writes == []


@pytest.mark.parametrize('driver', [None, 'uio_pci_generic'])
def test_the_driver_that_it_is_bound_to_instead(dsa, kernel, driver):
    kernel.write(f'{kernel.pci}/drivers/idxd/unbind', DSA)
    if driver is not None:
        kernel.add_driver(driver)
        kernel.bind(DSA, driver)
    text = f'it is bound to {driver or "no driver"}'
    assert text in refused(named(f'{DSA}-wq0'))


def test_a_threshold_that_is_as_large_as_the_queue(dsa):
    devices.spec({**ENTRY, 'wq_mode': 'shared', 'threshold': 16})
    instance, _ = plug()
    assert dsa.queues[0].threshold == 16
    os_acc.unplug(instance)


def test_iaa(model):
    iaa = model.add(IAA, 'iax')
    devices.spec({'idxd': IAA, 'max_batch_size': 64})
    os_acc.initialize()
    before = iaa.snapshot()
    instance, (van,) = plug(wanted(kind='CUSTOM_IAA'))
    assert van.handle.files[0].path.endswith('/dev/iax/wq0.0')
    assert iaa.queues[0].size == 16  # 128 entries for 8 queues
    assert os_acc.unplug(instance) == 1
    assert iaa.snapshot() == before


def test_a_kernel_with_one_driver(host):
    dsa = idxd_model.Idxd(host, legacy=True).add(DSA)
    devices.spec(ENTRY)
    os_acc.initialize()
    before = dsa.snapshot()
    instance, _ = plug()
    assert dsa.queues[0].driver == 'dsa'
    assert os_acc.unplug(instance) == 1
    assert dsa.snapshot() == before


def test_a_cpu_without_shared_work_queues(dsa):
    """The kernel refuses all queues if one with a group is shared."""
    dsa.swq = False
    first, _ = plug()
    second, _ = plug()
    os_acc.unplug(first)
    assert dsa.queues[0].dedicated
    third, (van,) = plug()
    assert van.handle.name == f'{DSA}-wq0'
    os_acc.unplug(second)
    os_acc.unplug(third)
    assert notes() == []


def test_a_request_that_names_a_work_queue(dsa):
    instance, (van,) = plug(named(f'{DSA}-wq5'))
    assert van.handle.name == f'{DSA}-wq5'
    request = named(f'{DSA}-wq5')
    with pytest.raises(exception.ExceptionBase, match='wq5'):
        os_acc.plug(devices.instance(), [request])
    assert 'has set up 8' in refused(named(f'{DSA}-wq9'))
    os_acc.unplug(instance)
    request = named('nvidia0')
    request.driver = 'idxd'
    assert 'the name of a work queue' in refused(request)
    request = devices.pci(DSA)
    request.driver = 'idxd'
    assert 'DeviceFileHandle' in refused(request)


def test_plug_again_touches_nothing(dsa, kernel):
    instance, request = devices.instance(), wanted()
    os_acc.plug(instance, [request])
    kernel.writes.clear()
    os_acc.plug(instance, [request])
    assert kernel.writes == []
    os_acc.unplug(instance)


def test_one_that_was_disabled_by_hand_is_enabled_again(dsa, kernel):
    instance, request = devices.instance(), wanted()
    os_acc.plug(instance, [request])
    path = kernel.sys / 'bus/dsa/drivers/user/unbind'
    kernel.write(str(path), 'wq0.0')
    (van,) = os_acc.plug(instance, [request])
    assert dsa.queues[0].state == 'enabled'
    assert van.handle.files[0].minor == dsa.queues[0].minor
    kernel.write(str(kernel.sys / 'bus/dsa/drivers/idxd/unbind'), 'dsa0')
    (van,) = os_acc.plug(instance, [request])
    assert van.handle.files[0].minor == dsa.queues[0].minor
    os_acc.unplug(instance)
    assert notes() == []


# --- who else uses it


def test_a_program_has_it_open(dsa):
    instance, _ = plug()
    pid = dsa.opened(0)
    with pytest.raises(exception.UnplugException, match=f'process {pid} '):
        os_acc.unplug(instance)
    dsa.closed(0, pid)
    # It is mapped: no process shows it.
    pid = dsa.opened(0, shown=False)
    with pytest.raises(exception.UnplugException, match='still open'):
        os_acc.unplug(instance)
    assert dsa.queues[0].state == 'enabled'
    dsa.closed(0, pid)
    assert os_acc.unplug(instance) == 1


def enabled_by_hand(dsa, number=0, kind='user'):
    queue = dsa.queues[number]
    queue.size, queue.group, queue.dedicated = 16, 0, True
    queue.type, queue.name, queue.driver_name = kind, 'mine', 'user'
    dsa.engines[0] = 0
    dsa.show()


def test_a_device_that_somebody_else_has_enabled(dsa, kernel):
    enabled_by_hand(dsa)
    text = refused()
    assert 'has begun to configure dsa0: wq0.0 has type user' in text
    kernel.write(str(kernel.sys / 'bus/dsa/drivers/idxd/bind'), 'dsa0')
    there = dsa.snapshot()
    text = refused()
    assert 'somebody else has enabled dsa0' in text
    assert dsa.snapshot() == there
    (device,) = os_acc.get_devices()
    assert {each.state for each in device.handles} == {'host'}
    (found,) = devices.problems()
    assert 'somebody else has enabled dsa0' in found.text
    # Nor can a caller make the privileged half do it.
    with pytest.raises(exception.DeviceInUseByHost):
        privileged.enable(DSA, 3, str(uuid.uuid4()), 5)
    assert dsa.snapshot() == there


def test_an_iaa_that_the_kernel_has_configured(model):
    """drivers/dma/idxd/defaults.c"""
    iaa = model.add(IAA, 'iax')
    enabled_by_hand(iaa, kind='kernel')
    devices.spec({'idxd': IAA})
    os_acc.initialize()
    there = iaa.snapshot()
    text = refused(wanted(kind='CUSTOM_IAA'))
    assert "wq0.0 has type kernel, name 'mine'" in text
    assert iaa.snapshot() == there


@pytest.mark.parametrize('what', ['engine', 'size', 'name'])
def test_any_configuration_of_others_counts(dsa, what):
    if what == 'engine':
        dsa.engines[2] = 1
    elif what == 'size':
        dsa.queues[3].size = 8
    else:
        dsa.queues[3].name = 'mine'
    dsa.show()
    there = dsa.snapshot()
    assert 'somebody else' in refused()
    assert dsa.snapshot() == there


def test_a_work_queue_of_others_on_our_device(dsa, kernel):
    """It is left alone, and so is the device at the end."""
    instance, _ = plug()
    queue = dsa.queues[1]
    queue.type, queue.name, queue.driver_name = 'user', 'mine', 'user'
    dsa.show()
    other, (van,) = plug()
    assert van.handle.name == f'{DSA}-wq2'
    text = "{}, type user, name 'mine'"
    assert text.format('disabled') in refused(named(f'{DSA}-wq1'))
    kernel.write(str(kernel.sys / 'bus/dsa/drivers/user/bind'), 'wq0.1')
    assert text.format('enabled') in refused(named(f'{DSA}-wq1'))
    os_acc.unplug(instance)
    os_acc.unplug(other)
    assert (dsa.state, queue.state, queue.name) == (
        'enabled',
        'enabled',
        'mine',
    )
    assert notes() == []
    assert 'somebody else has enabled' in refused()


def test_a_work_queue_that_others_took_over_meanwhile(dsa, kernel):
    instance, _ = plug()
    kernel.write(str(kernel.sys / 'bus/dsa/drivers/user/unbind'), 'wq0.0')
    queue = dsa.queues[0]
    queue.type, queue.name, queue.dedicated = 'user', 'mine', True
    dsa.show()
    kernel.write(str(kernel.sys / 'bus/dsa/drivers/user/bind'), 'wq0.0')
    assert os_acc.unplug(instance) == 1
    assert (queue.state, queue.name) == ('enabled', 'mine')


def allow_vfio(kernel):
    """vfio-pci takes DSA, although it has an erratum."""
    path = 'sys/module/vfio_pci/parameters/disable_denylist'
    kernel.write_file(path, 'Y\n')


def test_the_function_goes_to_a_guest_or_its_work_queues_do(dsa, kernel):
    devices.spec(ENTRY)
    assert 'work queues of it only' in refused(devices.pci(DSA))
    allow_vfio(kernel)
    instance, _ = plug()
    # The operator changes the entry while the VAN has the work queue.
    entry = {'address': DSA, 'resource_class': 'CUSTOM_WHOLE'}
    devices.spec(entry)
    text = refused(devices.pci(DSA))
    assert f'has file/{DSA}-wq0' in text
    os_acc.unplug(instance)
    # The privileged half looks at the hardware.
    enabled_by_hand(dsa)
    kernel.write(str(kernel.sys / 'bus/dsa/drivers/idxd/bind'), 'dsa0')
    assert 'enabled for work queues' in refused(devices.pci(DSA))
    kernel.write(str(kernel.sys / 'bus/dsa/drivers/idxd/unbind'), 'dsa0')


def test_no_work_queue_of_a_function_that_a_guest_has(model, kernel):
    dsa = model.add('0000:6a:01.0')
    address = dsa.address
    allow_vfio(kernel)
    devices.spec({'address': address})
    os_acc.initialize()
    instance, _ = plug(devices.pci(address))
    assert kernel.driver_of(address) == 'vfio-pci'
    devices.spec({'idxd': address})
    request = named(f'{address}-wq0')
    text = refused(request)
    assert 'has it' in text
    with pytest.raises(exception.DeviceError, match='bound to vfio-pci'):
        privileged.enable(address, 0, request.uuid, 5)
    (device,) = [d for d in os_acc.get_devices() if d.driver == 'idxd']
    assert device.handles_total == 0
    os_acc.unplug(instance)
    assert kernel.driver_of(address) == 'idxd'


def test_two_instances_race_for_the_last(dsa):
    devices.spec({**ENTRY, 'wq_count': 1})
    results = []

    def race():
        try:
            results.append(plug()[1][0].uuid)
        except exception.PlugException as err:
            results.append(err)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    errors = [each for each in results if isinstance(each, Exception)]
    assert len(errors) == 3
    assert {type(each.__cause__) for each in errors} <= {
        exception.DeviceNotFound,
        exception.DeviceBusy,
    }
    (van,) = os_acc.get_vans()
    assert dsa.queues[0].name == f'os-acc-{van.uuid}'


def test_another_van_has_it_by_roots_record(dsa):
    _, (van,) = plug()
    with pytest.raises(exception.DeviceBusy, match=van.uuid):
        privileged.enable(DSA, 0, str(uuid.uuid4()), 5)
    # Nor does the release of a VAN that does not have it touch it.
    with devices.acting():
        assert privileged.disable(DSA, 0, str(uuid.uuid4()), 0, 5)
    assert dsa.queues[0].state == 'enabled'
    assert f'idxd-{DSA}-wq0' in notes()


def test_another_van_has_it_by_roots_note(dsa, model, run):
    """The record of root is gone with the last boot, and idxd starts anew."""
    instance, (van,) = plug()
    model.reboot()
    other = str(uuid.uuid4())
    with pytest.raises(exception.DeviceBusy, match=f'VAN {van.uuid} of'):
        privileged.enable(DSA, 0, other, 5)
    assert dsa.state == 'disabled'
    assert root_notes.find(root_notes.IDXD, f'{DSA}-wq0', van.uuid) is not None
    assert len(os_acc.recover().restored) == 1
    assert os_acc.unplug(instance) == 1
    # The note of a VAN that is lost can be deleted.
    ids = pci.get(DSA).ids
    root_notes.note(root_notes.IDXD, f'{DSA}-wq0', 'lost', device=DSA, ids=ids)
    assert 'VAN lost has it' in refused(named(f'{DSA}-wq0'))
    run.fine('device', 'deny', DSA)
    run.fine('device', 'allow', DSA)
    os_acc.unplug(plug(named(f'{DSA}-wq0'))[0])
    # That of another device says nothing.
    root_notes.note(
        root_notes.IDXD, f'{DSA}-wq0', 'lost', device=DSA, ids='8086:ffff'
    )
    os_acc.unplug(plug(named(f'{DSA}-wq0'))[0])
    assert notes() == []


# --- what it cannot do


@pytest.mark.parametrize(
    ('values', 'text'),
    [
        ({'configurable': 0}, 'not configurable'),
        ({'pasid': 0}, 'pasid_enabled of dsa0 is 0'),
        ({'state': 'halted'}, 'the state of dsa0 is halted'),
    ],
)
def test_a_device_that_cannot(dsa, kernel, values, text):
    for name, value in values.items():
        setattr(dsa, name, value)
    dsa.show()
    assert text in refused()
    (found,) = devices.problems()
    assert text in found.text
    assert (found.verdict, bool(found.advice)) == ('error', True)
    assert kernel.writes == []


@pytest.mark.parametrize(
    ('entry', 'text'),
    [
        ({'wq_count': 9}, '9 work queues, and dsa0 has 8'),
        ({'wq_count': 8, 'wq_size': 17}, '8 work queues of 17 entries each'),
        ({'wq_size': 129}, 'work queues'),
        ({'wq_groups': 5}, '5 groups'),
        ({'wq_mode': 'shared', 'threshold': 17}, 'a threshold of 17'),
    ],
)
def test_more_than_the_device_has(dsa, kernel, entry, text):
    devices.spec({'idxd': DSA, **entry})
    assert text in refused()
    assert kernel.writes == []


def test_the_kernel_refuses(dsa, kernel):
    before = dsa.snapshot()
    dsa.refused[0] = errno.ENXIO
    assert "refuses 'wq0.0' for user/bind" in refused()
    assert dsa.snapshot() == before
    kernel.fail('*/idxd/bind', errno.ENXIO)
    assert "refuses 'dsa0' for idxd/bind" in refused()
    assert dsa.snapshot() == before
    kernel.fail('*/wq0.3/size', errno.EINVAL)
    assert "refuses '16' for wq0.3/size" in refused()
    assert dsa.snapshot() == before
    dsa.status = 0x80030000
    dsa.show()
    kernel.fail('*/idxd/bind', errno.ENXIO)
    assert 'the work queue is in no group' in refused()
    assert notes() == []


def test_the_undo_is_refused_and_tried_again(dsa, kernel):
    before = dsa.snapshot()
    instance, _ = plug()
    for pattern in ('*/user/unbind', '*/idxd/unbind'):
        kernel.fail(pattern, errno.EIO)
        with pytest.raises(exception.UnplugException, match='refuses'):
            os_acc.unplug(instance)
    assert os_acc.unplug(instance) == 1
    assert dsa.snapshot() == before


def test_not_offered(dsa, kernel):
    devices.spec({'idxd': IAA})
    assert f'no device is at {IAA} now' in refused(wanted())
    text = refused(named(f'{DSA}-wq0'))
    assert '{"idxd": "0000:6a:01.0", "vendor_id": "8086"' in text
    devices.spec({'address': DSA}, ENTRY)
    assert 'does not offer its work queues' in refused(named(f'{DSA}-wq0'))
    devices.spec(ENTRY, {'address': DSA, 'deny': True})
    assert 'does not offer its work queues' in refused(named(f'{DSA}-wq0'))
    with pytest.raises(exception.DeviceNotFound):
        privileged.enable(DSA, 0, str(uuid.uuid4()), 5)
    assert kernel.writes == []


@pytest.mark.parametrize(
    ('number', 'van'), [(-1, None), (256, None), (True, None), (0, 'me')]
)
def test_root_checks_its_arguments(dsa, number, van):
    for call in (
        lambda: privileged.enable(DSA, number, van or str(uuid.uuid4()), 5),
        lambda: privileged.disable(
            DSA, number, van or str(uuid.uuid4()), 0, 5
        ),
    ):
        with pytest.raises(exception.InvalidRequest):
            call()


# --- what changes meanwhile


def test_after_a_reboot_with_other_numbers(model):
    first, second = model.add(DSA), model.add('0000:e7:01.0')
    devices.spec(ENTRY, {'idxd': second.address, 'wq_count': 2})
    os_acc.initialize()
    request = named(f'{second.address}-wq1')
    instance, (before,) = plug(request)
    assert before.handle.files[0].path.endswith('/wq1.1')
    # The VAN keeps it, with its settings, whatever device_spec says now.
    devices.spec()
    model.reboot(order=(1, 0))
    assert len(os_acc.recover().restored) == 1
    (van,) = os_acc.get_vans()
    assert van.handle.identity == before.handle.identity
    (file,) = van.handle.files
    assert file.path.endswith('/dev/dsa/wq0.1')
    assert file.minor == second.queues[1].minor == 7
    assert [each.size for each in second.queues[:3]] == [64, 64, 0]
    assert first.state == 'disabled'
    assert os_acc.unplug(instance) == 1
    assert second.state == 'disabled'
    assert notes() == []


def test_the_function_leaves_the_bus(dsa, kernel):
    first, _ = plug()
    second, _ = plug()
    kernel.write(str(kernel.pci / 'devices' / DSA / 'remove'), '1')
    assert os_acc.unplug(first) == 1
    # The other VAN's note stays.
    assert notes() == [f'idxd-{DSA}-wq1', DSA, f'{DSA}-wq1']
    bus = kernel.sys / 'class/pci_bus/0000:6a/rescan'
    kernel.write(str(bus), '1')
    assert dsa.state == 'disabled'
    request = objects.AcceleratorRequest(
        uuid=os_acc.get_vans(second)[0].uuid, resource_class='CUSTOM_DSA'
    )
    (van,) = os_acc.plug(second, [request])
    assert van.handle.name == f'{DSA}-wq1'
    assert dsa.queues[1].name == f'os-acc-{van.uuid}'
    assert os_acc.unplug(second) == 1
    assert dsa.state == 'disabled'
    assert notes() == []


def test_the_module_is_unloaded(dsa, kernel):
    instance, _ = plug()
    path = kernel.pci / 'drivers/idxd/unbind'
    kernel.write(str(path), DSA)
    assert os_acc.unplug(instance) == 1
    assert notes() == [DSA]
    assert 'not to the kernel driver idxd' in refused(named(f'{DSA}-wq0'))
    kernel.write(str(kernel.sys / 'bus/pci/drivers_probe'), DSA)
    os_acc.unplug(plug()[0])
    assert notes() == []


def test_a_number_that_another_van_was_given(dsa, kernel, model, monkeypatch):
    """A container may have a file with it from before idxd was bound again."""
    first, (van,) = plug()
    (file,) = van.handle.files
    kernel.write(str(kernel.pci / 'drivers/idxd/unbind'), DSA)
    kernel.write(str(kernel.sys / 'bus/pci/drivers_probe'), DSA)
    monkeypatch.setattr(model, 'minor', lambda: file.minor)
    text = refused()
    assert f'instance {first.uuid} was given the device number' in text
    assert f'{file.major}:{file.minor} of /dev/dsa/wq0.0' in text
    assert [each.uuid for each in os_acc.get_vans()] == [van.uuid]
    assert os_acc.unplug(first) == 1
    second, (van,) = plug()
    assert van.handle.files[0].minor == file.minor
    assert os_acc.unplug(second) == 1
    assert notes() == []


def test_the_record_is_lost(dsa, kernel):
    instance, _ = plug()
    shutil.rmtree(kernel.root / 'run/os-acc/idxd-queues')
    with pytest.raises(exception.UnplugException, match='no record'):
        os_acc.unplug(instance)
    assert dsa.queues[0].state == 'enabled'
    kernel.write(str(kernel.sys / 'bus/dsa/drivers/user/unbind'), 'wq0.0')
    assert os_acc.unplug(instance) == 1


def test_device_spec_changes_while_the_device_is_enabled(dsa):
    instance, _ = plug()
    devices.spec({**ENTRY, 'wq_size': 64, 'wq_mode': 'shared'})
    other, _ = plug()
    queue = dsa.queues[1]
    # The size is as it was set when the device was enabled.
    assert (queue.size, queue.threshold, queue.dedicated) == (16, 16, False)
    os_acc.unplug(instance)
    os_acc.unplug(other)
    assert dsa.state == 'disabled'


# --- crashes


@pytest.fixture
def mortal(model, kernel, monkeypatch):
    """A process that may die at each write, also of root's own files.

    The device is small, so that the tests are short.
    """
    for name in ('write', 'delete'):
        original = getattr(root_folder.RootFiles, name)

        def stepped(self, *args, original=original, name=name):
            if name == 'write' or args[0] in self.names():
                kernel.step(
                    self.path(args[0]), name, lambda: original(self, *args)
                )

        monkeypatch.setattr(root_folder.RootFiles, name, stepped)
    made = model.add(DSA, queues=2, size=32, groups=1, engines=1)
    devices.spec(ENTRY)
    os_acc.initialize()
    return made


@pytest.mark.parametrize('after', [False, True])
@pytest.mark.parametrize('undo', [False, True])
@pytest.mark.parametrize('beside', [False, True])
def test_a_crash_at_every_write(mortal, kernel, after, undo, beside):
    """Whatever was done of plug or unplug, recover() undoes it.

    :param beside: another instance has a work queue of the device
    """
    if beside:
        plug()
    else:
        devices.spec({**ENTRY, 'wq_mode': 'shared'})
    there, noted = mortal.snapshot(), notes()
    number, died = 0, True
    while died:
        instance = devices.instance()
        if undo:
            os_acc.plug(instance, [wanted()])
        kernel.crash_at(number, after)
        died = False
        with contextlib.suppress(
            testing.Crash,
            exception.PlugException,
            exception.UnplugException,
        ):
            if undo:
                os_acc.unplug(instance)
            else:
                os_acc.plug(instance, [wanted()])
        died = kernel.dead
        kernel.revive()
        os_acc.initialize(reset=True)
        if not died:
            os_acc.unplug(instance)
        assert not os_acc.get_vans(instance)
        assert mortal.snapshot() == there, f'after write {number}'
        assert notes() == noted, f'after write {number}'
        number += 1
    assert number >= (5 if beside else 7)


@pytest.mark.parametrize('after', [False, True])
def test_a_crash_at_every_write_after_a_reboot(mortal, model, kernel, after):
    instance, (van,) = plug()
    number, died = 0, True
    while died:
        model.reboot()
        kernel.crash_at(number, after)
        with contextlib.suppress(testing.Crash, exception.ExceptionBase):
            os_acc.initialize(reset=True)
        died = kernel.dead
        kernel.revive()
        os_acc.initialize(reset=True)
        (found,) = os_acc.get_vans()
        assert (found.state, found.uuid) == ('plugged', van.uuid)
        queue = mortal.queues[0]
        assert queue.name == f'os-acc-{van.uuid}', number
        assert found.handle.files[0].minor == queue.minor
        number += 1
    assert number >= 8
    assert os_acc.unplug(instance) == 1
    assert notes() == []


# --- what is shown


@pytest.fixture
def run(dsa, capsys, monkeypatch):
    path = os_acc.CONF.os_acc.state_path
    return command.Command(path, capsys, monkeypatch)


def test_device_show(dsa, run):
    _, (van,) = plug()
    pid = dsa.opened(0)
    shown = run('device', 'show', DSA, '-f', 'json').json
    assert shown['work_queues_can_be_given_out'] == 'yes'
    assert shown['idxd_device'] == 'dsa0, enabled'
    assert shown['idxd_limits'] == (
        '8 work queues, 128 entries, 4 groups, 4 engines'
    )
    assert shown['work_queues'][0] == (
        'wq0.0: enabled, dedicated, size 16, group 0, user, name '
        f'os-acc-{van.uuid}, {dsa.file(0)}, open 1 times (VAN {van.uuid})'
    )
    assert shown['work_queues'][1] == (
        'wq0.1: disabled, dedicated, size 16, group 0'
    )
    assert shown['engines'][3] == 'engine 3: group 0'
    dsa.closed(0, pid)


def test_device_show_of_one_that_is_not_free(dsa, run):
    dsa.pasid = 0
    dsa.show()
    shown = run('device', 'show', DSA, '-f', 'json').json
    assert 'no: pasid_enabled' in shown['work_queues_can_be_given_out']
    assert shown['engines'][0] == 'engine 0: no group'


def test_device_deny_keeps_the_note_of_a_van(dsa, run, kernel):
    instance, _ = plug()
    result = run('device', 'deny', DSA)
    assert result.code == 0, result.err
    assert f'keeps file/{DSA}-wq0 until it is unplugged' in result.out
    assert f'idxd-{DSA}-wq0' in notes()
    os_acc.unplug(instance)


def diagnosed():
    (driver,) = [
        each
        for each in os_acc._host.extensions.drivers.values()
        if each.name == 'idxd'
    ]
    found = [*driver.diagnose(), *devices.problems()]
    return [(each.verdict, each.text) for each in found]


def test_doctor(dsa, kernel):
    assert diagnosed() == [('ok', 'dsa0: 8 for programs')]
    devices.spec({'idxd': IAA}, {'address': DSA}, ENTRY)
    missing, hidden = diagnosed()
    assert f'no device is at {IAA} now' in missing[1]
    assert (
        f'device_spec, entry 2 names {DSA}, and takes precedence' in hidden[1]
    )
    devices.spec(ENTRY)
    enabled_by_hand(dsa)
    ((verdict, text),) = diagnosed()
    assert (verdict, 'somebody else' in text) == ('warning', True)
    kernel.write(str(kernel.pci / 'drivers/idxd/unbind'), DSA)
    ((verdict, text),) = diagnosed()
    assert (verdict, 'not to the kernel driver idxd' in text) == (
        'error',
        True,
    )


# --- a work queue that somebody disables while a program has it open


def disabled_by_hand(kernel, what='user/unbind', name='wq0.0'):
    kernel.write(str(kernel.sys / 'bus/dsa/drivers' / what), name)


@pytest.mark.parametrize('shown', [True, False], ids=['open', 'mapped'])
@pytest.mark.parametrize(
    'what', [('user/unbind', 'wq0.0'), ('idxd/unbind', 'dsa0'), None]
)
def test_a_program_keeps_what_was_disabled(dsa, kernel, what, shown):
    """accel-config, a reset of the device, or the module is unloaded."""
    instance, _ = plug()
    pid = dsa.opened(0, shown=shown, mapped=True)
    if what is not None:
        disabled_by_hand(kernel, *what)
    else:
        kernel.write(str(kernel.pci / 'drivers/idxd/unbind'), DSA)
    with pytest.raises(exception.UnplugException, match=f'process {pid} '):
        os_acc.unplug(instance)
    if what is None:
        kernel.write(str(kernel.sys / 'bus/pci/drivers_probe'), DSA)
    assert 'has it' in refused(named(f'{DSA}-wq0'))
    kernel.end(pid)
    assert os_acc.unplug(instance) == 1
    assert notes() == []
    instance, _ = plug(named(f'{DSA}-wq0'))
    assert os_acc.unplug(instance) == 1


def test_it_is_not_enabled_again_while_a_program_has_it(dsa, kernel):
    instance, request = devices.instance(), wanted()
    os_acc.plug(instance, [request])
    pid = dsa.opened(0)
    disabled_by_hand(kernel)
    with pytest.raises(exception.ExceptionBase, match=f'process {pid} '):
        os_acc.plug(instance, [request])
    assert dsa.queues[0].state == 'disabled'
    dsa.closed(0, pid)
    (van,) = os_acc.plug(instance, [request])
    assert van.handle.files[0].minor == dsa.queues[0].minor
    assert os_acc.unplug(instance) == 1


def test_the_setup_for_another_van_forgets_no_number(dsa, kernel):
    """The device was disabled, and the next VAN has it set up again."""
    first, _ = plug()
    pid = dsa.opened(0, mapped=True)
    disabled_by_hand(kernel, 'idxd/unbind', 'dsa0')
    second, (van,) = plug()
    assert van.handle.name == f'{DSA}-wq1'
    with pytest.raises(exception.UnplugException, match=f'process {pid} '):
        os_acc.unplug(first)
    kernel.end(pid)
    assert os_acc.unplug(first) == 1
    assert os_acc.unplug(second) == 1
    assert notes() == []


def test_a_container_with_a_dev_of_its_own_has_it_mapped(dsa, kernel):
    instance, _ = plug()
    pid = dsa.opened(0, shown=False)
    kernel.write_file(
        f'proc/{pid}/maps',
        '7f0000000000-7f0000001000 -w-s 00000000 00:3c 9 /dev/dsa/wq0.0\n',
    )
    disabled_by_hand(kernel)
    with pytest.raises(exception.UnplugException, match=f'process {pid} '):
        os_acc.unplug(instance)
    kernel.end(pid)
    assert os_acc.unplug(instance) == 1


def test_a_late_close_makes_no_queue_busy(dsa, kernel):
    """The kernel's count falls below 0 while the queue is disabled."""
    instance, request = devices.instance(), wanted()
    os_acc.plug(instance, [request])
    pid = dsa.opened(0)
    disabled_by_hand(kernel)
    dsa.closed(0, pid)
    assert dsa.queues[0].clients == -1
    os_acc.plug(instance, [request])
    assert os_acc.unplug(instance) == 1


# --- cleaning


def test_cleaned_once_it_is_closed_and_before_it_is_disabled(dsa, tmp_path):
    said = tmp_path / 'said'
    state = dsa.directory(0) / 'state'
    instance, _ = plug()
    os_acc.CONF.set_override(
        'cleaning_command',
        f"sh -c 'cat {state} >> {said}; echo $0 >> {said}' {{address}}",
        'os_acc',
    )
    pid = dsa.opened(0)
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance)
    assert not said.exists()
    dsa.closed(0, pid)
    assert os_acc.unplug(instance) == 1
    assert said.read_text().split() == ['enabled', f'{DSA}-wq0']
