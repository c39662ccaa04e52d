# SPDX-License-Identifier: Apache-2.0

"""A disk that a tenant may have written to, through reboots and crashes.

Nobody else gets it before it was emptied.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import os
import shutil

import command
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.kernel import pci
from os_acc.privileged import notes as root_notes
from os_acc.privileged import storage
from os_acc.privileged import undo_log
from os_acc.privileged.pci import functions as privileged
from os_acc.privileged.pci import storage_calls
from os_acc.testing import mortal

DISK, IDS, VFIO = devices.DISK, '1b36:0010', 'vfio-pci'
INSTANCE, OTHER = (devices.instance().uuid for _ in range(2))


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    devices.spec({'address': '*'})
    os_acc.initialize()
    return kernel


@pytest.fixture
def drive(here):
    made = here.drives.at(DISK)
    made.namespaces[1].fill()
    return made


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    return command.Command(tmp_path / 'state', capsys, monkeypatch)


def plug():
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(DISK)])
    return instance


def take(instance: str = INSTANCE) -> str:
    return privileged.take(DISK, VFIO, [], instance, 2.0)


def clean() -> None:
    privileged.clean(DISK, IDS, 'auto', 0, 2.0)


def write(drive) -> None:
    drive.namespaces[1].fill(b'secret')


def has_secret(drive) -> bool:
    return any(b'secret' in d for d in drive.namespaces[1].data.values())


def notes() -> list[str]:
    names = (
        os.listdir(root_notes.FOLDER)
        if os.path.isdir(root_notes.FOLDER)
        else []
    )
    return [name for name in names if name.startswith('disk-')]


def test_a_drive_that_does_not_answer_after_a_reboot(here, drive):
    instance = plug()
    write(drive)
    here.reboot()
    drive.dead = True
    (failed,) = os_acc.recover().failed
    assert 'fatal error' in failed.error
    # The error is not that it cannot be given back, and it stays on VFIO.
    assert 'data of a guest' not in failed.error
    assert here.driver_of(DISK) == VFIO
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance)
    assert here.driver_of(DISK) == VFIO
    drive.dead = False
    assert has_secret(drive)
    assert os_acc.unplug(instance) == 1
    assert not has_secret(drive)
    assert here.driver_of(DISK) == 'nvme'
    assert notes() == []


def test_it_is_taken_again_once_it_answers(here, drive):
    instance = plug()
    write(drive)
    here.reboot()
    drive.dead = True
    assert os_acc.recover().failed
    drive.dead = False
    (van,) = os_acc.recover().restored
    assert (van.instance_uuid, van.state) == (instance.uuid, 'plugged')
    assert has_secret(drive)
    os_acc.unplug(instance)
    assert not has_secret(drive)


def test_without_the_note_it_is_not_given_out(here, drive, monkeypatch):
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = here.snapshot()
    with monkeypatch.context() as patch:
        patch.setattr(os, 'fsync', full)
        with pytest.raises(exception.PlugException, match='No space left'):
            plug()
    assert here.snapshot() == before
    assert not os_acc.get_vans()
    plug()


def test_nor_if_others_could_change_the_note(here, drive):
    before = here.snapshot()
    os.mkdir(root_notes.FOLDER)
    os.chmod(root_notes.FOLDER, 0o777)
    with pytest.raises(exception.PrivilegeError, match='users other than'):
        take()
    assert here.snapshot() == before


def test_a_note_that_cannot_be_deleted(here, drive, monkeypatch):
    take()
    write(drive)

    def refuse(path: str, **options: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, 'unlink', refuse)
        with pytest.raises(exception.PrivilegeError, match='Read-only'):
            clean()
    with pytest.raises(exception.CleaningFailed):
        privileged.give_back(DISK, IDS, 2.0)
    clean()
    assert privileged.give_back(DISK, IDS, 2.0)


@pytest.mark.parametrize('lost', ['note', 'record'])
def test_either_of_note_and_record_suffices(here, drive, lost):
    take()
    write(drive)
    directory = here.root / 'run/os-acc/storage'
    shutil.rmtree(root_notes.FOLDER if lost == 'note' else directory)
    with pytest.raises(exception.CleaningFailed):
        privileged.give_back(DISK, IDS, 2.0)
    drive.dead = True
    with pytest.raises(exception.DeviceError, match='fatal error'):
        take()
    drive.dead = False
    assert here.driver_of(DISK) == VFIO
    with pytest.raises(exception.CleaningFailed):
        privileged.give_back(DISK, IDS, 2.0)
    clean()
    assert not has_secret(drive)


def test_another_drive_at_the_address(here, drive):
    """It is no tenant's, and the note of the first drive stays."""
    first = pci.get(DISK)
    second = dataclasses.replace(first, product_id='0011')
    take()
    here.reboot()
    assert storage.was_handed_out(first)
    assert not storage.was_handed_out(second)
    storage.write_note(second, OTHER, None)
    storage.mark_empty(second, None)
    assert storage.was_handed_out(first)


@pytest.mark.parametrize('reboot', [False, True])
def test_not_for_another_instance_before_it_was_emptied(here, drive, reboot):
    take()
    write(drive)
    if reboot:
        here.reboot()
    before = here.snapshot()
    with pytest.raises(exception.DeviceBusy) as caught:
        take(OTHER)
    assert f'may still hold the data of instance {INSTANCE}' in str(
        caught.value
    )
    assert 'os-acc recover' in str(caught.value)
    assert f'os-acc device free {DISK}' in str(caught.value)
    assert here.snapshot() == before
    # Nor does a VAN that is free to choose another one get stuck with it.
    assert isinstance(devices.refused(devices.pci(DISK)), exception.DeviceBusy)
    assert here.snapshot() == before
    clean()
    assert take(OTHER) == VFIO
    assert not has_secret(drive)


@pytest.mark.parametrize('reboot', [False, True])
def test_device_free_empties_it(here, drive, reboot, run):
    """No VAN has it any more, as after a loss of the journal."""
    before = here.snapshot()
    take()
    write(drive)
    if reboot:
        here.reboot()
    result = run('device', 'free', DISK)
    assert result.code == 0, result.err
    assert 'it was erased' in result.out
    assert not has_secret(drive)
    assert here.snapshot() == before
    take(OTHER)


def test_device_free_does_not_empty_what_no_guest_had(here, drive, run):
    assert run('device', 'free', DISK).code == 2
    assert drive.formatted == []


def test_nor_one_that_the_operator_has_bound(here, drive):
    here.unbind(DISK)
    here.bind(DISK, VFIO)
    storage_calls.hand_out(DISK, INSTANCE, 2.0)
    with pytest.raises(exception.DeviceBusy, match=INSTANCE):
        storage_calls.hand_out(DISK, OTHER, 2.0)
    storage_calls.hand_out(DISK, INSTANCE, 2.0)


def test_a_note_that_cannot_be_read(here, drive):
    take()
    write(drive)
    (name,) = notes()
    with open(root_notes.files.path(name), 'w') as file:
        file.write('{')
    with pytest.raises(exception.DeviceBusy, match='an unknown instance'):
        take()
    clean()
    take(OTHER)
    assert not has_secret(drive)


def test_a_record_of_an_earlier_version(here, drive):
    """It does not name the instance."""
    take()
    shutil.rmtree(root_notes.FOLDER)
    path = here.root / 'run/os-acc/storage' / DISK
    found = json.loads(path.read_text())
    del found['before']['instance']
    path.write_text(json.dumps(found))
    with pytest.raises(exception.DeviceBusy, match='an unknown instance'):
        take()
    clean()
    take(OTHER)


STEPS = ('note', 'record', 'no note', 'empty')


def crash_at(patch: pytest.MonkeyPatch, step: str, after: bool) -> None:
    """End the process before or after a step."""

    def crashing(act, applies=lambda *args: True):
        def run(*args):
            if not applies(*args):
                return act(*args)
            if after:
                act(*args)
            raise mortal.Crash

        return run

    if step == 'note':
        patch.setattr(storage, 'write_note', crashing(storage.write_note))
    elif step == 'no note':
        patch.setattr(storage, 'delete_notes', crashing(storage.delete_notes))
    else:
        patch.setattr(
            undo_log.storage,
            'write',
            crashing(
                undo_log.storage.write,
                lambda name, value: value.empty == (step == 'empty'),
            ),
        )


@pytest.mark.parametrize(
    ('step', 'after', 'reboot', 'dead'),
    list(itertools.product(STEPS, *[[False, True]] * 3)),
)
def test_a_crash_at_each_step(
    here, drive, monkeypatch, step, after, reboot, dead
):
    """And then a reboot, or a drive that does not answer, or both."""
    if step in ('no note', 'empty'):
        take()
        write(drive)
    with (
        monkeypatch.context() as patch,
        pytest.raises(mortal.Crash),
    ):
        crash_at(patch, step, after)
        take() if step in ('note', 'record') else clean()
    # The guest starts only after take(): it has written nothing if the
    # process ended in take().
    if reboot:
        here.reboot()
    drive.dead = dead
    erased = len(drive.formatted)
    try:
        take()
    except exception.DeviceError:
        assert dead
        assert not has_secret(drive) or here.driver_of(DISK) == VFIO
    else:
        write(drive)
    drive.dead = False
    clean()
    if here.driver_of(DISK) == VFIO:
        privileged.give_back(DISK, IDS, 2.0)
    assert not has_secret(drive)
    if not dead:
        assert len(drive.formatted) == erased + 1
    assert notes() == []
