# SPDX-License-Identifier: Apache-2.0

"""A place is not a device: bus numbers change, and cards are moved."""

from __future__ import annotations

import json
import pathlib

import command
import device_nodes
import devices
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

import os_acc
from os_acc import exception
from os_acc.kernel import pci
from os_acc.spec import device_spec
from os_acc.spec import entry as spec_entry

PLACE, NEXT = '0000:03:00.0', '0000:04:00.0'
T4 = {'vendor_id': '10de', 'product_id': '1eb8'}


@pytest.fixture
def run(kernel, capsys, monkeypatch):
    devices.spec()
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    path = os_acc.CONF.os_acc.state_path
    return command.Command(path, capsys, monkeypatch)


@pytest.fixture
def t4(kernel):
    kernel.add_function(PLACE, '10de:1eb8', 0x030200)


def proposed(run) -> list[dict[str, str]]:
    """The entries that os-acc device spec proposes."""
    return [
        json.loads(line.split('=', 1)[1])
        for line in run.fine('device', 'spec').out.splitlines()
        if line.startswith('device_spec')
    ]


def rebuild(kernel, **functions) -> None:
    """Switch the host off, and put other cards into it.

    :param functions: by 'place' and 'next', how they are added
    """
    kernel.take_off(PLACE)
    kernel._off.clear()
    for name, values in functions.items():
        kernel.add_function({'place': PLACE, 'next': NEXT}[name], **values)


NIC = {
    'ids': '14e4:16d7',
    'pci_class': 0x020000,
    'driver': 'bnxt_en',
    'net': 'ens3',
}
GPU = {'ids': '10de:1eb8', 'pci_class': 0x030200}

# What is there afterwards, and what the doctor says.
CHANGES = {
    'a card was added before it': (
        {'place': NIC, 'next': GPU},
        f'another device is at {PLACE} now: 14e4:16d7; the entry names '
        f'10de:1eb8, which is at {NEXT} now',
    ),
    'it was moved to another root port': (
        {'next': GPU},
        f'no device is at {PLACE} now; the entry names 10de:1eb8, which is '
        f'at {NEXT} now',
    ),
    'it was replaced by a newer model': (
        {'place': {**GPU, 'ids': '10de:2235'}},
        f'another device is at {PLACE} now: 10de:2235; the entry names '
        '10de:1eb8, which this host does not have',
    ),
    'it was taken out': (
        {},
        f'no device is at {PLACE} now; the entry names 10de:1eb8, which this '
        'host does not have',
    ),
    'a bridge is there': (
        {'place': {'ids': '8086:2030', 'pci_class': 0x060400}, 'next': GPU},
        'it is a bridge',
    ),
}


@pytest.mark.parametrize('change', CHANGES)
def test_what_is_proposed_names_the_device(kernel, run, t4, change):
    functions, text = CHANGES[change]
    (entry,) = proposed(run)
    assert entry == {'address': PLACE, **T4}
    devices.spec({**entry, 'resource_class': 'CUSTOM_T4'})
    assert devices.problems() == []
    rebuild(kernel, **functions)
    assert os_acc.get_devices() == []
    assert devices.refused(devices.wanted('CUSTOM_T4')) is not None
    (found,) = devices.problems()
    assert found.subject == 'device_spec, entry 1'
    assert text in found.text
    assert found.advice
    assert text in str(devices.refused(devices.wanted('CUSTOM_T4')))
    assert kernel.writes == []


@pytest.mark.parametrize('change', CHANGES)
def test_what_is_allowed_names_the_device(kernel, run, t4, change):
    run.fine('device', 'allow', PLACE)
    rebuild(kernel, **CHANGES[change][0])
    assert devices.refused(devices.pci(PLACE)) is not None
    (found,) = devices.problems()
    assert '50-os-acc-0000:03:00.0.json, entry 1' in found.subject
    assert CHANGES[change][1] in found.text


def test_allow_follows_the_device(kernel, run, t4):
    run.fine('device', 'allow', PLACE)
    rebuild(kernel, place=NIC, next=GPU)
    run.fine('device', 'allow', NEXT)
    run.fine('device', 'allow', PLACE)
    assert {each.address for each in os_acc.get_devices()} == {PLACE, NEXT}
    assert devices.problems() == []


def test_a_refusal_prints_the_ids(run, t4):
    text = str(devices.refused(devices.pci(PLACE)))
    assert spec_entry.line({'address': PLACE, **T4}) in text


def pf_with_other_vfs(kernel) -> None:
    """Of an Intel E810, the VFs have the product id 1889."""
    kernel.add_function(
        PLACE, '8086:1592', 0x020000, 'ice', totalvfs=2, net='ens3'
    )
    kernel.file(PLACE, 'sriov_vf_device').write_text('1889\n')
    kernel.vfs[PLACE] |= {'ids': '8086:1889', 'driver': 'iavf'}


@pytest.mark.parametrize('way', ['spec', 'allow'])
def test_the_vfs_of_a_pf_have_other_ids(kernel, run, way):
    pf_with_other_vfs(kernel)
    entries = [
        {'address': PLACE, 'vendor_id': '8086', 'product_id': product}
        for product in ('1592', '1889')
    ]
    if way == 'spec':
        assert proposed(run) == entries
        devices.spec(*entries)
    else:
        run.fine('device', 'allow', PLACE)
        (path,) = pathlib.Path(os_acc.CONF.os_acc.device_spec_dir).iterdir()
        assert json.loads(path.read_text()) == entries
    assert devices.problems() == []
    (whole,) = os_acc.get_devices()
    assert whole.handles_total == 1
    kernel.write_numvfs(PLACE, 2)
    (vfs,) = os_acc.get_devices()
    assert (vfs.address, vfs.handles_free) == (PLACE, 2)
    assert devices.problems() == []


def test_vfs_that_nobody_has_made(kernel, run):
    """An entry names them by their ids, and the PF is not offered."""
    pf_with_other_vfs(kernel)
    devices.spec(
        {'address': PLACE, 'product_id': '1889', 'resource_class': 'CUSTOM_V'}
    )
    (found,) = devices.problems()
    assert f'the VFs of PF {PLACE}, which has none now' in found.text
    text = str(devices.refused(devices.wanted('CUSTOM_V')))
    assert 'sriov_numvfs' in text


@pytest.mark.parametrize(
    ('entry', 'remark'),
    [
        ({'address': PLACE}, '"vendor_id": "10de", "product_id": "1eb8"'),
        ({'address': '*:03:00.*'}, '"vendor_id" and "product_id"'),
        ({'address': {'bus': '03'}}, '"vendor_id" and "product_id"'),
        ({'devname': 'ens3'}, '"vendor_id" and "product_id"'),
        ({'address': PLACE, 'num_vfs': 2}, '"vendor_id": "10de"'),
        ({'address': '*'}, None),
        ({'address': PLACE, **T4}, None),
        ({'vendor_id': '10de'}, None),
        ({'address': PLACE, 'deny': True}, None),
        ({'address': 'mtty'}, None),
        ({'devices': '/dev/accel0'}, None),
    ],
)
def test_an_entry_by_its_place_alone_gets_a_remark(run, t4, entry, remark):
    devices.spec(entry)
    found = [each for each in devices.entries_found() if each.verdict == 'ok']
    assert len(found) == (remark is not None)
    for each in found:
        assert 'another device' in each.text
        assert remark in each.advice


def test_a_device_of_idxd(kernel, run):
    """At the place of a DSA there is an IAA, which has queues, too."""
    kernel.add_function(PLACE, '8086:11fb', 0x088000)
    ids = {'vendor_id': '8086', 'product_id': '11fb'}
    assert spec_entry.ids_of(PLACE) == ids
    devices.spec({'idxd': PLACE, **ids})
    (found,) = devices.problems()
    assert 'kernel driver idxd' in found.text
    rebuild(kernel, place={'ids': '8086:1212', 'pci_class': 0x088000})
    (found,) = devices.problems()
    assert f'another device is at {PLACE} now: 8086:1212' in found.text
    text = str(devices.refused(devices.wanted('CUSTOM_DSA')))
    assert 'the entry names 8086:11fb' in text


def test_entries_with_a_pattern_say_where_the_devices_are(kernel, run):
    kernel.add_function(NEXT, '10de:1eb8', 0x030200)
    devices.spec({'address': '0000:03:*', **T4})
    (found,) = devices.problems()
    assert f'the entry names 10de:1eb8, which is at {NEXT} now' in found.text


class TestDeviceFiles:
    """/dev/dri/renderD128 is the GPU that the kernel has found first."""

    PATH = '/dev/dri/renderD128'

    @pytest.fixture
    def nodes(self, kernel, run, monkeypatch):
        nodes = device_nodes.Nodes(kernel)
        nodes.install(monkeypatch)
        kernel.add_function(PLACE, '1002:74a1', 0x038000, 'amdgpu')
        kernel.add_function(NEXT, '8086:56c0', 0x038000, 'i915')
        nodes.render(PLACE, 128)
        return nodes

    def swap(self, nodes):
        for name in ('dri/card0', 'dri/renderD128'):
            nodes.remove(name)
        nodes.render(NEXT, 128)

    def test_what_is_allowed_names_the_device(self, run, nodes):
        run.fine('device', 'allow', self.PATH)
        (device,) = os_acc.get_devices()
        assert device.handles_free == 1
        assert devices.problems() == []
        self.swap(nodes)
        assert os_acc.get_devices() == []
        (found,) = devices.problems()
        assert 'that belongs to 1002:74a1' in found.text
        wanted = devices.wanted('CUSTOM_FILE_RENDERD')
        assert devices.refused(wanted) is not None

    def test_a_file_by_its_number_alone_gets_a_remark(self, run, nodes):
        devices.spec({'devices': self.PATH})
        (found,) = devices.entries_found()
        assert found.verdict == 'ok'
        assert f'whatever is at {self.PATH}' in found.text
        devices.spec({'devices': '/dev/dri/renderD*'})
        assert devices.entries_found() == []

    def test_an_entry_that_denies_has_no_ids(self):
        entry = {'devices': self.PATH, 'deny': True, 'vendor_id': '1002'}
        with pytest.raises(exception.InvalidRequest, match='vendor_id'):
            device_spec.parse(json.dumps(entry))


class TestDenials:
    """They count for the address, and the doctor knows what was denied."""

    @pytest.fixture
    def denied(self, run, t4):
        devices.spec({'vendor_id': '10de'})
        run.fine('device', 'deny', PLACE)
        assert os_acc.get_devices() == []

    def warnings(self):
        return [each for each in devices.problems() if 'deny' in each.text]

    def test_as_it_was(self, denied):
        assert self.warnings() == []

    def test_the_device_has_moved_and_is_offered(self, kernel, denied):
        rebuild(kernel, place=NIC, next=GPU)
        assert [each.address for each in os_acc.get_devices()] == [NEXT]
        (found,) = self.warnings()
        assert '50-os-acc-0000:03:00.0.json, entry 1' in found.subject
        assert found.text == (
            f'it was written to deny 10de:1eb8, and 14e4:16d7 is at {PLACE} '
            f'now; 10de:1eb8 is offered at {NEXT}'
        )
        assert f'os-acc device allow {PLACE}' in found.advice

    def test_the_device_is_gone(self, kernel, denied):
        rebuild(kernel)
        (found,) = self.warnings()
        assert found.text.endswith(f'and no device is at {PLACE} now')

    def test_whatever_is_there_is_denied(self, kernel, denied):
        rebuild(kernel, place={**GPU, 'ids': '10de:2235'})
        assert os_acc.get_devices() == []

    @pytest.mark.parametrize(
        'entry',
        [
            {'address': PLACE, 'was': '10de:1eb8'},
            {'address': PLACE, 'deny': True, 'was': '10de'},
            {'address': PLACE, 'deny': True, 'was': 7},
        ],
    )
    def test_the_key_is_checked(self, entry):
        with pytest.raises(exception.InvalidRequest, match='was'):
            device_spec.parse(json.dumps(entry))


ids = st.from_regex('[0-9a-f]{4}', fullmatch=True)


@given(
    vendor=ids,
    product=ids,
    vf=ids,
    number=st.integers(0, 3),
    other=ids,
)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_the_entries_offer_the_device_and_no_other(
    kernel, vendor, product, vf, number, other
):
    """With its VFs, if it has some; not what is there after a change."""
    for address in (PLACE, NEXT):
        if (kernel.pci / 'devices' / address).exists():
            kernel.take_off(address)
    kernel.add_function(PLACE, f'{vendor}:{product}', totalvfs=number)
    if number:
        kernel.file(PLACE, 'sriov_vf_device').write_text(f'{vf}\n')
        kernel.vfs[PLACE]['ids'] = f'{vendor}:{vf}'
        kernel.set_numvfs(PLACE, number)
    kernel.add_function(NEXT, f'{vendor}:{product}')
    devices.spec(*spec_entry.entries(PLACE))
    specs = device_spec.load(os_acc.CONF)
    named = {each for each in pci.addresses() if specs.find(pci.get(each))}
    assert named == {PLACE, *pci.get(PLACE).vf_addresses}
    kernel.take_off(PLACE)
    kernel.add_function(PLACE, f'{vendor}:{other}')
    changed = specs.find(pci.get(PLACE)) is None
    assert changed == (other not in ((product, vf) if number else (product,)))
