# SPDX-License-Identifier: Apache-2.0

"""What root keeps on disk: as the release before wrote it.

A host is upgraded while its VANs have devices, so each literal text here must
be read for ever. The same calls write it.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import json
import os
import pathlib

import pytest

import os_acc
from os_acc import exception
from os_acc.claims import holder
from os_acc.kernel import device_files
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.kinds.idxd import entry as idxd_entry
from os_acc.kinds.npu import entry as npu_entry
from os_acc.kinds.nvme_of import entry as nvme_of_entry
from os_acc.privileged import function_notes
from os_acc.privileged import notes
from os_acc.privileged import storage
from os_acc.privileged.devfile import device_files as file_notes
from os_acc.privileged.idxd import notes as idxd_notes
from os_acc.privileged.npu import devices as npu_notes
from os_acc.privileged.nvme_of import notes as nvme_of_notes

PF, VF = '0000:3b:00.0', '0000:3b:00.1'
WHO = holder.Holder(
    '3f1b3a52-6d5e-4f7a-9a53-0b1c2d3e4f50',
    '/var/lib/nova/os-acc.sqlite',
    '11111111-2222-4333-8444-555555555555',
    '22222222-3333-4444-8555-666666666666',
)
OTHER = dataclasses.replace(
    WHO,
    journal='4f1b3a52-6d5e-4f7a-9a53-0b1c2d3e4f50',
    instance='33333333-2222-4333-8444-555555555555',
    van='44444444-3333-4444-8555-666666666666',
)
UUID = 'c9d1b1f2-3f0f-4f65-8a54-5c3d2e0a1b01'
WWN = 'uuid.1b4e28ba-2fa1-11d2-883f-0016d3cca427'
HOLDER = (
    '["3f1b3a52-6d5e-4f7a-9a53-0b1c2d3e4f50", "/var/lib/nova/os-acc.sqlite", '
    '"11111111-2222-4333-8444-555555555555", '
    '"22222222-3333-4444-8555-666666666666"]'
)
CARD, NPU, QUEUE = f'{PF}+drm+card', f'{PF}+npu=whole', f'{PF}-wq0'
ENTRY = '{"devices": ["/dev/acc*"], "resource_class": "CUSTOM_F"}'
QUEUES = idxd_entry.Queues(wq_size=16)
MDEV = mdev.Mdev(UUID, PF, 'type-1')
TARGET = nvme_of_entry.read(
    'nvme_of',
    {
        'nqn': 'nqn.2024-01.org.example:fast',
        'portals': [['192.0.2.1', 4420, 'tcp']],
        'namespaces': [WWN],
    },
)


@pytest.fixture
def here(kernel):
    kernel.add_function(PF, '8086:4940', 0x120000, 'qat', totalvfs=2)
    kernel.write_numvfs(PF, 2)
    os_acc.initialize()
    return kernel


@dataclasses.dataclass(frozen=True)
class Case:
    """A file of the release before.

    :ivar name: of the file
    :ivar text: what it says
    :ivar write: the call that writes it
    :ivar read: reads it, by a call that other modules make
    :ivar says: what that gives
    """

    name: str
    text: str
    write: Callable[[], None]
    read: Callable[[], object]
    says: object

    def __str__(self) -> str:
        return self.name.partition('-')[0]


def note_npu() -> None:
    number = device_files.Number('c', 261, 0)
    file = device_files.DeviceFile('/dev/accel/accel0', number)
    npu_notes.note(pci.get(PF), npu_entry.Npu(owner='nova'), [file])


def note_file() -> None:
    notes.note(
        notes.FILE,
        CARD,
        CARD,
        device='/dev/acc0',
        entry=ENTRY,
        parent=PF,
        files=['char-240-0'],
        within=[PF],
        namespaces=[],
    )


NOTES = [
    Case(
        f'pci-{VF}',
        f'{{"device": "{PF}", "vfio_driver": "vfio-pci", "trusted": true, '
        f'"what": "8086:4940", "holder": {HOLDER}}}',
        lambda: function_notes.note_function(
            pci.get(VF), vfio_driver='vfio-pci', trusted=True
        ),
        lambda: function_notes.of_function(notes.PCI, pci.get(VF)),
        function_notes.Function(PF, 'vfio-pci', trusted=True),
    ),
    Case(
        f'vfs-{PF}',
        f'{{"device": "{PF}", "numbers": [2], "what": "8086:4940"}}',
        lambda: function_notes.note_vfs(pci.get(PF), 2),
        lambda: function_notes.vfs_of(pci.get(PF)),
        frozenset({2}),
    ),
    Case(
        f'vgpu-{VF}',
        f'{{"device": "{PF}", "number": 558, "what": "8086:4940", '
        f'"holder": {HOLDER}}}',
        lambda: function_notes.note_vgpu(pci.get(VF), 558),
        lambda: function_notes.of_function(notes.VGPU, pci.get(VF)),
        function_notes.Function(PF, number=558),
    ),
    Case(
        f'mdev-{UUID}',
        f'{{"device": "{PF}", "what": "{PF} type-1", "holder": {HOLDER}}}',
        lambda: function_notes.note_mdev(MDEV),
        lambda: notes.is_noted(
            notes.MDEV, UUID, function_notes.mdev_text(MDEV)
        ),
        True,
    ),
    Case(
        f'file-{CARD}',
        f'{{"device": "/dev/acc0", "entry": {json.dumps(ENTRY)}, '
        f'"parent": "{PF}", "files": ["char-240-0"], "within": ["{PF}"], '
        f'"namespaces": [], "what": "{CARD}", "holder": {HOLDER}}}',
        note_file,
        lambda: notes.said(file_notes.Files, notes.FILE, CARD, CARD),
        file_notes.Files(ENTRY),
    ),
    Case(
        f'file-{NPU}',
        f'{{"parent": "{PF}", "files": ["char-261-0"], "within": ["{PF}"], '
        '"driver": "qat", "settings": {"owner": "nova", "group": null, '
        f'"mode": null}}, "what": "8086:4940", "holder": {HOLDER}}}',
        note_npu,
        lambda: (
            npu_notes.settings_of(pci.get(PF)),
            npu_notes.driver_of(PF),
            npu_notes.has(WHO.van, pci.get(PF)),
            npu_notes.has(OTHER.van, pci.get(PF)),
        ),
        (npu_entry.Npu(owner='nova'), 'qat', True, False),
    ),
    Case(
        f'idxd-{QUEUE}',
        f'{{"device": "{PF}", "ids": "8086:4940", "settings": {{"wq_mode": '
        '"dedicated", "wq_size": 16, "wq_count": null, "wq_groups": 1, '
        '"priority": 10, "threshold": null, "max_batch_size": null, '
        f'"max_transfer_size": null}}, "what": "{WHO.van}", '
        f'"holder": {HOLDER}}}',
        lambda: idxd_notes.note(pci.get(PF), QUEUE, WHO.van, QUEUES),
        lambda: notes.said(idxd_notes.Queue, notes.IDXD, QUEUE),
        idxd_notes.Queue(WHO.van, '8086:4940', QUEUES),
    ),
    Case(
        f'namespace-{WWN}',
        f'{{"what": "{TARGET.nqn}", "device": "{WWN}", '
        f'"instance": "{WHO.instance}", "given": true, "holder": {HOLDER}, '
        f'"target": {{"nqn": "{TARGET.nqn}", "portals": [["192.0.2.1", 4420, '
        f'"tcp"]], "namespaces": ["{WWN}"], "dhchap_secret_file": null, '
        '"erase": "zeroes"}}',
        lambda: nvme_of_notes.write(
            WWN, nvme_of_notes.Note(WHO.instance, True, TARGET)
        ),
        lambda: nvme_of_notes.read(WWN),
        nvme_of_notes.Note(WHO.instance, True, TARGET, WHO),
    ),
    Case(
        f'disk-{PF}-8086:4940',
        f'{{"instance": "{WHO.instance}", "drive": null}}',
        lambda: storage.write_note(pci.get(PF), WHO.instance, None),
        lambda: storage.noted_holder(pci.get(PF)),
        WHO.instance,
    ),
]
OF_VANS = [each for each in NOTES if str(each) not in ('vfs', 'disk')]


def put(name: str, text: str) -> pathlib.Path:
    """Write a note as it is on disk."""
    directory = pathlib.Path(notes.FOLDER)
    directory.mkdir(0o700, exist_ok=True)
    path = directory / name
    path.write_text(text)
    return path


@pytest.mark.parametrize('case', NOTES, ids=str)
def test_a_note_is_read(here, case):
    put(case.name, case.text)
    assert case.read() == case.says


@pytest.mark.parametrize('case', NOTES, ids=str)
def test_a_note_is_written_as_before(here, case):
    with holder.acting_for(WHO):
        case.write()
    path = pathlib.Path(notes.FOLDER) / case.name
    assert path.read_text() == case.text
    assert path.stat().st_mode & 0o777 == 0o600
    inode = path.stat().st_ino
    with holder.acting_for(WHO):
        case.write()
    # It says that already, so it is not written.
    assert path.stat().st_ino == inode
    assert os.listdir(notes.FOLDER) == [case.name]


@pytest.mark.parametrize('case', OF_VANS, ids=str)
def test_a_note_keeps_others_out(here, case):
    put(case.name, case.text)
    kind, _, name = case.name.partition('-')
    with holder.acting_for(WHO):
        notes.check_noted(kind, name)
    with holder.acting_for(OTHER):
        with pytest.raises(exception.DeviceBusy, match=WHO.instance):
            notes.check_noted(kind, name)
        notes.forget(kind, name, notes.Cleaned.EARLIER)
    assert notes.files.names() == [case.name]
    with holder.acting_for(WHO):
        notes.forget(kind, name, notes.Cleaned.EARLIER)
    assert notes.files.names() == []


@pytest.mark.parametrize('case', OF_VANS, ids=str)
def test_what_a_note_says_besides_stays(here, case):
    """A later release may have written it."""
    more = f'{case.text[:-1]}, "later": 1}}'
    path = put(case.name, more.replace(WHO.journal, OTHER.journal))
    assert case.read() is not None
    notes.adopt(WHO, case.name.partition('-')[2])
    found = json.loads(path.read_text())
    assert (found['later'], found['holder']) == (1, WHO.to_wire())


# --- damaged notes


@pytest.mark.parametrize('text', ['', '{', '[]', '"what"', '{"x": 1}', '5'])
@pytest.mark.parametrize('case', OF_VANS, ids=str)
def test_a_damaged_note_allows_nothing_and_keeps_all_out(here, case, text):
    path = put(case.name, text)
    kind, _, name = case.name.partition('-')
    assert notes.find(kind, name) is None
    assert not notes.is_noted(kind, name, 'x')
    with holder.acting_for(WHO):
        assert len(notes.of_others()) == 1
        notes.forget(kind, name, notes.Cleaned.EARLIER)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ('name', 'values', 'act'),
    [
        (
            f'vfs-{PF}',
            '"numbers": 2',
            lambda: function_notes.note_vfs(pci.get(PF), 2),
        ),
        (
            f'pci-{VF}',
            '"vfio_driver": 5',
            lambda: function_notes.of_function(notes.PCI, pci.get(VF)),
        ),
        (
            f'file-{CARD}',
            '"entry": {}',
            lambda: notes.said(file_notes.Files, notes.FILE, CARD),
        ),
    ],
)
def test_a_note_with_a_damaged_value(here, name, values, act):
    """It is not known what the VAN has; that it has it, is."""
    path = put(name, f'{{"what": "8086:4940", {values}}}')
    before = path.read_text()
    with pytest.raises(exception.PrivilegeError) as caught:
        act()
    assert f'the note {path} cannot be read' in str(caught.value)
    assert path.read_text() == before


@pytest.mark.parametrize(
    'text', ['{', '[]', '{}', '{"instance": "x", "given": true}']
)
def test_whose_data_a_namespace_has_is_unknown(here, text):
    put(f'namespace-{WWN}', text)
    assert nvme_of_notes.read(WWN) == nvme_of_notes.Note(
        nvme_of_notes.UNKNOWN, False, None
    )


@pytest.mark.parametrize('text', ['{', '[]', '{}', '5', '"instance"'])
def test_whose_data_a_disk_has_is_unknown(here, text):
    put(f'disk-{PF}-8086:4940', text)
    assert storage.noted_holder(pci.get(PF)) == storage.UNKNOWN
