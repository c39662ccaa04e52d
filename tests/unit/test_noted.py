# SPDX-License-Identifier: Apache-2.0

"""Notes that do not say all of what a VAN has: they refuse more, not less."""

from __future__ import annotations

import json

import claim_notes
import device_nodes
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.claims import holder
from os_acc.kernel import file_place
from os_acc.kernel import pci
from os_acc.privileged import function_notes
from os_acc.privileged import noted
from os_acc.privileged import notes as root_notes
from os_acc.privileged.nvme_of import notes as nvme_of_notes

PF, VF = '0000:3b:00.0', '0000:3b:00.1'
CARD = f'{PF}+drm+card'


@pytest.fixture
def here(kernel, monkeypatch):
    kernel.add_function(PF, '8086:4940', 0x120000, 'qat', totalvfs=1)
    kernel.write_numvfs(PF, 1)
    nodes = device_nodes.Nodes(kernel)
    nodes.install(monkeypatch)
    nodes.add('dri/card0', 'c 226:0', f'pci0000:00/{PF}/drm/card0', 'drm')
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    return kernel


def refused(note):
    """The text with which a VAN is refused a device."""
    with devices.acting():
        with pytest.raises(exception.DeviceBusy) as caught:
            note()
    return str(caught.value)


def note_vf():
    function_notes.note_function(pci.get(VF))


def note_pf():
    function_notes.note_function(pci.get(PF))


def note_file():
    root_notes.note(root_notes.FILE, CARD, CARD, within=[PF], files=[CARD])


@pytest.mark.parametrize(
    ('before', 'name', 'after'),
    [
        (note_pf, f'pci-{PF}', note_vf),
        (note_vf, f'pci-{VF}', note_pf),
        (note_file, f'file-{CARD}', note_vf),
        (note_file, f'file-{CARD}', note_pf),
        (note_vf, f'pci-{VF}', note_file),
    ],
)
def test_a_note_that_names_no_van(here, before, name, after):
    """Only the device itself may be that of the VAN that asks."""
    before()
    text = refused(after)
    assert f'the note {name} of the privileged daemon names no VAN' in text
    assert 'Start each service and program that plugs with os-acc' in text
    assert root_notes.files.names() == [name]
    with devices.acting():
        before()
    assert json.loads(root_notes.files.read(name))['holder'] is not None
    with devices.acting():
        after()


@pytest.mark.parametrize('name', [f'file-{CARD}', f'pci-{VF}'])
def test_a_part_whose_note_cannot_be_read(here, name):
    root_notes.files.write(name, '{')
    assert f'the note {name} of the privileged daemon cannot' in refused(
        note_pf
    )


def test_an_mdev_whose_note_cannot_be_read(here):
    """Its parent is that of now."""
    uuid = 'c9d1b1f2-3f0f-4f65-8a54-5c3d2e0a1b01'
    parent = (here.pci / 'devices' / PF).resolve()
    here.add_mdev_parent(parent, {'type-1': 1}, 4)
    here.create_mdev(parent / 'mdev_supported_types/type-1', uuid)
    root_notes.files.write(f'mdev-{uuid}', '{')
    assert f'the note mdev-{uuid} of' in refused(note_pf)
    with devices.acting():
        note_vf()


def test_a_namespace_of_which_another_journal_has_a_file(here):
    """It was noted after the namespace was looked at."""
    wwn = 'uuid.1b4e28ba-2fa1-11d2-883f-0016d3cca427'
    with holder.acting_for(claim_notes.ONE):
        root_notes.note(
            root_notes.FILE, 'virtual+disk', 'virtual+disk', within=[wwn]
        )
    with holder.acting_for(claim_notes.OTHER):
        with pytest.raises(exception.DeviceBusy) as caught:
            note_namespace(wwn, True)
        assert claim_notes.ONE.instance in str(caught.value)
        assert root_notes.files.names() == ['file-virtual+disk']
        # That it may hold the data of an instance gives it to nobody.
        note_namespace(wwn, False)
    assert root_notes.files.names() == [
        'file-virtual+disk',
        f'namespace-{wwn}',
    ]


def note_namespace(wwn, given):
    note = nvme_of_notes.Note(claim_notes.OTHER.instance, given, None)
    nvme_of_notes.write(wwn, note)


def test_a_file_of_a_vf_that_is_not_there_yet(here):
    """Its note tells the PF, also after a reboot."""
    name = f'{VF}+drm+card'
    root_notes.note(
        root_notes.FILE, name, name, within=[VF], files=[name], parent=PF
    )
    here.write_numvfs(PF, 0)
    assert pci.find(VF) is None
    assert f'the note file-{name} of' in refused(note_pf)


def test_what_root_notes_of_a_file_of_a_vf(here, monkeypatch):
    nodes = device_nodes.Nodes(here)
    nodes.install(monkeypatch)
    nodes.add('dri/card1', 'c 226:1', f'pci0000:00/{VF}/drm/card1', 'drm')
    devices.spec({'devices': '/dev/dri/card1', 'resource_class': 'CUSTOM_F'})
    os_acc.plug(devices.instance(), [devices.wanted('CUSTOM_F')])
    (name,) = [
        each for each in root_notes.files.names() if each.startswith('file')
    ]
    assert file_place.function_in(name.removeprefix('file-')) == VF
    assert json.loads(root_notes.files.read(name))['parent'] == PF


# --- What a note is called, and which one is told


@pytest.mark.parametrize(
    ('kind', 'label'),
    [
        (root_notes.PCI, 'PCI function'),
        (root_notes.VGPU, 'VF'),
        (root_notes.MDEV, 'mdev'),
        (root_notes.FILE, 'device file'),
        (root_notes.IDXD, 'work queue'),
        (root_notes.NAMESPACE, 'namespace'),
    ],
)
def test_what_errors_call_a_device(kind, label):
    note = noted.Note(kind, 'name', {'what': 'x'}, claim_notes.ONE)
    assert str(note.error()).startswith(f'{label} name is busy: ')


def test_a_share_of_an_accelerator():
    note = noted.Note(root_notes.FILE, f'{CARD}+share=2', {'what': CARD}, None)
    assert note.row('owner').handle == f'file/{CARD}/2'


def of(address, **values):
    return noted.Note(root_notes.PCI, address, {'what': 'x', **values}, None)


def test_the_note_that_is_in_the_way_is_told(here):
    """Of several, and with the device only if neither is named by it."""
    one, other = '0000:07:00.0', '0000:07:00.1'
    for address in (one, other):
        here.add_function(address, '1234:11e8', 0x120000, group=60)
    file = noted.Note(
        root_notes.FILE,
        CARD,
        {'what': CARD, 'within': [PF], 'files': [CARD]},
        None,
    )
    notes = [of('0000:09:00.0'), of(one), file]
    rule = noted.Rule(notes)

    def told(note):
        return [(each.note, each.both) for each in rule.in_the_way(note)]

    # An IOMMU group is no device.
    assert told(of(other)) == [(notes[1], None)]
    ((found, both),) = told(of(VF, device=PF))
    assert (found, str(both)) == (file, f'PCI function {PF}')
    assert told(of(PF)) == [(file, None)]
    # Somebody else may say what counts.
    assert not list(rule.in_the_way(of(PF), lambda node: False))
    assert not list(noted.Rule([]).in_the_way(of(PF)))


def test_another_function_of_the_group_shares_no_hardware(here):
    """Who has it is said by the group, not as if it were the same device."""
    one, other = '0000:07:00.0', '0000:07:00.1'
    for address in (one, other):
        here.add_function(address, '1234:11e8', 0x120000, group=60)
    with holder.acting_for(claim_notes.ONE):
        function_notes.note_function(pci.get(one))
    with holder.acting_for(claim_notes.OTHER):
        assert function_notes.why_not(pci.get(one)) is not None
        assert function_notes.why_not(pci.get(other)) is None
