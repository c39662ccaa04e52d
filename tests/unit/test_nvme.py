# SPDX-License-Identifier: Apache-2.0

"""Emptying NVMe drives, against a controller in memory."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.privileged.nvme import cleaning
from os_acc.privileged.nvme import commands
from os_acc.privileged.nvme import controller as controllers
from os_acc.privileged.nvme import function
from os_acc.testing import nvme_model

ADDRESS = '0000:04:00.0'
FORMAT = 0x80


@pytest.fixture
def drive(monkeypatch):
    drives = nvme_model.Drives()
    monkeypatch.setattr(function, 'opened', drives.opened)
    made = drives.there[ADDRESS] = nvme_model.Drive()
    for namespace in made.namespaces.values():
        namespace.fill()
    return made


def silent(fraction, text):
    pass


def empty(is_vf=False, seconds=5.0, tell=silent):
    return cleaning.empty(ADDRESS, is_vf, seconds, tell)


def left(drive) -> list[int]:
    """The blocks that still hold what the tenant has written."""
    return [
        block
        for namespace in drive.namespaces.values()
        for block, data in namespace.data.items()
        if b'tenant' in data
    ]


def test_formatted_with_a_user_data_erase(drive):
    result = empty()
    assert left(drive) == []
    assert [nsid for nsid, _ in drive.formatted] == [1]
    assert drive.formatted[0][1] >> 9 == commands.ERASE_USER_DATA
    assert result.empty == 4096
    assert (result.changed, result.unknown) == (0, 0)
    assert 'Format NVM of namespaces 1 (user data erase)' in str(result)
    assert 'of the blocks that were read back, 4096 are empty' in str(result)


def test_formatted_cryptographically_where_fna_says_so(drive):
    drive.fna = 4
    drive.erase = lambda block, size: bytes(
        (block * 7 + n) % 251 for n in range(size)
    )
    result = empty()
    assert drive.formatted[0][1] >> 9 == commands.ERASE_CRYPTOGRAPHIC
    assert result.changed == 4096
    assert 'hold other content than before' in str(result)


def test_namespaces_keep_their_formats(drive):
    drive.namespaces[1] = nvme_model.Namespace(
        blocks=1024, size=4096, format_index=3
    )
    drive.namespaces[7] = nvme_model.Namespace(
        blocks=512, metadata=8, extended=True, format_index=5
    )
    for namespace in drive.namespaces.values():
        namespace.fill()
    empty()
    assert left(drive) == []
    assert [
        (nsid, word & 0xF, word >> 4 & 1) for nsid, word in drive.formatted
    ] == [(1, 3, 0), (7, 5, 1)]
    assert [n.format_index for n in drive.namespaces.values()] == [3, 5]


@pytest.mark.parametrize(
    ('sanicap', 'action'), [(1, 4), (2, 2), (3, 2), (7, 2)]
)
def test_sanitized_where_it_can(drive, sanicap, action):
    drive.sanicap = sanicap
    drive.oacs = 0
    seen = []
    empty(tell=lambda fraction, text: seen.append((fraction, text)))
    assert drive.sanitized == [action]
    assert drive.formatted == []
    assert left(drive) == []
    assert any(text == 'Sanitize' and 0 < f < 1 for f, text in seen[:-1])


def test_a_sanitize_that_was_interrupted_is_waited_for(drive):
    """A kill does not stop it; another one cannot begin meanwhile."""
    drive.sanicap = 2
    drive.sanitize_runs()
    empty()
    assert drive.sanitized == [2]
    assert left(drive) == []


def test_a_sanitize_that_fails(drive):
    drive.sanicap, drive.sanitize_result = 2, 3
    with pytest.raises(exception.CleaningFailed, match='Sanitize has failed'):
        empty()


def test_sanitize_has_a_deadline(drive):
    drive.sanicap, drive.sanitize_polls = 2, 10**6
    with pytest.raises(exception.Timeout, match=r'Waited 0\.1 s.*Sanitize'):
        empty(seconds=0.1)


def test_an_erase_that_does_nothing_is_found(drive):
    drive.effective = False
    with pytest.raises(
        exception.CleaningFailed, match='block 0 of namespace 1 reads as befo'
    ):
        empty()


def test_a_pattern_of_one_byte_counts_as_content(drive):
    namespace = drive.namespaces[1]
    namespace.data = dict.fromkeys(range(namespace.blocks), b'A' * 512)
    drive.effective = False
    with pytest.raises(exception.CleaningFailed, match='reads as before'):
        empty()


def test_a_large_drive_is_read_at_both_ends_and_in_between(drive):
    namespace = drive.namespaces[1] = nvme_model.Namespace(blocks=10**6)
    for block in (0, 1, 8, 2047, 10**6 - 1, 10**6 - 2048):
        namespace.data[block] = b'tenant'
    assert 4096 < empty().empty < 5000
    namespace.data[10**6 - 128] = b'tenant'
    drive.effective = False
    with pytest.raises(exception.CleaningFailed, match='block 999872'):
        empty()


def test_deallocated_blocks_are_empty(drive):
    drive.deallocated = True
    assert empty().empty == 4096


def test_blocks_that_are_too_large_are_said_to_be_unverified(drive):
    drive.namespaces[4] = nvme_model.Namespace(blocks=4, size=1 << 16)
    drive.namespaces[4].fill()
    result = empty()
    assert result.unread == (4,)
    assert 'because a block is too large: namespaces 4' in str(result)
    assert left(drive) == []


@pytest.mark.parametrize('mdts', [0, 1, 3])
def test_transfers_are_no_larger_than_the_controller_takes(drive, mdts):
    drive.mdts = mdts
    empty()
    assert left(drive) == []


def test_a_detached_namespace_is_erased_too(drive):
    """A guest may have hidden it for the next one."""
    drive.oacs = 2 | 8
    drive.namespaces[2] = nvme_model.Namespace(controllers=())
    drive.namespaces[2].fill()
    empty()
    assert left(drive) == []
    assert [nsid for nsid, _ in drive.formatted] == [1, 2]
    assert drive.namespaces[2].controllers == ()


def test_a_drive_without_namespaces(drive):
    drive.namespaces.clear()
    assert 'no namespace' in str(empty())


def test_a_vf_formats_its_own_namespaces_only(drive):
    drive.cmic, drive.id, drive.sanicap = 2, 5, 3
    drive.namespaces[1].controllers = (5,)
    drive.namespaces[2] = nvme_model.Namespace(controllers=(1,))
    drive.namespaces[2].fill()
    cleaning.check(ADDRESS, True)
    empty(is_vf=True)
    assert drive.sanitized == []
    assert [nsid for nsid, _ in drive.formatted] == [1]
    assert len(left(drive)) == 4096  # of another tenant


def test_a_pf_whose_vfs_are_off_is_sanitized(drive):
    drive.cmic, drive.sanicap = 2, 2
    drive.controllers, drive.secondary = (1, 2, 3), (2, 3)
    empty()
    assert drive.sanitized == [2]


def test_a_second_port_keeps_its_namespaces(drive):
    drive.cmic, drive.sanicap = 2, 2
    drive.controllers = (1, 2)
    empty()
    assert drive.sanitized == []
    assert drive.formatted


@pytest.mark.parametrize(
    ('values', 'is_vf', 'text'),
    [
        ({'oacs': 0}, False, 'supports neither Format NVM nor'),
        ({'oacs': 0, 'sanicap': 3}, True, 'does not support Format NVM, and'),
        ({'oacs': 0, 'sanicap': 4}, False, 'supports neither'),
        ({'fna': 2}, True, 'also erases those of other controllers'),
        ({'oacs': 10}, True, 'could attach the namespaces of other'),
        ({'persistent': True}, False, 'Persistent Memory Region'),
        (
            {'namespaces': {3: nvme_model.Namespace(controllers=(1, 9))}},
            True,
            'namespace 3 is also attached to controllers 9',
        ),
    ],
)
def test_what_cannot_be_emptied_is_known_at_plug_time(
    drive, values, is_vf, text
):
    for name, value in values.items():
        setattr(drive, name, value)
    for act in (cleaning.check, empty):
        with pytest.raises(function.Unsupported, match=text) as caught:
            act(*((ADDRESS, is_vf) if act is cleaning.check else (is_vf,)))
        assert 'Model serial cannot be erased' in str(caught.value)
        assert 'cleaning_command' in str(caught.value)
    assert drive.formatted == drive.sanitized == []


def test_an_offline_secondary_controller(drive):
    drive.offline = True
    with pytest.raises(function.Unsupported, match='offline'):
        cleaning.check(ADDRESS, True)


def test_a_controller_that_fails_for_good(drive):
    original = drive._complete

    def never(number, queue, command):
        if command[0] == FORMAT:
            drive.dead = True
            return
        original(number, queue, command)

    drive._complete = never
    with pytest.raises(exception.DeviceError, match=r'CSTS\.CFS'):
        empty()


def test_a_format_that_does_not_end(drive):
    original = drive._complete
    drive._complete = lambda number, queue, command: (
        None if command[0] == FORMAT else original(number, queue, command)
    )
    with pytest.raises(exception.Timeout, match='Format NVM of namespace 1'):
        empty(seconds=0.3)


def test_a_completion_queue_that_is_full(drive, monkeypatch):
    """The drive goes on when it is told that completions were taken."""
    write, told = drive.write32, []

    def keep(offset, value):
        if offset == 0x1004:  # the completion queue's doorbell
            told.append((offset, value))
        else:
            write(offset, value)

    made = controllers.Controller(drive, ADDRESS)
    made.start()
    monkeypatch.setattr(drive, 'write32', keep)
    for _ in range(7):
        made.admin(commands.request_queues())
    assert len(told) == 7
    with pytest.raises(exception.Timeout):
        made.admin(commands.request_queues(), seconds=0.1)
    assert len(drive.log) == 7
    write(*told[-1])
    assert len(drive.log) == 8


def test_a_refused_command_says_its_status(drive):
    drive.hooks[FORMAT] = lambda: drive.namespaces.clear()
    with pytest.raises(
        controllers.CommandFailed, match='status code 0bh of type 0h'
    ):
        empty()


def test_namespaces_that_change_meanwhile(drive):
    drive.oacs = 2 | 8
    drive.hooks[FORMAT] = lambda: drive.namespaces.update(
        {5: nvme_model.Namespace()}
    )
    with pytest.raises(
        exception.CleaningFailed, match='from namespaces 1 to namespaces 1, 5'
    ):
        empty()


def test_large_pages_only(drive):
    drive.page_shift = 1
    with pytest.raises(function.Unsupported, match='pages of 4 KiB'):
        empty()
