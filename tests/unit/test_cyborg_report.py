# SPDX-License-Identifier: Apache-2.0
"""What the Cyborg agent is given, without Cyborg."""

from __future__ import annotations

import json
import uuid

from hypothesis import given
from hypothesis import strategies as st
import pytest

from os_acc import exception
from os_acc import objects
from os_acc.cyborg import api as api_module
from os_acc.cyborg import bound
from os_acc.cyborg import keeping
from os_acc.cyborg import names
from os_acc.cyborg import present
from os_acc.cyborg import report
from os_acc.objects import device as states

HOST = 'node-1'
addresses = st.builds(
    '{:04x}:{:02x}:{:02x}.{:x}'.format,
    st.integers(0, 0xFFFF),
    st.integers(0, 255),
    st.integers(0, 31),
    st.integers(0, 7),
)
texts = st.from_regex(r'[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}', fullmatch=True)


def handle(address, state=states.FREE, holder=None):
    return objects.DeviceHandleInfo(
        handle=objects.PCIHandle(address=address), state=state, holder=holder
    )


def device(address, *handles, **values):
    values = {'resource_class': 'CUSTOM_A', 'driver': 'pci', **values}
    made = objects.Device(address=address, handles=list(handles), **values)
    made.handles_total, made.handles_free = made.counted()
    return made


def offered(*devices, arq_vans=()):
    return present.Lister(HOST).offered(devices, arq_vans)


def by_name(made):
    return {part.name: part for _, part in report.deployables(made)}


# --- names and texts


@given(st.one_of(addresses, texts))
def test_a_control_path_names_its_device(address):
    text = report.control_path(address)
    assert len(text) <= 255
    assert report.controlled(text) == address
    # Cyborg's conductor hands over the values.
    assert report.controlled(json.loads(text)) == address


@given(st.one_of(addresses, texts), st.one_of(addresses, texts))
def test_no_two_devices_have_the_same_control_path(one, other):
    same = report.control_path(one) == report.control_path(other)
    assert same == (one == other)


@pytest.mark.parametrize('info', ['[]', '{', '{"bus": "1"}', 7, None])
def test_a_control_path_of_others(info):
    with pytest.raises(ValueError, match='not a control path of os-acc'):
        report.controlled(info)


@given(addresses, texts, st.integers(0, 999))
def test_a_handle_survives_the_way_through_cyborg(address, name, number):
    for made in (
        report.pci_handle(address),
        report.pci_handle(address, 'physnet1'),
        report.mdev_handle(address, name, number),
        report.test_handle(name),
    ):
        assert len(made.info) <= 255
        arq = {
            'attach_handle_type': made.type,
            'attach_handle_info': json.loads(made.info),
        }
        assert report.of_arq(arq) == made


@given(addresses, texts)
def test_from_arq_reads_every_handle(address, name):
    uuid = '4a1c8d6e-9b0f-4b57-8d0e-0a5ac0fa4e00'
    for made, wanted in (
        (report.pci_handle(address), objects.PCIHandle(address=address)),
        (
            report.mdev_handle(address, name, 3),
            objects.MdevHandle(uuid=uuid, parent=address, type=name),
        ),
        (report.test_handle(name), objects.TestHandle(name=name)),
    ):
        request = objects.AcceleratorRequest.from_arq(
            {
                'uuid': uuid,
                'state': 'Bound',
                'attach_handle_type': made.type,
                'attach_handle_uuid': uuid,
                'attach_handle_info': json.loads(made.info),
            }
        )
        assert request.handle.identity == wanted.identity


@pytest.mark.parametrize(
    'arq',
    [
        {},
        {'attach_handle_type': 'PCI', 'attach_handle_info': {}},
        {'attach_handle_type': 'MDEV', 'attach_handle_info': {'bus': '1'}},
        {'attach_handle_type': 'TEST_PCI', 'attach_handle_info': {'bus': '1'}},
    ],
)
def test_a_handle_of_others(arq):
    with pytest.raises(ValueError, match='did not report'):
        report.of_arq(arq)


# --- what is offered


def test_a_handle_in_use_is_reported_for_an_arq_only():
    van = '4a1c8d6e-9b0f-4b57-8d0e-0a5ac0fa4e00'
    vfs = [f'0000:01:00.{n}' for n in range(1, 6)]
    one = device(
        '0000:01:00.0',
        handle(vfs[0]),
        handle(vfs[1], states.USED, van),
        handle(vfs[2], states.HOST),
        handle(vfs[3], states.ABSENT),
        handle(vfs[4], states.RESERVED),
    )
    (part,) = by_name(offered(one)).values()
    assert list(part.handles) == [f'pci/{vfs[0]}']
    (part,) = by_name(offered(one, arq_vans={van})).values()
    assert list(part.handles) == [f'pci/{each}' for each in vfs[:2]]
    assert part.count == 2


def test_of_an_unhealthy_device_only_what_an_arq_has_is_reported():
    """Nothing of it is scheduled, and nothing that is bound is deleted."""
    van = str(uuid.uuid4())
    failed = device(
        '0000:3b:00.0',
        handle('0000:3b:00.1', states.USED, van),
        handle('0000:3b:00.2', states.RESERVED),
        health=states.UNHEALTHY,
    )
    (made,) = offered(failed, arq_vans=[van]).values()
    (part,) = made.deployables.values()
    assert part.count == 1
    assert '0000:3b:00.2' not in str(part.handles)
    assert offered(failed) == {}


def test_what_is_not_reported(caplog):
    free = handle('0000:01:00.1')
    drc = objects.DeviceHandleInfo(handle=objects.DRCHandle(drc_index=1))
    kind = objects.DeviceMdevTypeInfo(name='mtty-1', capacity=4, available=4)
    lister = present.Lister(HOST)
    for _ in range(2):
        assert not lister.offered(
            [
                device('0000:01:00.0', free, driver='cyborg'),
                device('0000:02:00.0', free, resource_class='NO_SUCH'),
                device('slot', drc),
                device('mtty', mdev_types=[kind]),
                device('0000:03:00.0'),
            ],
            (),
        )
    # Each is logged once.
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 3
    for text, why in zip(
        texts, ('NO_SUCH', 'only on PCI functions', 'DRCHandle'), strict=True
    ):
        assert why in text


def test_a_trait_that_placement_would_refuse_is_left_out(caplog):
    made = offered(
        device(
            '0000:01:00.0',
            handle('0000:01:00.0'),
            traits=['CUSTOM_A', 'HW_NIC_SRIOV', 'HW_NO_SUCH', 'custom'],
        )
    )
    (part,) = by_name(made).values()
    assert part.traits == ('CUSTOM_A', 'HW_NIC_SRIOV')
    assert 'HW_NO_SUCH' in caplog.text


def test_the_function_of_a_device_is_a_trait():
    made = offered(
        device(
            '0000:01:00.0',
            handle('0000:01:00.0'),
            programming=states.PROGRAMMING_SINGLE,
            function_id='AES',
        )
    )
    (part,) = by_name(made).values()
    assert part.traits == (names.function_trait('aes'),)
    assert made['0000:01:00.0'].type == 'FPGA'


def test_devices_with_one_address():
    """Two entries of device_spec name VFs of one PF."""
    pf, vfs = '0000:01:00.0', [f'0000:01:00.{n}' for n in range(1, 5)]
    name = names.deployable(HOST, pf)
    alone = by_name(offered(device(pf, handle(vfs[0]))))
    assert list(alone) == [name]
    alike = by_name(
        offered(device(pf, handle(vfs[0])), device(pf, handle(vfs[1])))
    )
    assert (list(alike), alike[name].count) == ([name], 2)
    several = by_name(
        offered(
            device(pf, handle(vfs[0])),
            device(pf, handle(vfs[1]), resource_class='CUSTOM_B'),
            device(pf, handle(vfs[2]), resource_class='CUSTOM_B'),
        )
    )
    assert {key: part.count for key, part in several.items()} == {
        f'{name}_CUSTOM_A': 1,
        f'{name}_CUSTOM_B': 2,
    }
    traits = by_name(
        offered(
            device(pf, handle(vfs[0]), traits=['CUSTOM_X']),
            device(pf, handle(vfs[1]), traits=['CUSTOM_Y']),
        )
    )
    assert len(traits) == 2
    assert all(key.startswith(f'{name}_CUSTOM_A_') for key in traits)


@pytest.mark.parametrize(
    ('values', 'kind'),
    [
        ({'resource_class': 'FPGA'}, 'FPGA'),
        ({'resource_class': 'PGPU'}, 'GPU'),
        ({'traits': ['CUSTOM_PCI_CLASS_0300']}, 'GPU'),
        ({'traits': ['CUSTOM_PCI_CLASS_0B40']}, 'QAT'),
        ({'traits': ['CUSTOM_PCI_CLASS_0200']}, 'NIC'),
        ({'traits': ['CUSTOM_PCI_CLASS_0108']}, 'NVME'),
        ({'traits': ['CUSTOM_PCI_CLASS_0106']}, 'SSD'),
        ({'traits': ['CUSTOM_PCI_CLASS_0880']}, 'PCI'),
        ({'programming': 'dynamic'}, 'FPGA'),
    ],
)
def test_types(values, kind):
    assert present.device_type(device('0000:01:00.0', **values)) == kind


# --- what is kept

vf_sets = st.sets(st.integers(1, 7))


def of_vfs(numbers, resource_class='CUSTOM_A'):
    if not numbers:
        return {}
    handles = [handle(f'0000:01:00.{number}') for number in sorted(numbers)]
    return offered(
        device('0000:01:00.0', *handles, resource_class=resource_class)
    )


@given(vf_sets, vf_sets, st.data())
def test_what_is_bound_stays_and_nothing_else(before, now, data):
    name = names.deployable(HOST, '0000:01:00.0')
    used = (
        data.draw(st.sets(st.sampled_from(sorted(before))))
        if before
        else set()
    )
    arqs = {}
    for number in used:
        made = report.pci_handle(f'0000:01:00.{number}')
        arqs[name, made.key] = bound.ARQ(f'arq-{number}', None, made)
    known = bound.Bound(arqs, frozenset(), {})
    result = keeping.merged(of_vfs(before), of_vfs(now), known)
    # Cyborg would delete another handle than the missing one, so all handles
    # of a deployable stay while one of them is bound.
    numbers = used | now | (before if used else set())
    wanted = {f'pci/0000:01:00.{number}' for number in numbers}
    (part,) = by_name(result).values() if wanted else (None,)
    if part is not None:
        assert set(part.handles) == wanted
        assert part.count == len(used | now)
    # Cyborg is asked exactly if something would vanish.
    doubts = list(keeping.doubts(of_vfs(before), of_vfs(now), known))
    assert len(doubts) == len(before - now)
    assert doubts.count(None) == (0 if used else len(before - now))
    # The next report needs no answer but that these are still bound.
    assert None not in keeping.doubts(result, of_vfs(now), known)


def test_all_handles_of_a_pending_bind_stay():
    name = names.deployable(HOST, '0000:01:00.0')
    known = bound.Bound({}, frozenset({name}), {})
    made = keeping.merged(of_vfs({1, 2}), of_vfs({2}), known)
    assert len(by_name(made)[name].handles) == 2


def test_a_dynamic_device_has_the_traits_of_all_its_functions():
    """The Placement hook sets the same ones."""
    there = device(
        '0000:01:00.0',
        handle('0000:01:00.1'),
        functions={'0': 'aes', '1': 'sha', '2': None},
        programming=states.PROGRAMMING_DYNAMIC,
    )
    (part,) = by_name(offered(there)).values()
    assert set(part.traits) == names.function_traits(there)
    assert len(part.traits) == 2


# --- what Cyborg's API says


class _API(api_module.API):
    def __init__(self, arqs=(), deployables=(), devices=()):
        self._answers = {
            'arqs': list(arqs),
            'deployables': list(deployables),
            'devices': list(devices),
        }

    def sees_all(self):
        return True

    def arqs(self, instance_uuid=None):
        return self._answers['arqs']

    def deployables(self):
        return self._answers['deployables']

    def devices(self):
        return self._answers['devices']


NAME = names.deployable(HOST, '0000:01:00.0')
ARQ = {
    'uuid': 'arq-1',
    'state': 'Bound',
    'hostname': HOST,
    'device_rp_uuid': names.provider_uuid(NAME),
    'instance_uuid': 'instance-1',
    'attach_handle_type': 'PCI',
    'attach_handle_info': json.loads(report.pci_handle('0000:01:00.1').info),
}
DEPLOYABLE = {
    'name': NAME,
    'driver_name': names.DRIVER,
    'rp_uuid': names.provider_uuid(NAME),
    'attributes_list': json.dumps([{'rc': 'CUSTOM_A'}, {'trait_B': 'B'}]),
}


@pytest.mark.parametrize(
    ('arq', 'deployable'),
    [
        ({'hostname': 'node-2'}, {}),
        ({'state': 'Initial'}, {}),
        ({'state': 'Unbound'}, {}),
        ({}, {'driver_name': 'nvidia'}),
        ({}, {'rp_uuid': 'another'}),
    ],
)
def test_arqs_of_others(arq, deployable):
    api = _API([{**ARQ, **arq}], [{**DEPLOYABLE, **deployable}])
    known = bound.ask(api, HOST, {HOST})
    assert (known.arqs, known.pending, known.deployables) == ({}, set(), {})


@pytest.mark.parametrize('state', ['BindStarted', 'BindFailed', 'Deleting'])
def test_arqs_that_may_have_a_handle(state):
    api = _API([{**ARQ, 'state': state}], [DEPLOYABLE])
    known = bound.ask(api, HOST, {HOST})
    assert known.pending == {NAME}
    assert known.uses(NAME)


def test_an_arq_whose_handle_is_unreadable():
    api = _API([{**ARQ, 'attach_handle_info': {}}], [DEPLOYABLE])
    with pytest.raises(exception.RemoteServiceError, match='arq-1'):
        bound.ask(api, HOST, {HOST})


def test_a_bound_device_that_cyborg_does_not_show():
    api = _API([ARQ], [DEPLOYABLE])
    known = bound.ask(api, HOST, {HOST})
    with pytest.raises(exception.RemoteServiceError, match=f'{NAME}.*arq-1'):
        bound.rebuilt(api, known, {}, HOST, {HOST})


@pytest.mark.parametrize('attributes', ['[]', '{', '[{"trait_B": "B"}]', None])
def test_a_deployable_without_a_resource_class(attributes):
    api = _API([ARQ], [{**DEPLOYABLE, 'attributes_list': attributes}])
    known = bound.ask(api, HOST, {HOST})
    there = of_vfs({2})
    with pytest.raises(exception.RemoteServiceError, match='resource class'):
        bound.rebuilt(api, known, there, HOST, {HOST})
