# SPDX-License-Identifier: Apache-2.0

"""What one handle claims, and what is read for it: parts of os_acc.claims."""

from __future__ import annotations

import itertools

import device_nodes
import devices
import pytest

import os_acc
from os_acc.attach import exclusion
from os_acc.claims import allocated
from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import holder
from os_acc.claims import nodes
from os_acc.claims import of_handle
from os_acc.claims import reader
from os_acc.journal import programs
from os_acc.kernel import sysfs
from os_acc.kinds.pci import claims as pci_claims
from os_acc.spec import device_spec

PF, VF = '0000:3b:00.0', '0000:3b:00.1'
CARD = '0000:07:00.0'
UUID = 'c9d1b1f2-3f0f-4f65-8a54-5c3d2e0a1b01'
OTHER_UUID = 'c9d1b1f2-3f0f-4f65-8a54-5c3d2e0a1b02'


@pytest.fixture
def here(kernel, monkeypatch):
    kernel.add_function(PF, '1234:11e8', 0x120000, 'qat', totalvfs=1)
    kernel.add_function(CARD, '1234:11e8', 0x120000)
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    return kernel


class Host:
    """A host with one function, and a file that is no work queue of it."""

    def function(self, address):
        return facts.Function(address, address) if address == PF else None

    def files(self, name, numbers):
        return facts.Files((PF,))

    def mdev_parent(self, uuid):
        return None

    def is_set_up(self, address):
        return True

    def slot(self, index):
        return None


def holding(handle, device, van, instance):
    row = facts.Row(handle, device, van, instance)
    return of_handle.holding(row, Host())


@pytest.mark.parametrize('handle', [f'test/{PF}', 'pci/nic0'])
def test_what_is_no_device_claims_its_handle_only(handle):
    (claim,) = holding(handle, PF, 'van', 'instance').claims
    assert claim.node == nodes.handle(handle)


@pytest.mark.parametrize('instance', ['one', 'other'])
def test_a_work_queue_and_another_file_of_its_function(instance):
    """Not even one instance gets both."""
    queue = holding(f'file/{PF}-wq1', PF, 'a', 'one')
    file = holding(f'file/{PF}+drm+card', PF, 'b', instance)
    for wanted, held in ((queue, file), (file, queue)):
        found = {each.node for each in conflict.conflicts(wanted, [held])}
        assert found == {nodes.function(Host(), PF)}


class OfVFs(Host):
    """Its accelerator has files of two VFs, one of which is a work queue."""

    def function(self, address):
        return facts.Function(address, PF)

    def files(self, name, numbers):
        if name.startswith(PF):
            return facts.Files((PF,))
        return facts.Files((VF, f'{PF[:-1]}2'), queues=((VF, 0),))


def test_another_file_does_not_loosen_what_a_work_queue_claims():
    """One instance may have files of a PF and of its VF, but no queue."""
    some, pf = (
        of_handle.holding(facts.Row(handle, PF, handle, 'one'), OfVFs())
        for handle in (f'file/{VF}+dsa', f'file/{PF}+drm+card')
    )
    for wanted, held in ((some, pf), (pf, some)):
        found = {each.node for each in conflict.conflicts(wanted, [held])}
        assert found == {nodes.function(OfVFs(), PF)}


class NoFunction(Host):
    def files(self, name, numbers):
        return facts.Files()


@pytest.mark.parametrize('number', [0, 1, 2])
def test_the_shares_of_one_instance_count(number):
    def share(each):
        return of_handle.holding(
            facts.Row(
                f'file/disk/{each}', 'disk', f'van {each}', 'one', most=2
            ),
            NoFunction(),
        )

    held = [share(each) for each in range(number)]
    found = {each.node for each in conflict.conflicts(share(number), held)}
    assert found == ({nodes.device_file('disk')} if number == 2 else set())


class OfBoth(Host):
    """Its accelerator has files of a PF and of its VF."""

    def __init__(self, *functions):
        self._functions = functions

    def function(self, address):
        return facts.Function(address, PF)

    def files(self, name, numbers):
        return facts.Files(self._functions)


@pytest.mark.parametrize('functions', [(PF, VF), (VF, PF)])
def test_the_strictest_of_its_claims_on_a_node_counts(functions):
    """The file of the PF shares the PF; that of the VF has a part of it."""
    host = OfBoth(*functions)
    row = facts.Row(f'file/{PF}+drm+card', PF, 'a', 'one')
    modes = {
        each.node: each.mode for each in of_handle.holding(row, host).claims
    }
    assert modes[nodes.function(host, PF)] == conflict.SHARED
    assert modes[nodes.function(host, VF)] == conflict.SHARED


@pytest.mark.parametrize(
    'modes',
    [
        *itertools.permutations(
            [conflict.EXCLUSIVE, conflict.SHARED, conflict.PART]
        )
    ],
)
def test_the_strictest_counts_in_any_order(monkeypatch, modes):
    node = conflict.Resource('PCIe switch', '0000:00:01.0')
    monkeypatch.setattr(
        pci_claims,
        'claims',
        lambda row, address, known: [
            conflict.Claim(node, mode, row.van_uuid) for mode in modes
        ],
    )
    found = {
        each.node: each.mode
        for each in holding(f'pci/{PF}', PF, 'a', 'one').claims
    }
    assert found[node] == conflict.EXCLUSIVE


class Chip(Host):
    """Three PFs of one chip, the first of which can program it."""

    ALL = (PF, CARD, f'{CARD[:-1]}1')

    def function(self, address):
        if address == f'{CARD[:-1]}3':
            return None
        pf = CARD if address == f'{CARD[:-1]}2' else address
        return facts.Function(address, pf, chip=self.ALL, fpgas=(PF,))

    def files(self, name, numbers):
        return facts.Files((name.partition('+')[0],))


@pytest.mark.parametrize(
    ('wanted', 'held', 'places'),
    [
        # A part of one PF and a part of another: nobody programs.
        ((f'mdev/{UUID}', CARD), (f'mdev/{OTHER_UUID}', PF), ()),
        ((f'pci/{CARD[:-1]}2', CARD), (f'mdev/{UUID}', PF), ()),
        # Two PFs, neither of which can program.
        ((f'pci/{CARD}', CARD), (f'pci/{CARD[:-1]}1', f'{CARD[:-1]}1'), ()),
        # The first one is wanted, or is programmed through the other.
        ((f'pci/{CARD}', CARD), (f'pci/{PF}', PF), (PF, CARD)),
        ((f'mdev/{UUID}', CARD), (f'pci/{PF}', PF), (CARD,)),
        # A VF that is gone since a reboot.
        ((f'pci/{CARD[:-1]}3', CARD), (f'pci/{PF}', PF), (CARD,)),
        ((f'file/{CARD[:-1]}3+drm+card', CARD), (f'pci/{PF}', PF), (CARD,)),
        ((f'pci/{CARD}', CARD), (f'mdev/{UUID}', PF), (PF,)),
        ((f'file/{CARD}+npu=whole', CARD), (f'mdev/{UUID}', PF), (PF,)),
        ((f'file/{CARD}+drm+card', CARD), (f'mdev/{UUID}', PF), (PF,)),
    ],
)
def test_what_can_be_programmed_together(wanted, held, places):
    one, other = (
        of_handle.holding(facts.Row(*each, van, van), Chip())
        for van, each in (('a', wanted), ('b', held))
    )
    for first, second in ((one, other), (other, one)):
        found = {each.node for each in conflict.conflicts(first, [second])}
        assert found == set(map(nodes.place_in_fpga, places))


class OfMdev(Host):
    """A file of a mediated device whose parent is a VF."""

    def function(self, address):
        return facts.Function(address, PF)

    def files(self, name, numbers):
        return facts.Files(mdevs=(UUID,))

    def mdev_parent(self, uuid):
        return VF


def test_a_file_of_a_mediated_device_on_a_vf():
    """Its VAN has the PF as its device."""
    file, vf, beside = (
        of_handle.holding(facts.Row(handle, PF, handle, handle), OfMdev())
        for handle in (f'file/{UUID}+x', f'pci/{VF}', f'pci/{PF[:-1]}2')
    )
    found = {each.node for each in conflict.conflicts(vf, [file])}
    assert found == {nodes.function(OfMdev(), VF)}
    assert not list(conflict.conflicts(beside, [file]))
    requested = facts.Row(f'file/{UUID}+x', None, 'a', 'a')
    held = of_handle.holding(requested, OfMdev())
    assert not list(conflict.conflicts(vf, [held]))


def test_a_file_of_a_mediated_device_that_is_gone(monkeypatch):
    monkeypatch.setattr(OfMdev, 'mdev_parent', lambda self, uuid: None)
    file, vf = (
        of_handle.holding(facts.Row(handle, VF, handle, handle), OfMdev())
        for handle in (f'file/{UUID}+x', f'pci/{VF}')
    )
    found = {each.node for each in conflict.conflicts(vf, [file])}
    assert found == {nodes.function(OfMdev(), VF)}


class Slots(Host):
    """I/O slots of Power, by the first letter of the name."""

    def slot(self, index):
        return {
            'n': facts.Slot(None, True),
            'g': facts.Slot('bus', True),
            'a': facts.Slot('bus', False),
        }.get(index[0])


@pytest.mark.parametrize(
    ('wanted', 'held', 'device', 'together'),
    [
        ('g1', 'g2', 'g2', True),
        ('g1', 'a2', 'a2', True),
        ('a1', 'a2', 'a2', False),
        # It is only requested.
        ('g1', 'g2', None, False),
        ('no bus 1', 'no bus 2', 'no bus 2', False),
        ('unknown 1', 'unknown 2', 'unknown 2', False),
    ],
)
def test_slots_that_move_together(wanted, held, device, together):
    one = of_handle.holding(
        facts.Row(f'drc/{wanted}', wanted, 'a', 'a'), Slots()
    )
    other = of_handle.holding(
        facts.Row(f'drc/{held}', device, 'b', 'b'), Slots()
    )
    found = {each.node for each in conflict.conflicts(one, [other])}
    assert found == ({nodes.bus_group('bus')} if together else set())


# --- Who has something


def test_a_van_without_a_handle_has_no_device():
    assert allocated.file_in(None) is None
    assert allocated.function_in(None) is None


def test_calls_for_no_van_of_two_journals():
    one, other = holder.Holder('1', '/one'), holder.Holder('2', '/other')
    assert one.may_use_what(one)
    assert not one.may_use_what(other)


def test_what_was_programmed_counts_for_the_slot():
    holders = allocated.Holders(programmed=[PF])
    assert holders.is_programmed(PF) is True
    assert holders.is_programmed(VF) is True
    assert holders.is_programmed(CARD) is False


def test_a_pf_beside_one_that_was_programmed(here):
    """No entry and no id says that the card is an FPGA."""
    second = f'{PF[:-1]}5'
    here.add_function(second, '1234:11e8', 0x120000)
    devices.spec({'address': '*'})
    os_acc._get().journal.save_program(
        programs.Program(PF, '', 'aes', None, programs.PROGRAMMED, 'boot')
    )
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(PF)])
    text = str(devices.refused(devices.pci(second)))
    assert f'instance {instance.uuid} has' in text


# --- What is read of a host


def test_a_call_reads_each_function_once(here, monkeypatch):
    devices.spec({'address': '*'})
    vans = [
        os_acc.plug(devices.instance(), [devices.pci(each)])[0]
        for each in (PF, CARD)
    ]
    asked, link = [], sysfs.link

    def count(path):
        asked.append(path.removeprefix(f'{sysfs.SYS}/'))
        return link(path)

    monkeypatch.setattr(sysfs, 'link', count)
    made = exclusion.Exclusion(os_acc._get().journal, os_acc.CONF)
    for van in vans:
        made.check(van)
    for address in (PF, CARD):
        assert asked.count(f'bus/pci/devices/{address}/physfn') == 1


def test_a_namespace_that_goes_while_it_is_read(here, monkeypatch):
    """Its directory is there, and the number of its file is not."""
    files = device_nodes.Nodes(here)
    files.install(monkeypatch)
    for name, number in (
        ('nvme7n1', 'b 259:2'),
        ('nvme8n1', 'b 259:0'),
        ('nvme9n1', 'b 259:1'),
    ):
        directory = f'virtual/nvme-subsystem/nvme-subsys{name[4]}/{name}'
        files.add(name, number, directory, 'block')
        path = here.sys / 'devices' / directory
        wwid = '' if name[4] == '7' else f'eui.{name[4]}'
        (path / 'wwid').write_text(f'{wwid}\n')
        (here.sys / 'class/block' / name).symlink_to(path)
        (path / 'queue').mkdir()
    (path / 'dev').unlink(missing_ok=True)
    known = reader.Reader(device_spec.Specs())
    name = 'virtual+nvme-subsystem+nvme-subsys8+nvme8n1'
    assert known.files(name, ('b 259:0',)).namespaces == ('eui.8',)
    # One that does not tell its name is not the same as all others.
    name = 'virtual+nvme-subsystem+nvme-subsys7+nvme7n1'
    assert known.files(name, ('b 259:2',)).namespaces == ()


@pytest.mark.parametrize('many', [False, True])
def test_a_kind_of_node_that_names_do_not_tell(here, monkeypatch, many):
    """What a kind claims counts, also where nobody has said who is near."""
    given = pci_claims.claims

    def with_switch(row, address, known):
        yield from given(row, address, known)
        switch = conflict.Resource('PCIe switch', '0000:00:01.0')
        yield conflict.Claim(switch, conflict.EXCLUSIVE, row.instance_uuid)

    monkeypatch.setattr(pci_claims, 'claims', with_switch)
    have = facts.Row(f'pci/{PF}', PF, 'van of a', 'a')
    holders = allocated.Holders([have], many=many)
    for instance, excluded in (('a', []), ('b', ['PCIe switch'])):
        asking = holders.asked_by(allocated.Taker('van', instance))
        met = asking.in_the_way(f'pci/{CARD}', CARD)
        assert [each.where.node.kind for each in met] == excluded


def test_what_is_below_a_function(here):
    here.write_numvfs(PF, 1)
    known = reader.Reader(device_spec.Specs())
    assert known.below(PF) == [VF]
    assert known.below(VF) == known.below('0000:3d:00.0') == []


def test_a_function_whose_ids_cannot_be_read(here, caplog):
    """Neither what is below it is known, nor of which chip it is."""
    beside = f'{PF[:-1]}1'
    here.add_function(beside, '10ee:5000', 0x120000)
    here.file(PF, 'modalias').write_text('nonsense')
    known = reader.Reader(device_spec.Specs())
    for address in (PF, beside):
        assert known.function(address).address == address
    assert known.below(PF) == []
    assert 'A device is skipped' in caplog.text
    assert PF in caplog.text


def test_a_device_that_has_left_the_bus_is_not_set_up(here):
    """A VAN that has a work queue of it is no reason to fail for others."""
    assert not reader.Reader(device_spec.Specs()).is_set_up('0000:6a:01.0')


def test_a_file_of_a_group_with_a_function_and_a_mediated_device(
    here, monkeypatch
):
    files = device_nodes.Nodes(here)
    files.install(monkeypatch)
    group = here.group_of(CARD)
    members = here.sys / f'kernel/iommu_groups/{group}/devices'
    (members / UUID).symlink_to(here.sys / 'devices')
    (here.root / f'dev/vfio/{group}').unlink(missing_ok=True)
    files.add(f'vfio/{group}', 'c 244:1', f'virtual/vfio/{group}', 'vfio')
    known = reader.Reader(device_spec.Specs())
    found = known.files(f'{CARD}+vfio', ('c 244:1',))
    assert (found.functions, found.mdevs) == ((CARD,), (UUID,))
